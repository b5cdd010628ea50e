"""How Dagster's databases are opened: an engine of each is kept, and the scripts of its migrations are read once."""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from sqlalchemy import text
from sqlalchemy.pool import NullPool

from engcmp_assets import event_log


@dg.asset
def made(context: dg.AssetExecutionContext) -> None:
    for number in range(20):
        context.log.info(str(number))


def test_a_run_makes_one_engine_for_each_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: Counter[str] = Counter()
    real = event_log.create_engine

    def counted(address: str, **options: Any) -> Any:
        opened[Path(address).name] += 1
        return real(address, **options)

    monkeypatch.setattr(event_log, "create_engine", counted)
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        done = dg.materialize([made], instance=instance)
        assert len(instance.all_logs(done.run_id)) > 20
    assert opened.keys() == {"runs.db", "index.db", "schedules.db", f"{done.run_id}.db"}
    assert max(opened.values()) == 1, opened


def open_files(folder: Path) -> set[str]:
    links = (link for link in Path("/proc/self/fd").iterdir() if link.is_symlink())
    found = (link.readlink() for link in links)
    return {path.name for path in found if path.is_relative_to(folder)}


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_connections_are_kept_only_within_a_run_and_hold_nobody_up(tmp_path: Path) -> None:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        with event_log.connections_kept():
            done = dg.materialize([made], instance=instance)
            assert {"index.db", "runs.db", f"{done.run_id}.db"} <= open_files(tmp_path)
            # Another process adds a run meanwhile, and it is seen here at once.
            code = "import dagster as dg, sys\nwith dg.DagsterInstance.from_config(sys.argv[1]) as i: i.add_dynamic_partitions('p', ['x'])"
            subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
            assert instance.get_dynamic_partitions("p") == ["x"]
        assert open_files(tmp_path) == set()
        assert dg.materialize([made], instance=instance).success
        assert open_files(tmp_path) == set()
        assert len(instance.all_logs(done.run_id)) > 20


def test_an_engine_writes_without_waiting(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path / 'one.db'}"
    engine = event_log._engine_of(address, poolclass=NullPool)
    assert engine is event_log._engine_of(address, poolclass=NullPool)
    assert engine is not event_log._engine_of(address, poolclass=NullPool, connect_args={"timeout": 30})
    with engine.connect() as connection:
        assert connection.execute(text("PRAGMA synchronous")).scalar() == 0
    other: Any = dict
    with pytest.raises(TypeError, match="may keep connections open"):
        event_log._engine_of(address, poolclass=other)
