"""The code location: what the graph is, what its events say, and what its sensors do."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from homes import ARMS, CHECKOUT, LONE, Q4, Q8, STUDY, head_file
from ui_process import forget, home_without_dagster, wait_for

from engcmp_assets.automation import sync_partitions
from engcmp_assets.commands.instance import open_instance
from engcmp_assets.graph import POOL, definitions
from engcmp_assets.kernel.names import AUDIT, ENGINE_VERSIONS
from engcmp_assets.kernel.study import Study, load_study
from engcmp_assets.lost_runs import end_lost_runs, lost_runs_sensor
from engcmp_assets.steps import steps_of
from engcmp_resources.places import study_names

GOLDEN = Path(__file__).with_name("golden_specs.json")
RENEW = "ENGCMP_RENEW_GOLDEN"
PREFIX = "smollm2_cpu"
# A look at the world outside is observed, not materialized: test_automation has it.
STEPS = tuple(step for step in steps_of(load_study(STUDY)) if step.artifact != ENGINE_VERSIONS)
OF_ARM = [step.artifact for step in STEPS if step.per_arm]
ARMS_BUT_Q8 = [str(arm) for arm in load_study(STUDY).protocol.arm_keys if str(arm) != Q8]
STUDY_WIDE = [step.artifact for step in STEPS if not step.per_arm]
PANEL_ROWS = [f"captured_rows/{name}" for name in load_study(STUDY).protocol.panels]
# Its rows are no other arm's, so that nothing of it is answered from another arm's work.
QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


def key(artifact: str) -> dg.AssetKey:
    return dg.AssetKey([PREFIX, *artifact.split("/")])


@pytest.fixture(scope="module")
def location() -> dg.Definitions:
    return definitions()


@pytest.fixture(scope="module")
def specs(location: dg.Definitions) -> dict[str, dg.AssetSpec]:
    return {spec.key.to_user_string(): spec for spec in location.resolve_all_asset_specs()}


def checks_of(location: dg.Definitions) -> dict[str, list[dg.AssetCheckSpec]]:
    found: dict[str, list[dg.AssetCheckSpec]] = {}
    for asset in location.assets or ():
        assert isinstance(asset, dg.AssetsDefinition)
        for check in asset.check_specs:
            found.setdefault(check.asset_key.to_user_string(), []).append(check)
    return found


def columns_of(spec: dg.AssetSpec) -> list[dg.TableColumn]:
    schema = spec.metadata["dagster/column_schema"]
    schema = schema.value if isinstance(schema, dg.TableSchemaMetadataValue) else schema
    return list(schema.columns)


def unit_of(column: dg.TableColumn) -> str:
    """What stands in brackets at the end of a column's description."""
    match = re.search(r"\[(.+)\]$", column.description or "")
    return match[1] if match else ""


# ---------------------------------------------------------------- what the graph is


def test_the_location_loads_and_says_how_long_it_took(capsys: pytest.CaptureFixture[str]) -> None:
    code = "import sys, time; t = time.monotonic(); import definitions; print(time.monotonic() - t, *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    said, *modules = done.stdout.split()
    seconds = float(said)
    assert not {"matplotlib", "scipy.stats", "scipy.optimize"} & set(modules), "loaded before anything needs them: 3 s"
    with capsys.disabled():
        print(f"\n[the code location loads in {seconds:.1f} s]")
    assert seconds < 30
    assert "Warning" not in done.stderr


def test_the_specs_are_as_agreed(location: dg.Definitions, specs: Mapping[str, dg.AssetSpec]) -> None:
    """Keys, deps, groups, partitions, kinds, owners, versions, checks and columns are a promise to whoever reads the catalog.

    After an intended change: `ENGCMP_RENEW_GOLDEN=1 pytest tests/dagster/test_graph.py -k agreed`, and review the difference.
    """
    checks = checks_of(location)
    found = {
        name: {
            "deps": sorted(dep.asset_key.to_user_string() for dep in spec.deps),
            "group": spec.group_name,
            "partitions": getattr(spec.partitions_def, "name", None),
            "kinds": sorted(spec.kinds),
            "owners": sorted(spec.owners),
            "code_version": spec.code_version,
            "checks": sorted(check.name for check in checks[name]),
            "columns": {column.name: f"{column.type} [{unit_of(column)}]" for column in columns_of(spec)},
        }
        for name, spec in sorted(specs.items())
    }
    if os.environ.get(RENEW):
        GOLDEN.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    agreed = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert found == agreed, f"if this was intended: {RENEW}=1, and review the difference"


def test_every_job_sensor_and_schedule_says_what_it_does(location: dg.Definitions) -> None:
    assert all(job.description for job in location.jobs or ())
    assert all(sensor.description for sensor in location.sensors or ())
    assert all(schedule.description for schedule in location.schedules or ())


def test_an_arm_s_assets_share_one_partition_definition_and_no_job_mixes_two(
    location: dg.Definitions, specs: Mapping[str, dg.AssetSpec]
) -> None:
    for artifact in OF_ARM:
        assert getattr(specs[f"{PREFIX}/{artifact}"].partitions_def, "name", None) == f"{PREFIX}_arms"
    for artifact in STUDY_WIDE:
        assert specs[f"{PREFIX}/{artifact}"].partitions_def is None
    for job in location.resolve_all_job_defs():
        if job.name == "__ASSET_JOB":  # Dagster's own, of all assets there are: what is launched is a part of it
            continue
        names = {specs[k.to_user_string()].partitions_def for k in job.asset_layer.executable_asset_keys} - {None}
        assert len(names) <= 1, job.name


def test_a_check_speaks_of_the_partition_that_it_looked_at(location: dg.Definitions) -> None:
    for name, checks in checks_of(location).items():
        for check in checks:
            per_arm = name.removeprefix(f"{PREFIX}/") in OF_ARM
            assert (getattr(check.partitions_def, "name", None) == f"{PREFIX}_arms") is per_arm, check


def test_steps_run_in_one_process_and_only_the_engine_s_step_takes_the_pool(location: dg.Definitions) -> None:
    assert location.executor is dg.in_process_executor
    for job in location.resolve_all_job_defs():
        assert job.executor_def is dg.in_process_executor, job.name
    pools = {asset.op.name: asset.op.pool for asset in location.assets or () if isinstance(asset, dg.AssetsDefinition)}
    engines = {name: pool for name, pool in pools.items() if name.endswith(("__scoring", "__serving"))}
    assert set(engines.values()) == {POOL} and {f"{PREFIX}__scoring", f"{PREFIX}__serving"} <= set(engines)
    assert {pool for name, pool in pools.items() if name not in engines} == {None}


def test_no_job_needs_a_launch_pad(location: dg.Definitions) -> None:
    for job in location.resolve_all_job_defs():
        dg.validate_run_config(job, {})


# ---------------------------------------------------------------- an edited protocol


def test_a_location_whose_protocol_was_edited_loads_and_its_first_asset_says_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, study: Study
) -> None:
    shutil.copytree(study.folder.parent, tmp_path / "protocol")
    text = next((tmp_path / "protocol" / STUDY / "texts").glob("*.txt"))
    text.write_text(text.read_text(encoding="utf-8") + "an edit", encoding="utf-8")
    monkeypatch.setenv("ENGCMP_PROTOCOL", str(tmp_path / "protocol"))
    monkeypatch.setenv("ENGCMP_HOME", str(tmp_path / "home"))
    first = [
        a for a in definitions().assets or () if isinstance(a, dg.AssetsDefinition) and key("frozen_protocol") in a.keys
    ]
    with pytest.raises(dg.Failure, match=f"{text.name} was edited after the freeze") as caught:
        dg.materialize(first, run_config=QUIET)
    shown = {name: value.value for name, value in caught.value.metadata.items()}
    assert "restore it" in shown["remedy"] and f"texts/{text.name}" in shown["what"]


# ---------------------------------------------------------------- what the events say


@dataclass(frozen=True)
class Made:
    """Both arms and the results, materialized on the copied results of an earlier run, in an empty Dagster instance."""

    instance: dg.DagsterInstance
    home: Path
    study: Study
    runs: Mapping[str, str]

    def event(self, artifact: str, arm: str | None = None) -> dg.AssetMaterialization:
        return self._record(artifact, arm).asset_materialization

    def data_version(self, artifact: str, arm: str | None = None) -> str:
        return str((self.event(artifact, arm).tags or {})["dagster/data_version"])

    def metadata(self, artifact: str, arm: str | None = None) -> dict[str, Any]:
        return {name: value.value for name, value in self.event(artifact, arm).metadata.items()}

    def receipt(self, artifact: str, arm: str | None = None) -> str:
        return str(json.loads(head_file(self.home, artifact, arm).read_bytes())["receipt_sha256"])

    def _record(self, artifact: str, arm: str | None) -> Any:
        wanted = dg.AssetRecordsFilter(asset_key=key(artifact), asset_partitions=None if arm is None else [arm])
        return self.instance.fetch_materializations(wanted, limit=1).records[0]


@pytest.fixture(scope="module")
def made(measured_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    folder = tmp_path_factory.mktemp("graph")
    home = home_without_dagster(measured_home, folder / "home")
    (folder / "locks").mkdir(mode=0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENGCMP_HOME", str(home))
        patch.setenv("ENGCMP_LOCK_DIR", str(folder / "locks"))
        patch.setenv("DAGSTER_HOME", str(home / "dagster"))
        study = load_study(STUDY)
        with open_instance() as instance:
            sync_partitions(instance, study)
            runs = {arm: run_job(instance, f"{PREFIX}_arm", arm).run_id for arm in (Q8, Q4)}
            run_job(instance, f"{PREFIX}_results", None)
            run_job(instance, f"{PREFIX}_audit", None)
            yield Made(instance, home, study, runs)


def run_job(instance: dg.DagsterInstance, job: str, arm: str | None) -> dg.ExecuteInProcessResult:
    definition = definitions().resolve_job_def(job)
    return definition.execute_in_process(instance=instance, partition_key=arm, run_config=QUIET)


def test_what_was_done_before_is_answered_from_the_store_and_says_so(made: Made) -> None:
    for arm in (Q4, Q8):
        for artifact in OF_ARM:
            assert made.metadata(artifact, arm)["answered_from_store"] is True, artifact
    for artifact in STUDY_WIDE:  # the demo makes all but the audit, which has a job of its own
        assert made.metadata(artifact)["answered_from_store"] is (artifact != AUDIT), artifact


@pytest.mark.parametrize("artifact", ["sources", "prompt_set", "reference_rows"])
def test_both_arms_have_the_same_data_version_of_shared_inputs(made: Made, artifact: str) -> None:
    assert made.data_version(artifact, Q4) == made.data_version(artifact, Q8)


@pytest.mark.parametrize("artifact", ["engine_launch/scoring", *PANEL_ROWS, "scores", "summaries"])
def test_the_arms_own_results_have_data_versions_of_their_own(made: Made, artifact: str) -> None:
    assert made.data_version(artifact, Q4) != made.data_version(artifact, Q8)


def test_the_data_version_of_the_frozen_protocol_is_the_frozen_hash(made: Made) -> None:
    assert made.data_version("frozen_protocol") == made.study.frozen_sha256


def test_a_run_carries_its_arm_as_tags(made: Made) -> None:
    run = made.instance.get_run_by_id(made.runs[Q4])
    assert run is not None
    wanted = {"engcmp/checkpoint": "q4_0", "engcmp/engine": "llamacpp", "engcmp/version": "b11549"}
    assert wanted.items() <= run.tags.items()


def test_a_figure_on_the_page_carries_its_arm_and_its_receipt_s_number(made: Made) -> None:
    shown = made.metadata("summaries", Q4)
    figure = next(f for f in shown["receipt"]["figures"] if f["figure_id"] == f"{STUDY}/{Q4}/pa/all/kl_full")
    assert shown[f"kl_full, pa ({Q4})"] == figure["value"]
    over_all = [f for f in shown["receipt"]["figures"] if f["population"] == "all"]
    for one in over_all:  # every one by itself: panels share measures
        assert shown[f"{one['measure']}, {one['panel']} ({Q4})"] == one["value"]
        assert f"| {one['measure']} | {one['panel']} |" in shown["figures"]
    assert Q4 in shown["figures"] and figure["figure_id"] in shown["every_figure"]


def test_the_page_of_the_speeds_shows_the_headlines_of_each_cell(made: Made) -> None:
    shown = made.metadata("throughput_cells", Q4)
    owner = f"{STUDY}/{Q4}/throughput/"
    values = {one["figure_id"].removeprefix(owner): one["value"] for one in shown["receipt"]["figures"]}
    for name in ("code-64-c1/ttft_median_ms", "prose-64-c2/aggregate_tok_s"):
        assert isinstance(values[name], float) and f"`{owner}{name}`" in shown["figures"]
    assert "ttft_max_ms" not in shown["figures"] and "ttft_max_ms" in shown["every_figure"]
    assert "not measured" not in shown["figures"]


@pytest.mark.parametrize("artifact", [step.artifact for step in STEPS])
def test_every_event_shows_plot_hashes_receipt_and_row_count(made: Made, artifact: str) -> None:
    arm = Q4 if artifact in OF_ARM else None
    shown = made.metadata(artifact, arm)
    assert shown["receipt_sha256"] == made.receipt(artifact, arm)
    assert shown["receipt"]["artifact"] == artifact
    assert shown["frozen_sha256"] == made.study.frozen_sha256
    assert shown["data_version"] == made.data_version(artifact, arm)
    assert "data:image/png;base64," in shown["plot"]
    for output in shown["receipt"]["outputs"]:
        assert output["sha256"] in shown["outputs"]
    assert shown["dagster/row_count"] > 0


@pytest.mark.parametrize("artifact", [step.artifact for step in STEPS])
def test_the_chain_leads_link_by_link_to_the_frozen_protocol(made: Made, artifact: str) -> None:
    arm = Q4 if artifact in OF_ARM else None
    chain = made.metadata(artifact, arm)["chain"]
    lines = re.findall(r"^\| \[(.+?)\]\((.+?)\) \| (\S+) \| `(\w+)` \| `(\w+)` \|$", chain, re.MULTILINE)
    assert lines[0][0] == artifact and lines[-1][0] == "frozen_protocol"
    for name, link, owner, receipt, _content in lines:
        of = None if owner == "study" else owner
        assert made.receipt(name, of).startswith(receipt)
        view = (
            "view=events" if of is None else f"view=partitions&partition={of.replace('/', '%2F').replace('@', '%40')}"
        )
        assert link == f"/assets/{PREFIX}/{name}?{view}"
    assert f"Frozen hash: `{made.study.frozen_sha256}`" in chain
    if artifact == "publication":
        assert {owner for _, _, owner, _, _ in lines} == {"study", *ARMS}


def test_checks_are_recorded_for_their_partition_with_evidence(made: Made) -> None:
    for event in made.instance.all_logs(made.runs[Q4], of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION):
        assert event.dagster_event is not None
        evaluation = event.dagster_event.asset_check_evaluation_data
        # How busy this machine was while speeds were timed is for the reader to see, and no fault of the code.
        assert evaluation.passed or evaluation.check_name in ("client_kept_up", "client_was_not_the_limit")
        assert evaluation.metadata and evaluation.description
        per_arm = evaluation.asset_key.path[1] != "frozen_protocol"
        assert evaluation.partition == (Q4 if per_arm else None)


def test_what_was_lost_is_made_again_and_tells_its_progress(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGCMP_HOME", str(made.home))
    run_job(made.instance, f"{PREFIX}_arm", LONE)
    before = {name: made.data_version(name, LONE) for name in ("scores", "tails", "summaries")}
    forget(made.home, LONE, list(before))
    result = run_job(made.instance, f"{PREFIX}_arm", LONE)
    flags = {name: made.metadata(name, LONE)["answered_from_store"] for name in (*before, *PANEL_ROWS)}
    assert flags == {name: name in PANEL_ROWS for name in (*before, *PANEL_ROWS)}
    assert {name: made.data_version(name, LONE) for name in before} == before
    messages = [entry.user_message for entry in made.instance.all_logs(result.run_id)]
    assert any(re.match(rf"\[{re.escape(LONE)}\] scores: .+ 48/48 windows", message) for message in messages)


def test_a_partition_that_is_no_arm_of_the_protocol_says_which_there_are(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGCMP_HOME", str(made.home))
    stranger = "q2_k/llamacpp@b11549"
    made.instance.add_dynamic_partitions(f"{PREFIX}_arms", [stranger])
    try:
        with pytest.raises(dg.Failure) as caught:
            run_job(made.instance, f"{PREFIX}_arm", stranger)
    finally:
        made.instance.delete_dynamic_partition(f"{PREFIX}_arms", stranger)
    shown = {name: str(value.value) for name, value in caught.value.metadata.items()}
    assert "q2_k" in shown["what"] and "q4_0" in shown["remedy"], shown


# ---------------------------------------------------------------- sensors


def test_the_sensor_adds_the_arms_that_have_no_partition(location: dg.Definitions, tmp_path: Path) -> None:
    sensor = location.resolve_sensor_def(f"{PREFIX}_arms")
    assert sensor.default_status == dg.DefaultSensorStatus.RUNNING
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        instance.add_dynamic_partitions(f"{PREFIX}_arms", [Q8])
        tick = sensor(dg.build_sensor_context(instance=instance))
        assert isinstance(tick, dg.SensorResult) and not tick.run_requests
        assert set(instance.get_dynamic_partitions(f"{PREFIX}_arms")) == {Q8, *ARMS_BUT_Q8}
        assert isinstance(sensor(dg.build_sensor_context(instance=instance)), dg.SkipReason)


def test_the_daemon_fills_the_partitions_of_an_instance_that_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home" / "dagster"))
    monkeypatch.setenv("ENGCMP_HOME", str(tmp_path / "home"))
    with open_instance() as instance:
        assert not instance.get_dynamic_partitions(f"{PREFIX}_arms")
        daemon = subprocess.Popen(
            [str(Path(sys.executable).with_name("dagster-daemon")), "run", "-w", "workspace.yaml"],
            cwd=CHECKOUT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            wait_for(lambda: set(instance.get_dynamic_partitions(f"{PREFIX}_arms")) == {Q8, *ARMS_BUT_Q8}, 90)
        finally:
            daemon.terminate()
            daemon.wait(timeout=60)


SLEEPER = """
import time
import dagster as dg

@dg.op
def sleep() -> None:
    time.sleep(600)

@dg.job
def sleeper() -> None:
    sleep()

with dg.DagsterInstance.get() as instance:
    sleeper.execute_in_process(instance=instance)
"""


def test_a_run_whose_process_was_killed_is_reported_and_one_that_lives_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGCMP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home" / "dagster"))
    with open_instance() as instance:
        worker = subprocess.Popen([sys.executable, "-c", SLEEPER], stderr=subprocess.DEVNULL)
        try:
            wait_for(lambda: any(log_of(instance, "Started execution of step")), 60)
            (run,) = instance.get_runs()
            assert end_lost_runs(instance) == []
        finally:
            worker.kill()
        worker.wait()
        tick = lost_runs_sensor()(dg.build_sensor_context(instance=instance))
        assert isinstance(tick, dg.SkipReason) and run.run_id in str(tick.skip_message)
        after = instance.get_run_by_id(run.run_id)
        assert after is not None and after.status == dg.DagsterRunStatus.FAILURE
        assert any(log_of(instance, "materialize again to continue"))
        assert end_lost_runs(instance) == []


def test_a_run_that_never_told_its_process_is_reported_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between its start and its first word."""
    monkeypatch.setenv("ENGCMP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home" / "dagster"))

    @dg.job
    def nothing() -> None: ...

    with open_instance() as instance:
        run = instance.create_run_for_job(nothing)
        started = dg.DagsterEvent(dg.DagsterEventType.RUN_START.value, "nothing")
        instance.report_dagster_event(started, run.run_id)
        assert end_lost_runs(instance) == []
        true, began = time.time, time.monotonic()
        with monkeypatch.context() as patch:  # a clock that is set forward is no silence
            patch.setattr(time, "time", lambda: true() + 86_400)
            assert end_lost_runs(instance) == []
        monkeypatch.setattr(time, "monotonic", lambda: began + 599)
        assert end_lost_runs(instance) == []
        monkeypatch.setattr(time, "monotonic", lambda: began + 601)
        assert end_lost_runs(instance) == [run.run_id]
        after = instance.get_run_by_id(run.run_id)
        assert after is not None and after.status == dg.DagsterRunStatus.FAILURE


def log_of(instance: dg.DagsterInstance, words: str) -> list[bool]:
    return [words in (entry.message or "") for run in instance.get_runs() for entry in instance.all_logs(run.run_id)]


def test_a_draft_that_cannot_be_read_is_told_and_the_other_studies_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(CHECKOUT / "protocol", tmp_path / "protocol")
    draft = tmp_path / "protocol" / "smollm2-docker" / "protocol.toml"
    draft.write_text(draft.read_text(encoding="utf-8").replace("threads = 2", "thraeds = 2", 1), encoding="utf-8")
    monkeypatch.setenv("ENGCMP_PROTOCOL", str(tmp_path / "protocol"))
    keys = {spec.key.path[0] for spec in definitions().resolve_all_asset_specs()}
    others = {name.replace("-", "_") for name in study_names()} - {"smollm2_docker"}
    assert keys == others and PREFIX in keys
    said = capsys.readouterr().err
    assert "study smollm2-docker is left out" in said and "engines.llamacpp" in said and str(draft) in said
