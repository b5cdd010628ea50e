"""The conformance vector of long replies: every threshold of the detectors, and what they and the lengths give on fixed replies."""

from __future__ import annotations

import functools
from dataclasses import asdict
from typing import Any

from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.replies.loops import ReplyVerdict, judge
from engcmp_assets.kernel.replies.spans import Reply, Span, SpanName, Thresholds, as_tokens, vocabulary
from engcmp_assets.kernel.reply_lengths.medians import capped_median
from engcmp_assets.kernel.reply_lengths.records import ReplyLength
from engcmp_resources.errors import EngcmpError

_SIGNS = [chr(code) for code in range(32, 127)]
_WORDS, _FACTOR, _MODULUS = 2000, 7919, 1009
_CAP = 1000


@functools.cache
def reply_values() -> dict[str, float]:
    """Values by name; each begins with `reply`. Raises EngcmpError where one could not be computed."""
    values = {f"reply threshold {name}": float(value) for name, value in asdict(Thresholds()).items()}
    plain = " ".join(f"w{(number * _FACTOR) % _MODULUS}x{number}" for number in range(_WORDS))
    loop = _verdict(plain + " and round we go again" * 100)
    values["reply loop onset"] = float(_known(loop.loop.onset_token if loop.loop else None))
    values["reply self-repetition of a loop"] = float(_known(loop.measured.repetition.share))
    values["reply novelty8 of plain words"] = float(_known(_verdict(plain).measured.novelty.share))
    lengths = [ReplyLength(f"p{number}", 100 + 47 * number, "finished") for number in range(18)]
    lengths += [ReplyLength(f"p{number}", _CAP, "capped") for number in range(18, 20)]
    median = capped_median(lengths)
    values["reply median"] = float(_known(median.value))
    values["reply median low"] = _known(median.interval).low
    return values


def _verdict(text: str) -> ReplyVerdict:
    """A capped reply of the text, each character a token."""
    reply = Reply("r", "prose", "length", _span("reasoning", ""), _span("answer", text))
    return judge(reply, vocabulary(_SIGNS))


def _span(name: SpanName, text: str) -> Span:
    return Span(
        name,
        text,
        as_tokens([ord(sign) - 32 for sign in text]),
        token_at=lambda char: char,
        char_at=lambda token: token,
    )


def _known(value: Any) -> Any:
    if value is None or isinstance(value, Missing):
        raise EngcmpError("conformance vector of replies: no value", remedy="this is a fault of engcmp: report it")
    return value
