"""llama-server's client as an ApiClient against the simulator over HTTP: rows equal to the truth, proofs, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from simulated import VOCAB, client_at, prove, simulated, soon, tokens, top20, truth

from engcmp_resources.engines._api import ApiClient, BrokenOff, Late
from engcmp_resources.errors import EngcmpError
from tests.simulator.running import Simulator

Pair = tuple[ApiClient, Simulator]
IDS, POSITIONS = tokens(40), [3, 4, 5, 17, 38]


@pytest.fixture(scope="module")
def shared() -> Iterator[Pair]:
    with simulated("llama-server") as (client, simulator):
        client.first_token(soon())
        yield client, simulator


@pytest.fixture
def pair(shared: Pair) -> Iterator[Pair]:
    yield shared
    shared[1].script()


def test_full_rows_are_the_truth(pair: Pair, tmp_path: Path) -> None:
    taken = pair[0].full_rows("decode", "w1", IDS, POSITIONS, tmp_path / "rows", deadline_s=20)
    rows = np.fromfile(tmp_path / "rows", dtype="<f4").reshape(len(POSITIONS), VOCAB)
    assert np.array_equal(rows, truth(IDS, POSITIONS))
    assert taken.rows == len(POSITIONS)
    assert taken.notes["prompt_tokens_processed"] == [1] * len(POSITIONS)


def test_light_rows_are_the_truth(pair: Pair) -> None:
    light = pair[0].light_rows("decode", "w1", IDS, POSITIONS, deadline_s=20)
    rows = truth(IDS, POSITIONS)
    ids, values = top20(rows)
    assert np.array_equal(light.top_ids, ids)
    assert np.allclose(light.top_log_probs, values, rtol=0, atol=1e-5)
    following = [float(row[IDS[position + 1]]) for row, position in zip(rows, POSITIONS, strict=True)]
    assert np.allclose(light.next_log_prob, following, rtol=0, atol=1e-5)


def test_a_part_that_begins_anew_is_processed_anew(pair: Pair, tmp_path: Path) -> None:
    before = len(pair[1].truth(path="/completion"))
    pair[0].full_rows("decode", "w1", IDS, [3, 4, 20], tmp_path / "rows", deadline_s=20)
    sent = [len(record["prompt_ids"]) for record in pair[1].truth(path="/completion")[before:]]
    assert sent == [3, 4, 5, 20, 21]  # each beginning as one prompt, then its rows


def test_the_proof_says_what_the_server_can_do(pair: Pair) -> None:
    proved, facts = prove(pair[0])
    assert (proved.prompt_logprobs, proved.decode_logprobs, proved.rows) == (0, "full", ("decode",))
    assert proved.tokenizer
    assert proved.token_ids
    assert proved.cached_tokens
    assert not proved.continuous_usage
    assert set(proved.evidence) >= {"rows", "decode_logprobs", "metrics", "thinking_switch"}
    assert facts["n_ctx"] == 8192
    assert facts["kv_pool"]["tokens"] == facts["n_ctx"] * facts["slots"]
    assert facts["stated"]["/props"]["total_slots"] == facts["slots"]
    assert set(facts["tokenizer"]) >= {"<think>a</think>", ""}


def test_a_vocabulary_of_another_width_is_refused(pair: Pair) -> None:
    with pytest.raises(EngcmpError, match="rows have 500 values, the server's vocabulary 512"):
        client_at("llama-server", pair[1].url, vocab=500).prove(soon())


@pytest.mark.parametrize(
    ("positions", "what"),
    [
        ([0, 1], "row 0 has no token before it"),
        ([39, 40], r"a row outside 0\.\.39"),
        ([3, 3], "a row is asked for twice"),
        ([], "40 tokens and 0 rows"),
    ],
)
def test_rows_that_cannot_be_had_are_refused(pair: Pair, positions: list[int], what: str, tmp_path: Path) -> None:
    with pytest.raises(EngcmpError, match=what):
        pair[0].full_rows("decode", "w1", IDS, positions, tmp_path / "rows", deadline_s=20)
    assert not list(tmp_path.iterdir())


def test_the_prefill_path_and_a_row_without_a_next_token_are_refused(pair: Pair, tmp_path: Path) -> None:
    with pytest.raises(EngcmpError, match="gives no rows of the prefill path"):
        pair[0].full_rows("prefill", "w1", IDS, [3], tmp_path / "rows", deadline_s=20)
    with pytest.raises(EngcmpError, match="row 39 has no next token in 40 tokens"):
        pair[0].light_rows("decode", "w1", IDS, [39], deadline_s=20)


def test_rows_beyond_the_context_are_refused(tmp_path: Path) -> None:
    with simulated("llama-server", context=32) as (client, _):
        client.first_token(soon())
        with pytest.raises(EngcmpError, match="row 31 takes 33 tokens, the context holds 32"):
            client.full_rows("decode", "w1", IDS, [31], tmp_path / "rows", deadline_s=20)


def test_a_stuck_engine_is_late_and_a_dead_one_breaks_off(tmp_path: Path) -> None:
    with simulated("llama-server") as (client, simulator):
        client.first_token(soon())
        simulator.script("stuck_but_healthy")
        with pytest.raises(Late, match="no whole answer in time"):
            client.light_rows("decode", "w1", IDS, [3], deadline_s=0.5)
        simulator.script({"name": "dies_at_token", "at": {"token": 0}})
        with pytest.raises(BrokenOff, match=r"decoding row 3|processing what precedes row 3"):
            client.full_rows("decode", "w1", IDS, [3], tmp_path / "rows", deadline_s=20)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        ("html", "the answer is no JSON"),
        ("http_429", "HTTP status 429"),
        ("dead_behind_health", "HTTP status 500"),
        ("model_name_wrong", "another/model"),
    ],
)
def test_an_answer_that_is_not_as_it_must_be_is_told(pair: Pair, fault: str, what: str) -> None:
    pair[1].script(fault)
    with pytest.raises(EngcmpError, match=what):
        pair[0].light_rows("decode", "w1", IDS, [3], deadline_s=20)


def test_a_tokenizer_route_gives_ids_without_added_ones(pair: Pair) -> None:
    ids = pair[0].tokenize("ab")
    assert ids is not None
    assert len(ids) == 2
    assert pair[0].tokenize("") == []
