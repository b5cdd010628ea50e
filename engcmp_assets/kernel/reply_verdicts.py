"""A judged reply as verdicts.parquet holds it (MEASURES section 7): how it ended, its loop, its lengths, its check. No text."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from engcmp_assets.kernel.receipts import Column
from engcmp_assets.kernel.records import Missing

ENDINGS = ("finished", "recovered", "capped", "looped", "stopped_early", "error", "empty")
"""One word for how a reply ended; every reply has exactly one."""
NOT_GRADED = ("capped", "looped", "stopped_early", "error")
_BLOCK_TOKENS = 64  # of a digest of the ids so far: few enough bits a token that no text can be guessed from them
_DIGITS = 8


@dataclass(frozen=True, slots=True)
class Verdict:
    """One row of verdicts.parquet; VERDICT_COLUMNS says what each value means. None: not measured."""

    reply_id: str
    block: str
    stage: str
    kind: str
    item: str
    repeat: int
    seed: int
    cap_tokens: int
    finish: str
    ending: str
    ended_in: str
    looped: str
    judged: str
    detector: str | None
    onset_token: int | None
    loop_span: str | None
    self_repetition: float | None
    restated: float | None
    novelty8: float | None
    compression: float | None
    structure: str | None
    n_tokens: int | None
    tokens_by: str
    reasoning_tokens: int | None
    reasoning_censored: str
    answer_tokens: int | None
    answer_censored: str
    reasoning_chars: int | None
    answer_chars: int | None
    control_tokens: int | None
    check: str | None
    outcome: str | None
    passed: str | None
    score: float | None
    detail: str | None
    turn_ms: float | None
    reason: str | None
    text_sha256: str | None
    token_ids_sha256: str | None
    prefix_digests: str | None

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Verdict:
        """The row of a table as it reads back."""
        return cls(**{one.name: row[one.name] for one in fields(cls)})

    @property
    def graded(self) -> bool | Missing:
        """Whether the check was passed, or why it says nothing."""
        if self.passed is not None:
            return self.passed == "yes"
        return Missing(self.reason or "no check applies to this prompt")

    @property
    def population(self) -> str:
        """Its group of figures: block, stage and kind of content."""
        return population_of(self.block, self.stage, self.kind)


def population_of(block: str, stage: str, kind: str) -> str:
    """Name of the replies of a block, stage and kind; what a stage's name says already is not said again."""
    begin = stage if stage.startswith(block) else f"{block}-{stage}"
    return begin if kind == block else f"{begin}-{kind}"


VERDICT_COLUMNS = (
    Column("reply_id", "str", "1", "Name of the reply, as in replies.parquet"),
    Column("block", "str", "1", "What it is for: long, again (a long one once more), code, json, math, needle, tools, thinking, trace"),
    Column("stage", "str", "1", "Stage of the driver"),
    Column("kind", "str", "1", "Kind of content that was asked for"),
    Column("item", "str", "1", "Prompt, task, scenario or trace: replies of two arms are paired by it, never by seed"),
    Column("repeat", "int", "1", "Number of the reply to the same item, from 1"),
    Column("seed", "int", "1", "Sampling seed that was sent"),
    Column("cap_tokens", "int", "token", "The most tokens that were asked for"),
    Column("finish", "str", "1", "Finish class: finished, recovered, capped, stopped_early, error, empty"),
    Column("ending", "str", "1", f"The same in one word that knows loops: {', '.join(ENDINGS)}"),
    Column("ended_in", "str", "1", "The span in which it ended: reasoning or answer"),
    Column("looped", "str", "1", "yes where it did not finish and ended in a loop by the vote of the detectors"),
    Column("judged", "str", "1", "no where the span is too short for any detector but exact copies, and there was none"),
    Column("detector", "str", "1", "The detector that decided; also of a loop that was left again (recovered)"),
    Column("onset_token", "int", "token", "Where the loop began, in tokens of loop_span"),
    Column("loop_span", "str", "1", "The span in which the loop is"),
    Column("self_repetition", "float", "share", "Share of the 50-token n-grams of the final 4,096 tokens that stood twice before"),
    Column("restated", "float", "share", "Share of those n-grams of the answer that stand in the reasoning"),
    Column("novelty8", "float", "share", "Share of the last 700 words' 8-grams that are new to the span (of tokens where no spaces are)"),
    Column("compression", "float", "ratio", "zlib bytes over bytes of the last 30,000 characters; decides nothing"),
    Column("structure", "str", "1", "Kind of structured text at the end of the span: json, lines, code fence"),
    Column("n_tokens", "int", "token", "Generated tokens of the whole reply: the engine's count, else the tokenizer's"),
    Column("tokens_by", "str", "1", "Who counted the spans: engine, or tokenizer (re-tokenised text)"),
    Column("reasoning_tokens", "int", "token", "Length of the reasoning; a lower bound where reasoning_censored is yes"),
    Column("reasoning_censored", "str", "1", "yes where the reply was cut in its reasoning"),
    Column("answer_tokens", "int", "token", "Length of the answer; a lower bound where answer_censored is yes; none if never begun"),
    Column("answer_censored", "str", "1", "yes where the reply was cut in its answer, or before it"),
    Column("reasoning_chars", "int", "character", "Length of the reasoning"),
    Column("answer_chars", "int", "character", "Length of the answer"),
    Column("control_tokens", "int", "1", "Names of control tokens that stand in the text, counted as text"),
    Column("check", "str", "1", "The check that applies: code, json, math, needle, tools"),
    Column("outcome", "str", "1", "Its outcome in the check's own words"),
    Column("passed", "str", "1", "yes or no; none where the reply was not graded: a capped reply is never wrong"),
    Column("score", "float", "1", "Share of the hidden tests passed (code), points 0 to 2 (tools), 1 or 0 (the others)"),
    Column("detail", "str", "1", "What the check counted, in codes"),
    Column("turn_ms", "float", "millisecond", "Of a conversation: median time of a message, from its request to its whole answer"),
    Column("reason", "str", "1", "Why there is no verdict"),
    Column("text_sha256", "str", "1", "SHA-256 of the reasoning, a zero byte, and the answer"),
    Column("token_ids_sha256", "str", "1", "Token digest of the engine's ids"),
    Column("prefix_digests", "str", "1", f"{_DIGITS} hex digits of a running hash after each {_BLOCK_TOKENS} token ids"),
)  # fmt: skip


def verdict_table(verdicts: Iterable[Verdict]) -> dict[str, list[Any]]:
    """The verdicts as columns of verdicts.parquet."""
    every = list(verdicts)
    return {column.name: [getattr(one, column.name) for one in every] for column in VERDICT_COLUMNS}


def verdicts_of(columns: Mapping[str, Sequence[Any]]) -> list[Verdict]:
    """The verdicts that columns of verdicts.parquet hold; what is null is None, whole numbers are int."""
    kinds = {column.name: column.dtype for column in VERDICT_COLUMNS}
    rows = zip(*([_value(kinds[name], one) for one in columns[name]] for name in kinds), strict=True)
    return [Verdict(*row) for row in rows]


def _value(kind: str, value: Any) -> Any:
    """A column of whole numbers with a null reads back as floats."""
    if value is None or (kind != "str" and np.isnan(value)):
        return None
    return int(value) if kind == "int" else float(value) if kind == "float" else str(value)


def prefix_digests(ids: Sequence[int] | None) -> str | None:
    """A running hash of token ids after each whole block of 64, and after the last token."""
    if ids is None:
        return None
    running, found = hashlib.sha256(), []
    for begin in range(0, len(ids), _BLOCK_TOKENS):
        running.update(np.asarray(ids[begin : begin + _BLOCK_TOKENS], dtype="<u4").tobytes())
        found.append(running.hexdigest()[:_DIGITS])
    return "".join(found)


def first_difference_within(first: str | None, second: str | None) -> tuple[int, int] | Missing:
    """The tokens between which two replies part, by their prefix digests: from the first number on, below the second.

    Missing where one has no ids, or where the digests know no difference.
    """
    if first is None or second is None:
        return Missing("token ids are not known of both replies")
    sides = [[text[at : at + _DIGITS] for at in range(0, len(text), _DIGITS)] for text in (first, second)]
    shorter = min(map(len, sides))
    place = next((at for at in range(shorter) if sides[0][at] != sides[1][at]), shorter)
    if place == max(map(len, sides)):
        return Missing("the digests of both replies are the same")
    return place * _BLOCK_TOKENS, (place + 1) * _BLOCK_TOKENS
