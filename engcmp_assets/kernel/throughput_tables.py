"""The table `[throughput]` of a protocol: which prompts, how long, how many at a time, how often, and how speeds are judged.

A study without it measures no speed, and its freeze knows nothing of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field, SerializerFunctionWrapHandler, model_serializer

from engcmp_assets.kernel.engine_tables import ProcessEngine, ServerEngine
from engcmp_assets.kernel.fields import Strict

_Number = TypeVar("_Number", int, float)
PLAN_FILE = "throughput_plan.json"
"""The frozen index of a study's plan, in its folder: the digest of every prompt."""
NONCE_TOKENS = 8
"""Tokens of the first line of each prompt, its line end included."""


def _each_once(values: list[_Number]) -> list[_Number]:
    if len(set(values)) != len(values):
        raise ValueError("a value stands twice")
    return values


def _named(values: list[str]) -> list[str]:
    if wrong := [name for name in values if not re.fullmatch(r"[a-z0-9][a-z0-9_]*", name)]:
        raise ValueError(f"{wrong[0]!r} is no content kind")
    if len(set(values)) != len(values):
        raise ValueError("a kind stands twice")
    return values


Counts = Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1), AfterValidator(_each_once)]


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


class OpenLoop(Strict):
    """Cells whose requests go out at a rate, whatever comes back: each kind and prompt length of the plan at each of `rates_per_s`.

    `arrival` says how the gaps between them are drawn; the draws are the same for every engine and repeat.
    """

    rates_per_s: Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=1), AfterValidator(_each_once)]
    arrival: Literal["poisson", "constant"]


class ChatPrompts(Strict):
    """How a prompt of the plan is sent as a chat of one message, to an engine that takes no token ids.

    `before` and `after` are what the engine's template puts around the message, begin included: a prompt with them has exactly its length.
    `template` goes into each request as `chat_template_kwargs`. `to` "every engine" gives all arms the same prompts; by default a launch
    that was found to take token ids gets those.
    """

    before: str
    after: str
    template: dict[str, Any] = Field(default_factory=dict)
    to: Literal["where ids are not taken", "every engine"] = "where ids are not taken"


class ThroughputPlan(Strict):
    """Content kinds (blocks of the prompt set) x prompt lengths in tokens x requests at a time.

    `requests` are those of a cell in one repeat, `warmup` those before a width's cells, untimed; `output_tokens` is what each is asked for.
    Repeat k of an arm is a start of its own where `start_each_repeat`; at least `seconds_between_repeats` lie between two of them.
    `order` is that of the arms when all are measured: `abba` turns it round from repeat to repeat, so that drift falls on both of a pair.
    """

    kinds: Annotated[list[str], Field(min_length=1), AfterValidator(_named)]
    prompt_tokens: Counts
    concurrency: Counts
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
    open_loop: OpenLoop | None = None
    chat: ChatPrompts | None = None

    @model_serializer(mode="wrap")
    def _without_what_is_not_there(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A plan without an open loop or chats is written as it was before there were any, so that it is the same measurement."""
        found: dict[str, Any] = write(self)
        for name in ("open_loop", "chat"):
            if getattr(self, name) is None:
                found.pop(name, None)
        return found

    @property
    def cells(self) -> tuple[CellKey, ...]:
        """The cells in the order in which a repeat measures them: by width, so that each width is warmed up once; then by rate."""
        widths: list[tuple[int, float | None]] = [(width, None) for width in self.concurrency]
        widths += [(max(self.concurrency), rate) for rate in (self.open_loop.rates_per_s if self.open_loop else ())]
        return tuple(
            CellKey(kind, tokens, width, rate)
            for width, rate in widths
            for tokens in self.prompt_tokens
            for kind in self.kinds
        )

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with its reply: what one request wants of an engine's context."""
        return max(self.prompt_tokens) + self.output_tokens


@dataclass(frozen=True, slots=True)
class CellKey:
    """A cell: a content kind, a prompt length in tokens, and how many requests are served at a time.

    With `rate_per_s` an open loop: requests go out at that rate, and `concurrency` is what the engine was started for.
    """

    kind: str
    prompt_tokens: int
    concurrency: int
    rate_per_s: float | None = None

    @property
    def cell_id(self) -> str:
        pace = f"c{self.concurrency}" if self.rate_per_s is None else f"r{self.rate_per_s:g}"
        return f"{self.kind}-{self.prompt_tokens}-{pace}"


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
