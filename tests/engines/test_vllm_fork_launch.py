"""Kind `vllm-fork` by a stand-in of its launcher, with the simulator in a real container: top 20, receipt, faults, and what is left."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from docker_engine import docker_engine  # noqa: F401 - a fixture
from simulated import top20, truth

from engcmp_resources import host_image
from engcmp_resources.containers import DockerHost
from engcmp_resources.engines.servers import LaunchPlace, RunningServer, ServerSpec, checked_settings
from engcmp_resources.engines.vllm_fork import VllmForkSettings, environment_of, kv_pool_of_log
from engcmp_resources.errors import EngcmpError
from tests.launchers.launched import ARM, MODEL, Launcher, docker, tokens

NAME, OTHER = "engcmp-vllm-fork", "engcmp-vllm-other"
SETTINGS: dict[str, Any] = {
    "environment": {
        "MODEL_PROFILE": "k4",
        "DFLASH_TOKENS": "3",
        "DEBUG_ENV": "FLAG_A=1 FLAG_B=2",
        "MAX_MODEL_LEN": "4096",
    },
    "served_model": MODEL,
    "capabilities": {"prompt_logprobs": 20, "tokenizer": True, "metrics": True},
    "expected": {"enable_prefix_caching": "true"},
}
IDS, POSITIONS = tokens(40), [0, 3, 17, 38]
Shared = tuple[Launcher, RunningServer]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the image engcmp/host runs this host's own programs")


def made(folder: Path) -> Launcher:
    host = DockerHost()
    host_image.ensure(host)
    host.close()
    return Launcher("vllm-fork", "vllm", "vllm_fork", folder, SETTINGS)


@pytest.fixture
def launcher(docker_engine: None, tmp_path: Path) -> Launcher:
    return made(tmp_path)


@pytest.fixture(scope="module")
def shared(docker_engine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """One launch for the tests that leave it as it was; then nothing of it is left."""
    launcher = made(tmp_path_factory.mktemp("shared"))
    with launcher() as running:
        yield launcher, running
    launcher.assert_nothing_is_left(NAME)


def test_the_top_20_of_the_api_are_the_truth(shared: Shared) -> None:
    _, running = shared
    rows = running.light_rows("prefill", "w1", IDS, POSITIONS)
    wanted = truth(IDS, POSITIONS)
    assert np.array_equal(rows.top_ids, top20(wanted)[0])
    assert np.array_equal(rows.top_log_probs, top20(wanted)[1])
    assert rows.next_log_prob.tolist() == [float(row[IDS[p + 1]]) for row, p in zip(wanted, POSITIONS, strict=True)]
    running.refuse_changed()


def test_the_receipt_says_what_was_launched_and_what_the_engine_states(shared: Shared) -> None:
    launcher, running = shared
    facts = running.facts
    assert facts["launcher"] == {"commit": launcher.commit, "patch_sha256": None}
    assert facts["command"] == ["bash", "start.sh"]
    assert facts["environment"]["PORT"] == running.url.removeprefix("http://")
    assert facts["environment"]["IMAGE"] == host_image.IMAGE_ID
    assert facts["environment"]["MODEL_PROFILE"] == "k4"
    # What is in the container, not what was asked for: a flag that sets nothing is seen.
    assert facts["container_environment"]["FLAG_A"] == "1"
    assert facts["container_environment"]["FLAG_B"] == "2"
    assert "--fork" in facts["container_command"]
    assert facts["kv_pool"]["tokens"] == 65_536
    assert facts["kv_pool"]["max_model_len"] == 4096
    assert facts["kv_pool"]["logged"]["max_concurrency"] == 16.0
    assert facts["settings"] == {"enable_prefix_caching": {"requested": "true", "resolved": "True"}}
    assert facts["cache"] == "cold"
    assert facts["container"]["restart_count"] == 0
    assert facts["capabilities"]["prompt_logprobs"] == 20
    assert str(launcher.scratch) not in json.dumps(facts)
    assert "container is ready." in running.log_tail()


def refused(launcher: Launcher, said: str, **asked: Any) -> EngcmpError:
    with pytest.raises(EngcmpError, match=said) as told, launcher(container_name=OTHER, **asked):
        pytest.fail("it started")
    launcher.assert_nothing_is_left(OTHER)
    assert ARM in str(told.value)
    return told.value


def test_a_good_health_before_the_warm_up_is_not_ready(launcher: Launcher) -> None:
    refused(launcher, r"not ready within its deadline: no line .*container is ready", start_deadline_s=8,
            environment=SETTINGS["environment"] | {"EXTRA_SERVE_ARGS": "--warmup-ms 60000"})  # fmt: skip


def test_what_the_launcher_refuses_is_shown(launcher: Launcher) -> None:
    error = refused(launcher, "the launcher ended with exit code 1", environment={"MODEL_PROFILE": "fp8"})
    assert error.remedy is not None
    assert "MODEL_PROFILE must be k325, k3, k4 or custom" in error.remedy


def test_full_rows_by_the_api_where_the_launch_raises_the_limit(launcher: Launcher, tmp_path: Path) -> None:
    environment = SETTINGS["environment"] | {"EXTRA_SERVE_ARGS": "--max-logprobs -1"}
    settings = {"environment": environment, "capabilities": {"rows": ["prefill"]}, "cache_dir": str(tmp_path / "cache")}
    with launcher(container_name=OTHER, **settings) as running:
        running.full_rows("prefill", "w1", IDS, POSITIONS, tmp_path / "rows")
        assert running.facts["cache"] == "cold"
    assert (tmp_path / "rows").read_bytes() == truth(IDS, POSITIONS).tobytes()
    with launcher(container_name=OTHER, **settings) as running:
        assert running.facts["cache"] == "warm"
        assert str(tmp_path) not in json.dumps(
            {k: v for k, v in running.facts.items() if k not in ("mounts", "container_command")}
        )


def test_a_capability_that_the_server_lacks_stops_the_run(launcher: Launcher) -> None:
    refused(launcher, r"lacks what is declared of it: prompt_logprobs \(declared 'full', proved 20",
            capabilities={"prompt_logprobs": "full"})  # fmt: skip


def test_processed_log_probabilities_stop_the_run(launcher: Launcher) -> None:
    launcher.script("logprobs_processed")
    refused(launcher, "log-probabilities are processed")


def test_a_setting_that_was_resolved_otherwise_stops_the_run(launcher: Launcher) -> None:
    refused(launcher, "enable_prefix_caching requested false, found True", expected={"enable_prefix_caching": "false"})


def test_a_crash_that_restarts_silently_voids_the_window(launcher: Launcher) -> None:
    launcher.script({"name": "dies_in_row", "at": {"row": 38}})
    with launcher(container_name=OTHER) as running:
        before = running.facts["container"]
        with pytest.raises(EngcmpError, match=r"the container (was restarted|ended with exit code 3) while"):
            running.light_rows("prefill", "w1", IDS, POSITIONS)
        until = time.monotonic() + 20
        while docker("inspect", "-f", "{{.RestartCount}} {{.State.Running}}", OTHER) != "1 true":
            assert time.monotonic() < until
            time.sleep(0.1)
        _answers(running.url)  # it looks well again
        with pytest.raises(
            EngcmpError, match=r"the container was restarted: .*restart_count was 0, is 1; what was captured .* is void"
        ):
            running.light_rows("prefill", "w1", IDS[:20], [0])
        with pytest.raises(EngcmpError, match="restart_count was 0, is 1"):
            running.refuse_changed()
    assert before["restart_count"] == 0
    launcher.assert_nothing_is_left(OTHER)


def _answers(url: str) -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            if httpx.get(f"{url}/health", trust_env=False).status_code == 200:
                return
        except httpx.RequestError:
            time.sleep(0.1)
    raise AssertionError("it did not come back")


def test_a_stop_script_that_fails_is_said_and_the_container_is_gone_all_the_same(launcher: Launcher) -> None:
    with launcher(container_name=OTHER):
        (launcher.scratch / "launcher" / "stop.sh").write_text("echo cannot; exit 7\n")
    launcher.assert_nothing_is_left(OTHER)
    assert launcher.said == ["stop.sh ended with 7: cannot\n; the container is removed all the same"]


# ---------------------------------------------------------------- without a container


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "served_model"),
        ({"served_model": "m", "environment": {"IMAGE": "x"}}, "IMAGE: the kind sets it"),
        ({"served_model": "m", "environment": {"lower": "x"}}, "'lower' is no variable of the launcher"),
        ({"served_model": "m", "environment": {"ENGCMP_LOCK": "x"}}, "no variable of the launcher"),
        ({"served_model": "m", "ready_line": "("}, "no regular expression"),
        ({"served_model": "m", "environment": {"HF_TOKEN": "x"}}, "HF_TOKEN: a secret does not belong"),
        (
            {"served_model": "m", "environment": {"DEBUG_ENV": "A=1 MY_API_KEY=x"}},
            "MY_API_KEY: a secret does not belong",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(EngcmpError, match=said):
        checked_settings("vllm-fork", settings, where="arm x")


def test_the_environment_of_a_launch_with_gpus_and_a_model(tmp_path: Path) -> None:
    settings = VllmForkSettings(served_model="m", environment={"MODEL_PROFILE": "k4"})
    spec = ServerSpec("vllm-fork", "e", "v", {"image": "i@sha256:1", "commit": "c"}, 8, {})
    (tmp_path / "m").mkdir()
    place = LaunchPlace(tmp_path, tmp_path / "log", {}, {"model": tmp_path / "m"}, gpus=(0, 1))
    found = environment_of(settings, spec, place, 8001, tmp_path / "cache")
    assert found["GPU_REQUEST"] == '"device=0,1"'
    assert found["MODEL_DIR_OVERRIDE"] == str(tmp_path / "m")
    assert found["PORT"] == "127.0.0.1:8001"
    assert found["MODEL_PROFILE"] == "k4"


def test_the_kv_pool_of_the_log() -> None:
    line = "INFO GPU KV cache size: 2,758,919 tokens, Maximum concurrency for 1,048,576 tokens per request: 2.63x"
    how = "KV cache size line of the log"
    assert kv_pool_of_log(line) == {
        "tokens": 2_758_919,
        "how": how,
        "max_model_len": 1_048_576,
        "max_concurrency": 2.63,
    }
    assert kv_pool_of_log("CPU KV cache size: 93,184 tokens") == {"tokens": 93_184, "how": how}
    assert kv_pool_of_log("nothing") is None
