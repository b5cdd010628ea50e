"""What the checks of an arm's cells find in replies of a real server: a promise of a cell's name that its requests do not keep."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import polars as pl
import pytest
from asking import driven, plan_of

from engcmp_assets.kernel.throughput.event_tables import requests_bytes
from engcmp_assets.throughput_cells.documents import cell_checks
from tests.simulator.running import Simulator, running_simulator

IGNORING = {"ignore_eos": True}


@pytest.fixture(scope="module")
def server() -> Iterator[Simulator]:
    with running_simulator("vllm") as simulator:
        yield simulator


def checks(server: Simulator, *faults: Any, limit: bool = False, **plan: Any) -> dict[str, str | None]:
    """What each check says where it has found something, else None."""
    server.script(*faults)
    plan = {"tokens": 10, "sampling": IGNORING} | plan
    _, records = driven(server.url, plan_of(2, **plan))
    requests = pl.read_parquet(io.BytesIO(requests_bytes([one.row for one in records])))
    failures = [one.row["cause"] for one in records if one.row["status"] != "ok"]
    cell = {"cell_id": "c", "complete": not failures, "failures": failures, "requests": 2, "client": {"limit": limit}}
    found = cell_checks({"repeat": 1, "cells": [cell], "repeats": []}, requests, fixed_output=True)
    return {one.name: None if one.passed else one.explanation for one in found}


def test_replies_as_planned_pass_every_check(server: Simulator) -> None:
    assert set(checks(server).values()) == {None}


def test_replies_that_end_although_ignore_eos_was_asked_are_no_cell_of_a_fixed_length(server: Simulator) -> None:
    found = checks(server, "ignore_eos_not_honoured")
    assert found.pop("output_lengths_as_asked") == "2 replies have another length than asked for, first r0"
    assert set(found.values()) == {None}


def test_replies_beyond_max_tokens_are_none_either(server: Simulator) -> None:
    assert checks(server, {"name": "max_tokens_ignored", "more": 2})["output_lengths_as_asked"]


def test_other_prompt_tokens_than_planned_are_told_with_the_first_request(server: Simulator) -> None:
    found = checks(server, request={"token_ids": [5, 6, 7], "expected_prompt_tokens": 4})
    assert found["prompt_tokens_as_planned"] == "2 requests have another number of prompt tokens, first r0"


def test_a_failed_request_and_a_client_that_was_the_limit_are_told_by_cell(server: Simulator) -> None:
    found = checks(server, {"name": "connection_cut", "at": {"token": 3}, "times": 1}, limit=True)
    assert found["client_was_not_the_limit"] == "It was in c, repeat 1"
    assert found["cells_complete"] == "c, repeat 1: 1 of 2 requests failed"
