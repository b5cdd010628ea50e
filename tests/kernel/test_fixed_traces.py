"""The fixed-trace instrument: positions, probabilities of the end token with bounds, differences between engines."""

import math

import numpy as np
import pytest

from engcmp_assets.kernel.fixed_traces import (
    EndLogProb,
    FrozenTrace,
    TracePosition,
    bounded_share,
    choose_positions,
    end_differences,
    from_full_rows,
    from_top_rows,
    sentence_ends,
    trace_window,
)
from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.uncertainty import Preset
from engcmp_resources.errors import EngcmpError

END = 7
FEW = Preset(replicates=400, seed=1)


def trace(size: int = 200, name: str = "t1", markers: int = 1) -> FrozenTrace:
    return FrozenTrace(name, (*range(100, 100 + size), *([END] * markers)), thinking_at=20, end_at=size)


def pieces_of(found: FrozenTrace, every: int = 10) -> list[str]:
    return [" end." if index % every == every - 1 else " Word" for index in range(len(found.tokens))]


@pytest.mark.parametrize(
    ("pieces", "ends"),
    [
        (["So", " it", " is", ".", " Then"], [3]),
        (["Is", " it", "?", "\n\n", "No", "!"], [2, 3, 5]),
        ([" 3", ".", "14", " is", " pi", ".\n"], [5]),
        ([" e", ".g", ".", " tea"], []),
        (["wait", "...", " no", "."], [3]),
        (["他", "说", "。", "然后", "!"], [2, 4]),
        ([" (done", ".)", " Next"], [1]),
    ],
)
def test_sentences_end_where_a_reader_would_say_so(pieces: list[str], ends: list[int]) -> None:
    assert sentence_ends(pieces) == ends


def test_positions_are_sentence_ends_other_rows_and_the_true_end_apart() -> None:
    found = trace()
    positions = choose_positions(found, pieces_of(found), sentence_ends_kept=8, random_kept=12, seed=3)
    kinds = [one.kind for one in positions]
    assert (kinds.count("sentence_end"), kinds.count("random"), kinds.count("true_end")) == (8, 12, 1)
    rows = [one.row for one in positions]
    assert len(set(rows)) == 21
    assert min(rows) >= found.thinking_at
    assert [one.row for one in positions if one.kind == "true_end"] == [found.end_at - 1]
    assert all(one.row % 10 == 9 for one in positions if one.kind == "sentence_end")
    assert not any(one.row % 10 == 9 for one in positions if one.kind == "random")


def test_the_draw_follows_from_the_seed_and_the_trace() -> None:
    found = trace()
    asked = {"sentence_ends_kept": 5, "random_kept": 5}
    first, again, other = (choose_positions(found, pieces_of(found), seed=seed, **asked) for seed in (3, 3, 4))
    assert first == again != other
    apart = trace(name="t2")
    rows = [one.row for one in choose_positions(apart, pieces_of(apart), seed=3, **asked)]
    assert rows != [one.row for one in first]


def test_a_short_trace_gives_what_it_has() -> None:
    found = FrozenTrace("s", (1, 2, 3, END), thinking_at=1, end_at=3)
    positions = choose_positions(found, ["a", " b", " c", "</think>"], sentence_ends_kept=9, random_kept=9, seed=1)
    assert [(one.row, one.kind) for one in positions] == [(1, "random"), (2, "true_end")]


def test_a_trace_is_a_window_whose_last_row_predicts_the_marker() -> None:
    found = trace(markers=3)
    positions = choose_positions(found, pieces_of(found), sentence_ends_kept=2, random_kept=2, seed=1)
    window = trace_window(found, positions)
    assert window.next_tokens[-1] == END == found.end_token
    assert window.cluster == "t1"
    assert found.label == "the first of the 3 tokens of the end marker"
    assert trace().label is None


@pytest.mark.parametrize(("start", "end"), [(0, 5), (5, 5), (6, 5), (1, 11)])
def test_a_trace_without_prompt_thinking_or_marker_is_refused(start: int, end: int) -> None:
    with pytest.raises(EngcmpError, match="keep the prompt, at least one token of thinking, and the end marker"):
        FrozenTrace("x", tuple(range(11)), thinking_at=start, end_at=end)


def test_whole_rows_of_logits_or_of_log_probs_give_the_same() -> None:
    logits = np.random.default_rng(1).normal(0, 4, (6, 50)).astype(np.float32)
    logs = logits.astype(np.float64) - np.log(np.exp(logits.astype(np.float64)).sum(axis=1, keepdims=True))
    for one, other, row in zip(from_full_rows(logits, 9), from_full_rows(logs, 9), logs, strict=True):
        assert not one.bound
        assert one.value == pytest.approx(row[9], abs=1e-6)
        assert other.value == pytest.approx(row[9], abs=1e-9)


def top_of(logs: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    ids = np.argsort(-logs, axis=1)[:, :k]
    return ids, np.take_along_axis(logs, ids, axis=1)


def test_top_rows_are_exact_where_they_hold_the_token_and_a_bound_above_the_truth_elsewhere() -> None:
    rng = np.random.default_rng(2)
    logits = rng.normal(0, 2, (400, 60))
    logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    ids, values = top_of(logs, 10)
    nexts = rng.integers(0, 60, 400)
    found = from_top_rows(
        ids, values, END, next_tokens=nexts.tolist(), next_log_probs=logs[np.arange(400), nexts].tolist()
    )
    exact = (ids == END).any(axis=1) | (nexts == END)
    assert 20 < exact.sum() < 380
    for one, row, is_exact in zip(found, logs, exact, strict=True):
        assert one.bound == (not is_exact)
        assert one.value == pytest.approx(row[END]) if is_exact else one.value >= row[END]
    assert bounded_share(found) == pytest.approx(1 - exact.mean())


def test_a_bound_is_never_0_and_uses_what_the_top_leaves() -> None:
    logs = np.log(np.array([[0.6, 0.39, 0.005]]))
    (found,) = from_top_rows(np.array([[1, 2, 3]]), logs, END, next_tokens=[1], next_log_probs=[logs[0, 0]])
    assert found == EndLogProb(pytest.approx(math.log(0.005)), bound=True)
    logs = np.log(np.array([[0.6, 0.39, 0.009]]))
    (found,) = from_top_rows(np.array([[1, 2, 3]]), logs, END, next_tokens=[1], next_log_probs=[logs[0, 0]])
    assert found == EndLogProb(pytest.approx(math.log(0.001)), bound=True)


def test_values_that_no_engine_computes_are_refused() -> None:
    with pytest.raises(EngcmpError, match=r"row 0: -9999\.0 is no log-probability"):
        from_top_rows(np.array([[END]]), np.array([[-9999.0]]), END, next_tokens=[1], next_log_probs=[-1.0])
    with pytest.raises(EngcmpError, match="row 1: -inf is no log-probability"):
        from_full_rows(np.array([[0.0, 0.0], [0.0, -np.inf]]), 1)
    with pytest.raises(EngcmpError, match=r"its top 2 add up to 1\.2"):
        from_top_rows(np.array([[1, 2]]), np.log([[0.7, 0.5]]), END, next_tokens=[1], next_log_probs=[-1.0])


def measured(
    shift: float, *, traces: int = 12, hidden: float = -99.0, seed: int = 5
) -> dict[TracePosition, EndLogProb]:
    """An engine whose log-probabilities lie `shift` above; those below `hidden` are only bounded by it."""
    rng = np.random.default_rng(seed)
    found = {}
    for number in range(traces):
        for row in range(30):
            kind = "true_end" if row == 29 else "sentence_end" if row % 3 == 0 else "random"
            value = float(rng.normal(-6, 1)) + shift
            one = EndLogProb(hidden, bound=True) if value < hidden else EndLogProb(value)
            found[TracePosition(f"t{number}", row, kind)] = one
    return found


def test_a_shift_is_found_at_each_kind_of_position() -> None:
    noise = {place: EndLogProb(one.value + 0.01 * (place.row % 5 - 2)) for place, one in measured(0.25).items()}
    for found in end_differences(measured(0.0), noise, preset=FEW):
        assert found.exact == found.positions == {"sentence_end": 120, "random": 228, "true_end": 12}[found.kind]
        assert found.log_prob.value == pytest.approx(0.25, abs=0.03)
        assert not isinstance(found.log_prob.interval, Missing)
        assert found.log_prob.interval.low > 0
        assert found.lowest.value == found.highest.value > 0


def test_bounded_positions_widen_the_range_of_the_difference_in_probability() -> None:
    full = end_differences(measured(0.0), measured(0.25), preset=FEW)[1]
    cut = end_differences(measured(0.0, hidden=-6.5), measured(0.25, hidden=-6.5), preset=FEW)[1]
    assert cut.bounded_baseline > cut.bounded_candidate > 0
    assert cut.exact < full.exact == cut.positions
    assert float(cut.lowest.value) < float(full.lowest.value) < float(cut.highest.value)


def test_a_position_of_one_engine_only_is_refused() -> None:
    second = measured(0.0)
    del second[TracePosition("t3", 4, "random")]
    with pytest.raises(EngcmpError, match="1 positions are of one engine only, first row 4 of trace t3"):
        end_differences(measured(0.0), second, preset=FEW)


def test_no_position_is_missing_not_0() -> None:
    assert isinstance(end_differences({}, {}, preset=FEW)[0].log_prob.value, Missing)
    assert isinstance(bounded_share([]), Missing)
