"""Listing a package on the index that pip is set to; recorded pages from a server here, and the real index once."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sys
import time
import tomllib
import venv
from email.utils import formatdate
from pathlib import Path

import pytest
from release_places import Reply, Server, Watch, make_wheel

from engcmp_resources.canonical import sha256_file
from engcmp_resources.errors import EngcmpError
from engcmp_resources.package_index import WheelPin, fetch_wheel, member_sha256, platform_key, platform_of
from engcmp_resources.places import CHECKOUT
from engcmp_resources.releases.base import Listing, RateLimitedError, ReleasePlace, UnreachableError, list_releases

A, B, C = "a" * 64, "b" * 64, "c" * 64
PAGE = "/simple/demo-wheel/"
JSON = {"Content-Type": "application/vnd.pypi.simple.v1+json"}
HTML = {"Content-Type": "text/html; charset=utf-8"}
OFFLINE = pytest.mark.skipif(os.environ.get("ENGCMP_OFFLINE") == "1", reason="ENGCMP_OFFLINE=1: no package index here")


def file(version: str, sha256: str | None, yanked: bool | str = False, tag: str = "py3-none-any") -> dict[str, object]:
    hashes = {} if sha256 is None else {"sha256": sha256}
    name = f"demo_wheel-{version}-{tag}.whl"
    return {"filename": name, "url": f"../../files/{name}", "hashes": hashes, "yanked": yanked, "size": 9}


def page(*files: dict[str, object], version: str = "1.1") -> Reply:
    body = {"meta": {"api-version": version}, "name": "demo-wheel", "files": list(files)}
    return Reply(json.dumps(body).encode(), headers=JSON)


def listed(name: str = "demo-wheel", timeout_s: float = 20.0) -> Listing:
    return list_releases(ReleasePlace("package_index", name), timeout_s=timeout_s)


def fails(kind: type[EngcmpError], words: str, timeout_s: float = 20.0) -> EngcmpError:
    with pytest.raises(kind, match=words) as failed:
        listed(timeout_s=timeout_s)
    assert type(failed.value) is kind
    assert failed.value.remedy
    return failed.value


@pytest.fixture
def index(server: Server, bare_settings: None, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setenv("PIP_INDEX_URL", f"{server.address}/simple")
    return server


def test_releases_come_by_version_with_files_hashes_and_yanks(index: Server) -> None:
    index[PAGE] = page(
        file("1.10", A),
        file("1.9", A, tag="cp310-abi3-win_amd64"),
        file("1.9", B, yanked="broken build"),
        file("2.0rc1", C),
        file("1.2", A, yanked="wrong\nname"),
        file("1.3", A, yanked=True),
        {"filename": "demo_wheel-1.9.tar.gz", "hashes": {"sha256": C}},
        {"filename": "other-7.0-py3-none-any.whl", "hashes": {"sha256": C}},
        {"filename": "demo_wheel-x y.whl", "hashes": {}},
    )
    listing = listed("Demo_Wheel")
    assert listing.place == f"package demo-wheel on {index.address}/simple"
    assert [release.tag for release in listing.releases] == ["1.2", "1.3", "1.9", "1.10", "2.0rc1"]
    by_tag = {release.tag: release for release in listing.releases}
    assert [(f.name, f.sha256) for f in by_tag["1.9"].files] == [
        ("demo_wheel-1.9-cp310-abi3-win_amd64.whl", A),
        ("demo_wheel-1.9-py3-none-any.whl", B),
    ]
    lines = f"demo_wheel-1.9-cp310-abi3-win_amd64.whl {A}\ndemo_wheel-1.9-py3-none-any.whl {B}\n"
    assert by_tag["1.9"].digest == f"files:{hashlib.sha256(lines.encode()).hexdigest()}"
    withdrawn = {tag: release.withdrawn for tag, release in by_tag.items() if release.withdrawn is not None}
    assert withdrawn == {"1.2": "wrong name", "1.3": "yanked, no reason is given"}
    assert [tag for tag, release in by_tag.items() if release.prerelease] == ["2.0rc1"]
    accept = index.asked[0][2]["accept"]
    assert accept.startswith("application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2")


def test_a_page_of_html_says_the_same(index: Server) -> None:
    index[PAGE] = Reply(
        f"""<!DOCTYPE html><html><head><meta name="pypi:repository-version" content="1.0"></head><body>
        <a href="https://files.example/ab/demo_wheel-1.0-py3-none-any.whl#sha256={A}" data-yanked="bad &amp; old">x</a>
        <a href="../../f/demo_wheel-1.1%2Bcpu-py3-none-any.whl#md5=00&amp;sha256={B}">y</a>
        <a href="../../f/demo_wheel-1.2-py3-none-any.whl" data-yanked>z</a>
        <a href="../../f/demo_wheel-1.2.tar.gz#sha256={B}">s</a></body></html>""".encode(),
        headers=HTML,
    )
    releases = listed().releases
    assert [(r.tag, r.withdrawn) for r in releases] == [
        ("1.0", "bad & old"),
        ("1.1+cpu", None),
        ("1.2", "yanked, no reason is given"),
    ]
    assert [r.files[0].sha256 for r in releases] == [A, B, None]
    assert releases[2].digest is None


def test_a_release_that_was_uploaded_anew_one_that_is_gone_and_one_that_grew_are_seen(index: Server) -> None:
    index[PAGE] = page(file("1.0", A), file("1.1", A), file("1.2", A))
    before = {release.tag: release.digest for release in listed().releases}
    index[PAGE] = page(file("1.0", A), file("1.1", B), file("1.0", B, tag="cp310-abi3-win_amd64"))
    after = {release.tag: release.digest for release in listed().releases}
    assert set(after) == {"1.0", "1.1"}
    assert after["1.1"] != before["1.1"]
    assert after["1.0"] != before["1.0"]


def test_one_file_without_a_hash_leaves_the_release_without_a_digest(index: Server) -> None:
    index[PAGE] = page(file("1.0", A), file("1.0", None, tag="cp310-abi3-win_amd64"), file("1.1", "no hash"))
    assert [release.digest for release in listed().releases] == [None, None]


def test_extra_indexes_and_folders_add_their_wheels(
    index: Server, other_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index[PAGE] = page(file("1.0", A))
    other_server["/more/demo-wheel/"] = page(file("1.1", B))
    shelf = make_wheel(tmp_path / "shelf", "1.2")
    make_wheel(tmp_path / "shelf", "9.9", package="unrelated")
    simple = make_wheel(tmp_path / "mirror" / "files", "1.3")
    folder = tmp_path / "mirror" / "simple" / "demo-wheel"
    folder.mkdir(parents=True)
    (folder / "index.html").write_text(f'<a href="../../files/{simple.name}">a wheel</a>')
    monkeypatch.setenv(
        "PIP_EXTRA_INDEX_URL",
        f"{other_server.address}/more/ file://{tmp_path}/mirror/simple file://{tmp_path}/missing/simple",
    )
    monkeypatch.setenv("PIP_FIND_LINKS", f"{tmp_path}/shelf {tmp_path}/missing")
    listing = listed()
    assert [(r.tag, r.files[0].sha256) for r in listing.releases] == [
        ("1.0", A),
        ("1.1", B),
        ("1.2", sha256_file(shelf)),
        ("1.3", sha256_file(simple)),
    ]
    assert "missing" not in listing.place


def test_no_index_leaves_only_the_folders(index: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel(tmp_path / "shelf", "1.2")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "shelf"))
    assert [release.tag for release in listed().releases] == ["1.2"]
    assert index.asked == []


def test_a_file_of_pip_s_settings_counts_and_the_environment_more(
    index: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "pip.conf"
    settings.write_text(f"[global]\nindex-url = http://127.0.0.1:9/simple\n[download]\nindex-url = {index.address}/d\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(settings))
    index[PAGE] = page(file("1.0", A))
    index["/d/demo-wheel/"] = page(file("2.0", A))
    assert listed().releases[0].tag == "1.0"
    monkeypatch.delenv("PIP_INDEX_URL")
    assert listed().releases[0].tag == "2.0"
    settings.write_text("no settings")
    fails(EngcmpError, "pip's settings cannot be read")


def test_one_index_that_does_not_answer_is_an_error_and_no_short_listing(
    index: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    index[PAGE] = page(file("1.0", A))
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "http://127.0.0.1:9/simple")
    assert "127.0.0.1:9" in str(fails(UnreachableError, "no answer"))


def test_a_package_that_is_nowhere(index: Server) -> None:
    error = fails(EngcmpError, "there is no package demo-wheel on the package index")
    assert error.where == f"{index.address}/simple"
    with pytest.raises(EngcmpError, match="not the name of a package"):
        listed("../../etc")


def test_a_package_without_wheels_has_no_releases(index: Server) -> None:
    index[PAGE] = page({"filename": "demo_wheel-1.9.tar.gz", "hashes": {}})
    assert listed().releases == ()


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "77"}, 77),
        ({}, 300),
        ({"Retry-After": "soon"}, 300),
        ({"Retry-After": "9" * 12}, 86400),
        ({"Retry-After": "Thu, 01 Jan 1970 00:00:00 GMT"}, 1),
    ],
)
def test_a_rate_limit_says_how_long_to_wait(index: Server, headers: dict[str, str], seconds: float) -> None:
    index[PAGE] = Reply(status=429, headers=headers)
    with pytest.raises(RateLimitedError, match="too many requests") as failed:
        listed()
    assert failed.value.retry_after_s == seconds


def test_a_rate_limit_with_a_date_and_one_that_is_a_403(index: Server) -> None:
    index[PAGE] = Reply(status=429, headers={"Retry-After": formatdate(time.time() + 100, usegmt=True)})
    with pytest.raises(RateLimitedError) as failed:
        listed()
    assert 80 < failed.value.retry_after_s <= 100
    reset = str(int(time.time()) + 100)
    index[PAGE] = Reply(status=403, headers={"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": reset})
    with pytest.raises(RateLimitedError) as failed:
        listed()
    assert 80 < failed.value.retry_after_s <= 100


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (500, UnreachableError, "HTTP 500, a fault of the server"),
        (503, UnreachableError, "HTTP 503, a fault of the server"),
        (401, EngcmpError, "HTTP 401, a login is needed"),
        (403, EngcmpError, "HTTP 403, a login is needed"),
        (204, EngcmpError, "HTTP 204, which is no listing"),
        (418, EngcmpError, "HTTP 418, which is no listing"),
    ],
)
def test_other_answers_are_told_apart(index: Server, status: int, kind: type[EngcmpError], words: str) -> None:
    index[PAGE] = Reply(status=status)
    fails(kind, words)


@pytest.mark.parametrize(
    ("body", "headers", "words"),
    [
        (b"<html>Log in to the network</html>", HTML, "a web page without links to files"),
        (b"<html>Log in</html>", JSON, "JSON is malformed"),
        (b'{"meta": {"api-version": "1.0"}, "files": [{}]}', JSON, "missing required field `filename`"),
        (b'{"meta": {"api-version": "1.0"}, "files": [{"filename": 7}]}', JSON, "Expected `str`"),
        (b'{"meta": {"api-version": "2.0"}, "files": []}', JSON, "version '2.0' of the Simple API"),
        (b'<meta name="pypi:repository-version" content="2.0">', HTML, "version '2.0' of the Simple API"),
        (b"[" * 100_000, JSON, "not a listing"),
        (b"\xff\xfe", JSON, "not a listing"),
        (b"GIF89a", {"Content-Type": "image/gif"}, "its type is image/gif"),
        (b"", {}, "its type is not stated"),
        (b"no gzip", JSON | {"Content-Encoding": "gzip"}, "its compression is broken"),
    ],
)
def test_an_answer_that_is_no_listing(index: Server, body: bytes, headers: dict[str, str], words: str) -> None:
    index[PAGE] = Reply(body, headers=headers)
    fails(EngcmpError, words)


def test_an_answer_that_breaks_off_is_a_fault_that_passes(index: Server) -> None:
    index[PAGE] = Reply(b"{", headers=JSON | {"Content-Length": "100"})
    fails(UnreachableError, "no answer")


def test_a_listing_over_50_mb_is_refused(index: Server) -> None:
    index[PAGE] = Reply(bytes(1_000_000), headers=JSON, repeat=51)
    fails(EngcmpError, "the listing has more than 50 MB")


def test_an_index_without_an_address_a_closed_port_and_one_without_tls(
    index: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for address in (
        "https://index.invalid/simple",
        "http://127.0.0.1:9/simple",
        index.address.replace("http:", "https:"),
    ):
        monkeypatch.setenv("PIP_INDEX_URL", address)
        error = fails(UnreachableError, "no answer")
        assert error.where is not None
        assert error.where.startswith(address)


@pytest.mark.parametrize(
    "slow",
    [
        Reply(b"x" * 1000, headers=JSON, drip_s=0.05),
        Reply(b"x" * 1000, drip_s=0.05, endless_header=True),
        Reply(stall_s=30.0),
    ],
    ids=["body", "header", "stall"],
)
def test_a_server_that_drips_or_stalls_is_given_up_in_time(index: Server, slow: Reply) -> None:
    index[PAGE] = slow
    with Watch() as watch:
        fails(UnreachableError, "no whole answer in time", timeout_s=1.5)
    assert watch.seconds < 20


def test_pip_s_own_time_limit_counts_for_each_step(index: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_DEFAULT_TIMEOUT", "0.3")
    index[PAGE] = Reply(stall_s=30.0)
    fails(UnreachableError, "no answer: ReadTimeout")


def test_redirects_are_followed_five_times(index: Server) -> None:
    index[PAGE] = Reply(status=301, headers={"Location": "/1"})
    for number in range(1, 5):
        index[f"/{number}"] = Reply(status=302, headers={"Location": f"/{number + 1}"})
    index["/5"] = page(file("1.0", A))
    assert len(listed().releases) == 1
    index["/5"] = Reply(status=307, headers={"Location": "/6"})
    fails(EngcmpError, "more than 5 redirects")
    index["/1"] = Reply(status=302, headers={"Location": "file:///etc/passwd"})
    fails(EngcmpError, "not an address of the web")


def test_a_redirect_from_https_to_http_is_refused_and_pip_s_certificate_counts(
    secure_server: Server, certificate: Path, bare_settings: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", f"{secure_server.address}/simple")
    secure_server[PAGE] = page(file("1.0", A))
    fails(UnreachableError, "(?i)certificate")
    monkeypatch.setenv("PIP_CERT", str(certificate))
    assert len(listed().releases) == 1
    secure_server[PAGE] = Reply(status=302, headers={"Location": "http://127.0.0.1:9/"})
    fails(EngcmpError, "redirects from https to http://127.0.0.1:9/")
    monkeypatch.setenv("PIP_CERT", "/nowhere.pem")
    fails(EngcmpError, "the certificates cannot be read: No such file")


def test_a_trusted_host_needs_no_known_certificate(
    secure_server: Server, bare_settings: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", f"{secure_server.address}/simple")
    monkeypatch.setenv("PIP_TRUSTED_HOST", f"else.invalid {secure_server.host}")
    secure_server[PAGE] = page(file("1.0", A))
    assert len(listed().releases) == 1


def test_plain_http_is_refused_but_for_this_machine(bare_settings: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://index.invalid/simple")
    fails(EngcmpError, "on plain http and not trusted")
    monkeypatch.setenv("PIP_TRUSTED_HOST", "index.invalid")
    fails(UnreachableError, "no answer")


def test_a_login_goes_to_its_index_only_and_is_never_shown(
    index: Server, other_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", index.address.replace("//", "//user:s%40cret@") + "/simple")
    index[PAGE] = Reply(status=302, headers={"Location": f"{other_server.address}/x"})
    other_server["/x"] = page(file("1.0", A))
    listing = listed()
    login = base64.b64encode(b"user:s@cret").decode()
    assert index.asked[0][2]["authorization"] == f"Basic {login}"
    assert "authorization" not in other_server.asked[0][2]
    texts = [repr(listing)]
    for reply in (
        Reply(status=401),
        Reply(status=429),
        Reply(status=500),
        Reply(status=404),
        Reply(b"x", headers=JSON),
    ):
        index[PAGE] = reply
        with pytest.raises(EngcmpError) as failed:
            listed()
        texts += [str(failed.value), repr(failed.value.__cause__)]
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:s%40cret@127.0.0.1:9/simple")
    texts.append(str(fails(UnreachableError, "no answer")))
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:s/cret@127.0.0.1:9/simple")
    texts.append(str(fails(EngcmpError, "not an address of the web")))
    monkeypatch.setenv("PIP_INDEX_URL", f"{index.address}/simple")
    monkeypatch.setenv("PIP_PROXY", "http://user:s%40cret@:x:")
    texts.append(str(fails(EngcmpError, "the proxy's address cannot be used")))
    assert len(texts) == 14
    assert not [text for text in texts if "cret" in text or login in text]


def test_the_login_of_a_netrc_file_is_used(index: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login user password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    index[PAGE] = page(file("1.0", A))
    listed()
    assert index.asked[0][2]["authorization"] == f"Basic {base64.b64encode(b'user:secret').decode()}"


def test_a_proxy_of_pip_s_settings_is_asked(
    index: Server, other_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://index.invalid/simple")
    monkeypatch.setenv("PIP_TRUSTED_HOST", "index.invalid")
    monkeypatch.setenv("PIP_PROXY", other_server.host)
    other_server["http://index.invalid/simple/demo-wheel/"] = page(file("1.0", A))
    assert len(listed().releases) == 1


def test_a_python_without_pip(bare_settings: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "bin" / "python"))
    fails(EngcmpError, "this Python has no pip")


def sources() -> dict[str, dict[str, object]]:
    text = (CHECKOUT / "protocol" / "smollm2-cpu" / "protocol.toml").read_text(encoding="utf-8")
    return {
        str(entry["version"]): entry
        for entry in tomllib.loads(text)["sources"].values()
        if entry["package"] == "xllamacpp"
    }


@OFFLINE
def test_the_real_index_lists_the_pinned_releases_with_the_pinned_hashes() -> None:
    listing = listed("xllamacpp")
    releases = {release.tag: release for release in listing.releases}
    assert {"2026.4.8672", "2026.9.10809", "2026.10.11549"} <= set(sources())
    for version, source in sources().items():
        stated = {found.name: found.sha256 for found in releases[version].files}
        for key, wheel in source["wheels"].items():
            assert stated[wheel["file"]] == wheel["sha256"]
            assert platform_of(wheel["file"]) == key
        assert str(releases[version].digest).startswith("files:")


@OFFLINE
@pytest.mark.parametrize(("platform", "megabytes"), [("linux-aarch64", 33), ("macos-arm64", 12)])
def test_a_wheel_of_another_platform_is_fetched_from_the_real_index(
    tmp_path: Path, platform: str, megabytes: int
) -> None:
    source = sources()["2026.10.11549"]
    wheels = {key: wheel for key, wheel in source["wheels"].items() if key != platform_key()}
    if platform not in wheels:
        pytest.skip(f"{platform} is this machine")
    pin = WheelPin(
        "xllamacpp", "2026.10.11549", {key: (wheel["file"], wheel["sha256"]) for key, wheel in wheels.items()}
    )
    path = fetch_wheel(pin, to=tmp_path, progress=lambda _: None, platform=platform)
    assert abs(path.stat().st_size / 1e6 - megabytes) < 1
    assert member_sha256(path, wheels[platform]["member"]) == wheels[platform]["member_sha256"]
