"""A capture that began before its freeze is no primary result, and an amendment says how what was captured before it is read."""

from __future__ import annotations

from typing import Any

import pytest

from engcmp_assets.kernel.freeze_times import began_before

A, B, C, OTHER = ("a" * 64, "b" * 64, "c" * 64, "d" * 64)
LONG_AGO, BEFORE, AT, AFTER = (
    "2026-11-01T00:00:00+00:00", "2026-11-29T23:59:59.999+00:00", "2026-11-30T00:00:00.000+00:00", "2026-11-30T01:00:00+01:00",
)  # fmt: skip


def frozen(sha256: str = A, *amendments: dict[str, Any], at: str | None = AT) -> dict[str, Any]:
    return {"frozen_sha256": sha256, "amendments": list(amendments)} | ({"frozen_at": at} if at else {})


def amended(before: str, rule: str | None) -> dict[str, Any]:
    reading = {} if rule is None else {"reading": {"rule": rule, "says": "words"}}
    return {"from": before, "because": "a reason", "amended_at": AT} | reading


def test_what_begins_at_its_freeze_or_later_may_be_a_primary_result() -> None:
    assert began_before(AT, A, frozen()) is None
    assert began_before(AFTER, A, frozen()) is None, "01:00 in a zone one hour ahead is the same moment"


def test_what_began_a_millisecond_earlier_never_is() -> None:
    assert began_before(BEFORE, A, frozen()) == f"it began at {BEFORE}, before its freeze at {AT}"


def test_a_capture_of_a_freeze_that_the_study_never_had_is_none_of_its_results() -> None:
    assert "which is none of this study's" in str(began_before(AFTER, OTHER, frozen()))
    assert "which is none of this study's" in str(began_before(AFTER, OTHER, frozen(B, amended(A, "unchanged"))))


@pytest.mark.parametrize("rule", ["exploratory", "whatever"])
def test_an_amendment_that_changes_what_is_judged_leaves_earlier_captures_exploratory(rule: str) -> None:
    why = began_before(LONG_AGO, A, frozen(B, amended(A, rule)))
    assert why == f"it was captured under freeze {A[:12]}, before the amendment of {AT}: a reason"
    assert began_before(AFTER, B, frozen(B, amended(A, rule))) is None


def test_an_amendment_from_before_there_was_a_rule_leaves_them_standing() -> None:
    assert began_before(LONG_AGO, A, frozen(B, amended(A, None), at=None)) is None


def test_an_amendment_that_leaves_all_that_is_judged_as_it_was_leaves_them_standing() -> None:
    assert began_before(LONG_AGO, A, frozen(B, amended(A, "unchanged"))) is None


def test_one_amendment_of_several_that_changes_something_is_enough() -> None:
    twice = frozen(C, amended(A, "unchanged"), amended(B, "exploratory"))
    assert began_before(LONG_AGO, A, twice) is not None and began_before(LONG_AGO, B, twice) is not None
    first = frozen(C, amended(A, "exploratory"), amended(B, "unchanged"))
    assert began_before(LONG_AGO, A, first) is not None and began_before(LONG_AGO, B, first) is None
    assert began_before(BEFORE, C, first) is not None and began_before(AFTER, C, first) is None


def test_a_freeze_of_the_first_form_has_no_time_to_hold_a_capture_against() -> None:
    assert began_before(LONG_AGO, A, frozen(at=None)) is None
    assert began_before(AFTER, OTHER, frozen(at=None)) is not None
