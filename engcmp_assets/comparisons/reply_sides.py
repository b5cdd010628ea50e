"""The judged replies of a pair's arms, read from the store for the comparison."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

import polars as pl

from engcmp_assets.comparisons.replies import ArmSide, Judging, replies_document
from engcmp_assets.kernel.names import REPLIES, REPLY_CHECKS
from engcmp_assets.kernel.protocol import ComparisonPlan
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.reply_verdicts import Verdict, verdicts_of
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.uncertainty import Preset
from engcmp_assets.kernel.work import Use, Work
from engcmp_assets.long_output_checks.figures import scenario_runs
from engcmp_assets.long_output_checks.step import VERDICTS_FILE
from engcmp_assets.long_replies.step import TRACES_FILE

VERSION = "3"
USES = (Use(REPLIES, "every arm"), Use(REPLY_CHECKS, "every arm", (VERDICTS_FILE,)))


def rules_of(study: Study) -> dict[str, Any]:
    """How pairs of replies are judged, for the task key; {} in a study without replies."""
    if study.protocol.long_replies is None:
        return {}
    tests = {plan.pair_id: list(plan.reply_tests) for plan in study.protocol.comparisons if plan.reply_tests}
    return {"replies": [VERSION, tests]}


def replies_of(
    work: Work, plan: ComparisonPlan, arms: tuple[ArmKey, ArmKey], *, declared: Collection[str]
) -> dict[str, Any]:
    """The pair's replies, with the tests that count as declared; an arm whose replies were not judged yet is named."""
    for arm in arms:
        if (REPLY_CHECKS, str(arm)) not in work.inputs:
            return {
                "missing": f"the replies of {arm} were not judged yet",
                "stages": [],
                "tools": [],
                "traces": None,
                "figures": [],
            }
    judged = work.study.protocol.statistics
    judging = Judging(Preset(judged.replicates, judged.seed), judged.level, declared)
    sides = [_side(work, arm) for arm in arms]
    return replies_document(work.study.protocol.study, plan, (sides[0], sides[1]), judging)


def _side(work: Work, arm: ArmKey) -> ArmSide:
    table = pl.read_parquet(work.file(REPLY_CHECKS, VERDICTS_FILE, arm))
    verdicts = verdicts_of({name: table[name].to_list() for name in table.columns})
    stages: dict[str, list[Verdict]] = {}
    for one in verdicts:
        if one.block == "tools":
            stages.setdefault(one.stage, []).append(one)
    runs = {stage: scenario_runs(own) for stage, own in stages.items()}
    return ArmSide(arm, verdicts, runs, _traces(work, arm))


def _traces(work: Work, arm: ArmKey) -> list[Mapping[str, Any]]:
    receipt = work.inputs[(REPLIES, str(arm))].receipt
    if TRACES_FILE not in {output["name"] for output in receipt["outputs"]}:
        return []
    found: list[Mapping[str, Any]] = json.loads(work.file(REPLIES, TRACES_FILE, arm).read_bytes())["traces"]
    return found
