"""Dropping the pages of a file: the share that stayed is measured, so that a start is called cold only where it was."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import pytest

from engcmp_resources.start_caches import drop_page_cache

linux = pytest.mark.skipif(sys.platform != "linux", reason="the system's calls")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.write_bytes(b"x" * (1 << 20))
    return path


@linux
def test_the_pages_of_a_file_are_seen_to_go_and_its_bytes_stay(file: Path) -> None:
    (found,) = drop_page_cache({"the model file": file})
    assert found["cache"] == "page cache of the model file"
    assert found["resident_before"] == 1.0
    if not found["cleared"]:
        pytest.skip("a file system in memory keeps its pages")
    assert found["resident_after"] == 0.0
    assert file.read_bytes() == b"x" * (1 << 20)


@linux
def test_pages_that_another_holds_are_told_as_not_cleared(file: Path) -> None:
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as held:
        assert sum(held[page] for page in range(0, len(held), mmap.PAGESIZE)) > 0  # they are mapped now
        (found,) = drop_page_cache({"the model file": file})
    assert not found["cleared"] and found["resident_after"] == 1.0


@linux
def test_a_folder_is_all_its_files(file: Path) -> None:
    (file.parent / "below").mkdir()
    (file.parent / "below" / "empty").touch()
    (found,) = drop_page_cache({"the checkpoint's files": file.parent})
    assert found["resident_before"] == 1.0


def test_a_file_that_cannot_be_read_is_told_as_not_cleared(tmp_path: Path) -> None:
    (found,) = drop_page_cache({"the model file": tmp_path / "none"})
    assert not found["cleared"] and "does not let it be cleared" in found["resident_after"]["missing"]
