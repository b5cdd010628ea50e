"""How many tokens a reply's text is, as its server's own tokenizer cuts it: a count beside those of the stream, which decides none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engcmp_resources.load.control import Control

_PROBE = "Two words"
# The field that holds the text, of each kind of server, and the one that keeps it from adding a begin token.
_FORMS = ({"text": "prompt", "bare": "add_special_tokens"}, {"text": "content", "bare": "add_special"})
_NONE = "the server has no /tokenize that gives ids"


@dataclass(frozen=True, slots=True)
class Recounter:
    """Counts the tokens of texts; `by` says whose tokenizer it is. `count` gives None where the tokenizer did not answer."""

    by: str
    count: Callable[[str], int | None]


def recounter(control: Control, model: str, own: Callable[[str], Sequence[int]] | None) -> Recounter | str:
    """The server's /tokenize, else `own`, the checkpoint's tokenizer; where there is neither, why not."""
    for form in _FORMS:

        def count(text: str, form: dict[str, str] = form) -> int | None:
            ids = control.token_ids({"model": model, form["text"]: text, form["bare"]: False}) if text else []
            return None if ids is None else len(ids)

        if count(_PROBE):  # a server that does not know the field gives no ids, or none of them
            return Recounter("the server's /tokenize", count)
    if own is None:
        return _NONE
    return Recounter("the checkpoint's own tokenizer", lambda text: len(own(text)))
