"""`engcmp trace FIGURE`: from a published figure to the frozen hash, receipt by receipt."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from engcmp_assets.kernel.measures import MEASURES
from engcmp_assets.kernel.plots import format_number
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.work import sound_receipt
from engcmp_resources.errors import EngcmpError
from engcmp_resources.store import Blob, Store

_OUTPUTS_SHOWN = 4


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
class Trace:
    """A figure, the receipts below it in the order of the chain, and the frozen hash in which it ends."""

    figure: Mapping[str, Any]
    links: tuple[Link, ...]
    frozen_sha256: str


def figures_of(store: Store, study: Study) -> dict[str, tuple[Mapping[str, Any], str]]:
    """Every figure of the study's current receipts by id, with the hash of the receipt that made it."""
    found: dict[str, tuple[Mapping[str, Any], str]] = {}
    name = study.folder.name
    places: list[tuple[str | None, str]] = [(arm.folder, "summaries") for arm in study.protocol.arm_keys]
    for folder, artifact in [*places, (None, "comparisons")]:
        sha256 = store.head(name, folder, artifact)
        if sha256 is None:
            continue
        for figure in sound_receipt(store, sha256)["figures"]:
            found[figure["figure_id"]] = (figure, sha256)
    return found


def trace(store: Store, study: Study, figure_id: str) -> Trace:
    """The chain of one figure. Raises EngcmpError with the closest ids for one that does not exist."""
    figures = figures_of(store, study)
    if figure_id not in figures:
        close = difflib.get_close_matches(figure_id, figures, n=3, cutoff=0.3)
        hint = f"did you mean {', '.join(close)}? " if close else ""
        raise EngcmpError(
            f"no figure {figure_id!r} among {len(figures)}", where=str(store.home),
            remedy=f"{hint}`engcmp trace --list {study.folder.name}` lists all",
        )  # fmt: skip
    figure, sha256 = figures[figure_id]
    return Trace(figure, tuple(_links(store, sha256)), str(sound_receipt(store, sha256)["frozen_sha256"]))


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
    lines = [
        figure["figure_id"],
        f"  {number}, {between}",
        f"  {figure['rows']} rows, {figure['clusters']} documents; {figure['measure']} version {figure['measure_version']}: {defined}",
        "",
    ]
    for link in found.links:
        indent = "  " * (link.depth + 1)
        lines.append(f"{indent}{link.artifact} of {link.arm or 'the study'}")
        lines.append(f"{indent}  receipt {store.receipt_path(link.receipt_sha256).relative_to(store.home)}")
        lines += [f"{indent}  {text}" for text in link.outputs]
    return "\n".join([*lines, "", f"frozen hash {found.frozen_sha256}"])


def _links(store: Store, sha256: str) -> Iterator[Link]:
    """The receipts below one, each once, an input's own inputs before the next input."""
    stack, seen = [(sha256, 0)], set()
    while stack:
        sha256, depth = stack.pop()
        if sha256 in seen:
            continue
        seen.add(sha256)
        receipt = sound_receipt(store, sha256)
        yield Link(
            depth, receipt["artifact"], receipt["arm"], sha256, receipt["content_id"], tuple(_shown(store, receipt))
        )
        # The last that is put is the first that is taken, and the nearest inputs stand last in a receipt.
        stack += [(item["receipt_sha256"], depth + 1) for item in receipt["inputs"]]


def _shown(store: Store, receipt: Mapping[str, Any]) -> Iterator[str]:
    outputs = [output for output in receipt["outputs"] if output["role"] == "data"]
    for output in outputs[:_OUTPUTS_SHOWN]:
        path = store.path(Blob(output["sha256"], output["bytes"], output["suffix"]))
        yield f"{output['name']}: {path.relative_to(store.home)}"
    if len(outputs) > _OUTPUTS_SHOWN:
        yield f"and {len(outputs) - _OUTPUTS_SHOWN} more outputs"
