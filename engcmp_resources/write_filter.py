"""The kernel keeps all files but those of given folders as they are, whatever code of this process asks: Landlock, not to be taken back.

Python's audit hooks do not see the C code of packages, and a view of files that cannot be written to needs a namespace, which not every
system gives. Linux 6.2 and later.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from pathlib import Path

# Linux's own numbers, the same on every architecture.
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_ASK_VERSION, _BENEATH, _NO_NEW_PRIVILEGES = 1, 1, 38
_LEAST_VERSION = 3  # the first that keeps a file from being cut short
_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
_CHANGES = _WRITE_FILE | sum(1 << bit for bit in range(4, 14)) | _TRUNCATE  # and to remove, make, link and move


def refuse_writes_outside(*folders: Path) -> bool:
    """From now on this thread, and those that it starts, change no file outside `folders`; False where the kernel cannot do that.

    To be called before anything starts a thread. The modes, owners and times of files can still be changed, bytes and names cannot.
    Raises OSError for a folder that is not there.
    """
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(_CREATE, None, ctypes.c_size_t(0), _ASK_VERSION) < _LEAST_VERSION:
        return False
    handled = struct.pack("=Q", _CHANGES)
    rules: int = libc.syscall(_CREATE, handled, ctypes.c_size_t(len(handled)), 0)
    if rules < 0:
        return False
    try:
        allowed = [*((folder, _CHANGES) for folder in folders), (Path(os.devnull), _WRITE_FILE | _TRUNCATE)]
        if not all(_allow(libc, rules, path, rights) for path, rights in allowed):
            return False
        failed: int = libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) or libc.syscall(_RESTRICT, rules, 0)
        return failed == 0
    finally:
        os.close(rules)


def _allow(libc: ctypes.CDLL, rules: int, path: Path, rights: int) -> bool:
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        added: int = libc.syscall(_ADD, rules, _BENEATH, struct.pack("=Qi", rights, place), 0)
        return added == 0
    finally:
        os.close(place)
