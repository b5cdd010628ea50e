"""The findings of an audit as one page: what holds and how it was checked, what is narrowed, what is corrected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_TITLES = {"corrected": "Corrected", "narrowed": "Narrowed"}
_SHOWN = 12  # claims of one rule that are named


def findings_page(report: Mapping[str, Any]) -> str:
    """The page in Markdown, made from findings.json and nothing else."""
    lines = [
        f"# Audit of {_text(report['study'])}",
        "",
        f"Frozen hash `{report['frozen_sha256']}`.",
        "",
        *_confined(report),
    ]
    lines += ["", _in_short(report)]
    for outcome, title in _TITLES.items():
        lines += ["", f"## {title}", "", *_faults(report, outcome)]
    lines += [
        "",
        "## What was checked, and how",
        "",
        "| check | question | how | looked at | outcome |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {_text(one['check'])} | {_text(one['asks'])} | {_text(one['how'])} | {_text(one['looked_at'])} | {one['outcome']} |"
        for one in report["checks"]
    ]  # fmt: skip
    if report["readings"]:
        lines += ["", "## Reading rules, applied", ""]
        lines += [line for one in report["readings"] for line in _reading(one)]
    return "\n".join(lines) + "\n"


def _reading(one: Mapping[str, Any]) -> Iterator[str]:
    yield f"* `{one['rule_id']}`: **{one['verdict']}**: {_text(one['means'])}"
    yield from (f"  * {_text(look['look'])}: {look['verdict']}: {_text(look['means'])}" for look in one["looks"])


def _confined(report: Mapping[str, Any]) -> list[str]:
    confined = report["confined"]
    return [
        "Made from row files and receipts alone, in a process that could reach no engine and write nothing to the store. "
        f"In force: {confined['in force']}. Tried before anything was read: {confined['an engine']}; {confined['the store']}."
        + (f" Beside that, {confined['kernel']}." if "kernel" in confined else "")
    ]


def _in_short(report: Mapping[str, Any]) -> str:
    counts = Counter(one["outcome"] for one in report["claims"])
    claims = f"{len(report['claims'])} published statements of pairs: {counts['holds']} hold as they are said"
    claims += "".join(f", {counts[word]} {word}" for word in ("narrowed", "corrected") if counts[word])
    looked = [one for one in report["checks"] if one["outcome"] != "not looked at"]
    held = sum(one["outcome"] == "holds" for one in looked)
    unseen = len(report["checks"]) - len(looked)
    rest = f"; {unseen} more had nothing to look at" if unseen else ""
    faults = _count(len(report["found"]), "fault")
    return f"**{held} of {_count(len(looked), 'check')} hold{rest}. {faults} found. {claims}.**"


def _faults(report: Mapping[str, Any], outcome: str) -> list[str]:
    lines = [
        f"* **{_text(one['about'])}** ({one['check']}): {_text(one['what'])}. {_sentence(one['remedy'])}"
        for one in report["found"]
        if one["outcome"] == outcome
    ]
    lines += list(_claims([one for one in report["claims"] if one["outcome"] == outcome]))
    return lines or ["Nothing."]


def _claims(claims: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """By what is wrong with them, since one fault is often in many figures."""
    by_rule: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for one in claims:
        by_rule.setdefault(tuple(one["rules"]), []).append(one)
    for rules, own in by_rule.items():
        named = ", ".join(f"`{one['claim_id']}`" for one in own[:_SHOWN])
        more = f" and {len(own) - _SHOWN} more" if len(own) > _SHOWN else ""
        first = own[0]
        left = "nothing of it is left" if first["left"] is None else f"left is `{first['left']}`"
        yield (
            f"* **{_count(len(own), 'published statement')}** ({', '.join(rules)}): said was `{first['verdict']}`, {left}; "
            f"{_text('; '.join(first['what']))}. {named}{more}"
        )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{_text(text[1:])}."


def _text(value: Any) -> str:
    """Text that stays text in Markdown."""
    text = " ".join(str(value).split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace("|", "\\|").replace("*", "\\*")
