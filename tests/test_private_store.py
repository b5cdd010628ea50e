"""Private texts: what is written comes back, a changed byte is found, and nobody else may read."""

from __future__ import annotations

import gzip
import stat
from pathlib import Path

import pytest

from engcmp_assets.kernel.reply_records import ReplyText
from engcmp_resources import private_store
from engcmp_resources.errors import EngcmpError

TEXT = ReplyText("r", "a thought\ud800", "an answer \N{THUMBS UP SIGN}", (1, 2, 70_000), "0" * 64)


def test_a_text_comes_back_whole_under_the_hash_of_its_bytes(tmp_path: Path) -> None:
    sha256 = private_store.write(tmp_path, TEXT.as_json())
    assert sha256 == TEXT.private_sha256
    assert ReplyText.from_json(private_store.read(tmp_path, sha256)) == TEXT
    assert private_store.verify(tmp_path, sha256) == "sound"
    assert [name for name, _ in private_store.stored(tmp_path)] == [sha256]


def test_files_and_folders_are_the_owner_s_alone_and_the_same_text_is_written_once(tmp_path: Path) -> None:
    sha256 = private_store.write(tmp_path, TEXT.as_json())
    path = private_store.private_path(tmp_path, sha256)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in (path.parent, path.parent.parent)} == {0o700}
    before = path.stat()
    private_store.write(tmp_path, TEXT.as_json())
    assert path.stat().st_mtime_ns == before.st_mtime_ns and path.stat().st_ino == before.st_ino
    assert [one.name for one in path.parent.iterdir()] == [path.name], "no unfinished file is left"


@pytest.mark.parametrize("how", ["another text", "cut", "no gzip"])
def test_a_changed_text_is_found_and_written_anew(tmp_path: Path, how: str) -> None:
    sha256 = private_store.write(tmp_path, TEXT.as_json())
    path = private_store.private_path(tmp_path, sha256)
    changed = {"another text": gzip.compress(b"{}\n"), "cut": path.read_bytes()[:-9], "no gzip": b"no"}[how]
    path.write_bytes(changed)
    assert private_store.verify(tmp_path, sha256) == "changed"
    with pytest.raises(EngcmpError, match="private text"):
        private_store.read(tmp_path, sha256)
    private_store.write(tmp_path, TEXT.as_json())
    assert private_store.verify(tmp_path, sha256) == "sound"


def test_a_text_that_is_not_here_says_so(tmp_path: Path) -> None:
    assert private_store.verify(tmp_path, "a" * 64) == "absent"
    with pytest.raises(EngcmpError, match="private texts are not here"):
        private_store.read(tmp_path, "a" * 64)


def test_a_name_that_is_no_hash_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngcmpError, match="names no private text"):
        private_store.private_path(tmp_path, "../../etc/passwd")
