"""How Dagster's event log under ENGCMP_HOME is written: without waiting for the disk at each event.

Dagster opens, writes and closes its databases several times an event, and SQLite waits for the disk each time: 20 of the 24 ms that one
takes. The log is a view (`engcmp reindex` makes it again from the receipts, which do wait), so only what a power failure may leave of it
is at stake; a process that is killed loses nothing. Importing this module is enough.
"""

from __future__ import annotations

import sqlite3
from typing import Any

from sqlalchemy import Engine, event


@event.listens_for(Engine, "connect")
def _do_not_wait_for_the_disk(connection: Any, _record: object) -> None:
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous=OFF")
