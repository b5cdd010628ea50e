"""What an engine needs of this machine is looked at before anything is computed for its arm."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from tiny import BASE_ARM, TINY, TinyStudy, make_tiny

from engcmp_assets.engine_launch.preconditions import refuse_unready_place
from engcmp_assets.kernel.names import LAUNCH
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.study import load_study
from engcmp_assets.kernel.work import Session
from engcmp_resources import host_image
from engcmp_resources.engines.servers import Settings, checked_settings
from engcmp_resources.errors import EngcmpError
from engcmp_resources.store import Place, Store

BOXED = "q4_0/boxed@v1"
ENGINE = f"""[sources.host-image]
image = "{host_image.NAME}"
tag = "{host_image.TAG}"
digest = "{host_image.IMAGE_ID}"
license = "Apache-2.0"
[engines.boxed]
kind = "docker"
label = "an engine in a container"
[engines.boxed.settings]
api = "llama-server"
[engines.boxed.versions.v1]
source = "host-image"
[[arms]]
arm = "{BOXED}"
"""


def session(store: Path, said: list[str]) -> Session:
    return Session(load_study("smollm2-docker"), Store(store), "run-1", said.append)


def boxed_study(root: Path, measured_home: Path) -> TinyStudy:
    """The tiny study with a second arm, whose engine is in a container."""
    tiny = make_tiny(root, measured_home)
    path = tiny.folder / "protocol.toml"
    text, place = path.read_text(encoding="utf-8"), "# A panel is windows"
    assert text.count(place) == 1
    path.write_text(text.replace(place, ENGINE + place), encoding="utf-8")
    done = tiny.run("freeze", TINY)
    assert done.returncode == 0, done.stderr
    return tiny


def test_without_docker_nothing_is_computed_for_its_arms_and_the_others_go_on(
    tmp_path: Path, measured_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    tiny = boxed_study(tmp_path / "study", measured_home)
    done = tiny.run("run", TINY, "--arm", BOXED)
    assert done.returncode == 1
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("engcmp: "))
    for words in (TINY, BOXED, "no Docker engine answers", "there is no such socket", "none.sock", "install Docker"):
        assert words in line
    made = {json.loads(path.read_bytes())["artifact"] for path in (tiny.home / "receipts").iterdir()}
    assert made == {"frozen_protocol"}
    done = tiny.run("run", TINY)
    assert done.returncode == 1 and f"{BOXED} cannot be measured on this machine" in done.stderr
    measured = {path.parent.name for path in (tiny.home / "heads" / TINY).glob("*/summaries.json")}
    assert measured == {BASE_ARM.replace("/", "~")}


def test_an_arm_that_was_launched_before_is_not_looked_at(
    measured_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its results may all be answered from the store, on a machine without Docker."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    said: list[str] = []
    here = session(tmp_path / "home", said)
    arm = ArmKey.parse("q8_0/llamacpp-docker@b11549")
    with pytest.raises(EngcmpError, match="study smollm2-docker: arm q8_0/llamacpp-docker@b11549 cannot be measured"):
        refuse_unready_place(here, arm)
    process = ArmKey.parse("q8_0/llamacpp@b11549")
    refuse_unready_place(here, process)  # a child process needs nothing
    (head,) = (measured_home / "heads" / "smollm2-cpu" / process.folder).glob(f"{LAUNCH}.json")
    receipt = Store(measured_home, read_only=True).read_receipt(json.loads(head.read_bytes())["receipt_sha256"])
    here.store.commit(Place("smollm2-docker", arm.folder, LAUNCH), receipt, completes=None)
    refuse_unready_place(here, arm)
    assert said == []


@pytest.mark.parametrize(
    ("kind", "settings", "said"),
    [
        ("docker", {"api": "vllm"}, "no Docker engine answers"),
        ("cuteafd", {"config": {"MODEL_ID": "m"}}, "no Docker engine answers"),
        ("vllm-fork", {"served_model": "m"}, "no Docker engine answers"),
        ("external", {"api": "vllm", "model": "m", "url": "http://127.0.0.1:{port}"}, "nothing answers at http"),
        ("external", {"api": "vllm", "model": "m", "url": "http://192.0.2.1:80"}, "192.0.2.1 is not this machine"),
        (
            "external",
            {"api": "vllm", "model": "m", "url": "http://127.0.0.1:{port}", "api_key_env": "NO_SUCH_KEY"},
            "the variable NO_SUCH_KEY is not set",
        ),
    ],
)
def test_each_kind_says_what_lacks(
    kind: str, settings: dict[str, str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with socket.socket() as closed:  # bound, and nobody listens
        closed.bind(("127.0.0.1", 0))
        if "url" in settings:
            settings = settings | {"url": settings["url"].format(port=closed.getsockname()[1])}
        identities = {} if kind == "external" else {"image": f"some/image@sha256:{'1' * 64}"}
        with pytest.raises(EngcmpError, match=said):
            checked_settings(kind, settings, where="here").check_place("arm a", identities)


def test_an_external_engine_that_listens_is_enough() -> None:
    with socket.socket() as there:
        there.bind(("127.0.0.1", 0))
        there.listen()
        url = f"http://127.0.0.1:{there.getsockname()[1]}"
        checked_settings("external", {"api": "vllm", "model": "m", "url": url}, where="here").check_place("arm a", {})


def test_a_kind_without_an_image_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_image, "require_engine_with", lambda _wanted: pytest.fail("it was asked"))
    Settings().check_place("arm a", {"commit": "0" * 40})


def test_a_secret_that_is_not_set_is_found_before_anything_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    settings = checked_settings("docker", {"api": "vllm", "secrets": {"HF_TOKEN": "NO_SUCH_KEY"}}, where="here")
    with pytest.raises(EngcmpError, match="arm a: the variable NO_SUCH_KEY is not set"):
        settings.check_place("arm a", {})
