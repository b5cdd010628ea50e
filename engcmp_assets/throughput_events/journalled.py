"""A measurement of speed as its journal knows it: what was asked for, which starts there were, and which repeats are whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engcmp_assets.captured_rows.journalled import KILLED
from engcmp_assets.engine_launch.serving import ServingSpec, plan_of, serving_spec
from engcmp_assets.engine_launch.serving import step as launch_step
from engcmp_assets.kernel.names import EVENTS, LOAD_PLAN, PROMPTS
from engcmp_assets.kernel.receipts import part_id
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.throughput_tables import ThroughputPlan
from engcmp_assets.kernel.work import Done, Session, Work, output_blob, prepare
from engcmp_assets.throughput_events.plan import Index, Texts, parse_index, texts_by_kind
from engcmp_assets.throughput_events.step import EVENTS_VERSION
from engcmp_resources.canonical import sha256_of
from engcmp_resources.errors import EngcmpError
from engcmp_resources.journal import Journal


@dataclass(frozen=True)
class Speed:
    """An arm's speed in progress: each repeat has a folder, in which its finished cells are."""

    work: Work
    spec: ServingSpec
    index: Index
    texts: Texts
    journal: Journal
    scratch: str

    @property
    def plan(self) -> ThroughputPlan:
        return plan_of(self.work.study)

    def folder(self, repeat: int) -> Path:
        """Where the cells of a repeat are kept."""
        return self.journal.path.with_name(f"repeat-{repeat}")

    def starts(self) -> list[dict[str, Any]]:
        """The starts, each with what was seen of the GPUs before it and after its end, and why it is void, if it is."""
        ends, voids = self._by_start("end"), self._by_start("void")
        return [
            entry
            | {"gpus_after": ends.get(entry["start"], {}).get("gpus_after", KILLED)}
            | ({"void": voids[entry["start"]]["reasons"]} if entry["start"] in voids else {})
            for entry in self.journal.entries
            if entry["kind"] == "start"
        ]

    def _by_start(self, kind: str) -> dict[int, dict[str, Any]]:
        return {entry["start"]: entry for entry in self.journal.entries if entry["kind"] == kind}

    def add_start(self, start: int, repeat: int, facts: Mapping[str, Any], gpus_before: Mapping[str, Any]) -> None:
        self.journal.append(
            {
                "kind": "start", "start": start, "launch": repeat, "path": "serving", "facts": dict(facts),
                "gpus_before": dict(gpus_before),
            }
        )  # fmt: skip

    def add_end(self, start: int, gpus_after: Mapping[str, Any]) -> None:
        self.journal.append({"kind": "end", "start": start, "gpus_after": dict(gpus_after)})

    def add_void(self, start: int, reasons: Sequence[str]) -> None:
        """What the start measured does not count: its cells are missing from now on."""
        self.journal.append({"kind": "void", "start": start, "reasons": list(reasons)})

    def add_repeat(self, repeat: int, began_at_s: float, ended_at_s: float) -> None:
        """A repeat is whole; `ended_at_s` is what the least time to the next one is counted from. Seconds of the wall clock."""
        self.journal.append({"kind": "repeat", "repeat": repeat, "began_at_s": began_at_s, "ended_at_s": ended_at_s})

    def whole(self) -> dict[int, dict[str, Any]]:
        """The repeats that are measured whole, by number."""
        return {
            entry["repeat"]: entry
            for entry in self.journal.entries
            if entry["kind"] == "repeat" and (self.folder(entry["repeat"]) / "cells.json").is_file()
        }

    def missing(self) -> list[int]:
        """The repeats that are not measured whole, in order."""
        whole = self.whole()
        return [repeat for repeat in range(1, self.plan.repeats + 1) if repeat not in whole]

    def drop_void(self) -> None:
        """Remove the cells of void starts: they are measured again."""
        void = {start["start"] for start in self.starts() if "void" in start}
        for repeat in range(1, self.plan.repeats + 1):
            record = self.folder(repeat) / "run.json"
            if not void or not record.is_file():
                continue
            sessions = json.loads(record.read_bytes())["sessions"]
            for part in (self.folder(repeat) / "parts").glob("*"):
                cell = json.loads((part / "cell.json").read_bytes())
                if sessions[cell["session"]]["start"] in void:
                    shutil.rmtree(part)
                    (self.folder(repeat) / "cells.json").unlink(missing_ok=True)


def open_speed(session: Session, arm: ArmKey, *, remeasure: bool) -> Speed:
    """Open the journal of this measurement: keyed by what is asked for, and by how often it was measured before.

    Raises EngcmpError where the prompt set was not made yet.
    """
    work = prepare(session, launch_step(session.study), arm, remeasure=remeasure)
    prompts = session.sound("prompt_set", arm)
    if prompts is None:
        raise EngcmpError(f"{arm} has no prompt set yet", remedy="materialize prompt_set first")
    spec = serving_spec(work)
    earlier = session.current(EVENTS, arm)
    again = earlier.receipt["measurement"] if remeasure and earlier else 0
    asked = [
        spec.as_json(), dict(work.step.parameters(session.study, arm)), part_id(prompts.receipt, (LOAD_PLAN, PROMPTS)), EVENTS_VERSION,
        again,
    ]  # fmt: skip
    scratch = f"capture-speed-{sha256_of(asked)[:24]}"
    index, texts = frozen_prompts(session, prompts)
    return Speed(work, spec, index, texts, Journal(session.store.scratch(scratch) / "journal.jsonl"), scratch)


def frozen_prompts(session: Session, prompts: Done) -> tuple[Index, Texts]:
    """The frozen index, and the texts that its prompts are made of."""
    found = {}
    for name in (LOAD_PLAN, PROMPTS):
        blob = output_blob(prompts.receipt, name)
        path = session.store.path(blob)
        if not session.store.holds(blob):
            raise EngcmpError(
                f"{name} is missing or was changed after it was written",
                where=str(path),
                remedy="materialize prompt_set again",
            )
        found[name] = path.read_bytes()
    return parse_index(found[LOAD_PLAN], where=LOAD_PLAN), texts_by_kind(found[PROMPTS])
