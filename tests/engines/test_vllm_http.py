"""vLLM's client against the simulator over HTTP: rows equal to the truth, proofs, and each fault told as what it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulated import MODEL, VOCAB, client_at, planted, prove, simulated, soon, tokens, top20, truth

from engcmp_resources.engines._api import ApiClient, BrokenOff, Late, make_client, tokenizer_differences
from engcmp_resources.errors import EngcmpError
from tests.simulator.running import Simulator

Pair = tuple[ApiClient, Simulator]
IDS, POSITIONS = tokens(40), [0, 3, 17, 38]


@pytest.fixture(scope="module")
def shared() -> Iterator[Pair]:
    with simulated("vllm") as pair:
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
    assert rows.notes["prompt_tokens"] == len(IDS)
    assert rows.seconds > 0


def test_full_rows_are_the_truth_bit_for_bit(tmp_path: Path) -> None:
    with simulated("vllm", max_logprobs=-1) as (client, _):
        taken = client.full_rows("prefill", "w1", IDS, POSITIONS, tmp_path / "rows", deadline_s=20)
        proved, _ = prove(client)
    assert (tmp_path / "rows").read_bytes() == truth(IDS, POSITIONS).tobytes()
    assert taken.rows == 4
    assert proved.prompt_logprobs == "full"
    assert proved.rows == ("prefill",)


def test_the_proof_says_what_the_server_can_do_and_how_it_was_found(pair: Pair) -> None:
    proved, facts = prove(pair[0])
    assert (proved.prompt_logprobs, proved.decode_logprobs, proved.rows) == (20, 0, ())
    assert proved.light("prefill")
    assert not proved.light("decode")
    assert proved.token_ids
    assert proved.continuous_usage
    assert proved.cached_tokens
    assert proved.metrics
    assert proved.tokenizer
    assert proved.thinking_switch
    assert "4 of 4 rows" in proved.evidence["prompt_logprobs"]
    assert facts["kv_pool"]["tokens"] == 65_536
    assert facts["kv_pool"]["how"] == "kv_cache_size_tokens of cache_config_info"
    assert facts["kv_pool"]["max_model_len"] == 8192
    assert facts["stated"]["/version"] == {"version": "0.33.0"}
    assert facts["template"]["prompt"]["token_ids"][:2] == [1, 3]
    assert facts["thinking"]["off"]["prompt_tokens"] == facts["thinking"]["on"]["prompt_tokens"] + 1


def test_rows_of_the_decode_path_are_refused_with_the_reason(pair: Pair) -> None:
    with pytest.raises(EngcmpError, match=r"decodes only tokens that it has chosen itself"):
        pair[0].light_rows("decode", "w1", IDS, POSITIONS, deadline_s=5)


def test_full_rows_as_json_of_more_than_can_be_held_are_refused_before_they_are_asked_for(
    pair: Pair, tmp_path: Path
) -> None:
    client = make_client("vllm", pair[1].url, key=None, label="arm x", model=MODEL, vocab=154_880)
    with pytest.raises(EngcmpError, match=r"window w1: its full rows as JSON take some 25 GB"):
        client.full_rows("prefill", "w1", [1] * 1000, [0], tmp_path / "rows", deadline_s=5)


@pytest.mark.parametrize(
    ("ids", "positions", "said"),
    [
        ([], [0], "0 tokens"),
        (IDS, [], "0 rows"),
        (IDS, [39], r"a row outside 0\.\.38"),
        (IDS, [1, 1], "twice"),
        ([VOCAB, 20], [0], "token id outside"),
    ],
)
def test_windows_that_cannot_be_served_are_refused(pair: Pair, ids: list[int], positions: list[int], said: str) -> None:
    with pytest.raises(EngcmpError, match=rf"window w1: .*{said}"):
        pair[0].light_rows("prefill", "w1", ids, positions, deadline_s=5)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("prompt_logprobs_missing", "gives no log-probabilities of the prompt"),
        ("prompt_logprobs_short", "39 entries of prompt log-probabilities for 40 tokens"),
        ({"name": "prompt_logprobs_short", "rows": 5}, "35 entries"),
        ("nan_rows", "window w1, row 3: 21 values are NaN"),
        ("html", "the answer is no JSON: '<"),
        ({"name": "json_cut", "at": {"path": "/v1/completions"}}, "the answer is no JSON"),
        ({"name": "http_429", "retry_after_s": 7}, r"too busy \(429\) and asks to wait 7 s"),
        ("http_error", "HTTP status 500"),
        ("dead_behind_health", "HTTP status 500"),
        ("prompt_truncated", "40 tokens were sent and the server took 8"),
        ({"name": "usage_wrong", "completion": 0, "prompt": 1}, "40 tokens were sent and the server took 41"),
        ("usage_missing", "usage"),
        ("model_name_wrong", "404|serves the model 'another/model'"),
    ],
)
def test_an_answer_that_is_not_as_it_must_be_is_no_row(pair: Pair, fault: Any, said: str) -> None:
    client, simulator = pair
    simulator.script(fault)
    with pytest.raises(EngcmpError, match=said) as told:
        light(client)
    assert "arm k4/engine@v1" in str(told.value)
    assert told.value.remedy


def test_cached_tokens_void_a_capture(pair: Pair) -> None:
    client, simulator = pair
    simulator.script("logprobs_stale", "cache_always_hits")
    with pytest.raises(EngcmpError, match=r"of 40 tokens came from the prefix cache"):
        light(client)


def test_each_request_has_a_salt_so_that_a_server_that_reads_its_cache_gives_rows_of_its_own(pair: Pair) -> None:
    client, simulator = pair
    simulator.script("logprobs_stale", "cache_hidden")
    client.light_rows("prefill", "w0", tokens(40, seed=8), POSITIONS, deadline_s=20)
    rows, again = light(client), light(client)
    assert np.array_equal(rows.top_log_probs, top20(truth(IDS, POSITIONS))[1])
    assert np.array_equal(rows.top_log_probs, again.top_log_probs)


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
        ({"name": "prompt_logprobs_refused", "status": 400}, "refused with status 400"),
    ],
)
def test_a_server_that_cannot_score_a_prompt_is_said_to_lack_it(pair: Pair, fault: Any, said: str) -> None:
    client, simulator = pair
    simulator.script(fault)
    proved, _ = prove(client)
    assert proved.prompt_logprobs == 0
    assert not proved.light("prefill")
    assert said in proved.evidence["prompt_logprobs"]


def test_a_server_that_gives_fewer_log_probabilities_is_said_to_give_so_many() -> None:
    with simulated("vllm", max_logprobs=5) as (client, _):
        proved, _ = prove(client)
    assert proved.prompt_logprobs == 5
    assert not proved.light("prefill")


@pytest.mark.parametrize(
    ("fault", "name"), [("token_ids_missing", "token_ids"), ("usage_missing", "usage"), ("thinking_switch_ignored", "")]
)
def test_what_the_server_does_not_give_is_not_declared(pair: Pair, fault: str, name: str) -> None:
    client, simulator = pair
    if name == "usage":
        simulator.script({"name": fault, "at": {"path": "/v1/chat/completions"}})
        assert prove(client)[0].continuous_usage
        return
    simulator.script(fault)
    proved, _ = prove(client)
    assert proved.token_ids is (name != "token_ids")
    assert proved.thinking_switch is bool(name)


def test_the_wrong_model_is_refused_at_the_first_token(pair: Pair) -> None:
    client, simulator = pair
    simulator.script("model_name_wrong")
    with pytest.raises(EngcmpError, match=r"serves the model 'another/model', not 'sim/model'"):
        client.first_token(soon())


def test_an_engine_that_is_healthy_but_gives_no_token_is_late(pair: Pair) -> None:
    client, simulator = pair
    simulator.script("stuck_but_healthy")
    with pytest.raises(Late, match=r"no whole answer in time while asking for a first token"):
        client.first_token(soon(0.5))
    with pytest.raises(Late, match=r"while scoring window w1"):
        light(client, deadline_s=0.5)


@pytest.mark.parametrize("fault", ["dies_in_row", "connection_cut"])
def test_an_engine_that_dies_in_a_row_breaks_off(fault: str) -> None:
    where = {"row": 17} if fault == "dies_in_row" else {"path": "/v1/completions"}
    with simulated("vllm", faults=[{"name": fault, "at": where}]) as (client, simulator):
        if fault == "connection_cut":
            with pytest.raises(EngcmpError):
                client.prove(soon(2))
            return
        with pytest.raises(BrokenOff, match=r"broke off while scoring window w1"):
            light(client)
        assert simulator.process.wait(10) == 3


def test_tokenizers_are_told_apart_by_the_probe_texts(pair: Pair) -> None:
    client, simulator = pair
    _, right = prove(client)
    simulator.script("control_strings_parsed")
    _, parsed = prove(client)
    simulator.script("tokenizer_other")
    _, other = prove(client)
    assert tokenizer_differences(right["tokenizer"], right["tokenizer"]) == []
    said = tokenizer_differences(right["tokenizer"], parsed["tokenizer"])
    assert len(said) == 2
    assert said[1].startswith("'<|im_start|>user")
    assert "they part at id 0" in said[1]
    assert len(tokenizer_differences(right["tokenizer"], other["tokenizer"])) == 6
    assert client.tokenize("ab") == [8 + byte for byte in b"6162"]


@pytest.mark.parametrize("fault", ["bos_double", "bos_missing"])
def test_a_double_or_missing_begin_token_is_told(pair: Pair, fault: str) -> None:
    client, simulator = pair
    _, right = prove(client)
    simulator.script(fault)
    _, wrong = prove(client)
    first = {name: {"chat": facts["template"]["prompt"]["token_ids"]} for name, facts in (("a", right), ("b", wrong))}
    assert tokenizer_differences(first["a"], first["b"]) == ["'chat': one side puts token 1 in front"]


def test_a_batch_that_was_cut_in_silence_is_a_fact_of_the_launch(pair: Pair) -> None:
    client, simulator = pair
    stated = []
    for faults in ((), ("settings_cut",)):
        simulator.script(*faults)
        stated.append(prove(client)[1]["stated"]["/metrics cache_config_info"]["max_num_batched_tokens"])
    assert stated == ["2048", "540"]


def answer(rows: list[Any], **changed: Any) -> dict[str, Any]:
    choice = {"index": 0, "text": "a", "prompt_logprobs": rows, "prompt_token_ids": [5, 6, 7]}
    return {"model": MODEL, "choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 1}} | changed


def entry(log_probs: dict[int, float]) -> dict[str, Any]:
    return {str(token): {"logprob": value, "rank": 1, "decoded_token": "x"} for token, value in log_probs.items()}


EVEN = dict.fromkeys(range(10, 30), float(np.log(0.04)))


def test_a_tie_at_rank_20_goes_to_the_lower_id_and_an_actual_token_outside_is_no_bucket() -> None:
    # 21 ids: the actual token 7 is as probable as the last of the 20, and has the lower id; 6 is less probable than all.
    rows = [None, entry({6: -9.0} | EVEN), entry({7: EVEN[29]} | EVEN)]
    with planted(lambda *_: answer(rows)) as url:
        found = client_at("vllm", url).light_rows("prefill", "w", [5, 6, 7], [1, 0], deadline_s=5)
    assert found.top_ids[0].tolist() == [7, *range(10, 29)]
    assert found.top_ids[1].tolist() == list(range(10, 30))
    assert found.next_log_prob.tolist() == [EVEN[29], -9.0]
    assert found.notes["cached_tokens"] == {"missing": "the API does not state it"}


def test_the_lowest_value_stands_for_probability_0() -> None:
    rows = [None, entry({6: -9999.0} | EVEN), entry({7: -9999.0} | EVEN)]
    with planted(lambda *_: answer(rows)) as url:
        found = client_at("vllm", url).light_rows("prefill", "w", [5, 6, 7], [0], deadline_s=5)
    assert found.next_log_prob.tolist() == [-np.inf]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"error": {"message": "engine is dead", "code": 500}}, "an error inside an answer with status 200: .*engine is dead"),
        (answer([entry(EVEN), entry(EVEN), entry(EVEN)]), "3 entries .* for 3 tokens, the first not null"),
        (answer([None, entry(EVEN), entry(EVEN)]), "row 0: the window's next token 6 is not in it"),
        (answer([None, entry({6: -1.0}), entry(EVEN)]), "row 0: 1 ids from 6 to 6, 20 were asked for"),
        (answer([None, entry({6: 0.5} | EVEN), entry(EVEN)]), r"row 0: its probabilities sum to 2\.4"),
        (answer([None, entry({6: -1.0, 512: -9.0} | dict(list(EVEN.items())[1:])), entry(EVEN)]), "ids from 6 to 512"),
        (answer([None, entry(EVEN), entry(EVEN)], choices=[]), "0 choices"),
        (answer([None, "x", entry(EVEN)]), "row 0: Expected `object`"),
        (b"[" * 100_000, "no JSON|Expected"),
    ],
)  # fmt: skip
def test_planted_answers_are_refused(made: Any, said: str) -> None:
    with planted(lambda *_: made) as url, pytest.raises(EngcmpError, match=said):
        client_at("vllm", url).light_rows("prefill", "w", [5, 6, 7], [0], deadline_s=5)
