"""One answer line, exact numbers, nothing evaluated."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engcmp_assets.kernel.task_checks import math_check
from engcmp_assets.kernel.task_checks.math_check import check_math, parse_number
from engcmp_resources.errors import EngcmpError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", Fraction(42)),
        ("-0042", Fraction(-42)),
        ("+3", Fraction(3)),
        ("6/8", Fraction(3, 4)),
        ("-1/3", Fraction(-1, 3)),
        ("0.125", Fraction(1, 8)),
        ("9" * 50, Fraction(10**50 - 1)),
    ],
)
def test_numbers_of_the_grammar_are_exact(text: str, value: Fraction) -> None:
    assert parse_number(text) == value


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "-",
            "4 2",
            "1,000",
            "1_000",
            "1e3",
            "42%",
            "1/0",
            "1/-2",
            "1.5/2",
            "1/2/3",
            ".5",
            "5.",
            "0x10",
            "inf",
            "nan",
        ),
        *(
            "\u0664\u0662",
            "\u22125",
            "\u00bd",
            "1/2^99",
            "2**3",
            "sqrt(4)",
            "__import__('os')",
            "9" * 51,
            "42\n",
            "x = 42",
        ),
        "9^9^9^9",
    ],
)
def test_all_else_is_no_number(text: str) -> None:
    assert parse_number(text) is None


@settings(deadline=None)  # no timed tests
@given(st.fractions(max_denominator=10**20))
def test_every_fraction_is_read_as_python_writes_it(value: Fraction) -> None:
    assert parse_number(str(value)) == (value if sum(map(str.isdigit, str(value))) <= 50 else None)


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        ("thinking\nANSWER: 42", "right"),
        ("ANSWER: 42\r\n", "right"),
        ("**ANSWER: 42**", "right"),
        ("**ANSWER:** `42`", "right"),
        ("ANSWER: 42\n\nANSWER: 84/2", "right"),  # one value, written twice
        ("ANSWER: 42\nANSWER: 43", "several_answers"),
        ("ANSWER: 41\nANSWER: 42", "several_answers"),
        ("the answer is 41, no wait 42", "no_answer"),
        ("ANSWER: 41, no wait 42", "malformed"),
        ("ANSWER: 42 apples", "malformed"),
        ("ANSWER:", "malformed"),
        ("ANSWER: 42\nANSWER: unknown", "malformed"),
        ("ANSWER: -42", "wrong"),
        ("ANSWER: 42.0000001", "wrong"),
        ("answer: 42", "no_answer"),
        ("my ANSWER: 42", "no_answer"),
        ("\u2028ANSWER: 42", "no_answer"),
        ("   \n", "empty"),
    ],
)
def test_replies_have_their_outcome(reply: str, outcome: str) -> None:
    assert check_math(reply, "finished", Fraction(42)).outcome == outcome


def test_what_a_symbolic_checker_takes_for_equal_is_wrong() -> None:
    assert check_math(f"ANSWER: 1/{2**99}", "finished", Fraction(1, 2**98)).outcome == "wrong"
    assert check_math("ANSWER: 4*sqrt(2)", "finished", Fraction(4)).outcome == "malformed"
    assert check_math("ANSWER: \\pm2021", "finished", Fraction(2021)).outcome == "malformed"
    assert check_math("ANSWER: 10 % 3", "finished", Fraction(10)).outcome == "malformed"


def test_a_reply_of_two_megabytes_is_judged_and_a_cut_one_is_not() -> None:
    assert check_math("ANSWER:" + " " * 2_000_000 + "42", "finished", Fraction(42)).outcome == "right"
    assert check_math("ANSWER: " + "4" * 2_000_000, "finished", Fraction(42)).outcome == "malformed"
    assert check_math("ANSWER: 41", "capped", Fraction(42)).outcome == "capped"


def test_the_self_test_passes_and_a_looser_grammar_fails_it(monkeypatch: pytest.MonkeyPatch) -> None:
    math_check.self_test()
    monkeypatch.setattr(math_check, "parse_number", lambda text: Fraction(text.split(",")[0].split()[0]))
    with pytest.raises((EngcmpError, ValueError, ZeroDivisionError)):
        math_check.self_test()
