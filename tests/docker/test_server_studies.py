"""Studies of servers end to end: sources, launch by a stand-in of the launcher, capture, scores, comparison, proof.

The engines are the simulator in real containers, started by scripts that stand for the launchers of CuteAFD and of the vLLM fork.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from docker_engine import docker_engine  # noqa: F401 - a fixture
from server_study import FULL_ARMS, LIGHT_ARMS, VOCAB, server_study
from tiny import TINY, TinyStudy

from engcmp_assets.kernel.measures import LIGHT_ROW_MEASURES
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.tables import read_parquet
from engcmp_assets.kernel.window_files import read_full, read_light
from engcmp_resources import host_image
from engcmp_resources.containers import DockerHost
from tests.simulator.model import Model

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the image engcmp/host runs this host's own programs")


@pytest.fixture(autouse=True)
def _image(docker_engine: None) -> None:
    host = DockerHost()
    host_image.ensure(host)
    host.close()


def loaded(tiny: TinyStudy) -> Study:
    from engcmp_assets.kernel.study import load_study

    return load_study(TINY)


def outputs(tiny: TinyStudy, arm: str, artifact: str) -> dict[str, Path]:
    head = json.loads((tiny.home / "heads" / TINY / arm.replace("/", "~") / f"{artifact}.json").read_bytes())
    receipt = json.loads((tiny.home / "receipts" / f"{head['receipt_sha256']}.json").read_bytes())
    return {
        one["name"]: tiny.home / "store" / one["sha256"][:2] / f"{one['sha256']}.{one['suffix']}"
        for one in receipt["outputs"]
    }


def test_full_rows_of_both_score_paths_by_the_launcher_of_cuteafd(
    tmp_path: Path, measured_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = server_study(tmp_path, measured_home, light=False)
    done = tiny.run("run", TINY)
    assert done.returncode == 0, done.stderr[-3000:]
    monkeypatch.setenv("ENGCMP_PROTOCOL", str(tiny.root / "protocol"))
    panel, (arm,) = loaded(tiny).panel("pa"), FULL_ARMS
    files = outputs(tiny, arm, "captured_rows/pa")
    model = Model(vocab=VOCAB, seed=1, perturb=0.1)
    for window in panel.windows:
        truth = model.rows(list(window.tokens), list(window.positions))
        for run in ("1.1", "2.1"):  # prefill, decode: the simulator computes both alike
            rows = read_full(files[f"rows/{run}/{window.window_id}"], window, vocab=VOCAB).astype(np.float64)
            wanted = log_softmax(np.asarray(truth, dtype=np.float64)).astype(np.float32)
            assert np.array_equal(rows.astype(np.float32), wanted), (window.window_id, run)
    starts = json.loads(outputs(tiny, arm, "engine_launch/scoring")["starts.json"].read_bytes())
    assert [start["path"] for start in starts] == ["prefill", "decode"]
    assert all(start["facts"]["container"]["restart_count"] == 0 for start in starts)
    assert all(start["facts"]["launcher"]["commit"] and start["facts"]["tokenizer_probed"] is False for start in starts)
    proved = tiny.run("verify", TINY)
    assert proved.returncode == 0, proved.stdout


def test_light_rows_of_two_engines_are_captured_scored_and_compared(
    tmp_path: Path, measured_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = server_study(tmp_path, measured_home, light=True)
    done = tiny.run("run", TINY)
    assert done.returncode == 0, done.stderr[-3000:]
    monkeypatch.setenv("ENGCMP_PROTOCOL", str(tiny.root / "protocol"))
    panel = loaded(tiny).panel("pl")
    for arm, perturb in zip(LIGHT_ARMS, (0.1, 0.0), strict=True):
        files, model = outputs(tiny, arm, "captured_rows/pl"), Model(vocab=VOCAB, seed=1, perturb=perturb)
        for window in panel.windows:
            rows = read_light(files[f"rows/1.1/{window.window_id}"], window, vocab=VOCAB)
            truth = log_softmax(np.asarray(model.rows(list(window.tokens), list(window.positions)), dtype=np.float64))
            order = np.lexsort((np.broadcast_to(np.arange(VOCAB), truth.shape), -truth.astype(np.float32)), axis=1)[
                :, :20
            ]
            assert np.array_equal(rows.top_ids, order), (arm, window.window_id)
            assert np.allclose(rows.top_log_probs, np.take_along_axis(truth, order, axis=1), rtol=0, atol=1e-5)
            own = truth[np.arange(len(window.positions)), window.next_tokens]
            assert np.allclose(rows.next_token_log_prob, own, rtol=0, atol=1e-5)
        scores = read_parquet(outputs(tiny, arm, "scores")["rows-pl.parquet"])
        assert set(LIGHT_ROW_MEASURES) <= set(scores) and not {"kl_full", "entropy"} & set(scores)
        assert (scores["kl_top20"] > 0).all() and all(str(one).startswith("light:") for one in scores["raw_row_sha256"])
    summary = json.loads(outputs_of_study(tiny, "publication")["SUMMARY.json"].read_bytes())
    (pair,) = summary["comparisons"]
    apart = next(one for one in pair["figures"] if one["measure"] == "kl_pair20" and one["population"] == "all")
    assert apart["value"] > 0 and apart["verdict"] == "descriptive"
    assert "bit-identical" not in {one["verdict"] for one in pair["figures"]}, (
        "light rows never prove that raw rows are equal"
    )
    assert any("declare" in text and "engcmp launch diff" in text for text in pair["confounds"])
    proved = tiny.run("verify", TINY)
    assert proved.returncode == 0, proved.stdout


def test_a_panel_of_full_rows_is_refused_before_any_measurement_by_a_server_that_has_none(
    tmp_path: Path, measured_home: Path
) -> None:
    tiny = server_study(tmp_path, measured_home, light=True)
    path = tiny.folder / "protocol.toml"
    text = path.read_text(encoding="utf-8")
    light = re.compile(r'keep = "light"\n(rows = .*\n.*\n.*\n)measures = .*\nprimary = .*\npair_measures = .*\n')
    full = 'measures = ["kl_full"]\nprimary = ["kl_full"]\npair_measures = ["kl_pair_full"]\n'
    text, count = light.subn(lambda found: found[1] + full, text, count=1)
    assert count == 1
    path.write_text(text, encoding="utf-8")
    assert tiny.run("amend", TINY, "--because", "full rows").returncode == 0
    done = tiny.run("run", TINY)
    assert done.returncode == 1
    assert "wants full rows on the prefill path" in done.stderr and "keep = light" in done.stderr
    assert not list((tiny.home / "heads" / TINY).glob("*fork*/captured_rows/*")), "nothing was measured"
    assert list((tiny.home / "heads" / TINY).glob("*cuteafd*/captured_rows/*")), (
        "the other arm is measured all the same"
    )
    assert outputs_of_study(tiny, "publication")


def log_softmax(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    shifted = rows - rows.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def outputs_of_study(tiny: TinyStudy, artifact: str) -> dict[str, Path]:
    return outputs(tiny, "_study", artifact)
