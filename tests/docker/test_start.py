"""Starts that fail, engines that only look alive, and what dead runs leave: real containers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from launching import ROOT, SIM_VOCAB, SimulatorLauncher, interrupt, misbehave, says_it_is_well, tokens, until

from engcmp_resources import host_image
from engcmp_resources.containers import DockerHost, remove_orphans
from engcmp_resources.errors import EngcmpError
from engcmp_resources.secrecy import hidden_secret

OTHER = "sha256:" + "1" * 64


def python_program(text: str) -> dict[str, object]:
    """Settings of a container that runs a line of Python instead of an engine."""
    return {"entrypoint": ["{python}", "-I", "-S", "-u", "-c", text], "command": [], "mounts": [], "ready_line": None}


# ---------------------------------------------------------------- images and ports


def test_an_image_that_is_missing_is_named_with_its_remedy(simulator: SimulatorLauncher) -> None:
    wanted = f"ghcr.io/somebody/engine@{OTHER}"
    with (
        pytest.raises(EngcmpError, match=f"image {wanted} is not present; .*docker pull {wanted}"),
        simulator(image=wanted),
    ):
        pytest.fail("the engine started")
    with pytest.raises(EngcmpError, match=f"image {OTHER} is not present"), simulator(image=OTHER):
        pytest.fail("the engine started")


def test_an_image_of_another_digest_shows_both(simulator: SimulatorLauncher, host: DockerHost) -> None:
    host_image.ensure(host)
    with (
        pytest.raises(
            EngcmpError, match=f"image engcmp/host:1 is here as {host_image.IMAGE_ID}.*, the launch names {OTHER}"
        ),
        simulator(image=f"engcmp/host:1@{OTHER}"),
    ):
        pytest.fail("the engine started")


def test_an_image_without_a_digest_is_refused(simulator: SimulatorLauncher) -> None:
    with (
        pytest.raises(EngcmpError, match="image 'engcmp/host:1' is not named by a digest"),
        simulator(image="engcmp/host:1"),
    ):
        pytest.fail("the engine started")


def test_the_image_is_made_again_where_it_was_removed(simulator: SimulatorLauncher, host: DockerHost) -> None:
    import docker

    docker.from_env().images.remove(host_image.ensure(host).id, force=True)
    with simulator() as running:
        assert running.facts["image"]["id"] == host_image.IMAGE_ID


def test_a_port_that_is_taken_is_named(simulator: SimulatorLauncher) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(EngcmpError, match=f"port {port} of 127.0.0.1 is taken"), simulator(port=port):
            pytest.fail("the engine started")
    assert simulator.containers() == []
    with simulator(port=port) as running:  # it is free now
        assert running.url == f"http://127.0.0.1:{port}"


def test_a_port_that_is_taken_meanwhile_is_a_failed_start_with_its_cause(simulator: SimulatorLauncher) -> None:
    simulator.script("port_taken")
    with pytest.raises(EngcmpError, match="ended with exit code 1 before it was ready") as failed, simulator(retries=2):
        pytest.fail("the engine started")
    assert "the port is taken: end what listens there" in str(failed.value)
    assert "address already in use" in str(failed.value)  # the last lines of its log
    assert [text.split(":")[0] for text in simulator.said] == [
        "start 1 of at most 3 failed",
        "start 2 of at most 3 failed",
    ]
    simulator.assert_nothing_is_left()


def test_no_docker_engine_is_told_with_its_address(
    simulator: SimulatorLauncher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(EngcmpError, match=r"no such socket \(unix://.*none\.sock\); install Docker"), simulator():
        pytest.fail("the engine started")
    assert remove_orphans() == []  # nothing can be left where nothing answers


def test_what_the_launch_cannot_fill_in_is_named(simulator: SimulatorLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        pytest.raises(EngcmpError, match=r"\{library\} of '\{library\}' has no value"),
        simulator(command=["{library}"]),
    ):
        pytest.fail("the engine started")
    with (
        pytest.raises(EngcmpError, match="no file 'patch' belongs to this launch; mount one of engcmp"),
        simulator(mounts=[{"file": "patch", "target": "/patch"}]),
    ):
        pytest.fail("the engine started")
    monkeypatch.delenv("NOT_SET", raising=False)
    with pytest.raises(EngcmpError, match="the variable NOT_SET is not set"), simulator(secrets={"TOKEN": "NOT_SET"}):
        pytest.fail("the engine started")
    with pytest.raises(EngcmpError, match="it takes api, entrypoint"), simulator(unknown=1):
        pytest.fail("the engine started")


# ---------------------------------------------------------------- starts that fail


def test_a_container_that_ends_shows_its_log_with_secrets_replaced(
    simulator: SimulatorLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUR_TOKEN", "hf_planted")
    program = "import os,sys; [print('line', i) for i in range(60)]; print('token', os.environ['TOKEN']); sys.exit(7)"
    with (
        pytest.raises(EngcmpError, match="the container ended with exit code 7 before it was ready") as failed,
        simulator(secrets={"TOKEN": "OUR_TOKEN"}, **python_program(program)),
    ):
        pytest.fail("the engine started")
    shown = [line.strip() for line in str(failed.value).splitlines() if line.startswith("    ")]
    assert shown == [*(f"line {number}" for number in range(21, 60)), f"token {hidden_secret('hf_planted')}"]
    assert "hf_planted" not in simulator.log.read_text()
    simulator.assert_nothing_is_left()


def test_a_program_that_the_image_lacks_is_told(simulator: SimulatorLauncher) -> None:
    with pytest.raises(EngcmpError, match="the image has no such program"), simulator(entrypoint=["/no/such/program"]):
        pytest.fail("the engine started")
    simulator.assert_nothing_is_left()


def test_too_little_memory_beside_another_process_is_told(simulator: SimulatorLauncher) -> None:
    simulator.script("no_free_memory")
    with pytest.raises(EngcmpError, match="out of memory: another process may hold it"), simulator():
        pytest.fail("the engine started")
    simulator.assert_nothing_is_left()


def test_the_second_start_serves_where_the_first_one_failed(simulator: SimulatorLauncher) -> None:
    marker = simulator.folder / "tried"
    started = f"import os,runpy,sys; m={str(marker)!r}; first=not os.path.exists(m); open(m,'w').close()"
    program = f"{started}; sys.exit(3) if first else runpy.run_module('tests.simulator', run_name='__main__')"
    mounts = [dict(mount, read_only=mount["path"] != str(simulator.folder)) for mount in simulator.settings["mounts"]]
    with simulator(entrypoint=[sys.executable, "-c", program], mounts=mounts, retries=1) as running:
        assert running.capabilities.rows == ("decode",)
    (said,) = simulator.said
    assert said.startswith("start 1 of at most 2 failed")
    assert "exit code 3" in said


def test_a_ready_line_that_never_comes_ends_at_the_deadline(simulator: SimulatorLauncher) -> None:
    began = time.monotonic()
    with (
        pytest.raises(EngcmpError, match="not ready within its deadline: no line 'all done' in its log"),
        simulator(ready_line="all done", start_deadline_s=2),
    ):
        pytest.fail("the engine started")
    assert time.monotonic() - began < 15
    simulator.assert_nothing_is_left()


def test_an_image_without_a_health_check_cannot_be_waited_for_by_it(simulator: SimulatorLauncher) -> None:
    with (
        pytest.raises(EngcmpError, match="its health status is 'not defined'"),
        simulator(ready_health=True, start_deadline_s=2),
    ):
        pytest.fail("the engine started")


def test_ctrl_c_while_starting_ends_the_container(simulator: SimulatorLauncher) -> None:
    def interrupt_once_it_runs() -> None:
        assert until(lambda: [one for one in simulator.containers() if one.status == "running"])
        interrupt()

    interrupting = threading.Thread(target=interrupt_once_it_runs)
    with pytest.raises(KeyboardInterrupt):
        interrupting.start()
        with simulator(ready_line="all done"):
            pytest.fail("the engine started")
    interrupting.join()
    simulator.assert_nothing_is_left()


# ---------------------------------------------------------------- alive is not well


def test_ready_says_the_log_and_health_but_no_token_comes(simulator: SimulatorLauncher) -> None:
    simulator.script("stuck_but_healthy")
    with (
        pytest.raises(EngcmpError, match="it runs and says that it is ready, but gives no token"),
        simulator(start_deadline_s=6),  # it must have said so within, also on a busy machine
    ):
        pytest.fail("the engine started")
    simulator.assert_nothing_is_left()


def test_an_engine_that_gets_stuck_while_healthy_is_removed(simulator: SimulatorLauncher, tmp_path: Path) -> None:
    with simulator(request_deadline_s=2) as running:
        ids = tokens(12, SIM_VOCAB)
        running.full_rows("decode", "w1", ids, [3, 4], tmp_path / "rows")
        misbehave(running, "stuck_but_healthy")
        assert says_it_is_well(running)
        with pytest.raises(
            EngcmpError, match="no answer in time while taking rows of window w2; it still ran: it was stuck"
        ):
            running.full_rows("decode", "w2", ids, [3, 4], tmp_path / "more")
        simulator.assert_nothing_is_left()
        with pytest.raises(EngcmpError, match="the container is gone"):
            running.full_rows("decode", "w3", ids, [3, 4], tmp_path / "more")
    assert not (tmp_path / "more").exists()


def test_an_engine_that_is_dead_behind_its_health_gives_no_rows(simulator: SimulatorLauncher, tmp_path: Path) -> None:
    with simulator() as running:
        misbehave(running, "dead_behind_health")
        assert says_it_is_well(running)
        with pytest.raises(EngcmpError, match="HTTP status 500"):
            running.full_rows("decode", "w", tokens(12, SIM_VOCAB), [3], tmp_path / "rows")
    assert not (tmp_path / "rows").exists()


def test_an_engine_that_dies_by_itself_in_a_row_gives_its_exit_code(
    simulator: SimulatorLauncher, tmp_path: Path
) -> None:
    with simulator() as running:
        misbehave(running, {"name": "dies_at_token", "at": {"token": 0}, "code": 9})
        with pytest.raises(
            EngcmpError, match="the container ended with exit code 9 while taking light rows of window w"
        ):
            running.light_rows("decode", "w", tokens(12, SIM_VOCAB), [3, 4])
    simulator.assert_nothing_is_left()


def test_another_model_than_was_asked_for_is_no_start(simulator: SimulatorLauncher) -> None:
    simulator.script("model_name_wrong")
    began = time.monotonic()
    with pytest.raises(EngcmpError, match="serves the model 'another/model', not 'sim/model'"), simulator():
        pytest.fail("the engine started")
    assert time.monotonic() - began < 30  # it is not waited for


def test_an_engine_that_loads_for_a_while_is_waited_for(simulator: SimulatorLauncher) -> None:
    simulator.script({"name": "health_503_while_loading", "ms": 1500})
    with simulator(ready_line=None) as running:
        assert running.facts["ready"]["first_token_ms"] > 1500
        assert running.facts["ready"]["ready_line_ms"] == {"missing": "the kind names no ready line"}


def test_rows_of_the_simulator_are_its_truth(simulator: SimulatorLauncher, tmp_path: Path) -> None:
    """Rows through the container are those that the simulator's own model has for these tokens."""
    from tests.simulator.model import Model

    ids = tokens(12, SIM_VOCAB)
    with simulator() as running:
        running.full_rows("decode", "w", ids, [3, 4, 5], tmp_path / "rows")
    rows = np.fromfile(tmp_path / "rows", dtype="<f4").reshape(3, SIM_VOCAB)
    truth = Model(vocab=SIM_VOCAB, seed=1).rows(ids, [3, 4, 5]).astype(np.float64)
    truth -= np.log(np.exp(truth).sum(axis=1, keepdims=True))
    assert np.allclose(rows, truth, rtol=0, atol=1e-5)


# ---------------------------------------------------------------- what dead runs leave

RUN = """
import sys, time
from pathlib import Path
sys.path[:0] = [sys.argv[1], sys.argv[2]]
from launching import SimulatorLauncher
with SimulatorLauncher(Path(sys.argv[3]), {}, {})() as running:
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("by_lock", [True, False])
def test_what_a_killed_run_leaves_is_removed_at_the_next_start(simulator: SimulatorLauncher, by_lock: bool) -> None:
    command = [sys.executable, "-c", RUN, str(ROOT), str(ROOT / "tests"), str(simulator.folder)]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=os.environ)
    try:
        assert run.stdout is not None
        assert run.stdout.readline() == "ready\n"
        assert remove_orphans() == []  # it lives
    finally:
        run.kill()
        run.communicate()
    (left,) = simulator.containers()
    assert left.status == "running"
    (said,) = remove_orphans(*([simulator.lock] if by_lock else []))
    assert said == f"removed a container left by a dead run: {left.name} of arm q4_0/llamacpp-docker@b11549, run run-1"
    assert simulator.containers() == []
    assert until(lambda: not simulator.processes())
    with simulator() as running:
        running.refuse_changed()


def test_the_container_of_an_earlier_boot_is_removed(host: DockerHost) -> None:
    import docker

    labels = {
        "ENGCMP_RUN": "run-0",
        "ENGCMP_ARM": "a",
        "ENGCMP_LOCK": "/nowhere",
        "ENGCMP_OWNER": "earlier-boot pid:[1] 1 1",
    }
    made = docker.from_env().containers.create(host_image.ensure(host).id, command=["/bin/true"], labels=labels)
    foreign = docker.from_env().containers.create(host_image.ensure(host).id, command=["/bin/true"])
    try:
        assert host.remove_orphans() == [f"removed a container left by a dead run: {made.name} of arm a, run run-0"]
        assert host.find(made.id) is None
        assert host.find(foreign.id) is not None  # not ours
    finally:
        foreign.remove(force=True)
