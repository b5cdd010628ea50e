"""Lengths of two arms under one cap: what is told of them (MEASURES section 7, length ratio)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engcmp_assets.kernel.reply_lengths.censored_fit import LENGTHS, LengthRatio, length_ratio
from engcmp_assets.kernel.reply_lengths.paired import SignTest, longer_on_decided, mcnemar_capped
from engcmp_assets.kernel.reply_lengths.records import AS_CAPPED, PairedLengths, ReplyLength, pair_up
from engcmp_assets.kernel.reply_lengths.under_cap import UnderCap, under_the_cap
from engcmp_assets.kernel.uncertainty import Preset


@dataclass(frozen=True, slots=True)
class LengthTests:
    """One way to count: the pairs, whether more replies were capped, which are longer, and by how much."""

    lengths: PairedLengths
    capped: SignTest
    longer: SignTest
    ratio: LengthRatio
    under_cap: UnderCap


@dataclass(frozen=True, slots=True)
class LengthComparison:
    """Candidate against baseline. `main` leaves looped, stopped-early, failed and empty replies out; `sensitivity` counts the first three
    as capped. A claim that holds only in one of them rests on what is done with such replies.
    """

    main: LengthTests
    sensitivity: LengthTests


def compare_lengths(
    baseline: Sequence[ReplyLength],
    candidate: Sequence[ReplyLength],
    cap: int,
    *,
    preset: Preset = LENGTHS,
    level: float = 0.95,
) -> LengthComparison:
    """Both arms' replies to the same prompts under one `cap` in tokens; seeds are never paired. Raises EngcmpError as pair_up does."""
    main = _tests(pair_up(baseline, candidate, cap), preset, level)
    if not any(reply.ending in AS_CAPPED for reply in (*baseline, *candidate)):
        return LengthComparison(main, main)
    return LengthComparison(main, _tests(pair_up(baseline, candidate, cap, as_capped=True), preset, level))


def _tests(lengths: PairedLengths, preset: Preset, level: float) -> LengthTests:
    ratio = length_ratio(lengths, preset=preset, level=level)
    return LengthTests(lengths, mcnemar_capped(lengths), longer_on_decided(lengths), ratio, under_the_cap(lengths))
