"""What a protocol declares must point at what exists; settings of arms; and how a fault is named."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from engcmp_assets.kernel.engine_tables import ServerEngine
from engcmp_assets.kernel.protocol import Protocol, parse_protocol
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.study import load_study
from engcmp_resources.errors import EngcmpError

Edit = tuple[str, str, str]


@pytest.fixture(scope="module")
def files() -> Mapping[str, bytes]:
    return load_study("glm53-flash").files


def parsed(files: Mapping[str, bytes], *edits: Edit) -> Protocol:
    own = dict(files)
    for name, old, new in edits:
        text = own[name].decode()
        assert old in text, old
        own[name] = text.replace(old, new, 1).encode()
    return parse_protocol(own["protocol.toml"], where="here", files=own)


ARMS, PAIRS, RULES, PANELS, KNOWN = (
    "arms.toml",
    "comparisons.toml",
    "reading_rules.toml",
    "panels.toml",
    "confounds.toml",
)
WRONG: dict[str, tuple[Edit, str]] = {
    "an undeclared setting": (
        ("engines.toml", "for_settings.scales-best", "for_settings.scales-worst"),
        r"arms\.\d+\.arm has the setting 'scales-best', which engine cuteafd does not declare",
    ),
    "a run that is not captured": (
        (ARMS, '"2.1" = "V2"', '"3.1" = "V2"'),
        r"arms\.0\.runs names run 3\.1; there are 1\.1, 1\.2, 2\.1, 2\.2",
    ),
    "a label twice": ((ARMS, '"1.1" = "C1"', '"1.1" = "V1"'), "arms give the label 'V1' to two runs"),
    "an arm that is measured and does not run": (
        (ARMS, 'arm = "K4-Core-K6/vllm-fork@v0.9.2"', 'arm = "K4/vllm-fork@v0.9.2"'),
        r"not_run\.0\.arm 'K4/vllm-fork@v0\.9\.2' stands among the arms too",
    ),
    "an arm that cannot be": (
        (ARMS, 'arm = "K4-Core-K6/vllm-fork@v0.9.2"', 'arm = "K9/vllm-fork@v0.9.2"'),
        r"not_run\.0\.arm names checkpoint 'K9'",
    ),
    "no arm at all": ((ARMS, 'arm = "K4-Core-K6/vllm-fork@v0.9.2"', 'arm = "K9"'), r"not_run\.0\.arm 'K9' is not an arm"),
    "another state": ((ARMS, 'state = "it does not run"', 'state = "unknown"'), r"not_run\.0\.state: Input should be"),
    "a gap of no pair": (
        (PAIRS, 'closes = "C1-vs-V1"', 'closes = "C1-vs-V9"'),
        r"comparisons\.F1a-vs-C1\.closes names pair 'C1-vs-V9', which is no other pair",
    ),
    "a gap of another arm": (
        (PAIRS, 'closes = "C1-vs-V1"', 'closes = "C0-vs-V1"'),
        r"F1a-vs-C1\.closes names a pair of K3\.25-v1/cuteafd@v3\.0\.1, and the setting is held against K3\.25-Core-FP8",
    ),
    "a gap that no setting closes": (
        (PAIRS, 'pair_id = "C1-vs-C0"', 'pair_id = "C1-vs-C0"\ncloses = "C0-vs-V1"'),
        r"C1-vs-C0\.closes stands with arms that differ in more than a setting",
    ),
    "a control that is no pair": (
        ("protocol.toml", 'control = "C1-vs-C0"', 'control = "C1-vs-C9"'),
        r"families\.K3\.25\.control names pair 'C1-vs-C9'",
    ),
    "a family of nothing": (
        ("protocol.toml", '["K3.25-v1", "K3.25-Core-FP8"]', '["K3.25-v2"]'),
        r"families\.K3\.25\.checkpoints\.0 names 'K3\.25-v2'",
    ),
    "a parent that is not there": (
        ("protocol.toml", 'derived_from = ["K4-Core-K6"]', 'derived_from = ["K4-Core"]'),
        r"derived_from\.0 names 'K4-Core'",
    ),
    "a checkpoint without its source": (
        ("protocol.toml", 'published = "k4"', 'published = "k5"'),
        r"checkpoints\.K4\.published names 'k5', which does not exist",
    ),
    "a confound of no pair": ((KNOWN, '"C1-vs-V1"', '"C1-vs-V9"'), r"confounds\.files\.pairs names 'C1-vs-V9'"),
    "a confound twice": ((KNOWN, 'id = "drafter"', 'id = "files"'), "confounds have 'files' twice"),
    "a rule of no arm": (
        (RULES, 'candidate = "K3.25-Core-FP8/cuteafd@v3.0.1"', 'candidate = "K3.25-Core-FP8/cuteafd@v3.0.2"'),
        r"reading_rules\.pa-K3\.25-v3\.statistic\.candidate names .*which is no arm",
    ),
    "a rule of no panel": ((RULES, 'panel = "pa"', 'panel = "px"'), r"reading_rules\.pa-K3\.25-v3\.statistic\.panel names 'px'"),
    "a rule of unlabelled runs": ((RULES, '"V1r"', '"V1s"'), r"reading_rules\.pa-K3\.25-v3\.baseline\.runs names 'V1s', which is no label"),
    "a rule twice": ((RULES, 'id = "pb-K3.25-v3"', 'id = "pa-K3.25-v3"'), "reading_rules have 'pa-K3.25-v3' twice"),
    "a rule of a kind that its measure has not": (
        (RULES, 'measure = "kl_full", kind = "difference"', 'measure = "kl_full", kind = "pair"'),
        r"reading_rules\.pa-K3\.25-v3\.statistic\.kind is 'pair', which no figure of kl_full is .*use difference or value",
    ),
    "a rule of a ratio of rows": (
        (RULES, 'measure = "kl_full", kind = "difference"', 'measure = "kl_full", kind = "ratio"'),
        r"statistic\.kind is 'ratio', which no figure of kl_full is",
    ),
    "a rule with a limit that is no number": ((RULES, "limit = 0.0", "limit = nan"), r"cases\.0\.limit: .*finite number"),
    "a rule with an endless limit": ((RULES, "limit = 0.0", "limit = inf"), r"cases\.0\.limit: .*finite number"),
    "a rule of a measure that its panel has not": (
        (RULES, 'measure = "kl_full"', 'measure = "kl_coarse"'),
        r"pa-K3\.25-v3\.statistic\.measure is 'kl_coarse', which panel pa does not declare .*use one of kl_full",
    ),
    "a rule of rows that nobody looks at": (
        (RULES, 'population = "all"', 'population = "bucket:8-16K"'),
        r"statistic\.population is 'bucket:8-16K', at which panel pa declares no look .*a part by block",
    ),
    "a rule of a population that there is not": (
        (RULES, 'population = "all"', 'population = "generated"'),
        r"statistic\.population is 'generated', at which panel pa declares no look",
    ),
    "a rule of rows without a panel": (
        (RULES, 'panel = "pa", population', "population"),
        r"statistic\.panel is not named, and kl_full is read on the rows of a panel",
    ),
    "a rule of a pair that is not declared": (
        (RULES, 'candidate = "K3.25-Core-FP8/cuteafd@v3.0.1"', 'candidate = "K4/cuteafd@v3.0.1"'),
        r"statistic\.candidate is 'K4/cuteafd@v3\.0\.1', and no pair of it and K3\.25-v1/vllm-fork@v0\.9\.2 is declared",
    ),
    "a vague rule": ((RULES, "level = 0.95\n", ""), r"reading_rules\.pa-K3\.25-v3\.level is not named"),
    "rows of texts at a published panel": (
        (PANELS, 'rows = "stated"', 'rows = "even"'),
        r"panels\.pa\.rows is `stated` with a table external",
    ),
    "a panel of no source": ((PANELS, 'source = "panel-pa"', 'source = "panel-px"'), r"panels\.pa\.external\.source names 'panel-px'"),
    "a layout without that reference": (
        (PANELS, 'layout = "topk"', 'layout = "tokens"'),
        r"panels\.pb\.external\.layout does not give a reference of kind topk",
    ),
    "settings of no checkpoint": (
        ("engines.toml", 'for_checkpoints."K3.25-v1"', 'for_checkpoints."K3.25-v9"'),
        r"for_checkpoints\.K3\.25-v9 is of no checkpoint",
    ),
    "a listed source that is not there": (("protocol.toml", 'listed = "k4"', 'listed = "k5"'), "no source 'k5'"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_named_by_its_field(files: Mapping[str, bytes], case: str) -> None:
    edit, said = WRONG[case]
    with pytest.raises(EngcmpError, match=said):
        parsed(files, edit)


def test_an_arm_s_settings_are_those_of_engine_version_checkpoint_and_setting(files: Mapping[str, bytes]) -> None:
    version = '[engines.cuteafd.versions."v4.0.0"]\n'
    protocol = parsed(files, ("engines.toml", version, f"{version}settings = {{ config = {{ CONCURRENCY = 16 }} }}\n"))

    def config(arm: str) -> dict[str, object]:
        engine = protocol.engine_of(ArmKey.parse(arm))
        assert isinstance(engine, ServerEngine)
        found: dict[str, object] = engine.settings["config"]
        return found

    plain, amax = config("K4/cuteafd@v3.0.1"), config("K4/cuteafd@v3.0.1+w8a16-amax")
    assert amax == plain | {"GLM5_FLASH_FP8_PREFILL": "off", "FP8_SCALES": "amax"} and "CONCURRENCY" not in plain
    assert config("K4/cuteafd@v4.0.0") == plain | {"CONCURRENCY": 16}
    other = config("K3.25-Core-FP8/cuteafd@v3.0.1")
    assert other["MODEL_ID"] != plain["MODEL_ID"] and "MAX_CONTEXT_TOKENS" not in other


def test_an_arm_s_launch_parameters_do_not_hold_what_other_arms_have(files: Mapping[str, bytes]) -> None:
    protocol = parsed(files)
    engine = protocol.engine_of(ArmKey.parse("K4/cuteafd@v3.0.1"))
    assert set(engine.model_dump()) == {"kind", "label", "settings", "versions"}
    assert "K3.25" not in str(engine.model_dump(exclude={"versions", "label"}))


def test_a_pair_has_its_own_band_or_the_study_s(files: Mapping[str, bytes]) -> None:
    protocol = parsed(files)
    bands = {plan.pair_id: protocol.band_of(plan) for plan in protocol.comparisons}
    shares = {pair: band.share for pair, band in bands.items() if band}
    assert shares["C1-vs-V1"] == 0.10 and shares["K4-v4-vs-V"] == shares["K3.25-v4-vs-V"] == 0.08
