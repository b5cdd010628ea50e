"""Two hosts with a queue each: one is switched off in the middle of a run, the run is found and ended, and the other host does it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pytest
from conftest import Machine, S3Server, succeeded, tiny_study, with_index
from homes import CHECKOUT
from hosts import Child, Network, start_postgres, start_redis, tool, wait_for, with_variable
from ports import free_port
from tiny import BASE_ARM, TINY, TinyStudy

from engcmp_assets.beats import QUEUE_TAG
from engcmp_resources.store import Store

PASSWORD = "planted-secret-of-the-fleet"  # noqa: S105 - it is looked for everywhere
JOB = "smollm2_tiny_arm"
STATUS = dg.DagsterRunStatus


@dataclass
class Fleet:
    """The control host's settings, and the workers by queue."""

    tiny: TinyStudy
    root: Path
    s3: S3Server
    variables: dict[str, str]
    workers: dict[str, Child]
    instance: dg.DagsterInstance

    def launch(self, queue: str) -> str:
        """A run of the arm on the host of `queue`, by the command of the README; its id."""
        before = {run.run_id for run in self.instance.get_runs()}
        tags = {QUEUE_TAG: queue, "dagster/partition": BASE_ARM}
        config = {"ops": {"smollm2_tiny__scoring": {"config": {"remeasure": True}}}}
        done = subprocess.run(
            [
                tool("dagster"), "job", "launch", "-w", str(CHECKOUT / "workspace.yaml"), "-j", JOB,
                "--tags", json.dumps(tags), "--config-json", json.dumps(config),
            ],
            env=os.environ | self.variables, cwd=CHECKOUT, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        succeeded(done)
        (run_id,) = {run.run_id for run in self.instance.get_runs()} - before
        return run_id

    def status(self, run_id: str) -> STATUS:
        run = self.instance.get_run_by_id(run_id)
        assert run is not None
        return run.status

    def log(self, run_id: str) -> str:
        return "\n".join(f"{one.message} {one.user_message}" for one in self.instance.all_logs(run_id))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    for program in ("redis-server", "runuser"):
        if shutil.which(program) is None:
            pytest.fail(f"{program} is not installed (.ci/run installs it)")
    root = Path(tempfile.mkdtemp(prefix="engcmp-fleet-", dir="/tmp"))
    root.chmod(0o711)
    network, children = Network(), []
    network.make()
    s3 = S3Server(network.control)
    patch = pytest.MonkeyPatch()
    try:
        s3.start()
        pg, redis = free_port(network.control), free_port(network.control)
        children += [
            start_postgres(root / "postgres", network.control, pg, PASSWORD),
            start_redis(root / "redis", network.control, redis, PASSWORD),
        ]
        tiny = tiny_study(root / "study")
        for folder in ("dagster", "control"):
            (root / folder).mkdir()
        shutil.copy(CHECKOUT / "engcmp_resources" / "deploy" / "dagster.yaml", root / "dagster")
        variables = s3.variables | tiny.variables | {
            "DAGSTER_HOME": str(root / "dagster"),
            "ENGCMP_PG_URL": f"postgresql+psycopg2://engcmp:{PASSWORD}@{network.control}:{pg}/postgres",
            "ENGCMP_BROKER": f"redis://:{PASSWORD}@{network.control}:{redis}/0",
            "ENGCMP_DEFAULT_QUEUE": "gpu-b", "ENGCMP_HOME": str(root / "control"), "ENGCMP_TEST_HOST": f"control{pg}",
        }  # fmt: skip
        # What the machine that froze the study fetched is in the object store: the hosts reach nothing else.
        succeeded(tiny.run("run", TINY, **s3.variables, **with_index()))
        for name, value in variables.items():
            patch.setenv(name, value)
        wait_for(can_open, 60, "Postgres")
        instance = dg.DagsterInstance.get()
        instance.add_dynamic_partitions("smollm2_tiny_arms", [BASE_ARM])
        workers = {}
        for number, queue in enumerate(("gpu-a", "gpu-b"), start=1):
            own = {
                "ENGCMP_HOME": str(root / queue),
                "ENGCMP_LOCK_DIR": str(root / f"locks-{queue}"),
                "ENGCMP_TEST_HOST": f"{queue}{pg}",
            }
            command = [*network.host(number), tool("engcmp-worker"), queue]
            workers[queue] = Child(command, root / f"{queue}.log", variables | own).start()
        daemon = Child(
            [tool("dagster-daemon"), "run", "-w", str(CHECKOUT / "workspace.yaml")], root / "daemon.log", variables
        )
        children += [*workers.values(), daemon.start()]
        for queue, worker in workers.items():
            wait_for(lambda worker=worker: "ready" in worker.said(), 60, f"worker {queue}")
        yield Fleet(tiny, root, s3, variables, workers, instance)
        for child in children[2:]:
            print(child.log.name, child.said())
    finally:
        patch.undo()
        for child in reversed(children):
            child.power_off()
        s3.stop()
        network.remove()
        shutil.rmtree(root, ignore_errors=True)


def can_open() -> bool:
    try:
        with dg.DagsterInstance.get():
            return True
    except Exception:  # noqa: BLE001 - whatever a database that starts gives
        return False


def test_a_host_that_is_switched_off_in_mid_run_is_found_and_the_other_host_does_the_run(
    fleet: Fleet, tmp_path: Path
) -> None:
    first, second = fleet.launch("gpu-a"), fleet.launch("gpu-a")  # one run a host at a time: the second waits
    wait_for(
        lambda: 'Started execution of step "smollm2_tiny__scoring"' in fleet.log(first),
        120,
        "the engine's step on gpu-a",
    )
    assert (fleet.status(first), fleet.status(second)) == (STATUS.STARTED, STATUS.QUEUED)
    fleet.workers["gpu-a"].power_off()
    assert not with_variable(f"ENGCMP_TEST_HOST={fleet.workers['gpu-a'].variables['ENGCMP_TEST_HOST']}".encode())
    fleet.instance.report_run_canceled(fleet.instance.get_run_by_id(second))  # type: ignore[arg-type] # there is one

    took = wait_for(lambda: fleet.status(first) == STATUS.FAILURE, 100, "the lost run's end")
    assert took < 90
    assert "The worker of queue gpu-a has said nothing for" in fleet.log(first)
    assert "launch the run again, on this host or another" in fleet.log(first)

    again = fleet.launch("gpu-b")
    wait_for(lambda: fleet.status(again) in (STATUS.SUCCESS, STATUS.FAILURE), 200, "the run on gpu-b")
    assert fleet.status(again) == STATUS.SUCCESS, fleet.log(again)[-3000:] + fleet.workers["gpu-b"].said()
    assert "has said nothing" not in fleet.log(again)

    # The control host sees the new figures in the object store, and has the study's results made again: on the default queue.
    def results() -> bool:
        made = fleet.instance.get_runs(dg.RunsFilter(job_name="smollm2_tiny_results", statuses=[STATUS.SUCCESS]))
        return bool(made)

    wait_for(results, 150, "the study's results")

    # gpu-b made it, in a home that held nothing; gpu-a had begun, and left no head.
    head = (TINY, BASE_ARM.replace("/", "~"), "captured_rows/pa")
    assert Store(fleet.root / "gpu-a", read_only=True).head(*head) != Store(fleet.root / "gpu-b", read_only=True).head(
        *head
    )
    auditor = Machine(fleet.tiny, tmp_path / "home", fleet.s3.variables)
    done = auditor.run("verify", TINY)
    assert done.returncode == 0, done.stdout + done.stderr
    receipt = Store(tmp_path / "home", read_only=True)
    sha256 = receipt.head(*head)
    assert sha256 is not None
    assert receipt.read_receipt(sha256)["run_id"] == again


def test_no_password_is_written_or_shown_in_the_list_of_processes(fleet: Fleet) -> None:
    for path in [*fleet.root.glob("*.log"), *(fleet.root / "gpu-b").rglob("*"), *(fleet.root / "control").rglob("*")]:
        if path.is_file() and path.stat().st_size < 20_000_000:
            assert PASSWORD.encode() not in path.read_bytes(), path
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            assert PASSWORD.encode() not in words, words
