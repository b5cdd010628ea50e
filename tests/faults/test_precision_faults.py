"""Wrong precision figures that users of other tools have met (FAULTS, section 1): each is read right here, or refused.

Tested where the part itself is tested:

| fault | test |
| --- | --- |
| a printed minimum of a divergence is negative | kernel/test_row_measures.py: a row against itself, below rounding is an error |
| crashes at long contexts, an index beyond 2^31 | row_layouts/test_large_rows.py: the row beyond 2^31 values |
| memory that grows with context times vocabulary | row_layouts/test_large_rows.py: eight gigabytes stream through |
| NaN from some chunk on | file_scores/test_reading.py: a bad row is named with its arm, file, window and position |
| a batch that was silently cut | engines/test_llamacpp_engine.py: each setting as requested and as found |
| a tokenizer that cuts otherwise, without a warning | engines/test_vllm_http.py, test_sglang_http.py: told apart by the probe texts |
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from homes import Here, assert_one_clear_line

sys.path.extend(str(Path(__file__).parent.parent / name) for name in ("file_scores", "row_layouts"))

from made import Made, answers, made

from engcmp_assets.kernel.row_measures import score_rows
from engcmp_resources.host import code_identity


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    return Here(monkeypatch, capsys)


def scored(here: Here, one: Made, *more: str, arms: str = "AB") -> dict[str, Any]:
    """The documents of a scoring by their names."""
    done = here(*arguments(one, *more, arms=arms), home=one.folder / "home")
    assert done.returncode == 0, done.stderr
    return {path.name: json.loads(path.read_bytes()) for path in (one.folder / "out").glob("*.json")}


def arguments(one: Made, *more: str, arms: str = "AB") -> list[str]:
    sides = [text for arm in arms for text in ("--arm", f"{arm}={one.folder / arm}")]
    return [
        "score",
        "--panel",
        str(one.panel),
        "--reference",
        str(one.reference),
        *sides,
        "--out",
        str(one.folder / "out"),
        *more,
    ]


def written(folder: Path, **more: Any) -> Made:
    one = made(folder, **more)
    for side in one.rows:
        one.write(side)
    return one


@pytest.mark.parametrize("depth", [16.5, 24.0, 60.0])
def test_what_lies_more_than_16_nats_down_counts(depth: float) -> None:
    """A 16-bit reference with a clamp at 16 nats is too coarse for newer models."""
    # All mass on one id, and an engine that gives the others e^depth times what the reference gives them.
    p, q = np.full((1, 64), -depth - 5, np.float32), np.full((1, 64), -5, np.float32)
    p[0, 0] = q[0, 0] = 0.0
    found = score_rows(p, q, np.array([0]), where="here").kl_full[0]
    exact = answers(p[0], q[0], 0)["kl_full"]  # in 50 digits
    assert found == pytest.approx(exact, rel=1e-12, abs=1e-14)
    clamped = score_rows(np.maximum(p, -16), np.maximum(q, -16), np.array([0]), where="here").kl_full[0]
    assert abs(clamped - exact) > 1e-7  # a clamp would be seen


def test_a_panel_of_short_contexts_says_nothing_of_long_ones(here: Here, tmp_path: Path) -> None:
    """Perplexity is normal at a short context and wrong by hundreds from a longer one up."""
    one = written(tmp_path / "both", windows=8, tokens=30)
    for window in one.windows[2:]:  # bucket `long`
        one.rows["B"][window["window_id"]] = one.rows["A"][window["window_id"]][::-1].copy()
    one.write("B")
    by_bucket = scored(here, one)["B.json"]["by_bucket"]
    assert by_bucket["long"]["kl_full"]["mean"] > 10 * by_bucket["short"]["kl_full"]["mean"]
    short = written(tmp_path / "short", windows=2)
    document = scored(here, short)["B.json"]
    assert set(document["by_bucket"]) == {"short"}


@pytest.mark.parametrize("what", ["folder", "file"])
def test_nothing_is_a_failure_and_not_a_zero(here: Here, tmp_path: Path, what: str) -> None:
    """The tool exits, and gives no output."""
    one = written(tmp_path / "data")
    for path in (one.folder / "B").iterdir():
        path.unlink() if what == "folder" else path.write_bytes(b"")
    assert_one_clear_line(here(*arguments(one), home=one.folder / "home"), "B")
    assert not (one.folder / "out").exists()


def test_a_mean_says_what_it_is_a_mean_of(here: Here, tmp_path: Path) -> None:
    """The mean of the means of prompts was taken for the mean over tokens."""
    one = written(tmp_path / "data", windows=4)
    for window in one.windows[1:]:  # one long window beside three short ones
        del window["positions"][1:], window["roles"][1:]
    one.write_panel()
    document = scored(here, one)["A.json"]
    table = pq.read_table(one.folder / "out" / "A.rows.parquet")
    every = np.asarray(table.column("kl_full"))
    of_windows = [own["kl_full"] for own in document["by_window"].values()]
    assert len(every) == document["rows"] == 8
    assert document["measures"]["kl_full"]["mean"] == pytest.approx(every.mean(), rel=1e-12)
    assert abs(np.mean(of_windows) - every.mean()) > 1e-3  # the other mean is another number, and stands by window


def test_a_truncated_divergence_is_never_set_against_a_full_one(here: Here, tmp_path: Path) -> None:
    """A divergence over the top few ids was compared with a full one; the tail dominates it."""
    one = made(tmp_path / "data", windows=4, vocab=40)
    one.write("reference"), one.write("A")
    one.write_light("B")
    found = scored(here, one, "--pair", "A,B")
    pair = found["A-vs-B.json"]
    assert "kl_full" in found["A.json"]["measures"] and "kl_full" not in pair["measures"]
    assert found["B.json"]["measures"]["kl_full"]["mean"] is None and found["B.json"]["measures"]["kl_full"]["reason"]
    truncated = found["A.json"]["measures"].get("kl_top20")
    if truncated is not None:  # both truncated on the same buckets' rule: these two may stand side by side
        assert truncated["mean"] <= found["A.json"]["measures"]["kl_full"]["mean"]


def test_a_receipt_names_the_code_that_ran() -> None:
    """The documents described a hook that the code does not use."""
    recorded = code_identity()["modules"]
    ran = {
        name: module.__file__
        for name, module in sys.modules.items()
        if name.split(".")[0] in ("engcmp_assets", "engcmp_resources")
        and getattr(module, "__file__", None)
        is not None  # a folder of the capture plugin is no package and holds no code
    }
    assert "engcmp_assets.kernel.row_measures" in ran
    for name, file in ran.items():
        assert file is not None
        place = name.replace(".", "/") + ("/__init__.py" if file.endswith("__init__.py") else ".py")
        assert recorded[place] == hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16], name


def test_a_figure_tells_its_reference_direction_rows_and_populations(here: Here, tmp_path: Path) -> None:
    """Readers had to ask: which reference, which direction, the same prefixes, how many positions, which tokens?"""
    one = written(tmp_path / "data")
    found = scored(here, one, "--pair", "A,B", "--hash-inputs")
    own = found["A.json"]
    assert {item["of"] for item in own["inputs"]} == {"panel", "reference", "A"} and all(
        item["sha256"] for item in own["inputs"]
    )
    assert own["rows"] == sum(len(window["positions"]) for window in one.windows)
    assert set(own["by_role"]) == {"context"} and set(own["by_block"]) == {"code", "prose"}
    assert found["A-vs-B.json"]["pair"] == {"a": ["A"], "b": ["B"], "difference": "b - a"}
    field = pq.read_schema(one.folder / "out" / "A.rows.parquet").field("kl_full")
    assert b"p (log p - log q)" in field.metadata[b"description"] or b"reference" in field.metadata[b"description"]
    assert field.metadata[b"unit"] == b"nats"


def test_rows_over_another_vocabulary_are_refused(here: Here, tmp_path: Path) -> None:
    """Perplexities over different vocabularies were compared."""
    one = written(tmp_path / "data")
    other = made(tmp_path / "other", vocab=13)
    for window in one.windows:
        other.rows["B"][window["window_id"]] = np.zeros((len(window["tokens"]) - 1, 13), np.float32)
    other.folder, other.document = one.folder, one.document
    other.write("B")
    assert_one_clear_line(
        here(*arguments(one), home=one.folder / "home"), "arm B", "rows of 13 values", "vocabulary of 11"
    )


def test_a_comparison_without_a_control_says_so(here: Here, tmp_path: Path) -> None:
    """A control that was run again showed that most of a gap was drift of the evaluator, and not the candidate."""
    one = written(tmp_path / "data", windows=20, sides=("reference", "A", "B", "C"))
    alone = scored(here, one, "--pair", "A,B", arms="ABC")["A-vs-B.json"]["measures"]["kl_full"]
    assert "no repeat of the candidate or the baseline was captured" in alone["sentence"]
    one.folder.joinpath("out").rename(one.folder / "first")
    found = scored(here, one, "--pair", "A,B", "--repeat", "A,C", arms="ABC")["A-vs-B.json"]
    control = found["measures"]["kl_full"]["floor"]["A"]
    assert control["run"] == "C" and control["value"] != 0  # C is the control: what differs between runs of A
    assert "no repeat of the candidate was captured" in found["measures"]["kl_full"]["sentence"]
    choice = found["review"]["baseline_choice"]["kl_full"]
    assert {choice["lowest_run"], choice["highest_run"]} == {"A", "C"} and choice["swing"] == pytest.approx(
        abs(control["value"])
    )


def test_a_log_probability_that_was_not_given_is_never_0(here: Here, tmp_path: Path) -> None:
    """Prompt log-probabilities were missing, and every choice scored 0.0 without an error."""
    one = made(tmp_path / "data", windows=4, vocab=40)
    one.write("reference"), one.write("A")
    rows = one.light("B")
    one.write_light("B", next_token_log_prob=[None, *rows["next_token_log_prob"][1:]])
    done = here(*arguments(one), home=one.folder / "home")
    assert_one_clear_line(done, "B", "next_token_log_prob")
    assert not (one.folder / "out").exists()
