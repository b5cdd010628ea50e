"""Start-up and memory of two arms: time to ready, KV pool, a repeated prompt, the thinking switch (MEASURES section 6, Block T).

Every comparison is plain JSON: values or `{"missing": reason}`, with the labels that say what was not measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from engcmp_assets.kernel.records import Missing, plain
from engcmp_assets.kernel.throughput.bands import ratio_of
from engcmp_resources.errors import EngcmpError


@dataclass(frozen=True, slots=True)
class Start:
    """One start: seconds to the first completed inference, `cold` where `caches` were cleared before it and `warm` where they were kept.

    `caches` names them (`torch.compile cache`, `page cache`); an empty tuple says that none is known.
    """

    ready_s: float
    state: Literal["cold", "warm"]
    caches: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PrefixRequest:
    """One sending of a prompt of `prompt_tokens` tokens: `repeat` 0 is the cold one. `cached_tokens` None: the engine does not say."""

    prompt_tokens: int
    repeat: int
    ttft_ns: int
    cached_tokens: int | None


def ready_times(candidate: Sequence[Start], baseline: Sequence[Start]) -> dict[str, Any]:
    """Median seconds to ready, cold and warm, on each arm; cold / warm of each arm; candidate / baseline of each state.

    Raises EngcmpError for one state of one arm measured with different caches.
    """
    found: dict[str, Any] = {}
    labels: list[str] = []
    medians: dict[tuple[str, str], float | Missing] = {}
    for name, starts in (("candidate", candidate), ("baseline", baseline)):
        own: dict[str, Any] = {}
        for state in ("cold", "warm"):
            of_state = [one for one in starts if one.state == state]
            caches = {one.caches for one in of_state}
            if len(caches) > 1:
                raise EngcmpError(
                    f"{state} starts of the {name} differ in their caches",
                    remedy="start each state with the same caches",
                )
            median = (
                statistics.median([one.ready_s for one in of_state])
                if of_state
                else Missing(f"no {state} start was measured")
            )
            medians[name, state] = median
            own[f"{state}_s"], own[f"{state}_starts"] = median, len(of_state)
            own[f"{state}_caches"] = list(next(iter(caches), ()))
            if of_state and not own[f"{state}_caches"]:
                labels.append(f"{name}, {state}: no cache is named, so what the start could reuse is not known")
        own["cold_to_warm"] = ratio_of(medians[name, "cold"], medians[name, "warm"])
        found[name] = own
    for state in ("cold", "warm"):
        found[f"{state}_ratio"] = ratio_of(medians["candidate", state], medians["baseline", state])
        if found["candidate"][f"{state}_caches"] != found["baseline"][f"{state}_caches"]:
            labels.append(f"{state}: the two arms' caches are not the same")
    document: dict[str, Any] = plain(found | {"labels": labels})
    return document


def kv_pools(candidate: Mapping[str, Any], baseline: Mapping[str, Any]) -> dict[str, Any]:
    """The ratio of two KV pools in tokens, with both maximum lengths: a pool is sized for the length that it was started with.

    Each side is a launch's `kv_pool`: `tokens`, `max_model_len` and `how`.
    """
    sides = {"candidate": candidate, "baseline": baseline}
    tokens = {name: _tokens(name, side) for name, side in sides.items()}
    longest = {name: side.get("max_model_len") for name, side in sides.items()}
    labels = [f"the {name} does not state its maximum length" for name, length in longest.items() if length is None]
    if not labels and longest["candidate"] != longest["baseline"]:
        labels.append(
            f"maximum lengths differ: {longest['candidate']:,} on the candidate, {longest['baseline']:,} on the baseline"
        )
    document: dict[str, Any] = plain(
        {
            name: {"tokens": tokens[name], "max_model_len": longest[name], "how": side.get("how")}
            for name, side in sides.items()
        }
        | {"ratio": ratio_of(tokens["candidate"], tokens["baseline"]), "labels": labels}
    )
    return document


def _tokens(name: str, pool: Mapping[str, Any]) -> float | Missing:
    tokens = pool.get("tokens")
    if isinstance(tokens, int | float):
        return float(tokens)
    reason = tokens.get("missing") if isinstance(tokens, Mapping) else None
    return Missing(f"{name}: {reason or 'the engine does not state its KV pool'}")


def prefix_repeats(requests: Sequence[PrefixRequest]) -> list[dict[str, Any]]:
    """For each prompt length: the cold time to first token, and of each repeat its time as a share of it and the share of the prompt
    that was cached. `reuse` is `reused`, `not reused`, or Missing where the engine does not state cached tokens: time alone is no proof.

    Raises EngcmpError for a length that was sent cold not exactly once, or a repeat twice.
    """
    found = []
    for length in sorted({one.prompt_tokens for one in requests}):
        own = sorted((one for one in requests if one.prompt_tokens == length), key=lambda one: one.repeat)
        if [one.repeat for one in own] != list(range(len(own))):
            raise EngcmpError(
                f"prompt of {length} tokens: repeats {[one.repeat for one in own]}",
                remedy="send it cold once, as 0, then 1, 2, 3",
            )
        cold, *repeats = own
        found.append(
            {
                "prompt_tokens": length,
                "cold_ttft_ms": cold.ttft_ns / 1e6,
                "cold_cached_tokens": plain(_stated(cold)),
                "repeats": [
                    {
                        "repeat": one.repeat,
                        "ttft_ms": one.ttft_ns / 1e6,
                        "share_of_cold": plain(ratio_of(float(one.ttft_ns), float(cold.ttft_ns))),
                        "cached_tokens": plain(_stated(one)),
                        "cached_share": plain(ratio_of(_stated(one), float(length))),
                    }
                    for one in repeats
                ],
                "reuse": plain(_reuse(repeats)),
                "labels": ["the first sending was not cold"] if cold.cached_tokens else [],
            }
        )
    return found


def _stated(one: PrefixRequest) -> float | Missing:
    return Missing("the engine does not state cached tokens") if one.cached_tokens is None else float(one.cached_tokens)


def _reuse(repeats: Sequence[PrefixRequest]) -> str | Missing:
    if not repeats:
        return Missing("the prompt was not repeated")
    if any(one.cached_tokens is None for one in repeats):
        return Missing("the engine does not state cached tokens")
    return "reused" if any(one.cached_tokens for one in repeats) else "not reused"


def thinking_switch(on: Mapping[str, Any] | None, off: Mapping[str, Any] | None) -> dict[str, Any]:
    """Whether switching thinking off changes anything on one arm, from what it was asked with and without.

    Each side may give `prompt_tokens` and `token_ids` (the rendered prompt) and `reasoning_tokens` (of its reply). The switch is
    `honoured` where no token of reasoning came with it off and some with it on, `not honoured` where reasoning still came; where no
    reply says so, `changes the prompt` or `ignored by the template`. Missing where neither is known.
    """
    sides = {"on": dict(on or {}), "off": dict(off or {})}
    reasoning = [sides[name].get("reasoning_tokens") for name in ("on", "off")]
    prompts = [sides[name].get("token_ids") or sides[name].get("prompt_tokens") for name in ("on", "off")]
    verdict: str | Missing = Missing("neither the prompt nor the reply is known with thinking on and off")
    if None not in prompts:
        verdict = "changes the prompt" if prompts[0] != prompts[1] else "ignored by the template"
    if reasoning[1] is not None and reasoning[1] > 0:
        verdict = "not honoured"
    elif reasoning[0] is not None and reasoning[1] == 0:
        verdict = "honoured" if reasoning[0] > 0 else Missing("no reply reasons, with thinking on either")
    kept = ("prompt_tokens", "reasoning_tokens")
    document: dict[str, Any] = plain(
        {name: {key: side[key] for key in kept if side.get(key) is not None} for name, side in sides.items()}
        | {"switch": verdict}
    )
    return document
