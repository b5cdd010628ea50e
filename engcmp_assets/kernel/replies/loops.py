"""The vote (MEASURES section 7): whether a reply ended in a loop, which detector says so, and from which token on."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.replies.exact_period import Period, PeriodFinder
from engcmp_assets.kernel.replies.finishes import Finish, finish_of
from engcmp_assets.kernel.replies.novelty import (
    Novelty,
    copies,
    falls_to_the_end,
    lowest_end,
    novelty,
    onset_unit,
    token_of_unit,
)
from engcmp_assets.kernel.replies.repetition import Repetition, moving_share, restated, self_repetition, tail_grams
from engcmp_assets.kernel.replies.spans import Kind, Reply, Span, Thresholds, Vocabulary, fold_digits
from engcmp_assets.kernel.replies.structure import structure

Detector = Literal["exact_period", "self_repetition", "novelty8", "novelty8_digits"]
DETECTORS: tuple[Detector, ...] = ("exact_period", "self_repetition", "novelty8", "novelty8_digits")
UNFINISHED: tuple[Finish, ...] = ("capped", "stopped_early", "error")


@dataclass(frozen=True, slots=True)
class TailMeasures:
    """What is measured of a span of n tokens: nothing here decides yet. Compression and templated lines never do."""

    period: Period | None
    repetition: Repetition
    novelty: Novelty
    structure: str | None
    compression: float | Missing
    templated_lines: float | Missing


@dataclass(frozen=True, slots=True)
class Loop:
    """A stretch of a span that goes round to where the span, or the part of it that was looked at, ends; `period` of a verbatim one."""

    detector: Detector
    onset_token: int
    period: Period | None


@dataclass(frozen=True, slots=True)
class ReplyVerdict:
    """A reply's class, its loop, and the measures of the span in which it ended. `looped`: it never came out of the loop; a finished
    reply with such a stretch is `recovered`, and `loop` and `loop_span` tell where. Lengths of a capped reply are lower bounds.
    `judged` is False where the span is too short for any detector but exact copies, and none was found: that is no word against a loop.
    """

    reply_id: str
    finish: Finish
    looped: bool
    loop: Loop | None
    loop_span: str | None
    measured: TailMeasures
    restated: float | Missing
    reasoning_tokens: int
    reasoning_chars: int
    answer_tokens: int
    answer_chars: int
    judged: bool


class SpanJudge:
    """Measures and judges spans of one tokenizer's ids."""

    def __init__(self, vocabulary: Vocabulary, thresholds: Thresholds) -> None:
        self._vocabulary, self._limits = vocabulary, thresholds

    def measure(self, span: Span) -> TailMeasures:
        """Every measure of a span's end, in time linear in its tokens but for one sort of its n-grams."""
        return self._measure(span, PeriodFinder(span.tokens, self._vocabulary, self._limits))

    def _measure(self, span: Span, finder: PeriodFinder) -> TailMeasures:
        kind = structure(span.text, self._limits)
        return TailMeasures(
            finder.at_end(self._limits.least_period_tokens if kind else 0),
            self_repetition(span.tokens, self._limits),
            novelty(span, self._vocabulary, self._limits),
            kind,
            compression(span.text, self._limits),
            templated_lines(span.text, self._limits),
        )

    def fired(self, span: Span, kind: Kind, found: TailMeasures) -> list[Detector]:
        """The detectors that call the span's end a loop, each by its own rule and where it may judge, the deciding one first."""
        plain, limits = found.structure is None, self._limits
        told = {
            "exact_period": found.period is not None,
            "self_repetition": plain and found.repetition.looped(limits),
            "novelty8": plain and falls_to_the_end(found.novelty.counts, found.novelty.length, limits),
            "novelty8_digits": plain and self._templated(span, kind, found.novelty),
        }
        return [name for name in DETECTORS if told[name]]

    def loop_at_end(self, span: Span, kind: Kind, found: TailMeasures) -> Loop | None:
        """The loop in which the span ends, if it does."""
        fired = self.fired(span, kind, found)
        return Loop(fired[0], self._onset(span, fired[0], found), found.period) if fired else None

    def stretch(self, span: Span, kind: Kind) -> tuple[TailMeasures, Loop | None]:
        """The measures of a span's end, and a loop anywhere in it: the last of those that were left again, if it does not end in one."""
        finder = PeriodFinder(span.tokens, self._vocabulary, self._limits)
        found = self._measure(span, finder)
        loop = self.loop_at_end(span, kind, found)
        if loop is None:
            for end in self._likely_ends(span, found, finder):
                part = span.before(end)
                loop = self.loop_at_end(part, kind, self.measure(part))
                if loop is not None:
                    break
        return found, loop

    def _likely_ends(self, span: Span, found: TailMeasures, finder: PeriodFinder) -> Iterator[int]:
        """Tokens at which a loop may have been left, one or two of each detector: there the span is judged as if it ended."""
        limits = self._limits
        periodic = finder.ends(limits.period_tokens)
        yield from reversed(periodic[-1:] + periodic[:1])
        shares = moving_share(found.repetition.counts >= limits.earlier, tail_grams(limits))
        if shares.size and shares.max() >= limits.self_repetition:
            yield int(shares.argmax()) + limits.tail_tokens
        for counts in (found.novelty.counts, found.novelty.folded_counts):
            unit = lowest_end(counts, found.novelty.length, limits)
            if unit is not None:
                yield token_of_unit(span, found.novelty, unit)

    def _templated(self, span: Span, kind: Kind, found: Novelty) -> bool:
        """Reasoning and prose only: records of one shape are no loop, and neither is a song that counts."""
        if not falls_to_the_end(found.folded_counts, found.length, self._limits):
            return False
        if span.name == "reasoning":
            return True
        if kind not in ("prose", "reasoning"):
            return False
        if copies(found.folded_counts, self._limits) >= self._limits.templated_copies:
            return True
        onset = token_of_unit(span, found, onset_unit(found.folded_counts, found.length, self._limits))
        return len(span.tokens) - onset >= self._limits.templated_tokens

    def _onset(self, span: Span, detector: Detector, found: TailMeasures) -> int:
        if detector == "exact_period" and found.period is not None:
            return found.period.onset
        counts = found.novelty.folded_counts if detector == "novelty8_digits" else found.novelty.counts
        if detector == "self_repetition" and not falls_to_the_end(counts, found.novelty.length, self._limits):
            return repetition_onset(found.repetition)
        return token_of_unit(span, found.novelty, onset_unit(counts, found.novelty.length, self._limits))


def judge(reply: Reply, vocabulary: Vocabulary, thresholds: Thresholds | None = None) -> ReplyVerdict:
    """The class and the loop of a reply. Only the span in which an unfinished reply ended can be looped; in a finished one both are
    looked at. Raises EngcmpError for an unknown finish_reason.
    """
    limits = thresholds or Thresholds()
    judging, last = SpanJudge(vocabulary, limits), reply.last
    finish = finish_of(reply.finish_reason, has_text=bool(last.text))
    loop_span: str | None = last.name
    if finish in UNFINISHED:
        found = judging.measure(last)
        loop = judging.loop_at_end(last, reply.kind, found)
    else:
        found, loop = judging.stretch(last, reply.kind)
        if loop is None and last is reply.answer:
            _, loop = judging.stretch(reply.reasoning, reply.kind)
            loop_span = reply.reasoning.name
        finish = "recovered" if loop is not None else finish
    own = last is reply.answer and len(reply.reasoning.tokens)
    none = Missing("there is no answer beside a reasoning")
    return ReplyVerdict(
        reply.reply_id, finish, finish in UNFINISHED and loop is not None, loop, loop_span if loop is not None else None, found,
        restated(last.tokens, reply.reasoning.tokens, limits) if own else none,
        len(reply.reasoning.tokens), len(reply.reasoning.text), len(reply.answer.tokens), len(reply.answer.text),
        loop is not None or len(last.tokens) >= least_judged(limits),
    )  # fmt: skip


def least_judged(thresholds: Thresholds) -> int:
    """The tokens of a span from which on a detector other than `exact_period` may speak."""
    return thresholds.least_grams + thresholds.gram_tokens - 1


def repetition_onset(found: Repetition) -> int:
    """Where the suffix begins that holds as many more n-grams that stood before than new ones as any: the second copy."""
    gains = np.cumsum(np.where(found.counts[::-1] > 0, 1, -1))
    return len(gains) - 1 - int(gains.argmax())


def compression(text: str, thresholds: Thresholds) -> float | Missing:
    """The bytes of zlib over the UTF-8 bytes of the last 30,000 characters. Printed only: healthy JSON arrays read 0.03 to 0.15."""
    tail = text[-thresholds.compression_chars :].encode("utf-8", "surrogatepass")
    return len(zlib.compress(tail)) / len(tail) if tail else Missing("the span is empty")


def templated_lines(text: str, thresholds: Thresholds) -> float | Missing:
    """Share of the lines in the last 30,000 characters that equal another one once digits are 0. Printed only."""
    lines = [fold_digits(line.strip()) for line in text[-thresholds.compression_chars :].splitlines() if line.strip()]
    if not lines:
        return Missing("the span has no line")
    lines.sort()
    return sum(len(same) for _, group in itertools.groupby(lines) if len(same := list(group)) > 1) / len(lines)


def early_stop(verdicts: Sequence[tuple[int, Detector | None]], thresholds: Thresholds | None = None) -> bool:
    """Whether a stream is to be stopped: the verdicts so far, each with the characters of the span at which it was given, end in three
    verbatim or soft ones, each 10,000 characters or more after the one before. Templated text stops nothing.
    """
    limits = thresholds or Thresholds()
    looped: list[int] = []
    for chars, detector in verdicts:
        if detector is None or detector == "novelty8_digits":
            looped = []
        elif not looped or chars - looped[-1] >= limits.early_stop_chars:
            looped.append(chars)
    return len(looped) >= limits.early_stop_verdicts
