"""The run-time test for an off-by-one between rows and tokens (MEASURES section 1), one verdict a panel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import scipy

from engcmp_assets.kernel.records import Missing, Window
from engcmp_resources.errors import EngcmpError

Verdict = Literal["aligned", "misaligned", "undetermined"]

SIGNIFICANT = 0.001
LEAST_ROWS = 64


@dataclass(frozen=True, slots=True)
class ShiftTest:
    """One shift against shift 0, paired over the `rows` where both can be looked at.

    `only_shift` and `only_zero` are the discordant rows. `p_shift_better` is the exact one-sided McNemar p that the
    shift matches more often than shift 0, `p_zero_better` that it matches less often.
    """

    shift: int
    rows: int
    matches: int
    matches_at_zero: int
    only_shift: int
    only_zero: int
    p_shift_better: float
    p_zero_better: float


@dataclass(frozen=True, slots=True)
class Alignment:
    """The panel's verdict. `shift` s says that what is labelled row r is row r + s; 0 where aligned.

    `counts` are matches at shifts -1, 0 and +1 (over the rows where each can be looked at); `p_values` are the
    one-sided p that shift -1 or +1 matches more often than shift 0; `rows` are all rows looked at.
    """

    verdict: Verdict
    shift: int | Missing
    counts: dict[int, int]
    p_values: dict[int, float]
    rows: int
    tests: tuple[ShiftTest, ShiftTest]
    explanation: str


def check_alignment(panel: Sequence[tuple[Window, npt.NDArray[np.integer[Any]]]]) -> Alignment:
    """Test a panel's windows, each with the engine's most probable id per kept row (int [len(window.positions)]).

    Row r predicts token r + 1. If the row labelled r were really row r + s, its first choices would match token
    r + 1 + s. Such a row exists for 0 <= r + s <= n - 2 only, so row n - 2 is left out at shift +1 and row 0 at
    shift -1, and each shift is compared with shift 0 over the same rows. Raises EngcmpError where ids and rows do not
    pair up.
    """
    hits: dict[int, list[tuple[bool, bool]]] = {-1: [], 1: []}
    rows = zero_matches = 0
    for window, top_ids in panel:
        _check(window, top_ids)
        rows += len(window.positions)
        for row, top in zip(window.positions, top_ids.tolist(), strict=True):
            at_zero = top == window.tokens[row + 1]
            zero_matches += at_zero
            for step, pairs in hits.items():
                if 0 <= row + step <= len(window.tokens) - 2:
                    pairs.append((top == window.tokens[row + 1 + step], at_zero))
    before, after = (_shift_test(step, pairs) for step, pairs in hits.items())
    verdict, shift, explanation = _decide(before, after)
    return Alignment(
        verdict=verdict,
        shift=shift,
        counts={-1: before.matches, 0: zero_matches, 1: after.matches},
        p_values={-1: before.p_shift_better, 1: after.p_shift_better},
        rows=rows,
        tests=(before, after),
        explanation=explanation,
    )


def _check(window: Window, top_ids: npt.NDArray[np.integer[Any]]) -> None:
    where = f"window {window.window_id}"
    if top_ids.shape != (len(window.positions),):
        raise EngcmpError(
            f"{list(top_ids.shape)} first choices for {len(window.positions)} rows",
            where=where,
            remedy="recapture this window",
        )
    outside = [row for row in window.positions if not 0 <= row <= len(window.tokens) - 2]
    if outside:
        raise EngcmpError(
            f"row {outside[0]} predicts no token of a window of {len(window.tokens)}",
            where=where,
            remedy="rows run from 0 to the number of tokens minus 2",
        )


def _shift_test(shift: int, pairs: list[tuple[bool, bool]]) -> ShiftTest:
    only_shift = sum(at_shift and not at_zero for at_shift, at_zero in pairs)
    only_zero = sum(at_zero and not at_shift for at_shift, at_zero in pairs)
    discordant = only_shift + only_zero
    return ShiftTest(
        shift=shift,
        rows=len(pairs),
        matches=sum(at_shift for at_shift, _ in pairs),
        matches_at_zero=sum(at_zero for _, at_zero in pairs),
        only_shift=only_shift,
        only_zero=only_zero,
        p_shift_better=float(scipy.stats.binom.sf(only_shift - 1, discordant, 0.5)),
        p_zero_better=float(scipy.stats.binom.sf(only_zero - 1, discordant, 0.5)),
    )


def _decide(before: ShiftTest, after: ShiftTest) -> tuple[Verdict, int | Missing, str]:
    tests = (before, after)
    standing = [one for one in tests if one.rows >= LEAST_ROWS and one.p_shift_better < SIGNIFICANT]
    if standing:
        # Lower p first; the p of two strong shifts can both underflow to 0, so the number of rows decides then.
        worst = min(standing, key=lambda one: (one.p_shift_better, one.only_zero - one.only_shift))
        text = (
            f"first choices match the text at shift {worst.shift:+d} on {worst.matches} of {worst.rows} rows and at "
            f"shift 0 on {worst.matches_at_zero} (exact p {worst.p_shift_better:.2g}): rows are off by one"
        )
        return "misaligned", worst.shift, text
    if all(one.rows >= LEAST_ROWS and one.p_zero_better < SIGNIFICANT for one in tests):
        text = (
            f"first choices match the text at shift 0 more often than at -1 ({before.matches_at_zero} against "
            f"{before.matches} of {before.rows} rows) and at +1 ({after.matches_at_zero} against {after.matches} of "
            f"{after.rows})"
        )
        return "aligned", 0, text
    fewest = min(one.rows for one in tests)
    if fewest < LEAST_ROWS:
        reason = f"alignment undetermined: {fewest} rows, the test needs {LEAST_ROWS}"
    else:
        reason = f"alignment undetermined: no shift stands out (exact test, p < {SIGNIFICANT})"
    return "undetermined", Missing(reason), reason
