"""The benchmarks at tiny size: what the n-th arm makes and keeps is counted here; their seconds are for `make bench` to print."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "commands"))

import bench_arms
import bench_verify
from growing import PREFIX, PROBES, WIDE, GrowingStudy, Growth

from engcmp_assets.kernel.work import output_blob
from engcmp_resources.store import Store

SCRIPTS = sorted(Path(__file__).parent.glob("bench_*.py"))
CAPTURED = {"captured_rows/pa", "captured_rows/pb", "captured_rows/pd", "engine_launch/scoring"}


@pytest.fixture(scope="module")
def study(measured_home: Path, tmp_path_factory: pytest.TempPathFactory) -> GrowingStudy:
    return GrowingStudy(tmp_path_factory.mktemp("grown"), measured_home)


@pytest.fixture(scope="module")
def grown(study: GrowingStudy) -> list[Growth]:
    """One arm more on a study of 2, and on the same study at 4."""
    return bench_arms.measure(study, [2, 4])


def test_one_arm_more_makes_its_own_artifacts_and_the_results_of_all_and_nothing_else(grown: list[Growth]) -> None:
    for one, arms in zip(grown, (2, 4), strict=True):
        assert one.arms_before == arms
        assert {name for ran in one.own for name in ran.answered} >= {"frozen_protocol", "prompt_set", "reference_rows"}
        assert {name for ran in one.own for name in ran.made} >= {*CAPTURED, "scores", "summaries"}
        assert [name for ran in one.wide for name in ran.made] == list(WIDE)
    assert [(one.arms_before, one.arm) for one in grown] == [(2, PROBES[0]), (4, PROBES[1])]


def test_one_arm_more_compares_its_own_pair_and_keeps_every_other(grown: list[Growth]) -> None:
    # The base arm's two score paths, and a pair of each other arm with the base arm.
    assert [(one.pairs_made, one.pairs_kept) for one in grown] == [(1, 2), (1, 4)]


def test_a_kept_pair_whose_rows_were_lost_is_compared_again_and_no_other(
    study: GrowingStudy, grown: list[Growth]
) -> None:
    assert grown
    with study.in_place():
        session = study.session()
        before = session.sound("comparisons", None)
        assert before is not None
        rows = session.store.path(output_blob(before.receipt, "rows/i000.parquet"))
        rows.unlink()
        said = len(study.said())
        study.results()
        after = session.sound("comparisons", None)
    assert rows.is_file()
    assert after is not None and after.receipt["content_id"] == before.receipt["content_id"]
    assert [line.split()[-1] for line in study.said()[said:] if " comparisons: pair " in line] == ["i000"]


def test_an_arm_that_was_not_captured_before_runs_the_same_steps_however_many_there_are(grown: list[Growth]) -> None:
    steps = [[ran.step for ran in one.own] for one in grown]
    assert steps[0] == steps[1]
    assert f"{PREFIX}__scoring" in steps[0]


def test_frozen_engines_give_two_arms_each_that_load_in_place(measured_home: Path, tmp_path: Path) -> None:
    study = GrowingStudy(tmp_path, measured_home, engines=3)
    outside = os.environ["ENGCMP_HOME"]
    with study.in_place():
        assert os.environ["ENGCMP_HOME"] == str(study.tiny.home)
        assert [str(arm) for arm in study.arms][1:3] == ["q8_0/e000@b11549", "q4_0/e000@b11549"]
        assert len(study.arms) == 7
    assert os.environ["ENGCMP_HOME"] == outside


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_every_benchmark_says_what_it_is_and_gives_an_example(script: Path) -> None:
    done = subprocess.run([sys.executable, str(script), "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"Example: {script.name}" in done.stdout


def test_the_store_of_the_verify_benchmark_is_hashed_to_the_last_file(tmp_path: Path) -> None:
    size = bench_verify.fill(Store(tmp_path), 140, 1000)
    assert size == sum(path.stat().st_size for name in ("store", "receipts") for path in (tmp_path / name).rglob("*.*"))
    bench_verify.verify_once(tmp_path, 140)
    damaged = max(tmp_path.glob("store/*/*.bin"))
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    with pytest.raises(SystemExit, match=f"{damaged.name}: bytes do not have the hash"):
        bench_verify.verify_once(tmp_path, 140)
