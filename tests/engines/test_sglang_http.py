"""SGLang's client against the simulator over HTTP: rows equal to the truth, proofs, and each fault told as what it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulated import client_at, planted, prove, simulated, soon, tokens, top20, truth

from engcmp_resources.engines._api import ApiClient, BrokenOff, Http, Late, tokenizer_differences
from engcmp_resources.errors import EngcmpError
from engcmp_resources.secrecy import hidden_secret, is_secret
from tests.simulator.running import Simulator

Pair = tuple[ApiClient, Simulator]
IDS, POSITIONS = tokens(40), [3, 0, 17, 38]


@pytest.fixture(scope="module")
def shared() -> Iterator[Pair]:
    with simulated("sglang") as pair:
        yield pair


@pytest.fixture
def pair(shared: Pair) -> Iterator[Pair]:
    yield shared
    shared[1].script()


def light(client: ApiClient, deadline_s: float = 20) -> Any:
    return client.light_rows("prefill", "w1", IDS, POSITIONS, deadline_s=deadline_s)


def test_light_rows_are_the_engine_s_own_numbers(pair: Pair) -> None:
    rows = light(pair[0])
    wanted = truth(IDS, POSITIONS)
    ids, values = top20(wanted)
    assert np.array_equal(rows.top_ids, ids)
    assert np.array_equal(rows.top_log_probs, values)
    assert rows.next_log_prob.tolist() == [float(row[IDS[p + 1]]) for row, p in zip(wanted, POSITIONS, strict=True)]
    assert rows.notes["cached_tokens"] == 0


def test_full_rows_by_naming_every_id_are_the_truth_bit_for_bit(pair: Pair, tmp_path: Path) -> None:
    taken = pair[0].full_rows("prefill", "w1", IDS, POSITIONS, tmp_path / "rows", deadline_s=20)
    assert (tmp_path / "rows").read_bytes() == truth(IDS, POSITIONS).tobytes()
    assert taken.rows == 4


def test_the_proof_says_what_the_server_can_do_and_how_it_was_found(pair: Pair) -> None:
    proved, facts = prove(pair[0])
    assert (proved.prompt_logprobs, proved.decode_logprobs, proved.rows) == ("full", 0, ("prefill",))
    assert proved.token_ids
    assert proved.continuous_usage
    assert proved.cached_tokens
    assert proved.metrics
    assert proved.tokenizer
    assert proved.thinking_switch
    assert "4 of 4 rows" in proved.evidence["prompt_logprobs"]
    assert facts["kv_pool"] == {"tokens": 65_536, "how": "max_total_num_tokens of /server_info", "max_model_len": 8192}
    assert facts["stated"]["/server_info"]["max_prefill_tokens"] == 2048


def test_rows_of_the_decode_path_are_refused_with_the_reason(pair: Pair, tmp_path: Path) -> None:
    with pytest.raises(EngcmpError, match=r"decodes only tokens that it has chosen itself"):
        pair[0].full_rows("decode", "w1", IDS, POSITIONS, tmp_path / "rows", deadline_s=5)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("prompt_logprobs_missing", "gives no log-probabilities of the prompt"),
        ("prompt_logprobs_short", "39 entries of prompt log-probabilities for 40 tokens"),
        ("nan_rows", "window w1, row 3: 20 values are NaN"),
        ("html", "the answer is no JSON: '<"),
        ({"name": "json_cut", "at": {"path": "/generate"}}, "the answer is no JSON"),
        ({"name": "http_429", "retry_after_s": 7}, r"too busy \(429\) and asks to wait 7 s"),
        ("http_error", "HTTP status 500"),
        ("dead_behind_health", "HTTP status 500"),
        ("prompt_truncated", "40 tokens were sent and the server took 8"),
        ({"name": "usage_wrong", "completion": 0, "prompt": 1}, "40 tokens were sent and the server took 41"),
    ],
)
def test_an_answer_that_is_not_as_it_must_be_is_no_row(pair: Pair, fault: Any, said: str, tmp_path: Path) -> None:
    client, simulator = pair
    simulator.script(fault)
    with pytest.raises(EngcmpError, match=said):
        light(client)
    out = tmp_path / "rows"
    with pytest.raises(EngcmpError, match=said.replace("20 values", "512 values")):
        client.full_rows("prefill", "w1", IDS, POSITIONS, out, deadline_s=20)
    assert list(tmp_path.iterdir()) == []


def test_cached_tokens_void_a_capture(pair: Pair) -> None:
    client, simulator = pair
    simulator.script("logprobs_stale", "cache_always_hits")
    with pytest.raises(EngcmpError, match=r"of 40 tokens came from the prefix cache"):
        light(client)


@pytest.mark.parametrize(
    ("faults", "said"),
    [
        ([{"name": "logprobs_shifted", "by": 1}], r"shifted by -1 rows"),
        ([{"name": "logprobs_shifted", "by": -1}], r"shifted by \+1 rows"),
        (["logprobs_processed"], r"processed: at half the temperature their spread is 2\.\d\d times as large"),
        (["logprobs_stale", "cache_hidden", "cache_always_hits"], "stale, or of another prompt"),
    ],
)
def test_log_probabilities_that_are_not_what_they_seem_stop_the_run(pair: Pair, faults: list[Any], said: str) -> None:
    client, simulator = pair
    simulator.script(*faults)
    with pytest.raises(EngcmpError, match=said):
        prove(client)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("prompt_logprobs_missing", "none for a prompt of 32 tokens"),
        ("prompt_logprobs_short", "31 for a prompt of 32 tokens"),
        ({"name": "prompt_logprobs_refused", "status": 500}, "refused with status 500"),
    ],
)
def test_a_server_that_cannot_score_a_prompt_is_said_to_lack_it(pair: Pair, fault: Any, said: str) -> None:
    client, simulator = pair
    simulator.script(fault)
    proved, _ = prove(client)
    assert (proved.prompt_logprobs, proved.rows) == (0, ())
    assert said in proved.evidence["prompt_logprobs"]


def test_the_wrong_model_is_refused_at_the_first_token(pair: Pair) -> None:
    client, simulator = pair
    simulator.script("model_name_wrong")
    with pytest.raises(EngcmpError, match=r"serves the model 'another/model', not 'sim/model'"):
        client.first_token(soon())


def test_an_engine_that_is_healthy_but_gives_no_token_is_late(pair: Pair) -> None:
    client, simulator = pair
    simulator.script("stuck_but_healthy")
    with pytest.raises(Late, match=r"while asking for a first token"):
        client.first_token(soon(0.5))


def test_an_engine_that_dies_in_a_row_breaks_off() -> None:
    with simulated("sglang", faults=[{"name": "dies_in_row", "at": {"row": 17}}]) as (client, simulator):
        with pytest.raises(BrokenOff, match=r"broke off while scoring window w1"):
            light(client)
        assert simulator.process.wait(10) == 3


def test_tokenizers_are_told_apart_by_the_probe_texts(pair: Pair) -> None:
    client, simulator = pair
    _, right = prove(client)
    simulator.script("control_strings_parsed")
    _, parsed = prove(client)
    assert len(tokenizer_differences(right["tokenizer"], parsed["tokenizer"])) == 2


def test_an_actual_token_that_shares_the_last_place_with_a_higher_id_takes_it() -> None:
    even = float(np.log(0.04))
    top = [[even, token, None] for token in range(10, 30)]
    meta: dict[str, Any] = {"prompt_tokens": 3, "completion_tokens": 1, "cached_tokens": 0}
    meta["input_token_logprobs"] = [[None, 5, None], [-9.0, 6, None], [even, 7, None]]
    meta["input_top_logprobs"] = [None, top, top]
    with planted(lambda *_: {"meta_info": meta, "output_ids": [1]}) as url:
        found = client_at("sglang", url).light_rows("prefill", "w", [5, 6, 7], [0, 1], deadline_s=5)
    assert found.top_ids[0].tolist() == list(range(10, 30))
    assert found.top_ids[1].tolist() == [7, *range(10, 29)]
    assert found.next_log_prob.tolist() == [-9.0, even]


def test_an_error_inside_an_answer_is_an_error() -> None:
    with (
        planted(lambda *_: {"error": {"message": "out of memory"}}) as url,
        pytest.raises(EngcmpError, match="out of memory"),
    ):
        light(client_at("sglang", url))


def test_no_secret_of_the_server_s_own_statement_is_kept() -> None:
    key = "sk-very-secret-key"
    said = {
        "api_key": key,
        "launch_command": f"sglang serve --api-key {key}",
        "server_args": [{"ssl_password": "abc", "tp_size": 2, "eos_token": "</s>"}],
    }
    with planted(lambda *_: said) as url:
        http = Http(url, key=key, label="arm x")
        found = http.found("/server_info", None, "looking", soon(5))
        http.close()
    assert found is not None
    assert key not in str(found)
    assert found["api_key"] == hidden_secret(key)
    assert found["launch_command"] == f"sglang serve --api-key {hidden_secret(key)}"
    assert found["server_args"] == [{"ssl_password": hidden_secret("abc"), "tp_size": 2, "eos_token": "</s>"}]


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("HF_TOKEN", True),
        ("MY_API_KEY", True),
        ("api_key", True),
        ("hf_token", True),
        ("DFLASH_TOKENS", False),
        ("eos_token", False),
    ],
)
def test_which_names_are_of_secrets(name: str, secret: bool) -> None:
    assert is_secret(name) is secret
