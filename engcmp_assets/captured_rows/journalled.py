"""A capture as its journal knows it: what was asked for, which starts there were, and which windows are in the store."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engcmp_assets.captured_rows.step import CAPTURE_VERSION
from engcmp_assets.engine_launch.journalled import JournalledStarts
from engcmp_assets.engine_launch.step import launch_spec
from engcmp_assets.engine_launch.step import step as launch_step
from engcmp_assets.kernel.fields import ScorePath
from engcmp_assets.kernel.names import captured_rows
from engcmp_assets.kernel.panels import Pass, passes
from engcmp_assets.kernel.planning import row_bytes
from engcmp_assets.kernel.protocol import Protocol
from engcmp_assets.kernel.receipts import part_id
from engcmp_assets.kernel.records import ArmKey, Panel
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.work import Done, Session, Work, prepare
from engcmp_resources.canonical import canonical_bytes, sha256_of
from engcmp_resources.disk import replace_visible
from engcmp_resources.engines.base import LaunchSpec
from engcmp_resources.engines.servers import ServerSpec
from engcmp_resources.errors import EngcmpError
from engcmp_resources.journal import Journal
from engcmp_resources.store import Blob

_FLOAT32_BYTES = 4
ABOUT = "about.json"
"""The file of a capture's scratch folder that says of which study and arm it is."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch that is asked for: its number, score path, repeats, and the panels it serves."""

    number: int
    path: ScorePath
    repeats: int
    panels: tuple[str, ...]


@dataclass(frozen=True)
class Capture(JournalledStarts):
    """An arm's capture in progress, which began at `began_at` (ISO 8601), whatever interrupted it since.

    `reference` is the receipt of the reference rows at whose ids top-K panels are kept.
    """

    work: Work
    panels: tuple[Panel, ...]
    launches: tuple[Launch, ...]
    spec: LaunchSpec | ServerSpec
    reference: Done
    texts: Mapping[str, tuple[str, tuple[int, ...]]]
    journal: Journal
    scratch: str
    began_at: str

    def windows(self) -> list[dict[str, Any]]:
        """The windows of each launch, as they were taken last: one whose files were lost, or whose start is void, is taken again."""
        void = self._by_start("void")
        found = {
            (entry["launch"], entry["window"]): entry
            for entry in self.journal.entries
            if entry["kind"] == "window" and entry["start"] not in void
        }
        return list(found.values())

    def panels_of(self, launch: Launch) -> list[Panel]:
        return [panel for panel in self.panels if panel.panel in launch.panels]

    def missing(self, launch: Launch) -> list[Pass]:
        """The windows that a launch still lacks: not journalled, or their files are gone from the store or changed there."""
        done = {entry["window"] for entry in self.windows() if entry["launch"] == launch.number and self._stored(entry)}
        return [one for one in passes(self.panels_of(launch)) if one.window_id not in done]

    def add_start(self, start: int, launch: Launch, facts: Mapping[str, Any], gpus_before: Mapping[str, Any]) -> None:
        self.journal_start(start, launch.number, launch.path, facts, gpus_before)

    def add_window(self, launch: Launch, start: int, one: Pass, repeats: Sequence[Mapping[str, Any]]) -> None:
        """Journal a window whose repeats are all in the store: the pair is whole, or it does not exist."""
        panels = [panel.panel for panel in self.panels_of(launch) if panel.panel in repeats[0]["files"]]
        self.journal.append(
            {
                "kind": "window", "path": launch.path, "launch": launch.number, "start": start, "window": one.window_id,
                "panels": panels, "repeats": [dict(taken) for taken in repeats],
            }
        )  # fmt: skip

    def rows_total(self) -> int:
        return sum(
            launch.repeats * len(one.positions) for launch in self.launches for one in passes(self.panels_of(launch))
        )

    def rows_done(self) -> int:
        return sum(len(taken["row_sha256"]) for entry in self.windows() for taken in entry["repeats"])

    def bytes_needed(self, launch: Launch) -> int:
        """What a launch may still have to keep: its missing windows, every repeat with other rows, and the raw rows of one window."""
        missing = {one.window_id: one for one in self.missing(launch)}
        kept = sum(
            len(window.positions) * row_bytes(panel)
            for panel in self.panels_of(launch)
            for window in panel.windows
            if window.window_id in missing
        )
        widest = max((len(one.positions) for one in missing.values()), default=0)
        return kept * launch.repeats + widest * self.spec.vocab * _FLOAT32_BYTES

    def _stored(self, entry: Mapping[str, Any]) -> bool:
        store = self.work.store
        files = [file for taken in entry["repeats"] for file in taken["files"].values()]
        return all(store.holds(Blob(file["sha256"], file["bytes"], "safetensors")) for file in files)


def open_capture(session: Session, arm: ArmKey, *, remeasure: bool) -> Capture:
    """Open the journal of this capture: keyed by what is asked for, and by how often it was measured before.

    Raises EngcmpError where the reference rows were not made yet.
    """
    study = session.study
    work, spec, reference, scratch = _asked(session, arm, remeasure=remeasure)
    folder = session.store.scratch(scratch)
    began_at = _began_at(folder / ABOUT)
    replace_visible(
        folder / ABOUT, canonical_bytes({"study": study.protocol.study, "arm": str(arm), "began_at": began_at})
    )
    panels = tuple(study.panel(name) for name in study.protocol.panels)
    journal = Journal(folder / "journal.jsonl")
    return Capture(
        work, panels, launches_of(study.protocol), spec, reference, _texts(study, panels), journal, scratch, began_at
    )


def _began_at(about: Path) -> str:
    """When this capture was begun: now, or when the run that was interrupted has begun it."""
    try:
        return str(json.loads(about.read_bytes())["began_at"])
    except (OSError, ValueError, KeyError, TypeError):
        return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def capture_names(session: Session, arm: ArmKey) -> set[str]:
    """The scratch folders in which a run of `arm` would go on: one that answers from the store what it can, and one that measures again.

    Raises EngcmpError where an input of the capture was not made yet.
    """
    return {_asked(session, arm, remeasure=again)[-1] for again in (False, True)}


def _asked(session: Session, arm: ArmKey, *, remeasure: bool) -> tuple[Work, LaunchSpec | ServerSpec, Done, str]:
    """What a capture is of, and the name of its scratch folder, which follows from that."""
    study = session.study
    work = prepare(session, launch_step(study), arm, remeasure=remeasure)
    reference = session.current("reference_rows", arm)
    if reference is None:
        raise EngcmpError(f"{arm} has no reference rows yet", remedy="materialize reference_rows first")
    panels = tuple(study.panel(name) for name in study.protocol.panels)
    spec = launch_spec(work, panels[0])
    measured = [session.current(captured_rows(panel.panel), arm) for panel in panels]
    again = max((done.receipt["measurement"] for done in measured if done), default=0) if remeasure else 0
    rows = [[panel.panel, window.tokens_sha256, list(window.positions)] for panel in panels for window in panel.windows]
    plans = [plan.top_k if plan.keep == "rows" else [plan.top_k, plan.keep] for plan in study.protocol.panels.values()]
    asked = [
        spec.as_json(), rows, plans, study.protocol.capture.model_dump(), part_id(reference.receipt, None), CAPTURE_VERSION, again,
    ]  # fmt: skip
    return work, spec, reference, f"capture-{sha256_of(asked)[:24]}"


def launches_of(protocol: Protocol) -> tuple[Launch, ...]:
    """The launches that a protocol asks for: prefill first, then decode, numbered through."""
    asked = [(path, plan) for path, plan in protocol.capture.plans for _ in range(plan.launches)]
    return tuple(
        Launch(number, path, plan.repeats, tuple(plan.panels)) for number, (path, plan) in enumerate(asked, start=1)
    )


def _texts(study: Study, panels: Sequence[Panel]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Each window's text and frozen ids, for the proof that the engine reads it alike."""
    folder = study.protocol.prompt_set.texts
    return {
        one.window_id: (study.files[f"{folder}/{one.window_id}.txt"].decode("utf-8"), one.tokens)
        for one in passes(panels)
    }
