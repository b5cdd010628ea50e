"""What an event is and how many tokens it carries: the quick way and the general one agree on every stream."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engcmp_assets.kernel.throughput import stream_events
from engcmp_assets.kernel.throughput.stream_events import KINDS, StreamEvents, read_stream

DONE = "data: [DONE]\n\n"


def event(**chunk: Any) -> str:
    return f"data: {json.dumps(chunk, separators=(',', ':'))}\n\n"


def delta(ids: int | None = None, count: int | None = None, finish: str | None = None, **fields: Any) -> str:
    choice: dict[str, Any] = {"index": 0, "delta": fields, "finish_reason": finish}
    choice |= {} if ids is None else {"token_ids": [5] * ids}
    usage = {} if count is None else {"usage": {"prompt_tokens": 3, "completion_tokens": count}}
    return event(choices=[choice], **usage)


def read(*events: str) -> StreamEvents:
    return read_stream("".join(events).encode())


def kinds(found: StreamEvents) -> list[str]:
    return [KINDS[number] for number in found.kinds]


def test_ids_count_before_usage_and_usage_before_text() -> None:
    with_both = read(delta(content="a", ids=2, count=9), delta(content="b", ids=3, count=11), DONE)
    assert (with_both.counted_by, with_both.tokens.tolist()) == ("ids", [2, 3, 0])
    with_usage = read(delta(content="a", count=2), delta(content="b", count=5), DONE)
    assert (with_usage.counted_by, with_usage.tokens.tolist()) == ("usage", [2, 3, 0])
    text = read(delta(content="a"), delta(content="b"), delta(content=""), DONE)
    assert (text.counted_by, text.tokens.tolist()) == ("text", [1, 1, 0, 0])


def test_usage_on_the_last_chunk_alone_is_not_continuous() -> None:
    found = read(delta(content="a"), delta(content="b"), delta(finish="stop", count=7), DONE)
    assert (found.counted_by, found.tokens.tolist(), found.completion_tokens) == ("text", [1, 1, 0, 0], 7)


def test_a_chunk_of_text_without_ids_among_others_makes_ids_unusable() -> None:
    assert read(delta(content="a", ids=2), delta(content="b"), DONE).counted_by == "text"


def test_llama_server_s_timings_are_continuous_usage() -> None:
    def chunk(text: str, so_far: int, **more: Any) -> str:
        return "data: " + json.dumps({"choices": [{"text": text}], "timings": {"predicted_n": so_far}, **more}) + "\n\n"

    found = read(chunk("a", 1), chunk("bc", 3), chunk("", 3, usage={"completion_tokens": 3}), DONE)
    assert (found.counted_by, found.tokens.tolist(), found.completion_tokens) == ("usage", [1, 2, 0, 0], 3)


def test_continuous_usage_that_repeats_or_falls_counts_no_token_twice() -> None:
    found = read(
        delta(content="a", count=3),
        delta(content="b", count=3),
        delta(content="c", count=2),
        delta(content="d", count=5),
        DONE,
    )
    assert (found.counted_by, found.tokens.tolist()) == ("usage", [3, 0, 0, 2, 0])


def test_part_of_a_character_is_a_token_event_of_the_text_that_follows() -> None:
    found = read(
        delta(role="assistant", content=""),
        delta(ids=1, content=""),
        delta(ids=1, reasoning="\u00e9"),
        delta(ids=1, content=""),
        DONE,
    )
    assert kinds(found) == ["role", "reasoning", "reasoning", "reasoning", "done"]
    assert found.tokens.tolist() == [0, 1, 1, 1, 0]
    after = read(delta(ids=1, reasoning="a"), delta(ids=1, content=""), delta(ids=1, content="b"), DONE)
    assert kinds(after) == ["reasoning", "answer", "answer", "done"]


def test_tool_calls_are_tokens() -> None:
    call = [{"index": 0, "id": "x", "function": {"name": "f", "arguments": ""}}]
    found = read(
        delta(role="assistant", content=None),
        delta(tool_calls=call),
        delta(tool_calls=call, ids=None),
        delta(finish="tool_calls"),
        DONE,
    )
    assert kinds(found) == ["role", "tool_call", "tool_call", "finish", "done"]
    assert (found.tokens.tolist(), found.finish_reason) == ([0, 1, 1, 0, 0], "tool_calls")
    counted = read(delta(tool_calls=call, ids=4), DONE)
    assert counted.tokens.tolist() == [4, 0]


def test_both_names_of_reasoning_in_one_chunk_are_one_text() -> None:
    found = read(delta(reasoning="ab", reasoning_content="ab"), DONE)
    assert (found.characters, found.tokens.tolist(), kinds(found)) == (2, [1, 0], ["reasoning", "done"])


def test_the_texts_digest_tells_reasoning_from_answer() -> None:
    digests = {read(*events, DONE).text_sha256 for events in (
        [delta(content="ab")], [delta(reasoning="ab")], [delta(reasoning="a"), delta(content="b")]
    )}  # fmt: skip
    assert len(digests) == 3
    assert read(delta(content="a"), delta(content="b"), DONE).text_sha256 == read(delta(content="ab"), DONE).text_sha256


def test_completions_have_their_text_in_the_choice() -> None:
    found = read(
        event(choices=[{"index": 0, "text": "a", "token_ids": [1]}]),
        event(choices=[{"index": 0, "text": "", "finish_reason": "stop"}]),
        DONE,
    )
    assert (kinds(found), found.tokens.tolist(), found.characters) == (["answer", "finish", "done"], [1, 0, 0], 1)


def test_stated_counts_are_read_and_absent_is_none() -> None:
    details = {"prompt_tokens_details": {"cached_tokens": 2}, "completion_tokens_details": {"reasoning_tokens": 0}}
    found = read(
        delta(content="a"), event(choices=[], usage={"prompt_tokens": 9, "completion_tokens": 1, **details}), DONE
    )
    assert (found.prompt_tokens, found.completion_tokens, found.cached_tokens, found.reasoning_tokens) == (9, 1, 2, 0)
    bare = read(delta(content="a"), event(choices=[], usage=None), DONE)
    assert (bare.prompt_tokens, bare.completion_tokens, bare.cached_tokens, bare.reasoning_tokens) == (None,) * 4
    assert kinds(bare) == ["answer", "empty", "done"]
    assert read(delta(content="a"), event(choices=[], usage={"prompt_cache_hit_tokens": 4}), DONE).cached_tokens == 4


def test_events_after_done_are_flagged_and_comments_are_not() -> None:
    assert read(delta(content="a"), DONE, ": bye\n\n").flags == []
    assert read(delta(content="a"), DONE, delta(content="b")).flags == ["events after [DONE]"]


@pytest.mark.parametrize(
    "events",
    ["", "\n\n\n", "data:\n\n", "data: 5\n\n", "data: []\n\n", "data: {\n\n", "data: {}\n\n", "data: null\n\n", "\xff\xfe\n\n", "[DONE]",
     'data: {"choices":[]}\n\n', 'data: {"choices":[{}]}\n\n', 'data: {"choices":[null]}\n\n', "event: ping\n\n", "hello\n\nworld\n\n"],
)  # fmt: skip
def test_whatever_comes_is_read_without_an_error_and_carries_no_token(events: str) -> None:
    found = read_stream(events.encode("latin-1"))
    assert not found.tokens.any()
    assert not found.done
    assert len(found.kinds) == len(found.ends) == len(found.tokens)


chunks = st.one_of(
    st.builds(
        delta, ids=st.none() | st.integers(0, 4), count=st.none() | st.integers(0, 40), content=st.text(max_size=5)
    ),
    st.builds(delta, ids=st.none() | st.integers(0, 4), reasoning=st.text(max_size=5)),
    st.builds(delta, role=st.just("assistant"), content=st.just("")),
    st.builds(delta, finish=st.just("stop")),
    st.just(event(choices=[], usage={"completion_tokens": 3})),
    st.just(event(error={"message": "x"})),
)
others = st.sampled_from(
    [
        ": c\n\n",
        ":\n\n",
        "event: error\ndata: {}\n\n",
        "data: {]\n\n",
        'data: {"a":1}\ndata: ,\n\n',
        "\n\n",
        "\n",
        "id: 4\n\n",
    ]
)


@given(st.lists(chunks | others, max_size=30), st.booleans())
def test_the_quick_way_and_the_general_one_read_the_same(events: list[str], done: bool) -> None:
    body = "".join([*events, DONE if done else ""]).encode()
    found = read_stream(body)
    reader, ends = stream_events._general(body)
    if found.ends.size == ends.size + 1:  # what was not closed is read apart
        assert "last event not closed" in found.flags
        return
    plain = stream_events._finished(reader, ends, [])
    for name in ("kinds", "tokens", "ends"):
        np.testing.assert_array_equal(getattr(found, name), getattr(plain, name))
    for name in ("counted_by", "done", "finish_reason", "completion_tokens", "characters", "text_sha256", "error"):
        assert getattr(found, name) == getattr(plain, name)
    assert (found.broken is None) == (plain.broken is None)


@given(st.lists(chunks, min_size=1, max_size=8), st.sampled_from(["\r\n", "\r"]))
def test_line_ends_change_nothing_but_offsets(events: list[str], line_end: str) -> None:
    plain, other = read(*events, DONE), read_stream("".join([*events, DONE]).replace("\n", line_end).encode())
    np.testing.assert_array_equal(plain.kinds, other.kinds)
    np.testing.assert_array_equal(plain.tokens, other.tokens)
    assert plain.text_sha256 == other.text_sha256


@given(st.lists(chunks, min_size=1, max_size=300))
def test_each_end_is_just_after_its_events_blank_line(events: list[str]) -> None:
    found = read(*events)
    assert found.ends.tolist() == np.cumsum([len(one.encode()) for one in events]).tolist()


def test_streams_as_most_servers_send_them_take_the_quick_way_and_others_do_not() -> None:
    usual = [delta(role="assistant", content=""), *[delta(content="a", ids=1)] * 250, delta(finish="stop"), DONE]
    assert stream_events._simple("".join(usual).encode()) is not None
    for odd in (": c\n\n", "data: {\n\n", "event: x\n\n", "\n", "\n\n", 'data: {"a":1}\ndata: \n\n'):
        assert stream_events._simple("".join([*usual[:3], odd, *usual[3:]]).encode()) is None
