"""Column lineage: of each column of each artifact's table, the columns above it that it is made from.

What lies in a file beside a table is named by the column that binds it: a protocol file, a source and a raw row by their hash, a
window by the hash of its token ids, a row of the reference by its position.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

from engcmp_assets.kernel.work import Step
from engcmp_resources.errors import EngcmpError

Origin = tuple[str, str]
"""An artifact and a column of its table."""

_P, _SOURCE, _TOKENS = "frozen_protocol:sha256", "sources:sha256", "prompt_set:tokens_sha256"
_RAW, _ROW, _NEXT = "captured_rows/*:raw_row_sha256", "reference_rows:position", "reference_rows:next_token"
_SERVED, _EVENT, _REPLY = "engine_launch/serving:start", "throughput_events", "long_replies"
_TEXT = f"{_REPLY}:text_sha256"
_MADE_HERE = ""
_ANY = "*"
_MEASURES = "%measures"  # the columns of those measures that the artifact itself is of

_TIMES = " ".join(
    f"{_EVENT}:{name}"
    for name in ("t0_ns", "scheduled_at_ns", "ttft_ns", "ttfa_ns", "last_at_ns", "done_at_ns", "n_tokens", "n_first_tokens", "status")
)  # fmt: skip
_VALUES = f"scores:{_MEASURES} throughput_cells:value long_output_checks:{_ANY}"
_BETWEEN = f"{_VALUES} {_RAW} summaries:value"

# Artifact to columns to what they are made from. `*` among the columns is all others; as the column of an origin, all of that table.
_RULES: Mapping[str, Mapping[str, str]] = {
    "frozen_protocol": {_ANY: _MADE_HERE},
    "sources": {_ANY: _P},
    "prompt_set": {_ANY: _P},
    "reference_rows": {
        "window_id": "prompt_set:window_id",
        "block": "prompt_set:block",
        "position": "prompt_set:rows",
        "next_token": _TOKENS,
        _ANY: f"{_TOKENS} {_SOURCE}",
    },
    "engine_launch/*": {"start": _MADE_HERE, "launch path": _P, _ANY: f"{_P} {_SOURCE}"},
    "captured_rows/*": {
        "run launch": "engine_launch/scoring:launch",
        "repeat": _P,
        "start": "engine_launch/scoring:start",
        "window_id": "prompt_set:window_id",
        "position": "prompt_set:rows",
        "score_path": "engine_launch/scoring:path",
        "raw_row_sha256": f"{_TOKENS} engine_launch/scoring:start",
    },
    "throughput_events": {
        "request_id cell_id repeat batch concurrency kind seed max_tokens expected_prompt_tokens": _P,
        _ANY: f"{_P} {_SERVED}",
    },
    "long_replies": {
        "reply_id block stage kind item repeat seed prompt_sha256 cap_tokens": _P,
        "start": _SERVED,
        _ANY: f"{_P} {_SERVED}",
    },
    "scores": {
        "run": "captured_rows/*:run",
        "window_id": "prompt_set:window_id captured_rows/*:window_id reference_rows:window_id",
        "cluster": "prompt_set:cluster",
        "block": "prompt_set:block",
        "bucket": "prompt_set:bucket",
        "role": "prompt_set:rows",
        "position": "captured_rows/*:position reference_rows:position",
        "next_token": _NEXT,
        "score_path": "captured_rows/*:score_path",
        "reference_nll": "reference_rows:reference_nll",
        "reference_entropy": "reference_rows:reference_entropy",
        "reference_top_probability": "reference_rows:reference_top_probability",
        "reference_top_id": "reference_rows:reference_top_id",
        "excess_entropy": f"{_RAW} reference_rows:reference_entropy",
        "nll_minus_reference": f"{_RAW} {_NEXT} reference_rows:reference_nll",
        "top1": f"{_RAW} reference_rows:reference_top_id",
        "raw_row_sha256 engine_top_id entropy": _RAW,
        "nll agree_text": f"{_RAW} {_NEXT}",
        _ANY: f"{_RAW} {_ROW}",
    },
    "tails": {
        "panel measure": _P,
        "population": "scores:block scores:bucket",
        "rows": "scores:position",
        _ANY: f"scores:{_MEASURES}",
    },
    "throughput_cells": {
        "cell_id": f"{_EVENT}:cell_id",
        "repeat": f"{_EVENT}:repeat",
        "measure unit": _P,
        "requests": f"{_EVENT}:request_id",
        "complete": f"{_EVENT}:status",
        "value": _TIMES,
    },
    "long_output_checks": {
        **{name: f"{_REPLY}:{name}" for name in (
            "reply_id", "block", "stage", "kind", "item", "repeat", "seed", "cap_tokens", "text_sha256", "token_ids_sha256", "n_tokens",
            "reasoning_chars", "answer_chars",
        )},
        "turn_ms": f"{_REPLY}:started_at_ns {_REPLY}:done_at_ns",
        "prefix_digests": f"{_REPLY}:token_ids_sha256",
        "check": _P,
        "finish ending ended_in": f"{_TEXT} {_REPLY}:finish_reason {_REPLY}:status",
        _ANY: _TEXT,
    },
    "summaries": {
        "figure_id panel measure unit": _P,
        "population": "scores:block",
        "rows": "scores:position",
        "clusters": "scores:cluster",
        "low high": f"{_VALUES} scores:cluster",
        "value": _VALUES,
    },
    "comparisons": {
        "figure_id pair_id panel measure unit": _P,
        "population": "scores:block",
        "low high verdict": f"{_BETWEEN} scores:cluster",
        "value": _BETWEEN,
    },
    "publication": {
        "arm checkpoint engine version": _P,
        "figures": "summaries:figure_id summaries:value summaries:low summaries:high",
        _ANY: "summaries:figure_id",
    },
    "catalog": {_ANY: _MADE_HERE},
    "audit": {_ANY: _MADE_HERE},
    "engine_versions": {"engine": _P, _ANY: _MADE_HERE},
}  # fmt: skip


def lineage_of(step: Step, steps: Mapping[str, Step]) -> dict[str, tuple[Origin, ...]]:
    """Each column of `step`'s table with what it is made from; () for what comes to be there and is no other column's.

    `steps` are the study's, by artifact. Raises EngcmpError for a column that no rule is about.
    """
    rules = _rules_of(step.artifact)
    found = {}
    for column in step.columns:
        origins = _origins_of(rules, column.name)
        if origins is None:
            raise EngcmpError(
                f"nothing says what column {column.name} of {step.artifact} is made from", remedy="add it to the rules of its lineage"
            )  # fmt: skip
        found[column.name] = tuple(
            dict.fromkeys(origin for text in origins.split() for origin in _resolved(text, step, steps))
        )
    return found


def _rules_of(artifact: str) -> Mapping[str, str]:
    return next((rules for pattern, rules in _RULES.items() if fnmatchcase(artifact, pattern)), {})


def _origins_of(rules: Mapping[str, str], column: str) -> str | None:
    return next((origins for names, origins in rules.items() if column in names.split()), rules.get(_ANY))


def _resolved(text: str, step: Step, steps: Mapping[str, Step]) -> list[Origin]:
    """The columns that an origin names, of the artifacts that `step` uses in this study."""
    pattern, _, column = text.partition(":")
    found = []
    for artifact in dict.fromkeys(use.artifact for use in step.uses):
        if not fnmatchcase(artifact, pattern) or artifact not in steps:
            continue
        for one in steps[artifact].columns:
            if column in (_ANY, one.name) or (column == _MEASURES and one.name in step.measures):
                found.append((artifact, one.name))
    return found
