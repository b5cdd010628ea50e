"""The plan file: what it may hold, what is said of one that is wrong, and the requests it makes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engcmp_assets.kernel.throughput.plans import (
    Plan,
    Wishes,
    listing,
    nonce_line,
    parse_plan,
    plan_bytes,
    request_body,
    warm_up_requests,
)
from engcmp_resources.errors import EngcmpError

MESSAGES = [{"role": "user", "content": "Hello."}]


def document(**changes: Any) -> dict[str, Any]:
    request = {"request_id": "r", "messages": MESSAGES, "max_tokens": 8, "seed": 1, "expected_prompt_tokens": 12}
    cell = {
        "cell_id": "c",
        "kind": "code",
        "concurrency": 2,
        "requests": [request | changes.pop("request", {})],
    } | changes.pop("cell", {})
    return {"model": "m", "sampling": {"temperature": 0.5}, "cells": [cell]} | changes


def plan(**changes: Any) -> Plan:
    return parse_plan(json.dumps(document(**changes)).encode(), where="plan.json")


def test_a_plan_is_read_and_written_and_has_one_digest_however_it_is_spaced() -> None:
    one = plan()
    assert parse_plan(plan_bytes(one), where="again").sha256 == one.sha256
    assert parse_plan(json.dumps(document(), indent=7).encode(), where="x").sha256 == one.sha256
    assert plan(request={"seed": 2}).sha256 != one.sha256


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": ""}, "model"),
        ({"cells": []}, "cells"),
        ({"more": 1}, "more"),
        ({"request": {"messages": None}}, "one of messages, prompt and token_ids"),
        ({"request": {"prompt": "x"}}, "one of messages, prompt and token_ids"),
        ({"request": {"messages": []}}, "not empty"),
        ({"request": {"max_tokens": 0}}, r"cells\[0\].requests\[0\].max_tokens"),
        ({"request": {"seed": "x"}}, r"cells\[0\].requests\[0\].seed"),
        ({"request": {"messages": None, "token_ids": [-1]}}, r"token_ids\[0\]"),
        ({"cell": {"concurrency": 0}}, r"cells\[0\].concurrency"),
        ({"cell": {"requests": []}}, r"cells\[0\].requests"),
        ({"cell": {"rate_per_s": 0}}, "rate_per_s"),
        ({"sampling": {"stream_options": None}}, "stream_options is set by the driver"),
        ({"sampling": {"max_tokens": 4}}, "max_tokens is set by the driver"),
        ({"cells": document()["cells"] * 2}, "'c' stands twice"),
        ({"request": {"max_tokens": 10**30}}, r"cells\[0\].requests\[0\].max_tokens"),
        ({"request": {"seed": 2**70}}, r"cells\[0\].requests\[0\].seed"),
        ({"request": {"seed": "1"}}, r"cells\[0\].requests\[0\].seed"),
        ({"request": {"request_id": "a\nb"}}, r"cells\[0\].requests\[0\].request_id"),
        ({"cell": {"cell_id": "a\x1b[31mb"}}, r"cells\[0\].cell_id"),
        ({"cell": {"concurrency": "4"}}, r"cells\[0\].concurrency"),
        ({"cell": {"concurrency": True}}, r"cells\[0\].concurrency"),
        ({"cell": {"concurrency": 10**6}}, r"cells\[0\].concurrency"),
        ({"cell": {"rate_per_s": float("inf")}}, "rate_per_s"),
        ({"sampling": {"temperature": float("nan")}}, "temperature is nan"),
    ],
)  # fmt: skip
def test_a_plan_that_is_wrong_names_the_field(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(EngcmpError, match=said) as refused:
        plan(**changes)
    assert "plan.json" in str(refused.value)


def test_a_key_that_stands_twice_is_refused() -> None:
    with pytest.raises(EngcmpError, match="the key 'model' stands twice"):
        parse_plan(b'{"model": "a", "model": "b", "cells": []}', where="plan.json")


def test_a_request_that_stands_twice_is_refused_across_cells() -> None:
    cells = document()["cells"]
    with pytest.raises(EngcmpError, match="request_id 'r' stands twice"):
        plan(cells=[cells[0], cells[0] | {"cell_id": "d"}])


def test_what_is_no_json_is_said_so() -> None:
    with pytest.raises(EngcmpError, match="the plan is not JSON"):
        parse_plan(b"{", where="plan.json")


def test_a_request_carries_its_sampling_in_full_and_asks_for_what_can_be_counted() -> None:
    one = plan()
    body = json.loads(request_body(one, one.cells[0].requests[0], Wishes()))
    assert body == {
        "model": "m", "messages": MESSAGES, "temperature": 0.5, "top_p": 1.0, "max_tokens": 8, "seed": 1, "stream": True,
        "return_token_ids": True, "timings_per_token": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }  # fmt: skip
    bare = json.loads(request_body(one, one.cells[0].requests[0], Wishes(token_ids=False, usage=False)))
    assert "stream_options" not in bare
    assert "return_token_ids" not in bare
    assert "timings_per_token" not in json.loads(request_body(one, one.cells[0].requests[0], Wishes(timings=False)))
    usage = json.loads(request_body(one, one.cells[0].requests[0], Wishes(continuous=False)))
    assert usage["stream_options"] == {"include_usage": True}


def test_sampling_that_is_not_given_is_sent_as_greedy_not_left_to_the_server() -> None:
    one = plan(sampling={}, request={"seed": None})
    body = json.loads(request_body(one, one.cells[0].requests[0], Wishes()))
    assert (body["temperature"], body["top_p"]) == (0.0, 1.0)
    assert "seed" not in body


def test_a_prompt_is_sent_as_it_is_to_the_path_it_belongs_to() -> None:
    for given, path, field in (
        ({"prompt": "a \n b"}, "/v1/completions", "a \n b"),
        ({"token_ids": [1, 2, 3]}, "/v1/completions", [1, 2, 3]),
    ):
        one = plan(request={"messages": None, **given})
        request = one.cells[0].requests[0]
        assert request.path == path
        assert json.loads(request_body(one, request, Wishes()))["prompt"] == field
    assert plan().cells[0].requests[0].path == "/v1/chat/completions"


def test_the_listing_has_a_line_for_each_request_with_its_prompts_digest() -> None:
    (one,) = listing(plan())
    (other,) = listing(plan(request={"messages": [{"role": "user", "content": "Hello!"}]}))
    assert one["prompt_sha256"] != other["prompt_sha256"]
    assert {name: one[name] for name in ("cell_id", "request_id", "expected_prompt_tokens", "seed", "max_tokens")} == {
        "cell_id": "c", "request_id": "r", "expected_prompt_tokens": 12, "seed": 1, "max_tokens": 8,
    }  # fmt: skip


def test_warm_up_is_the_plans_own_or_short_requests_that_share_no_prompt_with_it() -> None:
    own = {"request_id": "w", "prompt": "x", "max_tokens": 3}
    (request,) = warm_up_requests(plan(cell={"warmup": [own]}).cells[0], 5)
    assert request.request_id == "w"
    made = warm_up_requests(plan().cells[0], 3)
    assert len({one.prompt_sha256 for one in made} | {plan().cells[0].requests[0].prompt_sha256}) == 4
    assert {one.path for one in made} == {"/v1/chat/completions"}


def test_a_nonce_differs_between_cells_repeats_and_requests_and_has_one_length() -> None:
    lines = {
        nonce_line("s", cell, repeat, request) for cell in ("a", "b") for repeat in range(5) for request in range(20)
    }
    assert len(lines) == 200
    assert {len(line.split()) for line in lines} == {17}
    assert nonce_line("s", "a", 0, 0) == nonce_line("s", "a", 0, 0)
