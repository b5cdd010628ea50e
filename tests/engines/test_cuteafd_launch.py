"""Kind `cuteafd` by a stand-in of its launcher, with the simulator in a real container: rows, receipt, faults, and what is left."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docker_engine import docker_engine  # noqa: F401 - a fixture
from simulated import truth

from engcmp_resources import host_image
from engcmp_resources.canonical import sha256_bytes, sha256_file
from engcmp_resources.containers import DockerHost
from engcmp_resources.engines._leases import LEASE, remove_leftovers
from engcmp_resources.engines.cuteafd import CuteafdSettings, config_of, parse_plan
from engcmp_resources.engines.servers import RunningServer, ScorePath, checked_settings
from engcmp_resources.errors import EngcmpError
from tests.launchers.launched import ARM, MODEL, Launcher, docker, tokens

NAME = "cuteafd-coordinator-engcmp"
CONFIG = {"MODEL_ID": MODEL, "MAX_OUTPUT_TOKENS": 4096, "USAGE": "off", "POOL_TOKENS": 65_536}
IDS, POSITIONS = tokens(40), [0, 3, 17, 38]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the image engcmp/host runs this host's own programs")


@pytest.fixture
def launcher(docker_engine: None, tmp_path: Path) -> Launcher:
    host = DockerHost()
    host_image.ensure(host)
    host.close()
    settings = {
        "config": CONFIG,
        "capabilities": {"rows": ["prefill", "decode"]},
        "expected": {"prefill_batch_tokens": 2048},
    }
    return Launcher("cuteafd", "cuteafd", "cuteafd", tmp_path, settings)


@pytest.fixture(scope="module")
def shared(docker_engine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Launcher, RunningServer]]:
    """One launch for the tests that leave it as it was; then nothing of it is left."""
    host = DockerHost()
    host_image.ensure(host)
    host.close()
    settings = {
        "config": CONFIG,
        "capabilities": {"rows": ["prefill", "decode"]},
        "expected": {"prefill_batch_tokens": 2048},
    }
    launcher = Launcher("cuteafd", "cuteafd", "cuteafd", tmp_path_factory.mktemp("shared"), settings)
    with launcher() as running:
        yield launcher, running
    launcher.assert_nothing_is_left(NAME)


Shared = tuple[Launcher, RunningServer]


@pytest.mark.parametrize("path", ["prefill", "decode"])
def test_rows_of_both_paths_are_the_truth_bit_for_bit(shared: Shared, tmp_path: Path, path: ScorePath) -> None:
    _, running = shared
    taken = running.full_rows(path, "w1", IDS, POSITIONS, tmp_path / "rows")
    assert (tmp_path / "rows").read_bytes() == truth(IDS, POSITIONS).tobytes()
    assert taken.notes["score_path"] == path
    running.refuse_changed()
    light = running.light_rows(path, "w1", IDS, POSITIONS)
    assert light.top_ids[:, 0].tolist() == truth(IDS, POSITIONS).argmax(axis=1).tolist()


def test_the_receipt_says_what_was_launched_and_what_the_engine_states(shared: Shared) -> None:
    launcher, running = shared
    facts = running.facts
    launched = facts["launcher"]
    assert launched["commit"] == launcher.commit
    assert launched["config_sha256"] == sha256_bytes(launched["config"].encode())
    assert launched["config"].splitlines()[:2] == ["ADDR={address}", "API_KEY_FILE={scratch}/key/api-key"]
    assert "ENABLE_BENCH=on" in launched["config"]
    plan = facts["stated"]["dry run"]
    assert plan["pool_tokens"] == 1_931_264
    assert plan["weights_gib"] == {"rtx0": 41.25, "rtx1": 40.5}
    assert plan["text"].startswith("indexer keys are forced on a head split")
    assert facts["kv_pool"] == {"tokens": 65_536, "how": "pool_tokens of the server's settings", "max_model_len": 8192}
    assert facts["settings"] == {"prefill_batch_tokens": {"requested": 2048, "resolved": "2048"}}
    assert facts["image"]["id"] == host_image.IMAGE_ID
    assert facts["command"] == ["bash", "run.sh", "--config", "{scratch}/cuteafd.config", "--restart"]
    assert facts["container_environment"]["CUTEAFD_IMAGE"] == host_image.IMAGE_ID
    assert "--dump-root" in facts["container_command"]
    assert {"target": "{scratch}/dumps", "read_only": False} in facts["mounts"]
    assert facts["container"]["restart_count"] == 0
    assert facts["ready"]["first_token_ms"] >= facts["ready"]["ready_line_ms"] > 0
    assert facts["capabilities"]["rows"] == ("decode", "prefill")
    json.dumps(facts)


def test_neither_key_nor_path_of_this_machine_is_in_receipt_or_log(shared: Shared) -> None:
    launcher, running = shared
    key_file = launcher.scratch / "key" / "api-key"
    assert key_file.stat().st_mode & 0o777 == 0o600
    assert key_file.parent.stat().st_mode & 0o777 == 0o700
    key = key_file.read_text()
    assert len(key) >= 32
    for text in (json.dumps(running.facts), launcher.log.read_text(), running.log_tail()):
        assert key not in text
    assert str(launcher.scratch) not in json.dumps(running.facts)
    environments = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/environ") if _readable(path)]
    assert not any(key.encode() in environment for environment in environments)


def _readable(path: Path) -> bool:
    try:
        path.read_bytes()
    except OSError:
        return False
    return True


def test_a_second_launch_of_the_same_instance_does_not_take_the_first_one_s_container(
    shared: Shared, launcher: Launcher
) -> None:
    before = docker("inspect", "-f", "{{.Id}}", NAME)
    with pytest.raises(EngcmpError, match=f"there is a container {NAME} already"), launcher():
        pytest.fail("it started")
    assert docker("inspect", "-f", "{{.Id}}", NAME) == before
    shared[1].refuse_changed()


def test_two_instances_run_side_by_side_and_a_serving_launch_has_no_scoring_endpoint(
    shared: Shared, launcher: Launcher, tmp_path: Path
) -> None:
    with launcher(mode="serving", instance="other") as running:
        assert running.capabilities.rows == ()
        assert "ENABLE_BENCH" not in running.facts["launcher"]["config"]
        assert "PROBE_DUMP_ROOT" not in running.facts["launcher"]["config"]
        with pytest.raises(EngcmpError, match="no folder is known"):
            running.full_rows("prefill", "w1", IDS, POSITIONS, tmp_path / "rows")
    launcher.assert_nothing_is_left("cuteafd-coordinator-other")
    shared[1].refuse_changed()


def refused(launcher: Launcher, said: str, **asked: Any) -> EngcmpError:
    with pytest.raises(EngcmpError, match=said) as told, launcher(instance="other", **asked):
        pytest.fail("it started")
    launcher.assert_nothing_is_left("cuteafd-coordinator-other")
    assert ARM in str(told.value)
    return told.value


def test_a_key_that_this_version_does_not_know_is_told_by_the_dry_run(launcher: Launcher) -> None:
    error = refused(
        launcher, r"the dry run failed with exit code 1: unknown key in .*: OLD_NAME", config=CONFIG | {"OLD_NAME": 1}
    )
    assert error.remedy is not None
    assert "does not know an option or config key" in error.remedy


def test_a_capability_that_the_server_lacks_stops_the_run(launcher: Launcher) -> None:
    said = r"lacks what is declared of it: tokenizer \(declared True, proved False"
    refused(launcher, said, capabilities={"tokenizer": True})
    config = CONFIG | {"FULL_PREFILL_LOGITS": "off"}
    refused(
        launcher,
        r"rows \(declared \['prefill'\], proved \['decode'\]",
        config=config,
        capabilities={"rows": ["prefill"]},
    )


def test_a_setting_that_was_silently_changed_stops_the_run(launcher: Launcher) -> None:
    launcher.script("settings_cut")
    refused(launcher, "resolved its settings differently: prefill_batch_tokens requested 2048, found 540")


def test_an_engine_that_ends_at_its_start_shows_its_last_lines_and_what_causes_them(launcher: Launcher) -> None:
    launcher.script("no_free_memory")
    error = refused(
        launcher, "the container ended with exit code 1 before it was ready|the launcher ended with exit code 1"
    )
    assert error.remedy is not None
    assert "out of memory" in error.remedy
    assert "Free memory on device" in error.remedy


def test_an_engine_that_says_that_it_is_ready_and_gives_no_token_is_not_ready(launcher: Launcher) -> None:
    launcher.script("stuck_but_healthy")
    refused(launcher, "says that it is ready, but gives no token", start_deadline_s=9)


def test_an_image_that_is_not_here_or_a_launcher_of_another_commit_is_refused(launcher: Launcher) -> None:
    other = "sha256:" + "1" * 64
    with (
        pytest.raises(EngcmpError, match=f"{ARM}: image {other} is not present"),
        launcher(identities={"image": other}),
    ):
        pytest.fail("it started")
    with pytest.raises(EngcmpError, match="the launch names"), launcher(identities={"commit": "0" * 40}):
        pytest.fail("it started")


def test_a_patch_is_applied_and_named(launcher: Launcher) -> None:
    patch = launcher.folder / "fix.patch"
    patch.write_text("--- a/keys.txt\n+++ b/keys.txt\n@@ -1,2 +1,3 @@\n+RENAMED\n MODEL_ID\n MODEL_REVISION\n")
    settings: dict[str, Any] = {
        "patch": "fix.patch",
        "patch_sha256": sha256_file(patch),
        "config": CONFIG | {"RENAMED": "x"},
    }
    with launcher(instance="other", **settings) as running:
        assert running.facts["launcher"]["patch_sha256"] == sha256_file(patch)
    refused(launcher, "the patch has sha256", patch="fix.patch", patch_sha256="0" * 64)


def test_an_engine_that_dies_in_a_row_is_told_with_its_end(launcher: Launcher, tmp_path: Path) -> None:
    launcher.script({"name": "dies_in_row", "at": {"row": 38}})
    with launcher(instance="other") as running:
        with pytest.raises(EngcmpError, match=r"the container ended with exit code 3"):
            running.full_rows("prefill", "w1", IDS, POSITIONS, tmp_path / "rows")
        with pytest.raises(EngcmpError, match="the container ended with exit code 3"):
            running.refuse_changed()
    assert not (tmp_path / "rows").exists()
    launcher.assert_nothing_is_left("cuteafd-coordinator-other")


def test_an_engine_that_is_stuck_in_a_window_is_removed(launcher: Launcher, tmp_path: Path) -> None:
    with launcher(instance="other", request_deadline_s=1) as running:
        _script(running, launcher, {"faults": [], "timing": {"ttft_ms": 60_000}})
        with pytest.raises(EngcmpError, match="it was stuck and has been removed"):
            running.full_rows("prefill", "w1", IDS, POSITIONS, tmp_path / "rows")
        with pytest.raises(EngcmpError, match="the container is gone"):
            running.refuse_changed()
    launcher.assert_nothing_is_left("cuteafd-coordinator-other")


def _script(running: RunningServer, launcher: Launcher, script: dict[str, Any]) -> None:
    import httpx

    key = (launcher.scratch / "key" / "api-key").read_text()
    headers = {"Authorization": f"Bearer {key}"}
    httpx.post(f"{running.url}/__sim__/script", json=script, headers=headers, trust_env=False).raise_for_status()


def test_a_restart_voids_the_window(launcher: Launcher) -> None:
    with launcher(instance="other") as running:
        running.refuse_changed()
        docker("restart", "--time", "1", "cuteafd-coordinator-other")
        with pytest.raises(
            EngcmpError,
            match=r"the container was restarted: started_at was .*; what was captured of this window is void",
        ):
            running.refuse_changed()
    launcher.assert_nothing_is_left("cuteafd-coordinator-other")


def test_ctrl_c_leaves_nothing(launcher: Launcher) -> None:
    with pytest.raises(KeyboardInterrupt), launcher(instance="other"):
        signal.raise_signal(signal.SIGINT)
    launcher.assert_nothing_is_left("cuteafd-coordinator-other")


def test_what_a_killed_process_leaves_is_removed_at_the_next_start(launcher: Launcher) -> None:
    program = f"""
import sys, time
sys.path[:0] = {sys.path!r}
from pathlib import Path
from engcmp_resources.engines.servers import LaunchPlace, ServerSpec, start_server
spec = ServerSpec("cuteafd", "engine", "v", {{"image": {host_image.IMAGE_ID!r}, "commit": {launcher.commit!r}}}, 512,
    {{"config": {CONFIG!r}, "instance": "other"}})
labels = {{"ENGCMP_ARM": "a", "ENGCMP_LOCK": {str(launcher.lock)!r}, "ENGCMP_RUN": "run-9"}}
Path({str(launcher.scratch)!r}).mkdir()
place = LaunchPlace(Path({str(launcher.scratch)!r}), Path({str(launcher.log)!r}), labels, {{"launcher": Path({str(launcher.tar)!r})}})
with start_server(spec, place, mode="scoring"):
    print("up", flush=True)
    time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.kill()
    process.wait()
    assert docker("inspect", "-f", "{{.State.Running}}", "cuteafd-coordinator-other") == "true"
    assert remove_leftovers(launcher.folder, launcher.folder / "another.lock") == []
    assert remove_leftovers(launcher.folder, launcher.lock) == [
        "removed a container left by a dead run: cuteafd-coordinator-other of arm a, run run-9"
    ]
    assert not list(launcher.folder.rglob(LEASE)) + list(launcher.folder.rglob("api-key"))
    host = DockerHost()
    assert host.find("cuteafd-coordinator-other") is None
    host.close()


# ---------------------------------------------------------------- without a container


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"config": {}}, "config has no MODEL_ID"),
        ({"config": {"MODEL_ID": "m", "ADDR": "0.0.0.0:8000"}}, "ADDR: the kind writes it"),
        ({"config": {"MODEL_ID": "m", "API_KEY_FILE": "/x"}}, "API_KEY_FILE: the kind writes it"),
        ({"config": {"MODEL_ID": "m"}, "patch": "x"}, "a patch has both"),
        ({"config": {"MODEL_ID": "m"}, "instance": "a/b"}, "instance"),
        ({"config": {"MODEL_ID": "m"}, "unknown": 1}, "unknown"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(EngcmpError, match=said):
        checked_settings("cuteafd", settings, where="arm x")


def test_a_scoring_launch_is_the_serving_one_and_the_keys_of_the_endpoint() -> None:
    settings = CuteafdSettings(config=CONFIG)
    ours = {"ADDR": "127.0.0.1:1", "PROBE_DUMP_ROOT": "/d", "API_KEY_FILE": "/k"}
    serving, scoring = (dict(config_of(settings, mode, ours)) for mode in ("serving", "scoring"))
    added = {"ENABLE_BENCH": "on", "FULL_PREFILL_LOGITS": "on", "PROBE_DUMP_ROOT": "/d"}
    assert scoring == serving | added
    assert serving == CONFIG | {"ADDR": "127.0.0.1:1", "API_KEY_FILE": "/k"}


def test_a_plan_of_another_form_gives_reasons_and_no_numbers() -> None:
    assert parse_plan("something else: 12 tokens") == {
        "pool_tokens": {"missing": "the plan does not state it in a form that is known"},
        "weights_gib": {"missing": "the plan does not state it in a form that is known"},
    }
    assert parse_plan("kv pool: 447,488 tokens")["pool_tokens"] == 447_488
    assert parse_plan("pool_tokens = 65536 tokens")["pool_tokens"] == 65_536
