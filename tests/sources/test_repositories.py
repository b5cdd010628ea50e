"""A launcher's repository as a source: its files are recorded by hash, and held against the pin of the protocol."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny import TINY, make_tiny

from engcmp_assets.engine_launch.step import launch_spec
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.study import load_study
from engcmp_assets.kernel.work import Session, materialize, prepare
from engcmp_assets.steps import step_named
from engcmp_resources import host_image
from engcmp_resources.engines._launchers import prepare as unpacked
from engcmp_resources.engines.servers import LaunchPlace, ServerSpec
from engcmp_resources.errors import EngcmpError
from engcmp_resources.store import Store
from tests.launchers.launched import TAG, git, repository

ARM = ArmKey.parse(f"q4_0/boxed@{TAG}")


def made(root: Path, measured_home: Path, monkeypatch: pytest.MonkeyPatch, pin: str = "") -> tuple[Session, Any]:
    """The receipt of the sources of an arm whose engine is started by a launcher."""
    tiny = make_tiny(root, measured_home)
    launcher = root.parent / "repository"
    commit = git(launcher, "rev-parse", "HEAD") if launcher.exists() else repository(launcher, {"run.sh": "echo one\n"})
    engine = f"""[sources.host-image]
image = "{host_image.NAME}"
tag = "{host_image.TAG}"
digest = "{host_image.IMAGE_ID}"
license = "Apache-2.0"
[sources.launcher]
repository = "file://{launcher}"
tag = "{TAG}"
commit = "{commit}"
license = "MIT"
{pin}
[engines.boxed]
kind = "cuteafd"
label = "an engine with a launcher"
settings = {{ config = {{ MODEL_ID = "m" }} }}
[engines.boxed.versions."{TAG}"]
source = "launcher"
files = {{ image = "host-image" }}
[[arms]]
arm = "{ARM}"
"""
    path = tiny.folder / "protocol.toml"
    path.write_text(path.read_text(encoding="utf-8").replace("# A panel is windows", engine + "# A panel is windows"))
    done = tiny.run("freeze", TINY)
    assert done.returncode == 0, done.stderr
    monkeypatch.setenv("ENGCMP_PROTOCOL", str(root / "protocol"))
    session = Session(load_study(TINY), Store(tiny.home), "run-1", lambda _text: None)
    materialize(session, step_named(session.study, "frozen_protocol"), None)
    return session, materialize(session, step_named(session.study, "sources"), ARM).receipt


def tree(receipt: Any) -> str:
    (found,) = (output["sha256"] for output in receipt["outputs"] if output["name"] == "engine-launcher")
    return str(found)


def test_the_files_of_a_commit_are_recorded_and_can_be_pinned(
    tmp_path: Path, measured_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, receipt = made(tmp_path / "one", measured_home, monkeypatch)
    assert session.study.protocol.sources["launcher"].model_dump()["tree_sha256"] is None
    materialize(session, step_named(session.study, "prompt_set"), ARM)
    spec = launch_spec(
        prepare(session, step_named(session.study, "engine_launch/scoring"), ARM), session.study.panel("pa")
    )
    assert isinstance(spec, ServerSpec)
    assert spec.identities["launcher"] == tree(receipt), "the launch is named by the files that it starts"
    assert spec.identities["commit"] and spec.identities["image"] == host_image.IMAGE_ID
    _, again = made(tmp_path / "two", measured_home, monkeypatch, f'tree_sha256 = "{tree(receipt)}"')
    assert tree(again) == tree(receipt)


def test_other_files_than_pinned_are_refused(
    tmp_path: Path, measured_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pin = f'tree_sha256 = "{"0" * 64}"'
    with pytest.raises(EngcmpError, match=r"source launcher: the files of commit .* make .*, the protocol pins 0000"):
        made(tmp_path / "one", measured_home, monkeypatch, pin)
    heads = [json.loads(path.read_bytes())["artifact"] for path in (tmp_path / "one/home/heads").rglob("*.json")]
    assert heads == ["frozen_protocol"]


def test_a_launch_refuses_an_archive_that_is_not_the_recorded_one(tmp_path: Path) -> None:
    (tmp_path / "launcher.tar").write_bytes(b"other")
    spec = ServerSpec("cuteafd", "boxed", TAG, {"commit": "0" * 40, "launcher": "0" * 64}, 8, {})
    place = LaunchPlace(tmp_path, tmp_path / "log", {"ENGCMP_ARM": str(ARM)}, {"launcher": tmp_path / "launcher.tar"})
    with pytest.raises(EngcmpError, match=f"arm {ARM}: launcher has sha256 .*, the launch names 0000"):
        unpacked(spec, place, None, None)
