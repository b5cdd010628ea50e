"""Compiled code that is kept: what was stored comes back, and nothing else does, from no place that another user could write to."""

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from engcmp_resources.object_cache import ObjectCache, cache_folder

CHECKOUT = Path(__file__).resolve().parents[1]
KEY, OTHER = "a" * 64, "b" * 64
CODE = bytes(range(256)) * 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "compiled"


def kept(folder: Path) -> Path:
    """A folder that holds CODE under KEY; the file."""
    ObjectCache(folder).store(KEY, CODE)
    (file,) = folder.iterdir()
    return file


def test_what_was_stored_is_what_another_process_loads(folder: Path) -> None:
    assert ObjectCache(folder).load(KEY) is None
    file = kept(folder)
    assert ObjectCache(folder).load(KEY) == CODE
    assert ObjectCache(folder).load(OTHER) is None
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700 and stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_last_that_was_stored_counts_and_no_part_of_a_file_is_left(folder: Path) -> None:
    kept(folder)
    (folder / f".{KEY}.{os.getpid()}.partial").write_bytes(b"of a killed process")
    ObjectCache(folder).store(KEY, CODE[1:])
    assert ObjectCache(folder).load(KEY) == CODE[1:]
    assert [path.name for path in folder.iterdir()] == [f"{KEY}.o"]


@pytest.mark.parametrize(
    "change", ["cut", "longer", "a bit", "of another key", "empty", "heading alone", "folder", "fifo"]
)
def test_a_damaged_or_foreign_file_counts_as_absent_and_is_written_again(folder: Path, change: str) -> None:
    file = kept(folder)
    content = file.read_bytes()
    if change in ("folder", "fifo"):
        file.unlink()
        file.mkdir() if change == "folder" else os.mkfifo(file)
    elif change == "of another key":
        ObjectCache(folder).store(OTHER, CODE)
        (folder / f"{OTHER}.o").replace(file)
    else:
        changed = {
            "cut": content[:-1], "longer": content + b"\0", "empty": b"", "heading alone": content[: -len(CODE)],
            "a bit": content[:-9] + bytes([content[-9] ^ 1]) + content[-8:],
        }  # fmt: skip
        file.write_bytes(changed[change])
    assert ObjectCache(folder).load(KEY) is None
    ObjectCache(folder).store(KEY, CODE)
    assert ObjectCache(folder).load(KEY) == (None if change == "folder" else CODE)


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_that_others_can_write_to_is_not_used(folder: Path, mode: int) -> None:
    file = kept(folder)
    folder.chmod(mode)
    ObjectCache(folder).store(OTHER, CODE)
    assert ObjectCache(folder).load(KEY) is None
    assert list(folder.iterdir()) == [file]
    folder.chmod(0o700)
    assert ObjectCache(folder).load(KEY) == CODE


def test_a_file_that_others_can_write_to_is_not_read(folder: Path) -> None:
    kept(folder).chmod(0o622)
    assert ObjectCache(folder).load(KEY) is None


@pytest.mark.parametrize("whose", ["folder", "file"])
def test_what_belongs_to_another_user_is_not_used(folder: Path, whose: str) -> None:
    file = kept(folder)
    try:
        os.chown(folder if whose == "folder" else file, 12345, -1)
    except PermissionError:
        pytest.skip("only root can give a file away")
    assert ObjectCache(folder).load(KEY) is None
    if whose == "folder":
        ObjectCache(folder).store(OTHER, CODE)
        assert list(folder.iterdir()) == [file]


def test_links_are_not_followed(folder: Path, tmp_path: Path) -> None:
    file = kept(folder)
    link = tmp_path / "link"
    link.symlink_to(folder)
    ObjectCache(link).store(OTHER, CODE)
    assert ObjectCache(link).load(KEY) is None and list(folder.iterdir()) == [file]
    file.rename(tmp_path / "elsewhere.o")
    file.symlink_to(tmp_path / "elsewhere.o")
    assert ObjectCache(folder).load(KEY) is None


def test_where_nothing_can_be_written_nothing_is_kept_and_nothing_raised(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    cache = ObjectCache(tmp_path / "file" / "compiled")
    cache.store(KEY, CODE)
    assert cache.load(KEY) is None


def test_a_write_that_fails_leaves_no_part_of_a_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = kept(folder)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    ObjectCache(folder).store(OTHER, CODE)
    assert list(folder.iterdir()) == [file]


def test_the_folder_is_the_user_s_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "engcmp" / "compiled"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for none in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", none)
        assert cache_folder() == tmp_path / "home" / ".cache" / "engcmp" / "compiled"


def test_the_command_and_the_code_location_keep_what_they_compile_there() -> None:
    for code in (
        "from engcmp_assets.commands.main import main; main(['--help'])",
        "from engcmp_assets.graph import definitions; definitions()",
    ):
        start = "import contextlib, io\nwith contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n    "
        end = "\nfrom engcmp_assets.kernel import row_loop; print(*map(type, row_loop._kept_in))"
        done = subprocess.run(
            [sys.executable, "-c", start + code + end], capture_output=True, text=True, cwd=CHECKOUT, check=False
        )
        assert done.stdout == "<class 'engcmp_resources.object_cache.ObjectCache'>\n", done.stderr
