"""Fixed traces (MEASURES section 7): how likely an engine is to end its thinking at declared positions of frozen reasonings.

A trace is a token sequence up to its end-of-thinking token. Row r predicts token r + 1, so the row at a sentence's last token tells how
likely thinking ends there. An engine captures the rows as those of any window, whole or its top K, with raw log-probabilities and with
speculation and thinking budgets off. Where a capture does not hold the token, its log-probability is bounded from above, never 0.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from engcmp_assets.kernel.records import Missing, Role, Window
from engcmp_assets.kernel.splitmix import outputs
from engcmp_assets.kernel.uncertainty import PANEL, Estimate, Preset, population_mean
from engcmp_resources.errors import EngcmpError

Kind = Literal["sentence_end", "random", "true_end"]
KINDS: tuple[Kind, ...] = ("sentence_end", "random", "true_end")
_ENDS = re.compile(r"[.!?…][\"')\]*_]*\s*$|[。！？][」』）]*\s*$|\n\s*$")  # noqa: RUF001 (the full stops of CJK text)
_INVENTED = -1000.0  # nats: what is below stands for "not given" in some servers' answers
_SUM_ERROR = 1e-3


@dataclass(frozen=True, slots=True)
class FrozenTrace:
    """A reasoning that was kept with its prompt. `thinking_at` is the first token of the thinking; the tokens from `end_at` on are the
    end marker, of which the first is measured: where it has several, `label` says so.
    """

    trace_id: str
    tokens: tuple[int, ...]
    thinking_at: int
    end_at: int

    def __post_init__(self) -> None:
        if not 0 < self.thinking_at < self.end_at < len(self.tokens):
            raise EngcmpError(
                f"trace {self.trace_id}: thinking from {self.thinking_at} to {self.end_at} of {len(self.tokens)} tokens",
                remedy="keep the prompt, at least one token of thinking, and the end marker",
            )

    @property
    def end_token(self) -> int:
        return self.tokens[self.end_at]

    @property
    def label(self) -> str | None:
        size = len(self.tokens) - self.end_at
        return f"the first of the {size} tokens of the end marker" if size > 1 else None


@dataclass(frozen=True, slots=True, order=True)
class TracePosition:
    """A row of a trace at which the end of thinking is measured; `true_end` is the row before the marker that was in fact written."""

    trace_id: str
    row: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class EndLogProb:
    """The natural log-probability of the end token at a row, or (`bound`) what it is at most."""

    value: float
    bound: bool = False


@dataclass(frozen=True, slots=True)
class EndDifference:
    """Candidate minus baseline at the positions of one kind; traces are the clusters of the intervals.

    `log_prob` is the mean difference in nats over the positions that both engines give exactly: with few of them it speaks only of places
    where the end is likely. `lowest` and `highest` are the mean difference in probability over all positions, with every bounded one at
    its worst either way; they are equal where nothing is bounded.
    """

    kind: Kind
    positions: int
    exact: int
    bounded_baseline: int
    bounded_candidate: int
    log_prob: Estimate
    lowest: Estimate
    highest: Estimate


def sentence_ends(pieces: Sequence[str]) -> list[int]:
    """The indices of the tokens (by their texts) that end a sentence or a line: the next one starts with white space, or the text does not
    need any. A full stop within `3.14` or `e.g.` followed by a small letter ends nothing.
    """
    found = []
    for index, (piece, following) in enumerate(zip(pieces, [*pieces[1:], "\n"], strict=True)):
        if _ENDS.search(piece) is None:
            continue
        open_end = piece[-1:].isspace() or following[:1].isspace() or piece.strip()[-1:] in "。！？」』）"  # noqa: RUF001 (as above)
        small = following.lstrip(" ")[:1].islower() and "\n" not in piece
        if open_end and not small:
            found.append(index)
    return found


def choose_positions(
    trace: FrozenTrace, pieces: Sequence[str], *, sentence_ends_kept: int, random_kept: int, seed: int
) -> tuple[TracePosition, ...]:
    """Up to so many sentence ends and other rows of the thinking, drawn without replacement, and the true end; no row is taken twice.

    `pieces` are the texts of the trace's tokens. The draw follows from `seed` and the trace's name alone.
    Raises EngcmpError where there are not as many pieces as tokens.
    """
    if len(pieces) != len(trace.tokens):
        raise EngcmpError(
            f"trace {trace.trace_id}: {len(pieces)} texts for {len(trace.tokens)} tokens",
            remedy="decode each token by itself",
        )
    rows = range(trace.thinking_at, trace.end_at - 1)
    ends = sorted(set(sentence_ends(pieces)) & set(rows))
    first = _drawn(ends, sentence_ends_kept, f"{seed}/{trace.trace_id}/sentence_end")
    others = sorted(set(rows) - set(ends))
    second = _drawn(others, random_kept, f"{seed}/{trace.trace_id}/random")
    chosen = [
        *(TracePosition(trace.trace_id, row, "sentence_end") for row in first),
        *(TracePosition(trace.trace_id, row, "random") for row in second),
        TracePosition(trace.trace_id, trace.end_at - 1, "true_end"),
    ]
    return tuple(sorted(chosen))


def trace_window(trace: FrozenTrace, positions: Sequence[TracePosition]) -> Window:
    """The trace as a window that every engine captures rows of; the trace is its cluster."""
    rows = tuple(sorted(one.row for one in positions))
    roles: tuple[Role, ...] = tuple("generated" for _ in rows)
    return Window(trace.trace_id, trace.tokens, rows, roles, trace.trace_id, "fixed_traces", "thinking")


def from_full_rows(rows: npt.NDArray[np.floating], token: int) -> list[EndLogProb]:
    """Of whole rows [n, vocabulary], logits or log-probabilities. Raises EngcmpError for a row without a finite value at `token`."""
    wide = np.asarray(rows, dtype=np.float64)
    top = wide.max(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        values = wide[:, token] - top[:, 0] - np.log(np.exp(wide - top).sum(axis=1))
    return [EndLogProb(_real(float(one), row)) for row, one in enumerate(values)]


def from_top_rows(
    top_ids: npt.NDArray[np.integer],
    top_log_probs: npt.NDArray[np.floating],
    token: int,
    *,
    next_tokens: Sequence[int],
    next_log_probs: Sequence[float],
) -> list[EndLogProb]:
    """Of the top K [n, K] and the actual next token [n] of each row, natural logarithms over the whole vocabulary.

    A token that is in neither is at most as likely as the least of the top K, and as all that they leave: the lower of both is its bound.
    Raises EngcmpError for a top K that adds up to more than 1 and for a value that no engine computes (some servers fill in -9999).
    """
    found = []
    for row, (ids, logs) in enumerate(
        zip(np.asarray(top_ids), np.asarray(top_log_probs, dtype=np.float64), strict=True)
    ):
        places = np.flatnonzero(ids == token)
        if places.size:
            found.append(EndLogProb(_real(float(logs[places[0]]), row)))
        elif next_tokens[row] == token:
            found.append(EndLogProb(_real(float(next_log_probs[row]), row)))
        else:
            rest = 1 - math.fsum(np.exp(logs))
            if not rest > -_SUM_ERROR:
                raise EngcmpError(
                    f"row {row}: its top {len(logs)} add up to {1 - rest:.4f}", remedy="give raw log-probabilities"
                )
            least = _real(float(logs.min()), row)
            found.append(EndLogProb(min(least, math.log(rest)) if rest > _SUM_ERROR * 1e-3 else least, bound=True))
    return found


def end_differences(
    baseline: Mapping[TracePosition, EndLogProb],
    candidate: Mapping[TracePosition, EndLogProb],
    *,
    preset: Preset = PANEL,
    level: float = 0.95,
) -> tuple[EndDifference, ...]:
    """Two engines at the same positions, kind by kind. Raises EngcmpError where an engine lacks a position of the other."""
    apart = sorted(baseline.keys() ^ candidate.keys())
    if apart:
        raise EngcmpError(
            f"{len(apart)} positions are of one engine only, first row {apart[0].row} of trace {apart[0].trace_id}",
            remedy="capture the same traces with both",
        )
    return tuple(_difference(kind, baseline, candidate, preset, level) for kind in KINDS)


def _difference(
    kind: Kind,
    baseline: Mapping[TracePosition, EndLogProb],
    candidate: Mapping[TracePosition, EndLogProb],
    preset: Preset,
    level: float,
) -> EndDifference:
    places = sorted(one for one in baseline if one.kind == kind)
    exact = [one for one in places if not baseline[one].bound and not candidate[one].bound]

    def mean(positions: Sequence[TracePosition], values: Sequence[float]) -> Estimate:
        names = [one.trace_id for one in positions]
        return population_mean(values, names, preset=preset, level=level, kind="difference")

    def least(one: EndLogProb) -> float:
        return 0.0 if one.bound else math.exp(one.value)

    def most(one: EndLogProb) -> float:
        return math.exp(one.value)

    return EndDifference(
        kind,
        len(places),
        len(exact),
        sum(baseline[one].bound for one in places),
        sum(candidate[one].bound for one in places),
        mean(exact, [candidate[one].value - baseline[one].value for one in exact]),
        mean(places, [least(candidate[one]) - most(baseline[one]) for one in places]),
        mean(places, [most(candidate[one]) - least(baseline[one]) for one in places]),
    )


def _drawn(rows: Sequence[int], count: int, name: str) -> list[int]:
    """The rows with the smallest outputs of a stream of their own."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    order = np.argsort(outputs(seed, 0, len(rows)), kind="stable")
    return sorted(rows[index] for index in order[:count].tolist())


def _real(value: float, row: int) -> float:
    if not _INVENTED < value <= _SUM_ERROR:
        raise EngcmpError(
            f"row {row}: {value} is no log-probability that an engine computes",
            remedy="give raw log-probabilities, before penalties, masks and sampling",
        )
    return min(value, 0.0)


def bounded_share(values: Sequence[EndLogProb]) -> float | Missing:
    """The share of positions that a capture only bounds: with many of them, capture whole rows or ask for the token by its id."""
    return sum(one.bound for one in values) / len(values) if values else Missing("no position")
