"""What the sources of a plan's arms take on disk: how much of them is here, and how much is still to be fetched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from engcmp_assets.kernel.protocol import PROTOCOL_FILE
from engcmp_assets.kernel.protocol_parts import read_parts
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.source_tables import WheelSource
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.study_sources import SOURCES_FILE, StudySource, parse_sources
from engcmp_assets.kernel.study_tables import PublishedCheckpoint
from engcmp_assets.sources.published import wanted_of
from engcmp_resources.places import home_folder
from engcmp_resources.store import Store

_GIGA, _LEAST_SHOWN = 1_000_000_000, 1_000_000


def sources_document(study: Study, store: Store, arms: Sequence[ArmKey]) -> dict[str, Any]:
    """Bytes of the sources that `arms` need: `here_bytes` on disk, `missing_bytes` {known, unknown: why}, and how many there are."""
    listed = _listed(study)
    here, missing, unknown = 0, 0, dict[str, None]()
    names = list(dict.fromkeys(name for arm in arms for name in needed_sources(study, arm)))
    for name in names:
        wheel = study.protocol.sources.get(name)
        if isinstance(wheel, WheelSource):
            pins = {(pin.member_sha256, pin.member.rsplit(".", 1)[-1]) for pin in wheel.wheels.values()}
            found = [blob for sha256, suffix in pins if (blob := store.find(sha256, suffix))]
            here += sum(blob.bytes for blob in found)
            if not found:
                unknown[f"{name}: the protocol states no size of a wheel"] = None
            continue
        entry = listed.get(name)
        if entry is None:
            unknown[f"{name}: the protocol states no size"] = None
            continue
        folder = wanted_of(entry).folder if entry.pinned else entry.id
        on_disk = _on_disk(home_folder() / "fetched" / study.folder.name / folder)
        stated = entry.bytes if isinstance(entry.bytes, int) else entry.about_bytes
        here += on_disk
        if stated is None:
            unknown[f"{entry.id}: its size is not stated"] = None
        else:
            missing += max(0, stated - on_disk)
    return {
        "sources": len(names), "here_bytes": here, "missing_bytes": {"known": missing, "unknown": list(unknown)},
        "says": "a published size, where a document states one; engcmp fetch --dry-run asks each place for the exact one",
    }  # fmt: skip


def needed_sources(study: Study, arm: ArmKey) -> Iterator[str]:
    """The names of the sources of which something is fetched for an arm: its engine, checkpoint, reference and panels."""
    protocol = study.protocol
    yield from protocol.roles_of(arm).values()
    checkpoint = protocol.checkpoint_of(arm)
    if isinstance(checkpoint, PublishedCheckpoint):
        yield checkpoint.published
    else:
        yield protocol.reference.weights
    for plan in protocol.panels.values():
        if plan.external is not None:
            yield plan.external.source
    if protocol.prompt_set.tokenizer is not None:
        yield protocol.prompt_set.tokenizer


def sources_line(document: dict[str, Any]) -> str:
    """The same in words; reasons that are many are counted."""
    missing = document["missing_bytes"]
    unknown = missing["unknown"]
    words = (
        f"{document['sources']}, {size_text(document['here_bytes'])} here, {size_text(missing['known'])} more to fetch"
    )
    if not unknown:
        return words
    more = "; ".join(unknown) if len(unknown) <= 2 else f"{len(unknown)} of them state no size"  # noqa: PLR2004 - what fits a line
    return f"{words}, and an unknown rest ({more})"


def size_text(value: int) -> str:
    """Bytes for a reader."""
    unit, name = (1e9, "GB") if value >= _GIGA else (1e6, "MB")
    return f"{value / unit:,.1f} {name}" if value >= _LEAST_SHOWN else f"{value:,} bytes"


def _listed(study: Study) -> dict[str, StudySource]:
    """The entries of SOURCES.json by the names that the protocol has for them."""
    data = study.files.get(SOURCES_FILE)
    if data is None:
        return {}
    entries = {one.id: one for one in parse_sources(data, where=str(study.folder / SOURCES_FILE)).sources}
    raw = read_parts(study.files[PROTOCOL_FILE], study.files, where=str(study.folder))
    named = {name: str(table["listed"]) for name, table in raw["sources"].items() if "listed" in table}
    return {name: entries[text] for name, text in named.items() if text in entries}


def _on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else 0
