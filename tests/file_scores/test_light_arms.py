"""Arms of light rows beside full ones: exact answers, on every kind of reference, and what they cannot give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from made import Made, answers, kl_pair20, kl_top20, made, pair_kl, stored, with_topk_reference
from test_reading import same, scored
from writing import save_dump, save_teacher

from engcmp_assets.file_scores import reading
from engcmp_assets.kernel.light_measures import light_rows, score_light_topk
from engcmp_assets.kernel.topk_measures import topk_of
from engcmp_resources.errors import EngcmpError

V = 33
Write = Callable[[Made, str], None]
PAIRS = (("A", "B"), ("B", "A"), ("A", "C"))


def written(folder: Path, reference: str = "full") -> Made:
    """A panel with a full arm A and light arms B and C."""
    one = made(folder, vocab=V, reference=reference, sides=("reference", "A", "B", "C"))
    if reference == "topk":
        with_topk_reference(one, 24)
    else:
        one.write("reference")
    one.write("A")
    one.write_light("B")
    one.write_light("C", each=True)
    return one


def test_every_measure_of_a_light_arm_agrees_with_an_exact_oracle(tmp_path: Path) -> None:
    one = written(tmp_path)
    found = scored(one, "A", "B", "C")
    for arm in "ABC":
        for number, ((p, token), (q, _)) in enumerate(zip(one.column("reference"), one.column(arm), strict=True)):
            right = answers(p, q, token) | {"kl_top20": kl_top20(p, q), "rest_is_floor": 0.0}
            own = set(right) if arm == "A" else set(right) - {"kl_full", "entropy", "excess_entropy"}
            assert set(found.measures[arm]) == own
            for name in own:
                assert found.measures[arm][name][number] == pytest.approx(right[name], rel=1e-10, abs=1e-13), name
    assert set(found.lacking["B"]) == {"kl_full", "entropy", "excess_entropy", "entropy_ratio"}
    assert found.lacking["A"] == {} and "whole row is needed" in found.lacking["B"]["kl_full"].reason
    assert next(iter(found.measures["A"])) == "kl_full" and next(iter(found.measures["B"])) == "kl_top20"


@pytest.mark.parametrize("reference", ["full", "topk", "none"])
def test_pairs_are_of_the_ids_that_both_list_and_a_full_arm_is_reduced(tmp_path: Path, reference: str) -> None:
    one = written(tmp_path, reference)
    found = scored(one, "A", "B", "C", pairs=PAIRS)
    for a, b in PAIRS:
        rows = zip(one.column(a), one.column(b), strict=True)
        right = [kl_pair20(x, y) for (x, _), (y, _) in rows]
        own = {"kl_pair20", "rest_is_floor"} | ({"kept_equal"} if "A" not in (a, b) else set())
        assert set(found.pairs[(a, b)]) == own
        assert found.pairs[(a, b)]["kl_pair20"] == pytest.approx(right, rel=1e-10, abs=1e-13)
        lost = found.not_of_pair[(a, b)]
        assert "rows_bit_identical" in lost and ("kl_pair_coarse" if reference == "topk" else "kl_pair_full") in lost


def test_two_full_arms_beside_a_light_one_have_both_distances(tmp_path: Path) -> None:
    one = written(tmp_path)
    one.rows["D"] = one.rows["B"]
    one.write("D")
    found = scored(one, "A", "D", "C", pairs=(("A", "D"),)).pairs[("A", "D")]
    rows = list(zip(one.column("A"), one.column("D"), strict=True))
    assert found["kl_pair20"] == pytest.approx([kl_pair20(x, y) for (x, _), (y, _) in rows], rel=1e-10, abs=1e-13)
    assert (found["kl_pair20"] <= found["kl_pair_full"] + 1e-13).all()
    both = [(pair_kl(x, y) + pair_kl(y, x)) / 2 for (x, _), (y, _) in rows]
    assert found["kl_pair_full_symmetric"] == pytest.approx(both, rel=1e-12, abs=1e-14)


def test_the_other_direction_of_a_pair_may_be_infinite_and_then_has_a_reason(tmp_path: Path) -> None:
    one = made(tmp_path, reference="none")
    unused = min(set(range(11)) - set(one.windows[0]["tokens"]))
    one.rows["A"]["w0"][2, unused] = -np.inf
    one.write("A")
    one.write("B")
    found = scored(one, "A", "B", pairs=(("A", "B"),))
    assert set(found.pairs[("A", "B")]) == {"kl_pair_full", "rows_bit_identical"}
    reason = found.not_of_pair[("A", "B")]["kl_pair_full_symmetric"].reason
    assert "the first's probability is 0 where the second's is not" in reason


def test_a_top_k_reference_scores_light_arms_as_its_own_function_does(tmp_path: Path) -> None:
    one = written(tmp_path, "topk")
    found = scored(one, "A", "B")
    p, tokens = (np.array(values) for values in zip(*one.column("reference"), strict=True))
    stored = topk_of(p, tokens, 24, where="all")
    q = np.array([row for row, _ in one.column("B")], dtype=np.float64)
    log_q = q - np.logaddexp.reduce(q, axis=1, keepdims=True)
    ids = np.argsort(-q, axis=1, kind="stable")[:, :20]
    rows = light_rows(
        ids, np.take_along_axis(log_q, ids, axis=1), log_q[np.arange(len(q)), tokens], tokens, vocab=V, where="all"
    )
    right, floors = score_light_topk(stored, rows, tokens, where="all")
    assert set(found.measures["B"]) == {*right, "rest_is_floor"} and not floors.any()
    for name, values in right.items():
        assert found.measures["B"][name] == pytest.approx(values, rel=1e-9, abs=1e-12), name
    assert {"kl_pb20", "nll", "top1", "agree_text", "top3_contained"} <= set(found.measures["A"]) & set(right)
    assert set(found.lacking["B"]) == {"kl_coarse", "entropy", "excess_entropy_at_most"}


def test_a_panel_without_a_reference_holds_light_arms_against_each_other(tmp_path: Path) -> None:
    one = written(tmp_path, "none")
    found = scored(one, "B", "C", pairs=(("B", "C"),))
    assert set(found.measures["B"]) == {"nll", "agree_text"} and set(found.lacking["B"]) == {"entropy"}
    right = [answers(q, q, token) for q, token in one.column("B")]
    assert found.measures["B"]["nll"] == pytest.approx([each["nll"] for each in right], rel=1e-12)
    assert found.measures["B"]["agree_text"].tolist() == [each["agree_text"] for each in right]


def test_a_row_s_sum_that_leaves_no_rest_is_marked(tmp_path: Path) -> None:
    one = made(tmp_path, vocab=V)
    one.write("reference")
    columns = one.light("A")
    above = [np.log(np.full(20, 0.05) + 1e-8).tolist() for _ in columns["position"]]
    sure = [own[0] for own in above]
    one.write_light("A", top_log_probs=above, next_token_log_prob=sure)
    found = scored(one, "A").measures["A"]
    assert found["rest_is_floor"].all() and (found["kl_top20"] > 0).all()


def test_files_order_threads_and_turns_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = written(tmp_path)
    first = scored(one, "A", "B", "C", pairs=PAIRS)
    assert same(first, scored(one, "A", "B", "C", pairs=PAIRS, jobs=2))
    monkeypatch.setattr(reading, "_TURN_BYTES", 1)  # a row a turn
    assert same(first, scored(one, "A", "B", "C", pairs=PAIRS, jobs=2))
    columns = one.light("B")
    mixed = np.random.default_rng(3).permutation(len(columns["position"]))
    one.write_light("B", **{name: [values[row] for row in mixed] for name, values in columns.items()})
    for path in (one.folder / "C").iterdir():
        path.unlink()
    one.write_light("C")
    assert same(first, scored(one, "A", "B", "C", pairs=PAIRS))


def test_arms_scored_together_read_what_each_reads_alone(tmp_path: Path) -> None:
    one = written(tmp_path)
    together = scored(one, "A", "B", "C")
    for arm in "ABC":
        alone = scored(one, arm).measures[arm]
        assert all(np.array_equal(together.measures[arm][name], values) for name, values in alone.items())


def test_positions_of_the_predicted_tokens_are_read_as_such(tmp_path: Path) -> None:
    one = written(tmp_path)
    first = scored(one, "B")
    columns = one.light("B")
    one.write_light("B", position=[position + 1 for position in columns["position"]])
    assert same(first, scored(one, "B"))


@pytest.mark.parametrize("shift", [-1, 1])
def test_light_rows_of_the_token_before_or_after_are_refused(tmp_path: Path, shift: int) -> None:
    one = made(tmp_path, windows=4, tokens=60, vocab=V)
    for window in one.windows:  # an engine that knows the text
        following = np.array(window["tokens"][1:])
        for side in ("reference", "A"):
            one.rows[side][window["window_id"]][np.arange(59), following] += 12
    one.write("reference")
    one.write_light("A")
    assert scored(one, "A").alignment["A"].verdict == "aligned"
    one.write_light("A", shift=shift)
    with pytest.raises(EngcmpError, match=r"arm A: its rows are not those of its tokens: .*folder .*/A"):
        scored(one, "A")


def test_a_bad_light_row_is_named_with_its_arm_file_window_and_position(tmp_path: Path) -> None:
    one = written(tmp_path)
    columns = one.light("B")
    row = columns["position"].index(6, columns["window_id"].index("w1"))
    columns["top_log_probs"][row] = [value + 0.1 for value in columns["top_log_probs"][row]]
    one.write_light("B", **columns)
    said = r"window w1, the row at position 6: .*(top 20 sum to more than 1|another log-probability).*arm B, file .*/B/rows.parquet"
    with pytest.raises(EngcmpError, match=said):
        scored(one, "B")


def test_a_reference_must_not_be_light(tmp_path: Path) -> None:
    one = made(tmp_path, vocab=V)
    one.write("A")
    one.write_light("reference")
    with pytest.raises(EngcmpError, match="window w0: light rows, full ones are needed"):
        scored(one, "A")
    one.document["reference"] = "topk"
    one.write_panel()
    with pytest.raises(EngcmpError, match="window w0: light rows, top-K ones are needed"):
        scored(one, "A")


def as_full(one: Made, side: str) -> None:
    one.write(side)


def as_bfloat16(one: Made, side: str) -> None:
    one.write(side, "BF16")


def as_teacher(one: Made, side: str) -> None:
    for window in one.windows:
        name = window["window_id"]
        save_teacher(one.folder / side, name, window["tokens"], one.rows[side][name])


def as_dump(one: Made, side: str) -> None:
    for window in one.windows:
        rows = one.rows[side][window["window_id"]]
        save_dump(one.folder / side / f"probe-{window['window_id']}-1", rows, range(1, len(rows) + 1))


def as_light(one: Made, side: str) -> None:
    one.write_light(side)


LAYOUTS = (as_full, as_bfloat16, as_teacher, as_dump, as_light)


@pytest.mark.parametrize("first", LAYOUTS, ids=lambda how: how.__name__)
@pytest.mark.parametrize("second", LAYOUTS, ids=lambda how: how.__name__)
def test_engine_against_engine_needs_no_reference_in_any_layout(tmp_path: Path, first: Write, second: Write) -> None:
    one = made(tmp_path, vocab=V, reference="none")
    first(one, "A")
    second(one, "B")
    found = scored(one, "A", "B", pairs=(("A", "B"),))
    light = as_light in (first, second)
    assert set(found.pairs[("A", "B")]) == (
        {"kl_pair20", "rest_is_floor"} | ({"kept_equal"} if first is second else set())
        if light
        else {"kl_pair_full", "kl_pair_full_symmetric", "rows_bit_identical"}
    )
    held = [
        [stored(row, "BF16" if how is as_bfloat16 else "F32")[1] for row, _ in one.column(side)]
        for how, side in ((first, "A"), (second, "B"))
    ]
    right = [kl_pair20(x, y) if light else pair_kl(x, y) for x, y in zip(*held, strict=True)]
    own = found.pairs[("A", "B")]["kl_pair20" if light else "kl_pair_full"]
    assert own == pytest.approx(right, rel=1e-9, abs=1e-12)
    assert set(found.measures["A"]) == {"nll", "agree_text"} | (set() if first is as_light else {"entropy"})
