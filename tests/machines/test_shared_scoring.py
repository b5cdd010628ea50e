"""Windows of one panel scored on two machines at once: a third takes what they kept and gives the figures of one process, to the byte."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Machine
from homes import CHECKOUT, quiet
from tiny import BASE_ARM, TINY

from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.study import load_study
from engcmp_assets.kernel.work import Session, prepare
from engcmp_assets.scores import windows
from engcmp_assets.scores.step import make
from engcmp_assets.steps import step_named
from engcmp_resources.canonical import sha256_bytes
from engcmp_resources.shared_heads import pull
from engcmp_resources.store import Store

# What a worker runs when the job is launched there: the share is all that tells the machines apart.
SHARE = f"""
import sys
from engcmp_assets.automation import sync_partitions
from engcmp_assets.commands.instance import open_instance
from engcmp_assets.graph import definitions
from engcmp_assets.kernel.study import load_study
config = {{"ops": {{"smollm2_tiny_score_share": {{"config": {{"share": int(sys.argv[1]), "of": 2}}}}}}}}
with open_instance() as instance:
    sync_partitions(instance, load_study("{TINY}"))
    job = definitions().resolve_job_def("smollm2_tiny_windows")
    assert job.execute_in_process(instance=instance, partition_key="{BASE_ARM}", run_config=config).success
"""


def test_two_machines_score_a_panel_together_and_a_third_gives_the_figures_of_one(
    fresh: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = os.environ | fresh.tiny.variables | dict(fresh.variables)
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", SHARE, str(share)], env=variables | {"ENGCMP_HOME": str(tmp_path / f"gpu-{share}")},
            cwd=CHECKOUT, stderr=subprocess.PIPE, text=True,
        )
        for share in (1, 2)
    ]  # fmt: skip
    said = [worker.communicate(timeout=300)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], "\n".join(said)[-4000:]
    scored = [re.findall(r"share \d of 2: (\d+) windows scored, 0 were kept before", text) for text in said]
    assert all(len(one) == 1 and int(one[0]) > 0 for one in scored), "each did a part, and none what the other did"

    for name, value in (fresh.tiny.variables | dict(fresh.variables)).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(
        windows, "_scored", lambda *_: pytest.fail("a window that another machine scored is scored again")
    )
    study, store = load_study(TINY), Store(fresh.home)
    pull(store, TINY)
    session = Session(study, store, "test", quiet)
    made = make(prepare(session, step_named(study, "scores"), ArmKey.parse(BASE_ARM)))
    alone = session.current("scores", ArmKey.parse(BASE_ARM))
    assert alone is not None
    tables = {one.name: sha256_bytes(bytes(one.content)) for one in made.products if isinstance(one.content, bytes)}
    before = {output["name"]: output["sha256"] for output in alone.receipt["outputs"]}
    assert tables and tables == {name: before[name] for name in tables}
    assert len(before) == len(made.products)
