"""What happens by itself, on a tiny study with a real engine: releases, approval, runs, results, drift, proof and clean-up."""

from __future__ import annotations

import datetime
import http.server
import os
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import pytest
from homes import flipped, replace_file
from tiny import BASE_ARM, TINY, TinyStudy
from ui_process import forget
from watched import ENGINE, FIRST, make_watched, release

from engcmp_assets.automation import next_run, sync_partitions
from engcmp_assets.captured_rows.drift import CHECK as DRIFT
from engcmp_assets.captured_rows.drift import drift_check
from engcmp_assets.captured_rows.step import COLUMNS
from engcmp_assets.commands.instance import open_instance
from engcmp_assets.graph import POOL, definitions
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.study import load_study
from engcmp_assets.kernel.tables import parquet_bytes, read_parquet
from engcmp_assets.kernel.work import output_blob, sound_receipt
from engcmp_resources.places import study_names
from engcmp_resources.store import Store

PREFIX = TINY.replace("-", "_")
NEW_ARM = "q4_0/llamacpp@b1"
QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
SUNDAY = datetime.datetime(2026, 11, 29, 5, 0, tzinfo=datetime.UTC)


@dataclass(frozen=True)
class World:
    """The tiny study with its base arm measured and no results yet, and the instance that its UI would show."""

    tiny: TinyStudy
    instance: dg.DagsterInstance

    @property
    def store(self) -> Store:
        return Store(self.tiny.home, read_only=True)

    def run(
        self,
        job: str,
        *,
        partition: str | None = None,
        config: Mapping[str, Any] | None = None,
        only: Sequence[str] | None = None,
    ) -> dg.ExecuteInProcessResult:
        """Run a job in this process, whole or only some of its artifacts, as a selection in the UI does."""
        definition = definitions().resolve_job_def(job)
        selection = None if only is None else [dg.AssetKey([PREFIX, *name.split("/")]) for name in only]
        return definition.execute_in_process(
            instance=self.instance,
            partition_key=partition,
            run_config=QUIET | dict(config or {}),
            asset_selection=selection,
        )

    def tick(self, sensor: str, cursor: str | None = None) -> Any:
        found = definitions().resolve_sensor_def(sensor)
        return found(dg.build_sensor_context(instance=self.instance, cursor=cursor, definitions=definitions()))

    def partitions(self, kind: str) -> set[str]:
        return set(self.instance.get_dynamic_partitions(f"{PREFIX}_{kind}"))

    def receipt(self, artifact: str, arm: str | None = BASE_ARM) -> dict[str, Any]:
        sha256 = self.store.head(TINY, None if arm is None else ArmKey.parse(arm).folder, artifact)
        assert sha256 is not None, artifact
        return sound_receipt(self.store, sha256)


@pytest.fixture(scope="module")
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def story(measured_home: Path, tmp_path_factory: pytest.TempPathFactory, patch: pytest.MonkeyPatch) -> Iterator[World]:
    tiny = make_watched(tmp_path_factory.mktemp("automation"), measured_home)
    assert tiny.run("freeze", TINY).returncode == 0
    for name, value in (
        tiny.variables | {"ENGCMP_HOME": str(tiny.home), "DAGSTER_HOME": str(tiny.home / "dagster")}
    ).items():
        patch.setenv(name, value)
    with open_instance() as instance:
        world = World(tiny, instance)
        sync_partitions(instance, load_study(TINY))
        world.run(f"{PREFIX}_capture", partition=BASE_ARM)
        world.run(f"{PREFIX}_analysis", partition=BASE_ARM)
        yield world


@pytest.fixture
def world(story: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """The story's variables over those that every test gets."""
    for name, value in (story.tiny.variables | {"ENGCMP_HOME": str(story.tiny.home)}).items():
        monkeypatch.setenv(name, value)
    return story


def skipped(result: Any) -> str:
    """Why a tick asked for nothing."""
    reason = result if isinstance(result, dg.SkipReason) else result.skip_reason
    assert reason is not None, result
    return str(reason.skip_message)


# ---------------------------------------------------------------- capture and analysis are two jobs


def test_the_analysis_job_never_takes_the_engine_s_place_and_the_capture_job_scores_nothing() -> None:
    location = definitions()
    pools = {name: pools_of(location, f"smollm2_cpu_{name}") for name in ("capture", "analysis", "results", "arm")}
    assert pools == {"capture": {POOL}, "analysis": set(), "results": set(), "arm": {POOL}}
    captured = {
        key.path[1] for key in location.resolve_job_def("smollm2_cpu_capture").asset_layer.executable_asset_keys
    }
    assert not captured & {"scores", "tails", "summaries"}


def pools_of(location: dg.Definitions, job: str) -> set[str]:
    return {pool for node in location.resolve_job_def(job).nodes_in_topological_order for pool in node.definition.pools}


def test_what_runs_by_itself_from_the_start_starts_no_engine_but_for_approved_arms() -> None:
    location = definitions()
    on = [one for one in location.sensors or () if one.default_status == dg.DefaultSensorStatus.RUNNING]
    jobs = {target.job_name for sensor in on for target in sensor.targets}
    jobs |= {one.job_name for one in location.schedules or () if one.default_status == dg.DefaultScheduleStatus.RUNNING}
    studies = [name.replace("-", "_") for name in study_names()]
    assert {job for job in jobs if pools_of(location, job)} == {f"{study}_capture" for study in studies}
    assert not pools_of(location, "smollm2_cpu_engine_versions")


def test_only_the_missing_panel_of_an_arm_is_measured_and_the_others_stay(world: World) -> None:
    before = {panel: world.receipt(f"captured_rows/{panel}") for panel in ("pa", "pb", "pd")}
    forget(world.tiny.home, BASE_ARM, ["captured_rows/pb"], study=TINY)
    world.run(f"{PREFIX}_capture", partition=BASE_ARM, only=["captured_rows/pb"])
    after = {panel: world.receipt(f"captured_rows/{panel}") for panel in before}
    assert after["pb"]["run_id"] != before["pb"]["run_id"]
    assert after["pb"]["content_id"] == before["pb"]["content_id"]  # the same rows, bit for bit
    assert {panel: after[panel] for panel in ("pa", "pd")} == {panel: before[panel] for panel in ("pa", "pd")}


def test_one_artifact_is_made_again_on_demand_and_nothing_is_overwritten(world: World) -> None:
    before, files = world.receipt("scores"), set((world.tiny.home / "receipts").iterdir())
    again = {"ops": {f"{PREFIX}__scores": {"config": {"remeasure": True}}}}
    world.run(f"{PREFIX}_analysis", partition=BASE_ARM, config=again, only=["scores"])
    after = world.receipt("scores")
    assert (after["measurement"], after["content_id"]) == (before["measurement"] + 1, before["content_id"])
    assert files < set((world.tiny.home / "receipts").iterdir())


# ---------------------------------------------------------------- results follow


def test_results_are_made_when_they_are_missing_and_left_alone_when_they_are_current(world: World) -> None:
    sensor = f"{PREFIX}_results_current"
    first = world.tick(sensor)
    assert len(first.run_requests) == 1
    assert world.tick(sensor).run_requests[0].run_key == first.run_requests[0].run_key
    world.run(f"{PREFIX}_results")
    after = world.tick(sensor, first.cursor)
    assert skipped(after) == "comparisons, pages and the catalog are current"
    assert skipped(world.tick(sensor, after.cursor)) == "nothing has changed since the last look"


# ---------------------------------------------------------------- a release, its approval, its runs


def test_a_release_is_found_approved_and_measured_once(world: World, llamacpp_library: Path) -> None:
    watch, arms = f"{PREFIX}_{ENGINE}_releases", f"{PREFIX}_arms"
    assert "no new version" in skipped(world.tick(watch))
    release(world.tiny, FIRST, llamacpp_library)
    (request,) = world.tick(watch).run_requests
    assert world.tick(watch).run_requests[0].run_key == request.run_key  # the daemon starts a key once
    world.run(f"{PREFIX}_engine_versions")
    assert world.partitions("candidates") == {"llamacpp-b1"}
    assert "no new version" in skipped(world.tick(watch))
    assert "every arm has its partition" in skipped(world.tick(arms))

    world.run(f"{PREFIX}_approve", partition="llamacpp-b1")
    assert world.partitions("candidates") == set()
    assert NEW_ARM in world.partitions("arms")
    observed = world.instance.fetch_observations(dg.AssetKey([PREFIX, "engine_versions"]), limit=1).records[0]
    assert observed.asset_observation is not None
    assert NEW_ARM in str(observed.asset_observation.metadata["arms"].value)

    jobs = []
    for _ in ("capture", "analysis"):
        (request,) = world.tick(arms).run_requests
        assert world.tick(arms).run_requests[0].run_key == request.run_key
        assert request.tags["engcmp/version"] == "b1"
        jobs.append((request.job_name, request.run_key))
        world.run(request.job_name, partition=request.partition_key)
    assert [job for job, _ in jobs] == [f"{PREFIX}_capture", f"{PREFIX}_analysis"]
    assert len({key for _, key in jobs}) == 2
    assert "no approved one waits" in skipped(world.tick(arms))
    assert len(world.tick(f"{PREFIX}_results_current").run_requests) == 1


def test_the_run_key_is_of_arm_digest_and_frozen_hashes(world: World, tmp_path: Path) -> None:
    study, empty = load_study(TINY), Store(tmp_path / "empty")
    iteration = study.iterations[0]
    arm = iteration.arm_keys[0]
    found = iteration.adds.release
    assert found is not None
    pushed = iteration.adds.model_copy(update={"release": found.model_copy(update={"digest": "files:" + "0" * 64})})
    variants = [
        next_run(study, empty, iteration, arm),
        next_run(study, empty, replace(iteration, adds=pushed), arm),
        next_run(study, empty, replace(iteration, frozen_sha256="0" * 64), arm),
        next_run(study, empty, iteration, replace(arm, version="b2")),
    ]
    keys = [one.run_key for one in variants if one is not None]
    assert len(keys) == len(set(keys)) == 4


def test_an_edited_candidate_that_does_not_fit_is_refused_and_names_the_remedy(world: World) -> None:
    path = world.tiny.folder / "iterations" / "broken.toml"
    path.write_text(
        'schema = "engcmp.iteration/1"\nbecause = "x"\n[[arms]]\narm = "q9/llamacpp@b1"\n', encoding="utf-8"
    )
    try:
        sync_partitions(world.instance, load_study(TINY))
        with pytest.raises(dg.Failure) as caught:
            world.run(f"{PREFIX}_approve", partition="broken")
        assert "q9" in str(caught.value.metadata["what"].value)
        assert not path.with_suffix(".frozen.json").exists()
    finally:
        path.unlink()
        sync_partitions(world.instance, load_study(TINY))
    assert "broken" not in world.partitions("candidates")


@contextmanager
def index(status: int, headers: Mapping[str, str]) -> Iterator[str]:
    """A package index that answers every question in one way."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_args: object) -> None:
            """Nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/simple"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def asks_an_index(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    path = world.tiny.folder / "protocol.toml"
    before = path.read_bytes()
    text = before.decode().replace('place = "folder"', 'place = "package_index"')
    path.write_text(text.replace(str(world.tiny.root / "wheels"), "xllamacpp"), encoding="utf-8")
    for name, value in {"PIP_NO_INDEX": "0", "PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": ""}.items():
        monkeypatch.setenv(name, value)
    yield monkeypatch
    path.write_bytes(before)


def test_an_index_that_asks_to_wait_is_left_alone_until_then(world: World, asks_an_index: pytest.MonkeyPatch) -> None:
    watch = f"{PREFIX}_{ENGINE}_releases"
    with index(429, {"Retry-After": "120"}) as url:
        asks_an_index.setenv("PIP_INDEX_URL", url)
        limited = world.tick(watch)
        assert "wait 120 s" in skipped(limited)
    assert "more before the next look" in skipped(world.tick(watch, limited.cursor))


def test_an_index_that_is_out_of_order_is_asked_again_at_the_next_tick(
    world: World, asks_an_index: pytest.MonkeyPatch
) -> None:
    with index(503, {}) as url:
        asks_an_index.setenv("PIP_INDEX_URL", url)
        assert "the next look asks again" in skipped(world.tick(f"{PREFIX}_{ENGINE}_releases"))


# ---------------------------------------------------------------- by the calendar


def test_a_drift_repeat_measures_again_and_says_whether_anything_moved(world: World) -> None:
    schedule = definitions().resolve_schedule_def(f"{PREFIX}_drift")
    assert schedule.default_status == dg.DefaultScheduleStatus.STOPPED
    (request,) = schedule(dg.build_schedule_context(instance=world.instance, scheduled_execution_time=SUNDAY))
    before = world.receipt("captured_rows/pa")
    result = world.run(schedule.job_name, partition=request.partition_key, config=request.run_config)
    after = world.receipt("captured_rows/pa")
    assert after["measurement"] == before["measurement"] + 1
    checks = {one.check_name: one for one in result.get_asset_check_evaluations() if one.asset_key.path[-1] == "pa"}
    assert checks[DRIFT].passed
    assert checks[DRIFT].metadata["rows_bit_identical"].value == 1.0


def test_a_row_that_moved_is_drift(world: World, tmp_path: Path) -> None:
    receipt = world.receipt("captured_rows/pa")
    assert receipt["measurement"] > 1
    table: dict[str, Any] = dict(read_parquet(world.store.path(output_blob(receipt, "capture.parquet"))))
    table["raw_row_sha256"] = np.array(["0" * 64, *table["raw_row_sha256"][1:]])
    other = Store(tmp_path / "moved")
    shutil.copytree(world.tiny.home / "receipts", other.home / "receipts", dirs_exist_ok=True)
    for path in (world.tiny.home / "store").rglob("*.parquet"):
        target = other.home / "store" / path.parent.name / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(path, target)
    blob = other.put_bytes(parquet_bytes(COLUMNS, table), "parquet")
    outputs = [
        one | ({"sha256": blob.sha256, "bytes": blob.bytes} if one["name"] == "capture.parquet" else {})
        for one in receipt["outputs"]
    ]
    check = drift_check(other, receipt | {"outputs": outputs})
    rows = len(table["run"])
    assert not check.passed
    assert check.evidence["rows_bit_identical"] == pytest.approx((rows - 1) / rows)


def test_the_weekly_proof_is_seen_on_the_publication_and_fails_with_the_file(world: World) -> None:
    world.run(f"{PREFIX}_results")
    world.run(f"{PREFIX}_verify")
    seen = world.instance.fetch_observations(dg.AssetKey([PREFIX, "publication"]), limit=1).records[0]
    assert seen.asset_observation is not None and seen.asset_observation.metadata["figures"].value > 0
    path = world.store.path(output_blob(world.receipt("scores"), "rows-pa.parquet"))
    data = path.read_bytes()
    replace_file(path, flipped(len(data) // 2)(data))
    try:
        with pytest.raises(dg.Failure, match=path.name):
            world.run(f"{PREFIX}_verify")
    finally:
        replace_file(path, data)


def test_the_daily_clean_up_removes_what_a_dead_run_left_and_no_result(world: World) -> None:
    dead = world.tiny.home / "scratch" / "tmp-999999999-1"
    dead.write_bytes(b"half a file")
    heads = {path: path.read_bytes() for path in (world.tiny.home / "heads").rglob("*.json")}
    world.run("engcmp_clean_up")
    assert not dead.exists()
    assert {path: path.read_bytes() for path in (world.tiny.home / "heads").rglob("*.json")} == heads
