"""An iteration adds to a frozen study and redefines nothing; its freeze holds its bytes and the frozen hash that it extends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from engcmp_assets.kernel.engine_tables import ServerEngine
from engcmp_assets.kernel.iterations import Iteration, extended, frozen_iteration, parse_iteration, read_iteration
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.study import Study, load_study
from engcmp_assets.kernel.work import Use, resting_on
from engcmp_assets.sources.step import STEP as SOURCES
from engcmp_assets.sources.step import checkpoints_for, parameters
from engcmp_assets.summaries.step import step as summaries
from engcmp_resources.canonical import canonical_bytes, sha256_of
from engcmp_resources.errors import EngcmpError

BASE = "c" * 64
HEAD = 'schema = "engcmp.iteration/1"\nbecause = "a release that came later"\n'
VERSION = '[versions.llamacpp.b99]\nsource = "llamacpp-b11549"\n'
ARM = '[[arms]]\narm = "q4_0/llamacpp@b99"\n'
CHECKPOINT = (
    f'[checkpoints.q8_0b]\nlabel = "Q8_0 again"\nmade_from = "weights"\nquantization = "q8_0"\nsha256 = "{BASE}"\n'
)
OLD_ARM = ArmKey.parse("q4_0/llamacpp@b11549")


def iteration(text: str, name: str = "b99") -> Iteration:
    return Iteration(name, "e" * 64, parse_iteration((HEAD + text).encode(), where="here"))


def with_iterations(study: Study, **texts: str) -> Study:
    """The study with frozen iterations by name."""
    files: dict[str, bytes] = {}
    for name, text in texts.items():
        data = (HEAD + text).encode()
        frozen = frozen_iteration(study.folder.name, name, data, study.frozen_sha256)
        files |= {f"{name}.toml": data, f"{name}.frozen.json": canonical_bytes(frozen)}
    return replace(study, iteration_files=files)


# ---------------------------------------------------------------- what an iteration adds


def test_a_new_version_and_its_arm_enter_and_nothing_that_was_there_changes(study: Study) -> None:
    whole = extended(study.base, [iteration(VERSION + ARM)], where="here")
    assert [str(arm) for arm in whole.arm_keys] == [*map(str, study.base.arm_keys), "q4_0/llamacpp@b99"]
    versions = dict(whole.engines["llamacpp"].versions)
    assert versions.pop("b99").source == "llamacpp-b11549"
    assert versions == study.base.engines["llamacpp"].versions
    for part in ("sources", "checkpoints", "panels", "capture", "statistics", "comparisons", "reference"):
        assert getattr(whole, part) == getattr(study.base, part)


def test_an_iteration_may_build_on_another_whose_name_comes_first(study: Study) -> None:
    added = [iteration(VERSION, "a"), iteration(ARM, "b")]
    assert ArmKey.parse("q4_0/llamacpp@b99") in extended(study.base, added, where="here").arm_keys
    with pytest.raises(EngcmpError, match=r"arms.6.arm names 'b99'.*b.toml"):
        extended(study.base, added[::-1], where="here")


def test_an_iteration_writes_its_pins_itself(study: Study) -> None:
    with pytest.raises(EngcmpError, match=r"source 'later' is listed .*b99\.toml.*write the pin into the iteration"):
        extended(study.base, [iteration('[sources.later]\nlisted = "later"\n')], where="here")


SERVED = '[for_checkpoints.cuteafd."K3.25-again"]\nconfig = { MODEL_ID = "again" }\n'
PUBLISHED = '[checkpoints."K3.25-again"]\nlabel = "K3.25 again"\npublished = "k325-v1"\nproducer = "nobody"\n'


def test_a_checkpoint_that_enters_later_can_be_served_by_an_engine_that_was_there() -> None:
    flash = load_study("glm53-flash").base
    added = iteration(PUBLISHED + SERVED + '[[arms]]\narm = "K3.25-again/cuteafd@v3.0.1"\n')
    whole = extended(flash, [added], where="here")
    engine = whole.engine_of(ArmKey.parse("K3.25-again/cuteafd@v3.0.1"))
    assert isinstance(engine, ServerEngine) and engine.settings["config"]["MODEL_ID"] == "again"
    for arm in flash.arm_keys:
        assert whole.engine_of(arm).model_dump(exclude={"versions"}) == flash.engine_of(arm).model_dump(
            exclude={"versions"}
        )


def test_settings_of_a_checkpoint_are_added_to_a_server_and_never_replaced(study: Study) -> None:
    flash = load_study("glm53-flash").base
    again = iteration('[for_checkpoints.cuteafd.K4]\nconfig = { MODEL_ID = "x" }\n')
    with pytest.raises(EngcmpError, match="settings of cuteafd for checkpoint 'K4' exists already"):
        extended(flash, [again], where="here")
    with pytest.raises(EngcmpError, match="no engine 'none' to add for_checkpoints to"):
        extended(flash, [iteration("[for_checkpoints.none.K4]\nx = 1\n")], where="here")
    with pytest.raises(EngcmpError, match="'llamacpp' runs in a child process"):
        extended(study.base, [iteration("[for_checkpoints.llamacpp.q8_0]\nx = 1\n")], where="here")


REDEFINED = {
    "source": "[sources.weights]\npackage = 'x'\nversion = '1'\nlicense = 'MIT'\nwheels = {}\n",
    "checkpoint": CHECKPOINT.replace("q8_0b", "q8_0"),
    "engine": "[engines.llamacpp]\nkind = 'x'\nlabel = 'x'\nthreads = 1\ncontext_tokens = 1\nbatch_tokens = 1\n"
    "micro_batch_tokens = 1\nversions = {}\n",
    "version of llamacpp": VERSION.replace("b99", "b8672"),
    "arm": ARM.replace("b99", "b8672"),
    "pair": "[[comparisons]]\npair_id = 'q4_0-vs-q8_0'\nlabel = 'x'\ncandidate = 'q8_0/llamacpp@b8672'\n"
    "baseline = 'q4_0/llamacpp@b8672'\n",
}


@pytest.mark.parametrize("kind", REDEFINED)
def test_what_exists_is_not_redefined(study: Study, kind: str) -> None:
    with pytest.raises(
        EngcmpError, match=rf"^{kind} '.*' exists already \(here/iterations/b99.toml\); an iteration adds"
    ):
        extended(study.base, [iteration(REDEFINED[kind])], where="here")


WRONG = {
    "an arm of no version": (ARM, "arms.6.arm names 'b99', which does not exist"),
    "a version of no engine": (VERSION.replace("llamacpp.", "vllm."), "no engine 'vllm' to add versions to"),
    "a version of no source": (VERSION.replace("llamacpp-b11549", "x"), "versions.b99.source names 'x'"),
    "a pair of no arm": (
        "[[comparisons]]\npair_id = 'x'\nlabel = 'x'\ncandidate = 'q8_0/llamacpp@b1'\nbaseline = 'q8_0/llamacpp@b8672'\n",
        "comparisons.x.candidate names 'q8_0/llamacpp@b1'",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_points_nowhere_is_refused_by_its_field_and_the_iteration_s_file(study: Study, wrong: str) -> None:
    text, words = WRONG[wrong]
    with pytest.raises(EngcmpError, match=words) as raised:
        extended(study.base, [iteration(text)], where="here")
    assert raised.value.where == "here/iterations/b99.toml"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEAD + "[panels.pe]\n", "iteration field panels: Extra inputs are not permitted"),
        ('schema = "engcmp.iteration/1"\n', "iteration field because: Field required"),
        (HEAD.replace("/1", "/2"), "iteration field schema: Input should be"),
        (HEAD + "x =", "iteration is not valid TOML"),
    ],
)
def test_an_iteration_that_is_none_is_refused_by_its_field(text: str, words: str) -> None:
    with pytest.raises(EngcmpError, match=words):
        parse_iteration(text.encode(), where="here")


# ---------------------------------------------------------------- its freeze


def read(data: bytes, frozen: Mapping[str, Any], *, base: str = BASE, name: str = "b99") -> Iteration:
    return read_iteration(name, data, frozen, study="a-study", base_frozen_sha256=base, where="here")


def test_a_frozen_iteration_is_read_back_with_its_hash() -> None:
    data = (HEAD + VERSION + ARM).encode()
    frozen = frozen_iteration("a-study", "b99", data, BASE)
    found = read(data, frozen)
    assert (found.name, found.frozen_sha256) == ("b99", frozen["frozen_sha256"])
    assert [str(arm) for arm in found.arm_keys] == ["q4_0/llamacpp@b99"]


def test_an_edited_iteration_one_of_another_freeze_and_a_changed_freeze_are_refused() -> None:
    data = (HEAD + VERSION).encode()
    frozen = frozen_iteration("a-study", "b99", data, BASE)
    with pytest.raises(
        EngcmpError, match=r"iteration b99 was edited after its freeze \(here\); restore it, or add another"
    ):
        read(data + b"\n", frozen)
    with pytest.raises(EngcmpError, match="iteration b99 extends frozen hash cccccccccccc, the study has ffffffffffff"):
        read(data, frozen, base="f" * 64)
    for damaged in (
        {},
        frozen | {"base_frozen_sha256": "f" * 64},
        frozen | {"note": 1},
        {"frozen_sha256": sha256_of({})},
    ):
        with pytest.raises(EngcmpError, match=r"b99\.frozen\.json was changed after the freeze"):
            read(data, damaged)


def test_a_freeze_is_of_one_iteration_and_holds_for_no_other() -> None:
    data = (HEAD + VERSION).encode()
    with pytest.raises(EngcmpError, match=r"b98\.frozen\.json was changed after the freeze"):
        read(data, frozen_iteration("a-study", "b99", data, BASE), name="b98")


def test_a_candidate_adds_nothing_and_a_frozen_iteration_without_its_file_is_missed(study: Study) -> None:
    whole = with_iterations(study, b99=VERSION + ARM)
    assert len(whole.protocol.arms) == 7
    candidate = replace(study, iteration_files={"b99.toml": whole.iteration_files["b99.toml"], "notes.json": b"{}"})
    assert candidate.protocol == study.base
    assert candidate.iteration_names == ("b99",)
    orphan = replace(study, iteration_files={"b99.frozen.json": whole.iteration_files["b99.frozen.json"]})
    with pytest.raises(EngcmpError, match="iteration b99 is frozen and missing"):
        _ = orphan.protocol


# ---------------------------------------------------------------- what rests on it


def test_an_arm_rests_on_the_iteration_that_adds_it_and_what_is_of_every_arm_on_all(study: Study) -> None:
    whole = with_iterations(study, b98=VERSION.replace("b99", "b98"), b99=VERSION + ARM)
    of_all = replace(SOURCES, uses=(Use("sources", "every arm"),))
    assert resting_on(whole, SOURCES, OLD_ARM) == []
    assert [one["name"] for one in resting_on(whole, SOURCES, ArmKey.parse("q4_0/llamacpp@b99"))] == ["b99"]
    assert [one["name"] for one in resting_on(whole, of_all, None)] == ["b98", "b99"]


def test_sources_of_the_frozen_arms_stay_as_they_are_when_an_iteration_adds_a_checkpoint(study: Study) -> None:
    whole = with_iterations(study, q8=CHECKPOINT + '[[arms]]\narm = "q8_0b/llamacpp@b11549"\n')
    new = ArmKey.parse("q8_0b/llamacpp@b11549")
    for arm in study.protocol.arm_keys:
        assert parameters(whole, arm) == parameters(study, arm)
        assert set(checkpoints_for(whole, arm)) == {"q8_0", "q4_0"}
    assert set(checkpoints_for(whole, new)) == {"q8_0", "q4_0", "q8_0b"}


def test_the_looks_at_a_frozen_arm_stay_as_they_are_under_an_iteration(study: Study) -> None:
    whole = with_iterations(study, b99=VERSION + ARM)
    one, other = summaries(study), summaries(whole)
    assert one.parameters(study, OLD_ARM) == other.parameters(whole, OLD_ARM)
    assert one.versions() == other.versions()
