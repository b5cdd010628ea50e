"""A tokenizer for tests: a token for each word with the space before it, or for each sign; it knows what it has read."""

from __future__ import annotations

import re

from engcmp_assets.kernel.replies.spans import Kind, Reply, Span, SpanName, Vocabulary, as_tokens, vocabulary

_TOKEN = re.compile(r" ?[A-Za-z]+|\d| ?[^\w\s]+|\s|\w")


class Speller:
    """Gives ids in the order in which tokens come up."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def ids(self, text: str) -> list[int]:
        return [self._ids.setdefault(token, len(self._ids)) for token in _TOKEN.findall(text)]

    def span(self, name: SpanName, text: str) -> Span:
        ends = [match.end() for match in _TOKEN.finditer(text)]
        return Span(
            name, text, as_tokens(self.ids(text)),
            token_at=lambda char: sum(end <= char for end in ends), char_at=lambda token: ends[token - 1] if token else 0,
        )  # fmt: skip

    def reply(self, reasoning: str, answer: str = "", *, finish: str | None = "length", kind: Kind = "prose") -> Reply:
        return Reply("r1", kind, finish, self.span("reasoning", reasoning), self.span("answer", answer))

    def vocabulary(self) -> Vocabulary:
        """Of the tokens that were read so far."""
        return vocabulary(list(self._ids))
