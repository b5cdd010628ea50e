"""The capture in the V2 runner's own class of vLLM 0.32.0, driven on the CPU (see v2_driver)."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving import environment

from engcmp_resources.engines.vllm_plugin.reading import check_against_api, read_capture

DRIVER = Path(__file__).parent / "v2_driver.py"


@dataclass(frozen=True)
class Driven:
    captures: Path
    told: dict[str, Any]


@pytest.fixture(scope="module")
def driven(vllm_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Driven:
    folder = tmp_path_factory.mktemp("v2")
    captures, out = folder / "captures", folder / "told.json"
    done = subprocess.run(
        [str(vllm_python), str(DRIVER), str(out)], env=environment(captures, VLLM_USE_V2_MODEL_RUNNER="1"), cwd=folder,
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return Driven(captures, json.loads(out.read_text()))


@pytest.mark.parametrize(("name", "dtype"), [("chunked", "BF16"), ("long", "F32")])
def test_rows_are_the_head_s_own_and_agree_with_the_class_s_answer(
    driven: Driven, tmp_path: Path, name: str, dtype: str
) -> None:
    tokens = driven.told["tokens"][name]
    window = read_capture(driven.captures, f"w-{name}", tokens, vocab=driven.told["vocab"])
    assert window.rows.dtype == window.manifest["dtype"] == dtype
    window.write_float32(range(window.rows.rows), tmp_path / "rows")
    rows = np.fromfile(tmp_path / "rows", dtype="<f4").reshape(window.rows.rows, -1)
    assert np.array_equal(rows, np.array(driven.told["rows"][name], dtype="<f4"))
    assert check_against_api(window, tokens, driven.told["answered"][name]) < 1e-5
    assert window.manifest["runner"] == "v2"


def test_the_manifest_has_each_step_and_who_was_in_it(driven: Driven) -> None:
    manifest = json.loads((driven.captures / "w-chunked.json").read_text())
    steps = [(one["step"], one["start"], one["tokens"], one["other_requests"]) for one in manifest["chunks"]]
    assert steps == [(1, 0, 16, 1), (2, 16, 16, 1), (3, 32, 5, 0)]
    assert [one["other_tokens"] for one in manifest["chunks"]] == [20, 1, 0]
    assert len(manifest["hooked"]) == 3


def test_only_what_asked_is_written(driven: Driven) -> None:
    written = sorted(path.name for path in driven.captures.iterdir())
    assert written == [f"w-{name}.{kind}" for name in ("chunked", "long") for kind in ("json", "safetensors")]
    assert "beside" in driven.told["answered"]
