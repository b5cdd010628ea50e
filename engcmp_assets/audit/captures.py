"""Unfinished captures that no run will go on with: refused before their first window, or of what no study asks for any more."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from engcmp_assets.captured_rows.journalled import ABOUT, capture_names
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.study import load_study
from engcmp_assets.kernel.work import Session
from engcmp_assets.long_replies.journalled import SCRATCH as REPLIES
from engcmp_assets.long_replies.journalled import reply_names
from engcmp_assets.throughput_events.journalled import SCRATCH as SPEED
from engcmp_assets.throughput_events.journalled import finished_parts, speed_names
from engcmp_resources.errors import EngcmpError
from engcmp_resources.journal import read_journal
from engcmp_resources.places import study_names
from engcmp_resources.store import Store


@dataclass(frozen=True, slots=True)
class DeadCapture:
    """A scratch folder by its name, what is in it (`windows` finished ones of `unit`: window, or cell), and why nothing goes on there."""

    name: str
    bytes: int
    windows: int
    unit: str
    why: str


def dead_captures(store: Store) -> list[DeadCapture]:
    """The scratch folders of captures that no run will go on with. Call it with the store held alone: a run that has just begun to
    capture has no window either.
    """
    found = []
    for folder in sorted((store.home / "scratch").glob("*-*")):
        if not folder.name.startswith(("capture-", REPLIES)):
            continue
        windows, unit = _finished(folder)
        why = _why_dead(store, folder) if windows else f"it holds no {unit}: nothing is lost with it"
        if why is not None:
            size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
            found.append(DeadCapture(folder.name, size, windows, unit, why))
    return found


def _finished(folder: Path) -> tuple[int, str]:
    """How much a capture's folder holds that a run would not measure again, and of what."""
    if folder.name.startswith(SPEED):
        return finished_parts(folder), "cell"
    journal = folder / "journal.jsonl"
    entries = read_journal(journal) if journal.is_file() else []
    if folder.name.startswith(REPLIES):
        return sum(entry["kind"] == "reply" for entry in entries), "reply"
    return sum(entry["kind"] == "window" for entry in entries), "window"


def _kind(name: str) -> str:
    """How the scratch folders of this kind of measurement begin."""
    return next((begin for begin in (SPEED, REPLIES) if name.startswith(begin)), "")


def _why_dead(store: Store, folder: Path) -> str | None:
    """Why no run goes on with these windows; None where one may, or where it is not known whose they are."""
    try:
        about = json.loads((folder / ABOUT).read_bytes())
        name, arm = str(about["study"]), ArmKey.parse(str(about["arm"]))
    except (OSError, ValueError, KeyError, TypeError, EngcmpError):
        return None
    if name not in study_names():
        return f"there is no study {name}"
    try:
        study = load_study(name)
        if arm not in study.protocol.arm_keys:
            return f"study {name} has no arm {arm}"
        names_of = {SPEED: speed_names, REPLIES: reply_names}.get(_kind(folder.name), capture_names)
        names = names_of(Session(study, store, "gc", lambda _text: None), arm)
    except EngcmpError:  # a draft, or inputs that are to be made first: the run that follows may go on here
        return None
    return None if folder.name in names else f"arm {arm} of study {name} asks for another capture now"
