"""Reads a result file of tool-eval-bench 2.8.0 or 3.0.0 (`--json-file`, schema "1") by rules of our own (MEASURES section 7).

An excluded scenario is missing, not 0. A reply that ran into max_tokens while it thought is capped, not wrong. Totals are counted again.
Reply texts come apart from the rest: they belong in the private store.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engcmp_resources.errors import EngcmpError
from engcmp_resources.tool_eval.installation import COMMAND, known_version

_SCHEMA = "1"
_POINTS = {"pass": 2, "partial": 1, "fail": 0}
_EXCLUDED_KINDS = ("timeout", "connection_error", "server_error")
_CAPPED_KIND = "reasoning_truncated"
_ID = re.compile(r"TC-[0-9]{2}")
_LIMIT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """`document` is the run without texts, plain JSON as the kernel's suite_run takes it; `texts` the logs by scenario id, private."""

    document: dict[str, Any]
    texts: dict[str, str]


def read_result(path: Path) -> SuiteResult:
    """One run of the suite. Raises EngcmpError for a file of another version or schema, of a failed run, or that contradicts itself."""
    where = str(path)
    try:
        if path.stat().st_size > _LIMIT_BYTES:
            raise EngcmpError(
                f"larger than {_LIMIT_BYTES >> 20} MiB", where=where, remedy=f"give a --json-file of {COMMAND}"
            )
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise EngcmpError(
            f"cannot be read as JSON: {error}", where=where, remedy=f"give a --json-file of {COMMAND}"
        ) from error
    return _Reader(found, where).result()


class _Reader:
    def __init__(self, found: Any, where: str) -> None:
        self._found, self._where = found, where

    def result(self) -> SuiteResult:
        top = self._typed(self._found, dict, "the document")
        if "error" in top:
            raise self._fault(f"the run failed: {str(top['error'])[:200]}", "run it again")
        version = known_version(self._get(top, "tool_eval_bench_version", str), self._where)
        if top.get("schema_version") != _SCHEMA:
            raise self._fault(
                f"schema_version {top.get('schema_version')!r} is not known", f"use a file of schema {_SCHEMA!r}"
            )
        if top.get("status") != "completed":
            raise self._fault(f"the run is {top.get('status')!r}, not completed", "run it again")
        if "trial_statistics" in top:
            raise self._fault("made with --trials: it holds one trial of several", "run each repeat on its own")
        config, metadata = self._get(top, "config", dict), self._get(top, "metadata", dict)
        scores = self._get(top, "scores", dict)
        if config.get("error_rate"):
            raise self._fault(
                f"made with --error-rate {config['error_rate']}: tools failed at random", "run it without"
            )
        rows = [self._row(one) for one in self._get(scores, "scenario_results", list)]
        self._check(rows, config, scores)
        document = {
            "suite": COMMAND,
            "version": version,
            "settings": self._settings(config, metadata),
            "scenarios": [self._scenario(row) for row in rows],
            "max_points": 2 * sum(row["failure_kind"] not in _EXCLUDED_KINDS for row in rows),
        }
        return SuiteResult(document, {row["scenario_id"]: row["raw_log"] for row in rows})

    def _settings(self, config: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
        """What must be equal for two runs to be held against each other; `seed` and `concurrency` stand among them."""
        extra = config.get("extra_params") or {}
        return {
            "temperature": config.get("temperature"),
            "max_turns": config.get("max_turns"),
            "max_tokens": extra.get("max_tokens", metadata.get("max_tokens")),
            "thinking": metadata.get("thinking_enabled"),
            "reference_date": config.get("reference_date"),
            "extra": {name: value for name, value in sorted(extra.items()) if name != "max_tokens"},
            "seed": config.get("seed"),
            "concurrency": self._get(config, "concurrency", int),
        }

    def _row(self, found: Any) -> dict[str, Any]:
        row = self._typed(found, dict, "a scenario result")
        name = self._get(row, "scenario_id", str)
        if _ID.fullmatch(name) is None:
            raise self._fault(f"{name!r} is no scenario of the suite", "run it without scenario packs")
        if _POINTS.get(self._get(row, "status", str)) != row.get("points"):
            raise self._fault(
                f"{name}: {row['status']!r} with {row.get('points')!r} points", "run it again; the file was changed"
            )
        return {"failure_kind": None, "turn_latencies_ms": [], **row, "raw_log": str(row.get("raw_log", ""))}

    def _check(self, rows: list[dict[str, Any]], config: Mapping[str, Any], scores: Mapping[str, Any]) -> None:
        ids = [row["scenario_id"] for row in rows]
        asked = self._get(config, "scenario_ids", list)
        if sorted(ids) != sorted(set(asked)) or len(ids) != config.get("scenario_count"):
            raise self._fault(f"{len(asked)} scenarios were asked for, {len(ids)} are told", "run it again")
        excluded = [row["scenario_id"] for row in rows if row["failure_kind"] in _EXCLUDED_KINDS]
        if sorted(excluded) != sorted(scores.get("excluded_scenarios") or []):
            raise self._fault(
                "its excluded scenarios are not those that failed by no fault of the model", "run it again"
            )
        told = (scores.get("total_points"), scores.get("max_points"))
        counted = (sum(row["points"] for row in rows), 2 * (len(rows) - len(excluded)))
        if told != counted:
            raise self._fault(
                f"it says {told[0]} of {told[1]} points, its scenarios add up to {counted[0]} of {counted[1]}",
                "run it again",
            )

    def _scenario(self, row: Mapping[str, Any]) -> dict[str, Any]:
        kind = row["failure_kind"]
        outcome = "missing" if kind in _EXCLUDED_KINDS else "capped" if kind == _CAPPED_KIND else row["status"]
        return {
            "scenario_id": row["scenario_id"],
            "outcome": outcome,
            "points": row["points"] if outcome == row["status"] else None,
            "failure_kind": kind,
            "turn_ms": [float(one) for one in self._typed(row["turn_latencies_ms"], list, "turn_latencies_ms")],
        }

    def _get(self, table: Mapping[str, Any], name: str, kind: type) -> Any:
        return self._typed(table.get(name), kind, name)

    def _typed(self, value: Any, kind: type, name: str) -> Any:
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self._fault(
                f"{name} is {type(value).__name__}, not {kind.__name__}", f"give a --json-file of {COMMAND}"
            )
        return value

    def _fault(self, what: str, remedy: str) -> EngcmpError:
        return EngcmpError(what, where=self._where, remedy=remedy)
