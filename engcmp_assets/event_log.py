"""How Dagster's event log under ENGCMP_HOME is written: without waiting for the disk, or preparing anew, at each event.

Dagster opens, writes and closes its databases several times an event, and SQLite waits for the disk each time: 20 of the 24 ms that one
takes. The log is a view (`engcmp reindex` makes it again from the receipts, which do wait), so only what a power failure may leave of it
is at stake; a process that is killed loses nothing.

Each time it also makes a new SQLAlchemy engine, which has every statement to compile again, and for each run it reads the scripts of all
migrations: half of what a run costs beside its work. Engines (of one database) and scripts are kept here. Importing this module is enough.

Opening a database whose last connection was closed, and closing the last one, is most of what is left: `connections_kept` is for the time
of a run.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from weakref import WeakSet

from alembic.script import ScriptDirectory
from dagster._core.storage.event_log.sqlite import sqlite_event_log
from dagster._core.storage.runs.sqlite import sqlite_run_storage
from dagster._core.storage.schedules.sqlite import sqlite_schedule_storage
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.pool import ConnectionPoolEntry, NullPool, QueuePool


@event.listens_for(Engine, "connect")
def _do_not_wait_for_the_disk(connection: Any, _record: object) -> None:
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous=OFF")


_engines: WeakSet[Engine] = WeakSet()


class _Kept(QueuePool):
    """Keeps one connection open within `connections_kept`, whatever Dagster disposes of meanwhile, and none otherwise."""

    wanted = 0  # how many calls are within it

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"pool_size": 1, "max_overflow": -1, "timeout": 0} | options)

    def _do_return_conn(self, record: ConnectionPoolEntry) -> None:
        super()._do_return_conn(record)
        if not self.wanted:
            super().dispose()

    def dispose(self) -> None:
        if not self.wanted:
            super().dispose()

    def recreate(self) -> _Kept:
        return self


@contextmanager
def connections_kept() -> Iterator[None]:
    """Within it one connection of each database that is used stays open: it is not prepared and tidied up at each event."""
    _Kept.wanted += 1
    try:
        yield
    finally:
        _Kept.wanted -= 1
        for engine in list(_engines):
            engine.dispose()


@lru_cache(maxsize=32)
def _engine(address: str, **connect_args: float) -> Engine:
    engine = create_engine(address, poolclass=_Kept, connect_args=connect_args)
    _engines.add(engine)
    return engine


def _engine_of(address: str, *, poolclass: type[NullPool], connect_args: dict[str, float] | None = None) -> Engine:
    """In place of `create_engine`, with the options that Dagster's SQLite storages give it; others would be an error."""
    if poolclass is not NullPool:
        raise TypeError(f"{poolclass} may keep connections open")
    return _engine(address, **(connect_args or {}))


for _storage in (sqlite_event_log, sqlite_run_storage, sqlite_schedule_storage):
    _storage.create_engine = _engine_of  # type: ignore[attr-defined] # what the module has imported
ScriptDirectory.from_config = lru_cache(maxsize=8)(ScriptDirectory.from_config)  # type: ignore[method-assign] # as it is, but once
