"""The figures of a cell are those of the law, whatever the order, the clock and the chunks; what failed is never averaged."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from speed_cells import MS, Stream, cells, even, plain_figures, shifted, tables

from engcmp_assets.kernel.throughput.cells import MIN_UPDATES, cell_figures
from engcmp_assets.kernel.throughput.speed_measures import SPEED_IDS
from engcmp_resources.canonical import canonical_bytes
from engcmp_resources.errors import EngcmpError

CELL: dict[str, Any] = {"cell_id": "c", "concurrency": 4}


def figures(streams: list[Stream], **cell: Any) -> dict[str, Any]:
    return cell_figures(*tables(streams), CELL | cell)


def value(found: dict[str, Any], measure: str) -> float:
    return float(found["figures"][measure]["value"])


def two() -> list[Stream]:
    """Sent together; the first decodes from 100 ms to 400 ms, the second from 300 ms to 600 ms."""
    return [even("a", 0, 100, 100, [1, 2, 2, 2]), even("b", 0, 300, 100, [3, 1, 1, 1])]


@settings(max_examples=200, deadline=None)
@given(cells())
def test_every_figure_is_the_one_that_plain_fractions_give(streams: list[Stream]) -> None:
    found = figures(streams)["figures"]
    expected = plain_figures(streams)
    assert set(found) == set(SPEED_IDS)
    for name, exact in expected.items():
        if exact is None:
            assert set(found[name]) == {"missing"}, name
        else:
            assert math.isclose(found[name]["value"], float(exact), rel_tol=1e-12, abs_tol=1e-12), name


@settings(max_examples=60, deadline=None)
@given(cells(least=2), st.randoms(use_true_random=False), st.integers(-(10**9), 10**15))
def test_neither_the_order_of_requests_nor_the_clock_s_zero_matters(
    streams: list[Stream], chance: Any, by: int
) -> None:
    order = list(streams)
    chance.shuffle(order)
    assert figures(order) == figures(streams)
    assert figures(shifted(streams, by)) == figures(streams)


@settings(max_examples=60, deadline=None)
@given(cells())
def test_events_of_several_requests_may_lie_between_one_another(streams: list[Stream]) -> None:
    events, requests = tables(streams)
    mixed = events.sort("t_ns", maintain_order=True)
    assert cell_figures(mixed, requests, CELL) == cell_figures(events, requests, CELL)


def split(one: Stream, place: int) -> Stream:
    """The same stream with its token event number `place` as two events at the same stamp."""
    t, kind, count = one.tokens[place]
    cut = one.events.index((t, kind, count))
    return replace(one, events=(*one.events[:cut], (t, kind, 1), (t, kind, count - 1), *one.events[cut + 1 :]))


def test_a_chunk_that_is_split_at_its_stamp_changes_only_what_counts_chunks() -> None:
    whole = two()
    parted = [split(whole[0], 2), whole[1]]
    before, after = figures(whole)["figures"], figures(parted)["figures"]
    assert {name for name in before if before[name] != after[name]} == {"tokens_per_update"}


def test_a_first_chunk_that_is_split_counts_less_of_itself_and_is_flagged() -> None:
    whole = two()
    parted = [whole[0], split(whole[1], 0)]
    before, after = figures(whole), figures(parted)
    changed = {name for name in before["figures"] if before["figures"][name] != after["figures"][name]}
    assert changed == {"tokens_per_update", "decode_tok_s", "clean_decode_tok_s"}
    assert "first read held several token events (1 of 2 requests)" in after["flags"]


def test_the_figures_of_two_streams_worked_by_hand() -> None:
    found = figures(two())
    assert value(found, "ttft_median_ms") == 200
    assert value(found, "ttft_p90_ms") == pytest.approx(280)
    assert value(found, "ttft_max_ms") == 300
    assert value(found, "e2e_median_ms") == 500
    # (7 - 1) / 0.3 s and (6 - 3) / 0.3 s: the first chunk's three tokens are no decode.
    assert value(found, "decode_tok_s") == pytest.approx((20 + 10) / 2)
    assert value(found, "decode_first1_tok_s") == pytest.approx((6 + 5) / 0.3 / 2)
    # The first stream decodes 200 of its 300 ms beside the second's prefill; the second beside none.
    assert value(found, "overlap_share") == pytest.approx(1 / 3)
    assert value(found, "clean_decode_tok_s") == pytest.approx(10)
    assert found["figures"]["clean_decode_tok_s"]["n"] == 1
    assert value(found, "aggregate_tok_s") == pytest.approx(13 / 0.6)
    assert value(found, "prefill_share") == pytest.approx(0.5)
    # From 300 ms to 400 ms both decode: 2 tokens of the first, 1 of the second.
    assert value(found, "aggregate_steady_tok_s") == pytest.approx(30)
    assert found["finish_reasons"] == {"length": 2} and found["n_tokens"] == 13


def test_a_cell_is_plain_json_and_names_unit_and_version_of_each_figure() -> None:
    found = figures(two())
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert all(
        {"value", "n", "unit", "version"} <= set(one) or set(one) == {"missing"} for one in found["figures"].values()
    )


def test_a_bundled_first_chunk_does_not_raise_the_decode_rate() -> None:
    plain, bundled = even("a", 0, 100, 100, [1, 1, 1, 1]), even("a", 0, 100, 100, [90, 1, 1, 1])
    assert value(figures([bundled]), "decode_tok_s") == value(figures([plain]), "decode_tok_s") == pytest.approx(10)
    assert value(figures([bundled]), "decode_first1_tok_s") == pytest.approx(92 / 0.3)


def test_a_reply_in_one_update_has_no_decode_rate_and_no_gap() -> None:
    found = figures([even("a", 0, 100, 100, [100])])["figures"]
    for name in ("decode_tok_s", "clean_decode_tok_s", "overlap_share"):
        assert found[name] == {"missing": found[name]["missing"]}
    assert f"{MIN_UPDATES} updates" in found["update_gap_median_ms"]["missing"]
    assert found["aggregate_tok_s"]["value"] == pytest.approx(1000)


def test_gaps_are_refused_below_eight_updates_and_counted_from_eight_on() -> None:
    assert "missing" in figures([even("a", 0, 100, 10, [1] * 7)])["figures"]["update_gap_median_ms"]
    found = figures([even("a", 0, 100, 10, [1] * 8), even("b", 0, 100, 99, [1] * 7)])["figures"]
    assert found["update_gap_median_ms"]["value"] == 10
    assert found["update_gap_median_ms"]["n"] == 7 and found["update_gap_median_ms"]["replies"] == 1
    # Between the last update of one reply and the first of the next there is no gap.
    both = figures([even("a", 0, 100, 10, [1] * 8), even("b", 900, 100, 30, [1] * 8)])["figures"][
        "update_gap_median_ms"
    ]
    assert (both["value"], both["n"], both["replies"]) == (20, 14, 2)


def test_tokens_of_a_stream_whose_counts_differ_are_those_of_its_window_and_it_is_flagged() -> None:
    odd = replace(even("a", 0, 100, 100, [1, 1, 1, 1]), extra={"usage_completion_tokens": 512})
    found = figures([odd])
    assert value(found, "decode_tok_s") == pytest.approx(10)
    assert found["flags"] == ["counts differ (1 of 1 requests)"]


def test_where_text_was_counted_n_is_the_server_s_and_the_first_update_is_one_token() -> None:
    text = replace(even("a", 0, 100, 100, [1, 1, 1, 1]), extra={"usage_completion_tokens": 13, "counted_by": "text"})
    found = figures([text])
    assert value(found, "decode_first1_tok_s") == pytest.approx(12 / 0.3)
    assert value(found, "aggregate_tok_s") == pytest.approx(13 / 0.4)
    for name in ("decode_tok_s", "clean_decode_tok_s", "aggregate_steady_tok_s"):
        assert "neither token ids nor continuous usage" in found["figures"][name]["missing"]
    assert not found["first_update_counted"] and any("first update" in label for label in found["labels"])


def test_a_failed_request_is_listed_and_nothing_of_its_cell_is_averaged() -> None:
    streams = two()
    streams[1] = replace(streams[1], extra={"status": "failed", "cause": "error_event"})
    found = figures(streams)
    assert not found["complete"]
    assert found["failures"] == [{"request_id": "b", "status": "failed", "cause": "error_event"}]
    assert set(found["figures"]) == set(SPEED_IDS)
    assert all(one == {"missing": "1 of 2 requests failed"} for one in found["figures"].values())
    kept = found["figures_of_completed_requests"]
    assert kept["ttft_median_ms"]["value"] == 100 and "aggregate_tok_s" not in kept


def test_the_prefill_of_a_failed_request_still_stands_in_the_way_of_the_others() -> None:
    streams = two()
    streams[1] = replace(streams[1], extra={"status": "failed", "cause": "reset"})
    kept = figures(streams)["figures_of_completed_requests"]
    assert kept["overlap_share"]["value"] == pytest.approx(2 / 3)


def test_a_failed_request_without_a_token_is_in_prefill_until_its_end() -> None:
    silent = Stream("s", 0, ((450 * MS, "error", 0),), extra={"status": "failed", "cause": "error_event"})
    kept = figures([even("a", 0, 100, 100, [1, 2, 2, 2, 1]), silent])["figures_of_completed_requests"]
    assert kept["overlap_share"]["value"] == pytest.approx(350 / 400)


def test_a_request_without_a_token_is_a_failure_even_where_its_status_says_ok() -> None:
    silent = Stream("s", 0, ((5 * MS, "role", 0), (9 * MS, "done", 0)))
    found = figures([*two(), silent])
    assert found["failures"] == [{"request_id": "s", "status": "failed", "cause": "no token came"}]


def test_a_request_that_was_never_sent_is_a_failure_and_no_error() -> None:
    lost = Stream("s", 0, (), extra={"t0_ns": None, "status": "failed", "cause": "connection_refused"})
    assert figures([*two(), lost])["failures"][0]["cause"] == "connection_refused"


def test_a_cell_without_requests_is_not_complete() -> None:
    events, requests = tables([])
    found = cell_figures(events, requests, CELL)
    assert not found["complete"] and found["figures"]["ttft_median_ms"] == {"missing": "the cell has no request"}


def test_a_prefill_rate_is_of_one_stream_and_of_tokens_that_are_known_not_to_be_cached() -> None:
    def one(**extra: Any) -> list[Stream]:
        return [replace(even("a", 0, 100, 100, [1, 1]), extra=extra)]

    assert "one stream only" in figures(one(cached_tokens=0))["figures"]["prefill_tok_s"]["missing"]
    assert value(figures(one(cached_tokens=0), concurrency=1), "prefill_tok_s") == pytest.approx(1000)
    assert value(figures(one(cached_tokens=60), concurrency=1), "prefill_tok_s") == pytest.approx(400)
    assert "cached" in figures(one(), concurrency=1)["figures"]["prefill_tok_s"]["missing"]
    counted = figures(one(), concurrency=1, engine={"cached_tokens": 0})
    assert value(counted, "prefill_tok_s") == pytest.approx(1000)
    assert "missing" in figures(one(), concurrency=1, engine={"cached_tokens": 5})["figures"]["prefill_tok_s"]


def test_acceptance_comes_from_the_engine_s_counters_alone() -> None:
    found = figures(two(), engine={"accepted": 30, "drafted": 60, "draft_steps": 20})
    assert value(found, "acceptance") == 0.5
    assert value(found, "accepted_length") == 2.5
    assert "missing" in figures(two())["figures"]["acceptance"]
    assert (
        "no token was drafted"
        in figures(two(), engine={"accepted": 0, "drafted": 0})["figures"]["acceptance"]["missing"]
    )


def test_latency_from_the_schedule_does_not_hide_a_late_client() -> None:
    late = replace(even("a", 500, 100, 100, [1, 1]), extra={"scheduled_at_ns": 0})
    found = figures([late], loop="open")
    assert value(found, "ttft_median_ms") == 100
    assert value(found, "ttft_scheduled_median_ms") == 600


def test_a_cell_whose_replies_never_left_the_reasoning_says_so() -> None:
    thinking = Stream("a", 0, ((MS, "reasoning", 1), (2 * MS, "reasoning", 1), (2 * MS, "done", 0)))
    found = figures([thinking])
    assert found["labels"] == [
        "0 of 1 replies left the reasoning span: the rest is reasoning about the prompt, not the answer"
    ]
    assert value(found, "left_reasoning_share") == 0 and value(found, "reasoning_share") == 1
    assert found["figures"]["ttfa_median_ms"] == {"missing": "no reply has answer text"}


def test_what_a_reader_must_doubt_is_flagged_with_how_many_requests_show_it() -> None:
    streams = [
        replace(
            even("a", 0, 100, 100, [1, 1]), extra={"max_tokens": 1, "expected_prompt_tokens": 90, "cached_tokens": 7}
        ),
        replace(even("b", 0, 100, 100, [1, 1]), extra={"flags": ["usage missing"], "usage_completion_tokens": None}),
    ]
    found = figures(streams, client={"limit": True}, engine={"preemptions": 2, "restarts": 0})
    assert found["flags"] == [
        "cached prompt tokens (1 of 2 requests)",
        "impossible count (1 of 2 requests)",
        "prompt tokens differ (1 of 2 requests)",
        "usage missing (1 of 2 requests)",
        "the client was the limit",
        "the engine counted preemptions: 2",
    ]


def test_several_batches_add_up_and_the_time_between_repeats_is_not_the_cell_s() -> None:
    def batch(number: int, at: int, repeat: int | None = None) -> list[Stream]:
        pair = (
            even(f"{repeat}{number}a", at, 100, 100, [1, 1, 1]),
            even(f"{repeat}{number}b", at, 200, 100, [1, 1, 1]),
        )
        return [replace(one, batch=number, repeat=repeat) for one in pair]

    one = figures(batch(0, 0))
    both = figures([*batch(0, 0), *batch(1, 400)])
    assert value(both, "aggregate_tok_s") == value(one, "aggregate_tok_s") == pytest.approx(6 / 0.4)
    assert value(both, "prefill_share") == value(one, "prefill_share") == 0.5
    assert value(both, "aggregate_steady_tok_s") == value(one, "aggregate_steady_tok_s") == pytest.approx(20)
    assert both["batches"] == 2
    # A wait between batches is the cell's own time; one between repeats, hours later, is not.
    assert value(figures([*batch(0, 0), *batch(1, 800)]), "aggregate_tok_s") == pytest.approx(12 / 1.2)
    later = figures([*batch(0, 0, repeat=1), *batch(0, 3_600_000, repeat=2)])
    assert value(later, "aggregate_tok_s") == pytest.approx(6 / 0.4)


def test_a_table_without_a_column_or_of_another_run_is_refused_by_name() -> None:
    events, requests = tables(two())
    with pytest.raises(EngcmpError, match=r"column tokens is missing.*events\.parquet"):
        cell_figures(events.drop("tokens"), requests, CELL)
    with pytest.raises(EngcmpError, match=r"column status is missing.*requests\.parquet"):
        cell_figures(events, requests.drop("status"), CELL)
    with pytest.raises(EngcmpError, match="events of request b"):
        cell_figures(events, requests.filter(pl.col("request_id") == "a"), CELL)
    with pytest.raises(EngcmpError, match="request a: ttft_ns is 7, its events say 100000000"):
        cell_figures(events, requests.with_columns(ttft_ns=pl.lit(7)), CELL)
    with pytest.raises(EngcmpError, match="events of request a run backward in time"):
        cell_figures(events.reverse(), requests, CELL)
    with pytest.raises(EngcmpError, match="stands twice"):
        cell_figures(events, pl.concat([requests, requests]), CELL)
    with pytest.raises(EngcmpError, match="event kind 'token'"):
        cell_figures(events.with_columns(kind=pl.lit("token")), requests, CELL)


def test_the_further_columns_may_be_absent_and_absent_is_not_zero() -> None:
    events, requests = tables(two())
    bare = requests.drop("repeat", "batch", "characters", "counted_by", "max_tokens", "expected_prompt_tokens")
    found = cell_figures(events, bare, CELL)["figures"]
    assert "missing" in found["chars_per_token"]
    assert found["decode_tok_s"] == figures(two())["figures"]["decode_tok_s"]


def test_a_cell_recomputes_to_the_same_bytes_from_its_files(tmp_path: Path) -> None:
    for name, table in zip(("events", "requests"), tables(two()), strict=True):
        table.write_parquet(tmp_path / f"{name}.parquet")
    read = (pl.read_parquet(tmp_path / f"{name}.parquet") for name in ("events", "requests"))
    assert canonical_bytes(cell_figures(*read, CELL)) == canonical_bytes(figures(two()))


def test_rates_are_the_float_nearest_to_the_exact_one() -> None:
    found = figures([even("a", 0, 100, 7, [1, 2, 3, 4])])
    assert value(found, "decode_tok_s") == float(Fraction(9 * 10**9, 21 * MS))
    assert value(found, "aggregate_tok_s") == float(Fraction(10 * 10**9, 121 * MS))
