"""The journal of unfinished work: what was written before a kill is found again, and nothing else is."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from homes import CHECKOUT, flipped

from engcmp_resources.errors import EngcmpError
from engcmp_resources.journal import Journal

ENTRIES = [
    {"kind": "start", "start": 1},
    {"kind": "window", "window": "code-1", "é": [1.5, None]},
    {"kind": "window", "window": "b"},
]

APPEND = """
import sys
from pathlib import Path
from engcmp_resources.journal import Journal
journal = Journal(Path(sys.argv[1]))
print(len(journal.entries), flush=True)
while True:
    journal.append({"number": len(journal.entries), "text": "x" * 3000})
    print(len(journal.entries), flush=True)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    for entry in ENTRIES:
        journal.append(entry)
    return path


def test_entries_are_found_again_in_order(path: Path) -> None:
    assert Journal(path).entries == ENTRIES


def test_a_journal_that_does_not_exist_is_empty_and_makes_no_file(tmp_path: Path) -> None:
    assert Journal(tmp_path / "none.jsonl").entries == []
    assert not (tmp_path / "none.jsonl").exists()


def test_a_line_cut_short_is_dropped_and_the_next_is_whole(path: Path) -> None:
    data = path.read_bytes()
    last = len(data.splitlines(keepends=True)[-1])
    for cut in range(1, last + 1):
        path.write_bytes(data[: len(data) - cut])
        journal = Journal(path)
        assert journal.entries == ENTRIES[:2]
        journal.append({"kind": "again"})
        assert Journal(path).entries == [*ENTRIES[:2], {"kind": "again"}]


def test_any_flipped_byte_drops_its_line_and_what_follows_and_never_gives_another_entry(path: Path) -> None:
    data = path.read_bytes()
    for position in range(0, len(data), 3):
        path.write_bytes(flipped(position)(data))
        entries = Journal(path).entries
        assert entries == ENTRIES[: len(entries)]
        assert len(entries) < len(ENTRIES)


@pytest.mark.parametrize(
    "data", [b"\n\n", b"[]\n", b"{}\n", b'{"entry":1,"sha256":"x"}\n', b"[" * 100_000, b"\xff\n", b"null\n"]
)
def test_other_bytes_are_an_empty_journal(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    assert Journal(path).entries == []
    assert path.read_bytes() == b""


def test_a_full_disk_leaves_no_half_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = path.read_bytes()
    journal = Journal(path)

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(EngcmpError, match=rf"the disk is full \({path}\)"):
        patch.setattr("engcmp_resources.journal.os.fsync", full)
        journal.append({"kind": "lost"})
    assert journal.entries == ENTRIES
    assert path.read_bytes() == data


def test_what_was_told_before_a_kill_is_there_after_it(tmp_path: Path) -> None:
    path, draw = tmp_path / "journal.jsonl", random.Random(7)
    for _ in range(8):
        writer = subprocess.Popen(
            [sys.executable, "-c", APPEND, str(path)], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        told = [int(writer.stdout.readline())]
        time.sleep(draw.uniform(0, 0.04))
        writer.send_signal(signal.SIGKILL)
        told += [int(line) for line in writer.communicate()[0].split()]
        entries = Journal(path).entries
        assert len(entries) >= told[-1]
        assert [entry["number"] for entry in entries] == list(range(len(entries)))
        assert all(json.loads(line) for line in path.read_bytes().splitlines())
