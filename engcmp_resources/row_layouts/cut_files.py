"""A mapped file that is cut short while it is read: the pages that are gone read as zeros, where the process would else be ended.

To read a mapped page that its file no longer has raises SIGBUS. Copies would be safe, but cost as much as scoring itself. So a handler,
compiled in a moment, puts a page of zeros where the fault was, if it was in a map that was announced here; whoever reads a map looks at
the file's size again before it believes what it read (TensorMap.refuse_shorter). Any other SIGBUS goes to whoever handled it before.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import signal
import sys
import weakref
from typing import Any

import numpy as np

_MOST_MAPS = 1024  # at once; files beyond are read by copies
_MAP = (ctypes.c_int64 * 2) * _MOST_MAPS
_maps = _MAP()  # start and end of each announced map; 0 and 0 where there is none
_free = list(range(_MOST_MAPS))
_keep: list[Any] = []  # compiled code lives as long as its engine
# Linux: where the address lies in siginfo_t, and the numbers of mmap and sigaction.
_HANDLER = """
declare ptr @mmap(ptr, i64, i32, i32, i32, i64)
declare i32 @sigaction(i32, ptr, ptr)
define void @on_sigbus(i32 %signal, ptr %info, ptr %context) {{
entry:
  %place = getelementptr i8, ptr %info, i64 16
  %address = load i64, ptr %place
  br label %look
look:
  %index = phi i64 [0, %entry], [%next, %on]
  %first = getelementptr i64, ptr inttoptr (i64 {maps} to ptr), i64 %index
  %second = getelementptr i64, ptr %first, i64 1
  %start = load volatile i64, ptr %first
  %end = load volatile i64, ptr %second
  %from = icmp uge i64 %address, %start
  %before = icmp ult i64 %address, %end
  %inside = and i1 %from, %before
  br i1 %inside, label %ours, label %on
on:
  %next = add i64 %index, 2
  %more = icmp ult i64 %next, {words}
  br i1 %more, label %look, label %foreign
ours:
  %page = and i64 %address, -{page}
  %target = inttoptr i64 %page to ptr
  %made = call ptr @mmap(ptr %target, i64 {page}, i32 1, i32 50, i32 -1, i64 0)
  %failed = icmp eq ptr %made, inttoptr (i64 -1 to ptr)
  br i1 %failed, label %foreign, label %done
foreign:
  %restored = call i32 @sigaction(i32 {signal}, ptr inttoptr (i64 {before} to ptr), ptr null)
  br label %done
done:
  ret void
}}
"""
_SA_SIGINFO = 4


class _Action(ctypes.Structure):
    """Linux's `struct sigaction`, as its C libraries have it."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_uint64 * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


_before = _Action()


def announce(data: mmap.mmap) -> bool:
    """Whether pages of this map that its file loses will read as zeros, as long as the map is there; else it must not be read in place."""
    if not (_installed() and _free):
        return False
    place = _free.pop()
    start = np.frombuffer(data, dtype=np.uint8).ctypes.data
    _maps[place][0], _maps[place][1] = start, start + -(-len(data) // mmap.PAGESIZE) * mmap.PAGESIZE
    weakref.finalize(data, _forget, place).atexit = False
    return True


def _forget(place: int) -> None:
    _maps[place][0] = _maps[place][1] = 0
    _free.append(place)


@functools.cache
def _installed() -> bool:
    """Whether the handler is in place: 64-bit Linux, and llvmlite works."""
    if sys.platform != "linux" or ctypes.sizeof(ctypes.c_void_p) != 8:  # noqa: PLR2004 - bytes
        return False
    try:
        action = _Action(_compiled(), flags=_SA_SIGINFO)
    except (ImportError, OSError, RuntimeError, AttributeError):
        return False
    return bool(ctypes.CDLL(None).sigaction(signal.SIGBUS, ctypes.byref(action), ctypes.byref(_before)) == 0)


def _compiled() -> int:
    """The address of the handler. Raises what llvmlite raises where it cannot work."""
    from llvmlite import binding  # noqa: PLC0415 - only row files need it

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    text = _HANDLER.format(
        maps=ctypes.addressof(_maps), words=2 * _MOST_MAPS, page=mmap.PAGESIZE, signal=int(signal.SIGBUS),
        before=ctypes.addressof(_before),
    )  # fmt: skip
    machine = binding.Target.from_default_triple().create_target_machine(jit=True)
    engine = binding.create_mcjit_compiler(binding.parse_assembly(text), machine)
    engine.finalize_object()
    _keep.append(engine)
    return int(engine.get_function_address("on_sigbus"))
