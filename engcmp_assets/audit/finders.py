"""What an audit looks for in captures and launches: one function a fault, each on row files and receipts alone.

Each yields what it finds; what it looked at is counted, so that the page says what was checked where nothing was found.
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engcmp_assets.audit.found import Found
from engcmp_assets.audit.gathered import ArmRows, Gathered
from engcmp_assets.kernel.claims.contents import confounded
from engcmp_assets.kernel.claims.rules_public import MOST_HOURS
from engcmp_assets.kernel.engine_tables import ServerEngine
from engcmp_assets.kernel.launch_diff import Side, launch_differences
from engcmp_assets.kernel.names import LAUNCH
from engcmp_assets.kernel.records import ArmKey, Missing, Panel
from engcmp_assets.kernel.review.chunks import bit_equality_by_chunk
from engcmp_assets.kernel.review.duplicates import Duplicates, duplicate_windows
from engcmp_assets.scores.alignment import check_alignment

_NO_SETTING = ("engine", "version", "kind", "vocab", "mode", "slots", "model_sha256", "library_sha256")


@dataclass(frozen=True, slots=True)
class Finder:
    """One thing that is looked for: its id, what it asks, how that is looked at, the function, and how many things there are to look at."""

    check: str
    asks: str
    how: str
    find: Callable[[Gathered], Iterator[Found]]
    things: Callable[[Gathered], tuple[int, str]]


def misaligned(found: Gathered) -> Iterator[Found]:
    """Rows that are labelled one token early or late."""
    for rows in found.rows:
        alignment = check_alignment(rows.first_choices())
        if alignment.verdict == "misaligned":
            yield Found(
                "alignment", "corrected", rows.about, alignment.explanation,
                "mend the engine's adapter and capture the arm again: nothing that was read from these rows holds",
            )  # fmt: skip


def beside_others(found: Gathered) -> Iterator[Found]:
    """Rows that were computed in steps which other requests shared, beside those that the protocol has sent there."""
    for rows in found.rows:
        engine = found.study.protocol.engine_of(ArmKey.parse(rows.arm))
        declared = engine.settings.get("beside", 0) if isinstance(engine, ServerEngine) else 0
        shared = [key for key, note in rows.notes.items() if undeclared_company(note, declared)]
        if shared:
            run, window = shared[0]
            yield Found(
                "alone", "narrowed", rows.about,
                f"{len(shared)} of {len(rows.notes)} requests shared a step with others, first run {run}, window {window}",
                "capture the arm again with nothing else on the engine, or say that requests were batched",
            )  # fmt: skip


def undeclared_company(note: Mapping[str, Any], declared: int) -> bool:
    """Whether a step of a request held more others than are declared; False where the engine does not say."""
    said = note.get("other_requests_in_step")
    return isinstance(said, list) and any(others > declared for others in said)


def shared_steps(note: Mapping[str, Any]) -> int:
    """Other requests in the steps of one request, in all; 0 where the engine does not say."""
    said = note.get("other_requests_in_step")
    return sum(said) if isinstance(said, list) else 0


def requests_beside(rows: ArmRows) -> int | None:
    """Other requests in the steps of all requests; None where the engine does not say it of each."""
    said = [note.get("other_requests_in_step") for note in rows.notes.values()]
    known = [sum(one) for one in said if isinstance(one, list)]
    return sum(known) if known and len(known) == len(said) else None


def cached(found: Gathered) -> Iterator[Found]:
    """Rows of which the engine said that part of the prompt came from its cache."""
    for rows in found.rows:
        hits = [key for key, note in rows.notes.items() if _number(note.get("cached_tokens"))]
        if hits:
            run, window = hits[0]
            yield Found(
                "cache", "corrected", rows.about,
                f"{len(hits)} of {len(rows.notes)} requests took tokens from the cache, first run {run}, window {window}",
                "turn the prefix cache off for scoring and capture the arm again",
            )  # fmt: skip


def hidden_cache(found: Gathered) -> Iterator[Found]:
    """Warm repeats that differ from cold ones while cold ones agree: a cache, whatever the engine says of it."""
    for rows in found.rows:
        for path, runs in rows.paths.items():
            firsts = [run for run in runs if run.endswith(".1")]
            later = [(f"{run.split('.')[0]}.1", run) for run in runs if not run.endswith(".1")]
            if len(firsts) < 2 or not later:  # noqa: PLR2004 - two cold passes are needed to know what a cold one reads
                continue
            cold = all(rows.equal(firsts[0], run).all() for run in firsts[1:])
            warm = [int((~rows.equal(first, run)).sum()) for first, run in later]
            if cold and all(warm):
                yield Found(
                    "hidden cache", "corrected", rows.about,
                    f"on the {path} path {warm[0]} rows differ in a later repeat of a start, while the first repeats of "
                    f"{len(firsts)} starts are equal bit for bit: the engine keeps something between requests",
                    "turn the prefix cache off, or start the engine for each repeat, and capture the arm again",
                )  # fmt: skip


def rows_of_another_prompt(found: Gathered) -> Iterator[Found]:
    """One and the same row in two windows whose tokens up to it differ."""
    for rows in found.rows:
        tokens = {window.window_id: window.tokens for window in rows.panel.windows}
        for run in sorted(run for runs in rows.paths.values() for run in runs):
            seen: dict[str, tuple[str, int]] = {}
            for window, row in rows.rows:
                other = seen.setdefault(rows.hashes[(run, window, row)], (window, row))
                if tokens[other[0]][: other[1] + 1] != tokens[window][: row + 1]:
                    yield Found(
                        "another prompt", "corrected", rows.about,
                        f"run {run}: row {row} of window {window} is row {other[1]} of window {other[0]}, though the tokens before differ",
                        "these rows are not of the prompts they are labelled with: mend the engine or its cache, and capture again",
                    )  # fmt: skip
                    break
            else:
                continue
            break


def second_chunk(found: Gathered) -> Iterator[Found]:
    """Runs that are equal up to a chunk border and differ from there on."""
    for rows in found.rows:
        for first, second in run_pairs(rows):
            chunk = differs_from_chunk(rows, first, second)
            if chunk is not None and chunk > 1:
                alone = ", with every request alone" if requests_beside(rows) == 0 else ""
                yield Found(
                    "chunks", "narrowed", rows.about,
                    f"runs {first} and {second} are equal before prefill chunk {chunk} and differ from there on{alone}",
                    "say where the variation begins, and against which run of the baseline a difference was read",
                )  # fmt: skip
                break


def plain_noise(found: Gathered) -> Iterator[Found]:
    """Repeats that differ where neither a chunk, nor a cache, nor rows of another prompt explain it."""
    explained = {one.about for finder in (second_chunk, hidden_cache, rows_of_another_prompt) for one in finder(found)}
    for rows in found.rows:
        differing = [
            (first, second, count)
            for first, second in run_pairs(rows)
            if rows.about not in explained and (count := int((~rows.equal(first, second)).sum()))
        ]
        if differing:
            first, second, count = differing[0]
            where = "of one start" if first.partition(".")[0] == second.partition(".")[0] else "of two launches"
            yield Found(
                "repeats", "narrowed", rows.about,
                f"{count} of {len(rows.rows)} rows differ between runs {first} and {second} {where}, and neither a chunk nor a cache "
                f"explains it: the engine is not deterministic, whatever it promises",
                "read every difference of this arm beside its floor, and call none of its rows equal to another arm's",
            )  # fmt: skip


def run_pairs(rows: ArmRows) -> list[tuple[str, str]]:
    """The first run of each path with each later one."""
    return [(runs[0], run) for runs in rows.paths.values() for run in runs[1:]]


def differs_from_chunk(rows: ArmRows, first: str, second: str) -> int | None:
    """The prefill chunk from which two runs differ (0: nowhere), where earlier chunks are equal; None where it was not recorded."""
    lengths: list[dict[str, Sequence[int]]] = [
        {
            window: note["chunk_lengths"]
            for (run, window), note in rows.notes.items()
            if run == own and isinstance(note.get("chunk_lengths"), list)
        }
        for own in (first, second)
    ]
    if not all(lengths):
        return None
    windows, positions = zip(*rows.rows, strict=True)
    by_chunk = bit_equality_by_chunk(rows.equal(first, second), windows, positions, first=lengths[0], second=lengths[1])
    if isinstance(by_chunk, Missing):
        return None
    if isinstance(by_chunk.starts_at_chunk, Missing):
        return 0
    return by_chunk.starts_at_chunk if by_chunk.found else 1


def restarts(found: Gathered) -> Iterator[Found]:
    """Launches that took more than one start."""
    for arm, starts in found.starts.items():
        by_launch: dict[int, list[int]] = defaultdict(list)
        for start in starts:
            by_launch[start["launch"]].append(start["start"])
        several = {launch: own for launch, own in by_launch.items() if len(own) > 1}
        if several:
            launch, own = next(iter(several.items()))
            yield Found(
                "restarts", "narrowed", arm,
                f"launch {launch} was measured in {len(own)} starts of the engine: {', '.join(map(str, own))}",
                "read its repeats within a launch as those of one start, window by window",
            )  # fmt: skip


def torn_repeats(found: Gathered) -> Iterator[Found]:
    """Repeats of a window within one launch that two starts measured."""
    for rows in found.rows:
        names = ("launch", "window_id", "start")
        seen: dict[tuple[int, str], int] = {}
        for launch, window, start in zip(*(rows.table[name].tolist() for name in names), strict=True):
            if seen.setdefault((launch, window), start) != start:
                yield Found(
                    "torn repeats", "corrected", rows.about,
                    f"launch {launch}, window {window}: its repeats are of two starts, so they are no floor within a launch",
                    "capture the arm again: a torn pair is to be measured anew within one start",
                )  # fmt: skip
                break


def near_copies(found: Gathered) -> Iterator[Found]:
    """Windows that hold one text and count as several documents."""
    for panel in panels_of(found):
        duplicates = duplicates_of(panel)
        if duplicates.found:
            yield Found(
                "near-copies", "narrowed", f"panel {panel.panel}", duplicates.sentence.removesuffix("."),
                "give near-copies one cluster id, and read intervals on the documents that are left",
            )  # fmt: skip


def duplicates_of(panel: Panel) -> Duplicates:
    """Near-copies among whole windows."""
    texts = {window.window_id: window.tokens[1:] for window in panel.windows}
    return duplicate_windows(texts, {window.window_id: window.cluster for window in panel.windows})


def panels_of(found: Gathered) -> list[Panel]:
    """The panels of which rows were captured, each once."""
    return list({rows.panel.panel: rows.panel for rows in found.rows}.values())


def buckets(found: Gathered) -> Iterator[Found]:
    """Context buckets that are one kind of content."""
    for panel in panels_of(found):
        for what in confounded(panel):
            yield Found(
                "buckets", "narrowed", f"panel {panel.panel}", what,
                "name the block, or read context within a block that has every length",
            )  # fmt: skip


def several_settings(found: Gathered) -> Iterator[Found]:
    """Pairs of one kind of engine that change a setting and something else too."""
    for pair in found.pairs:
        sides = found.sides(pair) if pair["state"] == "compared" else None
        if sides is None:
            continue
        changed = settings_changed(*sides)
        others = [name for name in ("model", "engine") if name in changed[1]]
        if changed[0] and len(changed[0]) + len(others) > 1:
            yield Found(
                "one change", "narrowed", f"pair {pair['pair_id']}",
                f"the two launches differ in {', '.join([*changed[0], *others])}: the difference is of all of it together",
                "launch them apart, each with one change, or say that the difference is of all of it",
            )  # fmt: skip


def settings_changed(first: Side, second: Side) -> tuple[list[str], list[str]]:
    """The settings that were asked for differently, and what else was: `model`, `engine`. Of engines of two kinds nothing."""
    if first.spec.get("kind") != second.spec.get("kind"):
        return [], []
    asked = [
        one.name for one in launch_differences(first, second)
        if one.declared and one.told_by_both and not one.name.endswith(".requested")
    ]  # fmt: skip
    what = {"model" if "model" in name else "engine" for name in asked if _is_identity(name)}
    return [name for name in asked if name not in _NO_SETTING and not _is_identity(name)], sorted(what)


def _is_identity(name: str) -> bool:
    return name.startswith("identities.") or name.endswith("_sha256")


def stale(found: Gathered) -> Iterator[Found]:
    """Pairs whose sides were captured on different days."""
    for pair in found.pairs:
        hours = hours_apart(found, pair)
        if pair["state"] == "compared" and hours is not None and hours > MOST_HOURS:
            yield Found(
                "age", "narrowed", f"pair {pair['pair_id']}",
                f"the two sides were captured {hours:.0f} hours apart, and nothing was measured again between",
                "measure the baseline again (--remeasure), so that both are of one day",
            )  # fmt: skip


def hours_apart(found: Gathered, pair: Mapping[str, Any]) -> float | None:
    """Hours between the ends of the two arms' captures; None where an arm has none."""
    ends = []
    for name in ("candidate", "baseline"):
        receipt = found.receipts.get((LAUNCH, pair[name]))
        if receipt is None:
            return None
        made = found.reached.receipts.get(receipt["answered_by"] or "", receipt)
        ends.append(datetime.datetime.fromisoformat(made["finished_at"]))
    return abs((ends[0] - ends[1]).total_seconds()) / 3600


def same_machine(found: Gathered, pair: Mapping[str, Any]) -> bool | None:
    """Whether both arms were captured on one machine, by its fingerprint; None where a capture does not say."""
    machines = []
    for name in ("candidate", "baseline"):
        receipt = found.receipts.get((LAUNCH, pair[name]))
        made = None if receipt is None else found.reached.receipts.get(receipt["answered_by"] or "", receipt)
        machines.append(None if made is None else made["environment"].get("host_fingerprint"))
    return None if None in machines else machines[0] == machines[1]


def other_prompts(found: Gathered) -> Iterator[Found]:
    """Pairs whose engines counted other prompt tokens than each other in the same request of the speed block."""
    for pair in found.pairs:
        sides = [found.requests.get(pair[name]) for name in ("candidate", "baseline")]
        if pair["candidate"] == pair["baseline"] or sides[0] is None or sides[1] is None:
            continue
        counted = [
            dict(zip(one["request_id"].tolist(), one["usage_prompt_tokens"].tolist(), strict=True))
            for one in sides
            if one
        ]
        if len(counted) < len(sides):
            continue
        shared = sorted(counted[0].keys() & counted[1].keys())
        apart = [name for name in shared if _counts(counted[0][name], counted[1][name])]
        if apart:
            name = apart[0]
            yield Found(
                "inputs", "corrected", f"pair {pair['pair_id']}",
                f"{len(apart)} of {len(shared)} requests have other prompt tokens on the two sides, first {name}: "
                f"{counted[0][name]:g} and {counted[1][name]:g}",
                "find what the engines read differently (control tokens in the text?), and do not call the inputs identical",
            )  # fmt: skip


def _counts(one: Any, other: Any) -> bool:
    known = all(value is not None and np.isfinite(value) for value in (one, other))
    return bool(known and one != other)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def _captures(found: Gathered) -> tuple[int, str]:
    return len(found.rows), "captures"


def _noted(found: Gathered) -> tuple[int, str]:
    return sum(len(rows.notes) for rows in found.rows), "requests of which the engine noted something"


def _pairs(found: Gathered) -> tuple[int, str]:
    return sum(pair["state"] == "compared" for pair in found.pairs), "compared pairs"


def _panels(found: Gathered) -> tuple[int, str]:
    return len(panels_of(found)), "panels"


def _launches(found: Gathered) -> tuple[int, str]:
    return len(found.starts), "launches"


def _requests(found: Gathered) -> tuple[int, str]:
    return sum(len(one["request_id"]) for one in found.requests.values()), "requests of the speed block"


FINDERS = (
    Finder("alignment", "Is each row the distribution after the tokens that it is labelled with?",
           "the engine's first choices against the text at shifts -1, 0 and +1 (exact test)", misaligned, _captures),
    Finder("alone", "Did every request run alone?", "the engine's own steps, where it notes them", beside_others, _noted),
    Finder("cache", "Was every prompt computed anew?", "cached tokens as the engine states them", cached, _noted),
    Finder("hidden cache", "Does a later repeat read what a first one reads?",
           "row hashes of first repeats beside each other and beside later ones", hidden_cache, _captures),
    Finder("another prompt", "Is every row of its own prompt?", "equal row hashes where the tokens before differ",
           rows_of_another_prompt, _captures),
    Finder("chunks", "Where do runs begin to differ?", "row hashes by prefill chunk, where the engine notes its chunks",
           second_chunk, _noted),
    Finder("repeats", "Do repeats read the same rows, but for what chunks and caches explain?",
           "row hashes of each run beside the first", plain_noise, _captures),
    Finder("restarts", "Was each launch one start?", "the starts of the launch receipts", restarts,
           _launches),
    Finder("torn repeats", "Are the repeats of a window of one start?", "the start of each row", torn_repeats, _captures),
    Finder("near-copies", "Is every document another text?", "shared runs of 50 tokens", near_copies, _panels),
    Finder("buckets", "Is a context bucket more than one kind of content?", "rows by bucket and block", buckets, _panels),
    Finder("one change", "Does each pair change one thing?", "what was asked of the two launches", several_settings, _pairs),
    Finder("age", "Were both sides of a pair measured on one day?", "when their captures ended", stale, _pairs),
    Finder("inputs", "Did both engines count the same prompt tokens?", "each request of the speed block on both sides",
           other_prompts, _requests),
)  # fmt: skip
"""Everything that is looked for, in the order of the page."""
