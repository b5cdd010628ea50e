"""The kernel keeps a process's hands off files outside its folder: whatever C code asks, and in threads that it starts later."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ASK = """
import ctypes, os, sys, threading
from pathlib import Path
from engcmp_resources.write_filter import refuse_writes_outside
kept, scratch = Path(sys.argv[1]), Path(sys.argv[2])
if not refuse_writes_outside(scratch):
    print("this kernel cannot"); sys.exit()
libc = ctypes.CDLL(None)
file, other = bytes(kept / "file"), bytes(kept / "other")
answers = []
def ask():
    answers.extend([
        libc.open(file, os.O_WRONLY), libc.open(other, os.O_WRONLY | os.O_CREAT, 0o600), libc.truncate(file, ctypes.c_long(0)),
        libc.unlink(file), libc.rename(file, other), libc.link(file, other), libc.symlink(file, other), libc.mkdir(other, 0o700),
        libc.rename(file, bytes(scratch / "mine")), libc.mkfifo(other, 0o600), libc.rmdir(bytes(kept / "empty")),
    ])
thread = threading.Thread(target=ask); thread.start(); thread.join()
print(set(answers) == {-1}, len(answers))
(scratch / "new").write_text("x"); (scratch / "new").rename(scratch / "moved"); (scratch / "moved").unlink()
Path(os.devnull).write_text("x")
print((kept / "file").read_text())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Landlock is of Linux")
def test_c_code_changes_no_file_outside_the_folder_and_reads_all(tmp_path: Path) -> None:
    kept, scratch = tmp_path / "kept", tmp_path / "scratch"
    (kept / "empty").mkdir(parents=True)
    scratch.mkdir()
    (kept / "file").write_text("as it was")
    done = subprocess.run(
        [sys.executable, "-c", ASK, str(kept), str(scratch)], check=False, capture_output=True, text=True, timeout=60
    )
    if done.stdout == "this kernel cannot\n":
        pytest.skip("this kernel has no Landlock of version 3 (Linux 6.2)")
    assert done.stdout.splitlines() == ["True 11", "as it was"], done.stderr
    assert sorted(path.name for path in kept.iterdir()) == ["empty", "file"]
