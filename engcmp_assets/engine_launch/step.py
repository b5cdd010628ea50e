"""engine_launch/scoring: what was asked of the engine (spec.json, hashed into every capture) and what its starts proved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from engcmp_assets.engine_launch.disturbances import START_TELEMETRY_COLUMNS, disturbances, telemetry_of_starts
from engcmp_assets.kernel.engine_tables import ServerEngine
from engcmp_assets.kernel.gpu_rules import GpuRules
from engcmp_assets.kernel.names import LAUNCH, LIBRARY, engine_file
from engcmp_assets.kernel.plots import bars
from engcmp_assets.kernel.receipts import Column
from engcmp_assets.kernel.records import ArmKey, Check, Panel
from engcmp_assets.kernel.source_outputs import checkpoint_output
from engcmp_assets.kernel.source_tables import ImageSource, ListedSource, RepositorySource, WheelSource
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.study_tables import PublishedCheckpoint
from engcmp_assets.kernel.tables import parquet_bytes
from engcmp_assets.kernel.work import Made, Product, Step, Use, Work
from engcmp_resources.canonical import canonical_bytes
from engcmp_resources.engines.base import LaunchSpec
from engcmp_resources.engines.servers import ServerSpec
from engcmp_resources.errors import EngcmpError
from engcmp_resources.host_image import is_host_image

_EXTERNAL = "external"
COLUMNS = (
    Column("start", "int", "1", "Number of the start, in order"),
    Column("launch", "int", "1", "Launch that the start served"),
    Column("path", "str", "1", "Score path of the start: prefill = C API, decode = HTTP server"),
    Column("load_ms", "float", "millisecond", "Time from the start of the child process to the checked context"),
    Column("n_ctx", "int", "token", "Context length as the engine resolved it"),
)


def parameters(study: Study, arm: ArmKey | None) -> Mapping[str, Any]:
    """The arm's engine settings, what runs where that is no file of `sources`, and what the launch is for.

    The study and its capture plan are part of it: a receipt lists the starts of one capture, and no other study's rows came from them.
    """
    if arm is None:
        raise EngcmpError("a launch belongs to an arm", remedy="choose a partition")
    protocol = study.protocol
    engine = protocol.engine_of(arm).model_dump(exclude={"versions", "label"})
    pins = {role: protocol.sources[source] for role, source in protocol.roles_of(arm).items()}
    return engine | {
        "version": arm.version,
        "study": protocol.study,
        "capture": protocol.capture.model_dump(),
        "gpus": protocol.gpus.model_dump(mode="json") if protocol.gpus else None,
        "pins": {role: pin.model_dump() for role, pin in pins.items() if not isinstance(pin, WheelSource)},
    }


def launch_spec(work: Work, panel: Panel) -> LaunchSpec | ServerSpec:
    """What is asked for: settings of the protocol, library and model by hash. No path, time or arm name."""
    arm = work.arm
    if arm is None:
        raise EngcmpError("a launch belongs to an arm", remedy="choose a partition")
    engine = work.study.protocol.engine_of(arm)
    hashes = {output["name"]: output["sha256"] for output in work.receipt("sources")["outputs"]}
    if isinstance(engine, ServerEngine):
        identities = _identities(work.study, arm, hashes)
        return ServerSpec(engine.kind, arm.engine, arm.version, identities, panel.vocab, engine.settings)
    if isinstance(work.study.protocol.checkpoint_of(arm), PublishedCheckpoint):
        raise EngcmpError(
            f"{arm}: an engine in a child process takes one file, its checkpoint is published as a folder", where=f"engines.{arm.engine}",
            remedy="serve it with a server engine",
        )  # fmt: skip
    return LaunchSpec(
        engine=arm.engine,
        version=arm.version,
        library_sha256=hashes[LIBRARY],
        model_sha256=hashes[checkpoint_output(work.study.protocol, arm)],
        threads=engine.threads,
        context_tokens=engine.context_tokens,
        batch_tokens=engine.batch_tokens,
        micro_batch_tokens=engine.micro_batch_tokens,
        vocab=panel.vocab,
    )


def _identities(study: Study, arm: ArmKey, hashes: Mapping[str, str]) -> dict[str, str]:
    """What runs, by role: an image by its digest, a launcher by its commit, a file by its SHA-256."""
    if study.protocol.engine_of(arm).kind == _EXTERNAL:
        return {}  # what a server that already runs serves is its own word, which is in the facts
    files = {role: hashes[name] for role in study.protocol.roles_of(arm) if (name := engine_file(role)) in hashes}
    return {"model": hashes[checkpoint_output(study.protocol, arm)]} | files | pinned_identities(study, arm)


def pinned_identities(study: Study, arm: ArmKey) -> dict[str, str]:
    """The part of it that the protocol alone says, before anything is fetched: images and launchers."""
    found: dict[str, str] = {}
    for role, source in study.protocol.roles_of(arm).items():
        entry = study.protocol.sources[source]
        if isinstance(entry, ImageSource):
            # A registry's digest belongs to a name; the image made from nothing was never in one, and has an ID alone.
            found[role] = entry.digest if is_host_image(entry.digest) else f"{entry.image}@{entry.digest}"
        elif isinstance(entry, RepositorySource):
            found["commit" if role == "launcher" else role] = entry.commit
        elif isinstance(entry, ListedSource) and entry.why is not None:
            raise EngcmpError(
                f"{role} {entry.listed} of arm {arm} cannot be had: {entry.why}", where="SOURCES.json",
                remedy="write its pin there, and amend the study",
            )  # fmt: skip
    return found


def files_of(study: Study, arm: ArmKey) -> tuple[str, ...]:
    """The outputs of `sources` that a launch takes: the engine's files and the arm's checkpoint."""
    protocol = study.protocol
    roles = [
        name for name, source in protocol.roles_of(arm).items() if not isinstance(protocol.sources[source], ImageSource)
    ]
    return (*(engine_file(role) for role in roles), checkpoint_output(protocol, arm))


class Asked(Protocol):
    """What is asked of a launch."""

    def as_json(self) -> dict[str, Any]:
        """As plain JSON types, for hashing."""


def launch_made(
    spec: Asked,
    starts: Sequence[Mapping[str, Any]],
    probed_windows: int,
    *,
    telemetry: Mapping[int, Sequence[Mapping[str, Any]]],
    rules: GpuRules | None,
    columns: tuple[Column, ...] = COLUMNS,
) -> Made:
    """The launch artifact of all its starts (each: start, launch, facts, what was seen of the GPUs) and their telemetry by start.

    `columns` are those of its table: of the start itself (start, launch, path), or of its facts.
    """
    disturbed = disturbances(starts, telemetry, rules)
    seen = telemetry_of_starts(telemetry)
    table = {
        column.name: [
            start[column.name] if column.name in ("start", "launch", "path") else start["facts"].get(column.name)
            for start in starts
        ]
        for column in columns
    }
    # A process reads the texts through its C API, which the prefill path has; a server says for itself.
    probed = any(start["facts"].get("tokenizer_probed", start["path"] == "prefill") for start in starts)
    labels = [f"start {start['start']} (launch {start['launch']}, {start['path']})" for start in starts]
    plot = bars(
        "Start of the engine until it is ready",
        labels,
        [float(value or 0) for value in table["load_ms"]],
        unit="milliseconds",
    )
    return Made(
        products=[
            Product("spec.json", "json", canonical_bytes(spec.as_json())),
            Product("starts.json", "json", canonical_bytes(list(starts))),
            Product(
                "telemetry.parquet", "parquet", parquet_bytes(START_TELEMETRY_COLUMNS, seen), rows=len(seen["start"]),
                columns=START_TELEMETRY_COLUMNS,
            ),
            Product("starts.parquet", "parquet", parquet_bytes(columns, table), rows=len(starts), columns=columns),
            Product("plot.png", "png", plot, role="view"),
        ],
        checks=[
            Check(
                "settings_resolved_as_requested", True,
                "Context, batch, micro-batch, threads and vocabulary read back from the engine are those of the protocol",
                {"starts": len(starts)},
            ),
            Check(
                "engine_tokenizes_alike", True,
                "The engine's own tokenizer gives the frozen ids for every text"
                if probed else "The engine is given token ids and has no tokenizer to ask: nothing was read as text",
                {"windows": probed_windows if probed else 0},
            ),
            Check(
                "undisturbed", not disturbed,
                "; ".join(disturbed) or (
                    "The GPUs were as the protocol declares, before, during and after" if rules
                    else "The study declares no GPUs; what the host did is in telemetry.parquet"
                ),
                {"samples": len(seen["start"])},
            ),
        ],
        flags=disturbed,
        details={"spec": spec.as_json(), "facts": starts[0]["facts"]},
    )  # fmt: skip


def _unreachable(_work: Work) -> Made:
    raise EngcmpError("a launch is made together with its captures", remedy="call the capture session")


def step(study: Study) -> Step:
    """The step of a study: which files a launch takes depends on the kind of its engine."""
    return Step(
        artifact=LAUNCH,
        title="Engine launch, scoring",
        description=(
            "Every start of the arm's engine that its rows were measured in: the settings that were asked for, and what the engine itself "
            "reported after loading. An engine that reads a setting back differently from what was asked is refused."
        ),
        group="capture",
        kinds=("cplusplus",),
        version="2",
        uses=(
            Use("frozen_protocol", "study", ()),
            Use("sources", "arm", files_of),
            Use("prompt_set", "arm", ()),
        ),
        per_arm=True,
        parameters=parameters,
        make=_unreachable,
        columns=COLUMNS,
        checks={
            "undisturbed": "GPUs as declared: no foreign process, no throttling beyond the limit, memory given back",
            "settings_resolved_as_requested": "What the engine reports of its settings equals what the protocol asks for",
            "engine_tokenizes_alike": "The engine's own tokenizer gives the frozen token ids for the texts",
        },
    )
