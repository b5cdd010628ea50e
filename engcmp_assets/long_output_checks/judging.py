"""Replies through the detectors with the model's own tokenizer, which may be called from several threads."""

from __future__ import annotations

from dataclasses import dataclass

from engcmp_assets.kernel.replies.loops import ReplyVerdict, judge
from engcmp_assets.kernel.replies.spans import Kind, Reply, Span, SpanName, Thresholds, as_tokens, vocabulary
from engcmp_resources.reply_files import ReplyTokenizer


@dataclass(frozen=True, slots=True)
class Said:
    """A reply's two spans as text and its finish_reason as the API gave it."""

    reply_id: str
    kind: Kind
    reasoning: str
    answer: str
    finish_reason: str | None


class ReplyJudge:
    """Judges replies of one model. Its methods may be called from several threads."""

    def __init__(self, tokenizer: ReplyTokenizer, thresholds: Thresholds) -> None:
        self._tokenizer, self._limits = tokenizer, thresholds
        self._vocabulary = vocabulary(tokenizer.token_texts())

    def verdict(self, said: Said) -> ReplyVerdict:
        """The verdict on a reply. Raises EngcmpError for a finish_reason that is not known."""
        reasoning, answer = self._span("reasoning", said.reasoning), self._span("answer", said.answer)
        reply = Reply(said.reply_id, said.kind, said.finish_reason, reasoning, answer)
        return judge(reply, self._vocabulary, self._limits)

    def control_tokens(self, said: Said) -> list[str]:
        """The names of control tokens that the reply holds as text."""
        return self._tokenizer.control_tokens(said.reasoning + said.answer)

    def _span(self, name: SpanName, text: str) -> Span:
        return span_of(self._tokenizer, name, text)


def span_of(tokenizer: ReplyTokenizer, name: SpanName, text: str) -> Span:
    """A span of a text, its tokens those of the model."""
    ids = tokenizer.encode(text)
    return Span(
        name, text, as_tokens(ids),
        token_at=lambda char: len(tokenizer.encode(text[:char])), char_at=lambda token: len(tokenizer.decode(ids[:token])),
    )  # fmt: skip
