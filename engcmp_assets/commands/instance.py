"""The Dagster instance under ENGCMP_HOME: its settings, and the partitions that the protocols list."""

from __future__ import annotations

import os
from pathlib import Path

import dagster as dg

from engcmp_assets.graph import POOL
from engcmp_resources.disk import disk_errors, locked
from engcmp_resources.places import home_folder

SETTINGS = """\
# Written by engcmp; it is written anew when engcmp starts.
telemetry: {enabled: false}
nux: {enabled: false}
concurrency:
  pools: {granularity: run, default_limit: 1}
  runs: {max_concurrent_runs: 2}
run_monitoring: {enabled: true, poll_interval_seconds: 30, max_runtime_seconds: 43200, free_slots_after_run_end_seconds: 60}
run_retries: {enabled: false}
freshness: {enabled: true}
retention: {sensor: {purge_after_days: {skipped: 1}}}
"""


def instance_folder() -> Path:
    """DAGSTER_HOME: under ENGCMP_HOME, made and configured if need be. The event log there is a view; no result lives in it."""
    folder = home_folder() / "dagster"
    settings = folder / "dagster.yaml"
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if not settings.is_file() or settings.read_text(encoding="utf-8") != SETTINGS:
            settings.write_text(SETTINGS, encoding="utf-8")
    return folder


def instance_in_use() -> dg.DagsterInstance:
    """The instance that DAGSTER_HOME names, where that has settings (those of several machines); else the one under ENGCMP_HOME."""
    named = os.environ.get("DAGSTER_HOME")
    if named and (Path(named) / "dagster.yaml").is_file():
        return dg.DagsterInstance.get()
    return open_instance()


def open_instance() -> dg.DagsterInstance:
    """The instance, with the pool's limit set (a default limit is not enforced on the first batch).

    One process at a time opens it: of two that made its databases at once, one would fail.
    """
    folder = instance_folder()
    os.environ["DAGSTER_HOME"] = str(folder)
    os.environ.setdefault("DAGSTER_DISABLE_TELEMETRY", "1")
    with locked(folder / "opening.lock"):
        instance = dg.DagsterInstance.get()
        instance.event_log_storage.set_concurrency_slots(POOL, 1)
    return instance
