"""Git at a commit, wheels of a package index, and a mirror in place of all networks."""

from __future__ import annotations

import json
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from places import Place, hub, sha256

from engcmp_resources.errors import EngcmpError
from engcmp_resources.fetching.base import Pinned, Wanted
from engcmp_resources.fetching.fetch import fetch_source, fetcher_of, outlook
from engcmp_resources.fetching.http import Http
from engcmp_resources.fetching.mirror import mirror_folder
from engcmp_resources.fetching.others import REPOSITORY_TAR

HTTP = Http(attempts=1, sleep=lambda _s: None)
COMMIT = "b" * 40
FILES = {"config.json": b"{}", "model.safetensors": bytes(100_000)}


def fetched(root: Path, wanted: Wanted, mirror: Path | None = None) -> Path:
    fetch_source(wanted, root, fetcher_of(wanted, mirror, HTTP), [].append)
    return root / wanted.source


@pytest.fixture
def repository(tmp_path: Path) -> Wanted:
    folder = tmp_path / "launcher"
    folder.mkdir()
    (folder / "run.sh").write_text("#!/bin/sh\n")

    def git(*arguments: str) -> str:
        command = ["git", "-c", "user.name=t", "-c", "user.email=t@t.invalid", *arguments]
        return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "-m", "first")
    return Wanted("launcher", "git", folder.as_uri(), git("rev-parse", "HEAD"))


def test_a_repository_at_a_commit_is_the_same_tar_each_time(repository: Wanted, tmp_path: Path) -> None:
    first = (fetched(tmp_path / "one", repository) / REPOSITORY_TAR).read_bytes()
    assert (fetched(tmp_path / "two", repository) / REPOSITORY_TAR).read_bytes() == first
    seen = outlook(repository, tmp_path / "one", fetcher_of(repository, None, HTTP))
    assert seen.missing == () and outlook(repository, tmp_path / "new", fetcher_of(repository, None, HTTP)).unknown == 1


def test_a_repository_s_pinned_tar_is_held_against_its_sha256(repository: Wanted, tmp_path: Path) -> None:
    data = (fetched(tmp_path / "one", repository) / REPOSITORY_TAR).read_bytes()
    pinned = replace(repository, files=(Pinned(REPOSITORY_TAR, sha256(data), len(data)),))
    fetched(tmp_path / "two", pinned)
    wrong = replace(repository, files=(Pinned(REPOSITORY_TAR, "0" * 64, None),))
    with pytest.raises(EngcmpError, match=r"launcher: repository\.tar: wrong sha256: expected 0000"):
        fetched(tmp_path / "three", wrong)
    assert not (tmp_path / "three" / "launcher" / REPOSITORY_TAR).exists()


def test_a_tar_of_another_commit_is_not_taken_for_this_one(repository: Wanted, tmp_path: Path) -> None:
    fetched(tmp_path / "one", repository)
    other = replace(repository, revision="c" * 40)
    assert outlook(other, tmp_path / "one", fetcher_of(other, None, HTTP)).missing
    with pytest.raises(EngcmpError, match=r"git fetch|is not in the repository"):
        fetched(tmp_path / "one", other)


def test_wheels_come_by_pip_and_must_be_pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "wheels" / "demo_data-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("demo_data/__init__.py", "")
        archive.writestr("demo_data-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: demo_data\nVersion: 1.0\n")
        archive.writestr("demo_data-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("demo_data-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    digest = sha256(wheel.read_bytes())
    wanted = Wanted("data", "package_index", "demo-data", "1.0", (Pinned(wheel.name, digest, None),))
    assert (fetched(tmp_path / "in", wanted) / wheel.name).read_bytes() == wheel.read_bytes()
    with pytest.raises(EngcmpError, match="wrong sha256"):
        fetched(tmp_path / "other", replace(wanted, files=(Pinned(wheel.name, "0" * 64, None),)))
    with pytest.raises(EngcmpError, match="is no wheel with a sha256"):
        fetched(tmp_path / "in", replace(wanted, files=(Pinned(wheel.name, None, None),)))


# ---------------------------------------------------------------- mirrors


@pytest.fixture
def model(place: Place, monkeypatch: pytest.MonkeyPatch) -> Wanted:
    hub(place, "owner/model", COMMIT, FILES, large={"model.safetensors"})
    monkeypatch.setenv("HF_ENDPOINT", place.address)
    return Wanted("model", "hf", "owner/model", COMMIT, None, (), "model")


def test_what_one_machine_fetched_is_a_mirror_for_another_that_asks_no_network(
    place: Place, model: Wanted, repository: Wanted, tmp_path: Path
) -> None:
    for wanted in (model, repository):
        fetched(tmp_path / "first", wanted)
    asked = len(place.asked)
    (tmp_path / "launcher").rename(tmp_path / "gone")
    for wanted in (model, repository):
        fetched(tmp_path / "second", wanted, tmp_path / "first")
    assert len(place.asked) == asked
    for name, data in FILES.items():
        assert (tmp_path / "second" / "model" / name).read_bytes() == data
    assert (tmp_path / "second" / "launcher" / REPOSITORY_TAR).is_file()


def test_a_mirror_needs_no_list_where_the_pins_say_all(tmp_path: Path) -> None:
    wanted = Wanted("texts", "mirror", "documents/v1", "v1", (Pinned("a/one.txt", sha256(b"one"), 3),))
    (tmp_path / "mirror" / "documents" / "v1" / "a").mkdir(parents=True)
    (tmp_path / "mirror" / "documents" / "v1" / "a" / "one.txt").write_bytes(b"one")
    assert (fetched(tmp_path / "in", wanted, tmp_path / "mirror") / "a" / "one.txt").read_bytes() == b"one"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda folder: (folder / "config.json").unlink(), "model: config.json is not in the mirror"),
        (lambda folder: (folder / "config.json").write_bytes(b"[]"), "model: config.json: wrong sha256"),
        (lambda folder: (folder / "fetched.json").unlink(), "pins no files and the mirror has no list of them"),
        (lambda folder: (folder / "fetched.json").write_bytes(b"{"), "pins no files and the mirror has no list of them"),
        (
            lambda folder: (folder / "config.json").rename(folder / "x") and (folder / "config.json").symlink_to(folder / "x"),
            "model: config.json: config.json is or lies below a link",
        ),
    ],
)  # fmt: skip
def test_a_mirror_that_lacks_or_changed_a_file_is_told(
    model: Wanted, tmp_path: Path, change: object, said: str
) -> None:
    folder = fetched(tmp_path / "first", model)
    assert callable(change)
    change(folder)
    with pytest.raises(EngcmpError, match=said.replace(".", r"\.")):
        fetched(tmp_path / "second", model, tmp_path / "first")


def test_a_mirror_of_another_revision_is_refused(model: Wanted, tmp_path: Path) -> None:
    fetched(tmp_path / "first", model)
    with pytest.raises(EngcmpError, match=r"the mirror has revision bbbb.*cccc.* is wanted"):
        fetched(tmp_path / "second", replace(model, revision="c" * 40), tmp_path / "first")


def test_a_mirror_s_list_that_leads_out_is_refused(model: Wanted, tmp_path: Path) -> None:
    folder = fetched(tmp_path / "first", model)
    listed = json.loads((folder / "fetched.json").read_bytes())
    listed["files"][0]["path"] = "../../out"
    (folder / "fetched.json").write_text(json.dumps(listed))
    with pytest.raises(EngcmpError, match="no path within a folder"):
        fetched(tmp_path / "second", model, tmp_path / "first")


def test_a_source_of_a_mirror_needs_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = Wanted("texts", "mirror", "documents", "v1", (Pinned("one.txt", sha256(b"one"), 3),))
    with pytest.raises(EngcmpError, match=r"only to be had from a mirror.*--mirror or ENGCMP_MIRROR"):
        fetched(tmp_path, wanted)
    assert mirror_folder(None) is None
    monkeypatch.setenv("ENGCMP_MIRROR", str(tmp_path / "none"))
    with pytest.raises(EngcmpError, match="there is no such mirror"):
        mirror_folder(None)
