"""The whole prompt set as files: what every engine is given, what is known of it before anything runs, and a manifest of it all.

Pure: the same protocol, texts and tokenizer give the same bytes, on every machine and version of Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from engcmp_assets.kernel.protocol import Protocol
from engcmp_assets.kernel.records import Panel
from engcmp_assets.kernel.review.duplicates import duplicate_windows
from engcmp_assets.kernel.task_checks import json_check, math_check, needles
from engcmp_assets.kernel.tool_calling.self_test import check_grader
from engcmp_assets.prompt_set.prompts import panel_document
from engcmp_resources.canonical import canonical_bytes, sha256_bytes
from engcmp_resources.errors import EngcmpError

MANIFEST = "MANIFEST.json"
SCHEMA = "engcmp.prompt-set-manifest/1"
# What templates and engines give a meaning to: in a text that is to be read as text it may be taken for a command.
_CONTROL = re.compile(r"<\|[^|<>\s]{1,40}\|>|\[gMASK\]|<sop>|<eop>|</?think>|</?s>|[\x00-\x08\x0b-\x1f\x7f]")
_SELF_TESTS: dict[str, Callable[[], None]] = {
    "json": json_check.self_test,
    "math": math_check.self_test,
    "needles": needles.self_test,
    "tools": check_grader,
}


def built_files(
    protocol: Protocol,
    *,
    frozen: Mapping[str, bytes],
    panels: Sequence[Panel],
    texts: Mapping[str, str],
    prompts: Sequence[tuple[str, int, Sequence[int]]],
    outside: Mapping[str, Mapping[str, Any]] | None = None,
    tokenizer: Mapping[str, Any] | None = None,
    waiting: Sequence[str] = (),
) -> dict[str, bytes]:
    """The files of a prompt set by path, the manifest with them.

    `frozen` are the files that a freeze keeps (prompt set and plans), `texts` all texts by path, `prompts` the requests of the speed block:
    id, the tokens that it must have, and its ids. `outside` says of each panel from outside what it was laid out
    from; `tokenizer` which one it was and what it stands in for, where the protocol names one; `waiting` what could not be made, and why.
    Raises EngcmpError for a prompt of another length than planned, and for a checker that
    does not judge its own examples as it must.
    """
    for name, wanted, ids in prompts:
        if len(ids) != wanted:
            raise EngcmpError(
                f"prompt {name} has {len(ids)} tokens, {wanted} are planned",
                remedy="this is a fault of engcmp: report it",
            )
    files = dict(frozen)
    files |= {f"panels/{panel.panel}.json": canonical_bytes(panel_document(panel)) for panel in panels}
    if prompts:
        rows = [{"request_id": name, "tokens": list(ids)} for name, _, ids in prompts]
        files["throughput/prompts.json"] = canonical_bytes(rows)
    files["REVIEW.json"] = canonical_bytes(
        {
            "near_duplicates": _duplicates(panels),
            "control_tokens": {name: found for name, text in sorted(texts.items()) if (found := control_tokens(text))},
            "prompt_tokens": predicted(protocol, panels, prompts),
            "self_tests": self_tests(),
            "not_made_here": not_made(protocol, panels),
        }
        | ({"from_outside": {name: dict(one) for name, one in outside.items()}} if outside else {})
        | ({"tokenizer": dict(tokenizer)} if tokenizer else {})
        | ({"waiting": list(waiting)} if waiting else {})
    )
    listed = {name: {"sha256": sha256_bytes(data), "bytes": len(data)} for name, data in sorted(files.items())}
    return files | {MANIFEST: canonical_bytes({"schema": SCHEMA, "study": protocol.study, "files": listed})}


def control_tokens(text: str) -> list[str]:
    """What of a text a template or an engine may take for a control token, each once, in order."""
    return list(dict.fromkeys(match.encode("unicode_escape").decode() for match in _CONTROL.findall(text)))


def predicted(
    protocol: Protocol, panels: Sequence[Panel], prompts: Sequence[tuple[str, int, Sequence[int]]]
) -> dict[str, dict[str, int]]:
    """The prompt tokens that each engine must report: it is given ids, so every one of them counts alike."""
    windows = {window.window_id: len(window.tokens) for panel in panels for window in panel.windows}
    own = {"windows": sum(windows.values()), "speed": sum(wanted for _, wanted, _ in prompts)}
    return {name: dict(own) for name in sorted(protocol.engines)}


def self_tests() -> dict[str, str]:
    """The checkers that were held against their own examples. That of code needs a sandbox and is made where code is run."""
    for name, test in _SELF_TESTS.items():
        try:
            test()
        except EngcmpError as error:
            raise EngcmpError(f"checker {name}: {error.what}", where=error.where, remedy=error.remedy) from error
    return dict.fromkeys(_SELF_TESTS, "passed") | {"code": "made where code is run, in its sandbox"}


def not_made(protocol: Protocol, panels: Sequence[Panel]) -> dict[str, str]:
    """The panels whose windows come from elsewhere: a stand-in that a test makes for one is named so by the study that has it."""
    made = {panel.panel for panel in panels}
    return {
        name: f"its windows come from {plan.external.source}" if plan.external else "its windows are not made"
        for name, plan in protocol.panels.items()
        if name not in made
    }


def _duplicates(panels: Sequence[Panel]) -> dict[str, Any]:
    windows = {window.window_id: window for panel in panels for window in panel.windows}
    if not windows:
        return {"groups": [], "sentence": "there are no windows"}
    found = duplicate_windows(
        {name: one.tokens[1:] for name, one in windows.items()}, {name: one.cluster for name, one in windows.items()}
    )
    return {"groups": [list(group.windows) for group in found.groups], "sentence": found.sentence}


def refuse_other_files(files: Mapping[str, bytes], manifest: Mapping[str, Any]) -> None:
    """Raise EngcmpError naming the first file that is not as the manifest says."""
    listed = manifest["files"]
    for name in sorted({*listed, *files} - {MANIFEST}):
        if name not in files or name not in listed or sha256_bytes(files[name]) != listed[name]["sha256"]:
            raise EngcmpError(f"{name} is not as {MANIFEST} says", remedy="build the prompt set again")
