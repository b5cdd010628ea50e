"""The inner loop over a pair of rows, written in LLVM's language and compiled for the processor at hand in a fifth of a second.

numpy passes over a row once for each operation; here all is done while a value is in a register. Every operation, its order and the number
of running sums are written out, multiply-adds included, so that the sums are the same bits on every processor: only how a value is looked
up in a table of eight differs. Rows are never copied: those of 16 bits become float32 in the register.

What is compiled can be kept from one process to the next (keep_objects). This module imports nothing of ours: its own text, the versions of
LLVM and the processor say all that the compiled code depends on.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import math
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # a command that scores nothing does not wait for numpy
    import numpy.typing as npt

_LANES = 8  # values side by side: one AVX-512 register, two AVX2 registers
GRAIN = 32  # a loop takes a multiple of these
RUN = 1024  # values between two looks at the maximum; rounding grows with V / 1,024 + 128, not with V / 8
_LOWEST = -700.0  # exp of this is 1e-304: no sum that holds exp(0) = 1 changes; and -inf needs no case of its own
_ROUNDER = 1.5 * 2.0**52  # added to a number below 2^51 it leaves the nearest integer in the low bits
# 2^(j / 8): exp(x) = 2^(k / 8) exp(r), and a k of a few bits leaves |r| <= ln(2) / 16 to a short polynomial.
_ROOTS = (
    1.0, 1.0905077326652577, 1.189207115002721, 1.2968395546510096,
    1.4142135623730951, 1.5422108254079407, 1.681792830507429, 1.8340080864093424,
)  # fmt: skip
_ROOT_BITS = len(_ROOTS).bit_length() - 1
# The polynomial, lowest power first: relative error at most 9.3e-16 (Remez, degree 6). All are SCALE times too large, and so are all sums:
# then the highest coefficient is 1, a multiplication less. SCALE has 20 bits: so many equal values add exactly.
_EXP = (
    720.0419921875,
    720.0419921876032,
    360.02099609353104,
    120.00699825770637,
    30.001749948844804,
    6.000819121716427,
    1.0,
)
SCALE = _EXP[0]
FAR = "far "  # before the dtype, in the name of a loop
OUTPUTS = ("p_sum", "p_moment", "q_sum", "q_moment", "cross", "p_highest", "q_highest", "p_lowest", "q_lowest")


Loop = Callable[..., None]


class Objects(Protocol):
    """Where compiled code is kept between processes, under keys of 64 hexadecimal digits. Neither call raises anything."""

    def load(self, key: str) -> bytes | None:
        """What was stored under `key`, whole and unchanged; None where it is not there or not trusted."""

    def store(self, key: str, data: bytes) -> None:
        """Keep `data` under `key`, if that is possible."""


_kept_in: list[Objects] = []


def keep_objects(objects: Objects) -> None:
    """Let `compiled` take its code from `objects`, and put it there: to be called before anything is scored."""
    _kept_in[:] = [objects]


@functools.cache
def compiled() -> dict[str, Loop]:
    """The loops for this processor (loops_for). Raises what llvmlite raises where it cannot work."""
    from llvmlite import binding  # noqa: PLC0415 - only scoring needs it

    return loops_for(binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten(), *_kept_in)


def loops_for(processor: str, features: str, objects: Objects | None = None) -> dict[str, Loop]:
    """The loops by dtype name, compiled for a processor and its features as LLVM names them, or as `objects` kept them.

    Dtypes: float64, float32, uint16 as the bits of bfloat16, and float16 where the processor widens it by itself. Each loop is called with:
    address of p, of q; values in a row (a multiple of GRAIN), rows, stride of p and of q in values; and addresses of float64 [rows, 9],
    where OUTPUTS go and where p_highest and q_highest hold finite values to begin with, and of int64 [rows, 2], which hold -1 to begin with
    and then the first place of each side's highest value, if it is above the one to begin with. Sums are SCALE times too large.

    A loop named `far ` and a dtype takes values more than 700 below their row's highest for -700. The one without is 3 % faster, and its
    sums are right, and the same bits, only where there are none: its p_lowest and q_lowest tell.
    """
    from llvmlite import binding  # noqa: PLC0415 - only scoring needs it

    wanted = ["float32", "float64", "uint16"]
    if _widens_halves(binding.get_process_triple(), features):
        wanted.append("float16")
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    target = binding.Target.from_default_triple()

    def machine() -> Any:
        return target.create_target_machine(cpu=processor, features=features, opt=3, jit=True)

    key = "" if objects is None else object_key(processor, features)
    data = None if objects is None else objects.load(key)
    if data is None:
        parsed = binding.parse_assembly(_module(wanted, lookup_for(features)))
        parsed.verify()
        data = machine().emit_object(parsed)
        if objects is not None:
            objects.store(key, data)
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine())
    engine.add_object_file(binding.ObjectFileRef.from_data(data))
    engine.finalize_object()
    _keep.append(engine)
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    call = ctypes.CFUNCTYPE(None, pointer, pointer, number, number, number, number, pointer, pointer)
    return {one: call(engine.get_function_address(one)) for name in wanted for one in (name, FAR + name)}


def _widens_halves(triple: str, features: str) -> bool:
    """Whether one instruction makes float16 a float32: elsewhere LLVM calls a function that may not be there."""
    return triple.startswith(("aarch64", "arm64")) or "+f16c" in features.split(",")


_keep: list[Any] = []  # compiled code lives as long as its engine


def object_key(processor: str, features: str) -> str:
    """The SHA-256 of all that the loops' compiled code depends on: this text, the versions of LLVM, system, processor and features."""
    import llvmlite  # noqa: PLC0415 - only scoring needs it
    from llvmlite import binding  # noqa: PLC0415 - only scoring needs it

    text = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    versions = llvmlite.__version__, str(binding.llvm_version_info), binding.get_process_triple()
    return hashlib.sha256("\n".join([text, *versions, processor, features]).encode()).hexdigest()


def lookup_for(features: str) -> str:
    """How a processor finds eight values in a table at once: the name of LLVM's operation, or "load" for one after the other."""
    there = features.split(",")
    if "+avx512f" in there:
        return "llvm.x86.avx512.permvar.df.512"
    return "llvm.x86.avx2.permd" if "+avx2" in there else "load"


def _module(wanted: Sequence[str], lookup: str) -> str:
    from llvmlite import ir  # noqa: PLC0415 - only scoring needs it

    module = ir.Module("rows")
    for dtype in wanted:
        _Writer(ir, module, dtype, lookup, far=False).write()
        _Writer(ir, module, dtype, lookup, far=True).write()
    return str(module)


class _Writer:
    """Writes one function of the module: three loops, over rows, over runs of a row, and over the values of a run."""

    def __init__(self, ir: Any, module: Any, dtype: str, lookup: str, *, far: bool) -> None:
        self.ir, self.module, self.lookup, self.far = ir, module, lookup, far
        self.real, self.word = ir.DoubleType(), ir.IntType(64)
        stored = {"float32": ir.FloatType(), "float16": ir.HalfType(), "uint16": ir.IntType(16)}
        self.stored = stored.get(dtype, self.real)
        self.single = self.real if self.stored == self.real else ir.FloatType()  # what a value is once it is loaded
        self.reals, self.words = ir.VectorType(self.real, _LANES), ir.VectorType(self.word, _LANES)
        rows, numbers, places = (one.as_pointer() for one in (self.stored, self.real, self.word))
        arguments = [rows, rows, *[self.word] * 4, numbers, places]
        self.function = ir.Function(module, ir.FunctionType(ir.VoidType(), arguments), FAR * far + dtype)
        self.fused = self._declared(f"llvm.fma.v{_LANES}f64", self.reals, [self.reals] * 3)
        self.build = ir.IRBuilder(self.function.append_basic_block())

    def write(self) -> None:
        p, q, count, rows, p_stride, q_stride, out, places = self.function.args
        build = self.build

        def row(index: Any, _held: Sequence[Any]) -> Sequence[Any]:
            starts = [build.gep(p, [build.mul(index, p_stride)]), build.gep(q, [build.mul(index, q_stride)])]
            own = build.gep(out, [build.mul(index, self._word(len(OUTPUTS)))])
            numbers = [build.gep(own, [self._word(place)]) for place in range(len(OUTPUTS))]
            first = build.gep(places, [build.mul(index, self._word(2))])
            found_in = [build.gep(first, [self._word(side)]) for side in range(2)]
            found = self._row(
                starts, [build.load(one) for one in numbers[5:7]], [build.load(one) for one in found_in], count
            )
            for value, place in zip(found, [*numbers, *found_in], strict=True):
                build.store(value, place)
            return ()

        self._loop(self._word(0), rows, 1, row, ())
        build.ret_void()

    def _row(self, starts: Sequence[Any], tops: Sequence[Any], places: Sequence[Any], count: Any) -> list[Any]:
        """The OUTPUTS of one row, and where its maxima were met."""
        build, nothing = self.build, [self._real(0.0)] * 5
        endless = [self.ir.Constant(self.single, math.inf)] * 2

        def run(start: Any, held: Sequence[Any]) -> Sequence[Any]:
            sums, tops, low, places = held[:5], held[5:7], held[7:9], held[9:]
            stop = build.add(start, self._word(RUN))
            stop = build.select(build.icmp_signed("<", stop, count), stop, count)
            *highs, low_p, low_q = self._extremes(starts, start, stop)
            above = [build.fcmp_ordered(">", high, top) for high, top in zip(highs, tops, strict=True)]
            new = [build.select(*one) for one in zip(above, highs, tops, strict=True)]
            places = [build.select(one, start, place) for one, place in zip(above, places, strict=True)]
            sums = self._moved(sums, [self._spread(build.fsub(*one)) for one in zip(tops, new, strict=True)])
            wide = [self._spread(top) for top in new]
            parts = self._loop(start, stop, _LANES, lambda at, inner: self._step(starts, wide, at, inner), nothing)
            sums = [build.fadd(total, part) for total, part in zip(sums, parts, strict=True)]
            return [*sums, *new, self._lower(low_p, low[0]), self._lower(low_q, low[1]), *places]

        found = self._loop(self._word(0), count, RUN, run, [*nothing, *tops, *endless, *places])
        sums = [self._folded(total, _LANES, build.fadd) for total in found[:5]]
        tops, lows = found[5:7], [self._wide(one, self.real) for one in found[7:9]]
        return [*sums, *tops, *lows, *(self._first(*one, count) for one in zip(starts, tops, found[9:], strict=True))]

    def _first(self, row: Any, top: Any, place: Any, count: Any) -> Any:
        """Where `top` is first found in the run that begins at `place`; -1 where that is -1."""
        build = self.build
        stop = build.add(place, self._word(RUN))
        stop = build.select(build.icmp_signed("<", stop, count), stop, count)
        stop = build.select(build.icmp_signed("<", place, self._word(0)), place, stop)

        def look(at: Any, held: Sequence[Any]) -> Sequence[Any]:
            same = build.fcmp_ordered("==", self._wide(self._load(row, at), self.real), top)
            first = build.and_(same, build.icmp_signed("<", held[0], self._word(0)))
            return [build.select(first, at, held[0])]

        return self._loop(place, stop, 1, look, [self._word(-1)])[0]

    def _extremes(self, starts: Sequence[Any], start: Any, stop: Any) -> list[Any]:
        """Highest values of p and q in a run, as float64, and the lowest as they are loaded. NaN is passed over."""
        kind = self.ir.VectorType(self.single, GRAIN)
        ends = [self.ir.Constant(kind, [self.ir.Constant(self.single, end)] * GRAIN) for end in (-math.inf, math.inf)]

        def look(at: Any, held: Sequence[Any]) -> Sequence[Any]:
            p, q = (self._load(one, at, GRAIN) for one in starts)
            return [
                self._higher(p, held[0]),
                self._higher(q, held[1]),
                self._lower(p, held[2]),
                self._lower(q, held[3]),
            ]

        found = self._loop(start, stop, GRAIN, look, [ends[0], ends[0], ends[1], ends[1]])
        highs = [self._wide(self._folded(one, GRAIN, self._higher), self.real) for one in found[:2]]
        return highs + [self._folded(one, GRAIN, self._lower) for one in found[2:]]

    def _moved(self, sums: Sequence[Any], steps: Sequence[Any]) -> list[Any]:
        """The sums with x taken from new maxima, which are `steps` (0 or less) away: unchanged, to the bit, where both are 0."""
        build, scale = self.build, self._real(SCALE)
        x, y = (self._clamp(step) for step in steps)
        p, q = (build.fdiv(one, scale) for one in self._exp(x, y))
        p_sum, p_moment, q_sum, q_moment, cross = sums
        return [
            build.fmul(p, p_sum), build.fmul(p, self._fma(x, p_sum, p_moment)),
            build.fmul(q, q_sum), build.fmul(q, self._fma(y, q_sum, q_moment)),
            build.fmul(p, self._fma(build.fsub(x, y), p_sum, cross)),
        ]  # fmt: skip

    def _step(self, starts: Sequence[Any], tops: Sequence[Any], at: Any, held: Sequence[Any]) -> Sequence[Any]:
        build = self.build
        for one in starts:  # the next run: its extremes are looked for all at once, faster than memory answers
            self._fetch(build.gep(one, [build.add(at, self._word(RUN))]))
        wide = [self._wide(self._load(one, at, _LANES), self.reals) for one in starts]
        x, y = (build.fsub(one, top) for one, top in zip(wide, tops, strict=True))
        x, y = (self._clamp(x), self._clamp(y)) if self.far else (x, y)
        p, q = self._exp(x, y)
        return [
            build.fadd(held[0], p), self._fma(p, x, held[1]), build.fadd(held[2], q), self._fma(q, y, held[3]),
            self._fma(p, build.fsub(x, y), held[4]),  # the difference first: it is exactly 0 where the rows are equal
        ]  # fmt: skip

    def _exp(self, *several: Any) -> list[Any]:
        """SCALE exp(x) for each x from -700 to 0: x = k ln(2) / 8 + r, a polynomial in r, and 2^(k / 8).

        Each operation is written for all of them before the next one: the processor starts one while it waits for the other.
        """
        build, rounder = self.build, self._real(_ROUNDER)
        shifted = [self._fma(x, self._real(len(_ROOTS) / math.log(2)), rounder) for x in several]
        # One multiply-add: it rounds once, and what ln 2 lacks as a float64, 2.3e-17, is below 2.4e-14 at x = -700, 1e-16 at -3.
        step = self._real(-math.log(2) / len(_ROOTS))
        rests = [self._fma(build.fsub(k, rounder), step, x) for k, x in zip(shifted, several, strict=True)]
        powers = [self._power(build.bitcast(k, self.words)) for k in shifted]
        sums = [build.fadd(r, self._real(_EXP[-2])) for r in rests]
        for coefficient in _EXP[-3::-1]:
            sums = [self._fma(y, r, self._real(coefficient)) for y, r in zip(sums, rests, strict=True)]
        return [build.fmul(power, y) for power, y in zip(powers, sums, strict=True)]

    def _power(self, k: Any) -> Any:
        """2^(k / 8) of an integer k in the low bits of each word: its lowest three from the table, the others to the exponent."""
        build, shift = self.build, 52 - _ROOT_BITS
        # k is added whole: what its lowest bits put below the exponent is taken from the table before.
        table = [struct.unpack("<q", struct.pack("<d", root))[0] - (j << shift) for j, root in enumerate(_ROOTS)]
        return build.bitcast(build.add(self._looked_up(table, k), build.shl(k, self._words(shift))), self.reals)

    def _looked_up(self, table: Sequence[int], k: Any) -> Any:
        """For each word of k the word of `table` that its lowest bits name."""
        build, ir = self.build, self.ir
        if self.lookup.endswith("permvar.df.512"):  # eight float64 in a register: it uses the lowest bits of each word
            reals = [struct.unpack("<d", struct.pack("<q", word))[0] for word in table]
            values = ir.Constant(self.reals, [ir.Constant(self.real, one) for one in reals])
            permute = self._declared(self.lookup, self.reals, [self.reals, self.words])
            return build.bitcast(build.call(permute, [values, k]), self.words)
        if self.lookup.endswith(
            "permd"
        ):  # eight integers of 32 bits in a register: both halves of a word, one after the other
            halves = ir.VectorType(ir.IntType(32), _LANES)
            permute = self._declared(self.lookup, halves, [halves, halves])
            low, high = (
                build.zext(build.call(permute, [ir.Constant(halves, half), build.trunc(k, halves)]), self.words)
                for half in ([word & 0xFFFFFFFF for word in table], [word >> 32 for word in table])
            )
            return build.or_(low, build.shl(high, self._words(32)))
        kind = ir.ArrayType(self.word, len(table))
        held = self.module.globals.get("roots") or ir.GlobalVariable(self.module, kind, "roots")
        held.initializer, held.linkage, held.global_constant = ir.Constant(kind, list(table)), "internal", True
        found, places = ir.Constant(self.words, ir.Undefined), build.and_(k, self._words(len(table) - 1))
        for lane in range(_LANES):
            number = ir.Constant(ir.IntType(32), lane)
            place = build.gep(held, [self._word(0), build.extract_element(places, number)])
            found = build.insert_element(found, build.load(place), number)
        return found

    def _loop(self, start: Any, stop: Any, step: int, body: Callable[[Any, Any], Any], held: Sequence[Any]) -> Any:
        """`body(index, held)` from `start` up to `stop`; what it returns is held in the next turn, and given back at the end."""
        build, before = self.build, self.build.block
        head, inside, after = (self.function.append_basic_block() for _ in range(3))
        build.branch(head)
        build.position_at_end(head)
        phis = [build.phi(one.type) for one in (start, *held)]
        for phi, first in zip(phis, (start, *held), strict=True):
            phi.add_incoming(first, before)
        build.cbranch(build.icmp_signed("<", phis[0], stop), inside, after)
        build.position_at_end(inside)
        following = [build.add(phis[0], self._word(step)), *body(phis[0], phis[1:])]
        for phi, next_one in zip(phis, following, strict=True):
            phi.add_incoming(next_one, build.block)
        build.branch(head)
        build.position_at_end(after)
        return phis[1:]

    def _load(self, row: Any, at: Any, lanes: int = 1) -> Any:
        """Values as float32 or float64, which hold them all exactly; a bfloat16 is the upper half of a float32."""
        build, ir = self.build, self.ir

        def kind(one: Any) -> Any:
            return one if lanes == 1 else ir.VectorType(one, lanes)

        values = build.load(build.bitcast(build.gep(row, [at]), kind(self.stored).as_pointer()), align=1)
        if self.stored == self.single:
            return values
        if self.stored == ir.HalfType():
            return build.fpext(values, kind(self.single))
        word = ir.IntType(32)
        half = ir.Constant(word, 16) if lanes == 1 else ir.Constant(kind(word), [ir.Constant(word, 16)] * lanes)
        return build.bitcast(build.shl(build.zext(values, kind(word)), half), kind(self.single))

    def _fetch(self, pointer: Any) -> None:
        """Bring what a pointer points at into the cache; it may lie beyond the end of the rows."""
        byte, flag = self.ir.IntType(8).as_pointer(), self.ir.IntType(32)
        fetch = self._declared("llvm.prefetch.p0", self.ir.VoidType(), [byte, flag, flag, flag])
        self.build.call(fetch, [self.build.bitcast(pointer, byte), *(self.ir.Constant(flag, one) for one in (0, 3, 1))])

    def _declared(self, name: str, result: Any, arguments: Sequence[Any]) -> Any:
        """One of LLVM's own operations, declared once in the module."""
        kind = self.ir.FunctionType(result, list(arguments))
        return self.module.globals.get(name) or self.ir.Function(self.module, kind, name)

    def _wide(self, value: Any, kind: Any) -> Any:
        return value if self.single == self.real else self.build.fpext(value, kind)

    def _fma(self, a: Any, b: Any, c: Any) -> Any:
        return self.build.call(self.fused, [a, b, c])

    def _clamp(self, x: Any) -> Any:
        lowest = self._real(_LOWEST)
        return self.build.select(self.build.fcmp_ordered("<", x, lowest), lowest, x)  # NaN stays

    def _lower(self, a: Any, b: Any) -> Any:
        return self.build.select(self.build.fcmp_ordered("<", a, b), a, b)

    def _higher(self, a: Any, b: Any) -> Any:
        return self.build.select(self.build.fcmp_ordered(">", a, b), a, b)

    def _folded(self, several: Any, lanes: int, pair: Callable[[Any, Any], Any]) -> Any:
        """One value of all lanes: the upper half joined to the lower one until one is left."""
        index = self.ir.IntType(32)
        while lanes > 1:
            lanes //= 2
            halves = [
                self.ir.Constant(self.ir.VectorType(index, lanes), list(range(at, at + lanes))) for at in (0, lanes)
            ]
            several = pair(*(self.build.shuffle_vector(several, several, half) for half in halves))
        return self.build.extract_element(several, self.ir.Constant(index, 0))

    def _spread(self, one: Any) -> Any:
        several, index = self.ir.Constant(self.reals, self.ir.Undefined), self.ir.IntType(32)
        for lane in range(_LANES):
            several = self.build.insert_element(several, one, self.ir.Constant(index, lane))
        return several

    def _real(self, value: float) -> Any:
        return self.ir.Constant(self.reals, [self.ir.Constant(self.real, value)] * _LANES)

    def _words(self, value: int) -> Any:
        return self.ir.Constant(self.words, [self._word(value)] * _LANES)

    def _word(self, value: int) -> Any:
        return self.ir.Constant(self.word, value)


def address(array: npt.NDArray[Any]) -> int:
    """Where an array's first value lies. The caller keeps the array alive while it is used."""
    return int(array.ctypes.data)
