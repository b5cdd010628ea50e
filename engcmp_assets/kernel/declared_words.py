"""What a protocol declares of its pairs and of itself, as sentences for reports: files, known confounds, gaps, arms without results."""

from __future__ import annotations

from collections.abc import Mapping

from engcmp_assets.kernel.engine_tables import ServerEngine
from engcmp_assets.kernel.matrix import NOT_COMPARABLE
from engcmp_assets.kernel.protocol import ComparisonPlan, Protocol
from engcmp_assets.kernel.records import ArmKey


def words_of_pair(protocol: Protocol, plan: ComparisonPlan) -> list[str]:
    """What is declared to differ between the sides of a pair beside what it is about, the files of its family first."""
    arms = ArmKey.parse(plan.candidate), ArmKey.parse(plan.baseline)
    own = {arm.checkpoint for arm in arms}
    found = []
    for family in protocol.families.values():
        if len(own) > 1 and own <= set(family.checkpoints):
            control = (
                f" The control is the pair {family.control}." if family.control not in (None, plan.pair_id) else ""
            )
            found.append(
                f"Two files of {family.label}: the candidate is measured on {arms[0].checkpoint}, the baseline on {arms[1].checkpoint}. "
                f"{family.relation}{control}"
            )
    for arm in dict.fromkeys(arms):
        engine = protocol.engines[arm.engine]
        if arm.setting is not None and isinstance(engine, ServerEngine):
            setting = engine.for_settings[arm.setting]
            found += [
                f"The setting {arm.setting} ({setting.label}) also changes {one}." for one in setting.also_changes
            ]
    return [*found, *(f"{one.what} ({one.source})" for one in protocol.confounds if plan.pair_id in one.pairs)]


def words_of_pairs(protocol: Protocol) -> Mapping[str, list[str]]:
    """The same of every pair that has any, by its id."""
    told = {plan.pair_id: words_of_pair(protocol, plan) for plan in protocol.comparisons}
    return {pair: words for pair, words in told.items() if words}


def words_of_study(protocol: Protocol) -> list[str]:
    """The limits of a study: those it writes, arms that have no results by nature, where it differs from what was published, and gaps."""
    return [
        *protocol.limits.values(),
        *(f"{one.arm} is {NOT_COMPARABLE}: {one.state}: {one.reason}." for one in protocol.not_run),
        *(
            f"Other than in the published run: {one.what}. There: {one.published}. Here: {one.here}. Why: {one.why}."
            for one in protocol.deviations
        ),
        *(f"Not known: {one.what}. {_begun(one.why)}. Here: {one.here}." for one in protocol.gaps),
    ]


def _begun(text: str) -> str:
    return text[0].upper() + text[1:]
