"""The faults of servers and containers that users of other tools have met (FAULTS, sections 8 and 10), in real containers.

| row | where |
|---|---|
| 10: engine dead or stuck while /health or /version says 200 | here, for each API; one not started by us: engines/test_external.py |
| 10: container loses the GPU | test_gpu_faults.py, and here: an engine that fails with a CUDA error behind its health |
| 10: not enough free memory at start; retry policy declared | here; the co-tenant's memory before and after: test_gpu_faults.py |
| 10: hang with data parallel: a deadline per phase | here |
| 8: /health 200 while warming; clock started early | here |
| 8: the same prompts again are answered from the cache | test_server_faults.py |
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from docker_engine import docker_engine  # noqa: F401 - a fixture
from launching import SIM_VOCAB, SimulatorLauncher, misbehave, says_it_is_well, tokens

from engcmp_resources.engines.servers import RunningServer
from engcmp_resources.errors import EngcmpError

IDS = tokens(24, SIM_VOCAB)
APIS = ("llama-server", "vllm", "sglang")


@pytest.fixture(params=APIS)
def launcher(request: pytest.FixtureRequest, docker_engine: None, tmp_path: Path) -> SimulatorLauncher:
    return SimulatorLauncher(tmp_path, {}, {}, api=request.param)


def capture(running: RunningServer) -> None:
    """Light rows, on the path that the engine has."""
    path = "decode" if running.capabilities.light("decode") else "prefill"
    assert len(running.light_rows(path, "w1", IDS, [3, 4]).top_ids) == 2


def test_stuck_while_health_says_200_is_seen_by_the_missing_token(launcher: SimulatorLauncher) -> None:
    with launcher(request_deadline_s=1.5) as running:
        capture(running)
        misbehave(running, "stuck_but_healthy")
        assert says_it_is_well(running)
        with pytest.raises(EngcmpError, match=r"no answer in time .*it was stuck and has been removed"):
            capture(running)
    launcher.assert_nothing_is_left()


def test_dead_behind_a_healthy_answer_gives_no_rows(launcher: SimulatorLauncher) -> None:
    with launcher() as running:
        capture(running)
        misbehave(running, "dead_behind_health")
        assert says_it_is_well(running)
        with pytest.raises(EngcmpError, match="HTTP status 500"):
            capture(running)
    launcher.assert_nothing_is_left()


def test_ready_is_a_completed_inference_and_no_status(launcher: SimulatorLauncher) -> None:
    launcher.script({"name": "health_200_while_warming", "ms": 2500.0})
    with launcher() as running:
        ready = running.facts["ready"]
        capture(running)
    assert ready["first_token_ms"] > 2500
    assert ready["ready_line_ms"] < ready["first_token_ms"]  # both clocks are kept


@pytest.mark.parametrize("launcher", ["vllm"], indirect=True)
def test_an_engine_that_never_gets_ready_ends_at_the_deadline_of_its_start(launcher: SimulatorLauncher) -> None:
    launcher.script("stuck_but_healthy")
    began = time.monotonic()
    with pytest.raises(EngcmpError, match="says that it is ready, but gives no token"), launcher(start_deadline_s=6):
        pytest.fail("it was taken")
    assert time.monotonic() - began < 25
    launcher.assert_nothing_is_left()


@pytest.mark.parametrize("launcher", ["vllm"], indirect=True)
def test_too_little_memory_at_start_is_tried_again_as_often_as_declared(launcher: SimulatorLauncher) -> None:
    """The other process gives its memory back between the first start and the second."""
    marker, script = launcher.folder / "tried", launcher.folder / "script.json"
    launcher.script("no_free_memory")
    program = (
        f"import os,runpy; m={str(marker)!r}; s={str(script)!r}\n"
        "if os.path.exists(m): open(s, 'w').write('{\"faults\": []}')\n"
        "open(m, 'w').close()\n"
        "runpy.run_module('tests.simulator', run_name='__main__')"
    )
    mounts = [dict(mount, read_only=mount["path"] != str(launcher.folder)) for mount in launcher.settings["mounts"]]
    with launcher(entrypoint=[sys.executable, "-c", program], mounts=mounts, retries=1) as running:
        capture(running)
    (said,) = launcher.said
    assert said.startswith("start 1 of at most 2 failed")
    launcher.script("no_free_memory")
    with pytest.raises(EngcmpError, match="out of memory: another process may hold it"), launcher():
        pytest.fail("it was taken")
    launcher.assert_nothing_is_left()


def test_a_gpu_error_in_a_capture_is_an_error_and_not_slowness(docker_engine: None, tmp_path: Path) -> None:
    launcher = SimulatorLauncher(tmp_path, {}, {})
    with launcher() as running:
        misbehave(running, {"name": "gpu_lost", "at": {"token": 0}})
        assert says_it_is_well(running)
        with pytest.raises(EngcmpError, match="CUDA"):
            capture(running)
