"""Structured text (MEASURES section 7): JSON up to the cut, lines of tables, lists and CSV, and code in a fence. Its records are alike by
nature, so only `exact_period` may call it a loop.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Sequence

from engcmp_assets.kernel.replies.spans import Thresholds

_TAIL_CHARS = 16_000  # about the 4,096 tokens that the other detectors look at
_FENCE = re.compile(r"^ {0,3}(?:```|~~~)", re.MULTILINE)
_LIST = re.compile(r"\s*(?:[-*+•]|\d+[.)])\s+\S")
_RULE = re.compile(r"\s*[-=_*|+: ─]{3,}\s*$")
_RECORD = re.compile(
    r"\s*[\"']?[\w-]+(?: [\w-]+){0,2}[\"']?\s?[:=]\s*\S"
)  # a name of three words or less, and its value
_SEPARATORS = (",", "\t", ";")
_WORD = re.compile(r"\w+")
_MARKUP = re.compile(r"\s*(?:<.*>|[\[{].*[\]}],?|.*[;{}])\s*$")  # of XML, of JSON Lines, of code with braces
_MOST_CHARS = 2_000  # of a line that is a record: a loop without a line feed is one line
_LEAST_FIELDS = 3
_MOST_WORDS = 4  # of a field of CSV
_JSON_START = re.compile(r"^[\[{]", re.MULTILINE)
_STARTS = 8  # the last places at which a document may begin
# What may follow the place where the parser stopped, if the text was cut there: a literal or a number that is not whole.
_CUT = re.compile(r"\s*(?:t(?:ru?)?|f(?:a(?:ls?)?)?|n(?:ul?)?|-|\.\d*|[eE][+-]?\d*|\.\d+[eE][+-]?)?\s*\Z")
_ESCAPE_CHARS = 12  # of two escapes that make one character
_LONG_STRING = 3_000  # characters of a JSON string that is not closed: it is prose, or code, of its own
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str, strict=False)


def structure(text: str, thresholds: Thresholds) -> str | None:
    """What kind of structured text the end of `text` is: `code fence`, `json` or `lines`; None for any other.

    A long string within JSON is no structured text: what stands in it is judged as prose.
    """
    fences = [match.end() for match in _FENCE.finditer(text)]
    inside = len(fences) % 2 == 1
    cut, string = json_cut(text[fences[-1] :] if inside else text, thresholds)
    if cut or inside:
        return None if string >= _LONG_STRING else "json" if cut else "code fence"
    begin = max(0, len(text) - _TAIL_CHARS)
    before = sum(end <= begin for end in fences)
    told = structured_lines(text[begin:].splitlines(), in_fence=before % 2 == 1)
    return "lines" if told and sum(told) >= thresholds.structured_lines * len(told) else None


def json_cut(text: str, thresholds: Thresholds) -> tuple[bool, int]:
    """Whether what stands from a line that begins with a bracket is JSON or the beginning of JSON, and most of the end of `text`; and
    how many characters of a string that is not closed stand at its end.
    """
    least = thresholds.structured_lines * min(len(text), _TAIL_CHARS)
    for start in deque(_JSON_START.finditer(text), maxlen=_STARTS):
        at = start.start()
        if len(text) - at < least:
            break
        try:
            _, end = _DECODER.raw_decode(text, at)
        except json.JSONDecodeError as error:
            if error.msg.startswith("Unterminated string"):
                return True, len(text) - error.pos
            escape = "escape" in error.msg and error.pos >= len(text) - _ESCAPE_CHARS
            if escape or _CUT.match(text, error.pos):
                return True, len(text) - text.rfind('"', at, error.pos) if escape else 0
        except (ValueError, RecursionError):
            return False, 0
        else:
            if not text[end:].strip():
                return True, 0
    return False, 0


def structured_lines(lines: Sequence[str], *, in_fence: bool = False) -> list[bool]:
    """For each line that is not blank, whether it is of a table, a list or CSV, or stands in a code fence."""
    told: list[bool] = []
    fields: list[set[tuple[str, int]]] = [set()]
    for line in lines:
        if not line.strip():
            continue
        fence = bool(_FENCE.match(line))
        told.append(in_fence or fence or line.count("|") > 1 or _of_record(line))
        fields.append(_fields(line))
        in_fence ^= fence
    fields.append(set())
    return [one or bool(fields[at + 1] & (fields[at] | fields[at + 2])) for at, one in enumerate(told)]


def _of_record(line: str) -> bool:
    """Whether a line is of a list, a rule, markup or code, names a value, or is numbers for the most part."""
    shaped = _LIST.match(line) or _RULE.match(line) or _RECORD.match(line) or _MARKUP.match(line)
    if shaped and len(line) <= _MOST_CHARS:
        return True
    words = _WORD.findall(line)
    return bool(words) and sum(word[0].isdecimal() for word in words) * 2 >= len(words)


def _fields(line: str) -> set[tuple[str, int]]:
    """The separators with which a line is one of CSV, each with the number of fields."""
    split = ((sign, line.split(sign)) for sign in _SEPARATORS if sign in line)
    return {
        (sign, len(fields)) for sign, fields in split
        if len(fields) >= _LEAST_FIELDS and all(len(field.split()) <= _MOST_WORDS for field in fields)
    }  # fmt: skip
