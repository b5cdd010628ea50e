"""The capture's own rules without a vLLM: which sources are refused, what ends a capture, which files count as rows."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engcmp_resources.canonical import sha256_file
from engcmp_resources.engines.vllm_plugin.reading import (
    MOUNTED,
    SCHEMA,
    check_against_api,
    read_capture,
    rows_by_chunk,
)
from engcmp_resources.errors import EngcmpError
from engcmp_resources.row_files import RowFile, write_rows

TOKENS, VOCAB = [3, 1, 4, 1, 5], 7


def plugin(code: str, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """A piece of Python beside the plugin as it is mounted, with the standard library alone."""
    return subprocess.run(
        [sys.executable, "-S", "-B", "-c", code, *map(str, arguments)], env={"PYTHONPATH": str(MOUNTED)} | variables,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def logits() -> Any:
    return np.random.default_rng(2).standard_normal((len(TOKENS) - 1, VOCAB)).astype(np.float32)


def write_capture(folder: Path, window: str = "w", change: Callable[[dict[str, Any]], None] | None = None) -> Path:
    digest = hashlib.sha256(np.asarray(TOKENS, dtype="<u4").tobytes()).hexdigest()
    folder.mkdir(exist_ok=True)
    rows = folder / f"{window}.safetensors"
    write_rows(rows, RowFile(window, digest, np.arange(4, dtype=np.int32), logits()))
    manifest: dict[str, Any] = {
        "schema": SCHEMA, "window_id": window, "tokens_sha256": digest, "prompt_tokens": 5, "cached_tokens": 0, "rows": 4,
        "vocab": VOCAB, "fault": None, "file_sha256": sha256_file(rows),
        "chunks": [{"start": 0, "tokens": 3}, {"start": 3, "tokens": 2}],
    }  # fmt: skip
    if change:
        change(manifest)
    (folder / f"{window}.json").write_text(json.dumps(manifest))
    return folder


def test_a_whole_capture_is_read_and_written_again_as_it_is(tmp_path: Path) -> None:
    window = read_capture(write_capture(tmp_path), "w", TOKENS, vocab=VOCAB)
    window.write_float32([3, 0], tmp_path / "out")
    assert np.array_equal(np.fromfile(tmp_path / "out", dtype="<f4").reshape(2, VOCAB), logits()[[3, 0]])


def test_the_check_against_the_api_gives_the_largest_difference_and_names_a_row_that_is_apart(tmp_path: Path) -> None:
    window = read_capture(write_capture(tmp_path), "w", TOKENS, vocab=VOCAB)
    raw = logits().astype(np.float64)
    said = [raw[r, TOKENS[r + 1]] - np.log(np.exp(raw[r]).sum()) for r in range(4)]
    assert check_against_api(window, TOKENS, said) < 1e-12
    said[1] += 5e-5
    assert check_against_api(window, TOKENS, said) == pytest.approx(5e-5)
    said[2] -= 2e-4
    with pytest.raises(EngcmpError, match="at row 2"):
        check_against_api(window, TOKENS, said)
    said[2] = float("nan")
    with pytest.raises(EngcmpError, match="at row 2"):
        check_against_api(window, TOKENS, said)
    with pytest.raises(EngcmpError, match="3 rows by the API, 4 captured"):
        check_against_api(window, TOKENS, said[:3])


def test_rows_are_compared_by_the_chunks_of_the_first(tmp_path: Path) -> None:
    one = read_capture(write_capture(tmp_path / "one"), "w", TOKENS, vocab=VOCAB)
    folder = write_capture(tmp_path / "two")
    rows = logits()
    rows[3, 0] = np.nextafter(rows[3, 0], np.float32(9))
    other_rows = RowFile("w", one.manifest["tokens_sha256"], np.arange(4, dtype=np.int32), rows)
    write_rows(folder / "w.safetensors", other_rows)
    manifest = dict(one.manifest) | {"file_sha256": sha256_file(folder / "w.safetensors")}
    (folder / "w.json").write_text(json.dumps(manifest))
    other = read_capture(folder, "w", TOKENS, vocab=VOCAB)
    assert rows_by_chunk(one, other) == [{"start": 0, "rows": 3, "equal": 3}, {"start": 3, "rows": 1, "equal": 0}]


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("schema", "engcmp.vllm-capture/9", "not of the schema"),
        ("fault", "preempted?", "the capture failed: preempted"),
        ("window_id", "v", "its window_id is 'v'"),
        ("tokens_sha256", "00", "its tokens_sha256 is"),
        ("prompt_tokens", 6, "its prompt_tokens is 6, not 5"),
        ("cached_tokens", 2, "its cached_tokens is 2, not 0"),
        ("rows", 3, "its rows is 3, not 4"),
        ("vocab", 8, "its vocab is 8, not 7"),
        ("file_sha256", "00", "not those that its manifest names"),
    ],
)
def test_a_capture_that_is_not_this_window_s_is_refused(tmp_path: Path, name: str, value: object, told: str) -> None:
    folder = write_capture(tmp_path, change=lambda manifest: manifest.update({name: value}))
    with pytest.raises(EngcmpError, match=told):
        read_capture(folder, "w", TOKENS, vocab=VOCAB)


def test_a_window_without_a_capture_says_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(EngcmpError, match="ENGCMP_CAPTURE_DIR"):
        read_capture(tmp_path, "w", TOKENS, vocab=VOCAB)


def test_rows_that_come_twice_end_a_capture_with_its_reason_and_no_rows(tmp_path: Path) -> None:
    code = """
import sys; from pathlib import Path; from engcmp_vllm_capture.rows import Capture
capture = Capture("w", "r", [3, 1, 4, 1, 5], 0, 0)
capture.begin_chunk({"start": 0, "tokens": 3}); capture.next_row = 3
assert not capture.complete
capture.begin_chunk({"start": 0, "tokens": 5})
assert capture.complete
capture.write(Path(sys.argv[1]), {"runner": "v1"})
"""
    done = plugin(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["w.json"]
    with pytest.raises(EngcmpError, match="a step reads from token 0, row 3 was next"):
        read_capture(tmp_path, "w", TOKENS, vocab=VOCAB)


def test_without_a_folder_the_plugin_does_nothing_at_all() -> None:
    code = "import sys, engcmp_vllm_capture as c; before = list(sys.meta_path); c.register(); print(before == sys.meta_path)"
    assert plugin(code).stdout == "True\n"


def test_a_source_that_is_not_verified_is_refused_by_its_hash(tmp_path: Path) -> None:
    code = """
import sys; from pathlib import Path; from engcmp_vllm_capture import hooks
print(hooks.source_sha256(sys.argv[2], Path(sys.argv[1])))
hooks.refuse_unverified("0", Path(sys.argv[1]))
"""
    file = tmp_path / "v1" / "worker" / "gpu_model_runner.py"
    file.parent.mkdir(parents=True)
    name, seen = "vllm.v1.worker.gpu_model_runner:GPUModelRunner._get_prompt_logprobs_dict", set()
    for body in ("return 1", "return 2", "return 2  # a comment counts too"):
        file.write_text(f"class GPUModelRunner:\n    def _get_prompt_logprobs_dict(self):\n        {body}\n")
        done = plugin(code, tmp_path, name)
        digest = done.stdout.strip()
        assert f"no verified capture for the v1 model runner of vLLM unknown: {name} {digest}" in done.stderr
        seen.add(digest)
    assert len(seen) == 3
    file.write_text("class GPUModelRunner:\n    pass\n")
    assert plugin(code, tmp_path, name).stdout == "absent\n"


def test_the_hook_is_put_on_once_when_its_module_is_imported_and_not_before(tmp_path: Path) -> None:
    """A package of the same names stands for vLLM: what is tested is when and how often its class is changed."""
    code = """
import sys; from pathlib import Path; from engcmp_vllm_capture import hooks
assert hooks.install({"v1": {}}, Path(sys.argv[1]) / "captures")
assert not hooks.install({"v1": {}}, Path(sys.argv[1]) / "captures")
assert "vllm" not in sys.modules
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
runner = GPUModelRunner()
runner.num_prompt_logprobs = {}
print(runner._get_prompt_logprobs_dict(5, {}), runner.calls)
print(hasattr(GPUModelRunner._get_prompt_logprobs_dict.__wrapped__, "__wrapped__"))
"""
    folder = tmp_path / "vllm" / "v1" / "worker"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent, folder.parent.parent):
        (package / "__init__.py").touch()
    (folder / "gpu_model_runner.py").write_text(
        "class GPUModelRunner:\n    calls = 0\n    def _get_prompt_logprobs_dict(self, hidden, scheduled):\n"
        "        self.calls += 1\n        return hidden\n"
    )
    done = plugin(code, tmp_path, PYTHONPATH=f"{MOUNTED}:{tmp_path}")
    assert done.stdout.split() == ["5", "1", "False"], done.stderr


def test_a_request_that_ends_early_is_forgotten_and_one_that_is_read_again_is_not_begun_twice(tmp_path: Path) -> None:
    """The V1 runner's own dictionaries as they are after an abort and after a preemption."""
    code = """
import sys; from pathlib import Path; from types import SimpleNamespace as Of
from engcmp_vllm_capture.steps import Recorder
def request(window, computed=0):
    asked = Of(extra_args={"engcmp_window": window}, prompt_logprobs=1)
    return Of(sampling_params=asked, prompt_token_ids=[3, 1, 4, 1, 5], num_computed_tokens=computed)
def step(requests, scheduled):
    taking = recorder.step_v1(Of(num_prompt_logprobs=dict.fromkeys(requests, 1), requests=requests), scheduled, {})
    if taking:
        taking.finish()
    return taking
recorder = Recorder(Path(sys.argv[1]), "0")
step({"a": request("aborted")}, {"a": 2})
assert list(recorder._captures) == ["a"]
step({"b": request("w")}, {"b": 3})
assert list(recorder._captures) == ["b"]
recorder._captures["b"].next_row = 3
assert recorder.step_v1(Of(num_prompt_logprobs={"gone": 1}, requests={"b": request("w")}), {}, {}) is None
step({"b": request("w")}, {"b": 3})
assert step({"b": request("w", 3)}, {"b": 2}) is None
assert not recorder._captures
"""
    done = plugin(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["w.json"]
    assert "preempted" in json.loads((tmp_path / "w.json").read_text())["fault"]
