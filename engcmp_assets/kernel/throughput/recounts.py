"""Tokens of replies counted a third time, from their text: beside token ids and usage (MEASURES section 6), deciding neither.

A reply need not be cut as its text would be: a special token has no text, and sampled tokens need not be those that a tokenizer gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engcmp_assets.kernel.records import Missing

RECOUNTED = 64
"""Replies of a cell that are counted again at most: the first ones that are whole."""


@dataclass(frozen=True, slots=True)
class Recount:
    """A whole reply: the tokens that its stream was counted to, and those of its reasoning's and its answer's text (None: not told)."""

    request_id: str
    counted: int
    of_text: Sequence[int | None]


def recounted(found: Sequence[Recount], by: str | Missing) -> dict[str, Any]:
    """Plain JSON: `by` whose tokenizer, `replies`, `equal`, tokens `counted` and `of_text` in all, and the reply that differs most.

    `{"missing": reason}` where no tokenizer can be asked, where it did not answer for a reply, and where no reply is whole.
    """
    if isinstance(by, Missing):
        return by.as_json()
    told = [(one, sum(count for count in one.of_text if count is not None)) for one in found]
    silent = [one.request_id for one in found if None in one.of_text]
    if silent:
        return Missing(f"{by} gave no ids for the text of {silent[0]}").as_json()
    if not told:
        return Missing("no reply is whole").as_json()
    furthest, tokens = max(told, key=lambda one: abs(one[1] - one[0].counted))
    result: dict[str, Any] = {
        "by": by, "replies": len(told), "equal": sum(one.counted == count for one, count in told),
        "counted": sum(one.counted for one, _ in told), "of_text": sum(count for _, count in told),
    }  # fmt: skip
    if tokens != furthest.counted:
        result["furthest"] = {"request_id": furthest.request_id, "counted": furthest.counted, "of_text": tokens}
    return result


def recount_words(document: dict[str, Any]) -> str:
    """The same in a line."""
    if "missing" in document:
        return f"text not counted again: {document['missing']}"
    total, equal = document["replies"], document["equal"]
    words = f"text counted again by {document['by']}: {equal} of {total} replies have as many tokens as were counted"
    if "furthest" not in document:
        return words
    one = document["furthest"]
    furthest = f"{one['of_text']} against {one['counted']} in {one['request_id']}"
    return f"{words}; {document['of_text']} against {document['counted']} in all, {furthest}"
