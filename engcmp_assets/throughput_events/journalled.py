"""A measurement of speed as its journal knows it: what was asked for, which starts there were, and which repeats are whole."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engcmp_assets.captured_rows.journalled import ABOUT
from engcmp_assets.engine_launch.journalled import ServingStarts
from engcmp_assets.engine_launch.serving import ServingSpec, plan_of, serving_spec
from engcmp_assets.engine_launch.serving import step as launch_step
from engcmp_assets.kernel.names import EVENTS, LOAD_PLAN, PROMPTS
from engcmp_assets.kernel.receipts import part_id
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.startup_tables import StartupPlan
from engcmp_assets.kernel.throughput_tables import ThroughputPlan
from engcmp_assets.kernel.work import Done, Session, Work, output_blob, prepare
from engcmp_assets.throughput_events.plan import Index, Texts, parse_index, texts_by_kind
from engcmp_assets.throughput_events.startup import DOCUMENT
from engcmp_assets.throughput_events.step import EVENTS_VERSION
from engcmp_resources.canonical import canonical_bytes, sha256_of
from engcmp_resources.disk import replace_visible
from engcmp_resources.errors import EngcmpError
from engcmp_resources.host import boot_clock
from engcmp_resources.journal import Journal

SCRATCH = "capture-speed-"
"""How the scratch folders of unfinished measurements of speed begin."""


@dataclass(frozen=True)
class Speed(ServingStarts):
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

    @property
    def startup(self) -> StartupPlan | None:
        return self.work.study.protocol.startup

    @property
    def startup_folder(self) -> Path:
        """Where what was measured of the start-up is kept; whole once its document is there."""
        return self.journal.path.with_name("startup")

    def lacks_startup(self) -> bool:
        """Whether the start-up is declared and not measured whole."""
        return self.startup is not None and not (self.startup_folder / DOCUMENT).is_file()

    def folder(self, repeat: int) -> Path:
        """Where the cells of a repeat are kept."""
        return self.journal.path.with_name(f"repeat-{repeat}")

    def now_s(self) -> float:
        """Seconds of the wall clock as it went at the first repeat: what sets it since then moves nothing, unless the machine restarts."""
        boot, since_s = boot_clock()
        for entry in reversed(self.journal.entries):
            if entry["kind"] == "repeat" and boot and entry.get("boot") == boot:
                return float(entry["ended_at_s"]) + since_s - float(entry["since_boot_s"])
        return time.time()

    def add_repeat(self, repeat: int, began_at_s: float, seconds: float) -> None:
        """A repeat that began at `began_at_s` of `now_s` and took so long is whole; the least time to the next counts from its end."""
        boot, since_s = boot_clock()
        entry = {"kind": "repeat", "repeat": repeat, "began_at_s": began_at_s, "ended_at_s": began_at_s + seconds}
        self.journal.append(entry | {"boot": boot, "since_boot_s": since_s})

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
        document = self.startup_folder / DOCUMENT
        if document.is_file() and void & {one["start"] for one in json.loads(document.read_bytes())["starts"]}:
            shutil.rmtree(self.startup_folder)
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
    work, prompts, spec, scratch = _asked(session, arm, remeasure=remeasure)
    index, texts = frozen_prompts(session, prompts)
    folder = session.store.scratch(scratch)
    replace_visible(folder / ABOUT, canonical_bytes({"study": session.study.protocol.study, "arm": str(arm)}))
    return Speed(work, spec, index, texts, Journal(folder / "journal.jsonl"), scratch)


def speed_names(session: Session, arm: ArmKey) -> set[str]:
    """The scratch folders in which a run of `arm` would go on, as `capture_names`; none where the study measures no speed."""
    if session.study.protocol.throughput is None:
        return set()
    return {_asked(session, arm, remeasure=again)[-1] for again in (False, True)}


def finished_parts(folder: Path) -> int:
    """How many finished cells, and whole start-ups, an unfinished measurement of speed holds."""
    cells = sum(1 for part in folder.glob("repeat-*/parts/*") if part.is_dir() and not part.name.startswith("."))
    return cells + (folder / "startup" / DOCUMENT).is_file()


def _asked(session: Session, arm: ArmKey, *, remeasure: bool) -> tuple[Work, Done, ServingSpec, str]:
    """What a measurement is of, and the name of its scratch folder, which follows from that."""
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
    return work, prompts, spec, f"{SCRATCH}{sha256_of(asked)[:24]}"


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
