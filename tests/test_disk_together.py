"""Files of a folder at once: written so that each is whole or not at all, all on disk before the first has its name; and looked for."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import threading
from pathlib import Path

import pytest

from engcmp_resources.disk import files_below, replace_all_visible, write_synced
from engcmp_resources.errors import EngcmpError

NAMES = ("events", "requests", "cells")


def contents(folder: Path, text: str) -> dict[Path, bytes]:
    return {folder / name: f"{text} {name}".encode() for name in NAMES}


def test_all_are_on_disk_before_the_first_appears_and_the_last_appears_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    sync, rename = os.fsync, Path.replace

    def noted(descriptor: int) -> None:
        sync(descriptor)
        told.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")

    def named(self: Path, target: Path) -> Path:
        told.append(target.name)
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(Path, "replace", named)
    replace_all_visible(contents(tmp_path, "new"))
    assert told == ["file"] * 3 + [*NAMES, "folder"]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        name: f"new {name}".encode() for name in NAMES
    }
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in tmp_path.iterdir())


def test_one_that_the_disk_refuses_leaves_all_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_all_visible(contents(tmp_path, "old"))
    sync, count = os.fsync, iter(range(100))

    def full(descriptor: int) -> None:
        if next(count) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EngcmpError, match="the disk is full"):
        replace_all_visible(contents(tmp_path, "new"))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        name: f"old {name}".encode() for name in NAMES
    }


def test_the_waits_for_the_disk_are_one_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(len(NAMES))
    monkeypatch.setattr(os, "fsync", lambda _: together.wait(10))  # each comes back only when all wait
    write_synced(contents(tmp_path, "new"))
    assert not together.broken


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="only Linux names the file of a descriptor")
def test_a_file_that_is_there_gets_a_second_name_after_the_folders_are_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    sync, rename = os.fsync, Path.replace

    def noted(descriptor: int) -> None:
        sync(descriptor)
        told.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)

    def named(self: Path, target: Path) -> Path:
        told.append(f"named {target.name}")
        return rename(self, target)

    part = tmp_path / "parts" / "table"
    part.parent.mkdir()
    part.write_bytes(b"kept")
    monkeypatch.setattr(Path, "replace", named)
    monkeypatch.setattr(os, "fsync", noted)
    for _ in range(2):  # the second time the name is there already, of the same file
        told.clear()
        replace_all_visible({tmp_path / "table": part, tmp_path / "cells": b"all"}, [part.parent])
        assert set(told[:2]) == {".cells.partial", "parts"}
        assert told[2:] == ["named table", "named cells", tmp_path.name]
        assert (tmp_path / "table").samefile(part)
        assert {path.name for path in tmp_path.iterdir()} == {"table", "cells", "parts"}


def test_where_a_file_has_one_name_only_it_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = tmp_path / "part"
    part.write_bytes(b"kept")

    def refused(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    replace_all_visible({tmp_path / "table": part})
    assert (tmp_path / "table").read_bytes() == b"kept"
    assert not (tmp_path / "table").samefile(part)
    with pytest.raises(EngcmpError, match="cannot write there"):
        replace_all_visible({tmp_path / "table": tmp_path / "gone"})
    assert (tmp_path / "table").read_bytes() == b"kept"


def test_a_folder_that_another_removes_while_files_are_looked_for_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a/stays.json", "b/goes/lease.json", "c/stays.json"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    listed = os.scandir

    def removed_just_before(path: str | int) -> object:
        if path == str(tmp_path / "b/goes"):
            shutil.rmtree(path)
        return listed(path)

    monkeypatch.setattr(os, "scandir", removed_just_before)
    assert files_below(tmp_path) == [tmp_path / "a/stays.json", tmp_path / "c/stays.json"]
    assert files_below(tmp_path / "none") == []
