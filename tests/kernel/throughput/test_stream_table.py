"""One row for each request, recomputed from its events."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from speed_cells import MS, Stream, cells, even, tables

from engcmp_assets.kernel.throughput.stream_events import KINDS as WRITTEN_KINDS
from engcmp_assets.kernel.throughput.streams import EVENT_COLUMNS, KINDS, REQUEST_COLUMNS, stream_table


@settings(max_examples=60, deadline=None)
@given(cells())
def test_counts_and_times_are_those_of_the_events_and_rows_keep_their_order(streams: list[Stream]) -> None:
    table = stream_table(*tables(streams))
    assert table["request_id"].to_list() == [one.name for one in streams]
    for one, row in zip(streams, table.iter_rows(named=True), strict=True):
        assert (row["first"], row["last"], row["updates"]) == (one.tokens[0][0], one.tokens[-1][0], len(one.tokens))
        assert row["counted"] == row["n"] == sum(count for _, _, count in one.tokens)
        assert row["at_first"] == sum(count for t, _, count in one.tokens if t == one.tokens[0][0])
        assert row["n_first"] == one.tokens[0][2]
        assert row["ok"]


def test_where_text_was_counted_no_update_has_a_known_number_of_tokens() -> None:
    text = replace(even("a", 0, 100, 100, [1, 1, 1]), extra={"counted_by": "text", "usage_completion_tokens": 9})
    (row,) = stream_table(*tables([text])).iter_rows(named=True)
    assert (row["n"], row["counted"], row["n_first"], row["decode"]) == (9, 3, None, None)
    assert row["decode_first1"] == 40


def test_comments_roles_usage_and_the_end_are_no_token_events() -> None:
    events = (
        (1, "role", 0),
        (2, "comment", 0),
        (3, "empty", 0),
        (5, "answer", 2),
        (9, "finish", 0),
        (9, "usage", 0),
        (10, "done", 0),
    )
    (row,) = stream_table(*tables([Stream("a", 0, tuple((t * MS, *rest) for t, *rest in events))])).iter_rows(
        named=True
    )
    assert (row["first"], row["last"], row["counted"], row["updates"]) == (5 * MS, 5 * MS, 2, 1)


def test_the_kinds_and_columns_are_those_that_the_client_writes() -> None:
    assert KINDS == WRITTEN_KINDS
    assert EVENT_COLUMNS == ("request_id", "t_ns", "kind", "tokens")
    events, requests = tables([])
    assert set(EVENT_COLUMNS) == set(events.columns) and set(REQUEST_COLUMNS) <= set(requests.columns)
