"""`engcmp panel` and `engcmp relate`: a fetched teacher becomes a panel that scores, and two checkpoints say how they are related."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from engcmp_assets.commands.main import cli
from engcmp_assets.kernel.panel_files import parse_panel_file
from engcmp_resources.errors import EngcmpError
from engcmp_resources.places import protocol_root
from engcmp_resources.tensor_files import write_tensors

VOCAB, TOKENS, WINDOWS = 16, 5, 25
MASK = "calibration/windows/arrays/causal-mask-2048.npy"


@pytest.fixture
def evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A set of the layout of P-A with windows of 5 tokens, and the study with a panel scaled down to it."""
    study = tmp_path / "protocol" / "glm53-flash"
    shutil.copytree(protocol_root() / "glm53-flash", study)
    text = (study / "panels.toml").read_text(encoding="utf-8")
    rows = WINDOWS * (TOKENS - 1)
    scaled = {
        "tokens_per_window = 2048": TOKENS,
        "vocab = 154880": VOCAB,
        "rows = 51175": rows,
        "context = 51175": rows,
    }
    for old, number in scaled.items():
        new = f"{old.split(' = ')[0]} = {number}"
        text = text.replace(old, new)
    (study / "panels.toml").write_text(text, encoding="utf-8")
    monkeypatch.setenv("ENGCMP_PROTOCOL", str(tmp_path / "protocol"))
    source, random = tmp_path / "set", np.random.default_rng(1)
    for name in ("teacher/logits", "calibration/windows/arrays"):
        (source / name).mkdir(parents=True)
    for number in range(WINDOWS):
        logits = random.normal(size=(TOKENS - 1, VOCAB)).astype(np.float32)
        write_tensors(source / f"teacher/logits/window-{number:04}.safetensors", {}, {"logits": logits})
        tokens = random.integers(0, VOCAB, TOKENS, dtype=np.int32)
        np.save(source / f"calibration/windows/arrays/final-{number:04}.tokens.npy", tokens)
    np.save(source / MASK, np.ones(TOKENS, dtype=np.int32))
    return source


def test_a_fetched_teacher_becomes_a_panel(evidence: Path, tmp_path: Path) -> None:
    arguments = ["panel", "glm53-flash", "pa", "--source", str(evidence), "--mask", MASK, "--out", str(tmp_path / "pa")]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output
    assert "25 windows laid out" in done.output and "no SHA256SUMS" in done.output
    found = parse_panel_file((tmp_path / "pa" / "panel.json").read_bytes(), where="here")
    assert (len(found.windows), found.rows, found.vocab) == (WINDOWS, WINDOWS * (TOKENS - 1), VOCAB)
    assert len(list((tmp_path / "pa" / "rows").glob("*.safetensors"))) == WINDOWS


@pytest.mark.parametrize(
    ("name", "said"), [("pb", "panel pb of study glm53-flash has no published teacher"), ("px", "has no panel 'px'")]
)
def test_another_panel_is_refused(evidence: Path, tmp_path: Path, name: str, said: str) -> None:
    done = CliRunner().invoke(
        cli, ["panel", "glm53-flash", name, "--source", str(evidence), "--out", str(tmp_path / "out")]
    )
    assert done.exit_code == 1 and isinstance(done.exception, EngcmpError) and said in str(done.exception)


def test_two_checkpoints_say_how_they_are_related(tmp_path: Path) -> None:
    for name, values in (("one", [1.0, 2.0]), ("other", [1.0, 3.0])):
        (tmp_path / name).mkdir()
        tensors = {"same": np.ones(3, np.float32), "changed": np.array(values, np.float32)}
        write_tensors(tmp_path / name / "model.safetensors", {}, tensors)
    done = CliRunner().invoke(cli, ["relate", str(tmp_path / "one"), str(tmp_path / "other"), "--fp8"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["equal"] == 1 and list(found["differing"]) == ["changed"]
    assert found["fp8"]["scale_rule"] == "no matrix to tell it from"
