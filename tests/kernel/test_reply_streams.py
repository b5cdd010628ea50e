"""What a stream says: both spans, the engine's ids, and the first token's log-probabilities, whatever arrives."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from engcmp_assets.kernel.fixed_traces import EndLogProb
from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.reply_records import ReplyText
from engcmp_assets.kernel.reply_streams import FirstToken, end_log_prob, read_parts
from engcmp_assets.kernel.throughput.stream_events import read_stream


def body(*events: Any, end: str = "\n\n") -> bytes:
    texts = [one if isinstance(one, str) else json.dumps(one) for one in events]
    return "".join(f"data: {text}{end}" for text in texts).encode()


def chunk(ids: list[int] | None = None, **delta: str) -> dict[str, Any]:
    return {"choices": [{"delta": delta} | ({} if ids is None else {"token_ids": ids})]}


WHOLE = body(
    chunk(role="assistant", content=""), chunk([1], reasoning="so "), chunk([2, 3], reasoning="it is"), chunk([4], content="42"),
    {"choices": [{"delta": {}, "finish_reason": "stop", "token_ids": []}]}, "[DONE]",
)  # fmt: skip


def test_both_spans_and_the_ids_are_taken() -> None:
    parts = read_parts(WHOLE)
    assert (parts.reasoning, parts.answer, parts.token_ids) == ("so it is", "42", (1, 2, 3, 4))


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_under_either_name(field: str) -> None:
    assert read_parts(body({"choices": [{"delta": {field: "x"}}]})).reasoning == "x"


@pytest.mark.parametrize("end", ["\n\n", "\r\n\r\n", "\r\r"])
def test_whatever_line_ends_the_text_is_that_of_the_stream_s_hash(end: str) -> None:
    content = body(chunk(reasoning="a\nb"), chunk(content="\N{THUMBS UP SIGN}"), "[DONE]", end=end)
    parts = read_parts(content)
    text = ReplyText("r", parts.reasoning, parts.answer, None, "")
    assert text.text_sha256 == read_stream(content).text_sha256


def test_one_event_with_text_and_without_ids_leaves_no_ids() -> None:
    assert read_parts(body(chunk([1], content="a"), chunk(content="b"))).token_ids is None


def test_a_cut_stream_and_invalid_bytes_keep_what_came() -> None:
    assert read_parts(WHOLE[: WHOLE.index(b"42")]).reasoning == "so it is"
    assert read_parts(b'data: {"choices":[{"delta":{"content":"a\xff"}}]}\n\n').answer == "a\N{REPLACEMENT CHARACTER}"
    assert read_parts(b"data: no json\n\n" + body(chunk(content="b"))).answer == "b"
    assert read_parts(b"").answer == ""


def test_log_probabilities_by_id_in_both_forms() -> None:
    chat = {
        "content": [
            {"id": 5, "logprob": -0.5, "top_logprobs": [{"id": 5, "logprob": -0.5}, {"id": 7, "logprob": -2.0}]}
        ]
    }
    completion = {
        "tokens": ["token_id:5"],
        "token_logprobs": [-0.5],
        "top_logprobs": [{"token_id:5": -0.5, "token_id:7": -2.0}],
    }
    for said in (chat, completion):
        first = read_parts(body({"choices": [{"text": "x", "logprobs": said}]})).first
        assert first == FirstToken(5, -0.5, ((5, -0.5), (7, -2.0)))
        assert end_log_prob(first, 7) == EndLogProb(-2.0)


def test_an_end_that_is_not_among_them_is_bounded_and_never_nought() -> None:
    found = end_log_prob(FirstToken(5, -0.5, ((5, -0.5), (7, -2.0))), 9)
    assert isinstance(found, EndLogProb) and found.bound
    assert found.value == pytest.approx(min(-2.0, math.log(1 - math.exp(-0.5) - math.exp(-2.0))))


@pytest.mark.parametrize(
    "said", [None, {}, {"tokens": [" a"], "token_logprobs": [-0.5], "top_logprobs": [{" a": -0.5}]}, {"content": []}]
)
def test_texts_are_no_ids_and_nothing_is_no_value(said: Any) -> None:
    found = end_log_prob(read_parts(body({"choices": [{"text": "x", "logprobs": said}]})).first, 9)
    assert isinstance(found, Missing)
