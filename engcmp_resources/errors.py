"""The one exception family. A leaf module: pure functions may import it."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from typing import Any


class EngcmpError(Exception):
    """An error that a user can act on.

    The text names the thing, the place and the remedy, as
    `window code-2: 31 rows, plan has 32 (file rows/code-2.safetensors); recapture this window`.
    """

    def __init__(self, what: str, *, where: str | None = None, remedy: str | None = None) -> None:
        self.what = what
        self.where = where
        self.remedy = remedy
        text = what if where is None else f"{what} ({where})"
        super().__init__(text if remedy is None else f"{text}; {remedy}")


class UnfitMachine(EngcmpError):
    """What this machine cannot run, whatever is tried again: say, its processor lacks an instruction of the build."""


def first_fault(errors: Sequence[Mapping[str, Any]], known: Collection[str] = ()) -> tuple[tuple[Any, ...], str]:
    """Of what pydantic finds wrong with a document, the one fault to tell: its place and its words.

    An unknown field comes first, for a missing one beside it may be the same one misspelt: then the words name the right one, which is
    looked for among those and `known`.
    """
    unknown = next((one for one in errors if one["type"] == "extra_forbidden"), None)
    if unknown is None:
        return tuple(errors[0]["loc"]), str(errors[0]["msg"])
    *parent, name = unknown["loc"]
    beside = [str(one["loc"][-1]) for one in errors if one["type"] == "missing" and [*one["loc"][:-1]] == parent]
    near = difflib.get_close_matches(str(name), [*beside, *known], n=1)
    return tuple(unknown["loc"]), str(unknown["msg"]) + (f"; did you mean {near[0]!r}?" if near else "")
