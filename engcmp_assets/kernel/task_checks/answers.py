"""What the checks have in common: how a reply ended, and a self-test of planted cases."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

from engcmp_resources.errors import EngcmpError

Finish = Literal["finished", "capped", "stopped_early", "error"]
Unfinished = Literal["capped", "stopped_early", "error"]


def unfinished(finish: Finish) -> Unfinished | None:
    """The outcome of a reply that did not finish, which no check may judge; None of one that did. Raises EngcmpError for another word."""
    if finish not in get_args(Finish):
        raise EngcmpError(f"{finish!r} is no way to end a reply", remedy=f"use one of {', '.join(get_args(Finish))}")
    return None if finish == "finished" else finish


def hold(check: str, cases: Iterable[tuple[str, object, object]]) -> None:
    """Planted cases (what, found, wanted) of a check's self-test. Raises EngcmpError that names the first that differs."""
    for what, found, wanted in cases:
        if found != wanted:
            raise EngcmpError(
                f"the {check} check fails its own test: {what} gives {found!r}, not {wanted!r}",
                remedy="nothing was graded; repair the check or the library that it uses",
            )
