"""The tiny study with a block of long replies, for a server that runs already. No tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from ports import free_port
from speedy import SERVED, served_base
from tiny import TINY, TinyStudy

from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.study import load_study
from engcmp_assets.kernel.work import Done, Session, materialize, output_blob
from engcmp_assets.long_replies.session import measure_serving
from engcmp_assets.steps import step_named
from engcmp_resources import private_store
from engcmp_resources.store import Store

ARM = ArmKey.parse(SERVED)
SAMPLING = """[long_replies.sampling]
temperature = 0.0
top_p = 1.0
top_k = 0
min_p = 0.0
presence_penalty = 0.0
frequency_penalty = 0.0
ignore_eos = false
"""
PLAN = """[long_replies]
kinds = ["code", "prose"]
replies_per_kind = 2
seed = 11
concurrency = {concurrency}
reply_deadline_s = {deadline_s}
"""
STAGES = """[[long_replies.stages]]
stage = "L1"
cap_tokens = 24
again = {again}
[[long_replies.stages]]
stage = "L2"
cap_tokens = {cap}
replies_per_kind = 1
[[long_replies.stages]]
stage = "L3s"
cap_tokens = 64
"""
TASKS = """[long_replies.chat]
before = "<|im_start|>user\\n"
after = "<|im_end|>\\n<|im_start|>assistant\\n"
[long_replies.tasks.code]
tasks = ["wrap_words"]
cap_tokens = 16
[long_replies.tasks.json]
records = [2]
cap_tokens = 16
[long_replies.tasks.math]
problems = 2
cap_tokens = 16
[long_replies.tasks.needles]
lengths = [200]
depths = [0.5]
cap_tokens = 16
[long_replies.tasks.tools]
scenarios = ["no_call_needed"]
concurrency = [1, 2]
cap_tokens = 16
[long_replies.tasks.thinking]
kinds = ["prose"]
repeats = 2
cap_tokens = 16
[long_replies.tasks.fixed_traces]
traces = ["coins"]
sentence_ends = 1
random = 1
cap_tokens = 4
"""
TRACE = """question = "How many?"
begin = "<think>"
thinking = "There are two. No, there are three of them. Three."
end = "</think>"
"""
EARLY = """[long_replies.early_stop]
verdicts = 3
characters = 400
"""


def replying_study(
    root: Path, measured_home: Path, *, tasks: bool = False, early: bool = False, concurrency: int = 1, cap: int = 48,
    deadline_s: float = 60, again: int = 0, further: str = "",
) -> tuple[TinyStudy, int]:  # fmt: skip
    """The study, frozen, and the port at which its server is to run."""
    port = free_port()
    tiny = served_base(root, measured_home, port)
    folder = tiny.folder / "replies"
    (folder / "traces").mkdir(parents=True)
    for name in ("code-1", "prose-1", "prose-2"):
        (folder / f"{name}.txt").write_text(f"Say something of {name}.\n", encoding="utf-8")
    (folder / "traces" / "coins.toml").write_text(TRACE, encoding="utf-8")
    table = PLAN.format(concurrency=concurrency, deadline_s=deadline_s) + SAMPLING + STAGES.format(cap=cap, again=again)
    table += (TASKS if tasks else "") + (EARLY if early else "") + further
    path = tiny.folder / "protocol.toml"
    path.write_text(path.read_text(encoding="utf-8").replace("[limits]", f"{table}\n[limits]", 1), encoding="utf-8")
    done = tiny.run("freeze", TINY)
    assert done.returncode == 0, done.stderr
    return tiny, port


class Here:
    """The study's arm measured in this process, from its inputs to its long replies."""

    def __init__(self, tiny: TinyStudy, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in (tiny.variables | {"ENGCMP_HOME": str(tiny.home)}).items():
            monkeypatch.setenv(name, value)
        self.tiny, self.said = tiny, list[str]()
        self.on_say: Callable[[str], object] = str
        self.session = Session(load_study(TINY), Store(tiny.home), "test", self._say)

    def _say(self, text: str) -> None:
        self.said.append(text)
        self.on_say(text)

    def inputs(self) -> None:
        for name, arm in (("frozen_protocol", None), ("sources", ARM), ("prompt_set", ARM)):
            materialize(self.session, step_named(self.session.study, name), arm)

    def measure(self, artifacts: Sequence[str] | None = None, **options: Any) -> list[Done]:
        return list(measure_serving(self.session, ARM, artifacts=artifacts, **options))

    def output(self, done: Done, name: str) -> Path:
        return self.session.store.path(output_blob(done.receipt, name))

    def rows(self, done: Done) -> dict[str, dict[str, Any]]:
        table = pl.read_parquet(self.output(done, "replies.parquet"))
        return {row["reply_id"]: row for row in table.iter_rows(named=True)}

    def stages(self, done: Done) -> dict[str, dict[str, Any]]:
        document = json.loads(self.output(done, "stages.json").read_bytes())
        return {stage["stage"]: stage for stage in document["stages"]}

    def text(self, row: dict[str, Any]) -> dict[str, Any]:
        return private_store.read(self.tiny.home, row["private_sha256"])


def checks_of(done: Done) -> dict[str, bool]:
    return {check["name"]: check["passed"] for check in done.receipt["checks"]}
