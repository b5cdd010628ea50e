"""Finish classes: what APIs say, and what nobody says."""

from __future__ import annotations

import pytest

from engcmp_assets.kernel.replies.finishes import finish_of
from engcmp_resources.errors import EngcmpError


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("stop", "finished"), ("tool_calls", "finished"), ("length", "capped"), ("repetition_detected", "stopped_early"),
        ("stopped_early", "stopped_early"), ("abort", "error"), (None, "error"),
    ],
)  # fmt: skip
def test_a_reason_has_one_class(reason: str | None, finish: str) -> None:
    assert finish_of(reason, has_text=True) == finish


def test_a_reply_that_stopped_without_a_word_is_empty_and_a_capped_one_stays_censored() -> None:
    assert finish_of("stop", has_text=False) == "empty"
    assert finish_of("length", has_text=False) == "capped"
    assert finish_of(None, has_text=False) == "error"


def test_an_unknown_reason_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(EngcmpError, match="unknown finish_reason 'done'; write one of stop, eos,"):
        finish_of("done", has_text=True)
