"""The faults that the simulator can be told to have, each named and described in a line.

A script is `{"faults": [{"name": NAME, "at": {...}, "times": N, PARAMETER: VALUE}], "timing": {...}}`. `at` narrows where a fault
happens: each key must hold of the moment, as the number or text itself, one of a list, or `{"from": N}`. Keys: `path`; `method`;
`request` (those that generate or score are numbered from 0); `prompt_tokens`; `running` (requests at this moment); `token` (of the
reply, from 0); `row` (its index in the prompt). `times` is how many requests have it at most; without it, all.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Kind:
    """What a fault does, its parameters with their defaults, and where it happens unless the script says."""

    does: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    at: Mapping[str, Any] = field(default_factory=dict)


FAULTS: dict[str, Kind] = {
    # the stream
    "role_only_first_chunk": Kind("sends the role chunk with empty content at once, long before the first token"),
    "empty_content": Kind("sends `count` chunks with empty content before each chunk of tokens", {"count": 1}),
    "keepalive_comments": Kind("sends comment lines every `every_ms` while it waits", {"every_ms": 5.0, "text": "keepalive"}),
    "several_tokens_in_a_chunk": Kind("sends as many tokens a chunk as `tokens` says, its last number for all others", {"tokens": [4]}),
    "reasoning_field": Kind("names the delta of a thought `field`: reasoning, reasoning_content, or both", {"field": "both"}),
    "reasoning_in_content": Kind("leaves the thought and its end marker in the content"),
    "usage_missing": Kind("sends no usage"),
    "usage_wrong": Kind("adds `completion` and `prompt` to the counts in usage", {"completion": 1, "prompt": 0}),
    "usage_no_reasoning": Kind("says 0 reasoning tokens whatever was thought, or nothing of them", {"absent": False}),
    "token_ids_missing": Kind("does not send the token ids it was asked for"),
    "finish_missing": Kind("ends without a finish reason"),
    "done_missing": Kind("ends the stream without [DONE]"),
    "usage_null": Kind("says null for usage in every chunk, the last one too"),
    "error_in_stream": Kind(
        "sends an error object in the stream whose status was 200, then ends it, after [DONE] if `done`",
        {"event": False, "done": False},
        {"token": 3},
    ),
    "stream_ends": Kind("ends the body well, without finish reason, usage and [DONE]", {}, {"token": 3}),
    "html": Kind("answers with an HTML page, status 200", {}, {"method": "POST"}),
    "json_cut": Kind("cuts the JSON of the answer in half", {}, {"method": "POST"}),
    "http_429": Kind("refuses with 429 and Retry-After", {"retry_after_s": 1}, {"method": "POST"}),
    "http_error": Kind("refuses with `status` and the engine's error", {"status": 500, "message": "failed"}, {"method": "POST"}),
    "refuses_fields": Kind("refuses a request that has any of these `fields`, with 400", {"fields": ["return_token_ids"]}),
    "connection_reset": Kind("resets the connection in the middle of the stream", {}, {"token": 3}),
    "connection_cut": Kind("closes the connection in the middle of the stream", {}, {"token": 3}),
    "stall": Kind("waits `ms` before this token, for ever where that is null", {"ms": None}, {"token": 3}),
    "reply_text": Kind("replies with `text`, then ends", {"text": "  \n \n\n  "}),
    # health and life
    "stuck_but_healthy": Kind("takes requests and never sends a token, while /health is 200"),
    "dead_behind_health": Kind("answers all that needs the engine with 500, while /health is 200", {}, {"method": "POST"}),
    "gpu_lost": Kind("fails this token with a CUDA error, while /health stays 200", {}, {"token": 3}),
    "dies_at_token": Kind("the process ends with `code` before this token", {"code": 3}, {"token": 3}),
    "dies_in_row": Kind("the process ends with `code` while it scores this row", {"code": 3}, {"row": 3}),
    "slow_start": Kind("refuses connections for `ms` after its start", {"ms": 500.0}),
    "health_503_while_loading": Kind("/health is 503 for `ms` after it listens", {"ms": 500.0}),
    "health_200_while_warming": Kind("/health is 200, but replies wait `ms` after it listens", {"ms": 500.0}),
    "port_taken": Kind("ends at its start: the address is in use"),
    "no_free_memory": Kind("ends at its start: too little free GPU memory, or a co-tenant `changed` it", {"changed": False}),
    "ignores_stop": Kind("does not end when it is told to (SIGTERM)"),
    "counters_reset": Kind("its counters start again from 0"),
    "determinism_flag_ignored": Kind("resolves the promise of determinism (--deterministic) to off"),
    "model_name_wrong": Kind("serves and names the model `name`", {"name": "another/model"}),
    "settings_cut": Kind("resolves the batch to `batch_tokens` without a word of warning", {"batch_tokens": 540}),
    # prompt and request
    "control_strings_parsed": Kind("reads names of control tokens in a user's text as control tokens"),
    "bos_double": Kind("puts two BOS tokens before a text"),
    "bos_missing": Kind("puts no BOS token before a text"),
    "tokenizer_other": Kind("tokenizes text as another model does: two ids for each byte"),
    "prompt_truncated": Kind("keeps the last `tokens` of the prompt", {"tokens": 8}),
    "empty_prompt": Kind("drops the one token of a prompt of length 1", {}, {"prompt_tokens": 1}),
    "max_tokens_ignored": Kind("goes on `more` tokens after max_tokens", {"more": 5}),
    "ignore_eos_not_honoured": Kind("ends with the token `token` although the request says ignore_eos", {}, {"token": 3}),
    "thinking_switch_ignored": Kind("thinks although it was told not to"),
    # cache
    "cache_hidden": Kind("says 0 of prompt tokens from the cache, whatever came from it, or nothing", {"absent": False}),
    "cache_always_hits": Kind("has every prompt in its cache, also after a start"),
    "cache_changes_rows": Kind("rows of a prompt that was in the cache differ by `scale`", {"scale": 0.01}),
    # rows
    "noise": Kind("adds run-to-run noise to all rows and tokens, in logits", {"scale": 0.01}),
    "noise_under_load": Kind("adds run-to-run noise to rows and tokens while others run", {"scale": 0.01}, {"running": {"from": 2}}),
    "noise_from_second_chunk": Kind("adds run-to-run noise to rows from the second prefill chunk on", {"scale": 0.01}),
    "logprobs_shifted": Kind("gives each row the values of the row `by` further on", {"by": 1}),
    "logprobs_processed": Kind("gives log-probabilities after temperature"),
    "logprobs_stale": Kind("reads the cache while it scores, and gives cached rows the values of the last scored prompt"),
    "prompt_logprobs_missing": Kind("leaves out the log-probabilities of the prompt"),
    "prompt_logprobs_short": Kind("leaves out the last `rows` rows of the prompt", {"rows": 1}),
    "prompt_logprobs_refused": Kind("refuses to score a prompt, with `status`", {"status": 500}),
    "nan_rows": Kind("gives NaN in this row", {}, {"row": 3}),
    # dumps
    "dump_cut_short": Kind("cuts the file of this row in half", {}, {"row": 3}),
    "dump_row_missing": Kind("leaves this row out of the dump", {}, {"row": 3}),
    "hash_wrong": Kind("gives a wrong hash for this row", {}, {"row": 3}),
}  # fmt: skip

AT_KEYS = frozenset({"method", "path", "request", "prompt_tokens", "running", "token", "row"})
TIMING = {"ttft_ms": 0.0, "itl_ms": 0.0, "prefill_ms_per_token": 0.0}


class BadScript(ValueError):
    """A script that names what does not exist."""


@dataclass(slots=True, eq=False)
class Entry:
    """One fault of a script, and how many requests may still have it (None: any number).

    `parameters` bear the name too: so they are never empty, and true where the fault happens.
    """

    name: str
    at: Mapping[str, Any]
    left: int | None
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds: to the first token, between steps, and for each prompt token that the cache does not have."""

    ttft_ms: float = 0.0
    itl_ms: float = 0.0
    prefill_ms_per_token: float = 0.0


def parse_script(script: Any) -> tuple[list[Entry], Timing]:
    """The faults and the timing of a script. Raises BadScript naming what is unknown."""
    if not isinstance(script, dict) or set(script) - {"faults", "timing"}:
        raise BadScript("a script is an object with `faults` and `timing`")
    timing = script.get("timing", {})
    if unknown := sorted(set(timing) - set(TIMING)):
        raise BadScript(f"timing {unknown[0]!r}: there is {', '.join(TIMING)}")
    return [_entry(fault) for fault in script.get("faults", [])], replace(Timing(), **timing)


def _entry(fault: Any) -> Entry:
    if not isinstance(fault, dict) or fault.get("name") not in FAULTS:
        raise BadScript(f"no fault of this name: {fault!r}"[:200])
    name, kind = fault["name"], FAULTS[fault["name"]]
    parameters = {key: value for key, value in fault.items() if key not in ("name", "at", "times")}
    if unknown := sorted(set(parameters) - set(kind.parameters)):
        raise BadScript(f"{name} takes no {unknown[0]!r}, only {', '.join(kind.parameters) or 'at and times'}")
    given = fault.get("at", {})
    at = {**kind.at, **given}
    if "path" in given and "method" not in given:
        at.pop("method", None)  # whoever names a path means it, whatever its method
    if unknown := sorted(set(at) - AT_KEYS):
        raise BadScript(f"{name}: no {unknown[0]!r} in `at`, only {', '.join(sorted(AT_KEYS))}")
    return Entry(name, at, fault.get("times"), {"name": name, **kind.parameters, **parameters})


def _holds(wanted: Any, found: Any) -> bool:
    if isinstance(wanted, dict):
        return found is not None and found >= wanted["from"]
    return found in wanted if isinstance(wanted, list) else found == wanted


class Faults:
    """The script in force; `names` are those of its faults. All methods may be called by any thread."""

    def __init__(self, script: Any = None) -> None:
        self._lock = threading.Lock()
        self._entries: list[Entry] = []
        self.names: frozenset[str] = frozenset()
        self.timing = Timing()
        self.load(script or {})

    def load(self, script: Any) -> None:
        """Put another script in force. Raises BadScript, and then keeps the old one."""
        entries, timing = parse_script(script)
        with self._lock:
            self._entries, self.timing = entries, timing
            self.names = frozenset(entry.name for entry in entries)

    def find(self, name: str, moment: Mapping[str, Any], had: list[Entry]) -> Mapping[str, Any] | None:
        """The parameters of a fault where it happens at this moment, else None.

        `had` lists the faults that this request has already; the one found is added to it.
        """
        with self._lock:
            for entry in self._entries:
                if entry.name != name or not all(_holds(want, moment.get(key)) for key, want in entry.at.items()):
                    continue
                if entry not in had:
                    if entry.left == 0:
                        continue
                    if entry.left is not None:
                        entry.left -= 1
                    had.append(entry)
                return entry.parameters
        return None
