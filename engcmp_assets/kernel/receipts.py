"""Receipts: the record of one materialization, and its three identities (ARCHITECTURE, "Store and receipts").

`task_key` is known before the work and is the key for skipping; `content_id` is the Dagster data version; the hash of a receipt's
bytes is its name, and what the chain and every tamper check use.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from engcmp_assets.kernel.records import ArmKey
from engcmp_resources.canonical import sha256_of
from engcmp_resources.errors import EngcmpError

SCHEMA = "engcmp.receipt/1"


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
    """Raise EngcmpError, naming the field, unless `receipt` is one of the schema and its identities follow from its contents.

    What passes has the fields and types that the rest of the code relies on, whoever wrote it.
    """
    try:
        _Receipt.model_validate(receipt)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise EngcmpError(
            f"not a receipt of {SCHEMA}: {field}: {first['msg']}", where=where, remedy="use the version that wrote it"
        ) from error
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


def refuse_output_name(name: str, *, artifact: str) -> None:
    """Raise EngcmpError for an output's name that no receipt may have: it is a path below the artifact's views."""
    if re.fullmatch(_OUTPUT_NAME, name) is None:
        raise EngcmpError(
            f"an output of {artifact} cannot be called {name!r}",
            remedy="use letters, digits, _ . @ + - and / between parts; each part begins with a letter, a digit or _",
        )


_Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Artifact = Annotated[str, Field(pattern=r"^[a-z0-9_]+(/[a-z0-9_]+)*$")]
# The view of an output is a path of this name: a step upwards must be impossible.
_OUTPUT_NAME = r"^[A-Za-z0-9_][A-Za-z0-9._@+-]*(/[A-Za-z0-9_][A-Za-z0-9._@+-]*)*$"
_OutputName = Annotated[str, Field(pattern=_OUTPUT_NAME)]
_Time = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00$")]
_Count = Annotated[int, Field(ge=0)]


def _arm(text: str) -> str:
    try:
        ArmKey.parse(text)
    except EngcmpError as error:
        raise ValueError(error.what) from error
    return text


_Arm = Annotated[str, AfterValidator(_arm)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Iteration(_Strict):
    name: str
    frozen_sha256: _Sha256


class _Column(_Strict):
    name: str
    dtype: str
    unit: str
    description: str


class _Output(_Strict):
    name: _OutputName
    sha256: _Sha256
    bytes: _Count
    suffix: Annotated[str, Field(pattern=r"^[a-z0-9]+$")]
    role: Literal["data", "view"]
    rows: _Count | None
    columns: list[_Column]


class _Input(_Strict):
    artifact: _Artifact
    arm: _Arm | None
    receipt_sha256: _Sha256
    content_id: _Sha256
    uses: list[str] | None
    part_id: _Sha256


class _Missing(_Strict):
    missing: str


class _Interval(_Strict):
    low: float
    high: float
    level: float
    method: str


class _Figure(_Strict):
    figure_id: str
    label: str
    measure: str
    measure_version: int
    unit: str
    panel: str
    population: str
    value: float | _Missing
    interval: _Interval | _Missing
    rows: _Count
    clusters: _Count
    details: dict[str, Any]


class _Check(_Strict):
    name: str
    passed: bool
    explanation: str
    evidence: dict[str, Any]


class _Receipt(_Strict):
    schema_: Literal["engcmp.receipt/1"] = Field(alias="schema")
    study: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    frozen_sha256: _Sha256
    iterations: list[_Iteration]
    artifact: _Artifact
    arm: _Arm | None
    task_key: _Sha256
    content_id: _Sha256
    parameters: dict[str, Any]
    versions: dict[str, Any]
    inputs: list[_Input]
    outputs: list[_Output]
    code: dict[str, Any]
    environment: dict[str, Any]
    run_id: str
    started_at: _Time
    finished_at: _Time
    figures: list[_Figure]
    checks: list[_Check]
    flags: list[str]
    details: dict[str, Any]
    answered_by: _Sha256 | None
    measurement: Annotated[int, Field(ge=1)]

    @model_validator(mode="after")
    def _each_name_once(self) -> _Receipt:
        for kind, names in (
            ("output", [output.name for output in self.outputs]),
            ("input", [(item.artifact, item.arm) for item in self.inputs]),
        ):
            if len(set(names)) != len(names):
                raise ValueError(f"an {kind} stands twice")
        return self
