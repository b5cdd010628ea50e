"""What each detector and the vote find on the labelled corpus, on the seeds that no threshold was chosen by; a test holds it to that."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engcmp_assets.kernel.replies.loops import DETECTORS, Detector


@dataclass(frozen=True, slots=True)
class Case:
    """A labelled reply and what was found in it: the detectors that fired, and whether the vote called it looped or recovered."""

    name: str
    is_loop: bool
    fired: Sequence[Detector]
    flagged: bool


@dataclass(frozen=True, slots=True)
class DetectorHits:
    """Of one detector, or of the `vote`: loops that it found, and healthy replies that it took for one."""

    detector: str
    hits: int
    false_flags: int


@dataclass(frozen=True, slots=True)
class CorpusHits:
    """Of a corpus with `loops` loops and `healthy` healthy replies: every detector, the vote last, and the loops that the vote missed."""

    loops: int
    healthy: int
    detectors: tuple[DetectorHits, ...]
    missed: tuple[str, ...] = ()


def count_hits(cases: Iterable[Case]) -> CorpusHits:
    """The table of labelled cases. A detector counts by itself wherever it may judge, so their hits overlap."""
    every = list(cases)
    found: list[tuple[str, set[str]]] = [
        (name, {case.name for case in every if name in case.fired}) for name in DETECTORS
    ]
    found.append(("vote", {case.name for case in every if case.flagged}))
    loops = {case.name for case in every if case.is_loop}
    return CorpusHits(
        len(loops), len(every) - len(loops),
        tuple(DetectorHits(name, len(names & loops), len(names - loops)) for name, names in found),
        tuple(sorted(loops - found[-1][1])),
    )  # fmt: skip


def hits_text(found: CorpusHits) -> str:
    """A line for each detector."""
    lines = [
        f"Detectors on {found.loops} labelled loops and {found.healthy} healthy replies (loops found, false flags):"
    ]
    lines += [f"  {one.detector}: {one.hits}, {one.false_flags}" for one in found.detectors]
    return "\n".join(lines)


def vote_text(found: CorpusHits) -> str:
    """What the vote is worth, in a line."""
    vote = found.detectors[-1]
    return (
        f"The vote of the detectors finds {vote.hits} of {found.loops} labelled loops, and flags {vote.false_flags} of "
        f"{found.healthy} healthy replies; loops in fewer than about 14,000 characters are often missed"
    )


# Made by tests/replies_corpus/report.py, with the tokenizer of SmolLM2.
ON_REPORTING_SEEDS = CorpusHits(
    loops=270,
    healthy=600,
    detectors=(
        DetectorHits("exact_period", 138, 0),
        DetectorHits("self_repetition", 114, 0),
        DetectorHits("novelty8", 162, 0),
        DetectorHits("novelty8_digits", 113, 0),
        DetectorHits("vote", 267, 0),
    ),
    missed=("long_period_code/1000/14000/length", "long_period_code/1003/14000/length", "templated/1003/14000/length"),
)
