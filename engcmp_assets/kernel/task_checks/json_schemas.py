"""Schemas of the JSON check: JSON Schema 2020-12 without what it lets pass in silence, unknown keywords and unchecked formats."""

from __future__ import annotations

import datetime as dt
import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import SchemaError

from engcmp_resources.errors import EngcmpError

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_ONE = frozenset({"items", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames"})
_MANY = frozenset({"anyOf", "allOf", "oneOf", "prefixItems"})
_NAMED = frozenset({"properties", "patternProperties", "$defs"})
_PLAIN = frozenset(
    {
        *("$schema", "$ref", "title", "description", "type", "enum", "const", "format", "pattern", "required"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength"),
        *("minItems", "maxItems", "uniqueItems", "minContains", "maxContains", "minProperties", "maxProperties"),
        "dependentRequired",
    }
)
KEYWORDS = _ONE | _MANY | _NAMED | _PLAIN

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_TIME = re.compile(r"\d{2}:\d{2}:\d{2}(?:\.\d{1,6})?(?:Z|[+-]\d{2}:\d{2})", re.ASCII)
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_EMAIL = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]+@[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9-]+)+")


def _is_date(text: str) -> bool:
    return _DATE.fullmatch(text) is not None and dt.date.fromisoformat(text) is not None


def _is_time(text: str) -> bool:
    return _TIME.fullmatch(text) is not None and dt.time.fromisoformat(text) is not None


def _is_date_time(text: str) -> bool:
    day, sign, time = text[:10], text[10:11], text[11:]
    return sign in ("T", "t") and _is_date(day) and _is_time(time.upper())


FORMATS: Mapping[str, Callable[[str], bool]] = {
    "date": _is_date,
    "time": _is_time,
    "date-time": _is_date_time,
    "uuid": lambda text: _UUID.fullmatch(text) is not None,
    "email": lambda text: _EMAIL.fullmatch(text) is not None,
    "ipv4": lambda text: text.isascii() and ipaddress.IPv4Address(text) is not None,
    "ipv6": lambda text: "%" not in text and ipaddress.IPv6Address(text) is not None,
    "regex": lambda text: re.compile(text) is not None,
}


class Schema:
    """A schema that is wholly checked. Raises EngcmpError for an unknown keyword or format, a remote `$ref`, or what is no schema."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        try:
            Draft202012Validator.check_schema(schema)
        except SchemaError as error:
            raise EngcmpError(f"not a JSON Schema: {error.message}", where=error.json_path) from error
        for place, part in _parts(schema, "$"):
            _check_part(place, part)
            _check_reference(place, part, schema)
        checker = FormatChecker(formats=())
        for name, holds in FORMATS.items():
            checker.checks(name, raises=(ValueError, re.error))(_of_strings(holds))
        self._validator = Draft202012Validator(schema, format_checker=checker)

    def fault(self, value: Any) -> str | None:
        """The first fault that is found, with its place, None where the value fits. Raises EngcmpError for a `$ref` without end."""
        try:
            error = next(iter(self._validator.iter_errors(value)), None)
        except RecursionError as cause:
            raise EngcmpError(
                "a $ref of the schema leads to itself without end", remedy="correct the schema"
            ) from cause
        return None if error is None else f"{error.json_path}: {error.message[:300]}"


def _of_strings(holds: Callable[[str], bool]) -> Callable[[object], bool]:
    return lambda value: holds(value) if isinstance(value, str) else True


def _parts(schema: Any, place: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every schema within a schema, with its place."""
    if not isinstance(schema, Mapping):  # true and false are schemas too
        return
    yield place, schema
    for keyword, inner in schema.items():
        if keyword in _ONE:
            yield from _parts(inner, f"{place}.{keyword}")
        elif keyword in _MANY:
            for number, part in enumerate(inner):
                yield from _parts(part, f"{place}.{keyword}[{number}]")
        elif keyword in _NAMED:
            for name, part in inner.items():
                yield from _parts(part, f"{place}.{keyword}.{name}")


def _check_reference(place: str, part: Mapping[str, Any], schema: Mapping[str, Any]) -> None:
    target = part.get("$ref", "#")
    if target != "#" and target.removeprefix("#/$defs/") not in schema.get("$defs", {}):
        raise EngcmpError(
            f"$ref {target!r} leads to nothing of the schema", where=place, remedy="use # or #/$defs/NAME"
        )


def _check_part(place: str, part: Mapping[str, Any]) -> None:
    unknown = sorted(set(part) - KEYWORDS)
    if unknown:
        raise EngcmpError(
            f"unknown keyword {unknown[0]!r} in a JSON Schema: it would pass in silence",
            where=place,
            remedy=f"use {', '.join(sorted(KEYWORDS))}",
        )
    if part.get("$schema", _DIALECT) != _DIALECT:
        raise EngcmpError(f"the schema is of {part['$schema']!r}", where=place, remedy=f"write it for {_DIALECT}")
    if part.get("format", "date") not in FORMATS:
        raise EngcmpError(
            f"format {part['format']!r} is not checked", where=place, remedy=f"use one of {', '.join(sorted(FORMATS))}"
        )
    if not isinstance(part.get("multipleOf", 1), int):
        raise EngcmpError("multipleOf of a fraction is not exact", where=place, remedy="give an integer")
