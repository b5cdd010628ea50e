"""Strict JSON, where parsers differ, and the verdicts on replies."""

from __future__ import annotations

import json
import string
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engcmp_assets.kernel.task_checks import json_check
from engcmp_assets.kernel.task_checks.json_check import NotJsonError, check_json, strict_json, without_fence
from engcmp_assets.kernel.task_checks.json_schemas import Schema
from engcmp_resources.errors import EngcmpError

DEEP = b"[" * 2000 + b"]" * 2000
# Input, what the standard library and msgspec do (A accepted, R refused), and why we refuse it.
DIFFERENCES = {
    "duplicate key": (b'{"a": 1, "a": 2}', "A", "A", "the key 'a' is there twice"),
    "duplicate key within": (b'[{"b": {"a": 1, "a": 1}}]', "A", "A", "the key 'a' is there twice"),
    "duplicate key by escape": (b'{"a": 1, "\\u0061": 2}', "A", "A", "the key 'a' is there twice"),
    "NaN": (b"[NaN]", "A", "R", "NaN is no JSON number"),
    "minus infinity": (b"[-Infinity]", "A", "R", "-Infinity is no JSON number"),
    "1e400": (b"[1e400]", "A", "R", "beyond the range of a double"),
    "trailing text": (b"[1] done", "R", "R", "Extra data"),
    "two documents": (b"[1]\n[2]", "R", "R", "Extra data"),
    "trailing comma": (b"[1,]", "R", "R", "Expecting value"),
    "trailing comma of an object": (b'{"a": 1,}', "R", "R", "property name"),
    "fence": (b"```json\n[1]\n```", "R", "R", "Expecting value"),
    "comment": (b"[1] // one", "R", "R", "Extra data"),
    "leading zero": (b"[01]", "R", "R", "delimiter"),
    "plus": (b"[+1]", "R", "R", "Expecting value"),
    "no digit before the point": (b"[.5]", "R", "R", "Expecting value"),
    "no-break space": ("[1,\u00a02]".encode(), "R", "R", "Expecting value"),
    "byte-order mark": (b"\xef\xbb\xbf[1]", "A", "R", "byte-order mark"),
    "lone surrogate by escape": (b'["\\ud800"]', "A", "R", "a lone surrogate"),
    "lone surrogate in a key": (b'{"\\uDC00": 1}', "A", "R", "a lone surrogate"),
    "raw surrogate bytes": (b'["\xed\xa0\x80"]', "A", "R", "not UTF-8"),
    "UTF-16": ("[1]".encode("utf-16"), "A", "R", "not UTF-8"),
    "5,000 digits": (b"[" + b"9" * 5000 + b"]", "R", "R", "more than 1,000 digits"),
    "2,000 deep": (DEEP, "R", "R", "nested deeper than 64"),
    "control character": (b'["a\nb"]', "R", "R", "Invalid control character"),
    "single quotes": (b"['a']", "R", "R", "Expecting value"),
    "cut": (b'[{"a": 1}, {"a"', "R", "R", "delimiter"),
    "nothing": (b"", "R", "R", "Expecting value"),
}
ACCEPTED = {
    "30-digit integer": (b"[123456789012345678901234567890]", [123456789012345678901234567890]),
    "a pair of surrogates": (b'["\\ud83d\\ude00"]', ["\U0001f600"]),
    "brackets in strings": (b'["' + b"[" * 500 + b'\\"]]"]', ["[" * 500 + '"]]']),
    "64 deep": (b"[" * 64 + b"]" * 64, None),
    "exponent": (b"[1E3, -0.0]", [1000.0, -0.0]),
    "white space": (b" \r\n\t[1] \n", [1]),
    "no list": (b'"word"', "word"),
}


def stdlib(data: bytes) -> Any:
    return json.loads(data)


def outcome(parse: Any, data: bytes) -> str:
    try:
        parse(data)
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return "R"
    return "A"


@pytest.mark.parametrize("name", DIFFERENCES)
def test_where_parsers_differ_ours_refuses_and_says_why(name: str) -> None:
    data, by_stdlib, by_msgspec, reason = DIFFERENCES[name]
    assert (outcome(stdlib, data), outcome(msgspec.json.decode, data)) == (by_stdlib, by_msgspec)
    with pytest.raises(NotJsonError, match=reason):
        strict_json(data)


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_is_json_has_its_value(name: str) -> None:
    data, value = ACCEPTED[name]
    assert strict_json(data) == (stdlib(data) if value is None else value)


@settings(deadline=None)  # no timed tests
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
                    | st.text(st.characters(exclude_categories=["Cs"])),
                    lambda inner: st.lists(inner) | st.dictionaries(st.text(string.printable), inner), max_leaves=20))  # fmt: skip
def test_whatever_python_writes_strictly_is_read_back(value: Any) -> None:
    assert strict_json(json.dumps(value, allow_nan=False).encode()) == value


@settings(deadline=None)  # no timed tests
@given(st.binary(max_size=60))
def test_no_bytes_are_accepted_that_the_standard_library_refuses(data: bytes) -> None:
    try:
        strict_json(data)
    except NotJsonError:
        return
    assert outcome(stdlib, data) == "A"


def test_bounds_hold_before_the_parser_works() -> None:
    with pytest.raises(NotJsonError, match="1,000,002 bytes, more than 1,000"):
        strict_json(b'"' + b"x" * 1_000_000 + b'"', most_bytes=1000)
    for hostile in (b'"' + b"\\" * 2_000_001, b"[" * 2_000_000, b'["' * 1_000_000, b'{"a":' * 400_000):
        assert outcome(strict_json, hostile) == "R"  # were it quadratic, this would not end


# ---------------------------------------------------------------- replies

RECORD = Schema(
    {"type": "array", "items": {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}}}
)
GOOD = b'[{"id": 1}, {"id": 2}]'


def judged(reply: bytes, **more: Any) -> tuple[str, bool]:
    verdict = check_json(reply, "finished", schema=RECORD, records=2, **more)
    return verdict.outcome, verdict.unfenced


def test_the_second_figure_takes_one_fence_around_the_whole_reply() -> None:
    assert judged(GOOD) == ("valid", True)
    for fenced in (b"```json\n%s\n```", b"```\n%s\n```\n", b"\n````JSON\r\n%s\r\n````  "):
        assert judged(fenced % GOOD) == ("not_json", True)
    for other in (b"Here:\n```json\n%s\n```", b"```json\n%s\n```\nDone.", b"```json\n%s", b"```json %s ```"):
        assert judged(other % GOOD) == ("not_json", False)
    assert judged(b"```json\n" + GOOD + b"\n```\n```json\n" + GOOD + b"\n```") == ("not_json", False)
    assert judged(b"```json\n[1]\n```") == ("not_json", False)


def test_fences_inside_strings_are_left_alone() -> None:
    held = json.dumps([{"id": 1, "text": "```json\n[]\n```"}, {"id": 2}]).encode()
    assert judged(held) == ("valid", True)
    assert judged(b"```json\n" + held + b"\n```") == ("not_json", True)
    assert without_fence(held) is None


def test_a_capped_array_is_capped_and_an_empty_reply_is_empty() -> None:
    assert check_json(GOOD[:12], "capped", schema=RECORD, records=2).outcome == "capped"
    assert check_json(GOOD[:12], "stopped_early", schema=RECORD).outcome == "stopped_early"
    assert judged(b" \n") == ("empty", False)
    with pytest.raises(EngcmpError, match="'length' is no way to end a reply"):
        check_json(GOOD, "length")


def test_records_are_counted_where_they_were_asked_for() -> None:
    assert check_json(GOOD, "finished", records=3).outcome == "count"
    nested = b'{"data": {"a/b": [1, 2, 3]}, "list": [[1], []]}'
    for at, records in (("/data/a~1b", 3), ("/list", 2), ("/list/0", 1), ("/list/1", 0)):
        verdict = check_json(nested, "finished", records=records, at=at)
        assert (verdict.outcome, verdict.records) == ("valid", records)
    for at in ("", "/data", "/none", "/list/7", "/list/x"):
        verdict = check_json(nested, "finished", records=1, at=at)
        assert (verdict.outcome, verdict.records) == ("count", None)


def test_1030_records_are_valid_and_1029_are_not() -> None:
    def reply(count: int) -> bytes:
        return json.dumps([{"id": number} for number in range(count)]).encode()

    assert check_json(reply(1030), "finished", schema=RECORD, records=1030).outcome == "valid"
    verdict = check_json(reply(1029), "finished", schema=RECORD, records=1030)
    assert (verdict.outcome, verdict.reason) == ("count", "1,029 records at 'the root', asked for 1,030")


def test_the_self_test_passes_and_a_looser_parser_fails_it(monkeypatch: pytest.MonkeyPatch) -> None:
    json_check.self_test()

    def loose(data: bytes) -> Any:
        try:
            return json.loads(data)
        except ValueError as error:
            raise NotJsonError from error

    monkeypatch.setattr(json_check, "strict_json", loose)
    with pytest.raises(EngcmpError, match="the JSON check fails its own test"):
        json_check.self_test()
