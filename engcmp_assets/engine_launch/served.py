"""A running engine that takes a load, whatever its kind: started for a measurement, ended with its context."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from engcmp_assets.captured_rows.running import launch_place, model_place
from engcmp_assets.engine_launch.serving import ServingSpec
from engcmp_assets.kernel.engine_tables import ProcessEngine
from engcmp_assets.kernel.names import LIBRARY
from engcmp_assets.kernel.work import Work
from engcmp_resources.engines.base import LaunchSpec, start_serving
from engcmp_resources.engines.servers import Endpoint, start_server
from engcmp_resources.errors import EngcmpError
from engcmp_resources.journal import Journal


class Serves(Protocol):
    """A measurement within a serving engine's life, as its journal knows it."""

    @property
    def work(self) -> Work: ...

    @property
    def spec(self) -> ServingSpec: ...

    @property
    def journal(self) -> Journal: ...


@dataclass(frozen=True, slots=True)
class Served:
    """A running engine that takes the load; `unchanged` raises where it is not the one that was started.

    `labels` are those of its processes, `log` the file that it prints to.
    """

    endpoint: Endpoint
    facts: Mapping[str, Any]
    unchanged: Callable[[], None]
    labels: Mapping[str, str]
    log: Path


@contextmanager
def served(measured: Serves, start: int, labels: Mapping[str, str], *, cold: bool = False) -> Iterator[Served]:
    """Start the arm's engine for its load. Raises EngcmpError for an engine that does not start."""
    work, spec = measured.work, measured.spec.launch
    arm = work.arm
    if arm is None:
        raise EngcmpError("a launch belongs to an arm", remedy="choose a partition")
    log = measured.journal.path.with_name(f"engine-{start}.log")
    if not isinstance(spec, LaunchSpec):
        with (
            launch_place(work, arm, log.with_name(f"start-{start}"), labels=labels, log=log) as place,
            start_server(spec, replace(place, cold=cold), mode="serving") as server,
        ):
            yield Served(server.endpoint, server.facts, server.refuse_changed, labels, log)
        return
    engine = work.study.protocol.engine_of(arm)
    if not isinstance(engine, ProcessEngine):
        raise EngcmpError(f"{arm}: a server engine with the specification of a process", remedy="report this fault")
    library, model = work.file("sources", LIBRARY), model_place(work, arm)
    with start_serving(
        engine.kind, spec, slots=measured.spec.slots, library=library, model=model, log=log, environment=labels, cold=cold
    ) as process:  # fmt: skip
        yield Served(process.endpoint, process.facts, process.refuse_ended, labels, log)
