"""A panel without a reference (as long texts have none): engines are held against each other by whole rows, and each against the text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tiny import TINY, TinyStudy, make_tiny

from engcmp_assets.kernel.measures import WITHOUT_REFERENCE
from engcmp_assets.kernel.names import scored_rows
from engcmp_assets.kernel.study import load_study
from engcmp_assets.kernel.window_files import read_full

Q4, Q8 = "q4_0/llamacpp@b11549", "q8_0/llamacpp@b11549"
PANEL = """
[panels.alone]
label = "no reference"
reference = "none"
rows = "even"
rows_per_window = 6
roles = ["context"]
measures = ["nll", "entropy", "agree_text"]
primary = []
pair_measures = ["kl_pair_full", "rows_bit_identical"]
[[arms]]
arm = "q8_0/llamacpp@b11549"
[[comparisons]]
pair_id = "q4-vs-q8"
label = "Q4_0 beside Q8_0"
candidate = "q4_0/llamacpp@b11549"
baseline = "q8_0/llamacpp@b11549"
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, measured_home: Path) -> TinyStudy:
    tiny = make_tiny(tmp_path_factory.mktemp("alone"), measured_home)
    path = tiny.folder / "protocol.toml"
    text = path.read_text(encoding="utf-8").replace('panels = ["pa", "pb", "pd"]', 'panels = ["alone", "pa", "pd"]', 1)
    text = text[: text.index("[panels.pb]")] + text[text.index("[panels.pd]") :] + PANEL
    path.write_text(text, encoding="utf-8")
    for words in (("freeze", TINY), ("run", TINY)):
        done = tiny.run(*words)
        assert done.returncode == 0, done.stderr[-3000:]
    return tiny


def receipt(tiny: TinyStudy, arm: str, artifact: str) -> dict[str, Any]:
    head = json.loads((tiny.home / "heads" / TINY / arm.replace("/", "~") / f"{artifact}.json").read_bytes())
    found: dict[str, Any] = json.loads((tiny.home / "receipts" / f"{head['receipt_sha256']}.json").read_bytes())
    return found


def output(tiny: TinyStudy, arm: str, artifact: str, name: str) -> Path:
    one = next(one for one in receipt(tiny, arm, artifact)["outputs"] if one["name"] == name)
    return tiny.home / "store" / one["sha256"][:2] / f"{one['sha256']}.{one['suffix']}"


def test_the_figures_of_an_engine_are_those_of_its_whole_rows(
    measured: TinyStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGCMP_PROTOCOL", str(measured.root / "protocol"))
    panel = load_study(TINY).panel("alone")
    table = pl.read_parquet(output(measured, Q4, "scores", scored_rows("alone")))
    assert {*WITHOUT_REFERENCE, "engine_top_id", "raw_row_sha256"} <= set(table.columns)
    assert not {"kl_full", "top1", "reference_nll"} & set(table.columns)
    for window in panel.windows:
        rows = read_full(
            output(measured, Q4, "captured_rows/alone", f"rows/1.1/{window.window_id}"), window, vocab=panel.vocab
        )
        logs = rows.astype(np.float64)
        logs -= np.log(np.exp(logs - logs.max(axis=1, keepdims=True)).sum(axis=1, keepdims=True)) + logs.max(
            axis=1, keepdims=True
        )
        own = table.filter((pl.col("window_id") == window.window_id) & (pl.col("run") == "1.1"))
        told = -logs[np.arange(len(rows)), list(window.next_tokens)]
        assert np.allclose(own["nll"].to_numpy(), told, atol=1e-9)
        assert np.allclose(own["entropy"].to_numpy(), -(np.exp(logs) * logs).sum(axis=1), atol=1e-9)
    names = [one["name"] for one in receipt(measured, Q4, "reference_rows")["outputs"]]
    assert names and not any("alone" in name for name in names)


def test_two_engines_are_held_against_each_other_and_it_verifies(measured: TinyStudy) -> None:
    summary = json.loads(output(measured, "_study", "publication", "SUMMARY.json").read_bytes())
    (pair,) = (one for one in summary["comparisons"] if one["pair_id"] == "q4-vs-q8")
    own = {one["measure"]: one for one in pair["figures"] if one["panel"] == "alone" and one["population"] == "all"}
    assert own["kl_pair_full"]["value"] > 0.01 and own["rows_bit_identical"]["value"] == 0
    assert {"nll", "entropy", "agree_text"} <= set(own)
    proved = measured.run("verify", TINY)
    assert proved.returncode == 0, proved.stdout[-3000:] + proved.stderr[-1000:]
    for words in (("audit", TINY), ("catalog", TINY, "--out", str(measured.root / "catalog"))):
        done = measured.run(*words)
        assert done.returncode == 0, done.stderr[-2000:]
    out = measured.root / "bundle"
    done = measured.run("export", TINY, "--out", str(out))
    assert done.returncode == 0, done.stderr[-2000:]
