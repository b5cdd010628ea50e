"""The table `[throughput]` of a protocol: which prompts, how long, how many at a time, how often, and how speeds are judged.

A study without it measures no speed, and its freeze knows nothing of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from engcmp_assets.kernel.engine_tables import ProcessEngine, ServerEngine
from engcmp_assets.kernel.fields import Strict

PLAN_FILE = "throughput_plan.json"
"""The frozen index of a study's plan, in its folder: the digest of every prompt."""
NONCE_TOKENS = 8
"""Tokens of the first line of each prompt, its line end included."""


def _each_once(values: list[int]) -> list[int]:
    if len(set(values)) != len(values):
        raise ValueError("a value stands twice")
    return values


def _named(values: list[str]) -> list[str]:
    if wrong := [name for name in values if not re.fullmatch(r"[a-z0-9][a-z0-9_]*", name)]:
        raise ValueError(f"{wrong[0]!r} is no content kind")
    if len(set(values)) != len(values):
        raise ValueError("a kind stands twice")
    return values


_Counts = Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1), AfterValidator(_each_once)]


class Sampling(Strict):
    """What every request says of sampling, so that no engine's default is used. 0 for `top_k` takes all tokens.

    `ignore_eos` makes every reply as long as it was asked to be: a fixed-output cell.
    """

    temperature: float = Field(ge=0)
    top_p: float = Field(gt=0, le=1)
    top_k: int = Field(ge=0)
    min_p: float = Field(ge=0, le=1)
    presence_penalty: float
    frequency_penalty: float
    ignore_eos: bool


class Band(Strict):
    """The noise band that is declared before the run: `share` 0.08 for 8 % either way.

    Repeats that lie less than `least_hours` apart are of one session, and a band that they check is labelled so.
    """

    share: float = Field(gt=0, lt=1)
    least_hours: float = Field(ge=0)


class ThroughputPlan(Strict):
    """Content kinds (blocks of the prompt set) x prompt lengths in tokens x requests at a time.

    `requests` are those of a cell in one repeat, `warmup` those before a width's cells, untimed; `output_tokens` is what each is asked for.
    Repeat k of an arm is a start of its own where `start_each_repeat`; at least `seconds_between_repeats` lie between two of them.
    `order` is that of the arms when all are measured: `abba` turns it round from repeat to repeat, so that drift falls on both of a pair.
    """

    kinds: Annotated[list[str], Field(min_length=1), AfterValidator(_named)]
    prompt_tokens: _Counts
    concurrency: _Counts
    requests: int = Field(ge=1)
    output_tokens: int = Field(ge=2)
    warmup: int = Field(ge=0)
    repeats: int = Field(ge=1)
    seconds_between_repeats: float = Field(ge=0)
    start_each_repeat: bool
    order: Literal["abba", "same"]
    seed: int = Field(ge=0, lt=2**63)
    sampling: Sampling
    band: Band | None = None

    @property
    def cells(self) -> tuple[CellKey, ...]:
        """The cells in the order in which a repeat measures them: by width, so that each width is warmed up once."""
        return tuple(
            CellKey(kind, tokens, width)
            for width in self.concurrency
            for tokens in self.prompt_tokens
            for kind in self.kinds
        )

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with its reply: what one request wants of an engine's context."""
        return max(self.prompt_tokens) + self.output_tokens


@dataclass(frozen=True, slots=True)
class CellKey:
    """A cell: a content kind, a prompt length in tokens, and how many requests are served at a time."""

    kind: str
    prompt_tokens: int
    concurrency: int

    @property
    def cell_id(self) -> str:
        return f"{self.kind}-{self.prompt_tokens}-c{self.concurrency}"


def plan_faults(
    plan: ThroughputPlan, engines: Iterable[tuple[str, ProcessEngine | ServerEngine]]
) -> Iterator[tuple[str, str, str]]:
    """What cannot be measured as the table says: (field, what is wrong, remedy)."""
    if min(plan.prompt_tokens) <= NONCE_TOKENS:
        yield (
            "throughput.prompt_tokens",
            f"has {min(plan.prompt_tokens)}, and the first line of each prompt takes {NONCE_TOKENS} tokens",
            f"write {NONCE_TOKENS + 1} or more",
        )
    if plan.requests < max(plan.concurrency):
        yield (
            "throughput.requests",
            f"is {plan.requests}, and a cell keeps {max(plan.concurrency)} at a time",
            "write as many requests as the widest cell has at a time, or more",
        )
    for name, engine in engines:
        if isinstance(engine, ProcessEngine) and plan.longest > engine.context_tokens:
            yield (
                "throughput.prompt_tokens",
                f"has {max(plan.prompt_tokens)}, with {plan.output_tokens} output tokens {plan.longest}, over the context of engine "
                f"{name}, {engine.context_tokens}",
                f"shorten prompts or output, or raise engines.{name}.context_tokens",
            )
