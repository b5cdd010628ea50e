"""engine_launch/serving: what was asked of the engine for the speed block, and what each of its starts proved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engcmp_assets.engine_launch.step import Asked, files_of, launch_made, launch_spec
from engcmp_assets.engine_launch.step import parameters as scoring_parameters
from engcmp_assets.kernel.names import SERVING
from engcmp_assets.kernel.prompt_files import frozen_vocab
from engcmp_assets.kernel.receipts import Column
from engcmp_assets.kernel.records import ArmKey, Panel
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.throughput_tables import ThroughputPlan
from engcmp_assets.kernel.work import Made, Step, Use, Work
from engcmp_resources.engines.base import LaunchSpec
from engcmp_resources.engines.servers import ServerSpec
from engcmp_resources.errors import EngcmpError

COLUMNS = (
    Column("start", "int", "1", "Number of the start, in order"),
    Column(
        "launch",
        "int",
        "1",
        "The first repeat of the speed plan that was measured in the start; 0 where none was: the start itself, or long replies",
    ),
    Column(
        "load_ms",
        "float",
        "millisecond",
        "Time from the start of the engine to its first completed token or its loaded model",
    ),
    Column("n_ctx", "int", "token", "Context length of one request, as the engine resolved it"),
)
# The engine is given token ids and no text, so its tokenizer is not asked.
_LEFT_OUT = "engine_tokenizes_alike"


@dataclass(frozen=True, slots=True)
class ServingSpec:
    """What is asked of a launch for a load: as for scoring, and how many requests are to be served at a time."""

    launch: LaunchSpec | ServerSpec
    slots: int

    def as_json(self) -> dict[str, Any]:
        """The specification as plain JSON types, for hashing."""
        return self.launch.as_json() | {"mode": "serving", "slots": self.slots}


def plan_of(study: Study) -> ThroughputPlan:
    """The study's speed block. Raises EngcmpError for a study without one."""
    if study.protocol.throughput is None:
        raise EngcmpError(
            f"study {study.protocol.study} measures no speed", remedy="add a table [throughput] to its protocol"
        )
    return study.protocol.throughput


def measured_plan(study: Study) -> dict[str, Any]:
    """What of the speed block and the start-up decides what is measured; how it is judged is left out."""
    startup = study.protocol.startup
    found = plan_of(study).model_dump(mode="json", exclude={"band"})
    return found | ({"startup": startup.model_dump(mode="json")} if startup else {})


def parameters(study: Study, arm: ArmKey | None) -> Mapping[str, Any]:
    """The arm's engine settings and the plan that its starts serve."""
    of_engine = {name: value for name, value in scoring_parameters(study, arm).items() if name != "capture"}
    load = {"throughput": measured_plan(study)} if study.protocol.throughput else {}
    replies = study.protocol.long_replies
    return of_engine | load | ({"long_replies": {"at_a_time": replies.widest}} if replies else {})


def serving_spec(work: Work) -> ServingSpec:
    """What is asked for, with room for the widest cell and for as many long replies as are made at a time."""
    load, replies = work.study.protocol.throughput, work.study.protocol.long_replies
    vocab = frozen_vocab(work.study.files[work.study.protocol.prompt_set.file])
    slots = max([*(load.concurrency if load else ()), replies.widest if replies else 1])
    return ServingSpec(launch_spec(work, Panel(SERVING, vocab, "none", ())), slots)


def serving_made(
    spec: Asked,
    starts: Sequence[Mapping[str, Any]],
    *,
    telemetry: Mapping[int, Sequence[Mapping[str, Any]]],
    study: Study,
) -> Made:
    """The launch artifact of all starts that served the plan."""
    made = launch_made(spec, starts, 0, telemetry=telemetry, rules=study.protocol.gpus, columns=COLUMNS)
    return replace(made, checks=[check for check in made.checks if check.name != _LEFT_OUT])


def _unreachable(_work: Work) -> Made:
    raise EngcmpError("a launch is made together with its measurements", remedy="call the speed session")


def step(study: Study) -> Step:
    """The step of a study that measures speed or long replies."""
    measured = "its speed was" if study.protocol.long_replies is None else "its speed or long replies were"
    return Step(
        artifact=SERVING,
        title="Engine launch, serving",
        description=(
            f"Every start of the arm's engine that {measured} measured in: the settings that were asked for, with room for as many "
            "requests at a time as the widest cell has, and what the engine itself reported after loading."
        ),
        group="capture",
        kinds=("cplusplus",),
        version="1",
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
        },
    )
