"""The long replies of a study as pages and terminal show them: how they ended, what they passed, how long they are, pair by pair."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engcmp_assets.kernel.plots import format_number
from engcmp_assets.kernel.reply_verdicts import ENDINGS
from engcmp_assets.kernel.uncertainty import INTERVAL_CLUSTERS
from engcmp_assets.publication.claims import pair_name, undeclared
from engcmp_assets.publication.formats import (
    format_interval,
    format_measured,
    listed,
    number,
    reason,
    value_parts,
)

CHECKED = ("code_passed", "json_valid", "json_valid_unfenced", "math_right", "needle_found", "tool_points")
_LENGTHS = ("reply_tokens", "thinking_tokens")
_WORDS = {"stopped_early": "stopped early", "error": "failed"}
_TESTS = {
    "capped": "more capped", "looped": "more looped", "longer": "longer", "thinks_longer": "longer thinking", "passed": "more passed",
    "json_valid": "more valid",
}  # fmt: skip

Summary = Mapping[str, Any]
Owner = Mapping[str, Any]


def reply_figures_of(owner: Owner) -> list[Mapping[str, Any]]:
    """The figures of long replies that an arm or a pair has."""
    own = owner.get("replies")
    if not own:
        return []
    return list(own["figures"]) if "figures" in own else [one for group in own["groups"] for one in group["figures"]]


def replies_view(summary: Summary, anchors: Mapping[str, str]) -> dict[str, Any] | None:
    """What the section on long replies shows; None where no arm has any."""
    measured = [arm for arm in summary["arms"] if arm.get("replies")]
    if not measured:
        return None
    terms = {term["measure"]: term for term in summary["terms"]}
    return {
        "words": [{"name": name, "title": ending_word(name)} for name in ENDINGS],
        "groups": [one for one in _outcomes(measured) if one["rows"]],
        "tables": [
            _table("What passed", CHECKED, measured, terms, anchors),
            _table("Median length under the cap (tokens)", _LENGTHS, measured, terms, anchors),
        ],
        "pairs": [_pair(pair) for pair in summary["comparisons"] if pair.get("replies")],
        "notes": list(_notes(measured)),
    }  # fmt: skip


def replies_lead(summary: Summary) -> bool:
    """Whether a page begins with the long replies: the study makes some, and its rows are of too few documents for any interval."""
    figures = [figure for arm in summary["arms"] for figure in arm["figures"]]
    return any(arm.get("replies") for arm in summary["arms"]) and all(
        figure["clusters"] < INTERVAL_CLUSTERS for figure in figures
    )


def answers(pair: Mapping[str, Any]) -> list[str]:
    """What a pair's long replies say at a glance: how they ended on both sides, what is resolved, and what is the same."""
    stages = [one for one in pair["replies"]["stages"] if one["block"] == "long" and "missing" not in one]
    lines = [_ended(stages)] if stages else []
    declared = [one for one in pair["replies"]["figures"] if one["verdict"] not in ("descriptive", "bit-identical")]
    lines += [f"{one['verdict']}: {one['label']}: {one['sentence']}" for one in declared]
    if not declared:
        lines.append("No test of replies was declared: everything here is descriptive.")
    return [*lines, *([f"{same}."] if (same := identity_line(pair)) else [])]


def _ended(stages: Sequence[Mapping[str, Any]]) -> str:
    """The long replies of all stages together, each side's endings beside the other's."""
    sides = [[one[name] for one in stages] for name in ("candidate", "baseline")]
    totals = [sum(one["replies"] for one in side) for side in sides]
    counts = {name: [sum(one["endings"].get(name, 0) for one in side) for side in sides] for name in ENDINGS}
    told = [
        f"{own[0]} {ending_word(name)}, baseline {own[1]}" for name, own in counts.items() if any(own) or name in ("finished", "looped")
    ]  # fmt: skip
    return f"Of {totals[0]} long replies, baseline {totals[1]}: {'; '.join(told)}."


def ending_word(name: str) -> str:
    """How a reply ended, for a reader."""
    return _WORDS.get(name, name)


def _outcomes(measured: Sequence[Owner]) -> Iterator[dict[str, Any]]:
    """How replies ended, as parts of a bar and as counts: a line for each group and arm; the stages apart from the tasks."""
    groups = [(arm["arm"], one) for arm in measured for one in arm["replies"]["groups"] if one["block"] != "tools"]
    order = list(dict.fromkeys(one["population"] for _, one in groups))
    for title, of_stages in (("Stages of long replies", True), ("Tasks", False)):
        own = [(arm, one) for arm, one in groups if (one["block"] == "long") == of_stages]
        yield {
            "title": title,
            "rows": [_bar(arm, one) for name in order for arm, one in own if one["population"] == name],
        }


def _bar(arm: str, group: Mapping[str, Any]) -> dict[str, Any]:
    parts, begin = [], 0.0
    for name in ENDINGS:
        count = group["endings"].get(name, 0)
        width = 100 * count / group["replies"]
        if count:
            parts.append({"name": name, "count": count, "from": f"{begin:.2f}", "width": f"{width:.2f}"})
        begin += width
    return {
        "arm": arm, "population": group["population"], "caps": listed([f"{cap:,}" for cap in group["caps"]]), "replies": group["replies"],
        "parts": parts, "counts": [group["endings"].get(name, 0) for name in ENDINGS],
    }  # fmt: skip


def _table(
    title: str, measures: Sequence[str], measured: Sequence[Owner], terms: Mapping[str, Any], anchors: Mapping[str, str]
) -> dict[str, Any]:
    """A line for each measure of each group, a column for each arm."""
    found = dict.fromkeys(
        (one["population"], one["measure"]) for arm in measured for one in reply_figures_of(arm) if one["measure"] in measures
    )  # fmt: skip
    rows = [
        {
            "population": population, "measure": measure, "title": terms.get(measure, {}).get("title", measure),
            "cells": [_cell(arm, population, measure, anchors) for arm in measured],
        }
        for population, measure in found
    ]  # fmt: skip
    return {"title": title, "arms": [arm["arm"] for arm in measured], "rows": rows}


def _cell(arm: Owner, population: str, measure: str, anchors: Mapping[str, str]) -> dict[str, Any]:
    own = (one for one in reply_figures_of(arm) if (one["population"], one["measure"]) == (population, measure))
    figure = next(own, None)
    if figure is None:
        return {"value": None, "text": "none", "of": ""}
    if number(figure["value"]) is None:
        # What was not graded says so itself; a length that is not known is told with what it was read from.
        return {"value": None, "text": reason(figure["value"]), "of": counted_of(figure) if measure in _LENGTHS else ""}
    between = figure["interval"] if format_interval(figure["interval"]) else None
    return {
        **value_parts(figure["value"], between), "anchor": anchors.get(figure["figure_id"]), "id": figure["figure_id"],
        "of": counted_of(figure),
    }  # fmt: skip


def counted_of(figure: Mapping[str, Any]) -> str:
    """What a figure was counted from: `3 of 4, 1 not graded`, `5 of 24 points`, `1 of 8 capped; left out: 2 looped`."""
    details = figure["details"]
    if "max_points" in details:
        words = f"of {details['max_points']}"
        floor = details["flips"]
        words += (
            f", flips between repeats {floor['flips']} of {floor['compared']}"
            if "flips" in floor
            else ", no repeat: no floor"
        )
    elif "count" in details:
        words = f"{details['count']} of {details['of']}"
    else:
        return f"{details['capped']} of {figure['rows']} capped; left out: {_left_out(details['left_out'])}"
    left = details.get("not_graded") or details.get("failed") or 0
    return words + (f", {left} {'failed' if 'failed' in details else 'not graded'}" if left else "")


def _left_out(counts: Mapping[str, int]) -> str:
    """Replies that a length does not count, by how they ended: `2 looped, 1 failed`, or `none`."""
    return ", ".join(f"{counts[name]} {ending_word(name)}" for name in ENDINGS if counts.get(name)) or "none"


def _notes(measured: Sequence[Owner]) -> Iterator[str]:
    """What must be known of the figures: what the detectors are worth, what could not be graded, what is too short to judge."""
    known = measured[0]["replies"]["detectors"]
    vote = known["detectors"][-1]
    yield (
        f"Loops are called by a vote of detectors: on this project's labelled corpus it finds {vote['hits']} of {known['loops']} loops and "
        f"flags {vote['false_flags']} of {known['healthy']} healthy replies. Loops in fewer than about 14,000 characters are often missed."
    )  # fmt: skip
    missing: dict[str, list[str]] = {}
    for arm in measured:
        for check, why in arm["replies"]["missing"].items():
            missing.setdefault(f"{check} was not graded: {why}", []).append(arm["arm"])
    for text, arms in missing.items():
        yield f"{text} ({listed(arms)})"
    short = sum(group["too_short_to_judge"] for arm in measured for group in _single(arm))
    if short:
        yield f"{short} replies that were cut are too short to judge: in them only exact copies can be told."
    cut = sum(sum(group["not_graded"].values()) for arm in measured for group in _single(arm))
    if cut:
        yield f"{cut} replies to a task were not graded: one that was cut or broke off is never wrong."


def _single(arm: Owner) -> list[Mapping[str, Any]]:
    """The groups of one kind of content: those of all kinds hold the same replies again."""
    return [group for group in arm["replies"]["groups"] if group["kind"] != "all"]


def _pair(pair: Mapping[str, Any]) -> dict[str, Any]:
    own = pair["replies"]
    return {
        "label": pair["label"], "candidate": pair["candidate"], "baseline": pair["baseline"], "missing": own.get("missing", ""),
        "undeclared_text": undeclared(pair),
        "answers": answers(pair),
        "same_seed": _why_unpaired(own), "stages": [_stage(one) for one in own["stages"]],
        "tools": [_tools(one) for one in own["tools"]],
        "traces": list(_traces(own["traces"])),
    }  # fmt: skip


def _why_unpaired(own: Mapping[str, Any]) -> str:
    """Why no stage is held seed against seed, said once; nothing where one is."""
    told = [one["identity"] for one in own["stages"] if "identity" in one]
    return str(told[0]["missing"]) if told and all("missing" in one for one in told) else ""


def _stage(one: Mapping[str, Any]) -> dict[str, Any]:
    head: dict[str, Any] = {"population": one["population"], "tests": []}
    if "missing" in one:
        return head | {"said": [one["missing"]]}
    said = [f"length ratio {_ratio(one['lengths'])}"]
    if "missing" not in one["thinking"]:
        said.append(f"of the thinking {_ratio(one['thinking'])}")
    if "missing" not in one["identity"]:
        said.append(identity_text(one["identity"]))
    return head | {"tests": [_test(test) for test in one["tests"]], "said": said}


def _test(test: Mapping[str, Any]) -> dict[str, Any]:
    p = number(test["p"])
    return {
        "name": _TESTS.get(test["name"], test["name"]), "candidate": test["candidate_more"], "baseline": test["baseline_more"],
        "equal": test["undecided"], "p": reason(test["p"]) if p is None else format_number(p), "standing": test["standing"],
    }  # fmt: skip


def _ratio(lengths: Mapping[str, Any]) -> str:
    """The ratio of the main count, and of the sensitivity where either is known and they differ."""
    main, other = (_one_ratio(lengths[name]) for name in ("main", "sensitivity"))
    known = any(number(lengths[name]["ratio"]["ratio"]) is not None for name in ("main", "sensitivity"))
    return f"{main}; with looped, stopped and failed replies as capped: {other}" if known and main != other else main


def _one_ratio(own: Mapping[str, Any]) -> str:
    found = own["ratio"]
    if number(found["ratio"]) is not None:
        return format_measured(found["ratio"], found["interval"])
    return f"withheld: {reason(found['ratio'])}"


def identity_text(found: Mapping[str, Any]) -> str:
    """`same seed: 25 of 25 identical`, with where the first of those that differ do."""
    text = f"same seed: {found['sentence']}"
    text += _of_same_build(found.get("same_build", {}))
    parted = [one["within"] for one in found["divergences"] if isinstance(one["within"], list)]
    if parted:
        first = min(parted)
        text += f", the first difference between tokens {first[0]} and {first[1] - 1}"
    return text + (f", {found['by_digest']} by the digest of their text" if found["by_digest"] else "")


def _of_same_build(sides: Mapping[str, Any]) -> str:
    """The floor: what each build reads when it makes its replies twice; said once where neither did."""
    if not sides:
        return ""
    if all("missing" in one for one in sides.values()):
        return " (floor not measured: no build made its replies twice)"
    told = [f"{side} {one.get('sentence') or reason(one)}" for side, one in sides.items()]
    return f" (the same build twice: {', '.join(told)})"


def _tools(one: Mapping[str, Any]) -> dict[str, Any]:
    if "missing" in one:
        return {"stage": one["stage"], "text": one["missing"], "changes": []}
    between, p = one["between"], number(one["points"]["p"])
    floors = [f"{side['flips']} of {side['compared']}" for side in reversed(one["floors"]) if "flips" in side]
    text = (
        f"points {listed(one['sentences'][0])}, baseline {listed(one['sentences'][1])}; scenarios that differ between the builds "
        f"{between['flips']} of {between['compared']}, between repeats {listed(floors) if floors else 'not known: no repeat'}; "
        f"exact p by scenario: {reason(one['points']['p']) if p is None else format_number(p)}; descriptive"
    )
    changes = [
        f"{change['scenario_id']}: {_points(change['candidate'])}, baseline {_points(change['baseline'])}"
        for change in one["changes"]
    ]
    return {"stage": one["stage"], "text": text, "changes": changes}


def _points(values: Sequence[int | None]) -> str:
    """The points of each repeat."""
    return " ".join("not graded" if one is None else str(one) for one in values)


def _traces(found: Any) -> Iterator[str]:
    """How likely the end of thinking is at fixed places, kind by kind; a sentence each."""
    if found is None:
        return
    if isinstance(found, Mapping):
        yield f"End of thinking at fixed places: {found['missing']}"
        return
    for one in found:
        lowest, highest = (number(one[name]["value"]) for name in ("lowest", "highest"))
        known = (
            ""
            if lowest is None or highest is None
            else f"; of its probability {format_number(lowest)} to {format_number(highest)}"
        )
        yield (
            f"End of thinking, {one['kind'].replace('_', ' ')}: {one['exact']} of {one['positions']} places are known exactly in both, "
            f"the others by a bound; mean difference of its log-probability {_estimate(one['log_prob'])}{known}"
        )


def _estimate(one: Mapping[str, Any]) -> str:
    value = number(one["value"])
    return "not known" if value is None else f"{format_measured(one['value'], one['interval'])} nats"


# The terminal: counts alone, the pages have the rest.


def outcome_rows(summary: Summary) -> list[list[str]]:
    """Each arm's long replies by how they ended, stage by stage, as a table with its head; empty where there are none."""
    measured = [arm for arm in summary["arms"] if arm.get("replies")]
    rows = []
    for arm in measured:
        for group in arm["replies"]["groups"]:
            if group["block"] == "long" and (group["kind"] == "all" or _alone(arm, group)):
                caps = listed([f"{cap:,}" for cap in group["caps"]])
                counts = [str(group["endings"].get(name, 0)) for name in ENDINGS]
                rows.append([arm["arm"], f"{group['stage']} ({caps})", *counts])
    return [["Long replies", "stage (cap)", *map(ending_word, ENDINGS)], *rows] if rows else []


def _alone(arm: Owner, group: Mapping[str, Any]) -> bool:
    same = [one for one in arm["replies"]["groups"] if (one["block"], one["stage"]) == (group["block"], group["stage"])]
    return len(same) == 1


def passed_rows(summary: Summary) -> list[list[str]]:
    """Each arm's checks as counts, with a head; empty where none was made."""
    measured = [arm for arm in summary["arms"] if arm.get("replies")]
    columns = [
        name for name in CHECKED if any(one["measure"] == name for arm in measured for one in reply_figures_of(arm))
    ]
    if not columns:
        return []
    return [
        ["Tasks of long replies", *columns],
        *([arm["arm"], *(_passed(arm, name) for name in columns)] for arm in measured),
    ]


def _passed(arm: Owner, measure: str) -> str:
    own = [one for one in reply_figures_of(arm) if one["measure"] == measure]
    known = [one for one in own if number(one["value"]) is not None]
    if not known:
        return reason(own[0]["value"]) if own else "none"
    if measure == "tool_points":
        return (
            f"{sum(one['details']['points'] for one in known)} of {sum(one['details']['max_points'] for one in known)}"
        )
    return f"{sum(one['details']['count'] for one in known)} of {sum(one['details']['of'] for one in known)}"


def identity_lines(summary: Summary) -> list[str]:
    """Each pair of versions of one engine: how many replies of one seed are the same."""
    found = ((pair, identity_line(pair)) for pair in summary["comparisons"] if pair.get("replies"))
    return [f"{pair_name(pair)}: {line}" for pair, line in found if line]


def identity_line(pair: Mapping[str, Any]) -> str:
    """How many replies of one prompt and seed are the same in both versions of one engine; empty for other pairs."""
    known = [
        one["identity"] for one in pair["replies"]["stages"] if "identity" in one and "missing" not in one["identity"]
    ]
    if not known:
        return ""
    same, compared = (sum(one[name] for one in known) for name in ("identical", "compared"))
    return f"{same} of {compared} replies of the same prompt and seed are identical"
