"""The words of the project as records: arm, window, panel, interval, figure, check, and the reason for a missing value."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from engcmp_resources.errors import EngcmpError

Role = Literal["generated", "context", "trailing"]
_ARM_PATTERN = re.compile(
    r"(?P<checkpoint>[A-Za-z0-9][A-Za-z0-9._-]*)/(?P<engine>[a-z0-9][a-z0-9-]*)"
    r"@(?P<version>[A-Za-z0-9][A-Za-z0-9._-]*)(?:\+(?P<setting>[A-Za-z0-9][A-Za-z0-9._-]*))?"
)


@dataclass(frozen=True, slots=True)
class Missing:
    """The value of what was not measured or cannot be computed: a reason, never 0 or NaN."""

    reason: str

    def as_json(self) -> dict[str, str]:
        return {"missing": self.reason}


@dataclass(frozen=True, slots=True, order=True)
class ArmKey:
    """A checkpoint on an engine version, with an optional declared setting; also the partition key.

    Text form `checkpoint/engine@version[+setting]`, for example `q4_0/llamacpp@b11549`.
    """

    checkpoint: str
    engine: str
    version: str
    setting: str | None = None

    @classmethod
    def parse(cls, text: str) -> ArmKey:
        """The arm that `text` names. Raises EngcmpError for anything that is not an arm key."""
        match = _ARM_PATTERN.fullmatch(text)
        if match is None or ".." in text:
            raise EngcmpError(
                f"{text!r} is not an arm", remedy="write checkpoint/engine@version, for example q4_0/llamacpp@b11549"
            )
        return cls(match["checkpoint"], match["engine"], match["version"], match["setting"])

    def __str__(self) -> str:
        setting = "" if self.setting is None else f"+{self.setting}"
        return f"{self.checkpoint}/{self.engine}@{self.version}{setting}"

    @property
    def folder(self) -> str:
        """The arm as one safe folder name (`~` cannot occur in a key, so the name can be read back)."""
        return str(self).replace("/", "~")

    def without_setting(self) -> ArmKey:
        """The same arm as it is without its declared setting."""
        return ArmKey(self.checkpoint, self.engine, self.version)


def tokens_sha256(tokens: list[int] | tuple[int, ...]) -> str:
    """Token digest (MEASURES section 1): SHA-256 of the ids as little-endian unsigned 32-bit integers."""
    return hashlib.sha256(np.asarray(tokens, dtype="<u4").tobytes()).hexdigest()


@dataclass(frozen=True, slots=True)
class Window:
    """A fixed list of token ids. `positions` are the row indices r that the panel keeps: row r predicts token r + 1."""

    window_id: str
    tokens: tuple[int, ...]
    positions: tuple[int, ...]
    roles: tuple[Role, ...]
    cluster: str
    block: str
    bucket: str

    @property
    def tokens_sha256(self) -> str:
        return tokens_sha256(self.tokens)

    @property
    def next_tokens(self) -> tuple[int, ...]:
        """The token that each kept row predicts."""
        return tuple(self.tokens[row + 1] for row in self.positions)


@dataclass(frozen=True, slots=True)
class Panel:
    """The windows that one precision figure is measured on; `vocab` is the width of a row, `top_k` what a top-K one keeps.

    `keep` is what is kept of an engine's row: `rows` what the measures need of the whole vocabulary, `light` its top 20 and the next token.
    """

    panel: str
    vocab: int
    reference: Literal["full", "topk", "none"]
    windows: tuple[Window, ...]
    top_k: int | None = None
    keep: Literal["rows", "light"] = "rows"

    @property
    def keeps_raw(self) -> bool:
        """Whether an engine's raw rows are kept."""
        return self.keep == "rows" and self.reference != "topk"

    @property
    def rows(self) -> int:
        return sum(len(window.positions) for window in self.windows)


@dataclass(frozen=True, slots=True)
class Interval:
    """A two-sided interval at `level` (0.95 unless it is a Bonferroni level), by the named method."""

    low: float
    high: float
    level: float
    method: str


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: a measure's value on a population of an arm (or of a pair), with its uncertainty.

    `figure_id` is what `engcmp trace` takes: `study/arm/panel/population/measure`.
    """

    figure_id: str
    label: str
    measure: str
    measure_version: int
    unit: str
    panel: str
    population: str
    value: float | Missing
    interval: Interval | Missing
    rows: int
    clusters: int
    details: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The figure as SUMMARY.json and receipts hold it."""
        document: dict[str, Any] = plain(self)
        return document


@dataclass(frozen=True, slots=True)
class Check:
    """The outcome of one check that a reader should see, with its evidence. `refuses` marks what must hold."""

    name: str
    passed: bool
    explanation: str
    evidence: dict[str, Any] = field(default_factory=dict)


def plain(value: Any) -> Any:
    """`value` as plain JSON types: records become objects, Missing becomes {"missing": reason}, numpy scalars Python's."""
    if isinstance(value, Missing | ArmKey):
        return value.as_json() if isinstance(value, Missing) else str(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
    return value
