"""Rows of files as measures: held against exact answers, in every type, order and number of threads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from made import DTYPES, Made, answers, made, pair_kl, stored, with_topk_reference
from writing import save_dump

from engcmp_assets.file_scores import reading
from engcmp_assets.file_scores.reading import Scored, score_files
from engcmp_assets.kernel.measures import TOPK_ROW_MEASURES
from engcmp_assets.kernel.panel_files import parse_panel_file
from engcmp_assets.kernel.records import Panel
from engcmp_assets.kernel.row_measures import score_rows
from engcmp_assets.kernel.topk_measures import TOP_K, pair_coarse, reduce_rows, score_topk, topk_of
from engcmp_resources.errors import EngcmpError
from engcmp_resources.row_layouts.finding import find_rows


def panel_of(one: Made) -> Panel:
    return parse_panel_file(one.panel.read_bytes(), where="panel.json")


def scored(one: Made, *arms: str, pairs: tuple[tuple[str, str], ...] = (), jobs: int = 1) -> Scored:
    reference = find_rows(one.reference) if one.document["reference"] != "none" else None
    folders = {arm: find_rows(one.folder / arm) for arm in arms}
    return score_files(panel_of(one), reference, folders, pairs, jobs=jobs)


def same(found: Scored, other: Scored) -> bool:
    """Bit for bit."""
    return all(
        np.array_equal(found.measures[arm][name], other.measures[arm][name])
        for arm in found.measures
        for name in found.measures[arm]
    ) and all(
        np.array_equal(found.pairs[pair][name], other.pairs[pair][name])
        for pair in found.pairs
        for name in found.pairs[pair]
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reference_dtype", DTYPES)
def test_every_measure_agrees_with_an_exact_oracle_in_every_type(
    tmp_path: Path, dtype: str, reference_dtype: str
) -> None:
    one = made(tmp_path)
    one.write("reference", reference_dtype)
    one.write("A", dtype)
    one.write("B", dtype)
    found = scored(one, "A", "B", pairs=(("A", "B"),))
    for number, ((p, token), (q, _)) in enumerate(zip(one.column("reference"), one.column("A"), strict=True)):
        right = answers(stored(p, reference_dtype)[1], stored(q, dtype)[1], token)
        assert set(right) == set(found.measures["A"])
        for name, value in right.items():
            assert found.measures["A"][name][number] == pytest.approx(value, rel=1e-12, abs=1e-14), (number, name)
    for number, ((a, _), (b, _)) in enumerate(zip(one.column("A"), one.column("B"), strict=True)):
        right = pair_kl(stored(a, dtype)[1], stored(b, dtype)[1])
        assert found.pairs[("A", "B")]["kl_pair_full"][number] == pytest.approx(right, rel=1e-12, abs=1e-14)
    assert not found.pairs[("A", "B")]["rows_bit_identical"].any()


def test_a_panel_without_a_reference_holds_engine_against_engine(tmp_path: Path) -> None:
    one = made(tmp_path, reference="none")
    one.write("A")
    one.write("B", "BF16")
    found = scored(one, "A", "B", pairs=(("A", "B"),))
    assert tuple(found.measures["A"]) == ("nll", "entropy", "agree_text")
    for number, ((a, token), (b, _)) in enumerate(zip(one.column("A"), one.column("B"), strict=True)):
        right = answers(a, a, token)
        for name, values in found.measures["A"].items():
            assert values[number] == pytest.approx(right[name], rel=1e-12, abs=1e-14)
        exact = pair_kl(a, stored(b, "BF16")[1])
        assert found.pairs[("A", "B")]["kl_pair_full"][number] == pytest.approx(exact, rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("counted_from", [0, 1])
def test_a_top_k_reference_gives_what_its_own_functions_give_of_all_rows_at_once(
    tmp_path: Path, dtype: str, counted_from: int
) -> None:
    one = made(tmp_path, vocab=29, roles=lambda row: "generated" if row > 4 else "context")
    one.write("A", dtype)
    one.write("B")
    with_topk_reference(one, 7, counted_from=counted_from)
    p, tokens = (np.array(values) for values in zip(*one.column("reference"), strict=True))
    a, b = (np.array([row for row, _ in one.column(side)]) for side in ("A", "B"))
    stored_p = topk_of(p, tokens, 7, where="all")
    whole = {
        side: reduce_rows(rows, stored_p.top_ids, tokens, where="all")
        for side, rows in (("A", stored(a, dtype)[1]), ("B", b))
    }
    right = score_topk(stored_p, whole["A"], where="all")
    found = scored(one, "A", "B", pairs=(("A", "B"),), jobs=2)
    assert tuple(found.measures["A"])[:5] == ("kl_coarse", "kl_pb20", "nll", "top1", "entropy")
    for name in TOPK_ROW_MEASURES:
        assert np.array_equal(found.measures["A"][name], getattr(right, name)), name
    exact = score_rows(p, stored(a, dtype)[1], tokens, where="all")
    for name in ("agree_text", "top3_contained"):
        assert np.array_equal(found.measures["A"][name], getattr(exact, name)), name
    assert found.measures["A"]["nll_minus_reference"] == pytest.approx(exact.nll_minus_reference, abs=1e-6)
    assert found.measures["A"]["reference_top_probability"] == pytest.approx(exact.reference_top_probability, rel=2e-3)
    tail = np.exp(stored_p.tail_log_mass) * np.log(29 - 7)  # most entropy that the ids beyond the top K can add
    above = found.measures["A"]["excess_entropy_at_most"] - exact.excess_entropy
    assert (above > -5e-3).all() and (above <= tail + 5e-3).all() and above.max() > 0.01
    assert not found.measures["A"]["rest_is_floor"].any()
    assert np.array_equal(found.pairs[("A", "B")]["kl_pair_coarse"], pair_coarse(whole["A"], whole["B"], where="all"))
    assert TOP_K != 7


def test_turns_threads_order_and_rows_that_the_panel_does_not_keep_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = made(tmp_path, windows=4, tokens=40, vocab=1031)
    one.write("reference")
    one.write("A")
    one.write("B", "BF16")
    pairs = (("A", "B"), ("A", "A"))
    first = scored(one, "A", "B", pairs=pairs)
    assert same(first, scored(one, "A", "B", pairs=pairs, jobs=2))
    monkeypatch.setattr(reading, "_TURN_BYTES", 1)  # a row a turn
    assert same(first, scored(one, "A", "B", pairs=pairs, jobs=2))
    monkeypatch.setattr(reading, "_TURN_BYTES", 60_000)
    one.write("A", order=lambda kept: np.random.default_rng(5).permutation(kept))
    one.write("reference", positions=lambda window: window["positions"], order=lambda kept: kept[::-1])
    assert same(first, scored(one, "A", "B", pairs=pairs))
    assert first.pairs[("A", "A")]["rows_bit_identical"].all()
    assert not first.pairs[("A", "A")]["kl_pair_full"].any()


def test_arms_scored_together_read_what_each_reads_alone(tmp_path: Path) -> None:
    one = made(tmp_path)
    for side in ("reference", "A", "B"):
        one.write(side)
    both = scored(one, "A", "B")
    for arm in ("A", "B"):
        alone = scored(one, arm)
        assert all(np.array_equal(both.measures[arm][name], values) for name, values in alone.measures[arm].items())


def test_a_probe_dump_and_a_file_of_the_same_rows_read_the_same(tmp_path: Path) -> None:
    one = made(tmp_path)
    for side in ("reference", "A"):
        one.write(side)
    for window in one.windows:
        rows = one.rows["A"][window["window_id"]]
        save_dump(one.folder / "B" / f"probe-{window['window_id']}-4711", rows, range(1, len(rows) + 1))
    found = scored(one, "A", "B", pairs=(("A", "B"),))
    assert found.pairs[("A", "B")]["rows_bit_identical"].all()
    assert all(np.array_equal(found.measures["A"][name], values) for name, values in found.measures["B"].items())
    assert len(found.files["B"]) == 3


def test_probability_0_is_legal_and_counts_nothing(tmp_path: Path) -> None:
    one = made(tmp_path)
    for window in one.windows:
        least = min(set(range(11)) - set(window["tokens"]))
        for side in ("reference", "A"):
            one.rows[side][window["window_id"]][:, least] = -np.inf
    for side in ("reference", "A"):
        one.write(side)
    found = scored(one, "A").measures["A"]
    for number, ((p, token), (q, _)) in enumerate(zip(one.column("reference"), one.column("A"), strict=True)):
        kept = np.isfinite(p)
        right = answers(p[kept], q[kept], int(np.flatnonzero(np.flatnonzero(kept) == token)[0]))
        assert found["kl_full"][number] == pytest.approx(right["kl_full"], rel=1e-12)


@pytest.mark.parametrize("shift", [-1, 1])
def test_rows_of_the_token_before_or_after_are_refused(tmp_path: Path, shift: int) -> None:
    one = made(tmp_path, windows=4, tokens=60)
    for window in one.windows:  # an engine that knows the text
        following = np.array(window["tokens"][1:])
        for side in ("reference", "A"):
            one.rows[side][window["window_id"]][np.arange(59), following] += 12
    one.write("reference")
    one.write("A")
    assert scored(one, "A").alignment["A"].verdict == "aligned"
    one.write("A", shift=shift)
    with pytest.raises(EngcmpError, match=r"arm A: its rows are not those of its tokens: .*folder .*/A"):
        scored(one, "A")


def test_a_window_that_is_missing_at_the_end_is_said_before_the_first_row_is_read(tmp_path: Path) -> None:
    one = made(tmp_path)
    one.write("reference")
    one.rows["A"]["w0"][0] = np.nan  # would be found first
    (one.write("A") / "w2.safetensors").unlink()
    with pytest.raises(EngcmpError, match="window w2: no rows of it"):
        scored(one, "A")


BAD = {
    "NaN": (np.nan, "the row at position 5 holds NaN"),
    "+inf": (np.inf, r"the row at position 5 holds \+inf"),
    "nothing": (None, "the row at position 5 holds nothing but -inf"),
}


@pytest.mark.parametrize("side", ["reference", "A"])
@pytest.mark.parametrize("kind", BAD)
def test_a_bad_row_is_named_with_its_arm_file_window_and_position(tmp_path: Path, side: str, kind: str) -> None:
    one = made(tmp_path)
    value, words = BAD[kind]
    row = one.rows[side]["w1"][5]
    row[:] = -np.inf if value is None else row
    row[3] = -np.inf if value is None else value
    one.write("reference")
    one.write("A")
    with pytest.raises(EngcmpError, match=rf"arm {side}, window w1: {words} \(file .*/{side}/w1.safetensors\)"):
        scored(one, "A")


def test_a_probability_of_0_where_the_reference_has_some_is_named_with_its_row(tmp_path: Path) -> None:
    one = made(tmp_path)
    one.rows["A"]["w2"][6, 2] = -np.inf
    one.write("reference")
    one.write("A")
    with pytest.raises(EngcmpError) as caught:
        scored(one, "A")
    assert "window w2, the row at position 6: the engine's probability is 0 where the reference's is not" in str(
        caught.value
    )
    assert "A/w2.safetensors" in str(caught.value) and "arm A" in str(caught.value)


def test_a_bad_row_that_the_panel_does_not_keep_is_none(tmp_path: Path) -> None:
    one = made(tmp_path)
    one.rows["A"]["w1"][4] = np.nan  # 4 % 3 == 1
    one.write("reference")
    one.write("A")
    assert np.isfinite(scored(one, "A").measures["A"]["kl_full"]).all()


def test_a_next_token_of_probability_0_is_named_with_its_row_without_a_reference_too(tmp_path: Path) -> None:
    one = made(tmp_path, reference="none")
    window = one.windows[1]
    one.rows["A"]["w1"][3, window["tokens"][4]] = -np.inf
    one.write("A")
    with pytest.raises(EngcmpError, match=r"window w1, the row at position 3: its next token \d+ has probability 0"):
        scored(one, "A")


def test_a_pair_of_rows_that_cannot_be_compared_is_named(tmp_path: Path) -> None:
    one = made(tmp_path, reference="none")
    window = one.windows[0]
    unused = min(set(range(11)) - set(window["tokens"]))
    one.rows["B"]["w0"][2, unused] = -np.inf
    one.write("A")
    one.write("B")
    with pytest.raises(
        EngcmpError, match=r"window w0, the row at position 2: the second's probability is 0.*arms A and B"
    ):
        scored(one, "A", "B", pairs=(("A", "B"),))


def test_a_top_k_row_with_another_role_or_an_id_outside_is_refused(tmp_path: Path) -> None:
    one = made(tmp_path, vocab=29)
    one.write("A")
    with_topk_reference(one, 7, roles=np.array([0, 0, 0, 1, 0, 0, 0, 0], dtype="u1"))
    with pytest.raises(
        EngcmpError, match="window w0: the row at position 3 has another role than the panel's, context"
    ):
        scored(one, "A")
    ids = np.tile(np.array([[0, 1, 2, 3, 4, 5, 29]], dtype="<u4"), (8, 1))
    with_topk_reference(one, 7, top_ids=ids)
    with pytest.raises(EngcmpError, match="window w0: the row at position 0 lists id 29, the vocabulary has 29"):
        scored(one, "A")
