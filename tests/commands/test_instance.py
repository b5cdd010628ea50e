"""Dagster's event log in a new home: whoever comes first makes it, and those who come meanwhile wait for it."""

from __future__ import annotations

import multiprocessing
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from engcmp_assets.commands.instance import open_instance

OPENERS = 4


def _open(together: Barrier) -> None:
    together.wait(60)
    with open_instance() as instance:
        assert instance.get_runs_count() == 0


def test_processes_that_open_the_event_log_of_a_new_home_at_once_all_succeed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGCMP_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    context = multiprocessing.get_context("fork")  # with Dagster loaded: they meet within milliseconds
    together = context.Barrier(OPENERS)
    openers = [context.Process(target=_open, args=(together,)) for _ in range(OPENERS)]
    for one in openers:
        one.start()
    for one in openers:
        one.join(120)
    assert [one.exitcode for one in openers] == [0] * OPENERS
