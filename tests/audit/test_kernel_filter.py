"""The kernel itself keeps a confined process from sockets and programs: C code reaches neither a port nor a socket file."""

from __future__ import annotations

import platform
import socket
import subprocess
import sys
from pathlib import Path

import pytest

LINUX = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")
ASK = """
import ctypes, os, struct, sys, threading
from engcmp_assets.audit.inside import give_up
from engcmp_resources.kernel_filter import refuse_sockets_and_programs
from pathlib import Path
libc, path = ctypes.CDLL(None, use_errno=True), sys.argv[1].encode()
before = libc.socket(1, 1, 0)
begin, asked = threading.Event(), []
def connect():
    begin.wait()
    address = struct.pack("H", 1) + path + bytes(108 - len(path))
    asked.append((libc.socket(1, 1, 0), libc.connect(before, address, 110)))
thread = threading.Thread(target=connect)
thread.start()  # a thread that was there before is kept from it too
give_up(Path(sys.argv[2]))
held = refuse_sockets_and_programs()
begin.set(); thread.join()
arguments = (ctypes.c_char_p * 2)(b"/bin/true", None)
print(held, before >= 0, *asked[0], libc.execv(b"/bin/true", arguments))
for ask in (lambda: os.open("x", os.O_WRONLY | os.O_CREAT, dir_fd=os.open(sys.argv[2], os.O_RDONLY)),
            lambda: __import__("sqlite3").connect(sys.argv[2] + "/x.db")):
    try:
        ask(); print("made")
    except PermissionError:
        print("refused")
"""


@pytest.mark.skipif(not LINUX, reason="the filter is of Linux on x86_64 and aarch64")
def test_c_code_reaches_no_socket_file_and_starts_no_program(tmp_path: Path) -> None:
    file, home = tmp_path / "engine.sock", tmp_path / "home"
    home.mkdir()
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(str(file))
        engine.listen()
        done = subprocess.run(
            [sys.executable, "-c", ASK, str(file), str(home)], check=False, capture_output=True, text=True, timeout=60
        )
    assert done.stdout.split("\n")[:3] == ["True True -1 -1 -1", "refused", "refused"], done.stderr
    assert list(home.iterdir()) == []
