"""Faults that a capture of this engcmp cannot leave, or that need requests of a speed block: each finder on made tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from engcmp_assets.audit.finders import (
    hidden_cache,
    other_prompts,
    plain_noise,
    requests_beside,
    settings_changed,
    shared_steps,
    torn_repeats,
    undeclared_company,
)
from engcmp_assets.audit.found import Found, outcome_of
from engcmp_assets.audit.gathered import ArmRows, Gathered
from engcmp_assets.audit.pair_claims import claims_read
from engcmp_assets.kernel.launch_diff import Side
from engcmp_assets.kernel.records import Panel, Window

WINDOW = Window("a-1", (1, 2, 3), (0, 1), ("context", "context"), "a-1", "a", "upto128")
PANEL = Panel("pa", 8, "full", (WINDOW,))
PAIR: dict[str, Any] = {
    "pair_id": "x-vs-y", "candidate": "m/x@1", "baseline": "m/y@1", "state": "compared", "candidate_path": "prefill",
    "baseline_path": "prefill", "figures": [], "confounds": [], "undeclared": [],
}  # fmt: skip
SPEED = {
    "figure_id": "s/pair/x-vs-y/throughput/code-64-c1/decode_tok_s", "measure": "decode_tok_s", "unit": "ratio", "panel": "throughput",
    "population": "code-64-c1", "value": 1.3, "interval": {"missing": "2 batches"}, "primary": False, "floor": {"band": [0.9, 1.1]},
    "verdict": "faster", "rows": 4, "clusters": 2,
}  # fmt: skip


@dataclass
class Made:
    """What stands for the gathered evidence: only what the finder at hand reads."""

    rows: list[ArmRows] = field(default_factory=list)
    requests: dict[str, Any] = field(default_factory=dict)
    pairs: list[dict[str, Any]] = field(default_factory=lambda: [PAIR])
    receipts: dict[Any, Any] = field(default_factory=dict)
    samples: dict[str, int] = field(default_factory=dict)
    summaries: dict[str, Any] = field(default_factory=dict)

    @property
    def gathered(self) -> Gathered:
        return cast(Gathered, SimpleNamespace(**vars(self)))


def capture(starts: list[int], notes: dict[tuple[str, str], Any] | None = None) -> ArmRows:
    table = {
        "run": np.array(["1.1", "1.1", "1.2", "1.2"]), "launch": np.array([1, 1, 1, 1]), "window_id": np.array(["a-1"] * 4),
        "start": np.array(starts),
    }  # fmt: skip
    return ArmRows("m/x@1", PANEL, table, notes or {}, {}, cast(Any, None), None)


def requests(counted: list[float], *, thought: float = np.nan, answered: float = np.nan) -> dict[str, Any]:
    return {
        "request_id": np.array(["r0", "r1"]), "usage_prompt_tokens": np.array(counted), "cell_id": np.array(["code-64-c1"] * 2),
        "kind": np.array(["code", "code"]), "reasoning_tokens": np.array([thought] * 2), "ttfa_ns": np.array([answered] * 2),
    }  # fmt: skip


def test_repeats_of_two_starts_are_torn() -> None:
    (found,) = torn_repeats(Made(rows=[capture([1, 1, 2, 2])]).gathered)
    assert (found.check, found.outcome) == ("torn repeats", "corrected") and "window a-1" in found.what
    assert list(torn_repeats(Made(rows=[capture([1, 1, 1, 1])]).gathered)) == []


def test_prompt_tokens_that_the_engines_count_otherwise_are_named() -> None:
    sides = {"m/x@1": requests([64.0, 88.0]), "m/y@1": requests([64.0, 64.0])}
    (found,) = other_prompts(Made(requests=sides).gathered)
    assert "1 of 2 requests" in found.what and "r1: 88 and 64" in found.what


@pytest.mark.parametrize("other", [[64.0, 64.0], [np.nan, np.nan]])
def test_equal_counts_and_unstated_ones_are_no_fault(other: list[float]) -> None:
    sides = {"m/x@1": requests([64.0, 64.0]), "m/y@1": requests(other)}
    assert list(other_prompts(Made(requests=sides).gathered)) == []


def test_steps_that_were_shared_are_counted_and_what_is_not_stated_is_not_zero() -> None:
    assert shared_steps({"other_requests_in_step": [0, 2, 1]}) == 3
    alone, unsaid = {"other_requests_in_step": [0, 0]}, {"other_requests_in_step": {"missing": "not stated"}}
    assert requests_beside(capture([1] * 4, {("1.1", "a-1"): alone})) == 0
    assert requests_beside(capture([1] * 4, {("1.1", "a-1"): alone, ("1.2", "a-1"): unsaid})) is None
    assert requests_beside(capture([1] * 4)) is None


def test_a_model_and_a_setting_are_told_apart_and_engines_of_two_kinds_are_not_compared() -> None:
    first = {
        "engine": "e",
        "version": "1",
        "threads": 2,
        "context_tokens": 512,
        "model_sha256": "aa",
        "library_sha256": "bb",
    }
    second = first | {"threads": 1, "model_sha256": "cc", "version": "2", "library_sha256": "dd"}
    assert settings_changed(Side(first, {}, {}), Side(second, {}, {})) == (["threads"], ["engine", "model"])
    server = {"kind": "docker", "engine": "e", "version": "1", "settings": {"threads": 4}}
    assert settings_changed(Side(first, {}, {}), Side(server, {}, {})) == ([], [])


@pytest.mark.parametrize(
    ("thought", "answered", "rules"),
    [(900.0, np.nan, ("content-that-was-not-written",)), (900.0, 5.0, ()), (np.nan, np.nan, ())],
)
def test_a_cell_of_code_in_which_no_reply_left_its_reasoning_is_narrowed(
    thought: float, answered: float, rules: tuple[str, ...]
) -> None:
    table = requests([64.0, 64.0], thought=thought, answered=answered)
    pair = PAIR | {"speed": {"figures": [SPEED]}}
    made = Made(requests={"m/x@1": table, "m/y@1": table}, pairs=[pair], samples={"m/x@1": 5, "m/y@1": 5})
    (read,) = claims_read(made.gathered)
    assert read.rules == rules and read.outcome == ("narrowed" if rules else "holds")


def test_the_worst_of_what_was_found_is_the_outcome_of_a_check() -> None:
    narrowed, corrected = (Found("c", word, "a", "w", "r") for word in ("narrowed", "corrected"))
    assert [outcome_of(own) for own in ([], [narrowed], [narrowed, corrected])] == ["holds", "narrowed", "corrected"]


def test_company_that_the_protocol_has_sent_is_no_fault_and_more_of_it_is() -> None:
    note = {"other_requests_in_step": [1, 1, 2]}
    assert undeclared_company(note, 0) and undeclared_company(note, 1)
    assert not undeclared_company(note, 2)
    assert not undeclared_company({"other_requests_in_step": {"missing": "not stated"}}, 0)


def hashed(**runs: str) -> ArmRows:
    """A capture of a window of two rows; `r1_1="ab"` are the hashes of run 1.1."""
    names = {name[1:].replace("_", "."): hashes for name, hashes in runs.items()}
    table = {
        "run": np.repeat(list(names), 2), "score_path": np.array(["prefill"] * 2 * len(names)), "position": np.array([0, 1] * len(names)),
        "window_id": np.array(["a-1"] * 2 * len(names)), "raw_row_sha256": np.array([one for own in names.values() for one in own]),
    }  # fmt: skip
    return ArmRows("m/x@1", PANEL, table, {}, {}, cast(Any, None), None)


def test_repeats_that_differ_without_a_chunk_or_a_cache_are_noise() -> None:
    (found,) = plain_noise(Made(rows=[hashed(r1_1="ab", r1_2="ac")]).gathered)
    assert (found.check, found.outcome) == ("repeats", "narrowed")
    assert found.what.startswith("1 of 2 rows differ between runs 1.1 and 1.2 of one start")
    (found,) = plain_noise(Made(rows=[hashed(r1_1="ab", r2_1="ac")]).gathered)
    assert "runs 1.1 and 2.1 of two launches" in found.what
    assert list(plain_noise(Made(rows=[hashed(r1_1="ab", r1_2="ab")]).gathered)) == []


def test_what_a_cache_explains_is_not_told_a_second_time_as_noise() -> None:
    rows = hashed(r1_1="ab", r1_2="cd", r2_1="ab", r2_2="cd")
    assert [one.check for one in hidden_cache(Made(rows=[rows]).gathered)] == ["hidden cache"]
    assert list(plain_noise(Made(rows=[rows]).gathered)) == []
