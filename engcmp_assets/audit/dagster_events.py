"""Dagster's event log as an auditor reads it: from copies of its database files, so that nothing under ENGCMP_HOME is written.

Dagster itself would make folders, side files and migrations on opening, and take many times as long. What is read here is the
layout of the pinned version: a log that has another one is a problem by itself, never silently passed over.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engcmp_resources.errors import EngcmpError

LOG = "dagster/history/runs/index.db"
_RUNS = "dagster/history/runs.db"
# What SQLite's writers keep beside a database.
_SIDE_FILES = ("-wal", "-journal")
_ATTEMPTS, _PAUSE_S = 20, 0.1
_NUMBERS = ("FloatMetadataEntryData", "IntMetadataEntryData")
_MATERIALIZATION, _PLANNED = "ASSET_MATERIALIZATION", "ASSET_MATERIALIZATION_PLANNED"
# What else a page shows of an asset, and the words for it.
_BESIDE = {"ASSET_OBSERVATION": "observation", "ASSET_CHECK_EVALUATION": "check result"}


@dataclass(frozen=True, slots=True)
class Event:
    """One materialization: `asset` is the artifact below the study's prefix, `timestamp` in seconds since the epoch.

    `metadata` holds every entry's value by label; `numbers` those that Dagster shows and plots as numbers.
    `fault` says why it cannot be read as an event of its place in the log; then tags and metadata are empty.
    """

    run_id: str
    asset: str
    partition: str | None
    timestamp: float
    tags: Mapping[str, str]
    metadata: Mapping[str, Any]
    numbers: Mapping[str, float]
    sha256: bytes
    fault: str | None = None


class EventLog:
    """The materialization events of one study, and what Dagster knows of their runs.

    `wiped` is when an asset's events were last removed by `dagster asset wipe` (seconds since the epoch, by artifact).
    """

    def __init__(self, home: Path, prefix: str, folder: Path) -> None:
        self._home, self._prefix, self._folder = home, prefix, folder
        self._index = _copied(home / LOG, folder)
        self._own: dict[str, set[bytes] | None] = {}
        below = json.dumps([prefix])[:-1] + ", "
        self._of_study = (_MATERIALIZATION, below)
        with closing(_copied(home / _RUNS, folder)) as runs:
            self.runs = {str(run_id) for (run_id,) in runs.execute("SELECT run_id FROM runs")}
        query = "SELECT run_id, asset_key, partition, timestamp FROM event_logs WHERE dagster_event_type = ?"
        self._planned: set[tuple[str, str, str | None]] = set()
        self._started: dict[str, float] = {}
        for run_id, key, partition, at in self._index.execute(query, (_PLANNED,)):
            self._planned.add((run_id, self._artifact(key), partition))
            self._started[run_id] = min(_seconds(at), self._started.get(run_id, _seconds(at)))
        query = "SELECT asset_key, wipe_timestamp FROM asset_keys WHERE wipe_timestamp IS NOT NULL"
        self.wiped = {self._artifact(key): _seconds(at) for key, at in self._index.execute(query)}
        query = "SELECT count(*) FROM dynamic_partitions WHERE partitions_def_name = ?"
        self.arms = int(self._index.execute(query, (f"{prefix}_arms",)).fetchone()[0])

    def __len__(self) -> int:
        """How many materialization events there are."""
        query = "SELECT count(*) FROM event_logs WHERE dagster_event_type = ? AND instr(asset_key, ?) = 1"
        return int(self._index.execute(query, self._of_study).fetchone()[0])

    def events(self) -> Iterator[Event]:
        """Every event, all assets and partitions, in the order in which they were recorded; one at a time is in memory."""
        query = (
            "SELECT run_id, event, asset_key, partition, timestamp FROM event_logs "
            "WHERE dagster_event_type = ? AND instr(asset_key, ?) = 1 ORDER BY id"
        )
        for run_id, text, key, partition, at in self._index.execute(query, self._of_study):
            yield self._event(str(run_id or ""), str(text), str(key), partition, _seconds(at))

    def by_hand(self) -> Iterator[tuple[str, str, str | None, float]]:
        """Check results and observations that no known run has made: kind, artifact, partition and time of each."""
        query = (
            "SELECT dagster_event_type, run_id, event, asset_key, partition, timestamp FROM event_logs "
            "WHERE dagster_event_type IN (?, ?) ORDER BY id"
        )
        for kind, run_id, text, key, partition, at in self._index.execute(query, tuple(_BESIDE)):
            if run_id in self.runs:
                continue
            own = key if key is not None else _key_within(text)
            if own is not None and json.loads(own)[0] == self._prefix:
                yield _BESIDE[kind], self._artifact(own), partition, _seconds(at)

    def started(self, event: Event) -> float:
        """When the event's run was planned, in seconds since the epoch."""
        return self._started.get(event.run_id, event.timestamp)

    def is_of_its_run(self, event: Event) -> bool:
        """Whether the log that the run itself wrote holds this very event.

        Where a run's own log is gone (a copy of a home may lack it), it counts that the run had planned the asset.
        """
        if event.run_id not in self._own:
            self._own[event.run_id] = self._written_by(event.run_id)
        own = self._own[event.run_id]
        return event.sha256 in own if own is not None else (event.run_id, event.asset, event.partition) in self._planned

    def close(self) -> None:
        """Let go of the copy."""
        self._index.close()

    def _written_by(self, run_id: str) -> set[bytes] | None:
        path = (self._home / LOG).with_name(f"{run_id}.db")
        if path.parent != (self._home / LOG).parent or not path.is_file():
            return None
        with closing(_copied(path, self._folder)) as log:
            texts = log.execute("SELECT event FROM event_logs WHERE dagster_event_type = ?", (_MATERIALIZATION,))
            found = {_digest(text) for (text,) in texts}
        (self._folder / path.name).unlink()
        return found

    def _artifact(self, key: str) -> str:
        path = json.loads(key)
        return "/".join(path[1:]) if path[0] == self._prefix else key

    def _event(self, run_id: str, text: str, key: str, partition: str | None, timestamp: float) -> Event:
        place = (run_id, self._artifact(key), partition, timestamp)
        try:
            entry = json.loads(text)
            made = entry["dagster_event"]["event_specific_data"]["materialization"]
            if [entry["run_id"], made["asset_key"]["path"], made["partition"]] != [run_id, json.loads(key), partition]:
                return Event(*place, {}, {}, {}, b"", fault="its text is of another run, asset or partition")
            labelled = [(str(one["label"]), one["entry_data"]) for one in made["metadata_entries"]]
            return Event(
                *place,
                tags={str(name): str(value) for name, value in (made["tags"] or {}).items()},
                metadata={label: _value(data) for label, data in labelled},
                numbers={label: _value(data) for label, data in labelled if data["__class__"] in _NUMBERS},
                sha256=_digest(text),
            )
        except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            what = f"it is not an event as this version of Dagster writes it ({type(error).__name__}: {error})"
            return Event(*place, {}, {}, {}, b"", fault=" ".join(what.split()))


@contextmanager
def open_log(home: Path, prefix: str) -> Iterator[EventLog]:
    """The log under `home` of the assets below `prefix`. Raises EngcmpError where it cannot be read."""
    with tempfile.TemporaryDirectory(prefix="engcmp-events-") as folder:
        try:
            with closing(EventLog(home, prefix, Path(folder))) as log:
                yield log
        except (sqlite3.Error, OSError, LookupError, TypeError, ValueError) as error:
            raise EngcmpError(
                f"cannot be read as Dagster's event log: {error}", where=str(home / LOG),
                remedy="`engcmp verify --no-events` leaves it out",
            ) from error  # fmt: skip


def _copied(path: Path, folder: Path) -> sqlite3.Connection:
    """A copy of a database and of what its writers have not merged yet, all as they were at one moment."""
    files = [path, *(path.with_name(path.name + suffix) for suffix in _SIDE_FILES)]
    for _ in range(_ATTEMPTS):
        before = [_status(file) for file in files]
        for file in files:
            (folder / file.name).unlink(missing_ok=True)
            if file is path or file.is_file():
                shutil.copyfile(file, folder / file.name)
        if [_status(file) for file in files] == before:
            return sqlite3.connect(folder / path.name)
        time.sleep(_PAUSE_S)
    raise EngcmpError(
        "Dagster's event log is being written all the time", where=str(path),
        remedy="verify again when no run is in progress, or with --no-events",
    )  # fmt: skip


def _status(path: Path) -> tuple[int, int] | None:
    return (path.stat().st_size, path.stat().st_mtime_ns) if path.is_file() else None


def _value(data: Mapping[str, Any]) -> Any:
    return next((value for name, value in data.items() if name != "__class__"), None)


def _key_within(text: str) -> str | None:
    """The asset key of an event whose row in the log does not name it."""
    try:
        data = json.loads(text)["dagster_event"]["event_specific_data"]
        return json.dumps(data["asset_key"]["path"])
    except (LookupError, TypeError, ValueError):
        return None


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _seconds(timestamp: str) -> float:
    """Dagster writes the time in UTC and without saying so."""
    return datetime.datetime.fromisoformat(timestamp).replace(tzinfo=datetime.UTC).timestamp()
