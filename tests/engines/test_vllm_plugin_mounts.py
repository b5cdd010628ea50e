"""The capture plugin in launches of containers: the same launch and three variables and two folders more, and rows through them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docker_engine import docker_engine  # noqa: F401 - a fixture
from simulated import tokens

from engcmp_resources import host_image
from engcmp_resources.containers import DockerHost
from engcmp_resources.engines import vllm_fork
from engcmp_resources.engines._launcher_source import fetch_launcher
from engcmp_resources.engines._vllm_capture import capture_folder, capture_name, in_container, with_plugin
from engcmp_resources.engines.servers import RunningServer
from engcmp_resources.engines.vllm_fork import debug_env_with_plugin
from engcmp_resources.errors import EngcmpError
from tests.launchers.launched import MODEL, git
from tests.launchers.launched import Launcher as ForkLauncher
from tests.launching import SIM_VOCAB, SimulatorLauncher
from tests.simulator.model import Model

STAND_IN = Path(__file__).with_name("vllm_stand_in.py")
IDS, POSITIONS = tokens(40), [0, 3, 17, 38]
TARGETS = {"/engcmp/vllm-plugin": True, "/engcmp/captures": False}

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="the image engcmp/host runs this host's own programs")


def assert_rows_come(running: RunningServer, out: Path) -> None:
    taken = running.full_rows("prefill", "w1", IDS, POSITIONS, out)
    assert out.read_bytes() == Model(vocab=SIM_VOCAB, seed=1).rows(IDS, POSITIONS).astype("<f4").tobytes()
    assert taken.notes["chunk_lengths"] == [40]


def test_the_plugin_s_folder_comes_first_and_what_was_set_stays() -> None:
    found = with_plugin({"PYTHONPATH": "/theirs", "A": "1"}, plugin="/p", captures="/c")
    assert found == {"PYTHONPATH": "/p:/theirs", "A": "1", "ENGCMP_CAPTURE_DIR": "/c"}
    assert with_plugin({}, plugin="/p", captures="/c") == {"PYTHONPATH": "/p", "ENGCMP_CAPTURE_DIR": "/c"}


@pytest.mark.parametrize(("before", "after"), [("other", "other,engcmp_capture"), ("", "engcmp_capture")])
def test_where_the_plugins_to_load_are_named_ours_is_too(before: str, after: str) -> None:
    assert in_container({"VLLM_PLUGINS": before})["VLLM_PLUGINS"] == after


def test_the_launcher_s_debug_env_keeps_its_pairs_and_the_image_s_path() -> None:
    pairs = debug_env_with_plugin("A=1 B=x=y", "/opt/theirs").split()
    assert pairs == [
        "A=1", "B=x=y", "PYTHONPATH=/root/.cache/engcmp-vllm-plugin:/opt/theirs",
        "ENGCMP_CAPTURE_DIR=/root/.cache/engcmp-captures",
    ]  # fmt: skip
    assert (
        "PYTHONPATH=/root/.cache/engcmp-vllm-plugin:/own" in debug_env_with_plugin("PYTHONPATH=/own", "/image").split()
    )
    assert "PYTHONPATH=/root/.cache/engcmp-vllm-plugin" in debug_env_with_plugin("", "").split()


@pytest.mark.parametrize("window", ["chat-1", "a/b c", "..", "\u00fc" * 300])
def test_a_capture_s_name_can_be_a_file_and_is_never_used_twice(window: str) -> None:
    one, other = capture_name(window), capture_name(window)
    assert one != other
    assert "/" not in one
    assert one.isascii()
    assert len(one) < 200


def test_each_launch_has_a_folder_of_its_own_that_any_user_can_write(tmp_path: Path) -> None:
    folders = [capture_folder(tmp_path), capture_folder(tmp_path)]
    assert len(set(folders)) == 2
    assert all(folder.stat().st_mode & 0o777 == 0o777 for folder in folders)


@pytest.fixture
def launcher(docker_engine: None, tmp_path: Path) -> SimulatorLauncher:
    host = DockerHost()
    host_image.ensure(host)
    host.close()
    launcher = SimulatorLauncher(tmp_path, {}, {}, api="vllm")
    launcher.settings = dict(launcher.settings) | {"entrypoint": [sys.executable, str(STAND_IN)]}
    return launcher


@needs_linux
def test_rows_come_through_the_mounts_of_a_container(launcher: SimulatorLauncher) -> None:
    with launcher(kind="vllm", plugin=True, capabilities={"rows": ["prefill"]}) as running:
        assert_rows_come(running, launcher.folder / "rows")
        facts = running.facts
        mounted = {mount["target"]: mount["read_only"] for mount in facts["mounts"]}
        assert TARGETS.items() <= mounted.items()
        assert facts["environment"]["PYTHONPATH"].startswith("/engcmp/vllm-plugin:/")
        assert facts["environment"]["ENGCMP_CAPTURE_DIR"] == "/engcmp/captures"
        assert not [path for folder in launcher.folder.glob("captures-*") for path in folder.iterdir()]
    with launcher(kind="vllm") as running:
        plain = running.facts
        assert running.capabilities.rows == ()
    words = [[word for word in one["command"] if not word.isdigit()] for one in (plain, facts)]  # the ports are others
    assert words[0] == words[1]
    ours = {name for name in facts["environment"] if facts["environment"][name] != plain["environment"].get(name)}
    assert ours == {"PYTHONPATH", "ENGCMP_CAPTURE_DIR"}
    assert [mount for mount in facts["mounts"] if mount["target"] not in TARGETS] == plain["mounts"]
    launcher.assert_nothing_is_left()


@needs_linux
def test_an_image_in_which_the_plugin_is_not_loaded_is_refused(launcher: SimulatorLauncher) -> None:
    env = dict(launcher.settings["env"]) | {"STAND_IN": "no-capture"}
    with pytest.raises(EngcmpError, match="the server wrote no capture"), launcher(kind="vllm", plugin=True, env=env):
        pass
    launcher.assert_nothing_is_left()


@pytest.fixture
def fork(docker_engine: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkLauncher]:
    """The fork's stand-in, which mounts the cache elsewhere than the real launcher."""
    host = DockerHost()
    host_image.ensure(host)
    host.close()
    monkeypatch.setattr(vllm_fork, "_CACHE_TARGET", "/tmp/cache")
    settings: dict[str, Any] = {
        "environment": {"MODEL_PROFILE": "k4", "DEBUG_ENV": f"PYTHONPATH={Path(__file__).parents[2]} FLAG=1"}, "served_model": MODEL,
        "cache_dir": str(tmp_path / "cache"), "plugin": True, "capabilities": {"rows": ["prefill"]},
    }  # fmt: skip
    launcher = ForkLauncher("vllm-fork", "vllm", "vllm_fork", tmp_path, settings)
    words = launcher.repository / "simulator.env"
    words.write_text(words.read_text().replace("-m tests.simulator", str(STAND_IN)))
    git(launcher.repository, "commit", "--quiet", "--all", "--message=plugged")
    launcher.commit = git(launcher.repository, "rev-parse", "HEAD")
    launcher.tar = fetch_launcher(f"file://{launcher.repository}", launcher.commit, tmp_path)
    yield launcher
    launcher.assert_nothing_is_left("engcmp-vllm-fork")


@needs_linux
def test_the_fork_s_launcher_takes_the_plugin_by_its_cache_folder(fork: ForkLauncher, tmp_path: Path) -> None:
    with fork() as running:
        assert running.capabilities.rows == ("prefill",)
        assert_rows_come(running, tmp_path / "rows")
        facts = running.facts
        assert facts["cache"] == "cold"
        pairs = dict(pair.split("=", 1) for pair in facts["environment"]["DEBUG_ENV"].split())
        assert pairs["FLAG"] == "1"
        assert pairs["PYTHONPATH"].startswith("/tmp/cache/engcmp-vllm-plugin:")
        assert facts["container_environment"]["ENGCMP_CAPTURE_DIR"] == "/tmp/cache/engcmp-captures"
        assert (tmp_path / "cache" / "engcmp-vllm-plugin" / "engcmp_vllm_capture" / "hooks.py").is_file()
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == ["compiled"]
    with fork(mode="serving") as plain:  # of the same settings: what is timed carries nothing of ours
        assert plain.capabilities.rows == ()
        assert plain.facts["cache"] == "warm"
        told = json.dumps(plain.facts)
    assert "engcmp-vllm-plugin" not in told
