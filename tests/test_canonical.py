"""Canonical JSON: one byte string for a value, one value for a byte string, and an error for all else."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engcmp_resources.canonical import canonical_bytes, parse_canonical, sha256_bytes, sha256_file, sha256_of
from engcmp_resources.errors import EngcmpError

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
OBJECTS = st.dictionaries(st.text(), VALUES)


def parse(data: bytes) -> dict[str, Any]:
    return parse_canonical(data, what="head", where="here", remedy="restore it")


@settings(max_examples=40)
@given(OBJECTS)
def test_an_object_reads_back_from_its_bytes(value: dict[str, Any]) -> None:
    data = canonical_bytes(value)
    assert canonical_bytes(parse(data)) == data
    assert data.isascii()
    assert data.endswith(b"}\n")
    assert b"\n" not in data[:-1]


@settings(max_examples=40)
@given(OBJECTS, st.integers(0), st.integers(0, 7))
def test_a_changed_bit_is_refused_or_another_object(value: dict[str, Any], place: int, bit: int) -> None:
    data = bytearray(canonical_bytes(value))
    data[place % len(data)] ^= 1 << bit
    try:
        other = parse(bytes(data))
    except EngcmpError:
        return
    assert canonical_bytes(other) != canonical_bytes(value)


@given(st.binary(max_size=60))
def test_any_bytes_are_an_object_or_an_error(data: bytes) -> None:
    try:
        parse(data)
    except EngcmpError as error:
        assert "here" in str(error)


def test_the_order_of_keys_does_not_matter() -> None:
    assert canonical_bytes({"b": 1, "a": {"d": 2, "c": 3}}) == b'{"a":{"c":3,"d":2},"b":1}\n'
    assert sha256_of({"b": 1, "a": 2}) == sha256_of({"a": 2, "b": 1})


def test_floats_are_shortest_and_integers_stay_integers() -> None:
    assert canonical_bytes([0.1, 1.0, 1, 1e22, 5e-324]) == b"[0.1,1.0,1,1e+22,5e-324]\n"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), {1, 2}, b"bytes", object(), {"a": {3}}])
def test_a_value_that_json_does_not_have_is_refused(value: Any) -> None:
    with pytest.raises(EngcmpError, match="value has no canonical JSON"):
        canonical_bytes(value)


def test_a_value_nested_beyond_reading_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(EngcmpError, match="value has no canonical JSON"):
        canonical_bytes(deep)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{}", b"{} \n", b"{}\n\n", b" {}\n", b'{"a":1,"a":2}\n', b'{"b":1,"a":2}\n', b'{"a":NaN}\n', b'{"a":1.00}\n',
        b'{"a":"\xc3\xa9"}\n', "{}\n".encode("utf-16"), b"\xef\xbb\xbf{}\n", b"[]\n", b"1\n", b"[" * 100_000, b'{"a":1e999}\n',
        b"1" * 5000 + b"\n",
    ],
)  # fmt: skip
def test_other_spellings_of_an_object_are_refused(data: bytes) -> None:
    with pytest.raises(EngcmpError, match=r"head is not (a canonical )?JSON.*\(here\); restore it"):
        parse(data)


def test_hashes_are_sha256_of_the_bytes(tmp_path: Path) -> None:
    data = bytes(range(256)) * 9000
    (tmp_path / "x").write_bytes(data)
    expected = hashlib.sha256(data).hexdigest()
    assert sha256_bytes(data) == sha256_bytes(memoryview(data)) == sha256_file(tmp_path / "x") == expected
    assert sha256_of({}) == hashlib.sha256(b"{}\n").hexdigest()
