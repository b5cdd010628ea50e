"""What the heads of a study reach: receipts, and through them files. Reads the store's bytes and trusts none of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engcmp_assets.kernel.receipts import check_receipt
from engcmp_resources.errors import EngcmpError
from engcmp_resources.store import STUDY_WIDE, Store, read_head


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that does not verify: the file, and what is wrong with it."""

    file: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}: {self.what}"


@dataclass(slots=True)
class Reached:
    """The heads of a study (place to receipt hash) and every receipt that they reach (hash to receipt)."""

    heads: dict[tuple[str, str], str] = field(default_factory=dict)
    receipts: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def current(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The receipts that heads point to, each with its hash."""
        for sha256 in self.heads.values():
            if sha256 in self.receipts:
                yield sha256, self.receipts[sha256]


def reached_from_heads(store: Store, study: str) -> Reached:
    """Follow every head of `study` through its receipt's inputs; problems are collected, not raised."""
    reached = Reached()
    root = store.home / "heads" / study
    for path in sorted(root.rglob("*")):
        if path.is_dir():
            continue
        arm_folder, artifact = path.relative_to(root).parts[0], "/".join(path.relative_to(root).parts[1:])
        if not artifact.endswith(".json"):
            reached.problems.append(Problem(_shown(store, path), "not a head: remove it"))
            continue
        try:
            sha256 = read_head(path, study, arm_folder, artifact.removesuffix(".json"))
        except (EngcmpError, OSError) as error:
            reached.problems.append(Problem(_shown(store, path), str(error)))
            continue
        receipt = _follow(store, reached, sha256, needed_by=_shown(store, path))
        owner = _folder(receipt["arm"]) if receipt else arm_folder
        if receipt and (receipt["study"], owner, f"{receipt['artifact']}.json") != (study, arm_folder, artifact):
            reached.problems.append(
                Problem(_shown(store, path), f"points to the receipt of another artifact, {sha256[:12]}")
            )
        reached.heads[(arm_folder, artifact.removesuffix(".json"))] = sha256
    return reached


def orphaned_heads(store: Store, study: str, reached: Reached) -> list[Problem]:
    """Artifacts that have receipts of this study but no head: evidence that was taken away."""
    missing = {}
    for path in sorted((store.home / "receipts").glob("*.json")):
        try:
            receipt = json.loads(path.read_bytes())
            place = (_folder(receipt["arm"]), receipt["artifact"])
        except (ValueError, KeyError, TypeError):
            missing[path.name] = Problem(_shown(store, path), "not a receipt, or damaged")
            continue
        if receipt["study"] == study and place not in reached.heads:
            head = store.head_path(study, place[0], place[1])
            missing[str(head)] = Problem(
                _shown(store, head), f"head is missing, though receipt {path.stem[:12]} exists; run the study again"
            )
    return list(missing.values())


def _follow(store: Store, reached: Reached, sha256: str, *, needed_by: str) -> dict[str, Any] | None:
    """Read a receipt and all that it names. Receipts form a chain by hash, so this ends."""
    if sha256 in reached.receipts:
        return reached.receipts[sha256]
    path = store.receipt_path(sha256)
    try:
        receipt = store.read_receipt(sha256)
        check_receipt(receipt, where=_shown(store, path))
    except (EngcmpError, ValueError, KeyError, TypeError) as error:
        reached.problems.append(Problem(_shown(store, path), f"{error} (needed by {needed_by})"))
        return None
    reached.receipts[sha256] = receipt
    for item in receipt["inputs"]:
        source = _follow(store, reached, item["receipt_sha256"], needed_by=_shown(store, path))
        if source and (source["artifact"], source["arm"], source["content_id"]) != (
            item["artifact"],
            item["arm"],
            item["content_id"],
        ):
            reached.problems.append(
                Problem(_shown(store, path), f"its input {item['artifact']} is not what that receipt says")
            )
    if receipt["answered_by"]:
        _follow(store, reached, receipt["answered_by"], needed_by=_shown(store, path))
    return receipt


def leads_to_frozen(reached: Reached, receipt: Mapping[str, Any]) -> bool:
    """Whether a receipt's inputs lead to a frozen_protocol receipt of the same frozen hash."""
    queue = [receipt]
    while queue:
        item = queue.pop()
        if item["artifact"] == "frozen_protocol":
            return bool(item["frozen_sha256"] == receipt["frozen_sha256"])
        queue += [
            reached.receipts[i["receipt_sha256"]] for i in item["inputs"] if i["receipt_sha256"] in reached.receipts
        ]
    return False


def _folder(arm: str | None) -> str:
    return STUDY_WIDE if arm is None else arm.replace("/", "~")


def _shown(store: Store, path: Path) -> str:
    return str(path.relative_to(store.home))
