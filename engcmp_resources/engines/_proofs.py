"""Proofs that log-probabilities of a prompt are what they seem: each row its own, before sampling, computed for this very prompt.

Each takes what a client can ask: `score`, the rows of a prompt's log-probabilities in falling order, float64 [len(tokens) - 1, k], and
`following`, those of the token after a prompt, [k]. Only the values are compared, so it does not matter how an API names tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from engcmp_resources.engines._api import PROBE_TEXTS, Floats
from engcmp_resources.errors import EngcmpError

Error = Callable[[str, str], EngcmpError]
Score = Callable[[Sequence[int], float], Floats]  # tokens and temperature
COLD, WARM = 0.5, 1.0  # temperatures: processed values differ by a factor of two
_PROBE_TOKENS, _SHARED = 32, 20
_TOLD_BY_ROWS = (6, 11, 16, 21)
_PROCESSED_FROM, _RAW_TO = 1.5, 1.25
_STALE_NATS = 0.5  # kernels of another shape move a log-probability by far less, another prompt's values by more
_SAME = 1e-6


def probe_tokens(tokenized: Sequence[int] | None, vocab: int) -> list[int]:
    """Ids of a prompt to probe with: a text's where the server tokenizes, else some from the middle of the vocabulary."""
    made = [vocab // 4 + (step * 7919) % (vocab // 2) for step in range(_PROBE_TOKENS)]
    return [*(tokenized or []), *made][:_PROBE_TOKENS]


def probe_text() -> str:
    """The text that `probe_tokens` is given as ids."""
    return PROBE_TEXTS[0]


def refuse_shifted(
    error: Error, tokens: Sequence[int], rows: Floats, following: Callable[[Sequence[int]], Floats | None]
) -> str:
    """Hold rows of a prompt against the token that the server generates after its first r + 1 tokens; say how it was found.

    Raises EngcmpError where another row than r is nearest (MEASURES section 1: row r is the distribution after tokens 0..r).
    """
    nearest: list[int] = []
    for row in _TOLD_BY_ROWS:
        after = following(tokens[: row + 1])
        if after is None:
            return "alignment not proved: generated tokens come without log-probabilities"
        shifts = [-2, -1, 0, 1, 2]
        away = [float(np.abs(_mass(rows[row + shift]) - _mass(after)).sum()) for shift in shifts]
        if sorted(away)[1] - min(away) > _SAME:  # else rows look alike and tell nothing
            nearest.append(shifts[int(np.argmin(away))])
    wrong = [shift for shift in nearest if shift]
    if len(wrong) * 2 > len(nearest):
        raise error(
            f"log-probabilities of a prompt are shifted by {max(set(wrong), key=wrong.count):+d} rows: that is where the "
            "distribution of the token generated after each stands",
            "use a version whose entry r + 1 is the row after tokens 0..r, or teach the client its order",
        )
    return (
        f"in {len(nearest) - len(wrong)} of {len(nearest)} rows the nearest to the generated token's is the row itself"
    )


def refuse_processed(error: Error, tokens: Sequence[int], score: Score) -> str:
    """Score one prompt at two temperatures; say how it was found. Raises EngcmpError where the values follow the temperature."""
    ratio = _spread_ratio(score(tokens, WARM), score(tokens, COLD))
    if ratio is None:
        return "not told: all rows are certain"
    if ratio > _PROCESSED_FROM:
        raise error(
            f"log-probabilities are processed: at half the temperature their spread is {ratio:.2f} times as large",
            "start the server with raw log-probabilities (vLLM: --logprobs-mode raw_logprobs)",
        )
    if not 1 / _RAW_TO < ratio < _RAW_TO:
        raise error(
            f"log-probabilities change with the temperature: their spread is {ratio:.2f} times as large at half of it",
            "find out what the server applies to them, and switch it off",
        )
    return f"raw: at half the temperature their spread is {ratio:.3f} times as large"


def refuse_stale(error: Error, tokens: Sequence[int], vocab: int, score: Score) -> str:
    """Score two prompts that begin alike with another between them; say how it was found.

    Raises EngcmpError where the rows of what they share differ: then they are those of a prompt that was scored before.
    """
    other = [(token + vocab // 3) % vocab for token in reversed(tokens)]
    again = [*tokens[:_SHARED], *other[: len(tokens) - _SHARED]]
    first = score(tokens, WARM)
    score(other, WARM)
    second = score(again, WARM)
    shared = slice(0, _SHARED - 1)
    away = float(np.median(np.abs(_mass(first[shared]) - _mass(second[shared])).sum(axis=1)))
    if away > _STALE_NATS:
        raise error(
            f"rows of the same {_SHARED} tokens differ by {away:.3g} in probability when another prompt was scored between: "
            "they are stale, or of another prompt",
            "switch prefix caching off for captures, or use a version without this fault",
        )
    return f"rows of a shared beginning differ by {away:.2g} in probability with another prompt between"


def _mass(log_probs: Floats) -> Floats:
    return np.exp(log_probs)


def _spread_ratio(warm: Floats, cold: Floats) -> float | None:
    spreads = [(rows[:, 0] - rows[:, min(9, rows.shape[1] - 1)]) for rows in (warm, cold)]
    told = (spreads[0] > _SAME) & np.isfinite(spreads[0]) & np.isfinite(spreads[1])
    return float(np.median(spreads[1][told] / spreads[0][told])) if told.any() else None
