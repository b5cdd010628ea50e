"""What was measured before its study was frozen, block by block: it is shown, and it is never a primary result, whatever it reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engcmp_assets.kernel.blocks import blocks_of_arm
from engcmp_assets.kernel.freeze_times import began_before
from engcmp_assets.kernel.names import EVENTS, REPLIES, captured_rows
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.work import Session

EARLY = {"q": "before_freeze", "t": "speed_before_freeze", "l": "replies_before_freeze"}
"""Under which name a result keeps why an arm's block is no primary result."""


def early_blocks(session: Session, arm: ArmKey) -> dict[str, str]:
    """Why what was measured of an arm is no primary result of the present freeze, by block; {} where all of it may be one."""
    protocol = session.study.protocol
    measured: Mapping[str, Sequence[str]] = {
        "q": [captured_rows(panel) for panel in protocol.panels], "t": [EVENTS], "l": [REPLIES],
    }  # fmt: skip
    found = {}
    for block in blocks_of_arm(protocol, arm):
        why = next((said for name in measured[block] if (said := _early(session, arm, name))), None)
        if why is not None:
            found[block] = why
    return found


def words_of_early(why: str) -> str:
    """How a result says that it rests on an early measurement."""
    return f"captured before its freeze, so never a primary result: {why}"


def _early(session: Session, arm: ArmKey, artifact: str) -> str | None:
    done = session.sound(artifact, arm)
    if done is None:
        return None
    receipt = done.receipt
    seen = {done.sha256}
    while (first := receipt["answered_by"]) is not None and first not in seen:  # the receipt of the measurement itself
        seen.add(first)
        receipt = session.store.read_receipt(first)
    return began_before(receipt["started_at"], receipt["frozen_sha256"], session.study.frozen or {})
