"""The table `[startup]` of a protocol: how often an engine is started cold and warm, and what is asked of it beside the plan's load.

A study without it measures no start-up (MEASURES section 8). It is measured by the client of the speed block, so it wants `[throughput]`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated

from pydantic import Field

from engcmp_assets.kernel.engine_tables import ProcessEngine, ServerEngine
from engcmp_assets.kernel.fields import Strict
from engcmp_assets.kernel.throughput_tables import NONCE_TOKENS, Counts, ThroughputPlan


class PrefixPlan(Strict):
    """A prompt of each length in tokens, of texts of `kind`, sent once and then `repeats` times again, one request at a time.

    `output_tokens` is what each is asked for.
    """

    kind: str = Field(pattern=r"^[a-z0-9][a-z0-9_]*$")
    prompt_tokens: Counts
    repeats: int = Field(ge=1)
    output_tokens: int = Field(ge=1)

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with its reply."""
        return max(self.prompt_tokens) + self.output_tokens


class ThinkingPlan(Strict):
    """Chat prompts that are asked with `enable_thinking` true and false; `output_tokens` at most of each."""

    prompts: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]
    output_tokens: int = Field(ge=1)


class StartupPlan(Strict):
    """Starts that are only timed: first `cold_starts` with the caches cleared that the engine's kind can clear, then `warm_starts` with
    them kept. What `prefix` and `thinking` ask is asked of the last warm one.
    """

    cold_starts: int = Field(ge=0)
    warm_starts: int = Field(ge=1)
    prefix: PrefixPlan | None = None
    thinking: ThinkingPlan | None = None

    @property
    def states(self) -> tuple[str, ...]:
        """`cold` or `warm` of each start, in order."""
        return ("cold",) * self.cold_starts + ("warm",) * self.warm_starts


def startup_faults(
    plan: StartupPlan, load: ThroughputPlan | None, engines: Iterable[tuple[str, ProcessEngine | ServerEngine]]
) -> Iterator[tuple[str, str, str]]:
    """What cannot be measured as the table says: (field, what is wrong, remedy)."""
    if load is None:
        yield "startup", "has no table throughput beside it, whose client measures it", "add a table [throughput]"
    prefix = plan.prefix
    if prefix is None:
        return
    if min(prefix.prompt_tokens) <= NONCE_TOKENS:
        yield (
            "startup.prefix.prompt_tokens",
            f"has {min(prefix.prompt_tokens)}, and the first line of each prompt takes {NONCE_TOKENS} tokens",
            f"write {NONCE_TOKENS + 1} or more",
        )
    for name, engine in engines:
        if isinstance(engine, ProcessEngine) and prefix.longest > engine.context_tokens:
            yield (
                "startup.prefix.prompt_tokens",
                f"has {max(prefix.prompt_tokens)}, with its reply {prefix.longest}, over the context of engine {name}, "
                f"{engine.context_tokens}",
                f"shorten it, or raise engines.{name}.context_tokens",
            )
