"""How a reply ended (MEASURES section 7). A capped reply is censored: its lengths are lower bounds, it is never wrong and never 0."""

from __future__ import annotations

from typing import Literal

from engcmp_resources.errors import EngcmpError

Finish = Literal["finished", "recovered", "capped", "stopped_early", "error", "empty"]
# What the engines' APIs say, by what it means. None: the stream broke before a reason was given.
_MEANINGS: dict[str | None, Finish] = {
    **dict.fromkeys(("stop", "eos", "stop_sequence", "end_turn", "tool_calls", "function_call"), "finished"),
    **dict.fromkeys(("length", "max_tokens"), "capped"),
    **dict.fromkeys(("stopped_early", "repetition", "repetition_detected"), "stopped_early"),
    **dict.fromkeys(("error", "abort", "cancelled", "content_filter", None), "error"),
}


def finish_of(reason: str | None, *, has_text: bool) -> Finish:
    """The class of a reply from its finish_reason. One that stopped without a word is `empty`; `recovered` follows from its text only.

    Raises EngcmpError for a reason that is not known.
    """
    if reason not in _MEANINGS:
        known = ", ".join(str(one) for one in _MEANINGS if one is not None)
        raise EngcmpError(
            f"unknown finish_reason {reason!r}", remedy=f"write one of {known}, or null where the stream broke"
        )
    found = _MEANINGS[reason]
    return "empty" if found == "finished" and not has_text else found
