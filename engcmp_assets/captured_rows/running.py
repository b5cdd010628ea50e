"""An arm's engine as a capture sees it, whatever its kind: started, proved, and asked for the rows of a window."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engcmp_assets.captured_rows.journalled import Capture, Launch
from engcmp_assets.kernel.engine_tables import ProcessEngine
from engcmp_assets.kernel.names import LIBRARY, engine_file
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.source_outputs import checkpoint_output
from engcmp_assets.kernel.source_tables import ImageSource
from engcmp_assets.kernel.work import Work
from engcmp_assets.sources.published import fetched_folder, file_sources, listed_folder
from engcmp_resources.engines.base import LaunchSpec, start_decoder, start_engine
from engcmp_resources.engines.servers import LaunchPlace, LightRows, RunningServer, ServerSpec, start_server
from engcmp_resources.errors import EngcmpError

ComputeRows = Callable[[str, Sequence[int], Sequence[int], Path], object]
TakeLight = Callable[[str, Sequence[int], Sequence[int]], LightRows]


def _nothing() -> None:
    """What there is to look at where a child process is watched by its pipes."""


@dataclass(frozen=True, slots=True)
class Running:
    """A running engine on one score path. `full` writes raw rows, `light` returns top-20 rows; at least one of them is there.

    `tokenize` is None where the engine has no tokenizer to ask; `unchanged` raises where it is not the engine that was started.
    """

    facts: Mapping[str, Any]
    tokenize: Callable[[str], Sequence[int] | None] | None = None
    full: ComputeRows | None = None
    light: TakeLight | None = None
    unchanged: Callable[[], None] = _nothing


@contextmanager
def started(capture: Capture, arm: ArmKey, launch: Launch, start: int, labels: Mapping[str, str]) -> Iterator[Running]:
    """Start the arm's engine for a launch; it ends with the context. Raises EngcmpError for an engine that does not start or that
    cannot give what the launch's panels keep: then nothing is measured.
    """
    log = capture.journal.path.with_name(f"engine-{start}.log")
    if isinstance(capture.spec, ServerSpec):
        with _server(capture, capture.spec, arm, launch, start=start, labels=labels, log=log) as running:
            yield running
    else:
        with _process(capture, capture.spec, arm, launch, labels=labels, log=log) as running:
            yield running


@contextmanager
def _process(
    capture: Capture, spec: LaunchSpec, arm: ArmKey, launch: Launch, *, labels: Mapping[str, str], log: Path
) -> Iterator[Running]:
    work = capture.work
    engine = work.study.protocol.engine_of(arm)
    if not isinstance(engine, ProcessEngine):
        raise EngcmpError(f"{arm}: a server engine with the specification of a process", remedy="report this fault")
    asked: dict[str, Any] = {
        "library": work.file("sources", LIBRARY),
        "model": model_place(work, arm),
        "log": log,
        "environment": labels,
    }
    if launch.path == "prefill":
        with start_engine(engine.kind, spec, **asked) as running:
            yield Running(running.facts, running.tokenize, running.prefill_rows)
    else:
        with start_decoder(engine.kind, spec, **asked) as decoder:
            yield Running(decoder.facts, None, decoder.decode_rows)


@contextmanager
def _server(
    capture: Capture,
    spec: ServerSpec,
    arm: ArmKey,
    launch: Launch,
    *,
    start: int,
    labels: Mapping[str, str],
    log: Path,
) -> Iterator[Running]:
    with (
        launch_place(capture.work, arm, log.with_name(f"start-{start}"), labels=labels, log=log) as place,
        start_server(spec, place) as server,
    ):
        yield _asked_of(capture, launch, server)


@contextmanager
def launch_place(
    work: Work, arm: ArmKey, scratch: Path, *, labels: Mapping[str, str], log: Path
) -> Iterator[LaunchPlace]:
    """Where a server kind launches `arm`: its files, and the folder `scratch`, which is emptied before and removed after."""
    shutil.rmtree(scratch, ignore_errors=True)  # of a start that was killed
    scratch.mkdir()
    study = work.study
    files = {"model": model_place(work, arm)}
    published = file_sources(study, arm)
    for role, source in study.protocol.roles_of(arm).items():
        name = engine_file(role)
        if not isinstance(study.protocol.sources[source], ImageSource):
            files[role] = listed_folder(work, name) if name in published else work.file("sources", name)
    hub = fetched_folder(study) if any(path.is_dir() for path in files.values()) else None
    gpus = tuple(study.protocol.gpus.use) if study.protocol.gpus else ()
    try:
        yield LaunchPlace(scratch, log, labels, files, study.folder, gpus, say=work.say, hub=hub)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def model_place(work: Work, arm: ArmKey) -> Path:
    """The arm's checkpoint: the file that was made, or the folder of a published one, held against its list of files."""
    name = checkpoint_output(work.study.protocol, arm)
    return listed_folder(work, name) if name in file_sources(work.study, arm) else work.file("sources", name)


def _asked_of(capture: Capture, launch: Launch, server: RunningServer) -> Running:
    """What a server is asked for: full rows where a panel keeps them, else what its API returns."""
    path, can = launch.path, server.capabilities
    keeps_rows = any(panel.keep == "rows" for panel in capture.panels_of(launch))
    if path not in can.rows and (keeps_rows or not can.light(path)):
        has = can.prompt_logprobs if path == "prefill" else can.decode_logprobs
        wanted = "full rows" if keeps_rows else "the 20 most probable tokens of a row"
        raise EngcmpError(
            f"{capture.work.arm}: launch {launch.number} wants {wanted} on the {path} path, and the running server gives "
            f"{has or 'no'} log-probabilities there",
            remedy="declare the panels with keep = light, capture another score path, or start the server so that it gives them; "
            "nothing was measured",
        )

    def full(window_id: str, tokens: Sequence[int], positions: Sequence[int], out: Path) -> object:
        return server.full_rows(path, window_id, tokens, positions, out)

    def light(window_id: str, tokens: Sequence[int], positions: Sequence[int]) -> LightRows:
        return server.light_rows(path, window_id, tokens, positions)

    return Running(
        server.facts,
        server.tokenize if can.tokenizer else None,
        full if path in can.rows else None,
        None if keeps_rows else light,
        server.refuse_changed,
    )
