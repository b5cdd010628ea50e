"""llama.cpp's own server as the decode path: a real library, model and child process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from decoding import ARM, ROOT, VOCAB, DecoderLauncher, rows, tokens

from engcmp_resources.canonical import sha256_file
from engcmp_resources.engines.base import DecodingEngine, LaunchSpec, start_decoder, start_engine
from engcmp_resources.errors import EngcmpError

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")


def log_softmax(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    shifted = values.astype(np.float64) - values.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


# The same library through its C API: what the server should do, done without it.
BY_HAND = """
import ctypes, json, sys
sys.path.append(sys.argv[1])
from engcmp_resources.engines.llamacpp_worker import Engine
asked = json.load(sys.stdin)
engine = Engine(asked["engine"])
batch, library, context = engine._batch, engine._lib, engine._context

def logits(tokens, start):
    batch.n_tokens = len(tokens)
    for index, token in enumerate(tokens):
        batch.token[index], batch.pos[index] = token, start + index
        batch.n_seq_id[index], batch.seq_id[index][0], batch.logits[index] = 1, 0, index == len(tokens) - 1
    assert library.llama_decode(context, batch) == 0
    address = library.llama_get_logits_ith(context, len(tokens) - 1)
    return bytes((ctypes.c_float * engine._width).from_address(address))

first = asked["first"]
logits(asked["tokens"][:first], 0)
with open(asked["out"], "wb") as file:
    for row in range(first, first + asked["rows"]):
        file.write(logits([asked["tokens"][row]], row))
"""


def test_rows_are_the_log_probabilities_of_the_librarys_own_decode_before_all_samplers(
    decoder: DecodingEngine, llamacpp_library: Path, q4_0_model: Path, tmp_path: Path
) -> None:
    ids = tokens(48)
    result = decoder.decode_rows("w", ids, range(40, 44), tmp_path / "rows")
    sizes = dict.fromkeys(("n_ctx", "n_batch", "n_ubatch"), 512) | dict.fromkeys(("n_threads", "n_threads_batch"), 2)
    asked = {"engine": sizes | {"library": str(llamacpp_library), "model": str(q4_0_model)}}
    asked |= {"tokens": ids, "first": 40, "rows": 4, "out": str(tmp_path / "by hand")}
    command = [sys.executable, "-I", "-S", "-c", BY_HAND, str(ROOT)]
    environment = os.environ | {"OMP_WAIT_POLICY": "passive"}
    subprocess.run(command, input=json.dumps(asked).encode(), check=True, capture_output=True, env=environment)
    served = np.fromfile(tmp_path / "rows", dtype="<f4").reshape(4, VOCAB)
    by_hand = np.fromfile(tmp_path / "by hand", dtype="<f4").reshape(4, VOCAB)
    assert result.rows == 4
    assert result.prompt_tokens_processed == (1, 1, 1, 1)
    assert result.seconds > 0
    assert 100 << 20 < result.peak_rss_bytes < 1 << 30
    assert np.abs(np.exp(served.astype(np.float64)).sum(axis=1) - 1).max() < 1e-3
    assert np.abs(log_softmax(served) - log_softmax(by_hand)).max() < 1e-5


def test_a_decoded_row_is_that_of_the_same_position_in_the_prefill(
    decoder: DecodingEngine, decoder_spec: LaunchSpec, llamacpp_library: Path, q4_0_model: Path, tmp_path: Path
) -> None:
    files = {"library": llamacpp_library, "model": q4_0_model, "log": tmp_path / "prefill.log"}
    with start_engine("llamacpp", decoder_spec, **files, environment={}) as prefill:
        text = prefill.tokenize("The quick brown fox jumps over the lazy dog, and nobody asks where it is going.")
        prefill.prefill_rows("w", text, range(9, 15), tmp_path / "prefill")
    decoder.decode_rows("w", text, range(10, 14), tmp_path / "decode")
    p = log_softmax(np.fromfile(tmp_path / "prefill", dtype="<f4").reshape(6, VOCAB))
    q = log_softmax(np.fromfile(tmp_path / "decode", dtype="<f4").reshape(4, VOCAB))
    divergence = {shift: (np.exp(p[1 + shift :][:4]) * (p[1 + shift :][:4] - q)).sum(axis=1) for shift in (-1, 0, 1)}
    assert divergence[0].max() < 0.05
    assert min(divergence[-1].min(), divergence[1].min()) > 0.5


def test_facts_state_each_setting_as_requested_and_as_found_and_no_path(
    decoder: DecodingEngine, llamacpp_library: Path, q4_0_model: Path
) -> None:
    facts = decoder.facts
    assert set(facts["settings"]) == {
        *("n_ctx", "n_batch", "n_ubatch", "n_threads", "n_threads_batch"),
        *("slots", "n_vocab"),
    }
    assert facts["settings"]["n_ctx"] == {"requested": 512, "resolved": 512}
    assert facts["settings"]["n_ubatch"] == {"requested": 512, "resolved": 512}
    assert facts["settings"]["n_threads"] == {"requested": 2, "resolved": 2}
    assert facts["settings"]["slots"] == {"requested": 1, "resolved": 1}
    assert facts["model"]["parameters"] == 134_515_008
    assert facts["build_info"]
    text = json.dumps(facts)
    assert not any(str(path.parent) in text or path.name in text for path in (llamacpp_library, q4_0_model))
    assert "127.0.0.1" not in text


def test_repeats_are_bit_identical_also_after_another_window_and_in_another_start(
    decoder: DecodingEngine, start_server: DecoderLauncher, tmp_path: Path
) -> None:
    first = rows(decoder, tokens(64), list(range(50, 53)), tmp_path / "first")
    assert len(first) == 3 * VOCAB * 4
    assert rows(decoder, tokens(64), list(range(50, 53)), tmp_path / "again") == first
    rows(decoder, tokens(90, seed=8), [80], tmp_path / "between")
    assert rows(decoder, tokens(64), list(range(50, 53)), tmp_path / "after another") == first
    with start_server() as second:
        assert rows(second, tokens(64), list(range(50, 53)), tmp_path / "second") == first


@pytest.mark.parametrize(
    ("ids", "positions", "words"),
    [
        (tokens(8), [3, 5], r"rows \[3, 5\] do not follow each other"),
        (tokens(8), [4, 3], r"rows \[4, 3\] do not follow each other"),
        (tokens(8), [0, 1], "row 0, which has no token before it"),
        (tokens(8), [7, 8], "a row outside 0..7"),
        (tokens(600), [511], "row 511 takes 513 tokens, the context holds 512"),
        ([1, 2, VOCAB], [1], "a token id outside 0..49151"),
        ([1, 2, 3], [], "3 tokens and 0 rows"),
    ],
)
def test_a_window_that_cannot_be_decoded_is_refused(
    decoder: DecodingEngine, tmp_path: Path, ids: list[int], positions: list[int], words: str
) -> None:
    with pytest.raises(EngcmpError, match=words) as refused:
        decoder.decode_rows("w9", ids, positions, tmp_path / "rows")
    assert ARM in str(refused.value)
    assert "w9" in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_the_last_row_that_the_context_holds_is_decoded(decoder: DecodingEngine, tmp_path: Path) -> None:
    assert len(rows(decoder, tokens(512), [509, 510], tmp_path / "rows")) == 2 * VOCAB * 4


def test_rows_that_cannot_be_written_are_an_error_and_the_engine_goes_on(
    decoder: DecodingEngine, tmp_path: Path
) -> None:
    with pytest.raises(EngcmpError, match="could not be written"):
        decoder.decode_rows("w", tokens(4), [3], tmp_path / "no such folder" / "rows")
    assert rows(decoder, tokens(4), [3], tmp_path / "rows")
    assert {path.name for path in tmp_path.iterdir()} == {"rows"}


def test_a_context_that_the_library_rounds_is_refused(start_server: DecoderLauncher, decoder_spec: LaunchSpec) -> None:
    asked = replace(decoder_spec, context_tokens=500, batch_tokens=500, micro_batch_tokens=500)
    with pytest.raises(EngcmpError, match="n_ctx requested 500, found 512"), start_server(spec=asked):
        pytest.fail("the engine started")
    assert start_server.servers() == []


def test_a_vocabulary_of_another_size_is_refused(start_server: DecoderLauncher, decoder_spec: LaunchSpec) -> None:
    asked = replace(decoder_spec, vocab=32_000)
    with pytest.raises(EngcmpError, match="n_vocab requested 32000, found 49152"), start_server(spec=asked):
        pytest.fail("the engine started")


def test_a_truncated_model_names_the_file_and_says_what_the_server_said(
    start_server: DecoderLauncher, decoder_spec: LaunchSpec, q4_0_model: Path, tmp_path: Path
) -> None:
    model = tmp_path / "short.gguf"
    model.write_bytes(q4_0_model.read_bytes()[:40_000_000])
    asked = replace(decoder_spec, model_sha256=sha256_file(model))
    words = r"does not start with the model file short\.gguf.*its last words: .*model"
    with pytest.raises(EngcmpError, match=words), start_server(model=model, spec=asked):
        pytest.fail("the engine started")
    assert start_server.servers() == []


def test_files_that_are_not_those_of_the_launch_are_not_started(
    start_server: DecoderLauncher, decoder_spec: LaunchSpec
) -> None:
    for name in ("model", "library"):
        asked = replace(decoder_spec, **{f"{name}_sha256": "0" * 64})
        with pytest.raises(EngcmpError, match=f"{name} has sha256"), start_server(spec=asked):
            pytest.fail("the engine started")
    assert not start_server.log.exists()


@linux_only
def test_a_library_without_the_server_is_refused(start_server: DecoderLauncher, decoder_spec: LaunchSpec) -> None:
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    foreign = Path(next(path for path in sorted(mapped) if "/libm" in path or "/libc" in path))
    asked = replace(decoder_spec, library_sha256=sha256_file(foreign))
    with pytest.raises(EngcmpError, match=r"holds no llama\.cpp server"), start_server(library=foreign, spec=asked):
        pytest.fail("the engine started")


def test_a_file_that_is_no_library_is_refused(
    start_server: DecoderLauncher, decoder_spec: LaunchSpec, tmp_path: Path
) -> None:
    library = tmp_path / "text.so"
    library.write_text("not a library")
    asked = replace(decoder_spec, library_sha256=sha256_file(library))
    with pytest.raises(EngcmpError, match="the library does not load"), start_server(library=library, spec=asked):
        pytest.fail("the engine started")


def test_a_version_without_a_parameter_is_refused_and_the_parameter_named(
    start_server: DecoderLauncher, decoder_spec: LaunchSpec, llamacpp_library: Path, tmp_path: Path
) -> None:
    library = tmp_path / "another_version.so"
    library.write_bytes(llamacpp_library.read_bytes().replace(b"\0n_threads_http\0", b"\0n_threads_HTTP\0"))
    asked = replace(decoder_spec, library_sha256=sha256_file(library))
    with (
        pytest.raises(EngcmpError, match=r"does not take a parameter: .*no attribute 'n_threads_http'"),
        start_server(library=library, spec=asked),
    ):
        pytest.fail("the engine started")
    library.unlink()


def test_a_kind_of_engine_without_a_decode_path_is_refused(decoder_spec: LaunchSpec, tmp_path: Path) -> None:
    with pytest.raises(EngcmpError, match="no engine kind 'abacus' has a decode path; known kinds: llamacpp"):
        start_decoder("abacus", decoder_spec, library=tmp_path, model=tmp_path, log=tmp_path, environment={})
