"""Which runs on other machines have fallen silent: by beats that change, never by comparing two machines' clocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# A beat comes each 5 s; a process that scores or hashes on all cores, or a database that pauses, may miss a few.
SILENT_S = 45.0


@dataclass(frozen=True, slots=True)
class Heard:
    """The last beat of a run ("" before its first), and when the one who looks first saw it, in seconds of its own clock."""

    beat: str
    since_s: float


def look(earlier: Mapping[str, Heard], beats: Mapping[str, str], at_s: float) -> tuple[dict[str, Heard], list[str]]:
    """What is remembered of the runs in progress until the next look, and those whose beat has stood still for SILENT_S.

    `beats` has every run in progress with its newest beat. A run counts from when it was first looked at, so that whoever begins to
    look ends nothing at once; a clock that is set back begins anew.
    """
    heard = {}
    for run_id, beat in beats.items():
        last = earlier.get(run_id)
        goes_on = last is not None and last.beat == beat and last.since_s <= at_s
        heard[run_id] = last if goes_on and last is not None else Heard(beat, at_s)
    silent = [run_id for run_id, one in heard.items() if at_s - one.since_s >= SILENT_S]
    return {run_id: one for run_id, one in heard.items() if run_id not in silent}, silent
