"""A user's panel: read whole or refused with file, window and position; and rows that are found are the rows that it asks for."""

import hashlib
import json
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engcmp_assets.kernel.panel_files import (
    check_ids,
    check_roles,
    check_width,
    parse_panel_file,
    refuse_bad_rows,
    refuse_other_panels,
    rows_of,
)
from engcmp_assets.kernel.records import Panel, Window
from engcmp_resources.errors import EngcmpError

VOCAB = 12
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]


def digest(tokens) -> str:
    return hashlib.sha256(struct.pack(f"<{len(tokens)}I", *tokens)).hexdigest()


def window(window_id: str = "w1", **changes) -> dict:
    return {
        "window_id": window_id, "tokens": TOKENS, "tokens_sha256": digest(TOKENS), "positions": [0, 2, 6],
        "roles": ["context", "generated", "trailing"], "cluster": "doc-1", "block": "A", "bucket": "0-2K",
    } | changes  # fmt: skip


def panel(*windows: dict, **changes) -> dict:
    return {"panel": "P-A", "vocab": VOCAB, "reference": "full", "windows": list(windows) or [window()]} | changes


def parse(document) -> Panel:
    return parse_panel_file(
        document if isinstance(document, bytes) else json.dumps(document).encode(), where="panels/pa.json"
    )


def refused(document) -> str:
    with pytest.raises(EngcmpError) as caught:
        parse(document)
    text = str(caught.value)
    assert "panels/pa.json" in text and text.endswith("mend the panel file")
    return text


def test_a_panel_is_read_with_keys_that_are_not_known():
    found = parse(panel(window(source="book"), window("w2", roles=["generated"] * 3), note="mine"))
    assert (found.panel, found.vocab, found.reference, found.rows, found.top_k) == ("P-A", VOCAB, "full", 6, None)
    first = found.windows[0]
    assert first == Window("w1", tuple(TOKENS), (0, 2, 6), ("context", "generated", "trailing"), "doc-1", "A", "0-2K")
    assert first.next_tokens == (1, 1, 6) and first.tokens_sha256 == digest(TOKENS)


@pytest.mark.parametrize("key", ["panel", "vocab", "reference", "windows"])
def test_a_key_of_the_panel_that_is_missing_is_named(key):
    document = panel()
    del document[key]
    assert f"missing keys: {key} (" in refused(document)


@pytest.mark.parametrize("key", list(window()))
def test_a_key_of_a_window_that_is_missing_is_named_with_its_window(key):
    broken = window("w2")
    del broken[key]
    name = "number 2" if key == "window_id" else "w2"
    assert f"window {name}: missing keys: {key} (" in refused(panel(window(), broken))


def test_all_keys_that_a_window_lacks_are_named_at_once():
    broken = window("w2", positions="none")
    del broken["block"], broken["tokens"]
    other = window("w3")
    del other["roles"]
    assert "window w2: missing keys: tokens, block (" in refused(panel(broken, other))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokens": [3, 1, 4, 1, 5, 9, 2, VOCAB]}, "window w2: token 12 at index 7 is outside the vocabulary of 12"),
        ({"tokens": [3, -1, 4, 1, 5, 9, 2, 6]}, "window w2: token -1 at index 1 is outside"),
        ({"tokens": [3, 1, 2**70, 1, 5, 9, 2, 6]}, "window w2: token 1180591620717411303424 at index 2"),
        ({"tokens": [3, 1, 4, 1, 5, 9, 6, 2]}, "window w2: tokens do not match their digest"),
        ({"tokens": [3, 1.5, 4]}, "window w2: tokens index 1: "),
        ({"tokens": [3]}, "window w2: tokens: "),
        ({"tokens_sha256": "abc"}, "window w2: tokens_sha256: "),
        ({"positions": [0, 2, 7]}, "window w2: position 7 lies outside 0..6"),
        ({"positions": [-1, 2, 6]}, "window w2: position -1 lies outside"),
        ({"positions": [0, 2, 2]}, "window w2: position 2 stands twice"),
        ({"positions": [0, 6, 2]}, "window w2: position 2 stands after 6; positions must rise"),
        ({"positions": [0, "2", 6]}, "window w2: positions index 1: "),
        ({"positions": [0, True, 6]}, "window w2: positions index 1: "),
        ({"positions": []}, "window w2: positions: "),
        ({"roles": ["context"] * 2}, "window w2: 2 roles for 3 positions"),
        ({"roles": ["context", "made", "context"]}, "window w2: roles index 1 (position 2): "),
        ({"roles": ["context", 1, "context"]}, "window w2: roles index 1 (position 2): "),
        ({"cluster": ""}, "window w2: cluster: "),
        ({"block": 3}, "window w2: block: "),
        ({"window_id": "../w2"}, "window ../w2: window_id: "),
        ({"window_id": "w1"}, "window w1 stands twice"),
    ],
)
def test_a_window_that_is_wrong_is_named_with_the_place_in_it(changes, said):
    assert said in refused(panel(window(), window("w2") | changes))


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (b"{", "panel is not JSON"),
        (b"\xff\xfe", "panel is not JSON"),
        (b"[" * 100_000, "panel is not JSON"),
        ([], "(the whole)"),
        (panel(vocab=0), "vocab: "),
        (panel(vocab="12"), "vocab: "),
        (panel(reference="half"), "reference: "),
        (panel() | {"windows": []}, "windows: "),
        (panel() | {"windows": [7]}, "window number 1: window: "),
        (panel() | {"windows": {}}, "windows: "),
    ],
)
def test_what_is_no_panel_is_refused(document, said):
    assert said in refused(document)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda one: st.lists(one) | st.dictionaries(st.text(), one),
    )
)
def test_any_json_in_place_of_any_value_is_a_clear_error_or_a_panel(value):
    for document in (value, panel() | {"windows": value}, *(panel(window() | {key: value}) for key in window())):
        try:
            assert parse(document).windows
        except EngcmpError as error:
            assert "panels/pa.json" in str(error)


@dataclass(frozen=True)
class Facts:
    """What a file says of its rows."""

    positions: np.ndarray
    window_id: str = "w1"
    tokens_sha256: str | None = digest(TOKENS)
    path: Path = Path("rows/w1.safetensors")


def facts(*positions: int, **changes) -> Facts:
    return Facts(np.array(positions, dtype=np.int64), **changes)


WINDOW = parse(panel()).windows[0]


def place_error(one: Facts, **keys) -> str:
    with pytest.raises(EngcmpError) as caught:
        rows_of(one, WINDOW, arm="V1", **keys)
    text = str(caught.value)
    assert "arm V1, window w1: " in text and "file rows/w1.safetensors" in text
    return text


@given(st.permutations(range(7)), st.integers(0, 7))
def test_each_row_of_the_panel_is_found_wherever_it_stands(positions, digest_known):
    one = facts(*positions, tokens_sha256=digest(TOKENS) if digest_known else None)
    assert [positions[index] for index in rows_of(one, WINDOW, arm="V1")] == [0, 2, 6]


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (facts(0, 6), "no row at position 2; 1 of 3 rows are missing"),
        (facts(0, 2, 5), "no row at position 6"),
        (facts(7), "no row at position 0; 3 of 3 rows are missing"),
        (facts(0, 2, 6, window_id="w9"), "the rows are of window w9"),
        (facts(0, 2, 6, tokens_sha256="0" * 64), "the rows are of other tokens"),
    ],
)
def test_rows_that_are_not_those_of_the_panel_are_refused(one, said):
    assert said in place_error(one)


def test_positions_of_the_predicted_token_are_told_from_row_indices_by_the_tokens():
    every = np.arange(7)
    assert rows_of(facts(*every), WINDOW, arm="V1", next_token_ids=np.array(TOKENS[1:])).tolist() == [0, 2, 6]
    assert rows_of(facts(*every + 1), WINDOW, arm="V1", next_token_ids=np.array(TOKENS[1:])).tolist() == [0, 2, 6]
    assert rows_of(facts(7, 3, 1), WINDOW, arm="V1", next_token_ids=np.array([6, 1, 1])).tolist() == [2, 1, 0]


@pytest.mark.parametrize("said", [[1, 1, 5], [3, 4, 2], [1, 1, 2**40]])
def test_rows_that_predict_other_tokens_are_refused(said):
    text = place_error(facts(0, 2, 6), next_token_ids=np.array(said))
    assert "predicts another token than the window's next" in text and "at position" in text


def test_positions_beyond_the_window_are_refused_where_next_tokens_are_known():
    assert "at position 9 predicts" in place_error(facts(0, 2, 6, 9), next_token_ids=np.array([1, 1, 6, 6]))


def test_another_width_ids_outside_the_vocabulary_and_other_roles_are_refused():
    found, one = parse(panel()), facts(0, 2, 6)
    check_width(one, VOCAB, found, arm="V1")
    with pytest.raises(
        EngcmpError, match=r"arm V1, window w1: rows of 11 values, panel P-A has a vocabulary of 12 \(file rows/w1"
    ):
        check_width(one, VOCAB - 1, found, arm="V1")
    ids = np.array([[1, 2], [11, 0], [3, 4]], dtype=np.uint32)
    check_ids(one, ids, one.positions, VOCAB, arm="V1")
    with pytest.raises(
        EngcmpError, match=r"arm V1, window w1: the row at position 2 lists id 11, the vocabulary has 11"
    ):
        check_ids(one, ids, one.positions, VOCAB - 1, arm="V1")
    check_roles(one, np.array([0, 1, 0], dtype=np.uint8), WINDOW, arm="V1")
    with pytest.raises(EngcmpError, match="the row at position 6 has another role than the panel's, trailing"):
        check_roles(one, np.array([0, 1, 1], dtype=np.uint8), WINDOW, arm="V1")


def bf16(rows: np.ndarray) -> np.ndarray:
    return (rows.astype("<f4").view("<u4") >> 16).astype("<u2")


@pytest.mark.parametrize("stored", [np.float16, np.float32, np.float64, bf16])
@pytest.mark.parametrize(("value", "said"), [(np.nan, "NaN"), (np.inf, r"\+inf"), (-np.inf, "nothing but -inf")])
def test_the_first_row_that_must_not_be_averaged_is_named(stored, value, said):
    rows = np.random.default_rng(1).normal(size=(4, VOCAB))
    rows[1, 3] = -np.inf  # probability 0 is legal
    as_stored = stored if stored is bf16 else lambda one: one.astype(stored)
    refuse_bad_rows(as_stored(rows), [0, 2, 5, 6], facts(0, 2, 5, 6), arm="V1")
    rows[2:] = value if value < 0 else rows[2:]
    rows[2:, 7] = value
    with pytest.raises(EngcmpError, match=rf"arm V1, window w1: the row at position 5 holds {said} \(file rows/w1"):
        refuse_bad_rows(as_stored(rows), [0, 2, 5, 6], facts(0, 2, 5, 6), arm="V1")


def test_arms_of_one_panel_are_let_through_and_rows_may_stand_in_any_order():
    arms = {
        "V1": {"w1": facts(0, 2, 6)},
        "C1": {"w1": facts(6, 0, 2)},
        "C2": {"w1": facts(0, 2, 6, tokens_sha256=None)},
    }
    refuse_other_panels(arms)
    refuse_other_panels({})


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"w1": facts(0, 2, 6), "w2": facts(0)}, "only C1 has window w2"),
        ({}, "only V1 has window w1"),
        ({"w1": facts(0, 2)}, "window w1: only V1 has a row at position 6 (files rows/w1"),
        ({"w1": facts(0, 2, 5, 6)}, "window w1: only C1 has a row at position 5"),
        ({"w1": facts(0, 2, 6, tokens_sha256="0" * 64)}, "window w1 is of other tokens (files"),
    ],
)
def test_arms_of_different_panels_are_refused_with_what_differs(other, said):
    with pytest.raises(EngcmpError) as caught:
        refuse_other_panels({"V1": {"w1": facts(0, 2, 6)}, "C1": other})
    assert "arms V1 and C1 have different panels: " in str(caught.value) and said in str(caught.value)
