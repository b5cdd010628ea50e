"""Repositories of a hub: listed, checked by what is pinned or stated, continued where they were cut, and no token on another host."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from places import Place, hub, sha256

from engcmp_resources.errors import EngcmpError
from engcmp_resources.fetching.base import Pinned, Wanted
from engcmp_resources.fetching.fetch import fetch_source, outlook
from engcmp_resources.fetching.http import Http
from engcmp_resources.fetching.hugging_face import HuggingFace

COMMIT = "a" * 40
LOGIN = "Bearer hf_secret"
WEIGHTS = bytes(range(256)) * 4000
FILES = {
    "config.json": b'{"layers": 2}',
    "model.safetensors": WEIGHTS,
    "notes.md": b"read me",
    "sub/table.json": b"[1]",
}
MODEL = f"/owner/model/resolve/{COMMIT}/model.safetensors"
ALL = Wanted("model", "hf", "owner/model", COMMIT, None, (), "model")
PINNED = replace(ALL, files=(Pinned("model.safetensors", sha256(WEIGHTS), len(WEIGHTS)),))
NO_WAIT = Http(attempts=3, pause_s=0, sleep=lambda _s: None)
ONCE = Http(attempts=1, sleep=lambda _s: None)


@pytest.fixture(autouse=True)
def _hub(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    hub(place, "owner/model", COMMIT, FILES, large={"model.safetensors"})
    monkeypatch.setenv("HF_ENDPOINT", place.address)


def fetched(root: Path, wanted: Wanted = PINNED, http: Http = NO_WAIT, said: list[str] | None = None) -> None:
    fetch_source(wanted, root, HuggingFace(http), (said if said is not None else []).append)


def parts(root: Path) -> list[Path]:
    return list(root.rglob("*.partial"))


def test_all_files_of_a_repository_are_fetched_over_all_pages_and_checked(place: Place, tmp_path: Path) -> None:
    fetched(tmp_path, ALL)
    assert {name: (tmp_path / "model" / name).read_bytes() for name in FILES} == FILES
    listed = json.loads((tmp_path / "model" / "fetched.json").read_bytes())
    assert {one["path"]: one["sha256"] for one in listed["files"]} == {
        name: sha256(data) for name, data in FILES.items()
    }
    assert (listed["revision"], listed["where"]) == (COMMIT, "owner/model")
    asked = len(place.asked)
    fetched(tmp_path, ALL)
    assert [path for path, _ in place.asked[asked:]] == [
        one for one, _ in place.asked[asked:] if one.startswith("/api/")
    ]


def test_patterns_choose_files_and_one_that_takes_none_is_named(tmp_path: Path) -> None:
    fetched(tmp_path, replace(ALL, include=("*.json",)))
    assert sorted(path.name for path in (tmp_path / "model").rglob("*") if path.name != ".lock" and path.is_file()) == [
        "config.json", "fetched.json", "table.json",
    ]  # fmt: skip
    with pytest.raises(EngcmpError, match=r"no file there is taken by \*\.bin.*correct `include`"):
        fetched(tmp_path, replace(ALL, include=("*.bin",)))


def test_a_data_set_has_addresses_of_its_own(place: Place, tmp_path: Path) -> None:
    hub(place, "owner/rows", COMMIT, {"rows.bin": b"rows", "more.bin": b"more"}, large={"rows.bin"}, kind="datasets")
    fetched(tmp_path, Wanted("rows", "hf", "owner/rows", COMMIT, None, (), "dataset"))
    assert (tmp_path / "rows" / "rows.bin").read_bytes() == b"rows"


def test_what_is_pinned_whole_needs_no_listing_and_what_is_here_needs_no_network(place: Place, tmp_path: Path) -> None:
    fetched(tmp_path)
    assert [path for path, _ in place.asked] == [MODEL]
    place.files.clear()
    fetched(tmp_path)
    assert outlook(PINNED, tmp_path, HuggingFace(ONCE)).missing == ()
    assert len(place.asked) == 1


def test_a_line_that_breaks_is_continued_where_it_broke(place: Place, tmp_path: Path) -> None:
    place.cuts[MODEL] = [1000, 5000, 0]
    said: list[str] = []
    fetched(tmp_path, said=said)
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == WEIGHTS
    assert [one.get("range") for one in place.asked_for(MODEL)] == [None, "bytes=1000-", "bytes=6000-", "bytes=6000-"]
    assert sum("goes on after an interruption" in line for line in said) == 3
    assert not parts(tmp_path)


def test_a_run_that_was_cut_is_continued_by_the_next_one(place: Place, tmp_path: Path) -> None:
    place.cuts[MODEL] = [300_000]
    with pytest.raises(EngcmpError, match=r"no whole answer after 1 attempts.*what was fetched is kept and continued"):
        fetched(tmp_path, http=ONCE)
    (part,) = parts(tmp_path)
    assert part.name == f".model.safetensors.{sha256(WEIGHTS)[:16]}.partial" and part.stat().st_size == 300_000
    assert not (tmp_path / "model" / "model.safetensors").exists()
    fetched(tmp_path)
    assert place.asked_for(MODEL)[-1]["range"] == "bytes=300000-"
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == WEIGHTS


def test_a_server_without_ranges_sends_the_whole_file_again(place: Place, tmp_path: Path) -> None:
    place.cuts[MODEL], place.without_ranges = [1000], True
    fetched(tmp_path)
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == WEIGHTS


def test_a_part_that_is_no_beginning_of_the_file_is_refused_and_the_next_run_is_whole(
    place: Place, tmp_path: Path
) -> None:
    place.cuts[MODEL] = [1000]
    with pytest.raises(EngcmpError):
        fetched(tmp_path, http=ONCE)
    (part,) = parts(tmp_path)
    part.write_bytes(b"x" * 1000)
    with pytest.raises(EngcmpError, match="wrong sha256"):
        fetched(tmp_path)
    assert not parts(tmp_path)
    fetched(tmp_path)
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == WEIGHTS


def test_a_part_beyond_the_end_is_begun_anew(place: Place, tmp_path: Path) -> None:
    unknown = replace(PINNED, files=(Pinned("model.safetensors", sha256(WEIGHTS), None),))
    part = tmp_path / "model" / f".model.safetensors.{sha256(WEIGHTS)[:16]}.partial"
    part.parent.mkdir()
    part.write_bytes(WEIGHTS + b"more")
    place.files[f"/api/models/owner/model/tree/{COMMIT}"] = b'[{"type": "file", "path": "model.safetensors"}]'
    place.headers.clear()
    fetched(tmp_path, unknown)
    assert [one.get("range") for one in place.asked_for(MODEL)] == [f"bytes={len(WEIGHTS) + 4}-", None]


def test_another_file_than_the_one_pinned_is_not_kept(place: Place, tmp_path: Path) -> None:
    place.files[MODEL] = bytes(len(WEIGHTS))
    with pytest.raises(
        EngcmpError, match=f"wrong sha256: expected {sha256(WEIGHTS)}, got {sha256(bytes(len(WEIGHTS)))}"
    ):
        fetched(tmp_path)
    assert not parts(tmp_path) and not (tmp_path / "model" / "model.safetensors").exists()


def test_a_small_file_is_held_against_the_id_that_the_hub_states(place: Place, tmp_path: Path) -> None:
    place.files[f"/owner/model/resolve/{COMMIT}/config.json"] = b'{"layers": 3}'
    with pytest.raises(EngcmpError, match=r"model: config.json: wrong git"):
        fetched(tmp_path, ALL)


def test_a_file_of_another_size_is_refused_before_it_is_fetched(place: Place, tmp_path: Path) -> None:
    place.files[MODEL] = WEIGHTS + b"x"
    with pytest.raises(EngcmpError, match=r"1,024,001 bytes are offered, 1,024,000 were expected"):
        fetched(tmp_path)


def test_a_disk_that_is_too_small_is_told_before_anything_is_fetched(place: Place, tmp_path: Path) -> None:
    large = replace(PINNED, files=(Pinned("model.safetensors", sha256(WEIGHTS), 10**18),))
    with pytest.raises(EngcmpError, match="source model needs 1,000,000,000,000 MB and the disk has"):
        fetched(tmp_path, large)
    assert not place.asked


def test_a_server_that_is_busy_is_asked_again(place: Place, tmp_path: Path) -> None:
    place.busy[MODEL] = 2
    fetched(tmp_path)
    place.busy[f"/api/models/owner/model/tree/{COMMIT}"] = 3
    with pytest.raises(EngcmpError, match="no whole answer after 3 attempts: HTTP 503"):
        fetched(tmp_path, ALL)


def test_a_file_that_was_changed_here_is_fetched_again(tmp_path: Path) -> None:
    fetched(tmp_path)
    path = tmp_path / "model" / "model.safetensors"
    path.write_bytes(bytes(len(WEIGHTS)))
    assert [one.path for one in outlook(PINNED, tmp_path, HuggingFace(ONCE)).missing] == ["model.safetensors"]
    fetched(tmp_path)
    assert path.read_bytes() == WEIGHTS


# ---------------------------------------------------------------- logins


def test_a_place_that_needs_a_login_says_how_to_give_one(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.token = LOGIN
    with pytest.raises(EngcmpError, match=r"HTTP 401, a login is needed.*set HF_TOKEN"):
        fetched(tmp_path)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(EngcmpError) as caught:
        fetched(tmp_path)
    assert "hf_wrong" not in str(caught.value)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    said: list[str] = []
    fetched(tmp_path, said=said)
    kept = "".join(path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file())
    assert "hf_secret" not in kept + "".join(said)


def test_a_redirect_to_another_host_does_not_carry_the_token(
    place: Place, other: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    place.token = LOGIN
    place.redirects[MODEL] = "/same"
    place.redirects["/same"] = f"{other.address}/bucket?signature=s"
    other.redirects["/bucket"], other.files["/deeper"] = "/deeper", WEIGHTS
    fetched(tmp_path)
    assert [one["authorization"] for one in (*place.asked_for(MODEL), *place.asked_for("/same"))] == [
        "Bearer hf_secret"
    ] * 2
    assert len(other.asked) == 2 and not any("authorization" in headers for _, headers in other.asked)


def test_a_token_is_not_sent_over_plain_http_to_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HF_ENDPOINT", "http://192.0.2.1")
    with pytest.raises(EngcmpError, match="a login is not sent over plain http"):
        fetched(tmp_path)


def test_a_token_file_counts_only_where_nobody_else_may_read_it(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.token = LOGIN
    file = tmp_path / "token"
    file.write_text("hf_secret\n")
    file.chmod(0o644)
    monkeypatch.setenv("HF_TOKEN_PATH", str(file))
    with pytest.raises(EngcmpError, match=r"HF_TOKEN_PATH: others may read the file.*chmod 600 token"):
        fetched(tmp_path)
    file.chmod(0o600)
    fetched(tmp_path)
    os.replace(file, tmp_path / "real")  # noqa: PTH105 - a link in its place
    file.symlink_to(tmp_path / "real")
    with pytest.raises(EngcmpError, match="the file cannot be read"):
        fetched(tmp_path / "elsewhere")  # what is whole here is not asked for again


# ---------------------------------------------------------------- paths


@pytest.mark.parametrize("path", ["../out", "/etc/x", "a/../../out", "a//b", "a\\b", "c:d", "."])
def test_a_name_that_leads_out_is_refused(place: Place, tmp_path: Path, path: str) -> None:
    place.files[f"/api/models/owner/model/tree/{COMMIT}"] = json.dumps(
        [{"type": "file", "path": path, "size": 1, "oid": "0" * 40}]
    ).encode()
    place.headers.clear()
    with pytest.raises(EngcmpError, match="no path within a folder"):
        fetched(tmp_path / "in", ALL)
    assert not (tmp_path / "out").exists()


def test_a_link_in_the_folder_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "in" / "model").mkdir(parents=True)
    (tmp_path / "in" / "model" / "sub").symlink_to(tmp_path)
    with pytest.raises(EngcmpError, match="is or lies below a link"):
        fetched(tmp_path / "in", ALL)
    assert not (tmp_path / "table.json").exists()


@pytest.mark.parametrize(("where", "revision"), [("owner/model", "main"), ("../model", COMMIT), ("a/b/c", COMMIT)])
def test_only_a_repository_at_a_commit_is_fetched(tmp_path: Path, where: str, revision: str) -> None:
    with pytest.raises(EngcmpError, match="not a repository at a commit"):
        fetched(tmp_path, replace(ALL, where=where, revision=revision))
