"""The kernel refuses sockets and programs to this process, whatever code asks for them: a seccomp filter, which cannot be taken back.

A network namespace does not keep a socket file away, such as that of a container engine, and Python's audit hooks do not see the C code of
packages. Linux on x86_64 and aarch64 only.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

# Linux's own numbers: the architecture as seccomp names it, the call `seccomp`, and the calls that are refused: socket, connect, bind,
# sendto, sendmsg, execve, execveat, io_uring_setup (which can make sockets too).
_CALLS = {
    "x86_64": (0xC000003E, 317, (41, 42, 49, 44, 46, 59, 322, 425)),
    "aarch64": (0xC00000B7, 277, (198, 203, 200, 206, 211, 221, 281, 425)),
}
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # instructions of classic BPF
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050001  # SECCOMP_RET_ALLOW, and SECCOMP_RET_ERRNO with EPERM
_NUMBER, _ARCHITECTURE = 0, 4  # where seccomp_data has them
_X32 = 0x40000000  # x86_64 has each call a second time from here on
_NO_NEW_PRIVILEGES, _SET_FILTER, _ALL_THREADS = 38, 1, 1


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def refuse_sockets_and_programs() -> bool:
    """From now on no thread of this process opens or connects a socket or starts a program; False where the kernel has no such filter."""
    known = _CALLS.get(platform.machine()) if sys.platform == "linux" else None
    if known is None:
        return False
    architecture, seccomp, refused = known
    code = _filter(architecture, refused)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
        return False
    taken: int = libc.syscall(seccomp, _SET_FILTER, _ALL_THREADS, ctypes.byref(program))
    return taken == 0 and not _opens(libc)


def _filter(architecture: int, refused: tuple[int, ...]) -> bytes:
    """The filter's instructions; the last one refuses, the one before allows."""
    checks = [(_EQUAL, number) for number in refused]
    lines = [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 0, len(checks) + 3, architecture), (_LOAD, 0, 0, _NUMBER)]
    lines.append((_AT_LEAST, len(checks) + 1, 0, _X32))
    lines += [(code, len(checks) - place, 0, number) for place, (code, number) in enumerate(checks)]
    lines += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE)]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def _opens(libc: ctypes.CDLL) -> bool:
    """Whether C code still gets a socket."""
    one: int = libc.socket(1, 1, 0)
    if one < 0:
        return False
    os.close(one)
    return True
