"""Whether a reply is the JSON that was asked for (MEASURES section 7): strict syntax, schema, number of records.

Syntax is RFC 8259 at its strictest: strict UTF-8 without a byte-order mark, one document, no duplicate keys, no NaN or infinities, no
number beyond a double's range, no lone surrogates, bounded depth and size. The schema is JSON Schema 2020-12 with every format checked
and every keyword known; as in that standard, 1.0 is an integer.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from engcmp_assets.kernel.task_checks.answers import Finish, Unfinished, hold, unfinished
from engcmp_assets.kernel.task_checks.json_schemas import Schema

MOST_BYTES = 16 << 20
MOST_DEPTH = 64
MOST_DIGITS = 1000

Outcome = Literal["valid", "empty", "not_json", "schema", "count"] | Unfinished
_STRING_OR_BRACKET = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}]', re.DOTALL)
_SURROGATE = re.compile(r"\\u[dD][89abAB]|\\u[dD][c-fC-F]")
_FENCE = re.compile(r"\s*(`{3,})[A-Za-z0-9]*[ \t]*\r?\n(.*?)\r?\n[ \t]*\1\s*", re.DOTALL)


class NotJsonError(ValueError):
    """Text that is not strict JSON; the reason is its text."""


@dataclass(frozen=True, slots=True)
class JsonVerdict:
    """`unfenced` is the second figure: valid after removing one fence around the whole reply. `records` is None where there is no list."""

    outcome: Outcome
    reason: str
    records: int | None
    unfenced: bool


def check_json(
    reply: bytes, finish: Finish, *, schema: Schema | None = None, records: int | None = None, at: str = ""
) -> JsonVerdict:
    """The verdict on an answer span's bytes. `records` is the number of items wanted of the list at JSON Pointer `at`.

    A reply that was cut is not invalid. A schema is checked when it is made (Schema), not here.
    """
    ended = unfinished(finish)
    if ended is not None:
        return JsonVerdict(ended, "the reply did not finish", None, False)
    outcome, reason, found = _judge(reply, schema, records, at)
    if outcome == "valid":
        return JsonVerdict(outcome, reason, found, True)
    inner = without_fence(reply)
    return JsonVerdict(outcome, reason, found, inner is not None and _judge(inner, schema, records, at)[0] == "valid")


def _judge(data: bytes, schema: Schema | None, records: int | None, at: str) -> tuple[Outcome, str, int | None]:
    if not data.strip():
        return "empty", "there is no answer", None
    try:
        value = strict_json(data)
    except NotJsonError as error:
        return "not_json", str(error), None
    found = _count(value, at)
    fault = None if schema is None else schema.fault(value)
    if fault is not None:
        return "schema", fault, found
    if records is not None and found != records:
        what = "no list" if found is None else f"{found:,} records"
        return "count", f"{what} at {at or 'the root'!r}, asked for {records:,}", found
    return "valid", "", found


def strict_json(data: bytes, *, most_bytes: int = MOST_BYTES, most_depth: int = MOST_DEPTH) -> Any:
    """The value of strict JSON. Raises NotJsonError with the reason for anything else; linear in the number of bytes."""
    if len(data) > most_bytes:
        raise NotJsonError(f"{len(data):,} bytes, more than {most_bytes:,}")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotJsonError(f"not UTF-8: {error}") from error
    if text.startswith("\ufeff"):
        raise NotJsonError("it begins with a byte-order mark")
    _check_depth(text, most_depth)
    try:
        value = json.loads(
            text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_float, parse_int=_integer
        )
    except NotJsonError:
        raise
    except (ValueError, RecursionError) as error:
        raise NotJsonError(str(error)) from error
    if _SURROGATE.search(text) and not _is_unicode(value):
        raise NotJsonError("a lone surrogate")
    return value


def without_fence(reply: bytes) -> bytes | None:
    """What lies in the one fence that encloses the whole reply, None where there is no such fence."""
    try:
        match = _FENCE.fullmatch(reply.decode("utf-8"))
    except UnicodeDecodeError:
        return None
    return None if match is None else match[2].encode()


def _check_depth(text: str, most: int) -> None:
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        first = match[0][0]
        if first in "[{":
            depth += 1
            if depth > most:
                raise NotJsonError(f"nested deeper than {most}")
        elif first != '"':
            depth -= 1


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value] # add gives None, which is what is wanted
        raise NotJsonError(f"the key {twice!r} is there twice")
    return value


def _constant(name: str) -> float:
    raise NotJsonError(f"{name} is no JSON number")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise NotJsonError(f"the number {text[:20]} is beyond the range of a double")
    return value


def _integer(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise NotJsonError(f"an integer of more than {MOST_DIGITS:,} digits")
    return int(text)


def _is_unicode(value: Any) -> bool:
    if isinstance(value, str):
        return not any("\ud800" <= sign <= "\udfff" for sign in value)
    if isinstance(value, Mapping):
        return all(_is_unicode(key) and _is_unicode(inner) for key, inner in value.items())
    return all(_is_unicode(inner) for inner in value) if isinstance(value, list) else True


def _count(value: Any, at: str) -> int | None:
    """The number of items of the list at a JSON Pointer."""
    for part in at.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, Mapping) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isascii() and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        else:
            return None
    return len(value) if isinstance(value, list) else None


def self_test() -> None:
    """Planted replies with their known outcomes. Raises EngcmpError where one differs: then nothing may be graded."""
    schema = Schema(
        {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"id": {"type": "integer"}, "day": {"type": "string", "format": "date"}},
                "required": ["id"],
                "additionalProperties": False,
            },
        }
    )
    good = b'[{"id": 1, "day": "2026-02-28"}, {"id": 2}]'
    cases: dict[bytes, tuple[str, bool]] = {
        good: ("valid", True),
        b"```json\n" + good + b"\n```": ("not_json", True),
        b"Here: ```json\n" + good + b"\n```": ("not_json", False),
        b'[{"id": 1, "id": 1}, {"id": 2}]': ("not_json", False),
        b'[{"id": NaN}, {"id": 2}]': ("not_json", False),
        b'[{"id": true}, {"id": 2}]': ("schema", False),
        b'[{"id": 1, "day": "2026-02-30"}, {"id": 2}]': ("schema", False),
        b'[{"id": 1}]': ("count", False),
        b"[\xff]": ("not_json", False),
        b" \n": ("empty", False),
    }
    for reply, wanted in cases.items():
        verdict = check_json(reply, "finished", schema=schema, records=2)
        hold("JSON", [(repr(reply), (verdict.outcome, verdict.unfenced), wanted)])
    hold("JSON", [("a cut array", check_json(good[:20], "capped", schema=schema, records=2).outcome, "capped")])
