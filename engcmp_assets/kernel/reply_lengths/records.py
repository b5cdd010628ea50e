"""Lengths of replies under one shared cap, and their pairing by prompt."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from engcmp_resources.errors import EngcmpError

Ending = Literal["finished", "capped", "looped", "stopped_early", "error", "empty"]
LEFT_OUT: tuple[Ending, ...] = ("looped", "stopped_early", "error", "empty")
# What the sensitivity counts as capped: these may have gone on. An empty reply ended, so it is left out there too.
AS_CAPPED: tuple[Ending, ...] = ("looped", "stopped_early", "error")
_MARKERS = (
    0.1  # share of the cap by which a capped span may fall short of it: markers, and text that was tokenised again
)


@dataclass(frozen=True, slots=True)
class ReplyLength:
    """The length of one reply (or of its thinking) in tokens, and how it ended. `capped`: the true length is at least the cap."""

    prompt_id: str
    tokens: int
    ending: Ending


@dataclass(frozen=True, slots=True)
class PromptPair:
    """The usable replies of both arms to one prompt, as many of each: lengths in tokens, infinity for a capped reply."""

    prompt_id: str
    baseline: tuple[float, ...]
    candidate: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class PairedLengths:
    """All prompts that both arms have usable replies to, under one cap in tokens.

    `left_out` counts replies by arm and ending; `surplus` those dropped so that both arms have as many to a prompt;
    `prompts_left_out` names the prompts without a pair.
    """

    cap: int
    pairs: tuple[PromptPair, ...]
    left_out: Mapping[str, Mapping[str, int]]
    surplus: int
    prompts_left_out: tuple[str, ...]

    def capped_share(self, arm: Literal["baseline", "candidate"]) -> float:
        """The share of an arm's paired replies that were capped. 0 where there is no pair."""
        lengths = [length for pair in self.pairs for length in getattr(pair, arm)]
        return sum(map(math.isinf, lengths)) / len(lengths) if lengths else 0.0


def reply_length(prompt_id: str, tokens: int, finish: str, *, looped: bool) -> ReplyLength:
    """The length of a whole reply from its finish class and the verdict on loops; a `recovered` reply finished.

    Raises EngcmpError for a finish class that is not known.
    """
    ending = "looped" if looped else "finished" if finish == "recovered" else finish
    if ending not in get_args(Ending):
        raise EngcmpError(
            f"prompt {prompt_id}: {finish!r} is no finish class", remedy="use those of MEASURES section 7"
        )
    return ReplyLength(prompt_id, tokens, ending)  # type: ignore[arg-type] # one of the words, by the lines above


def thinking_length(
    prompt_id: str, reasoning_tokens: int, finish: str, *, looped: bool, ended_in: Literal["reasoning", "answer"]
) -> ReplyLength:
    """The length of a reply's thinking. Once the answer has begun it is complete, however the reply ended afterwards."""
    if ended_in == "answer" and finish != "error":
        return ReplyLength(prompt_id, reasoning_tokens, "finished" if reasoning_tokens else "empty")
    if finish in ("finished", "recovered"):  # it stopped inside its thinking: complete, but there is no answer
        return ReplyLength(prompt_id, reasoning_tokens, "stopped_early")
    return reply_length(prompt_id, reasoning_tokens, finish, looped=looped)


def pair_up(
    baseline: Sequence[ReplyLength], candidate: Sequence[ReplyLength], cap: int, *, as_capped: bool = False
) -> PairedLengths:
    """Pair the arms by prompt. Looped, stopped-early, failed and empty replies are left out and counted; `as_capped` is the
    sensitivity, which counts the first three as capped.

    With several replies to a prompt the first of each arm are kept, in the order given, until both have as many.
    Raises EngcmpError for a cap below 1, a length below 1 of a reply that finished, one above the cap, and a capped reply that
    is much shorter than the cap: then the arms share none.
    """
    if cap < 1:
        raise EngcmpError(f"a cap of {cap} tokens", remedy="give the max_tokens that both arms were asked with")
    sides = {"baseline": _usable(baseline, cap, as_capped), "candidate": _usable(candidate, cap, as_capped)}
    first, second = (lengths for lengths, _ in sides.values())
    names = sorted(dict.fromkeys([*(one.prompt_id for one in baseline), *(one.prompt_id for one in candidate)]))
    pairs, surplus, without = [], 0, []
    for name in names:
        one, other = first.get(name, []), second.get(name, [])
        size = min(len(one), len(other))
        surplus += len(one) + len(other) - 2 * size
        if size:
            pairs.append(PromptPair(name, tuple(one[:size]), tuple(other[:size])))
        else:
            without.append(name)
    counts = {arm: dict(left) for arm, (_, left) in sides.items()}
    return PairedLengths(cap, tuple(pairs), counts, surplus, tuple(without))


def _usable(replies: Sequence[ReplyLength], cap: int, as_capped: bool) -> tuple[dict[str, list[float]], Counter[str]]:
    usable: dict[str, list[float]] = {}
    left: Counter[str] = Counter()
    for reply in replies:
        if reply.ending == "capped" or (as_capped and reply.ending in AS_CAPPED):
            if reply.ending == "capped" and reply.tokens < (1 - _MARKERS) * cap:
                raise EngcmpError(
                    f"prompt {reply.prompt_id}: capped after {reply.tokens} tokens, the shared cap is {cap}",
                    remedy="compare replies under one cap; a full context caps earlier",
                )
            usable.setdefault(reply.prompt_id, []).append(math.inf)
        elif reply.ending in LEFT_OUT:
            left[reply.ending] += 1
        elif 1 <= reply.tokens <= cap:
            usable.setdefault(reply.prompt_id, []).append(float(reply.tokens))
        else:
            raise EngcmpError(
                f"prompt {reply.prompt_id}: finished after {reply.tokens} tokens under a cap of {cap}",
                remedy="count tokens as the engine does, from 1 to the cap; a reply without any is `empty`",
            )
    return usable, left
