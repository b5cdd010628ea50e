"""From a reply's record, its verdict and its check to the row of verdicts.parquet."""

from __future__ import annotations

import statistics
from typing import Any

from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.replies.finishes import finish_of
from engcmp_assets.kernel.replies.loops import ReplyVerdict
from engcmp_assets.kernel.replies.spans import KINDS, Kind
from engcmp_assets.kernel.reply_records import ReplyRecord, ReplyText
from engcmp_assets.kernel.reply_verdicts import Verdict, prefix_digests
from engcmp_assets.long_output_checks.tasks import TaskVerdict
from engcmp_resources.errors import EngcmpError

_OF_BLOCK: dict[str, Kind] = {"code": "code", "json": "json", "thinking": "reasoning", "trace": "reasoning"}
_CUT = ("capped", "stopped_early", "error")
NO_TEXT = "the reply brought no text"


def content_kind(record: ReplyRecord) -> Kind:
    """The kind of content by whose rules its text is judged; a word that the detectors do not know is prose."""
    known: Kind | None = next((one for one in KINDS if one == record.kind), None)
    return known or _OF_BLOCK.get(record.block, "prose")


def reason_of(record: ReplyRecord) -> tuple[str | None, str | None]:
    """The finish_reason by which a reply is judged, and what is wrong with the one that was told.

    A reply that broke off has none, whatever was told; a word that no API of ours knows says nothing of how it ended.
    """
    if record.status != "ok":
        return None, record.cause or record.status
    try:
        finish_of(record.finish_reason, has_text=True)
    except EngcmpError:
        return None, "its finish_reason is not known"
    return record.finish_reason, None if record.finish_reason is not None else "no finish_reason was told"


def verdict_row(
    record: ReplyRecord, text: ReplyText, found: ReplyVerdict, control_tokens: int, graded: TaskVerdict | None
) -> Verdict:
    """The row of a reply whose text is here. Spans are counted by the engine where it tells both, else by the tokenizer."""
    in_answer = bool(text.answer) or not text.reasoning
    cut = found.finish in _CUT
    by_engine = record.n_reasoning_tokens is not None and record.n_answer_tokens is not None
    reasoning = record.n_reasoning_tokens if by_engine else found.reasoning_tokens
    answer = record.n_answer_tokens if by_engine else found.answer_tokens
    whole = record.n_tokens if record.n_tokens is not None else found.reasoning_tokens + found.answer_tokens
    measured = found.measured
    reasons = [reason_of(record)[1], graded.passed.reason if graded and isinstance(graded.passed, Missing) else None]
    return Verdict(
        **_head(record),
        finish=found.finish,
        ending="looped" if found.looped else found.finish,
        ended_in="answer" if in_answer else "reasoning",
        looped=_word(found.looped),
        judged=_word(found.judged),
        detector=found.loop.detector if found.loop else None,
        onset_token=found.loop.onset_token if found.loop else None,
        loop_span=found.loop_span,
        self_repetition=_number(measured.repetition.share),
        restated=_number(found.restated),
        novelty8=_number(measured.novelty.share),
        compression=_number(measured.compression),
        structure=measured.structure,
        n_tokens=whole,
        tokens_by="engine" if by_engine else "tokenizer",
        reasoning_tokens=reasoning,
        reasoning_censored=_word(cut and not in_answer),
        answer_tokens=answer if in_answer else None,
        answer_censored=_word(cut),
        reasoning_chars=found.reasoning_chars,
        answer_chars=found.answer_chars,
        control_tokens=control_tokens,
        check=graded.check if graded else None,
        outcome=graded.outcome if graded else None,
        passed=None if graded is None or isinstance(graded.passed, Missing) else _word(graded.passed),
        score=_number(graded.score) if graded else None,
        detail=(graded.detail or None) if graded else None,
        turn_ms=_turn_ms(text),
        reason="; ".join(dict.fromkeys(one for one in reasons if one)) or None,
        text_sha256=record.text_sha256,
        token_ids_sha256=record.token_ids_sha256,
        prefix_digests=prefix_digests(text.token_ids),
    )


def failed_row(record: ReplyRecord, check: str | None) -> Verdict:
    """The row of a reply that brought no text: it is kept, and no figure takes it for a wrong one."""
    why = record.cause or record.status
    return Verdict(
        **_head(record), finish="error", ending="error", ended_in="answer", looped="no", judged="no", detector=None, onset_token=None,
        loop_span=None, self_repetition=None, restated=None, novelty8=None, compression=None, structure=None, n_tokens=record.n_tokens,
        tokens_by="engine", reasoning_tokens=None, reasoning_censored="yes", answer_tokens=None, answer_censored="yes",
        reasoning_chars=None, answer_chars=None, control_tokens=None, check=check, outcome="error" if check else None, passed=None,
        score=None, detail=None, turn_ms=None, reason=f"{NO_TEXT}: {why}", text_sha256=record.text_sha256,
        token_ids_sha256=record.token_ids_sha256, prefix_digests=None,
    )  # fmt: skip


def _head(record: ReplyRecord) -> dict[str, Any]:
    names = ("reply_id", "block", "stage", "kind", "item", "repeat", "seed", "cap_tokens")
    return {name: getattr(record, name) for name in names}


def _turn_ms(text: ReplyText) -> float | None:
    times = [float(step["ms"]) for turn in text.turns or () for step in turn["steps"]]
    return statistics.median(times) if times else None


def _number(value: float | Missing) -> float | None:
    return None if isinstance(value, Missing) else float(value)


def _word(value: bool) -> str:
    return "yes" if value else "no"
