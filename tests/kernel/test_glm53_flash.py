"""The study glm53-flash as data: what its documents state of pins, settings and plans is in it, and what they do not state is listed."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from engcmp_assets.audit.pair_claims import greedy_of
from engcmp_assets.engine_launch.step import pinned_identities
from engcmp_assets.frozen_protocol.engine_settings import refuse_unknown_engines
from engcmp_assets.kernel.engine_tables import ServerEngine
from engcmp_assets.kernel.protocol import Protocol
from engcmp_assets.kernel.reading_rules import rule_faults
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.source_tables import ImageSource, ListedSource
from engcmp_assets.kernel.study import Study, load_study
from engcmp_assets.kernel.study_sources import SOURCES_FILE, StudySources, parse_sources
from engcmp_resources.errors import EngcmpError

# Pins as the documents print them, typed here a second time: an edit of a file that turns one into another is caught.
REVISIONS = {
    "k3.25-v1": "0490d2f708b12145f6516555ab066aaeb401cd21",
    "k3.25-core-fp8": "d31ebc921f1f098b4a56d37aaccb3cdef4096184",
    "k4": "a5fee929cf4888b1824323e33e8a19b60129e025",
    "dflash2": "bf582e4eacc1810f76656d1811693ff6c6737d2a",
    "bf16-root": "a6c167b62691b2bac901344b65cb651a70f53e43",
    "tokenizer": "a6c167b62691b2bac901344b65cb651a70f53e43",
    "panel-pa": "32afb8875f830528d5545c20a51846b56c537f44",
    "panel-pb": "a7e7d1b4d82329acebe54ca88dc71d47d0d2056d",
    "image-cuteafd-v3.0.1": "sha256:392db7c0bdd39ec5aacda800f9a3ada70342721a2357ad1ec09ad0ef5981459a",
    "image-vllm-fork-v0.9.2": "sha256:ea0430aa772e8cedfef1cdf80c30f4962ba43bb0991ac329950067ba1375f3e2",
}


@pytest.fixture(scope="module")
def flash() -> Study:
    return load_study("glm53-flash")


@pytest.fixture(scope="module")
def protocol(flash: Study) -> Protocol:
    return flash.base


@pytest.fixture(scope="module")
def sources(flash: Study) -> StudySources:
    return parse_sources(flash.files[SOURCES_FILE], where=SOURCES_FILE)


def settings(protocol: Protocol, arm: str) -> dict[str, object]:
    engine = protocol.engine_of(ArmKey.parse(arm))
    assert isinstance(engine, ServerEngine)
    found: dict[str, object] = engine.settings.get("config") or engine.settings["environment"]
    return found


def test_the_audit_knows_of_which_panel_the_text_was_generated_greedily(protocol: Protocol) -> None:
    assert {name: greedy_of(plan) for name, plan in protocol.panels.items()} == {
        "pa": None, "pa20": None, "pb": True, "q2": None,
    }  # fmt: skip


def test_every_pin_that_is_stated_is_there_and_no_other(sources: StudySources) -> None:
    assert {one.id: one.revision for one in sources.sources if one.pinned} == REVISIONS


def test_what_has_no_pin_says_why_and_what_is_known_of_it(sources: StudySources) -> None:
    lacking = [one for one in sources.sources if not one.pinned]
    assert len(lacking) + len(REVISIONS) == len(sources.sources)
    assert all(len(one.reason("revision" if one.revision == "unknown" else "where")) > 10 for one in lacking)
    known = {why.known for one in lacking for why in one.unknown}
    assert {"sha256:e257bc61", "9f0c617", "95f4fdd9"} <= known, "the digits that are printed are kept"


def test_the_configs_name_the_revisions_that_the_sources_pin(protocol: Protocol) -> None:
    for arm, model, drafter in (
        ("K3.25-Core-FP8/cuteafd@v3.0.1", "k3.25-core-fp8", "dflash2"), ("K3.25-v1/cuteafd@v3.0.1", "k3.25-v1", "dflash2"),
        ("K4/cuteafd@v4.0.0", "k4", "dflash2"),
    ):  # fmt: skip
        found = settings(protocol, arm)
        assert (found["MODEL_REVISION"], found["SPECULATOR_MODEL_REVISION"]) == (REVISIONS[model], REVISIONS[drafter])


def test_the_settings_that_are_stated(protocol: Protocol) -> None:
    shipped = settings(protocol, "K3.25-Core-FP8/cuteafd@v3.0.1")
    assert shipped == {
        "MODEL_ID": "wrldsuksgo2mars/GLM-5.3-Flash-EXL3-K3.25-Core-FP8", "MODEL_REVISION": REVISIONS["k3.25-core-fp8"],
        "GLM5_FLASH_FP8_MODEL_ID": "off", "SPECULATOR": "dflash2", "SPECULATOR_MODEL_ID": "incoai/GLM-5.3-Flash-DFlash2",
        "SPECULATOR_MODEL_REVISION": REVISIONS["dflash2"], "POOL_TOKENS": "auto", "EXPERT_BACKEND": "local", "SPARK_COUNT": "0",
        "RTX_GPUS": "2", "COORDINATOR_GPU": "0", "MAX_OUTPUT_TOKENS": "393216", "USAGE": "off",
    }  # fmt: skip
    k4 = settings(protocol, "K4/cuteafd@v3.0.1")
    assert set(k4) - set(shipped) == {"MAX_CONTEXT_TOKENS", "VISION"} and k4["MAX_CONTEXT_TOKENS"] == "262144"
    added: dict[str, dict[str, object]] = {
        "w8a16": {"GLM5_FLASH_FP8_PREFILL": "off"}, "kda-bf16": {"GLM5_FLASH_KDA_FP8": "off"},
        "one-lane": {"GLM5_FLASH_PREFILL_LANES": 1, "GLM5_FLASH_PREFILL_LANE_ROWS": 4096},
    }  # fmt: skip
    for setting, more in added.items():
        assert settings(protocol, f"K3.25-Core-FP8/cuteafd@v3.0.1+{setting}") == shipped | more
    fork = settings(protocol, "K3.25-v1/vllm-fork@v0.9.2")
    assert (fork["MODEL_PROFILE"], fork["GPU_MEMORY_UTILIZATION"], fork["DFLASH_TOKENS"]) == ("k325", "0.95", "3")
    assert str(settings(protocol, "K3.25-v1/vllm-fork@v0.9.2+jit-caches")["DEBUG_ENV"]).count("=/root/.cache/") == 4


def test_each_engine_kind_takes_what_its_arms_are_started_with(protocol: Protocol) -> None:
    refuse_unknown_engines(protocol, where="here")


def test_an_arm_whose_pin_is_not_known_says_so_before_anything_is_computed(flash: Study) -> None:
    with pytest.raises(
        EngcmpError, match=r"launcher launcher-cuteafd-v3\.0\.1 of arm .* cannot be had: its revision is not known"
    ):
        pinned_identities(flash, ArmKey.parse("K4/cuteafd@v3.0.1"))
    image = flash.base.sources["cuteafd-image-v3_0_1"]
    assert isinstance(image, ImageSource) and image.digest == REVISIONS["image-cuteafd-v3.0.1"]
    assert isinstance(flash.base.sources["cuteafd-image-v4_0_0"], ListedSource)


def test_a_panel_that_is_published_elsewhere_says_how_to_get_it(flash: Study) -> None:
    with pytest.raises(EngcmpError, match="panel pa is published with source panel-pa") as told:
        flash.panel("pa")
    assert "engcmp fetch glm53-flash" in str(told.value.remedy)


def test_arms_and_their_labels(protocol: Protocol) -> None:
    labels = {label: (entry.arm, run) for entry in protocol.arms for run, label in entry.runs.items()}
    fork = "K3.25-v1/vllm-fork@v0.9.2"
    assert {name: labels[name] for name in ("V1", "V1r", "V2")} == {
        "V1": (fork, "1.1"),
        "V1r": (fork, "1.2"),
        "V2": (fork, "2.1"),
    }
    assert labels["C0"][0] == "K3.25-v1/cuteafd@v3.0.1" and labels["C1"][0] == "K3.25-Core-FP8/cuteafd@v3.0.1"
    assert labels["V-r1"][1][0] != labels["V-r2"][1][0], "K4's two runs of the fork are two launches"
    assert {entry.label for entry in protocol.arms if entry.follow_up == "F1"} == {"F1a", "F1b", "F1c", "F1d"}
    states = {one.arm: one.state for one in protocol.not_run}
    assert states["K4-Core-K6/vllm-fork@v0.9.2"] == "it does not run"
    assert {arm for arm, state in states.items() if state == "it was not measured"} == {
        "K3.25-Core-FP8/cuteafd@v4.1.0", "K4/cuteafd@v4.1.0",
    }  # fmt: skip


def test_plan_numbers_that_are_stated(protocol: Protocol) -> None:
    load, replies, startup = protocol.throughput, protocol.long_replies, protocol.startup
    assert load is not None and replies is not None and startup is not None and startup.prefix is not None
    assert (load.output_tokens, load.sampling.temperature, len(load.kinds)) == (1024, 1.0, 4)
    assert set(load.concurrency) == {1, 4, 8, 16} and max(load.prompt_tokens) == 131_072
    assert (replies.replies_per_kind, len(replies.kinds)) == (8, 4)
    assert [stage.stage for stage in replies.stages] == ["L1", "L2", "L3", "L3s"] and replies.replies_of(
        replies.stages[3]
    ) == 0
    assert {8_704, 17_408} <= set(startup.prefix.prompt_tokens) and startup.prefix.repeats == 3
    assert replies.tasks.tools is not None and replies.tasks.tools.concurrency == [8]
    counts = {
        name: (plan.external.windows, plan.external.clusters) for name, plan in protocol.panels.items() if plan.external
    }
    assert counts == {"pa": (25, 25), "pa20": (25, 25), "pb": (64, 64), "q2": (18, 6)}
    shares = Counter(band.share for plan in protocol.comparisons if (band := protocol.band_of(plan)))
    assert set(shares) == {0.08, 0.10}
    assert (protocol.statistics.replicates, protocol.statistics.seed) == (20_000, 20_260_929)


def test_each_setting_beside_its_arm_as_shipped_says_whose_gap_it_is_to_close(protocol: Protocol) -> None:
    closing = {pair.pair_id: pair.closes for pair in protocol.comparisons if pair.closes}
    assert closing["F1c-vs-C1"] == "C1-vs-V1" and closing["K4-w8a16-amax-vs-C"] == "K4-C-vs-V"
    beside = {pair.pair_id for pair in protocol.comparisons if pair.pair_id.endswith(("-vs-C1", "-vs-C"))}
    assert set(closing) == beside - {"C1-vs-C0"}


def test_what_is_chosen_here_in_place_of_what_is_not_stated_is_listed(protocol: Protocol) -> None:
    told = " ".join(f"{gap.what} {gap.why} {gap.here}" for gap in protocol.gaps)
    for word in (
        "1,008",
        "22 cells",
        "F1b",
        "top_p",
        "L3s",
        "needle",
        "Q2",
        "tool-eval-bench",
        "local loader",
        "CONCURRENCY",
    ):
        assert word in told, word
    inferred = [name for engine in protocol.engines.values() if isinstance(engine, ServerEngine)
                for name, setting in engine.for_settings.items() if setting.basis.startswith("inferred")]  # fmt: skip
    assert sorted(inferred) == ["bf16-all", "head-bf16"]


def test_every_rule_can_be_applied_and_each_question_of_the_study_has_one(protocol: Protocol) -> None:
    assert not [fault for rule in protocol.reading_rules for fault in rule_faults(rule)]
    ids = {rule.id for rule in protocol.reading_rules}
    assert {"pa-K3.25-v3", "F1a-closer", "F2-prefix", "one-lane-K4", "thinking-core", "q2-nll", "bar-kl-K3.25"} <= ids
    against_v = [
        rule for rule in protocol.reading_rules if rule.baseline and rule.baseline.arm == "K3.25-v1/vllm-fork@v0.9.2"
    ]
    named = [rule for rule in against_v if rule.baseline and isinstance(rule.baseline.runs, list)]
    assert len(named) >= 8 and all(rule.baseline and rule.baseline.runs == ["V1", "V1r", "V2"] for rule in named)


def test_nothing_in_the_folder_names_a_machine_or_a_secret(flash: Study) -> None:
    for name, data in flash.files.items():
        text = data.decode("utf-8")
        assert not re.search(r"/home/|/work/|/tmp/|192\.168\.|hf_[A-Za-z0-9]{8}", text), name
