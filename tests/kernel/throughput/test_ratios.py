"""Two arms over all cells: ratio, verdict, counts, and what stands beside them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from speed_cells import Stream, even, tables

from engcmp_assets.kernel.measures import measure
from engcmp_assets.kernel.records import Interval, Missing
from engcmp_assets.kernel.throughput.bands import ArmRuns, DeclaredBand, Run
from engcmp_assets.kernel.throughput.cells import cell_figures
from engcmp_assets.kernel.throughput.ratios import COMPARED, CellRatio, MeasureRatios, compare_arms
from engcmp_assets.kernel.throughput.streams import stream_table
from engcmp_assets.kernel.uncertainty import Preset

DECLARED = DeclaredBand(0.08, 3)
PRESET = Preset(200, 1)
ALLOWED = {"faster", "slower", "level", "not comparable", "descriptive", "no floor"}


def streams(gap: int, *, batches: int = 1, text: bool = False, **extra: Any) -> list[Stream]:
    """Batches of two streams; the decode rate is 1000 / `gap` tokens a second."""
    found = []
    for batch in range(batches):
        for place in range(2):
            one = even(f"{batch}-{place}", batch * 10_000, 100, gap, [1] * 9, batch=batch)
            told = {"counted_by": "text"} if text else {}
            found.append(replace(one, extra=told | extra))
    return found


def run(label: str, cells: dict[str, list[Stream]], hours: float = 0, *, keep: bool = False) -> Run:
    made = {name: tables(one) for name, one in cells.items()}
    return Run(
        label,
        {name: cell_figures(*both, {"cell_id": name, "concurrency": 2}) for name, both in made.items()},
        {name: stream_table(*both) for name, both in made.items()} if keep else {},
        hours * 3600,
    )


def arm(name: str, gaps: dict[str, int], *, repeated: bool = True, **more: Any) -> ArmRuns:
    cells = {cell: streams(gap, **more) for cell, gap in gaps.items()}
    repeats = (run(f"{name} again", cells, 4),) if repeated else ()
    return ArmRuns(name, run(f"{name} first", cells, keep=True), repeats)


def compared(candidate: ArmRuns, baseline: ArmRuns, measure_id: str, **more: Any) -> MeasureRatios:
    options = {"declared": DECLARED, "preset": PRESET} | more
    return compare_arms(candidate, baseline, measures=(measure_id,), **options)[0]


def verdicts(found: MeasureRatios) -> dict[str, str]:
    return {one.cell_id: one.verdict for one in found.cells}


BASE = {"a": 20, "b": 20, "c": 20}


def test_a_higher_decode_rate_is_faster_a_lower_one_slower_and_inside_the_band_level() -> None:
    found = compared(arm("cand", {"a": 10, "b": 40, "c": 20}), arm("base", BASE), "decode_tok_s")
    assert verdicts(found) == {"a": "faster", "b": "slower", "c": "level"}
    assert [one.ratio for one in found.cells] == [2.0, 0.5, 1.0]
    assert found.sentence == "1 faster, 1 level, 1 slower of 3"
    assert found.counts == {"faster": 1, "slower": 1, "level": 1}


def test_a_longer_latency_is_slower() -> None:
    found = compared(arm("cand", {"a": 10, "b": 40, "c": 20}), arm("base", BASE), "e2e_median_ms")
    assert verdicts(found) == {"a": "faster", "b": "slower", "c": "level"}
    assert measure("e2e_median_ms").better == "lower"


def test_swapping_the_arms_swaps_the_words_and_nothing_else() -> None:
    gaps = {"a": 10, "b": 40, "c": 21, "d": 19, "e": 22}
    candidate, baseline = arm("x", gaps), arm("y", dict.fromkeys(gaps, 20))
    there, back = (compared(*pair, "decode_tok_s") for pair in ((candidate, baseline), (baseline, candidate)))
    swap = {"faster": "slower", "slower": "faster", "level": "level"}
    assert {name: swap[word] for name, word in verdicts(there).items()} == verdicts(back)
    assert set(verdicts(there).values()) == {"faster", "slower", "level"}


def test_the_drift_repeats_own_ratios_stand_beside_each_cell_and_widen_the_band() -> None:
    candidate = arm("cand", {"a": 10, "b": 17})
    baseline = ArmRuns(
        "base", run("base first", {"a": streams(20), "b": streams(20)}), (run("again", {"a": streams(25)}, 4),)
    )
    found = compared(candidate, baseline, "decode_tok_s")
    assert [(one.arm, one.ratio) for one in found.cells[0].drift] == [("cand", 1.0), ("base", pytest.approx(0.8))]
    # 20/17 is outside ±8 % and inside the ±25 % that the baseline's own repeat shows.
    assert verdicts(found) == {"a": "faster", "b": "level"}
    assert "±25.0%, the widest of them, is used" in found.labels[0]
    # 10 ms against 25 ms once more; the repeats hold no cell b.
    assert found.cells[0].of_repeats == (2.5,)
    assert found.cells[1].of_repeats == (Missing("again has no cell b"),)


def repeated(name: str, first: dict[str, int], again: dict[str, int]) -> ArmRuns:
    """An arm whose repeat has other gaps."""
    cells, later = ({cell: streams(gap) for cell, gap in gaps.items()} for gaps in (first, again))
    return ArmRuns(name, run(f"{name} first", cells, keep=True), (run(f"{name} again", later, 4),))


def test_two_arms_that_drift_apart_widen_the_band_by_as_much_as_their_ratio_does() -> None:
    candidate, baseline = repeated("cand", {"a": 100}, {"a": 110}), repeated("base", {"a": 120}, {"a": 109})
    found = compared(candidate, baseline, "decode_tok_s")
    # Each arm's own repeat lies within 10.1 %, and 1.2 would be faster by that: the repeats' ratio is 0.99.
    assert max(abs(one.ratio - 1) for one in found.cells[0].drift) < 0.102
    assert found.cells[0].of_repeats == (pytest.approx(109 / 110),)
    assert verdicts(found) == {"a": "level"}
    assert "±21.1%, the widest of them, is used" in found.labels[0]


def test_a_repeat_that_does_not_agree_is_told_and_counted() -> None:
    first, again = {"a": 100, "b": 100}, {"a": 100, "b": 118}
    candidate = repeated("cand", first, again)
    found = compared(candidate, arm("base", {"a": 200, "b": 125}), "decode_tok_s")
    assert verdicts(found) == {"a": "faster", "b": "faster"}
    assert [one.words_of_repeats for one in found.cells] == [("faster",), ("level",)]
    assert [one.repeats_agree for one in found.cells] == [True, False]
    assert found.sentence == "2 faster, 0 level, 0 slower of 2; a later repeat of 1 does not agree"


def test_without_a_checked_band_no_cell_is_level_faster_or_slower() -> None:
    candidate, baseline = arm("cand", {"a": 10}, repeated=False), arm("base", {"a": 20})
    found = compared(candidate, baseline, "decode_tok_s")
    assert verdicts(found) == {"a": "no floor"}
    assert found.sentence == "1 cell, no floor: the declared band was not checked: no drift repeat of cand"
    undeclared = compared(candidate, baseline, "decode_tok_s", declared=None)
    assert verdicts(undeclared) == {"a": "descriptive"}
    assert found.cells[0].ratio == undeclared.cells[0].ratio == 2.0


def test_an_incomplete_cell_and_one_that_an_arm_lacks_are_not_comparable_with_their_reason() -> None:
    good, bad = streams(10), streams(10)
    bad[0] = replace(bad[0], extra={"status": "incomplete", "cause": "cut_clean"})
    candidate = ArmRuns("cand", run("cand", {"a": good, "b": bad}), (run("cand again", {"a": good}, 4),))
    found = compared(candidate, arm("base", {"a": 20, "b": 20, "c": 20}), "decode_tok_s")
    assert verdicts(found) == {"a": "faster", "b": "not comparable", "c": "not comparable"}
    assert found.cells[1].ratio == Missing("cand is incomplete: 1 of 2 requests failed (cut_clean)")
    assert found.cells[2].labels == ("cand has no cell c",)
    assert found.sentence == "1 faster, 0 level, 0 slower of 1; 2 not comparable"


def limited(one: Run, *cells: str) -> Run:
    """The run with the client at its limit in those cells."""
    return replace(
        one,
        cells={name: cell | ({"client": {"limit": True}} if name in cells else {}) for name, cell in one.cells.items()},
    )


def test_where_the_client_was_the_limit_nothing_is_called_faster_and_no_repeat_widens_the_band() -> None:
    candidate, baseline = repeated("cand", {"a": 10, "b": 10}, {"a": 10, "b": 90}), arm("base", {"a": 20, "b": 20})
    assert verdicts(compared(candidate, baseline, "decode_tok_s")) == {"a": "level", "b": "level"}
    late = replace(candidate, repeats=(limited(candidate.repeats[0], "b"),))
    found = compared(late, baseline, "decode_tok_s")
    assert verdicts(found) == {"a": "faster", "b": "faster"}
    reason = "the client was the limit, the times are not the server's alone"
    assert found.cells[1].of_repeats == (Missing(f"cand again: {reason}"),)
    assert [one.arm for one in found.cells[1].drift] == ["base"]
    found = compared(replace(late, main=limited(late.main, "a")), baseline, "decode_tok_s")
    # No repeat of the candidate can be held against its first run then: not the limited one of b, not the limited first of a.
    assert verdicts(found) == {"a": "not comparable", "b": "no floor"}
    assert found.cells[0].ratio == Missing(f"cand first: {reason}")
    assert found.labels == ("the declared band was not checked: no drift repeat of cand that can be compared",)


def test_where_one_engine_cannot_tell_its_first_update_both_sides_take_one_token_and_steady_figures_are_missing() -> (
    None
):
    bundled = {"a": [even("x", 0, 100, 20, [5, 1, 1, 1, 1])]}
    exact = ArmRuns("exact", run("exact", bundled), (run("exact again", bundled, 4),))
    found = compared(arm("texty", {"a": 20}, text=True), exact, "decode_tok_s")
    assert found.measure == "decode_first1_tok_s"
    assert found.labels[-1].startswith("first update taken as 1 token on both sides: texty")
    assert found.cells[0].baseline == pytest.approx(8 / 0.08)
    steady = compared(arm("texty", {"a": 20}, text=True), exact, "aggregate_steady_tok_s")
    assert verdicts(steady) == {"a": "not comparable"}
    # A repeat alone that cannot tell sets the rule too: its drift must be of the same figure.
    once = replace(exact, repeats=(run("exact again", {"a": streams(20, text=True)}, 4),))
    assert compared(once, exact, "decode_tok_s").measure == "decode_first1_tok_s"
    both = compared(exact, exact, "decode_tok_s")
    assert both.measure == "decode_tok_s" and both.cells[0].baseline == pytest.approx(4 / 0.08)


def test_an_interval_stands_beside_cells_of_eight_batches_and_a_reason_beside_others() -> None:
    def two(name: str, gap: int) -> ArmRuns:
        return ArmRuns(name, run(name, {"few": streams(gap), "many": streams(gap, batches=8)}, keep=True))

    few, many = compared(two("cand", 10), two("base", 20), "decode_tok_s").cells
    assert few.interval == Missing("1 batch has a value on both arms: an interval needs at least 8")
    assert isinstance(many.interval, Interval) and (many.interval.low, many.interval.high) == (2, 2)
    bare = ArmRuns("cand", Run("cand", two("cand", 10).main.cells))
    assert compared(bare, two("base", 20), "decode_tok_s").cells[1].interval == Missing(
        "the streams of the cell are not at hand"
    )


def labels(candidate: list[Stream], baseline: list[Stream]) -> tuple[str, ...]:
    found: CellRatio = compared(
        ArmRuns("cand", run("cand", {"a": candidate})), ArmRuns("base", run("base", {"a": baseline})), "decode_tok_s"
    ).cells[0]
    return found.labels


def test_a_pair_that_did_the_same_work_has_no_label() -> None:
    assert labels(streams(10), streams(20)) == ()


def test_labels_carry_what_the_cell_s_name_promises_and_was_not_measured() -> None:
    thinking = [
        replace(one, events=tuple((t, "reasoning" if kind == "answer" else kind, n) for t, kind, n in one.events),
                extra={"ttfa_ns": None})
        for one in streams(10)
    ]  # fmt: skip
    assert labels(thinking, streams(20)) == (
        "cand: 0 of 2 replies left the reasoning span: the rest is reasoning about the prompt, not the answer",
    )
    short = [even(f"0-{place}", 0, 100, 10, [1] * 5, batch=0) for place in range(2)]
    stopped = [replace(one, extra={"finish_reason": "stop"}) for one in short]
    assert labels(stopped, streams(20)) == (
        "the replies hold 10 tokens on cand and 18 on base: not the same work",
        "replies ended differently (cand: 2 stop; base: 2 length)",
    )
    bundled = [even(f"0-{place}", 0, 100, 10, [3, 3, 3], batch=0) for place in range(2)]
    assert labels(bundled, streams(20)) == (
        "3 against 1 tokens an update, so first token times and gaps are not of the same thing",
    )
    wide = [replace(one, extra={"characters": 72}) for one in streams(10)]
    assert labels(wide, streams(20)) == ("8 against 4 characters a token",)
    assert labels(streams(10, cached_tokens=50), streams(20)) == ("cand: cached prompt tokens (2 of 2 requests)",)


def test_every_verdict_is_a_word_of_the_closed_list_and_every_measure_has_a_better_side() -> None:
    every = compare_arms(arm("cand", {"a": 10}), arm("base", {"a": 20}), declared=DECLARED, preset=PRESET)
    assert [one.measure for one in every] == list(COMPARED)
    assert {cell.verdict for one in every for cell in one.cells} <= ALLOWED
    assert {one.better for one in every} == {"lower", "higher"}


def paced(name: str, waited: dict[str, int], *, drift: int = 0, loop: str = "open") -> ArmRuns:
    """An arm whose requests went out `waited` ms after they were due, `drift` ms more in its repeat; each has its first token 100 ms on.

    Its cell `closed` is of a closed loop, and drifts much more.
    """

    def once(label: str, more: int) -> Run:
        cells, streams_of = {}, {}
        for cell, late in (waited | {"closed": 0}).items():
            sent = [even(f"{cell}-{n}", 1_000 + 500 * n, 100, 10, [1] * 5) for n in range(3)]
            wait = late + more * (9 if cell == "closed" else 1)
            due = [replace(one, extra={"scheduled_at_ns": one.t0 - wait * 1_000_000}) for one in sent]
            known = {"cell_id": cell, "concurrency": 3, "loop": "closed" if cell == "closed" else loop}
            cells[cell] = cell_figures(*tables(due), known) | {"loop": known["loop"]}
            streams_of[cell] = stream_table(*tables(due))
        return Run(label, cells, streams_of, 3600.0 * (1 + 4 * bool(more)))

    return ArmRuns(name, once(f"{name} first", 0), (once(f"{name} again", drift or 1),))


def test_latency_from_the_schedule_is_compared_in_open_loops_so_that_a_late_client_is_not_hidden() -> None:
    found = {one.measure: one for one in compare_arms(
        paced("cand", {"r2": 100, "r4": 0}), paced("base", {"r2": 0, "r4": 0}), declared=DECLARED, preset=PRESET
    )}  # fmt: skip
    due = found["ttft_scheduled_median_ms"]
    assert verdicts(due) == {"r2": "slower", "r4": "level"}, "nothing of the closed cell"
    assert [one.ratio for one in due.cells] == [2.0, 1.0]
    assert due.sentence == "0 faster, 1 level, 1 slower of 2"
    # Counted from the sending alone, the two arms do not differ.
    assert set(verdicts(found["ttft_median_ms"]).values()) == {"level"} and len(found["ttft_median_ms"].cells) == 3
    assert verdicts(found["ttft_scheduled_p90_ms"]) == {"r2": "slower", "r4": "level"}


def test_the_band_of_a_latency_from_the_schedule_is_that_of_open_cells_alone() -> None:
    (due,) = compare_arms(
        paced("cand", {"r2": 0}, drift=50), paced("base", {"r2": 0}), declared=DECLARED, preset=PRESET,
        measures=("ttft_scheduled_median_ms",),
    )  # fmt: skip
    assert {one.cell_id for cell in due.cells for one in cell.drift} == {"r2"}
    assert "±50.0%, the widest of them, is used" in due.labels[0]


def test_without_an_open_loop_no_latency_from_a_schedule_is_compared() -> None:
    sides = (paced("cand", {"c2": 100}, loop="closed"), paced("base", {"c2": 0}, loop="closed"))
    assert [one.measure for one in compare_arms(*sides, declared=DECLARED, preset=PRESET)] == list(COMPARED)


def test_a_measure_without_a_better_side_is_descriptive() -> None:
    assert verdicts(compared(arm("cand", {"a": 10}), arm("base", {"a": 20}), "prefill_share")) == {"a": "descriptive"}
