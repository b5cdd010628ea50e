"""The dialect of llama.cpp's server, as the project's own client of it asks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from engcmp_resources.engines._llamacpp_http import CompletionClient
from engcmp_resources.errors import EngcmpError

from . import model as truth
from .model import Model, chat_prompt, log_softmax, tokenize
from .running import Simulator, running_simulator
from .talking import MODEL, ask, chat, chat_stream, stream

PROMPT = tokenize("The server decodes these rows.")


@pytest.fixture
def client(llama_server: Simulator) -> Iterator[CompletionClient]:
    made = CompletionClient(llama_server.url, key="k", label="arm", model=MODEL, vocab=512)
    yield made
    made.close()


def test_the_projects_client_gets_ready_and_decodes_the_models_rows(client: CompletionClient) -> None:
    said = client.get_ready(10.0)
    assert (said["n_ctx"], said["slots"], said["n_vocab"]) == (8192, 2, 512)
    assert said["build_info"] == "b11549-simulated"
    client.process_prefix(PROMPT[:10], doing="x", deadline_s=10)
    for row in range(10, len(PROMPT)):
        values, processed = client.decode_row(PROMPT[: row + 1], doing="x", deadline_s=10)
        assert values.tobytes() == log_softmax(Model().logits(PROMPT[: row + 1])).tobytes()
        assert processed == 1


def test_a_row_that_is_not_decoded_is_told_by_the_timings(client: CompletionClient, llama_server: Simulator) -> None:
    client.process_prefix(PROMPT[:4], doing="x", deadline_s=10)
    with pytest.raises(EngcmpError, match="took 4 tokens from its cache and processed 4"):
        client.decode_row(PROMPT[:8], doing="x", deadline_s=10)
    assert llama_server.last()["cached_tokens"] == 4


def test_slots_keep_their_own_tokens(llama_server: Simulator) -> None:
    def cached(slot: int) -> int:
        body = {"prompt": PROMPT, "n_predict": 1, "id_slot": slot, "cache_prompt": True}
        answer = ask(llama_server, "/completion", body).json()
        assert answer["id_slot"] == slot
        return int(answer["timings"]["cache_n"])

    ask(llama_server, "/completion", {"prompt": [9], "n_predict": 1, "id_slot": 1, "cache_prompt": False})
    ask(llama_server, "/completion", {"prompt": [9], "n_predict": 1, "id_slot": 0, "cache_prompt": False})
    assert [cached(0), cached(0), cached(1)] == [0, len(PROMPT) - 1, 0]


def test_tokens_with_and_without_special_ones(llama_server: Simulator) -> None:
    assert ask(llama_server, "/tokenize", {"content": "a</think>"}).json()["tokens"] == [
        *tokenize("a"),
        truth.END_THINK,
    ]
    plain = ask(llama_server, "/tokenize", {"content": "a</think>", "parse_special": False, "add_special": True}).json()
    assert plain["tokens"] == [truth.BOS, *tokenize("a</think>")]
    assert ask(llama_server, "/detokenize", {"tokens": tokenize("hi")}).json() == {"content": "hi"}


def test_a_completion_gives_its_distributions_and_its_end(llama_server: Simulator) -> None:
    body = {"prompt": PROMPT, "n_predict": 5, "temperature": 0, "n_probs": 3, "return_tokens": True, "ignore_eos": True}
    answer = ask(llama_server, "/completion", body).json()
    reply = Model().greedy(PROMPT, 5)
    assert answer["tokens"] == reply
    assert (answer["stop_type"], answer["tokens_predicted"], answer["tokens_evaluated"]) == ("limit", 5, len(PROMPT))
    rows = log_softmax(Model().rows([*PROMPT, *reply], range(len(PROMPT) - 1, len(PROMPT) + 4)))
    for said, row, token in zip(answer["completion_probabilities"], rows, reply, strict=True):
        assert (said["id"], said["logprob"]) == (token, float(row[token]))
        assert [one["id"] for one in said["top_logprobs"]] == np.argsort(-row, kind="stable")[:3].tolist()


def test_a_streamed_completion_ends_with_its_timings(llama_server: Simulator) -> None:
    heard = stream(
        llama_server, "/completion", {"prompt": PROMPT, "n_predict": 5, "temperature": 0, "ignore_eos": True}
    )
    assert [token for event in heard.events for token in event["tokens"]] == Model().greedy(PROMPT, 5)
    assert [event["stop"] for event in heard.events] == [False] * 5 + [True]
    assert heard.events[-1]["timings"]["predicted_n"] == 5


def test_chats_think_in_reasoning_content(llama_server: Simulator) -> None:
    heard = chat_stream(llama_server, max_tokens=6)
    assert heard.text("reasoning_content") == truth.detokenize(Model().greedy(chat_prompt([("user", "Hello.")]), 6))
    assert chat(llama_server, max_tokens=6).json()["usage"]["completion_tokens"] == 6


def test_a_key_is_asked_for_but_not_by_health_and_models(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("secret")
    with running_simulator("llama-server", api_key_file=key, model="m") as simulator:
        for path in ("/health", "/v1/models"):
            assert ask(simulator, path).status_code == 200
        assert ask(simulator, "/props").status_code == 401
        made = CompletionClient(simulator.url, key="secret", label="arm", model="m", vocab=512)
        made.get_ready(10.0)
        made.close()
        wrong = CompletionClient(simulator.url, key="other", label="arm", model="m", vocab=512)
        with pytest.raises(EngcmpError, match=r"HTTP status 401: .*Invalid API Key"):
            wrong.get_ready(10.0)
        wrong.close()


def test_an_empty_prompt_is_refused(llama_server: Simulator) -> None:
    answer = ask(llama_server, "/completion", {"prompt": []})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
