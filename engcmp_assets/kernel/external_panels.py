"""Panels whose windows and reference rows come from a published data set: declared as data, read by a layout of rows that is known.

`[panels.NAME.external]` names the source and says how its files are named and what they must hold. Nothing is made of texts of the study;
`windows_of` gives the files of each window, and `refuse_other_panel` holds what was read against the plan.
"""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from engcmp_assets.kernel.fields import Name, Strict
from engcmp_assets.kernel.records import Panel, Role, Window
from engcmp_resources.errors import EngcmpError

Layout = Literal["teacher", "topk", "tokens"]
"""How rows lie in files: a teacher's (`logits` and a token array), top-K rows with their rest, or tokens alone (no reference)."""
_Count = Annotated[int, Field(ge=1)]
_BLOCK = "teacher"  # published teacher sets name no content kind of a window


class ExternalPanel(Strict):
    """The table `external` of a panel.

    `windows` and `rows` are how many there must be, `rows_by_role` and `rows_by_bucket` how they fall, where that is stated. `rows_file`
    and `tokens_file` are paths within the source with `{window}` and, where `window` is a pattern with a group, `{number}` for that
    group. `windows_file` is a file of a fidelity set (see engcmp_resources.fidelity_set) that has tokens, roles, block and bucket of each
    window, where its rows are top-K. `drawn_from` says whose texts they are: what a reader must know of a panel. `scored` says which rows.
    `temperature` is that at which generated texts were drawn, where it is stated: at 0 the NLL of their rows rewards sharpness.
    """

    source: str
    layout: Layout
    window: str
    rows_file: str | None = None
    tokens_file: str | None = None
    windows_file: str | None = None
    windows: _Count
    tokens_per_window: _Count | None = None
    rows: _Count | None = None
    rows_by_role: dict[Role, Annotated[int, Field(ge=0)]] = Field(default_factory=dict)
    rows_by_bucket: dict[str, Annotated[int, Field(ge=0)]] = Field(default_factory=dict)
    windows_by_block: dict[str, _Count] = Field(default_factory=dict)
    clusters: _Count
    cluster: Literal["window", "document"]
    vocab: _Count
    scored: str = Field(min_length=1)
    drawn_from: str = Field(min_length=1)
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None

    @model_validator(mode="after")
    def _holds_together(self) -> ExternalPanel:
        try:
            groups = re.compile(self.window).groups
        except re.error as error:
            raise ValueError(f"window is no regular expression: {error}") from error
        for field in ("rows_file", "tokens_file"):
            pattern = getattr(self, field)
            if pattern is not None and "{window}" not in pattern and not (groups == 1 and "{number}" in pattern):
                raise ValueError(
                    f"{field} {pattern!r} names no window: write {{window}}, or {{number}} and one group in window"
                )
        if self.layout == "teacher" and (self.rows_file is None or self.tokens_file is None):
            raise ValueError("layout teacher needs rows_file and tokens_file")
        if self.windows_file is not None and (self.tokens_file or self.rows_file is None):
            raise ValueError("windows_file stands with rows_file, and without tokens_file")
        if self.layout == "topk" and self.tokens_file is not None:
            raise ValueError("tokens of layout topk are those of windows_file")
        for field in ("rows_by_role", "rows_by_bucket"):
            if (counts := getattr(self, field)) and self.rows is not None and sum(counts.values()) > self.rows:
                raise ValueError(f"{field} has {sum(counts.values())} rows, more than rows, {self.rows}")
        if self.windows_by_block and sum(self.windows_by_block.values()) != self.windows:
            raise ValueError(
                f"windows_by_block has {sum(self.windows_by_block.values())} windows, windows says {self.windows}"
            )
        return self


@dataclass(frozen=True, slots=True)
class WindowFiles:
    """The files of one window within its source; None for what its layout does not have."""

    window_id: str
    rows: str | None
    tokens: str | None


def windows_of(plan: ExternalPanel, paths: Iterable[str], *, panel: Name) -> tuple[WindowFiles, ...]:
    """The windows that `paths` (all files of the source, with /) hold, by id, with the files of each.

    Raises EngcmpError naming panel and window for a window that lacks a file, and for another number of windows than the plan's.
    """
    there = set(paths)
    pattern = plan.tokens_file or plan.rows_file
    if pattern is None:
        raise EngcmpError(f"panel {panel} names no files", where=f"source {plan.source}", remedy="write tokens_file")
    any_window = (
        re.escape(pattern)
        .replace(r"\{window\}", f"(?P<window>{plan.window})")
        .replace(r"\{number\}", "(?P<number>[0-9]+)")
    )
    found = []
    for path in sorted(there):
        match = re.fullmatch(any_window, path)
        name = match.groupdict().get("window") if match else None
        if name is None:
            continue
        number = re.fullmatch(plan.window, name)
        words = {"window": name, "number": number[1] if number and number.re.groups else ""}
        files = WindowFiles(
            name, *(None if one is None else one.format(**words) for one in (plan.rows_file, plan.tokens_file))
        )
        for lacking in (one for one in (files.rows, files.tokens) if one is not None and one not in there):
            raise EngcmpError(
                f"panel {panel}, window {name}: file {lacking} is missing",
                where=f"source {plan.source}",
                remedy="fetch it too",
            )
        found.append(files)
    if len(found) != plan.windows:
        raise EngcmpError(
            f"panel {panel}: {len(found)} windows are there, the protocol says {plan.windows}", where=f"source {plan.source}",
            remedy="fetch the whole source at its revision",
        )  # fmt: skip
    return tuple(found)


def wanted_paths(plan: ExternalPanel, include: Iterable[str], paths: Iterable[str]) -> tuple[str, ...]:
    """Of a source's `paths` those that `include` (fnmatch patterns; none means all) takes, sorted."""
    patterns = tuple(include)
    return tuple(
        sorted(path for path in paths if not patterns or any(fnmatch.fnmatchcase(path, one) for one in patterns))
    )


def refuse_other_panel(panel: Panel, plan: ExternalPanel) -> None:
    """Raise EngcmpError naming what differs: vocabulary, windows, rows, roles, buckets, blocks or clusters of `panel` and its plan."""
    rows = [(window, role) for window in panel.windows for role in window.roles]
    roles = Counter(role for _, role in rows)
    buckets = Counter(window.bucket for window, _ in rows)
    blocks = Counter(window.block for window in panel.windows)
    facts: list[tuple[str, int | None, int | None]] = [
        ("vocabulary", panel.vocab, plan.vocab),
        ("windows", len(panel.windows), plan.windows),
        ("rows", panel.rows, plan.rows),
        ("clusters", len({window.cluster for window in panel.windows}), plan.clusters),
        *((f"rows of role {role}", roles[role], count) for role, count in plan.rows_by_role.items()),
        *((f"rows of bucket {name}", buckets[name], count) for name, count in plan.rows_by_bucket.items()),
        *((f"windows of block {name}", blocks[name], count) for name, count in plan.windows_by_block.items()),
        *((f"tokens of window {window.window_id}", len(window.tokens), plan.tokens_per_window) for window in panel.windows),
    ]  # fmt: skip
    for what, found, wanted in facts:
        if wanted is not None and found != wanted:
            raise EngcmpError(
                f"panel {panel.panel}: {what}: {found:,}, the protocol says {wanted:,}", where=f"source {plan.source}",
                remedy="fetch the source at its revision; it is another panel than the declared one",
            )  # fmt: skip


def teacher_panel(plan: ExternalPanel, tokens: Mapping[str, Sequence[int]], *, panel: str) -> dict[str, Any]:
    """The panel file of windows of which a teacher has every row: `tokens` by window id; row r of each, 0 to n - 2, is kept.

    What `engcmp score --panel` reads. Raises EngcmpError as `refuse_other_panel`, for windows that are not the declared ones.
    """
    every: Role = "context"
    windows = tuple(
        Window(
            window_id=name, tokens=tuple(ids), positions=tuple(range(len(ids) - 1)), roles=(every,) * (len(ids) - 1), cluster=name,
            block=_BLOCK, bucket=f"upto{len(ids)}",
        )
        for name, ids in sorted(tokens.items())
    )  # fmt: skip
    refuse_other_panel(Panel(panel, plan.vocab, "full", windows), plan)
    entries = [
        {
            "window_id": one.window_id, "tokens": list(one.tokens), "tokens_sha256": one.tokens_sha256, "positions": list(one.positions),
            "roles": list(one.roles), "cluster": one.cluster, "block": one.block, "bucket": one.bucket,
        }
        for one in windows
    ]  # fmt: skip
    return {"panel": panel, "vocab": plan.vocab, "reference": "full", "windows": entries}
