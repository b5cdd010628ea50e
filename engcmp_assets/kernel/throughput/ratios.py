"""Two arms over all cells: candidate / baseline of each figure, and what the noise band makes of it (MEASURES sections 5 and 6)."""

from __future__ import annotations

from dataclasses import dataclass

from engcmp_assets.kernel.measures import measure
from engcmp_assets.kernel.records import Interval, Missing
from engcmp_assets.kernel.throughput.bands import (
    ArmRuns,
    DeclaredBand,
    DriftRatio,
    NoBand,
    NoiseBand,
    drift_ratios,
    figure_value,
    noise_band,
    pair_drift,
    ratio_of,
)
from engcmp_assets.kernel.throughput.batches import ratio_interval
from engcmp_assets.kernel.throughput.labels import pair_labels
from engcmp_assets.kernel.uncertainty import PANEL, Preset

COMPARED = (
    "ttft_median_ms", "ttft_p90_ms", "ttfa_median_ms", "e2e_median_ms", "decode_tok_s", "clean_decode_tok_s",
    "aggregate_tok_s", "aggregate_steady_tok_s", "prefill_tok_s",
)  # fmt: skip
SCHEDULED = ("ttft_scheduled_median_ms", "ttft_scheduled_p90_ms")
"""What is compared of cells in an open loop beside it. In a closed loop a request is due when a place is free: that is no schedule."""
NOT_COMPARABLE = "not comparable"
_APART = ("faster", "slower")
_FIRST1 = {"decode_tok_s": "decode_first1_tok_s", "clean_decode_tok_s": "clean_decode_first1_tok_s"}
_FIRST1_LABEL = "first update taken as 1 token on both sides: {} gives neither token ids nor continuous usage"


@dataclass(frozen=True, slots=True)
class CellRatio:
    """One cell: candidate / baseline, the verdict, and what stands beside it.

    `measure` is the figure that was in fact divided; `drift` the repeats of each arm against its own first run; `of_repeats`
    candidate / baseline once more in each pair of repeats, in their order, and `words_of_repeats` what each of these would be called.
    """

    cell_id: str
    measure: str
    candidate: float | Missing
    baseline: float | Missing
    ratio: float | Missing
    verdict: str
    interval: Interval | Missing
    drift: tuple[DriftRatio, ...]
    labels: tuple[str, ...]
    of_repeats: tuple[float | Missing, ...] = ()
    words_of_repeats: tuple[str, ...] = ()

    @property
    def repeats_agree(self) -> bool:
        """Whether each repeat that has a ratio would be called as the cell is."""
        return all(word in (self.verdict, NOT_COMPARABLE) for word in self.words_of_repeats)


@dataclass(frozen=True, slots=True)
class MeasureRatios:
    """One figure over all cells of two arms. `counts` is by verdict word; `sentence` says it in words; `labels` are the band's."""

    measure: str
    better: str
    band: NoiseBand | NoBand
    cells: tuple[CellRatio, ...]
    counts: dict[str, int]
    sentence: str
    labels: tuple[str, ...]


def compare_arms(
    candidate: ArmRuns,
    baseline: ArmRuns,
    *,
    declared: DeclaredBand | None,
    measures: tuple[str, ...] = (*COMPARED, *SCHEDULED),
    preset: Preset = PANEL,
    level: float = 0.95,
) -> tuple[MeasureRatios, ...]:
    """Ratio, verdict, interval and drift of each of `measures` in every cell that either arm has.

    Those of SCHEDULED are of cells in an open loop alone, and left out where there is none. The verdicts of one figure share one band,
    which its own drift repeats check. Raises EngcmpError for a measure that nothing defines.
    """
    every = dict.fromkeys(name for side in (candidate, baseline) for name in side.main.cells)
    opened = [name for name in every if any(_is_open(side, name) for side in (candidate, baseline))]
    asked = [(name, opened if name in SCHEDULED else list(every)) for name in measures]
    return tuple(
        _of_measure(name, cells, (candidate, baseline), declared, preset, level)
        for name, cells in asked
        if cells or name not in SCHEDULED
    )


def _is_open(side: ArmRuns, cell_id: str) -> bool:
    return side.main.cells.get(cell_id, {}).get("loop") == "open"


def _of_measure(  # noqa: PLR0917 - each is a thing of its own
    measure_id: str,
    names: list[str],
    sides: tuple[ArmRuns, ArmRuns],
    declared: DeclaredBand | None,
    preset: Preset,
    level: float,
) -> MeasureRatios:
    better = measure(measure_id).better
    untold = _cannot_tell_the_first(sides) if measure_id in _FIRST1 else None
    divided = _FIRST1[measure_id] if untold else measure_id
    # The drift of other cells than these says nothing of them.
    drift = tuple(one for side in sides for one in drift_ratios(side, divided) if one.cell_id in names)
    band = noise_band(declared, sides, drift, tuple(one for one in pair_drift(sides, divided) if one.cell_id in names))
    cells = tuple(_cell(name, divided, sides, band=band, drift=drift, preset=preset, level=level) for name in names)
    counts: dict[str, int] = {}
    for one in cells:
        counts[one.verdict] = counts.get(one.verdict, 0) + 1
    labels = (band.reason,) if isinstance(band, NoBand) else band.labels
    labels += (_FIRST1_LABEL.format(untold),) if untold else ()
    return MeasureRatios(divided, better, band, cells, counts, _sentence(counts, band, cells), labels)


def _cannot_tell_the_first(sides: tuple[ArmRuns, ArmRuns]) -> str | None:
    """The arm of which some cell cannot say how many tokens its first update holds; None where both can."""
    for side in sides:
        if any(not cell["first_update_counted"] for run in (side.main, *side.repeats) for cell in run.cells.values()):
            return side.arm
    return None


def _cell(
    cell_id: str,
    measure_id: str,
    sides: tuple[ArmRuns, ArmRuns],
    *,
    band: NoiseBand | NoBand,
    drift: tuple[DriftRatio, ...],
    preset: Preset,
    level: float,
) -> CellRatio:
    upper, lower = (figure_value(side.main, cell_id, measure_id) for side in sides)
    ratio = ratio_of(upper, lower)
    own = tuple(one for one in drift if one.cell_id == cell_id)
    if isinstance(ratio, Missing):
        return CellRatio(cell_id, measure_id, upper, lower, ratio, NOT_COMPARABLE, ratio, own, (ratio.reason,))
    first, second = (side.main.cells[cell_id] for side in sides)
    labels = pair_labels(first, second, (sides[0].arm, sides[1].arm))
    better = measure(measure_id).better
    streams = [side.main.streams.get(cell_id) for side in sides]
    interval: Interval | Missing = Missing("the streams of the cell are not at hand")
    if streams[0] is not None and streams[1] is not None:
        interval = ratio_interval(streams[0], streams[1], measure_id, preset=preset, level=level)
    again = tuple(
        ratio_of(figure_value(one, cell_id, measure_id), figure_value(other, cell_id, measure_id))
        for one, other in zip(sides[0].repeats, sides[1].repeats, strict=False)
    )
    verdict, *words = (
        NOT_COMPARABLE if isinstance(one, Missing) else _verdict(one, better, band) for one in (ratio, *again)
    )
    return CellRatio(cell_id, measure_id, upper, lower, ratio, verdict, interval, own, labels, again, tuple(words))


def _verdict(ratio: float, better: str, band: NoiseBand | NoBand) -> str:
    if better == "neither":
        return "descriptive"
    if isinstance(band, NoBand):
        return band.verdict
    if band.low <= ratio <= band.high:
        return "level"
    return "faster" if (ratio > 1) == (better == "higher") else "slower"


def _sentence(counts: dict[str, int], band: NoiseBand | NoBand, cells: tuple[CellRatio, ...]) -> str:
    """As `19 faster, 3 level, 0 slower of 22; 1 not comparable; a later repeat of 2 does not agree`."""
    apart = counts.get(NOT_COMPARABLE, 0)
    compared = sum(counts.values()) - apart
    words = (
        f"{compared} {'cell' if compared == 1 else 'cells'}, {band.verdict}: {band.reason}"
        if isinstance(band, NoBand)
        else f"{', '.join(f'{counts.get(word, 0)} {word}' for word in ('faster', 'level', 'slower'))} of {compared}"
    )
    words += f"; {apart} {NOT_COMPARABLE}" if apart else ""
    apart = sum(not one.repeats_agree for one in cells if one.verdict in _APART)
    return f"{words}; a later repeat of {apart} does not agree" if apart else words
