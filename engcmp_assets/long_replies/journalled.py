"""An arm's long replies as their journal knows them: what was asked for, which starts there were, and which replies are there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engcmp_assets.captured_rows.journalled import ABOUT
from engcmp_assets.engine_launch.journalled import ServingStarts
from engcmp_assets.engine_launch.serving import ServingSpec, serving_spec
from engcmp_assets.engine_launch.serving import step as launch_step
from engcmp_assets.kernel.names import REPLIES, REPLIES_PLAN
from engcmp_assets.kernel.receipts import part_id
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.reply_plan import Asked, AskedReply, parse_asked
from engcmp_assets.kernel.reply_records import ReplyRecord
from engcmp_assets.kernel.work import Done, Session, Work, output_blob, prepare
from engcmp_assets.long_replies.step import REPLIES_VERSION, refuse_other_scenarios
from engcmp_assets.long_replies.step import step as replies_step
from engcmp_resources.canonical import canonical_bytes, sha256_of
from engcmp_resources.disk import replace_visible
from engcmp_resources.errors import EngcmpError
from engcmp_resources.journal import Journal

SCRATCH = "replies-"
"""How the scratch folders of unfinished long replies begin."""


@dataclass(frozen=True)
class Replies(ServingStarts):
    """An arm's long replies in progress. What a void start made does not count."""

    work: Work
    spec: ServingSpec
    asked: Asked
    journal: Journal
    scratch: str

    def entries(self) -> dict[str, dict[str, Any]]:
        """The entry of each reply that is there, by its id: its `row`, and what it says of a `trace`."""
        void = {start["start"] for start in self.starts() if "void" in start}
        return {
            entry["row"]["reply_id"]: entry
            for entry in self.journal.entries
            if entry["kind"] == "reply" and entry["row"]["start"] not in void
        }

    def add_reply(self, record: ReplyRecord, trace: Mapping[str, Any]) -> None:
        """A reply that has ended; it counts from now on, whatever happens to the run."""
        self.journal.append({"kind": "reply", "row": record.as_json(), "trace": dict(trace)})

    def visits(self) -> list[dict[str, Any]]:
        """What was looked at around each stage, each time that a run came to it and to its end."""
        return [entry["visit"] for entry in self.journal.entries if entry["kind"] == "stage"]

    def add_visit(self, visit: Mapping[str, Any]) -> None:
        """What was looked at around a stage that a run has come through."""
        self.journal.append({"kind": "stage", "visit": dict(visit)})

    def missing(self, *, again: bool | None = None) -> list[AskedReply]:
        """The replies that are not there, in order; `again`: only those of a second time, or only the others."""
        there = self.entries()
        return [
            one for one in self.asked.replies
            if one.reply_id not in there and (again is None or again == (one.block == "again"))
        ]  # fmt: skip

    def next_start(self) -> int:
        """The number of the next start."""
        return 1 + max((one["start"] for one in self.starts()), default=0)


def open_replies(session: Session, arm: ArmKey, *, remeasure: bool) -> Replies:
    """Open the journal of this measurement: keyed by what is asked for, and by how often it was measured before.

    Raises EngcmpError where the prompt set was not made yet, and where its plan is not that of this code's scenarios.
    """
    work = prepare(session, launch_step(session.study), arm, remeasure=remeasure)
    prompts, spec = _prompts(session, arm), serving_spec(work)
    scratch = _scratch(session, arm, spec, prompts, remeasure=remeasure)
    blob = output_blob(prompts.receipt, REPLIES_PLAN)
    path = session.store.path(blob)
    if not session.store.holds(blob):
        raise EngcmpError(
            f"{REPLIES_PLAN} is missing or was changed after it was written", where=str(path), remedy="materialize prompt_set again"
        )  # fmt: skip
    plan = parse_asked(path.read_bytes(), where=REPLIES_PLAN)
    refuse_other_scenarios(plan)
    folder = session.store.scratch(scratch)
    replace_visible(folder / ABOUT, canonical_bytes({"study": session.study.protocol.study, "arm": str(arm)}))
    return Replies(work, spec, plan, Journal(folder / "journal.jsonl"), scratch)


def reply_names(session: Session, arm: ArmKey) -> tuple[str, ...]:
    """The scratch folders in which a run of this arm would go on, measured for the first time or again; none in a study without replies.

    Raises EngcmpError as `open_replies`.
    """
    if session.study.protocol.long_replies is None:
        return ()
    spec = serving_spec(prepare(session, launch_step(session.study), arm))
    prompts = _prompts(session, arm)
    return tuple(_scratch(session, arm, spec, prompts, remeasure=again) for again in (False, True))


def _prompts(session: Session, arm: ArmKey) -> Done:
    prompts = session.sound("prompt_set", arm)
    if prompts is None:
        raise EngcmpError(f"{arm} has no prompt set yet", remedy="materialize prompt_set first")
    return prompts


def _scratch(session: Session, arm: ArmKey, spec: ServingSpec, prompts: Done, *, remeasure: bool) -> str:
    earlier = session.current(REPLIES, arm)
    again = earlier.receipt["measurement"] if remeasure and earlier else 0
    asked = [
        spec.as_json(), dict(replies_step(session.study).parameters(session.study, arm)), part_id(prompts.receipt, (REPLIES_PLAN,)),
        REPLIES_VERSION, again,
    ]  # fmt: skip
    return f"{SCRATCH}{sha256_of(asked)[:24]}"
