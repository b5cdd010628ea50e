"""What Dagster records, held against the receipts: answered runs, the order in which arms are made, and events that the UI lets in."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import httpx
import pytest
from homes import ARMS, Q4, Q8, STUDY, current_receipt, engcmp_here, quiet
from ui_process import Ui, home_without_dagster, running_ui

from engcmp_assets.audit.event_claims import EventCounts, event_problems
from engcmp_assets.audit.reached import reached_from_heads
from engcmp_assets.audit.recompute import Evidence
from engcmp_assets.audit.trace import trace, trace_text
from engcmp_assets.commands.instance import open_instance
from engcmp_assets.graph import definitions
from engcmp_assets.kernel.study import Study, load_study

PREFIX = "smollm2_cpu"
QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
REPORT = "mutation($p: ReportRunlessAssetEventsParams!) { reportRunlessAssetEvents(eventParams: $p) { __typename } }"


def key(artifact: str) -> dg.AssetKey:
    return dg.AssetKey([PREFIX, *artifact.split("/")])


def run_job(instance: dg.DagsterInstance, job: str, arm: str | None, artifacts: Sequence[str] | None = None) -> None:
    definition = definitions().resolve_job_def(f"{PREFIX}_{job}")
    selection = None if artifacts is None else [key(artifact) for artifact in artifacts]
    definition.execute_in_process(instance=instance, partition_key=arm, run_config=QUIET, asset_selection=selection)


def last_event(instance: dg.DagsterInstance, artifact: str, arm: str | None = None) -> dg.EventLogRecord:
    wanted = dg.AssetRecordsFilter(asset_key=key(artifact), asset_partitions=None if arm is None else [arm])
    return instance.fetch_materializations(wanted, limit=1).records[0]


def tags_of(record: dg.EventLogRecord) -> dict[str, str]:
    assert record.asset_materialization is not None
    return dict(record.asset_materialization.tags or {})


def judged(home: Path) -> tuple[EventCounts | None, list[str]]:
    store = Evidence(home)
    reached = reached_from_heads(store, STUDY)
    counts, problems = event_problems(load_study(STUDY), store, reached, quiet, time.monotonic_ns)
    return counts, [str(problem) for problem in problems]


@pytest.fixture(scope="module")
def answered_home(measured_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of six arms, and a log of Dagster's in which two of them and the study's were answered from the store."""
    folder = tmp_path_factory.mktemp("answered")
    home = home_without_dagster(measured_home, folder / "home")
    (folder / "locks").mkdir(mode=0o700)
    with pytest.MonkeyPatch.context() as patch:
        in_home(patch, home)
        patch.setenv("ENGCMP_LOCK_DIR", str(folder / "locks"))
        with open_instance() as instance:
            instance.add_dynamic_partitions(f"{PREFIX}_arms", [str(arm) for arm in load_study(STUDY).protocol.arm_keys])
            for arm in (Q8, Q4):
                run_job(instance, "arm", arm)
            run_job(instance, "results", None)
    return home


@pytest.fixture
def home(answered_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that, whose log may be written."""
    copy = home_without_dagster(answered_home, tmp_path / "home")
    shutil.copytree(answered_home / "dagster", copy / "dagster")
    in_home(monkeypatch, copy)
    return copy


def in_home(patch: pytest.MonkeyPatch, home: Path) -> None:
    patch.setenv("ENGCMP_HOME", str(home))
    patch.setenv("DAGSTER_HOME", str(home / "dagster"))


def test_events_of_answered_runs_agree_and_arms_that_dagster_never_saw_are_counted(home: Path, study: Study) -> None:
    counts, problems = judged(home)
    assert problems == []
    of_other_arms = [
        path
        for arm in study.protocol.arm_keys
        if str(arm) not in (Q4, Q8)
        for path in (home / "heads" / STUDY / arm.folder).rglob("*.json")
    ]
    assert counts is not None and len(of_other_arms) > 30
    assert (counts.collected, counts.current_without) == (0, len(of_other_arms))


def test_the_order_of_making_misleads_dagster_s_pointer_and_nobody_else(home: Path, study: Study) -> None:
    """Rows of one arm, then of another, then what follows from the first one's: whose rows did it take?"""
    rows = [f"captured_rows/{name}" for name in study.protocol.panels]
    with open_instance() as instance:
        run_job(instance, "arm", Q4, rows)
        run_job(instance, "arm", Q8, rows)
        run_job(instance, "arm", Q4, ["scores", "tails", "summaries"])
        tags = tags_of(last_event(instance, "scores", Q4))
        other = last_event(instance, "captured_rows/pa", Q8).storage_id
        own = tags_of(last_event(instance, "captured_rows/pa", Q4))["dagster/data_version"]
    # If this fails, Dagster has mended its pointer: then say so where the design warns of it.
    assert tags[f"dagster/input_event_pointer/{PREFIX}/captured_rows/pa"] == str(other)
    # The version beside it is the right one, as a hash of the one partition that was read.
    recorded = tags[f"dagster/input_data_version/{PREFIX}/captured_rows/pa"]
    assert recorded == hashlib.sha256(own.encode()).hexdigest()
    assert judged(home)[1] == []
    links = trace(Evidence(home), study, f"{STUDY}/{Q4}/pa/all/kl_full").links
    assert {link.arm for link in links} == {Q4, None}
    captured = next(link for link in links if link.artifact == "captured_rows/pa")
    assert captured.content_id == own


def test_a_pair_s_trace_lists_its_two_arms_and_what_belongs_to_the_study(measured_home: Path, study: Study) -> None:
    store = Evidence(measured_home)
    for plan in study.protocol.comparisons:
        if plan.baseline not in ARMS:
            continue  # a pair of which one side cannot run here has no figure
        panel = study.protocol.panels_of(plan)[0]
        found = trace(store, study, f"{STUDY}/pair/{plan.pair_id}/{panel}/all/kl_full")
        assert {link.arm for link in found.links} == {plan.candidate, plan.baseline, None}
        assert {link.arm for link in found.links if link.artifact == "scores"} == {plan.candidate, plan.baseline}
        hashes = {link.receipt_sha256 for link in found.links}
        below = {item["receipt_sha256"] for sha256 in hashes for item in store.read_receipt(sha256)["inputs"]}
        assert hashes - below == {
            found.links[0].receipt_sha256
        }  # each but the first is named by another that is listed


@pytest.mark.parametrize("owner", [Q4, "pair/q4_0-vs-q8_0"])
def test_the_ui_leads_from_the_publication_to_the_figure_and_to_the_frozen_protocol(
    answered_home: Path, study: Study, monkeypatch: pytest.MonkeyPatch, owner: str
) -> None:
    found = trace(Evidence(answered_home), study, f"{STUDY}/{owner}/pa/all/kl_full")
    in_home(monkeypatch, answered_home)
    with open_instance() as instance:
        publication = last_event(instance, "publication").asset_materialization
    assert publication is not None
    chain = str(publication.metadata["chain"].value)
    first, *others = [page.path for page in found.pages]
    assert first == f"/assets/{PREFIX}/publication?view=events"
    assert len(others) == 2 and others[-1] == f"/assets/{PREFIX}/frozen_protocol?view=events"
    for path in (first, *others):
        assert f"]({path})" in chain
        assert path in trace_text(Evidence(answered_home), found)


@pytest.mark.timeout(400)
def test_an_event_that_is_reported_in_the_ui_is_found_and_can_be_removed(home: Path) -> None:
    with running_ui(home, "--read-only") as ui:
        assert report(ui, "scores") == "UnauthorizedError"
    assert judged(home)[1] == []
    with running_ui(home) as ui:
        assert report(ui, "scores") == "ReportRunlessAssetEventsSuccess"
        check = {"check_name": "every_pair_compared", "passed": True, "metadata": {"x": 1}}
        for address, body in (("check", check), ("observation", {"metadata": {"state": "new"}})):
            httpx.post(
                f"{ui.url}/report_asset_{address}/{PREFIX}/comparisons", json=body, timeout=30
            ).raise_for_status()

    done = engcmp_here("verify", STUDY, ENGCMP_HOME=str(home))
    assert done.returncode == 1
    lines = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    made, *others = sorted(lines, key=lambda line: f"{PREFIX}/scores" not in line)
    assert f"{PREFIX}/scores, {Q4}, " in made and "forged: reported by hand, no run has made it" in made
    assert sorted(line.split("forged ")[1].split(":")[0] for line in others) == ["check result", "observation"]
    assert all(f"{PREFIX}/comparisons, no partition, " in line for line in others)
    assert "Traceback" not in done.stderr

    wipe_events(home, "scores")
    counts, problems = judged(home)
    assert len(problems) == len(others) and counts is not None and counts.agree > 0
    (home / "dagster").rename(home / "moved-away")
    assert judged(home) == (None, [])
    assert current_receipt(home, "scores", Q4)["artifact"] == "scores"


def report(ui: Ui, artifact: str) -> str:
    """Report a materialization as the dialog of the UI does; the kind of answer."""
    event: dict[str, Any] = {
        "eventType": "ASSET_MATERIALIZATION", "assetKey": {"path": [PREFIX, artifact]}, "partitionKeys": [Q4],
        "description": "made by hand",
    }  # fmt: skip
    return str(ui.graphql(REPORT, p=event)["reportRunlessAssetEvents"]["__typename"])


def wipe_events(home: Path, artifact: str) -> None:
    """As the remedy says, with Dagster's own command."""
    tool = Path(sys.executable).with_name("dagster")
    subprocess.run(
        [str(tool), "asset", "wipe", json.dumps([PREFIX, artifact]), "--noprompt"],
        env=os.environ | {"DAGSTER_HOME": str(home / "dagster")}, check=True, capture_output=True,
    )  # fmt: skip
