"""Verdicts on replies as an arm's verdicts.parquet holds them, made by hand. No tests."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from engcmp_assets.kernel.reply_verdicts import Verdict, prefix_digests
from engcmp_resources.canonical import sha256_of

CAP = 256


def verdict(
    item: str, ending: str = "finished", *, block: str = "long", stage: str = "L1", kind: str = "prose", **more: Any
) -> Verdict:
    """A reply to `item` that ended so; its length is 100 tokens, or the cap where it was cut."""
    cut = ending in ("capped", "looped")
    known: dict[str, Any] = {one.name: None for one in fields(Verdict)} | {
        "reply_id": f"{stage}/{item}/1", "block": block, "stage": stage, "kind": kind, "item": item, "repeat": 1, "seed": 7,
        "cap_tokens": CAP, "finish": "capped" if ending == "looped" else ending, "ending": ending, "ended_in": "answer",
        "looped": "yes" if ending == "looped" else "no", "judged": "yes", "n_tokens": CAP if cut else 100, "tokens_by": "engine",
        "reasoning_tokens": 0, "reasoning_censored": "no", "answer_tokens": CAP if cut else 100, "answer_censored": "yes" if cut else "no",
        "detector": "exact_period" if ending == "looped" else None, "text_sha256": sha256_of([item, ending]),
    }  # fmt: skip
    return replace(Verdict(**known), **more)


def with_ids(one: Verdict, ids: list[int]) -> Verdict:
    """The same with the digests of an engine's token ids."""
    return replace(one, token_ids_sha256=sha256_of(ids), prefix_digests=prefix_digests(ids))


def graded(one: Verdict, check: str, passed: bool | None, score: float | None = None) -> Verdict:
    """The same with a check's word on it; None where it was not graded."""
    word = None if passed is None else "yes" if passed else "no"
    outcome = {True: "pass", False: "fail", None: "capped"}[passed]
    reason = "the reply was capped" if passed is None else None
    points = score if score is not None or passed is None else float(passed)
    return replace(one, check=check, outcome=outcome, passed=word, score=points, reason=reason, detail="")
