"""Files hashed by another process: what it says is what is there, and of what it cannot say nothing is said."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from engcmp_resources import hashing_ahead as module
from engcmp_resources.disk import file_status
from engcmp_resources.hashing_ahead import hashing_ahead


def _files(folder: Path) -> dict[str, str]:
    """Paths, among them odd names and an empty file, and the hash of each."""
    contents = {"one": b"1", "empty": b"", "with space": b"2" * 5000, "größe": b"3", "large": bytes(1 << 20)}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return {str(folder / name): hashlib.sha256(content).hexdigest() for name, content in contents.items()}


def test_files_that_have_their_hash_are_told_with_their_status(tmp_path: Path) -> None:
    wanted, sound = _files(tmp_path), dict[str, list[int]]()
    with hashing_ahead(sound) as ask:
        for path, sha256 in wanted.items():
            ask(path, sha256, Path(path).stat().st_size)
            ask(path, sha256, Path(path).stat().st_size)
    assert sound == {path: file_status(path) for path in wanted}


def test_of_others_nothing_is_said(tmp_path: Path) -> None:
    wanted, sound = _files(tmp_path), dict[str, list[int]]()
    first, second = list(wanted)[:2]
    (tmp_path / "link").symlink_to(first)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "beyond").write_bytes(bytes((1 << 20) + 1))
    with hashing_ahead(sound) as ask:
        ask(first, wanted[second], 1)
        ask(str(tmp_path / "gone"), wanted[first], 1)
        ask(str(tmp_path / "link"), wanted[first], 1)
        ask(str(tmp_path / "pipe"), wanted[first], 1)
        ask(str(tmp_path), wanted[first], 1)
        ask(str(tmp_path / "beyond"), hashlib.sha256(bytes((1 << 20) + 1)).hexdigest(), 1)
        ask(second, wanted[second], 0)
    assert list(sound) == [second]


def test_an_error_within_ends_the_process_and_says_nothing(tmp_path: Path) -> None:
    wanted, sound = _files(tmp_path), dict[str, list[int]]()
    with pytest.raises(RuntimeError, match="within"), hashing_ahead(sound) as ask:
        for path, sha256 in wanted.items():
            ask(path, sha256, 1)
        raise RuntimeError("within")
    assert sound == {}


def test_where_no_process_can_be_started_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError("an audit does not use subprocess.Popen")

    monkeypatch.setattr(module.subprocess, "Popen", refused)
    sound = dict[str, list[int]]()
    with hashing_ahead(sound) as ask:
        ask(*next(iter(_files(tmp_path).items())), 1)
    assert sound == {}
