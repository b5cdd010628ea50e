"""A start-up as figures: what counts as cold, what a repeated prompt found in a cache, whether thinking can be switched off."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from engcmp_assets.kernel.records import ArmKey, Missing
from engcmp_assets.kernel.throughput.startup import ready_times
from engcmp_assets.kernel.throughput.startup_documents import starts_of, startup_figures, startup_summary

EVENTS = pl.DataFrame(
    {"request_id": ["on/1", "on/1", "off/1"], "kind": ["reasoning", "answer", "answer"], "tokens": [5, 2, 3]}
)
LINE = {"missing": "the engine has no ready line of its own"}


def start(number: int, state: str, seconds: Any, *, cleared: bool | None = None) -> dict[str, Any]:
    caches = [] if cleared is None else [{"cache": "page cache of the model file", "cleared": cleared}]
    return {"start": number, "state": state, "ready_s": seconds, "ready_line_s": LINE, "caches": caches}


def kept(**changes: Any) -> dict[str, Any]:
    starts = [start(1, "cold", 4.0, cleared=True), start(2, "warm", 1.0), start(3, "warm", 2.0)]
    return {"starts": starts} | changes


def rows(*cells: tuple[str, int, int, int | None]) -> pl.DataFrame:
    return pl.DataFrame(
        [
            {
                "cell_id": name,
                "request_id": name,
                "expected_prompt_tokens": 64,
                "repeat": repeat,
                "ttft_ns": ttft,
                "cached_tokens": cached,
            }
            for name, repeat, ttft, cached in cells
        ],
        schema_overrides={"cached_tokens": pl.Int64},
    )


def cell(name: str, **changes: Any) -> dict[str, Any]:
    return {"cell_id": name, "complete": True, "failures": [], "engine": {}} | changes


def values(summary: dict[str, Any]) -> dict[str, Any]:
    found = startup_figures("s", ArmKey.parse("a/b@c"), summary)
    return {f"{one.population} {one.measure}": one.value for one in found}


def test_each_state_is_the_median_of_its_starts_and_names_the_caches_that_were_cleared() -> None:
    summary = startup_summary(kept(), pl.DataFrame(), pl.DataFrame())
    assert summary["ready"]["cold"] == {
        "seconds": 4.0, "of_starts": [4.0], "ready_line_s": LINE, "caches": ["page cache of the model file"],
    }  # fmt: skip
    assert summary["ready"]["warm"]["seconds"] == 1.5
    found = values(summary)
    assert (found["cold ready_s"], found["warm ready_s"]) == (4.0, 1.5)


def test_a_cold_start_whose_cache_stayed_is_not_cold() -> None:
    summary = startup_summary(
        kept(starts=[start(1, "cold", 4.0, cleared=False), start(2, "warm", 1.0)]), pl.DataFrame(), pl.DataFrame()
    )
    assert summary["ready"]["cold"]["seconds"] == {"missing": "start 1: page cache of the model file was not cleared"}
    assert summary["ready"]["cold"]["of_starts"] == []
    assert isinstance(values(summary)["cold ready_s"], Missing)


def test_a_kind_without_caches_to_clear_has_no_cold_start_and_says_why() -> None:
    summary = startup_summary(
        kept(starts=[start(1, "warm", 1.0)], no_cold_start="the kind declares none"), pl.DataFrame(), pl.DataFrame()
    )
    assert summary["ready"]["cold"]["seconds"] == {"missing": "the kind declares none"}


def test_an_engine_that_was_not_started_by_us_has_no_ready_time() -> None:
    summary = startup_summary(kept(starts=[start(1, "warm", {"missing": "not ours"})]), pl.DataFrame(), pl.DataFrame())
    assert summary["ready"]["warm"]["seconds"] == {"missing": "not ours"}


def test_two_arms_compare_in_each_state_with_the_caches_beside_them() -> None:
    one, two = (
        startup_summary(kept(), pl.DataFrame(), pl.DataFrame()),
        startup_summary(kept(starts=[start(1, "warm", 3.0)]), pl.DataFrame(), pl.DataFrame()),
    )
    found = ready_times(starts_of(two), starts_of(one))
    assert found["warm_ratio"] == 2.0 and "missing" in found["cold_ratio"]
    assert "warm: the two arms' caches are not the same" in found["labels"]


def test_cached_tokens_are_the_requests_own_or_else_the_counters() -> None:
    sent = rows(("prefix-64/0", 0, 80_000_000, 0), ("prefix-64/1", 1, 20_000_000, None))
    cells = [cell("prefix-64/0"), cell("prefix-64/1", engine={"cached_tokens": 48})]
    summary = startup_summary(kept(prefix=cells), pl.DataFrame(), sent)
    (found,) = summary["prefix"]
    assert found["reuse"] == "reused" and found["cold_ttft_ms"] == 80.0
    assert found["repeats"] == [
        {"repeat": 1, "ttft_ms": 20.0, "share_of_cold": 0.25, "cached_tokens": 48.0, "cached_share": 0.75}
    ]
    assert values(summary)["prefix-64/repeat-1 prefix_cached_tokens"] == 48.0


def test_time_alone_is_no_proof_of_a_cache() -> None:
    sent = rows(("prefix-64/0", 0, 80, None), ("prefix-64/1", 1, 20, None))
    summary = startup_summary(kept(prefix=[cell("prefix-64/0"), cell("prefix-64/1")]), pl.DataFrame(), sent)
    assert summary["prefix"][0]["reuse"] == {"missing": "the engine does not state cached tokens"}
    assert isinstance(values(summary)["prefix-64/repeat-1 prefix_cached_tokens"], Missing)


def test_a_failed_sending_leaves_no_figure_of_the_repeated_prompts() -> None:
    failed = cell("prefix-64/1", complete=False, failures=[{"cause": "cut_in_body"}])
    summary = startup_summary(
        kept(prefix=[cell("prefix-64/0"), failed]), pl.DataFrame(), rows(("prefix-64/0", 0, 80, 0))
    )
    assert summary["prefix"] == {"missing": "a request failed: prefix-64/1: cut_in_body"}
    assert not [name for name in values(summary) if "prefix" in name]


@pytest.mark.parametrize(
    ("prompts", "reasoned", "word"),
    [
        ((40, 40), True, "honoured"),
        ((40, 44), False, "changes the prompt"),
        ((40, 40), False, "ignored by the template"),
    ],
)
def test_the_switch_is_read_from_replies_and_else_from_prompts(
    prompts: tuple[int, int], reasoned: bool, word: str
) -> None:
    asked = pl.DataFrame(
        {
            "cell_id": ["thinking-on", "thinking-off"],
            "request_id": ["on/1", "off/1"],
            "usage_prompt_tokens": list(prompts),
        }
    )
    told = {"on": cell("thinking-on"), "off": cell("thinking-off")}
    events = EVENTS if reasoned else EVENTS.filter(pl.col("kind") == "answer")
    found = startup_summary(kept(thinking=told), events, asked)["thinking"]
    assert found["switch"] == word and found["prompts"] == 1


def test_a_refused_probe_says_so() -> None:
    told = {"on": {"missing": "the server answers 404: no chat here"}}
    found = startup_summary(kept(thinking=told), pl.DataFrame(), pl.DataFrame({"cell_id": [], "request_id": []}))[
        "thinking"
    ]
    assert found == {"missing": "with thinking on a request failed: the server answers 404: no chat here"}
