"""`engcmp teacher` with the real torch and transformers, on the study's weights: against the numpy reference, resumed, refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from engcmp_resources.canonical import sha256_file
from engcmp_resources.engines.reference import RowRequest, reference_rows
from engcmp_resources.row_layouts.teacher_rows import open_teacher
from engcmp_resources.safetensors_checkpoint import Dtype, write_checkpoint

CHECKOUT = Path(__file__).resolve().parents[2]
# The first tokens of two of the study's texts. Tokens at random will not do: on them the model turns over at a rounding.
WINDOWS = {
    "w1": [
        49,
        17662,
        1663,
        553,
        787,
        4626,
        288,
        5847,
        327,
        30,
        3701,
        569,
        253,
        1194,
        260,
        3426,
        5675,
        1419,
        618,
        253,
        48207,
        8755,
        28,
        23815,
        253,
        10091,
        10166,
        6873,
        2893,
        357,
        28,
        284,
        3711,
        260,
        1663,
        259,
        351,
        253,
        1443,
        2737,
    ],
    "w2": [1604, 16905, 79, 2401, 487, 24, 2401, 487, 727],
}


@dataclass(frozen=True)
class Teacher:
    python: Path
    model: Path
    dtype: str

    def run(self, out: Path, windows: dict[str, list[int]], *more: str) -> subprocess.CompletedProcess[str]:
        tokens = out.with_name(f"{out.name}.json")
        tokens.parent.mkdir(parents=True, exist_ok=True)
        tokens.write_text(json.dumps([{"window_id": name, "tokens": ids} for name, ids in windows.items()]))
        # The command itself, without the group around it: the environment has no Dagster.
        code = (
            "import sys; from engcmp_assets.commands.teacher import teacher; from engcmp_resources.errors import EngcmpError\n"
            "try: teacher()\nexcept EngcmpError as error: sys.exit(f'error: {error}')"
        )
        settings = os.environ | {"PYTHONPATH": str(CHECKOUT), "OMP_NUM_THREADS": "2", "PYTHONDONTWRITEBYTECODE": "1"}
        arguments = [str(self.model), "--tokens", str(tokens), "--out", str(out), "--dtype", self.dtype, *more]
        return subprocess.run(
            [str(self.python), "-c", code, *arguments],
            env=settings,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )


@pytest.fixture(scope="module", params=["F32", "BF16"])
def teacher(
    request: pytest.FixtureRequest, vllm_python: Path, weights: Path, tmp_path_factory: pytest.TempPathFactory
) -> Teacher:
    stored: Dtype = request.param
    folder = tmp_path_factory.mktemp("teacher") / stored
    write_checkpoint(weights, folder, dtype=stored)
    return Teacher(vllm_python, folder, {"F32": "float32", "BF16": "bfloat16"}[stored])


@pytest.fixture(scope="module")
def taught(teacher: Teacher, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("rows") / teacher.dtype
    done = teacher.run(out, WINDOWS)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "2 windows, 47 rows" in done.stdout
    return out


@pytest.fixture(scope="module")
def reference(weights: Path) -> dict[str, npt.NDArray[np.float32]]:
    rows: dict[str, npt.NDArray[np.float32]] = {}
    requests = [RowRequest(name, ids, range(len(ids) - 1)) for name, ids in WINDOWS.items()]
    reference_rows(weights, requests, on_rows=rows.__setitem__)
    return rows


def log_probs(rows: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    wide = (rows.astype("<u4") << np.uint32(16)).view("<f4") if rows.dtype == np.uint16 else rows
    shifted = wide.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def receipt_of(out: Path) -> Any:
    return json.loads((out / "teacher.json").read_text())


@pytest.mark.parametrize("name", list(WINDOWS))
def test_rows_agree_with_the_numpy_reference(
    teacher: Teacher, taught: Path, reference: dict[str, npt.NDArray[np.float32]], name: str
) -> None:
    source = open_teacher(taught / f"{name}.safetensors", name, folder=taught)
    assert (source.dtype, source.vocab) == ({"float32": "F32", "bfloat16": "BF16"}[teacher.dtype], 49_152)
    wanted, found = log_probs(reference[name]), log_probs(source.block(0, source.rows))
    apart, divergence = np.abs(wanted - found).max(), (np.exp(wanted) * (wanted - found)).sum(axis=1)
    print(f"{teacher.dtype} {name}: {apart:.3g} nats apart at most, mean KL {divergence.mean():.3g}")
    # Two float32 passes differ by the order of their sums, BF16 keeps 8 bits of each weight and sum.
    most_apart, most_divergence = {"float32": (1e-3, 1e-9), "bfloat16": (2.0, 1e-2)}[teacher.dtype]
    assert apart < most_apart
    assert abs(divergence.mean()) < most_divergence
    assert apart > 0


def test_the_receipt_names_model_versions_and_rows(teacher: Teacher, taught: Path) -> None:
    receipt = receipt_of(taught)
    settings = receipt["settings"]
    assert settings["model"]["model.safetensors"] == sha256_file(teacher.model / "model.safetensors")
    assert settings["dtype"] == teacher.dtype
    assert settings["torch"].startswith("2.13.0")
    assert settings["threads"] == 2
    for name, tokens in WINDOWS.items():
        entry = receipt["windows"][name]
        assert entry["rows"] == len(tokens) - 1
        assert entry["file_sha256"] == sha256_file(taught / f"{name}.safetensors")


def test_what_is_there_is_kept_and_what_is_missing_or_damaged_is_made_again(
    teacher: Teacher, taught: Path, tmp_path: Path
) -> None:
    out = tmp_path / "again"
    shutil.copytree(taught, out)
    (out / "w1.safetensors").write_bytes((taught / "w1.safetensors").read_bytes()[:-1] + b"\x01")
    (out / "w2.tokens.npy").unlink()
    done = teacher.run(out, WINDOWS | {"w3": WINDOWS["w2"][:4]})
    assert done.returncode == 0, done.stderr[-3000:]
    assert [line.split(":")[0] for line in done.stderr.splitlines() if " rows in " in line] == ["w1", "w2", "w3"]
    for name in WINDOWS:
        assert (out / f"{name}.safetensors").read_bytes() == (taught / f"{name}.safetensors").read_bytes()
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    again = teacher.run(out, WINDOWS)
    assert "all 2 windows are there" in again.stderr
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == before


def test_a_folder_of_another_teacher_or_other_tokens_is_refused(teacher: Teacher, taught: Path, tmp_path: Path) -> None:
    out = tmp_path / "other"
    shutil.copytree(taught, out)
    other = {"float32": "bfloat16", "bfloat16": "float32"}[teacher.dtype]
    done = Teacher(teacher.python, teacher.model, other).run(out, WINDOWS)
    assert done.returncode == 1
    assert f"another teacher: dtype was '{teacher.dtype}' and is '{other}'" in done.stderr
    done = teacher.run(out, {"w1": WINDOWS["w1"][::-1]})
    assert "window w1: the folder holds its rows of other tokens" in done.stderr
    assert receipt_of(out) == receipt_of(taught)


@pytest.mark.parametrize(
    ("tokens", "told"),
    [([5, 49_152], "token 49152 is not in the vocabulary of 49,152"), ([5] * 8193, "8193 tokens, 2 to 8,192")],
)
def test_a_window_that_the_model_cannot_read_is_refused_before_any_is_computed(
    teacher: Teacher, tmp_path: Path, tokens: list[int], told: str
) -> None:
    done = teacher.run(tmp_path / "out", {"good": [5, 6, 7], "bad": tokens})
    assert done.returncode == 1
    assert told in done.stderr
    assert not list((tmp_path / "out").iterdir())


def test_a_gpu_that_is_not_there_is_refused(teacher: Teacher, tmp_path: Path) -> None:
    done = teacher.run(tmp_path / "out", WINDOWS, "--device", "cuda")
    assert "this torch sees no GPU" in done.stderr
