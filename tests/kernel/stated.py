"""What the documents of glm53-flash state, token by token, and where the study holds it: the list, and how it is read out of them.

The documents are not part of this project. `glm53_stated.json` is what was read out of them, once, by `tokens` below: revisions, hashes,
versions, settings, options, repositories, config files and numbers, each with its document and line. With the documents at hand,
`python tests/kernel/stated.py FOLDER` reads them again and says what the list lacks.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIST = Path(__file__).with_name("glm53_stated.json")
_PATTERNS = {
    "hash": r"(?<![\w/-])(?:sha256:)?(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,64}(?!\w)",
    "version": r"(?<![\w./-])v\d+(?:\.\d+){1,2}\b",
    "setting": r"\b(?:[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+|ADDR|USAGE|VISION|SPECULATOR|PORT|IMAGE)\b(?:=\"?[^\s`,;)\"]+)?",
    "option": r"(?<![\w-])--[a-z][a-z0-9-]+",
    "repository": r"(?:ghcr\.io/|github\.com/)?\b(?:wrldsuksgo2mars|brandonmusic|incoai|zai-org|tpurtell)/[\w.-]*\w",
    "config": r"[\w.{},-]*[\w}](?:\.config|\.patch)\b|k4/vllm/env\.sh",
    "number": r"(?<![\w.,/:-])[+\u2212-]?(?:\d\d+|\d[\d,]*,\d{3}|\d+\.\d+)(?:,\d{3})*+(?:\.\d++)?+[Kx%]?+(?!\w|\.\w|-\d\d-)",
}
# A count and the ratio beside it, which one of the documents prints without a space between them.
_GLUED = re.compile(r"(\d{1,3}(?:,\d{3})+)(\d\.\d+x)")


@dataclass(frozen=True, slots=True)
class Stated:
    """A token of a document: what kind of thing, as printed, and the first line on which it stands."""

    document: str
    line: int
    kind: str
    text: str


def tokens(document: str, text: str) -> Iterator[Stated]:
    """Every token of a document once, where it stands first."""
    seen: set[tuple[str, str]] = set()
    for number, line in enumerate(text.splitlines(), 1):
        for kind, pattern in _PATTERNS.items():
            for match in re.finditer(pattern, _GLUED.sub(r"\1 \2", line)):
                token = match.group().rstrip(",")
                if (kind, token) not in seen:
                    seen.add((kind, token))
                    yield Stated(document, number, kind, token)


def holds(text: str, one: Stated) -> bool:
    """Whether a file's text holds the token: a number with its thousands apart in any way, a setting in any form."""
    if one.kind == "number":
        whole, dot, rest = one.text.lstrip("+\u2212-").rstrip("Kx%").replace(",", "").partition(".")
        digits = "[,_]?".join(re.findall(r"\d{1,3}(?=(?:\d{3})*$)", whole)) + (rf"\.{rest}" if dot else "")
        return re.search(rf"(?<![\d.,_]){digits}(?![\d]|[.,_]\d)", text) is not None
    if one.kind == "setting":
        key, _, value = one.text.replace('"', "").partition("=")
        return (
            re.search(rf'\b{re.escape(key)}"?' + (rf'\s*[=:]\s*"?{re.escape(value)}' if value else r"\b"), text)
            is not None
        )
    return one.text in text


def in_figure(figure: Mapping[str, Any], one: Stated) -> bool:
    """Whether a published figure is printed with this number, its sign included."""
    sign, said = ("-" if one.text[0] in "\u2212-" else ""), one.text.lstrip("+\u2212-").rstrip("Kx%")
    found = re.findall(r"[+-]?\d[\d,]*(?:\.\d+)?", str(figure["printed"]).replace("\u2212", "-"))
    # In a range, `40-81`, the second number's sign is the dash between them.
    return any(each.lstrip("+-") == said and (sign in each) for each in found)


def read_list() -> dict[str, Any]:
    """The frozen list: `documents` by key with their sha256, `beside` (reasons), `stated` and `counts`."""
    found: dict[str, Any] = json.loads(LIST.read_bytes())
    return found


def main() -> None:
    """Read the documents in a folder again; exit 1 where the list and they differ."""
    if len(sys.argv) != 2:
        sys.exit("usage: stated.py FOLDER, the folder with the documents that the study glm53-flash rests on")
    listed = read_list()
    known = {
        hashlib.sha256(path.read_bytes()).hexdigest(): path for path in Path(sys.argv[1]).iterdir() if path.is_file()
    }
    there, faults = {(one["document"], one["kind"], one["text"]) for one in listed["stated"]}, []
    found: set[tuple[str, str, str]] = set()
    for name, document in listed["documents"].items():
        if document["sha256"] not in known:
            faults.append(f"document {name} ({document['sha256'][:12]}) is not in the folder")
            continue
        text = known[document["sha256"]].read_text(encoding="utf-8")
        for one in tokens(name, text):
            found.add((one.document, one.kind, one.text))
            if (one.document, one.kind, one.text) not in there:
                faults.append(f"{name} line {one.line}: {one.kind} {one.text} is not in the list")
        lines = text.splitlines()
        for count in listed["counts"]:
            if count["document"] == name and count["says"] not in lines[count["line"] - 1]:
                faults.append(f"{name} line {count['line']} does not say {count['says']!r}")
    faults += [f"{name}: {kind} {text} is in the list only" for name, kind, text in sorted(there - found)]
    print("\n".join(faults) or f"all {len(there)} tokens of {len(listed['documents'])} documents are in the list")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
