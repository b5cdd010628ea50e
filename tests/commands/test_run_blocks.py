"""`engcmp run STUDY --block`: one block of an arm at a time; its summary and the pages follow once all blocks are there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from homes import assert_one_clear_line
from ports import free_port
from served_tables import MODEL, VOCAB
from speedy import SERVED, served_study
from tiny import TINY, TinyStudy

from tests.simulator.running import running_simulator


def heads(tiny: TinyStudy) -> set[str]:
    root = tiny.home / "heads" / TINY
    return {path.relative_to(root).as_posix().removesuffix(".json") for path in root.rglob("*.json")}


def of_arm(tiny: TinyStudy) -> set[str]:
    prefix = SERVED.replace("/", "~") + "/"
    return {name.removeprefix(prefix) for name in heads(tiny) if name.startswith(prefix)}


def test_blocks_are_measured_one_by_one_in_any_order(tmp_path: Path, measured_home: Path) -> None:
    port = free_port()
    tiny = served_study(tmp_path / "study", measured_home, port, repeats=2)
    prompts = json.loads((tiny.folder / "prompt_set.json").read_bytes())
    texts = {
        (tiny.folder / "texts" / f"{one['window_id']}.txt").read_text(encoding="utf-8"): one["tokens"]
        for one in prompts["windows"]
    }
    (tmp_path / "known.json").write_text(json.dumps(texts), encoding="utf-8")
    inputs = {"sources", "prompt_set"}
    speed = {"engine_launch/serving", "throughput_events", "throughput_cells"}
    with running_simulator("vllm", port=port, model=MODEL, vocab=VOCAB, known_texts=tmp_path / "known.json"):
        done = tiny.run("run", TINY, "--arm", SERVED, "--block", "t")
        assert done.returncode == 0, done.stderr[-3000:]
        assert of_arm(tiny) == inputs | speed
        assert f"{TINY}: no arm has a summary yet; it needs block q too" in done.stdout
        assert "_study/publication" not in heads(tiny)
        done = tiny.run("run", TINY, "--block", "q")
        assert done.returncode == 0, done.stderr[-3000:]
        rows = {"reference_rows", "engine_launch/scoring", "captured_rows/pl", "scores", "tails"}
        assert of_arm(tiny) == inputs | speed | rows | {"summaries"}
        assert "_study/publication" in heads(tiny) and "Where to look next" in done.stdout
        remeasured = tiny.run("run", TINY, "--block", "t", "--remeasure")
        assert remeasured.returncode == 0, remeasured.stderr[-3000:]
        planned = json.loads(tiny.run("plan", TINY, "--json").stdout)
        assert set(planned["arms"][0]["artifacts"].values()) == {"done"}
    receipts = {
        name: json.loads((tiny.home / "heads" / TINY / SERVED.replace("/", "~") / f"{name}.json").read_bytes())
        for name in ("captured_rows/pl", "throughput_events")
    }
    measured = {
        name: json.loads((tiny.home / "receipts" / f"{one['receipt_sha256']}.json").read_bytes())["measurement"]
        for name, one in receipts.items()
    }
    assert measured == {"captured_rows/pl": 1, "throughput_events": 2}, "only the block that was asked for ran again"
    assert tiny.run("verify", TINY).returncode == 0


@pytest.mark.parametrize(("block", "said"), [("l", "has no block l (long output)"), ("x", "'x' is no block")])
def test_a_block_that_the_study_lacks_is_told_before_anything_is_started(
    tmp_path: Path, measured_home: Path, block: str, said: str
) -> None:
    tiny = served_study(tmp_path / "study", measured_home, free_port())
    done = tiny.run("run", TINY, "--block", block)
    assert_one_clear_line(done, said, "q (precision), t (speed)")
    assert not list((tiny.home / "heads").rglob("*.json"))
