"""How the rows of a pair came about: notes in short, and equal rows by the step that read them."""

from __future__ import annotations

from typing import Any

import numpy as np

from engcmp_assets.comparisons.steps_read import steps_document

UNKNOWN = {"missing": "the API does not state it"}
WINDOWS = ["w1"] * 4 + ["w2"] * 2
POSITIONS = [0, 3, 4, 9, 2, 5]


def note(run: str, window: str, chunks: list[int], others: int = 0, apart: float = 0.0) -> dict[str, Any]:
    return {
        "run": run, "window_id": window, "chunk_lengths": chunks, "other_requests_in_step": [others] * len(chunks),
        "cached_tokens": 0, "largest_difference_from_api_nats": apart,
    }  # fmt: skip


CHUNKED = [
    note("1.1", "w1", [4, 4, 2]),
    note("1.1", "w2", [4, 3], apart=2e-7),
    note("1.2", "w1", [1] * 10),
    note("1.2", "w2", [7]),
]
WHOLE = [note("1.1", "w1", [10], others=1), note("1.1", "w2", [7], others=2)]


def test_rows_are_counted_by_the_step_that_read_their_token() -> None:
    """Row r is the distribution after token r: with steps of 4, rows 0 to 3 are of the first."""
    identical = np.array([True, True, False, True, True, False])
    found = steps_document([("whole", WHOLE), ("chunked", CHUNKED)], (WINDOWS, POSITIONS), identical, ["1.1", "1.1"])
    assert found is not None
    assert found["of"] == "chunked"  # the side with more steps, and of it the run that was compared
    assert found["by_step"] == [
        {"step": 1, "rows": 3, "equal": 3}, {"step": 2, "rows": 2, "equal": 0}, {"step": 3, "rows": 1, "equal": 1},
    ]  # fmt: skip
    assert sum(one["rows"] for one in found["by_step"]) == len(POSITIONS)
    assert found["sentences"][-1] == (
        "Rows equal bit for bit, by the step of chunked that read them: step 1: 3 of 3; step 2: 0 of 2; step 3: 1 of 1."
    )


def test_each_side_says_how_it_was_read() -> None:
    found = steps_document(
        [("whole", WHOLE), ("chunked", CHUNKED)], (WINDOWS, POSITIONS), np.zeros(6, bool), ["1.1", "1.1"]
    )
    assert found is not None
    whole, chunked = found["sides"]
    assert (whole["steps"], whole["other_requests"], whole["cached_tokens"]) == ([1, 1], [1, 2], [0, 0])
    assert (chunked["captures"], chunked["steps"], chunked["tokens_of_a_step"]) == (4, [1, 10], [1, 7])
    assert chunked["from_api_nats"] == 2e-7
    assert found["sentences"][:2] == [
        "whole read its windows, by the notes of its 2 captures: 1 step of 7 to 10 tokens, 1 to 2 other requests in a step, no token from "
        "a cache, at most 0 nats from what the API said of the same request.",
        "chunked read its windows, by the notes of its 4 captures: 1 to 10 steps of 1 to 7 tokens, no other request in a step, no token "
        "from a cache, at most 2.000e-07 nats from what the API said of the same request.",
    ]


def test_what_an_engine_does_not_note_is_said_and_not_counted() -> None:
    light = [note("1.1", "w1", [4]) | {"chunk_lengths": UNKNOWN, "other_requests_in_step": UNKNOWN}]
    assert steps_document([("a", []), ("b", light)], (WINDOWS, POSITIONS), np.zeros(6, bool), ["1.1", "1.1"]) is None
    found = steps_document(
        [("vllm", WHOLE), ("llama.cpp", [])], (WINDOWS, POSITIONS), np.zeros(6, bool), ["1.1", "1.1"]
    )
    assert found is not None
    assert found["by_step"] == []
    assert (
        found["sentences"][-1] == "How llama.cpp read its windows is not known: the engine states nothing of its steps."
    )


def test_what_came_from_a_cache_is_not_nothing_where_nobody_knows() -> None:
    found = steps_document(
        [("a", [one | {"cached_tokens": UNKNOWN} for one in WHOLE]), ("b", CHUNKED)],
        (WINDOWS, POSITIONS),
        np.zeros(6, bool),
        ["1.1", "1.1"],
    )
    assert found is not None
    assert "tokens from a cache are not known" in found["sentences"][0]
