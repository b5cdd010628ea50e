"""Which blocks a pair can be compared on: those that the protocol wants of both its arms."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from engcmp_assets.kernel.blocks import WORDS, blocks_of_arm, blocks_of_study, not_asked
from engcmp_assets.kernel.names import CELLS, REPLY_CHECKS
from engcmp_assets.kernel.protocol import ComparisonPlan, Protocol
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.work import Source

RESULT = {"q": "scores", "t": CELLS, "l": REPLY_CHECKS}
"""The artifact of an arm that a comparison on a block is made from."""


def lacking_blocks(protocol: Protocol, plan: ComparisonPlan) -> dict[str, str]:
    """Why a pair is not compared on a block of the study, by the block's letter; {} where both arms have all."""
    found: dict[str, list[str]] = {}
    for text in dict.fromkeys((plan.candidate, plan.baseline)):
        for block, why in not_asked(protocol, ArmKey.parse(text)).items():
            found.setdefault(block, []).append(f"{text}: {why}")
    return {block: f"{WORDS[block]} is not compared: {'; '.join(whys)}" for block, whys in found.items()}


def compared_blocks(protocol: Protocol, plan: ComparisonPlan) -> tuple[str, ...]:
    """The blocks on which a pair is compared; score paths have rows alone."""
    lacking = lacking_blocks(protocol, plan)
    return tuple(
        one for one in blocks_of_study(protocol) if one not in lacking and (one == "q" or not plan.compares_paths)
    )


def is_measured(protocol: Protocol, arm: ArmKey, blocks: Collection[str], inputs: Collection[Source]) -> bool:
    """Whether an arm has what a comparison on these blocks needs first: its rows, or of one without rows anything."""
    needed = ["q"] if "q" in blocks else list(blocks)
    return any((RESULT[block], str(arm)) in inputs for block in needed)


def asked_of_arms(protocol: Protocol) -> dict[str, list[str]]:
    """The blocks of each arm that does not have all of the study's; {} where all have: for the task key."""
    whole = blocks_of_study(protocol)
    found: Mapping[str, tuple[str, ...]] = {str(arm): blocks_of_arm(protocol, arm) for arm in protocol.arm_keys}
    return {arm: list(own) for arm, own in found.items() if own != whole}
