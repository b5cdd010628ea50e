"""Runs of a suite of scenarios: points, flips between repeats as the floor, exact paired tests, time of a turn (MEASURES section 7).

A run is plain JSON, from an imported result file or from `builtin_run`: `{"suite", "version", "settings", "scenarios"}`. Its settings hold
seed and concurrency; each scenario is `{"scenario_id", "outcome", "points", "turn_ms"}` with points 0 to 2 or None and a list of times.
A scenario without points is missing or capped, never 0.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.reply_lengths.paired import SignTest, sign_test
from engcmp_assets.kernel.tool_calling.builtin import SCENARIOS, SUITE, VERSION
from engcmp_assets.kernel.tool_calling.grading import MAX_POINTS, Grade
from engcmp_resources.canonical import canonical_bytes
from engcmp_resources.errors import EngcmpError

Run = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Score:
    """Points of the graded scenarios of one run. Told as "points of max", with how many were not graded, never as a share alone."""

    points: int
    max_points: int
    outcomes: Mapping[str, int]

    def __str__(self) -> str:
        scenarios = self.outcomes.total() if isinstance(self.outcomes, Counter) else sum(self.outcomes.values())
        graded = self.max_points // MAX_POINTS
        told = f"{self.points} of {self.max_points}"
        return told if graded == scenarios else f"{told} ({graded} of {scenarios} scenarios graded)"


@dataclass(frozen=True, slots=True)
class Flips:
    """How often a scenario's points differ between two repeats of one build: the floor. `flips` and `compared` are summed over all pairs
    of repeats; `scenarios` names those that ever differed.
    """

    flips: int
    compared: int
    repeats: int
    scenarios: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """One scenario: the points of each repeat of both builds, None where a repeat was not graded."""

    scenario_id: str
    baseline: tuple[int | None, ...]
    candidate: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class SuiteComparison:
    """Candidate against baseline on one suite, version, set of scenarios and settings.

    `points` is the exact sign test on a scenario's points, `passed` McNemar's on pass or not, both on the scenarios that both builds have
    as many graded repeats of; `not_compared` names the others. `changes` are the scenarios whose points differ anywhere. `between` is how
    many of the pairs of runs, one of each build, differ: against `floors`.
    """

    baseline: tuple[Score, ...]
    candidate: tuple[Score, ...]
    points: SignTest
    passed: SignTest
    changes: tuple[Change, ...]
    not_compared: tuple[str, ...]
    floors: tuple[Flips | Missing, Flips | Missing]
    between: Flips
    turn_ms: Mapping[str, float | Missing]


def builtin_run(
    grades: Mapping[str, Grade], conversations: Mapping[str, Mapping[str, Any]], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """The built-in suite's run from its grades and conversations by scenario id. `settings` holds at least seed and concurrency."""
    scenarios = []
    for scenario in SCENARIOS:
        found = grades[scenario.scenario_id]
        steps = [step for turn in conversations[scenario.scenario_id]["turns"] for step in turn["steps"]]
        scenarios.append(
            {
                "scenario_id": scenario.scenario_id,
                "outcome": found.outcome,
                "points": None if isinstance(found.points, Missing) else found.points,
                "turn_ms": [step["ms"] for step in steps],
            }
        )
    return {"suite": SUITE, "version": VERSION, "settings": dict(settings), "scenarios": scenarios}


def score(run: Run) -> Score:
    """The points of a run's graded scenarios."""
    graded = [one["points"] for one in run["scenarios"] if one["points"] is not None]
    return Score(sum(graded), MAX_POINTS * len(graded), Counter(one["outcome"] for one in run["scenarios"]))


def flips(runs: Sequence[Run]) -> Flips | Missing:
    """The floor of one build from its repeats. Missing for fewer than two. Raises EngcmpError for runs that are no repeats."""
    _same_way(runs)
    if len(runs) < 2:  # noqa: PLR2004 (a pair)
        return Missing("one run of this build: without a repeat there is no floor")
    return _differences(list(itertools.combinations(runs, 2)), len(runs))


def compare_runs(baseline: Sequence[Run], candidate: Sequence[Run]) -> SuiteComparison:
    """Both builds' repeats. Raises EngcmpError where there is none or none has a graded scenario, or suite, version, scenarios, settings
    or concurrency differ.
    """
    if not baseline or not candidate:
        raise EngcmpError("a comparison of a build without a run", remedy="run the suite on both")
    _same_way([*baseline, *candidate])
    for name, runs in (("baseline", baseline), ("candidate", candidate)):
        _refuse_ungraded(name, runs)
    tables = [[_points(run) for run in runs] for runs in (baseline, candidate)]
    changes, points, passed, apart = [], [], [], []
    for name in sorted(tables[0][0]):
        sides = [tuple(table[name] for table in runs) for runs in tables]
        if len({*sides[0], *sides[1]}) > 1:
            changes.append(Change(name, *sides))
        one, other = ([value for value in side if value is not None] for side in sides)
        if not one or len(one) != len(other):
            apart.append(name)
            continue
        points.append(_sign(sum(other) - sum(one)))
        passed.append(_sign(other.count(MAX_POINTS) - one.count(MAX_POINTS)))
    return SuiteComparison(
        tuple(map(score, baseline)),
        tuple(map(score, candidate)),
        sign_test(points),
        sign_test(passed),
        tuple(changes),
        tuple(apart),
        (flips(baseline), flips(candidate)),
        _differences(list(itertools.product(baseline, candidate)), len(baseline) + len(candidate)),
        turn_medians(baseline, candidate),
    )


def _refuse_ungraded(build: str, runs: Sequence[Run]) -> None:
    """A build without a single graded scenario has no points: it is not compared, and surely not as one of 0 points."""
    outcomes = Counter(one["outcome"] for run in runs for one in run["scenarios"])
    if not any(one["points"] is not None for run in runs for one in run["scenarios"]):
        told = ", ".join(f"{count} {name}" for name, count in sorted(outcomes.items()))
        raise EngcmpError(
            f"no scenario of the {build} was graded ({told or 'it holds none'}): there is nothing to compare",
            remedy="see why its scenarios did not end, and run them again: a higher --max-tokens where they were capped",
        )


def turn_medians(baseline: Sequence[Run], candidate: Sequence[Run]) -> dict[str, float | Missing]:
    """The median time of a turn in ms, request to whole answer, of each build, and their ratio. It is no time to first token: it grows with
    the length of the reply. Runs of one concurrency; one and eight at once are told apart.
    """
    found: dict[str, float | Missing] = {}
    for name, runs in (("baseline", baseline), ("candidate", candidate)):
        times = [ms for run in runs for one in run["scenarios"] for ms in one["turn_ms"]]
        found[name] = statistics.median(times) if times else Missing("no turn was answered")
    lower, upper = found["baseline"], found["candidate"]
    numbers = not isinstance(lower, Missing) and not isinstance(upper, Missing)
    found["ratio"] = upper / lower if numbers and lower > 0 else Missing("no turn was answered by one build")  # type: ignore[operator] # both are numbers then
    return found


def _differences(pairs: Sequence[tuple[Run, Run]], repeats: int) -> Flips:
    differing: Counter[str] = Counter()
    compared = 0
    for one, other in pairs:
        first, second = _points(one), _points(other)
        both = [name for name in first if first[name] is not None and second.get(name) is not None]
        compared += len(both)
        differing.update(name for name in both if first[name] != second[name])
    return Flips(differing.total(), compared, repeats, tuple(sorted(differing)))


def _points(run: Run) -> dict[str, int | None]:
    return {one["scenario_id"]: one["points"] for one in run["scenarios"]}


def _same_way(runs: Sequence[Run]) -> None:
    """The seed alone may differ between runs that are held against each other."""
    for run in runs[1:]:
        for what, first, second in (
            ("suite", runs[0]["suite"], run["suite"]),
            ("version", runs[0]["version"], run["version"]),
            ("scenarios", sorted(_points(runs[0])), sorted(_points(run))),
            ("settings", _settings(runs[0]), _settings(run)),
        ):
            if canonical_bytes(first) != canonical_bytes(second):
                raise EngcmpError(
                    f"two runs of {runs[0]['suite']} differ in {what}: {_short(first, second)}",
                    remedy="compare runs made in the same way; graders change between versions, and eight at once are not one",
                )


def _settings(run: Run) -> dict[str, Any]:
    return {name: value for name, value in run["settings"].items() if name != "seed"}


def _short(first: Any, second: Any) -> str:
    if isinstance(first, dict) and isinstance(second, dict):
        names = [name for name in sorted({*first, *second}) if first.get(name) != second.get(name)]
        return ", ".join(f"{name} {first.get(name)!r} and {second.get(name)!r}" for name in names)
    if isinstance(first, list) and isinstance(second, list):
        return f"{sorted({*first} ^ {*second})[:5]} are in one only"
    return f"{first!r} and {second!r}"


def _sign(value: int) -> int:
    return (value > 0) - (value < 0)
