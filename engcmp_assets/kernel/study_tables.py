"""Tables of a protocol that say what is known of a study before it is measured: checkpoints, labels of runs, families, confounds, gaps.

Reports print them beside the figures that they bear on. A study without them is a study without families and known confounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from engcmp_assets.kernel.fields import Name, Sha256, Strict

Words = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Block = Literal["q", "t", "l"]
"""Blocks of measurements: precision (q), throughput (t), long output (l)."""
RunName = Annotated[str, Field(pattern=r"^[1-9][0-9]*\.[1-9][0-9]*$")]


class Reference(Strict):
    """The teacher: which weights, run by which engine, at which precision. Engine `published`: its rows come with the panels' sources."""

    label: str
    engine: Literal["reference", "published"]
    weights: str
    precision: Literal["float32", "bfloat16"]


class PromptSetFiles(Strict):
    """Where the frozen token ids and the texts they were made from lie, relative to the study's folder.

    `tokenizer` is the source with the model's `tokenizer.json`; None: the tokenizer of the weights.
    """

    file: str
    texts: str
    tokenizer: str | None = None


class DriftPlan(Strict):
    """Which arms are measured again on a schedule (cron, in the time zone of the machine), to see whether anything moves."""

    arms: list[str] = Field(min_length=1)
    cron: str


class Checkpoint(Strict):
    """A checkpoint made from a source's weights; `sha256` is of the file that every machine must make."""

    label: str
    made_from: str
    quantization: Literal["q8_0", "q4_0"]
    sha256: Sha256


class PublishedCheckpoint(Strict):
    """A checkpoint that is taken as its maker published it: `published` is the source with its files. `producer` made it.

    `derived_from` are the checkpoints that a local one was put together from; it is nobody's release.
    """

    label: str
    published: str
    producer: str
    derived_from: list[Name] = Field(default_factory=list)


AnyCheckpoint = Checkpoint | PublishedCheckpoint


class ArmEntry(Strict):
    """One arm of the study.

    `runs` gives runs (`launch.repeat`) the labels that people know them by. `blocks` are those that the protocol wants of the arm, all
    unless it says so; `follow_up` names the question that an arm was added for.
    """

    arm: str
    label: str | None = None
    runs: dict[RunName, Words] = Field(default_factory=dict)
    blocks: Annotated[list[Block], Field(min_length=1)] | None = None
    follow_up: Name | None = None
    note: str | None = None


class NotRun(Strict):
    """An arm that has no results by nature: shown as `not comparable: STATE: REASON`, and never asked for."""

    arm: str
    state: Literal["it does not run", "it does not fit", "it was not measured"]
    reason: Words


class Family(Strict):
    """Checkpoints of one lineage that engines serve as different files: their comparisons print all files and the control pair.

    `relation` says what is equal and what is not; `control` is the pair that shows what the files alone do on one engine.
    """

    label: str
    checkpoints: Annotated[list[Name], Field(min_length=1)]
    relation: Words
    control: str | None = None


class Confound(Strict):
    """Something that differs between the sides of `pairs` beside what the pair is about, and was known before it was measured."""

    id: Name
    what: Words
    pairs: Annotated[list[Name], Field(min_length=1)]
    source: Words


class Gap(Strict):
    """What documents that the study rests on do not state, and what this study does in its place (`here`)."""

    what: Words
    why: Words
    here: Words


class Deviation(Strict):
    """Where the study differs on purpose from what was run before under its name."""

    what: Words
    published: Words
    here: Words
    why: Words


def families_of(families: Mapping[str, Family], checkpoints: Iterable[str]) -> tuple[str, ...]:
    """The families that all of `checkpoints` belong to."""
    wanted = set(checkpoints)
    return tuple(name for name, family in families.items() if wanted <= set(family.checkpoints))
