"""A study that grows arm by arm: the tiny one, with iterations that add arms, run in this process and taken apart step by step.

A filling arm is the base arm under another engine name: same settings, version and files, so that its launch and captures are
answered from the store. A probing arm is another checkpoint: its engine runs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg

_TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(_TESTS), str(_TESTS / "commands"), str(_TESTS / "dagster")]  # a script finds what pytest would

from tiny import BASE_ARM, TINY, TinyStudy, make_tiny

from engcmp_assets.automation import sync_partitions
from engcmp_assets.captured_rows.session import capture_arm, capture_steps
from engcmp_assets.commands.instance import open_instance
from engcmp_assets.graph import definitions
from engcmp_assets.kernel.iterations import frozen_iteration
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.study import load_study
from engcmp_assets.kernel.work import Session, materialize
from engcmp_assets.steps import steps_of
from engcmp_resources.canonical import canonical_bytes
from engcmp_resources.places import home_folder
from engcmp_resources.store import Store

PREFIX = TINY.replace("-", "_")
PROBES = ("q8_0/llamacpp@b11549", "q8_0/llamacpp@b10809", "q8_0/llamacpp@b8672")
WIDE = ("comparisons", "publication", "catalog")
_ENGINE = """[engines.{name}]
kind = "llamacpp"
label = "{name}"
threads = 2
context_tokens = 512
batch_tokens = 512
micro_batch_tokens = 512
[engines.{name}.versions.b11549]
source = "llamacpp-b11549"
"""


@dataclass(frozen=True)
class Ran:
    """A step of a run: seconds by Dagster's clock, and which of its artifacts were made or answered from the store."""

    step: str
    seconds: float
    made: tuple[str, ...]
    answered: tuple[str, ...]


@dataclass(frozen=True)
class Growth:
    """One arm more: what its own job did, what the study-wide one did, and how many pairs were made anew or kept.

    CPU seconds are of each whole job, engines included: unlike the others they hardly depend on what else the machine does.
    """

    arms_before: int
    arm: str
    own: tuple[Ran, ...]
    wide: tuple[Ran, ...]
    pairs_made: int
    pairs_kept: int
    own_cpu_s: float
    wide_cpu_s: float

    @property
    def own_seconds(self) -> float:
        return sum(one.seconds for one in self.own)

    def wide_seconds(self, artifact: str) -> float:
        return sum(one.seconds for one in self.wide if one.step.endswith(f"__{artifact}"))


class GrowingStudy:
    """The tiny study of `measured_home`'s files below `root`, frozen; `in_place` points this process to it.

    `engines` filling engines are frozen with it, each with two arms and their pair.
    """

    def __init__(self, root: Path, measured_home: Path, *, engines: int = 0) -> None:
        self.tiny: TinyStudy = make_tiny(root, measured_home)
        names = [f"e{number:03}" for number in range(engines)]
        with (self.tiny.folder / "protocol.toml").open("a", encoding="utf-8") as file:
            file.write("".join(_ENGINE.format(name=name) for name in names))
            file.write("".join(_frozen_arms(name) for name in names))
        done = self.tiny.run("freeze", TINY)
        if done.returncode:
            raise SystemExit(done.stderr)
        self._names = 0

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """This process works on the growing study and its home, and says what it does to a log."""
        before = dict(os.environ)
        os.environ |= self.tiny.variables | {"ENGCMP_HOME": str(self.tiny.home)}
        try:
            with self._log.open("a", encoding="utf-8") as log, contextlib.redirect_stderr(log):
                yield
        finally:
            os.environ.clear()
            os.environ |= before

    @property
    def _log(self) -> Path:
        return self.tiny.root / "said.log"

    def said(self) -> list[str]:
        """What steps have said, line by line."""
        return self._log.read_text(encoding="utf-8").splitlines()

    @property
    def arms(self) -> tuple[ArmKey, ...]:
        return load_study(TINY).protocol.arm_keys

    def fill(self, arms: int) -> None:
        """Iterations until the study has `arms` arms, their artifacts made beside the store's captures, without Dagster."""
        for _ in range(arms - len(self.arms)):
            name = f"fill{self._names:03}"
            self._add(f"q4_0/{name}@b11549", _ENGINE.format(name=name))
        session = self.session()
        for arm in self.arms:
            if session.current("summaries", arm) is None:
                self._make(session, arm)

    def session(self) -> Session:
        """Silent, on the study as it is now."""
        return Session(load_study(TINY), Store(self.tiny.home), "fill", lambda _text: None)

    def _make(self, session: Session, arm: ArmKey) -> None:
        engine = [step.artifact for step in capture_steps(session.study)]
        for step in steps_of(session.study):
            if step.artifact == engine[0]:
                list(capture_arm(session, arm))
            elif step.artifact not in engine and (step.per_arm or step.artifact == "frozen_protocol"):
                materialize(session, step, arm if step.per_arm else None)

    def _add(self, arm: str, engine: str = "") -> None:
        """An iteration that adds one arm and its pair with the base arm, frozen."""
        name, folder = f"i{self._names:03}", self.tiny.folder / "iterations"
        self._names += 1
        text = (
            f'schema = "engcmp.iteration/1"\nbecause = "one arm more"\n{engine}[[arms]]\narm = "{arm}"\n'
            f'[[comparisons]]\npair_id = "{name}"\nlabel = "{arm} beside the base"\n'
            f'candidate = "{arm}"\nbaseline = "{BASE_ARM}"\n'
        )
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
        base = json.loads(self.tiny.frozen)["frozen_sha256"]
        frozen = frozen_iteration(TINY, name, text.encode(), base)
        (folder / f"{name}.frozen.json").write_bytes(canonical_bytes(frozen))

    def grow(self, arm: str) -> Growth:
        """Add `arm` to a study whose results are all there, and run its job and the results' as `engcmp run --arm` does."""
        before = len(self.arms)
        self._add(arm)
        definition = definitions()
        with open_instance() as instance:
            sync_partitions(instance, load_study(TINY))
            clock = [_cpu_s()]
            own = run_job(definition, f"{PREFIX}_arm", instance, arm)
            clock.append(_cpu_s())
            parts = self._parts()
            wide = run_job(definition, f"{PREFIX}_results", instance, None)
            clock.append(_cpu_s())
        made = len(self._parts() - parts)
        kept = len(load_study(TINY).protocol.comparisons) - made
        return Growth(before, arm, own, wide, made, kept, clock[1] - clock[0], clock[2] - clock[1])

    def results(self) -> tuple[Ran, ...]:
        """The study-wide results of all arms that there are."""
        with open_instance() as instance:
            sync_partitions(instance, load_study(TINY))
            return run_job(definitions(), f"{PREFIX}_results", instance, None)

    def _parts(self) -> frozenset[str]:
        return frozenset(path.name for path in (self.tiny.home / "tasks").glob("part-*.json"))


def _cpu_s() -> float:
    """CPU seconds of this process and of the children that have ended."""
    return sum(os.times()[:4])


def _frozen_arms(engine: str) -> str:
    arms = [f"{checkpoint}/{engine}@b11549" for checkpoint in ("q8_0", "q4_0")]
    entries = "".join(f'[[arms]]\narm = "{arm}"\n' for arm in arms)
    pair = f'candidate = "{arms[1]}"\nbaseline = "{arms[0]}"\n'
    return f'{entries}[[comparisons]]\npair_id = "{engine}"\nlabel = "Q4_0 beside Q8_0, {engine}"\n{pair}'


def run_job(
    definition: dg.Definitions, job: str, instance: dg.DagsterInstance, partition: str | None
) -> tuple[Ran, ...]:
    """Run a job of the code location in this process; its steps in their order."""
    result = definition.resolve_job_def(job).execute_in_process(
        instance=instance, partition_key=partition,
        run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
    )  # fmt: skip
    return tuple(_step_ran(result, event) for event in result.all_events if event.is_step_success)


def _step_ran(result: dg.ExecuteInProcessResult, ended: dg.DagsterEvent) -> Ran:
    own = [event for event in result.get_asset_materialization_events() if event.step_key == ended.step_key]
    artifacts: dict[bool, list[str]] = {True: [], False: []}
    for event in own:
        found: Any = event.materialization
        artifacts[bool(found.metadata["answered_from_store"].value)].append("/".join(found.asset_key.path[1:]))
    seconds = ended.step_success_data.duration_ms / 1000
    return Ran(str(ended.step_key), seconds, tuple(artifacts[False]), tuple(artifacts[True]))


def home_argument(parser: argparse.ArgumentParser) -> None:
    """`--home`, whose weights, libraries and checkpoints the study takes."""
    parser.add_argument("--home", type=Path, default=home_folder(), help="A home that `engcmp demo` has measured.")


@contextlib.contextmanager
def temporary_root(home: Path) -> Iterator[Path]:
    """A folder on the file system of the measured `home` (files are linked, not copied); it goes on leaving."""
    if not (home / "heads").is_dir():
        raise SystemExit(f"{home} holds no results: run `make demo` first")
    (home.parent / "build").mkdir(exist_ok=True)  # git ignores it in a checkout
    with tempfile.TemporaryDirectory(prefix="bench-", dir=home.parent / "build") as root:
        yield Path(root)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table in columns, the first one to the left, the others to the right."""
    widths = [max(len(line[place]) for line in [header, *rows]) for place in range(len(header))]
    for line in [header, ["-" * width for width in widths], *rows]:
        cells = [
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
    print(flush=True)
