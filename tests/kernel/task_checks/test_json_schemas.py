"""Schemas that check what they say: no unknown keyword, no unchecked format, no way out."""

from __future__ import annotations

from typing import Any

import pytest

from engcmp_assets.kernel.task_checks.json_schemas import FORMATS, Schema
from engcmp_resources.errors import EngcmpError

GOOD_AND_BAD = {
    "date": (["2026-02-28", "2024-02-29"], ["2026-02-30", "20260228", "2026-W01-1", "26-1-1", "\u0662026-01-01", ""]),
    "time": (["12:00:00Z", "23:59:59.5+02:00"], ["12:00", "24:00:00Z", "12:00:00", "12:60:00Z"]),
    "date-time": (["2026-02-28T12:00:00Z", "2026-02-28t12:00:00.25-05:00"], ["2026-02-28 12:00:00Z", "2026-02-28", "2026-02-30T12:00:00Z"]),
    "uuid": (["2f8b0c6e-4f7a-4b43-9d0a-0a1b2c3d4e5f"], ["2f8b0c6e4f7a4b439d0a0a1b2c3d4e5f", "g" * 36]),
    "email": (["a@example.org", "a.b+c@ex-ample.co.uk"], ["a@b", "@example.org", "a@example.org ", "a b@example.org", "a@-x.org"]),
    "ipv4": (["192.0.2.1"], ["192.0.2.256", "192.0.2", "192.0.02.1"]),
    "ipv6": (["2001:db8::1"], ["2001:db8::1%eth0", "12345::"]),
    "regex": (["a+"], ["a("]),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_checked(name: str) -> None:
    good, bad = GOOD_AND_BAD[name]
    schema = Schema({"type": "string", "format": name})
    assert [text for text in good if schema.fault(text) is not None] == []
    assert [text for text in bad if schema.fault(text) is None] == []
    assert Schema({"format": name}).fault(7) is None  # a format is of strings only


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"tipe": "string"}, "unknown keyword 'tipe' in a JSON Schema: it would pass in silence"),
        ({"properties": {"a": {"items": {"maximun": 3}}}}, r"unknown keyword 'maximun'.*\$.properties.a.items"),
        ({"anyOf": [{}, {"formats": "date"}]}, r"unknown keyword 'formats'.*\$.anyOf\[1\]"),
        ({"$defs": {"x": {"definitions": {}}}}, "unknown keyword 'definitions'"),
        ({"format": "hostname"}, "format 'hostname' is not checked"),
        ({"$ref": "https://example.org/schema"}, "leads to nothing of the schema"),
        ({"$ref": "#/$defs/b", "$defs": {"a": {}}}, "leads to nothing of the schema"),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, "the schema is of 'http://json-schema.org/draft-07"),
        ({"type": "strin"}, "not a JSON Schema"),
        ({"required": "a"}, "not a JSON Schema"),
        ({"multipleOf": 0.1}, "not exact"),
    ],
)
def test_a_schema_that_would_check_less_than_it_says_is_refused(schema: dict[str, Any], said: str) -> None:
    with pytest.raises(EngcmpError, match=said):
        Schema(schema)


def test_faults_name_their_place_and_types_are_exact_where_json_knows_them() -> None:
    schema = Schema({"type": "array", "items": {"$ref": "#/$defs/one"}, "$defs": {"one": {"type": "integer"}}})
    assert schema.fault([1, 2.0]) is None  # JSON Schema: 2.0 is an integer
    assert schema.fault([1, True]) == "$[1]: True is not of type 'integer'"
    assert schema.fault([1, "2"]) == "$[1]: '2' is not of type 'integer'"


def test_names_of_properties_are_no_keywords() -> None:
    schema = Schema(
        {"properties": {"tipe": {"type": "string"}}, "additionalProperties": False, "enum": [{"tipe": "x"}]}
    )
    assert schema.fault({"tipe": "x"}) is None
    assert schema.fault({"type": "x"}) is not None


def test_a_schema_may_refer_to_itself_but_not_without_end() -> None:
    tree = Schema({"type": "array", "items": {"$ref": "#"}})
    assert tree.fault([[], [[]]]) is None
    assert tree.fault([[], [1]]) == "$[1][0]: 1 is not of type 'array'"
    with pytest.raises(EngcmpError, match="leads to itself without end"):
        Schema({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}).fault(1)
