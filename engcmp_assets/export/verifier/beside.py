"""What stands beside a figure, recomputed: bound, sensitivities, floors, verdict, tails; and whether a declared look was left out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .intervals import Clusters, quantile, sign_flip_p
from .tables import ArmRows, apart

_RELATIVE, _ABSOLUTE = 1e-9, 1e-12
_BOOTSTRAP_FROM, _SIGN_FLIP_P, _NO_WIDTH = 8, 0.05, 1e-9
_SHARES = {0.1: "share_above_0_1_nats", 0.5: "share_above_0_5_nats", 1: "share_above_1_nats", 2: "share_above_2_nats"}
_QUANTILES = {0.5: "median_nats", 0.9: "p90_nats", 0.95: "p95_nats", 0.99: "p99_nats", 0.999: "p99_9_nats"}
Figure = Mapping[str, Any]
Look = tuple[str, str, str]


def same(stated: Any, found: float) -> bool:
    """Whether a stated number is the one that was found, beyond the last bits."""
    return isinstance(stated, (int, float)) and math.isclose(stated, found, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)


def picked(values: Sequence[Any], chosen: Sequence[int]) -> list[Any]:
    """The values at the rows with these numbers."""
    return [values[row] for row in chosen]


def left_out(figures: Iterable[Figure], declared: Iterable[Look]) -> Iterator[str]:
    """The declared looks (panel, population, measure) of which there is no figure."""
    there = {(one["panel"], one["population"], one["measure"]) for one in figures}
    for look in declared:
        if look not in there:
            yield f"lacks the declared figure {'/'.join(look)}"


def looks_of(rows: ArmRows, panel: str, measures: Sequence[str], by: Sequence[str]) -> Iterator[Look]:
    """The looks at a panel: each of its measures on each population that it is looked at by."""
    for population in rows.populations(by):
        for measure in measures:
            yield panel, population, measure


def sensitivity_faults(figure: Figure, groups: Clusters) -> Iterator[str]:
    """What a difference reads without each cluster, and in how many it has its sign. `groups` are the differences of its rows."""
    total, count = math.fsum(groups.sums), math.fsum(groups.counts)
    if len(groups.sums) > 1:
        without = [(total - own) / (count - n) for own, n in zip(groups.sums, groups.counts, strict=True)]
        stated = figure["leave_one_out"]
        if isinstance(stated, dict) or not (same(stated[0], min(without)) and same(stated[1], max(without))):
            yield f"its range without one cluster is {stated}; its rows give {[min(without), max(without)]}"
        largest = figure["largest_cluster"]
        place = groups.names.index(largest["cluster"]) if largest.get("cluster") in groups.names else None
        most = max(abs(groups.mean - one) for one in without)
        if place is None or not same(largest["without"], without[place]) or not same(abs(largest["moves_by"]), most):
            yield f"the cluster that moves it most is {largest.get('cluster')}; its rows say otherwise"
    signs = sum(_sign(one) == _sign(groups.mean) for one in groups.sums)
    if figure["sign_clusters"] != signs:
        yield f"states {figure['sign_clusters']} clusters of its sign; there are {signs}"
    p = figure["sign_flip_p"]
    if not isinstance(p, dict) and not same(p, sign_flip_p(groups.means)):
        yield f"its sign-flip p is {p}; its rows give {sign_flip_p(groups.means)!r}"


def verdict_faults(figure: Figure, candidate: ArmRows, baseline: ArmRows, chosen: Sequence[int]) -> Iterator[str]:
    """The verdict again from the interval that decides and from each run of the baseline, and the bound that goes with it."""
    word = figure["verdict"].removesuffix(", no floor")
    ends = figure["interval"] if figure["primary"] else figure["interval_bonferroni"]
    stands = "low" in ends and not ends["low"] <= 0 <= ends["high"]
    if figure["clusters"] < _BOOTSTRAP_FROM:
        p = figure["sign_flip_p"]
        stands = stands and not isinstance(p, dict) and p < _SIGN_FLIP_P
    runs = baseline.values[figure["measure"]]
    means, own = baseline.per_row(figure["measure"]), candidate.per_row(figure["measure"])
    told = {one["run"]: one for one in figure["against_each_run"]}
    if list(told) != list(runs):
        yield f"is held against the runs {list(told)}; there are rows of {list(runs)}"
        return
    clusters = picked(candidate.keys["cluster"], chosen)
    for run, values in runs.items():
        mean = Clusters(picked(apart(own, values), chosen), clusters).mean
        if not same(told[run]["value"], mean):
            yield f"against run {run} it is {told[run]['value']}; the rows give {mean!r}"
        elif picked(values, chosen) == picked(means, chosen) and told[run]["stands"] != stands:
            yield f"is said to {'stand' if told[run]['stands'] else 'fall'} against run {run}; the interval says otherwise"
    if word == "bit-identical" or figure["bound"] == 0:
        return
    mean = Clusters(picked(apart(own, means), chosen), clusters).mean
    sides = all(one["stands"] and one["value"] * mean > 0 for one in told.values())
    expected = "resolved" if stands and sides else "not resolved"
    if expected != "resolved" and any(one["stands"] for one in told.values()):
        expected = "baseline-dependent"
    if word != expected:
        yield f"is called {word}; its interval and the runs of the baseline make it {expected}"
    flat = "low" not in ends or math.isclose(ends["low"], ends["high"], rel_tol=_NO_WIDTH)
    bound = None if expected == "resolved" or flat else max(abs(ends["low"]), abs(ends["high"]))
    if (bound is None) != isinstance(figure["bound"], dict) or (bound is not None and not same(figure["bound"], bound)):
        yield f"its bound is {figure['bound']}; its interval gives {bound}"


def floor_faults(
    floors: Mapping[str, Any], rows: ArmRows, measure: str, chosen: Sequence[int], side: str
) -> Iterator[str]:
    """The null difference beside a figure: the named run minus the other one, on the same rows."""
    runs = rows.values[measure]
    for kind, floor in floors.items():
        if "missing" in floor:
            continue
        if floor["run"] not in runs or floor["minus"] not in runs:
            yield f"its {side}floor {kind} is of runs that have no rows: a repeat was removed"
            continue
        values = [one - other for one, other in zip(runs[floor["run"]], runs[floor["minus"]], strict=True)]
        mean = Clusters(picked(values, chosen), picked(rows.keys["cluster"], chosen)).mean
        if not same(floor["value"], mean):
            yield f"its {side}floor {kind} is {floor['value']}; the runs give {mean!r}"


def tail_faults(tails: Mapping[str, Any], rows: ArmRows) -> Iterator[str]:
    """The tails of a panel, over all rows and in each part, from the rows' own values."""
    kl = rows.per_row(tails["measure"])
    parts = {"all": tails["overall"]}
    parts |= {f"block:{name}": one for name, one in tails["by_block"].items()}
    parts |= {f"bucket:{name}": one for name, one in tails["by_bucket"].items()}
    if missing := set(rows.populations(["block", "bucket"])) ^ set(parts):
        yield f"tails of {sorted(missing)[0]} are missing or too many"
    for population, stated in parts.items():
        own = sorted(picked(kl, rows.rows_of(population)))
        if not own:
            yield f"tails of {population} are of no row"
            continue
        worst = own[-math.ceil(len(own) / 100) :]
        found = {name: quantile(own, share) for share, name in _QUANTILES.items()}
        found |= {name: sum(one > limit for one in own) / len(own) for limit, name in _SHARES.items()}
        found |= {"rows": len(own), "mean_nats": math.fsum(own) / len(own), "max_nats": own[-1]}
        found |= {"worst_1_percent_rows": len(worst), "worst_1_percent_mean_nats": math.fsum(worst) / len(worst)}
        for name, value in found.items():
            if not same(stated[name], value):
                yield f"tails of {population}: {name} is {stated[name]}; its rows give {value!r}"
        told = [one["kl_nats"] for one in stated["worst_rows"]]
        if len(told) > len(own) or not all(map(same, told, reversed(own))):
            yield f"tails of {population}: its worst rows are not those of the table"


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
