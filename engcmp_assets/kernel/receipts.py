"""Receipts: the record of one materialization, and its three identities (ARCHITECTURE, "Store and receipts").

`task_key` is known before the work and is the key for skipping; `content_id` is the Dagster data version; the hash of a receipt's
bytes is its name, and what the chain and every tamper check use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from engcmp_resources.canonical import sha256_of
from engcmp_resources.errors import EngcmpError

SCHEMA = "engcmp.receipt/1"
FIELDS = frozenset(
    {
        "schema", "study", "frozen_sha256", "artifact", "arm", "task_key", "content_id", "parameters", "versions", "inputs",
        "outputs", "code", "environment", "run_id", "started_at", "finished_at", "figures", "checks", "flags", "details",
        "answered_by", "measurement",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its type, its unit (`1` for a pure number) and what it means."""

    name: str
    dtype: str
    unit: str
    description: str


@dataclass(frozen=True, slots=True)
class Output:
    """One output of a materialization. A `view` (plot, page) is hashed and verified but is not part of the content id."""

    name: str
    sha256: str
    bytes: int
    suffix: str
    role: Literal["data", "view"] = "data"
    rows: int | None = None
    columns: tuple[Column, ...] = ()


@dataclass(frozen=True, slots=True)
class Input:
    """What a materialization used of another: `uses` names the outputs that its result depends on (None: all of them).

    An empty `uses` records the dependence in the chain without making it part of the task key.
    """

    artifact: str
    arm: str | None
    receipt_sha256: str
    content_id: str
    uses: tuple[str, ...] | None
    part_id: str


def part_id(receipt: Mapping[str, Any], uses: Sequence[str] | None) -> str:
    """Identity of the part of a receipt's outputs that `uses` names; the content id where that is all of them.

    Raises EngcmpError for an output that the receipt does not have.
    """
    if uses is None:
        return str(receipt["content_id"])
    hashes = {output["name"]: output["sha256"] for output in receipt["outputs"]}
    for name in uses:
        if name not in hashes:
            raise EngcmpError(
                f"artifact {receipt['artifact']} of {receipt['arm'] or receipt['study']} has no output {name!r}",
                remedy="materialize it again",
            )
    return sha256_of({name: hashes[name] for name in sorted(uses)})


def task_key(artifact: str, parameters: Mapping[str, Any], inputs: Sequence[Input], versions: Mapping[str, Any]) -> str:
    """Identity of a task before it is done: no arm name, run, time, git commit or environment in it."""
    used = [[item.artifact, item.part_id] for item in inputs if item.uses is None or item.uses]
    return sha256_of({"artifact": artifact, "parameters": dict(parameters), "inputs": used, "versions": dict(versions)})


def content_id(task: str, outputs: Sequence[Mapping[str, Any]]) -> str:
    """Identity of a result: the task and its data outputs by name and hash."""
    data = sorted([output["name"], output["sha256"]] for output in outputs if output["role"] == "data")
    return sha256_of({"task_key": task, "outputs": data})


def check_receipt(receipt: Mapping[str, Any], where: str) -> None:
    """Raise EngcmpError unless `receipt` has exactly the fields of the schema and its identities follow from them."""
    if set(receipt) != FIELDS or receipt["schema"] != SCHEMA:
        odd = ", ".join(sorted(set(receipt) ^ FIELDS)) or f"schema {receipt.get('schema')}"
        raise EngcmpError(f"not a receipt of {SCHEMA}: {odd}", where=where, remedy="use the version that wrote it")
    inputs = [
        Input(
            item["artifact"], item["arm"], item["receipt_sha256"], item["content_id"],
            None if item["uses"] is None else tuple(item["uses"]), item["part_id"],
        )
        for item in receipt["inputs"]
    ]  # fmt: skip
    key = task_key(receipt["artifact"], receipt["parameters"], inputs, receipt["versions"])
    if key != receipt["task_key"] or content_id(key, receipt["outputs"]) != receipt["content_id"]:
        raise EngcmpError("receipt's identities do not follow from its contents", where=where, remedy="restore it")
