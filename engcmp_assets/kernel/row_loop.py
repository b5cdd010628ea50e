"""The inner loop over a pair of rows, written in LLVM's language and compiled for the processor at hand in under a tenth of a second.

numpy passes over a row once for each operation; here all is done while a value is in a register. Every operation, its order and the number
of running sums are written out, multiply-adds included, so that the sums are the same bits on every processor. Rows are never copied.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

_LANES = 8  # values side by side: one AVX-512 register, two AVX2 registers
_RUN = 128 * _LANES  # values added to one set of running sums: rounding then grows with V / 1,024 + 128, not with V / 8
_LOWEST = -700.0  # exp of this is 1e-304: no sum that holds exp(0) = 1 changes; and -inf needs no case of its own
_ROUNDER = 1.5 * 2.0**52  # added to a number below 2^51 it leaves the nearest integer in the low bits
# The polynomial for exp(r), |r| <= ln(2) / 2, lowest power first: relative error at most 2.2e-16 (Remez, degree 10).
_EXP = (
    1.0, 1.0000000000000064, 0.49999999999997286, 0.16666666666557656, 0.04166666666842739, 0.008333333384696242,
    0.0013888888498912756, 0.00019841171345220726, 2.480191781217471e-05, 2.763978461400876e-06,
)  # fmt: skip
# All sums are this much too large: so the highest coefficient is 1, a multiplication less. An integer: equal values add exactly.
SCALE = 3637894.0
_MONIC = tuple(SCALE * one for one in _EXP)
OUTPUTS = ("p_sum", "p_moment", "q_sum", "q_moment", "cross", "p_lowest", "q_lowest")


@dataclass(frozen=True, slots=True)
class RowLoop:
    """One compiled loop: `run` adds up `values` (a multiple of `lanes`) of each row, from the addresses of both sides' first rows."""

    run: Callable[..., None]
    lanes: int


def compiled() -> dict[tuple[str, str], RowLoop]:
    """The loops for this processor (loops_for). Raises what llvmlite raises where it cannot work."""
    from llvmlite import binding  # noqa: PLC0415 - only scoring needs it

    return loops_for(binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten())


@functools.cache
def loops_for(processor: str, features: str) -> dict[tuple[str, str], RowLoop]:
    """The loops by dtype name and purpose, compiled for a processor and its features as LLVM names them.

    Purposes: `plain` (rows without a value 700 below their maximum), `any`, and `rest` (the values beyond the last full 8). Each loop is
    called with: address of p, of q, values in a row, rows, stride of p and of q in values, address of the float64 maxima of p and of q,
    address of float64 [rows, 7] for OUTPUTS. Sums are SCALE times too large.
    """
    from llvmlite import binding  # noqa: PLC0415

    wanted = {("float32", "plain"): (_LANES, False)}
    for name in ("float32", "float64"):
        wanted |= {(name, "any"): (_LANES, True), (name, "rest"): (1, True)}
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    parsed = binding.parse_assembly(_module({f"{name}_{use}": (name, *form) for (name, use), form in wanted.items()}))
    parsed.verify()
    target = binding.Target.from_default_triple()
    machine = target.create_target_machine(cpu=processor, features=features, opt=3, jit=True)
    engine = binding.create_mcjit_compiler(parsed, machine)
    engine.finalize_object()
    _keep.append(engine)
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    call = ctypes.CFUNCTYPE(None, pointer, pointer, number, number, number, number, pointer, pointer, pointer)
    return {
        (name, use): RowLoop(call(engine.get_function_address(f"{name}_{use}")), form[0])
        for (name, use), form in wanted.items()
    }


_keep: list[Any] = []  # compiled code lives as long as its engine


def _module(functions: dict[str, tuple[str, int, bool]]) -> str:
    from llvmlite import ir  # noqa: PLC0415

    module = ir.Module("rows")
    for name, (dtype, lanes, clamped) in functions.items():
        _Writer(ir, module, name, dtype, lanes, clamped=clamped).write()
    return str(module)


class _Writer:
    """Writes one function of the module: three loops, over rows, over runs of a row, and over the values of a run."""

    def __init__(self, ir: Any, module: Any, name: str, dtype: str, lanes: int, *, clamped: bool) -> None:
        self.ir, self.lanes, self.clamped = ir, lanes, clamped
        self.real, self.word = ir.DoubleType(), ir.IntType(64)
        self.stored = ir.FloatType() if dtype == "float32" else self.real
        kinds = [self.real, self.word, self.stored]
        self.reals, self.words, self.values = kinds if lanes == 1 else [ir.VectorType(one, lanes) for one in kinds]
        rows, numbers = self.stored.as_pointer(), self.real.as_pointer()
        arguments = [rows, rows, *[self.word] * 4, numbers, numbers, numbers]
        self.function = ir.Function(module, ir.FunctionType(ir.VoidType(), arguments), name)
        fma = f"llvm.fma.{'' if lanes == 1 else f'v{lanes}'}f64"
        found = module.globals.get(fma)
        self.fused = found or ir.Function(module, ir.FunctionType(self.reals, [self.reals] * 3), fma)
        self.build = ir.IRBuilder(self.function.append_basic_block())

    def write(self) -> None:
        p, q, count, rows, p_stride, q_stride, p_max, q_max, out = self.function.args
        build = self.build

        def row(index: Any, _held: Sequence[Any]) -> Sequence[Any]:
            starts = [build.gep(p, [build.mul(index, p_stride)]), build.gep(q, [build.mul(index, q_stride)])]
            tops = [self._spread(build.load(build.gep(one, [index]))) for one in (p_max, q_max)]
            sums = self._row(starts, tops, count)
            for place, total in enumerate(sums):
                at = build.add(build.mul(index, self._word(len(OUTPUTS))), self._word(place))
                build.store(total, build.gep(out, [at]))
            return ()

        self._loop(self._word(0), rows, 1, row, ())
        build.ret_void()

    def _row(self, starts: Sequence[Any], tops: Sequence[Any], count: Any) -> list[Any]:
        build, nothing = self.build, [self._real(0.0)] * 5
        highest = [self._constant(self.stored, self.values, math.inf)] * 2

        def run(start: Any, held: Sequence[Any]) -> Sequence[Any]:
            stop = build.add(start, self._word(_RUN))
            stop = build.select(build.icmp_signed("<", stop, count), stop, count)
            found = self._loop(
                start, stop, self.lanes, lambda at, inner: self._step(starts, tops, at, inner), [*nothing, *held[5:]]
            )
            return [*(build.fadd(total, part) for total, part in zip(held, found[:5], strict=False)), *found[5:]]

        found = self._loop(self._word(0), count, _RUN, run, [*nothing, *highest])
        sums = [functools.reduce(build.fadd, self._each(total)) for total in found[:5]]
        lowest = [functools.reduce(self._lower, self._each(one)) for one in found[5:]]
        return sums + [build.fpext(one, self.real) if self.stored != self.real else one for one in lowest]

    def _step(self, starts: Sequence[Any], tops: Sequence[Any], at: Any, held: Sequence[Any]) -> Sequence[Any]:
        build = self.build
        pointers = [build.bitcast(build.gep(one, [at]), self.values.as_pointer()) for one in starts]
        raw = [build.load(one, align=1) for one in pointers]
        wide = [build.fpext(one, self.reals) if self.stored != self.real else one for one in raw]
        x, y = (build.fsub(one, top) for one, top in zip(wide, tops, strict=True))
        if self.clamped:
            lowest = self._real(_LOWEST)
            x, y = (build.select(build.fcmp_ordered("<", one, lowest), lowest, one) for one in (x, y))
        p, q = self._exp(x), self._exp(y)
        fma = self._fma
        return [
            build.fadd(held[0], p), fma(p, x, held[1]), build.fadd(held[2], q), fma(q, y, held[3]),
            fma(p, build.fsub(x, y), held[4]),  # the difference first: it is exactly 0 where the rows are equal
            *(self._lower(one, low) for one, low in zip(raw, held[5:], strict=True)),
        ]  # fmt: skip

    def _exp(self, x: Any) -> Any:
        """SCALE exp(x) for x from -700 to 0: x = k ln 2 + r, a polynomial in r, and k added to the exponent's bits."""
        build, rounder = self.build, self._real(_ROUNDER)
        shifted = self._fma(x, self._real(1 / math.log(2)), rounder)
        # One multiply-add: it rounds once, and what ln 2 lacks as a float64, 2.3e-17, is below 2.4e-14 at k = -1,010, 1e-16 at -4.
        r = self._fma(build.fsub(shifted, rounder), self._real(-math.log(2)), x)
        y = build.fadd(r, self._real(_MONIC[-1]))
        for coefficient in _MONIC[-2::-1]:
            y = self._fma(y, r, self._real(coefficient))
        shift = self._constant(self.word, self.words, 52)
        exponent = build.shl(build.bitcast(shifted, self.words), shift)
        return build.bitcast(build.add(build.bitcast(y, self.words), exponent), self.reals)

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

    def _fma(self, a: Any, b: Any, c: Any) -> Any:
        return self.build.call(self.fused, [a, b, c])

    def _lower(self, a: Any, b: Any) -> Any:
        return self.build.select(self.build.fcmp_ordered("<", a, b), a, b)

    def _each(self, several: Any) -> list[Any]:
        if self.lanes == 1:
            return [several]
        index = self.ir.IntType(32)
        return [self.build.extract_element(several, self.ir.Constant(index, lane)) for lane in range(self.lanes)]

    def _spread(self, one: Any) -> Any:
        if self.lanes == 1:
            return one
        several = self.ir.Constant(self.reals, self.ir.Undefined)
        for lane in range(self.lanes):
            several = self.build.insert_element(several, one, self.ir.Constant(self.ir.IntType(32), lane))
        return several

    def _real(self, value: float) -> Any:
        return self._constant(self.real, self.reals, value)

    def _word(self, value: int) -> Any:
        return self.ir.Constant(self.word, value)

    def _constant(self, kind: Any, kinds: Any, value: float) -> Any:
        return self.ir.Constant(kinds, value if self.lanes == 1 else [self.ir.Constant(kind, value)] * self.lanes)


def address(array: npt.NDArray[Any]) -> int:
    """Where an array's first value lies. The caller keeps the array alive while it is used."""
    return int(array.ctypes.data)


def outputs(rows: int) -> npt.NDArray[np.float64]:
    """Room for what a loop writes, float64 [rows, 7]."""
    return np.empty((rows, len(OUTPUTS)), dtype=np.float64)
