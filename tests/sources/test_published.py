"""A published checkpoint, its drafter and tokenizer as `sources` takes them: from a hub, shard by shard, once, held against a list."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from outside_study import ARM, COMMIT, OUTSIDE, SHARDS, OutsideStudy, outside_study

from engcmp_assets.captured_rows.running import launch_place
from engcmp_assets.engine_launch.step import launch_spec
from engcmp_assets.kernel.records import ArmKey, Panel
from engcmp_assets.kernel.study import load_study
from engcmp_assets.kernel.work import Done, Session, Work, materialize, output_blob, prepare
from engcmp_assets.sources import published
from engcmp_assets.steps import step_named
from engcmp_resources.canonical import sha256_bytes
from engcmp_resources.engines._launchers import launcher_environment
from engcmp_resources.engines.servers import ServerSpec
from engcmp_resources.errors import EngcmpError
from engcmp_resources.fetching.http import Http
from engcmp_resources.store import Store
from tests.fetching.places import Place, serving

ONE = ArmKey.parse(ARM)
SHARD = f"/maker/model/resolve/{COMMIT['model']}/model-00002-of-00002.safetensors"
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def place() -> Iterator[Place]:
    with serving() as found:
        yield found


@pytest.fixture
def outside(tmp_path: Path, place: Place, smollm2_weights: Path, monkeypatch: pytest.MonkeyPatch) -> OutsideStudy:
    """Frozen, with its tokenizer here (a freeze needs it) and nothing else."""
    made = outside_study(tmp_path, place, smollm2_weights)
    for name, value in (made.variables | {"ENGCMP_HOME": str(made.home), "HF_ENDPOINT": place.address}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("ENGCMP_MIRROR", raising=False)
    monkeypatch.setattr(published, "Http", functools.partial(Http, attempts=2, pause_s=0))
    assert made.run("freeze", OUTSIDE).returncode == 0
    return made


def sources(home: Path) -> tuple[Session, Done]:
    session = Session(load_study(OUTSIDE), Store(home), "test", lambda _text: None)
    materialize(session, step_named(session.study, "frozen_protocol"), None)
    return session, materialize(session, step_named(session.study, "sources"), ONE)


def launch(session: Session) -> Work:
    materialize(session, step_named(session.study, "prompt_set"), ONE)
    return prepare(session, step_named(session.study, "engine_launch/scoring"), ONE)


def test_a_published_checkpoint_is_fetched_once_and_a_launch_gets_its_folder(
    outside: OutsideStudy, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.cuts[SHARD] = [70_000]  # the line breaks within the second shard
    session, done = sources(outside.home)
    assert [asked.get("range") for asked in place.asked_for(SHARD)] == [None, "bytes=70000-"]
    assert {name: (outside.snapshot / name).read_bytes() for name in SHARDS} == SHARDS
    outputs = {one["name"]: one for one in done.receipt["outputs"]}
    assert {"M.files.json", "engine-drafter", "tokenizer.files.json", "tokenizer.json", "engine-launcher"} <= set(
        outputs
    )
    listed = json.loads(session.store.path(output_blob(done.receipt, "M.files.json")).read_bytes())
    assert {one["path"]: one["sha256"] for one in listed["files"]} == {
        name: sha256_bytes(data) for name, data in SHARDS.items()
    }
    assert (listed["where"], listed["revision"], listed["stand_in"]) == ("maker/model", COMMIT["model"], False)
    assert done.receipt["details"]["published"]["M.files.json"]["bytes"] == sum(map(len, SHARDS.values()))

    work = launch(session)
    spec = launch_spec(work, Panel("none", 49_200, "none", ()))
    assert isinstance(spec, ServerSpec)
    assert spec.identities["model"] == outputs["M.files.json"]["sha256"], "a launch is named by what it serves"
    assert spec.identities["drafter"] == outputs["engine-drafter"]["sha256"]
    # What is whole is not asked for again: neither by another run nor where there is no network.
    asked = len(place.asked)
    monkeypatch.setenv("HF_ENDPOINT", NOWHERE)
    with launch_place(work, ONE, tmp_path / "start", labels={"ENGCMP_ARM": ARM}, log=tmp_path / "log") as where:
        assert where.files["model"] == outside.snapshot and where.files["launcher"].is_file()
        environment = launcher_environment(where, {})
        home = Path(environment["HF_HOME"])
        assert home / "hub" / "models--maker--drafter" / "snapshots" / COMMIT["drafter"] == where.files["drafter"]
    step = step_named(session.study, "sources")
    again = materialize(session, step, ONE, remeasure=True)
    assert again.receipt["content_id"] == done.receipt["content_id"] and len(place.asked) == asked


def test_a_checkpoint_that_was_changed_is_served_by_no_launch_and_a_fetch_mends_it(
    outside: OutsideStudy, tmp_path: Path
) -> None:
    session, _ = sources(outside.home)
    work = launch(session)
    shard = outside.snapshot / "model-00001-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    with (
        pytest.raises(EngcmpError, match=r"source model: .* was changed since it was fetched") as told,
        launch_place(work, ONE, tmp_path / "start", labels={}, log=tmp_path / "log"),
    ):
        pass
    assert "engcmp fetch outside-tiny --source model" in str(told.value.remedy)
    assert outside.run("fetch", OUTSIDE, "--source", "model").returncode == 0
    with launch_place(work, ONE, tmp_path / "start", labels={}, log=tmp_path / "log") as where:
        assert (where.files["model"] / shard.name).read_bytes() == SHARDS[shard.name]


def test_a_copy_of_what_was_fetched_serves_a_machine_without_a_network(
    outside: OutsideStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, here = sources(outside.home)
    mirror = tmp_path / "mirror"
    shutil.copytree(outside.fetched, mirror)
    monkeypatch.setenv("HF_ENDPOINT", NOWHERE)
    monkeypatch.setenv("ENGCMP_MIRROR", str(mirror))
    monkeypatch.setenv("ENGCMP_HOME", str(tmp_path / "other"))
    listed = mirror / "hub" / "models--maker--drafter" / "snapshots" / COMMIT["drafter"] / "fetched.json"
    whole = listed.read_bytes()
    listed.write_bytes(json.dumps(json.loads(whole) | {"partial": True}).encode())
    with pytest.raises(
        EngcmpError, match=r"source drafter \(drafter\) cannot be taken: .*the mirror's copy was cut short"
    ):
        sources(tmp_path / "other")
    listed.write_bytes(whole)
    _, there = sources(tmp_path / "other")
    assert there.receipt["content_id"] == here.receipt["content_id"]


def test_what_would_be_fetched_is_told_with_its_size_and_an_unknown_pin_with_its_reason(outside: OutsideStudy) -> None:
    done = outside.run("fetch", OUTSIDE, "--dry-run")
    assert done.returncode == 0 and not outside.snapshot.exists()
    assert "204.8 kB  model-00002-of-00002.safetensors" in done.stdout
    path = outside.folder / "SOURCES.json"
    document = json.loads(path.read_bytes())
    document["sources"][0] |= {"revision": "unknown"}
    document["sources"][0]["unknown"] = [
        *document["sources"][0]["unknown"],
        {"field": "revision", "why": "no document states it"},
    ]
    path.write_text(json.dumps(document))
    assert outside.run("amend", OUTSIDE, "--because", "it is not known after all").returncode == 0
    with pytest.raises(
        EngcmpError, match=r"needs source model \(model\), which cannot be taken here: its revision is not known"
    ):
        sources(outside.home)
