"""`engcmp trace FIGURE`: from a published figure to the frozen hash, receipt by receipt."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from engcmp_assets.kernel.chain import chain_below
from engcmp_assets.kernel.measures import MEASURES
from engcmp_assets.kernel.names import CELLS, REPLY_CHECKS, REPLY_PANEL, SPEED
from engcmp_assets.kernel.plots import format_number
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.work import sound_file, sound_receipt
from engcmp_resources.errors import EngcmpError
from engcmp_resources.store import Store

_OUTPUTS_SHOWN = 4

# What a figure is counted from, and what of it is independent, where it is not of rows.
_COUNTED = {SPEED: ("requests", "batches"), REPLY_PANEL: ("replies", "prompts")}


@dataclass(frozen=True, slots=True)
class Link:
    """One receipt of a figure's chain, `depth` steps below it."""

    depth: int
    artifact: str
    arm: str | None
    receipt_sha256: str
    content_id: str
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the UI that leads from the published figure to the frozen protocol: its path, and what it takes to get there."""

    path: str
    how: str


@dataclass(frozen=True, slots=True)
class Trace:
    """A figure, the receipts below it in the order of the chain, the frozen hash in which it ends, and the same way in the UI."""

    figure: Mapping[str, Any]
    links: tuple[Link, ...]
    frozen_sha256: str
    pages: tuple[Page, ...]


def figures_of(store: Store, study: Study) -> dict[str, tuple[Mapping[str, Any], str]]:
    """Every figure of the study's current receipts by id, with the hash of the receipt that made it."""
    found: dict[str, tuple[Mapping[str, Any], str]] = {}
    name = study.folder.name
    places: list[tuple[str | None, str]] = [
        (arm.folder, artifact) for artifact in ("summaries", CELLS, REPLY_CHECKS) for arm in study.protocol.arm_keys
    ]
    for folder, artifact in [*places, (None, "comparisons")]:
        sha256 = store.head(name, folder, artifact)
        if sha256 is None:
            continue
        for figure in sound_receipt(store, sha256)["figures"]:
            found[figure["figure_id"]] = (figure, sha256)
    return found


def trace(store: Store, study: Study, figure_id: str) -> Trace:
    """The chain of one figure. Raises EngcmpError with the closest ids for one that does not exist, and for a file of the chain that was
    changed.

    The receipt of the comparisons names the inputs of all pairs, since one receipt holds them all. A pair is made from its own
    two arms alone (`compare_pair` reads no other), so only their receipts and those of the study are listed. That leaves no gap:
    each receipt listed is named by its hash in the one above it, and `engcmp verify` follows every other one too.
    """
    figures = figures_of(store, study)
    if figure_id not in figures:
        close = difflib.get_close_matches(figure_id, figures, n=3, cutoff=0.3)
        hint = f"did you mean {', '.join(close)}? " if close else ""
        raise EngcmpError(
            f"no figure {figure_id!r} among {len(figures)}", where=str(store.home),
            remedy=f"{hint}`engcmp trace --list {study.folder.name}` lists all",
        )  # fmt: skip
    figure, sha256 = figures[figure_id]
    receipt = sound_receipt(store, sha256)
    arms = _arms_of_pair(store, receipt, figure_id) if receipt["artifact"] == "comparisons" else (receipt["arm"],)
    return Trace(
        figure, tuple(_links(store, sha256, arms)), str(receipt["frozen_sha256"]),
        tuple(_pages(study.protocol.asset_prefix, receipt)),
    )  # fmt: skip


def trace_text(store: Store, found: Trace) -> str:
    """The trace for a terminal."""
    figure, measure = found.figure, MEASURES.get(found.figure["measure"])
    defined = "this engcmp does not know the measure" if measure is None else measure.definition
    value, ends = figure["value"], figure["interval"]
    number = (
        f"not measured: {value['missing']}" if isinstance(value, dict) else f"{format_number(value)} {figure['unit']}"
    )
    between = (
        ends.get("missing")
        or f"{ends['level']:.0%} interval {format_number(ends['low'])} to {format_number(ends['high'])}, {ends['method']}"
    )
    each, groups = _COUNTED.get(figure["panel"], ("rows", "documents"))
    of = f"{figure['rows']} {each}, {figure['clusters']} {groups}"
    lines = [
        figure["figure_id"],
        f"  {number}, {between}",
        f"  {of}; {figure['measure']} version {figure['measure_version']}: {defined}",
        "",
    ]
    for link in found.links:
        indent = "  " * (link.depth + 1)
        lines.append(f"{indent}{link.artifact} of {link.arm or 'the study'}")
        lines.append(f"{indent}  receipt {store.receipt_path(link.receipt_sha256).relative_to(store.home)}")
        lines += [f"{indent}  {text}" for text in link.outputs]
    lines += ["", "the same in the UI (`engcmp ui`), in two clicks:"]
    for page in found.pages:
        lines += [f"  {page.how}", f"    {page.path}"]
    return "\n".join([*lines, "", f"frozen hash {found.frozen_sha256}"])


def _pages(prefix: str, receipt: Mapping[str, Any]) -> Iterator[Page]:
    """The chain of the publication links to every receipt below it: the figure's own, and the frozen protocol."""
    owner = f"{receipt['artifact']} of {receipt['arm'] or 'the study'}"
    yield Page(
        _path(prefix, "publication", None), "the page of what is published; click 1: `chain` of its latest event"
    )
    yield Page(
        _path(prefix, receipt["artifact"], receipt["arm"]), f"click 2, {owner}: the figure beside its receipt; or"
    )
    yield Page(_path(prefix, "frozen_protocol", None), "click 2, frozen_protocol: the frozen hash")


def _path(prefix: str, artifact: str, arm: str | None) -> str:
    """As the chain of an event links to it."""
    view = f"view=partitions&partition={quote(arm, safe='')}" if arm else "view=events"
    return f"/assets/{prefix}/{artifact}?{view}"


def _arms_of_pair(store: Store, receipt: Mapping[str, Any], figure_id: str) -> tuple[str, ...]:
    """The two arms of the pair that a figure of the comparisons is of, as comparisons.json has it."""
    pairs = json.loads(sound_file(store, receipt, "comparisons.json").read_bytes())["pairs"]
    parts = ("speed", "replies", "gap")
    owned = [
        (one, [*one["figures"], *(own for part in parts for own in one.get(part, {}).get("figures", ()))])
        for one in pairs
    ]
    pair = next(one for one, figures in owned if any(figure["figure_id"] == figure_id for figure in figures))
    of_gap = (pair["gap"]["baseline"],) if figure_id.endswith("/gap_closed") else ()
    return pair["candidate"], pair["baseline"], *of_gap


def _links(store: Store, sha256: str, arms: Collection[str | None]) -> Iterator[Link]:
    for one in chain_below(sha256, arms, lambda name: sound_receipt(store, name)):
        own = one.receipt
        yield Link(one.depth, own["artifact"], own["arm"], one.sha256, own["content_id"], tuple(_shown(store, own)))


def _shown(store: Store, receipt: Mapping[str, Any]) -> Iterator[str]:
    outputs = [output for output in receipt["outputs"] if output["role"] == "data"]
    for output in outputs[:_OUTPUTS_SHOWN]:
        path = sound_file(store, receipt, output["name"], trust_index=True)
        yield f"{output['name']}: {path.relative_to(store.home)}"
    if len(outputs) > _OUTPUTS_SHOWN:
        yield f"and {len(outputs) - _OUTPUTS_SHOWN} more outputs"
