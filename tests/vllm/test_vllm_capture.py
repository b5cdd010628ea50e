"""The capture plugin in the real vLLM (V1 runner, CPU build): rows against the API, alone, beside others, in chunks of another size."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving import MODEL, MOUNTED, Server, command, environment, serving

from engcmp_resources.engines._api import make_client
from engcmp_resources.engines.vllm_plugin.reading import (
    CapturedWindow,
    capture_notes,
    check_against_api,
    read_capture,
    rows_by_chunk,
)
from engcmp_resources.errors import EngcmpError

VOCAB = 49_152
TOKENS = [int(token) for token in np.random.default_rng(1).integers(100, 40_000, 300)]
CHUNK = 128


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("served")


@dataclass(frozen=True)
class InChunks:
    """What a server that reads 128 tokens a step wrote of the 300, twice, and of 129."""

    once: CapturedWindow
    again: CapturedWindow
    edge: CapturedWindow
    difference: float


@pytest.fixture(scope="module")
def in_chunks(vllm_python: Path, checkpoint: Path, folder: Path) -> InChunks:
    options = ("--max-num-batched-tokens", str(CHUNK), "--max-num-seqs", "4")
    with serving(vllm_python, checkpoint, folder / "chunked", *options) as server:
        once, difference = captured(server, "once")
        again, _ = captured(server, "again")
        # Exactly to the last row but one: the step after it has no row to give.
        edge, _ = captured(server, "edge", TOKENS[: CHUNK + 1])
    return InChunks(once, again, edge, difference)


@pytest.fixture(scope="module")
def whole(vllm_python: Path, checkpoint: Path, folder: Path, in_chunks: InChunks) -> Iterator[Server]:
    """A server that reads these prompts in one step, once the other one has ended: two would be slow and large."""
    assert in_chunks
    with serving(vllm_python, checkpoint, folder / "whole") as server:
        yield server


def api_log_probs(answer: Any, tokens: list[int]) -> list[float]:
    entries = answer["choices"][0]["prompt_logprobs"]
    assert entries[0] is None
    return [entry[str(token)]["logprob"] for entry, token in zip(entries[1:], tokens[1:], strict=True)]


def captured(server: Server, window: str, tokens: list[int] | None = None) -> tuple[CapturedWindow, float]:
    """A window's rows, and their largest difference from the API's own log-probabilities."""
    tokens = TOKENS if tokens is None else tokens
    answer = server.capture(window, tokens)
    rows = read_capture(server.captures, window, tokens, vocab=VOCAB)
    return rows, check_against_api(rows, tokens, api_log_probs(answer, tokens))


def test_rows_are_the_head_s_own_and_the_manifest_says_how_they_came(
    whole: Server, record_property: Callable[[str, object], None]
) -> None:
    window, difference = captured(whole, "alone")
    record_property("largest difference from the API", difference)
    print(f"largest difference from the API: {difference:.3g} nats")
    assert window.rows.dtype == "BF16"
    assert window.rows.positions.tolist() == list(range(299))
    assert window.rows.block(0, 299).shape == (299, VOCAB)
    manifest = window.manifest
    assert (manifest["runner"], manifest["vllm"], manifest["dtype"]) == ("v1", "0.32.0", "BF16")
    assert (manifest["cached_tokens"], manifest["chunk_lengths"], manifest["rows"]) == (0, [300], 299)
    (chunk,) = manifest["chunks"]
    assert {name: chunk[name] for name in ("start", "tokens", "other_requests", "other_tokens")} == {
        "start": 0, "tokens": 300, "other_requests": 0, "other_tokens": 0,
    }  # fmt: skip
    assert chunk["step"] > 0
    notes = capture_notes(window, difference)
    assert (notes["other_requests_in_step"], notes["largest_difference_from_api_nats"]) == ([0], difference)
    assert notes["capture"]["chunks"] == [chunk]
    assert list(manifest["hooked"]) == ["vllm.v1.worker.gpu_model_runner:GPUModelRunner._get_prompt_logprobs_dict"]


def test_a_second_capture_is_bit_equal_and_takes_no_row_from_the_cache(whole: Server) -> None:
    first, _ = captured(whole, "first")
    second, _ = captured(whole, "second")
    assert rows_by_chunk(first, second) == [{"start": 0, "rows": 299, "equal": 299}]
    assert second.manifest["chunks"][0]["step"] > first.manifest["chunks"][0]["step"]


def test_the_answer_is_the_same_and_nothing_is_written_without_being_asked_for(whole: Server) -> None:
    before = sorted(path.name for path in whole.captures.iterdir())
    plain = whole.score(TOKENS)
    assert sorted(path.name for path in whole.captures.iterdir()) == before
    asked = whole.capture("same-answer", TOKENS)
    assert asked["choices"][0] == plain["choices"][0]
    assert asked["usage"] == plain["usage"]


@pytest.mark.parametrize("name", ["../outside", "", 7])
def test_a_name_that_is_no_file_name_writes_nothing_and_harms_no_one(whole: Server, name: object) -> None:
    before = sorted(whole.captures.parent.rglob("*"))
    whole.score(TOKENS[:40], vllm_xargs={"engcmp_window": name})
    assert sorted(whole.captures.parent.rglob("*")) == before
    captured(whole, "after-a-bad-name", TOKENS[:40])


def test_the_prompt_of_one_token_has_no_row_and_writes_no_file(whole: Server) -> None:
    whole.capture("one-token", TOKENS[:1])
    assert not list(whole.captures.glob("one-token*"))
    with pytest.raises(EngcmpError, match="wrote no capture"):
        read_capture(whole.captures, "one-token", TOKENS[:1], vocab=VOCAB)


def test_beside_another_request_the_manifest_counts_it(whole: Server) -> None:
    alone, _ = captured(whole, "not-beside")
    with whole.generating(TOKENS[:20], max_tokens=1900):
        beside, _ = captured(whole, "beside")
    (chunk,) = beside.manifest["chunks"]
    assert chunk["other_requests"] == 1
    assert chunk["other_tokens"] == 1  # it is past its prompt: one token a step
    print("rows beside another request, bit-equal to those alone:", rows_by_chunk(alone, beside))


def test_the_client_of_the_api_agrees_with_the_rows(whole: Server, tmp_path: Path) -> None:
    client = make_client("vllm", whole.url, key=None, label="arm t", model=MODEL, vocab=VOCAB)
    tokens, positions = TOKENS[:12], [0, 4, 10]
    try:
        window, _ = captured(whole, "for-the-client", tokens)
        window.write_float32(positions, tmp_path / "rows")
        logits = np.fromfile(tmp_path / "rows", dtype="<f4").reshape(3, VOCAB).astype(np.float64)
        log_probs = logits - logits.max(axis=1, keepdims=True)
        log_probs -= np.log(np.exp(log_probs).sum(axis=1, keepdims=True))
        taken = client.full_rows("prefill", "w", tokens, positions, tmp_path / "api", deadline_s=120)
        by_api = np.fromfile(tmp_path / "api", dtype="<f4").reshape(3, VOCAB)
        light = client.light_rows("prefill", "w", tokens, positions, deadline_s=60)
        proved, facts = client.prove(time.monotonic() + 200)
    finally:
        client.close()
    assert taken.rows == 3
    assert np.abs(by_api - log_probs).max() < 1e-4
    assert np.abs(light.top_log_probs - np.take_along_axis(log_probs, light.top_ids, axis=1)).max() < 1e-4
    assert light.notes["cached_tokens"] == 0
    assert proved.prompt_logprobs == "full"
    assert facts["stated"]["/version"] == {"version": "0.32.0"}


def test_rows_of_another_chunk_size(
    whole: Server, in_chunks: InChunks, record_property: Callable[[str, object], None]
) -> None:
    one, _ = captured(whole, "in-one")
    manifest, lengths = in_chunks.once.manifest, [CHUNK, CHUNK, 300 - 2 * CHUNK]
    assert manifest["chunk_lengths"] == lengths
    assert in_chunks.once.rows.chunk_lengths == tuple(lengths)
    assert [chunk["start"] for chunk in manifest["chunks"]] == [0, CHUNK, 2 * CHUNK]
    assert in_chunks.edge.manifest["rows"] == CHUNK
    again = rows_by_chunk(in_chunks.once, in_chunks.again)
    assert [part["rows"] for part in again] == [part["equal"] for part in again] == [CHUNK, CHUNK, 299 - 2 * CHUNK]
    told = rows_by_chunk(in_chunks.once, one)
    record_property("bit-equal to one chunk", told)
    print(f"chunks of {CHUNK}: {in_chunks.difference:.3g} nats from the API; bit-equal to one chunk: {told}")


def test_a_server_whose_source_is_not_verified_does_not_start(
    vllm_python: Path, checkpoint: Path, tmp_path: Path
) -> None:
    other = tmp_path / "mounted"
    shutil.copytree(MOUNTED, other)
    known = other / "engcmp_vllm_capture" / "verified.json"
    entries = json.loads(known.read_text())
    known.write_text(json.dumps([entry for entry in entries if entry["runner"] != "v1"]))
    done = subprocess.run(
        command(vllm_python, checkpoint, 1), env=environment(tmp_path / "captures", PYTHONPATH=str(other)),
        capture_output=True, text=True, timeout=240, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode != 0
    assert "no verified capture for the v1 model runner of vLLM 0.32.0" in done.stderr
    assert "_get_prompt_logprobs_dict 889fdb068dfc" in done.stderr


def test_the_v2_runner_s_server_does_not_start_on_this_build(
    vllm_python: Path, checkpoint: Path, tmp_path: Path
) -> None:
    """Why `test_vllm_v2_runner` drives the class instead. When this fails, serve it."""
    done = subprocess.run(
        command(vllm_python, checkpoint, 1), env=environment(None, VLLM_USE_V2_MODEL_RUNNER="1"), check=False,
        capture_output=True, text=True, timeout=240, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode != 0
    assert "Model Runner V2 requires Triton" in done.stderr + done.stdout
