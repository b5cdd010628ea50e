"""What an amendment records: what changed and the text that it had, which data there were at that moment, and how those are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engcmp_assets.kernel.freeze_times import EXPLORATORY, UNCHANGED
from engcmp_assets.kernel.protocol import Protocol
from engcmp_resources.canonical import sha256_bytes

FOLDER = "amendments"
# What decides which rows are captured and how figures are judged: these must be the same, those may have more entries than before.
_SAME = (
    "reference", "prompt_set", "panels", "capture", "statistics", "comparisons", "families", "reading_rules", "gaps",
)  # fmt: skip
_MORE = ("sources", "checkpoints", "engines")
# Parts of a study that it may be given later; once it has one, that one decides too.
_BLOCKS = ("throughput", "startup", "long_replies", "gpus")
_SAYS = {
    UNCHANGED: "It changes nothing of what is captured or how it is judged: results captured before it stand as they did.",
    EXPLORATORY: "What was captured before it is read as exploratory and never as a primary result; to have one, measure again.",
}


def kept_text(
    number: int, was: Mapping[str, str], now: Mapping[str, bytes], found: Mapping[str, bytes]
) -> dict[str, Any]:
    """The files that an amendment changes or removes, by path: the hash that was frozen and where the old text is kept, or why it is not.

    `was` has the frozen hashes, `now` the present bytes, `found` old bytes by their SHA-256.
    """
    kept: dict[str, Any] = {}
    for name, sha256 in was.items():
        if name in now and sha256_bytes(now[name]) == sha256:
            continue
        where = (
            {"as": f"{FOLDER}/{number}/{name}"} if sha256 in found else {"missing": "the old text was found nowhere"}
        )
        kept[name] = {"sha256": sha256} | where
    return kept


def reading_rule(
    before: Protocol | None, after: Protocol, *, same_prompts: bool, same_versions: bool, own: str | None
) -> dict[str, str]:
    """How what was captured before is read: `unchanged` only where it is known that nothing that decides it has changed.

    `before` None: the old protocol is not known. `own` is what the one who amends says of it, which is kept beside the rule.
    """
    same = before is not None and same_prompts and same_versions and _judged_alike(_plain(before), _plain(after))
    rule = UNCHANGED if same else EXPLORATORY
    return {"rule": rule, "says": _SAYS[rule]} | ({"own": own} if own else {})


def _judged_alike(before: Protocol, after: Protocol) -> bool:
    """As records, not as what they print: a field that no artifact's parameters hold decides too."""
    more = all(
        getattr(after, table).get(name) == entry for table in _MORE for name, entry in getattr(before, table).items()
    )
    same = all(getattr(before, name) == getattr(after, name) for name in _SAME)
    return more and same and all(getattr(before, name) in (None, getattr(after, name)) for name in _BLOCKS)


def _plain(protocol: Protocol) -> Protocol:
    """The protocol without what is only for readers."""

    def unlabelled(entry: Any) -> Any:
        return entry.model_copy(update={"label": ""}) if hasattr(entry, "label") else entry

    changes: dict[str, Any] = {"comparisons": [unlabelled(one) for one in protocol.comparisons]}
    for table in ("panels", "checkpoints", "engines"):
        changes[table] = {name: unlabelled(one) for name, one in getattr(protocol, table).items()}
    return protocol.model_copy(update=changes)
