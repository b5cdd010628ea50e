"""What pages count and say of all figures together, as claims: cells by verdict, looks that share an error rate, floors, few documents.

Each is held against the figures themselves before it is printed, as `stated` does with the sentences of one figure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from engcmp_assets.kernel.claims.checking import check_claim
from engcmp_assets.kernel.claims.facts import Cells, Facts, Family, Look
from engcmp_assets.kernel.claims.records import ANY, Claim, Ends, Population
from engcmp_assets.kernel.claims.rules_counts import LOOKS
from engcmp_assets.kernel.claims.rules_kinds import IDENTICAL
from engcmp_assets.kernel.measures import MEASURES
from engcmp_assets.kernel.names import ALL
from engcmp_assets.kernel.throughput.ratios import NOT_COMPARABLE
from engcmp_assets.publication.formats import FLOORS, number
from engcmp_assets.publication.stated import is_distance, verdict_word
from engcmp_resources.errors import EngcmpError

UNTESTED = ("descriptive", "bit-identical")
"""Verdicts for which nothing was tested, so that no error rate is spent."""
Figure = Mapping[str, Any]
Pair = Mapping[str, Any]
Summary = Mapping[str, Any]
Stated = tuple[Claim, Facts]


def cells_of(figures: Sequence[Figure]) -> Cells:
    """The verdict of each cell again from its ratio, its band and the better direction of its measure, whatever word it carries."""
    return Cells(dict(Counter(_word(one) for one in figures)))


def _word(figure: Figure) -> str:
    value, band, better = (
        number(figure["value"]),
        (figure.get("floor") or {}).get("band"),
        MEASURES[figure["measure"]].better,
    )
    if value is None:
        return NOT_COMPARABLE
    if better == "neither" or not isinstance(band, (list, tuple)):
        return verdict_word(figure) if not isinstance(band, (list, tuple)) else "descriptive"
    if band[0] <= value <= band[1]:
        return "level"
    return "faster" if (value > 1) == (better == "higher") else "slower"


def counts_of_cells(pair: Pair) -> Iterator[Stated]:
    """What a pair's speeds are counted to, one claim for each measure: `19 faster, 3 level, 0 slower of 22`."""
    speed = pair.get("speed") or {}
    for one in speed.get("measures", ()):
        own = [figure for figure in speed["figures"] if figure["measure"] == one["measure"]]
        yield (
            Claim(
                claim_id=f"{pair['pair_id']}/cells/{one['measure']}", states="counts", candidate=pair["candidate"],
                baseline=pair["baseline"], measure=one["measure"], verdict="descriptive", counts=_as_words(one["counts"]),
            ),
            Facts(cells=cells_of(own)),
        )  # fmt: skip


def _as_words(counts: Mapping[str, int]) -> dict[str, int]:
    """Counts by verdict word, what stands beside a word (`, no floor`) left away."""
    found: Counter[str] = Counter()
    for word, count in counts.items():
        found[word.split(",", 1)[0].strip()] += count
    return dict(found)


def refuse_stated(claims: Iterable[Stated]) -> None:
    """Raise EngcmpError for the first of these claims that says more than its facts."""
    for claim, facts in claims:
        for first in check_claim(claim, facts):
            raise EngcmpError(
                f"the page would say more than its figures carry ({claim.claim_id}): {first.what} (rule {first.rule_id})",
                where="SUMMARY.json", remedy=f"{first.remedy}: make the comparisons and the pages again",
            )  # fmt: skip


# The notes on how sure the figures are.


def no_row_differs(summary: Summary) -> Iterator[Stated]:
    """That repeats agree on every row: one claim for each figure's floor that was measured."""
    for owner, figure, floor in floors(summary):
        if "value" not in floor:
            continue
        yield (
            Claim(
                claim_id=f"{figure['figure_id']}/floor", states="identical rows", candidate=owner, measure=IDENTICAL,
                verdict="bit-identical", population=Population(panel=figure["panel"]),
            ),
            Facts(look=Look(rows_equal=_share_equal(figure, floor))),
        )  # fmt: skip


def _share_equal(figure: Figure, floor: Mapping[str, Any]) -> float:
    """The share of rows that are equal between the runs of a floor, at most 1; below it where any value of a row differs."""
    value = float(floor["value"])
    if figure["measure"] == IDENTICAL:
        return value
    differing = 0 if is_distance(figure) else floor.get("rows_that_differ")
    if differing is None:
        return 0.0
    rows = max(int(figure.get("rows") or 1), 1)
    share = 1 - float(differing) / rows
    return min(share, 1 - 1 / rows) if value != 0 and share == 1 else share


def floors(summary: Summary) -> Iterator[tuple[str, Figure, Mapping[str, Any]]]:
    """The owner, the figure and each kind of its floor, of arms and of pairs."""
    found = [
        (arm["arm"], one, (one.get("details") or {}).get("floor")) for arm in summary["arms"] for one in arm["figures"]
    ]
    found += [(pair["candidate"], one, one.get("floor")) for pair in summary["comparisons"] for one in pair["figures"]]
    for owner, figure, floor in found:
        if isinstance(floor, Mapping):
            yield from ((owner, figure, floor[key]) for key, _ in FLOORS if isinstance(floor.get(key), Mapping))


def looks_share_a_rate(summary: Summary, families: Mapping[str, tuple[int, float]]) -> Iterator[Stated]:
    """That the looks of a panel share one error rate: how many are said to, and at which level each is judged."""
    for panel, (size, level) in families.items():
        for pair in summary["comparisons"]:
            own = [one for one in pair["figures"] if one["panel"] == panel and not is_distance(one)]
            if not own:
                continue
            yield (
                Claim(
                    claim_id=f"{pair['pair_id']}/{panel}/looks", states="looks", candidate=pair["candidate"], baseline=pair["baseline"],
                    measure=ANY, verdict="descriptive", counts={LOOKS: size}, level=level,
                ),
                Facts(family=family_of(own, panel)),
            )  # fmt: skip


def family_of(figures: Sequence[Figure], panel: str) -> Family:
    """How many looks of a pair on a panel share one error rate, and the level of an interval of one that is alone."""
    own = [one for one in figures if one["panel"] == panel and not is_distance(one)]
    alone = next((one["interval"]["level"] for one in own if "level" in (one.get("interval") or {})), 0.95)
    return Family(_looks_taken(own), alone)


def _looks_taken(figures: Sequence[Figure]) -> int:
    """Differences that were tested and are not primary; where a panel has one block, that block and all rows are one look."""
    blocks = {one["population"] for one in figures} - {ALL}
    tested = [one for one in figures if verdict_word(one) not in UNTESTED]
    return sum(not one.get("primary") and (len(blocks) != 1 or one["population"] == ALL) for one in tested)


def resampled(summary: Summary) -> Iterator[Stated]:
    """That whole documents are resampled: there are enough of them wherever it was done."""
    for owner in (*summary["arms"], *summary["comparisons"]):
        for one in owner["figures"]:
            interval = one.get("interval") or {}
            if "bootstrap" in str(interval.get("method")):
                claim = Claim(
                    claim_id=f"{one['figure_id']}/interval", states="distance", candidate=str(owner.get("arm") or owner["candidate"]),
                    measure=one["measure"], verdict="descriptive", clusters=one["clusters"], interval=Ends(**interval),
                )  # fmt: skip
                yield claim, Facts()


def few_resolve_nothing(summary: Summary, hopeless: Sequence[int]) -> Iterator[Stated]:
    """That no difference of so few documents can be resolved: none of them is."""
    for pair in summary["comparisons"]:
        own = [one for one in pair["figures"] if one["clusters"] in hopeless and not is_distance(one)]
        if own:
            claim = Claim(
                claim_id=f"{pair['pair_id']}/few", states="difference", candidate=pair["candidate"], baseline=pair["baseline"],
                measure=ANY, verdict="not resolved", limits=("value only",),
            )  # fmt: skip
            yield claim, Facts(look=Look(others={one["figure_id"]: verdict_word(one) == "resolved" for one in own}))
