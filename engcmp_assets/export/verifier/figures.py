"""Recomputes the figures of a bundle from its rows, and holds what is published against what was recomputed and recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .beside import floor_faults, left_out, looks_of, picked, same, sensitivity_faults, tail_faults, verdict_faults
from .chain import TABLES, Chain, Receipt
from .faults import Fault
from .intervals import Clusters, closed_interval, interval
from .reading import parse
from .tables import ArmRows, PairRows, apart, arm_rows, pair_rows

_BY = ("block",)  # by what a panel's rows are looked at unless its study says more
Figure = Mapping[str, Any]


class Figures:
    """The recomputation of one bundle; counts what it did."""

    def __init__(self, chain: Chain) -> None:
        self.chain, self.bundle = chain, chain.bundle
        self.recomputed = 0
        self.by_chain = 0
        self._rows: dict[str, ArmRows] = {}
        self._pairs: dict[str, PairRows] = {}
        self._tables = {self._key(one): one["path"] for one in self.bundle.manifest["tables"] if one["kind"] == "rows"}

    @staticmethod
    def _key(table: Mapping[str, Any]) -> tuple[str, str, str]:
        return table["arm"], table["panel"], table["score_path"]

    def faults(self) -> Iterator[Fault]:
        """Every figure that its rows do not give, or that is published otherwise than it was made."""
        yield from self._table_faults()
        for named, receipt in self.chain.current():
            name = f"receipts/{named}.json"
            if receipt["artifact"] == "summaries":
                yield from self._summary_faults(name, receipt)
            elif receipt["artifact"] == "comparisons":
                yield from self._comparison_faults(name, receipt)
            elif receipt["artifact"] == "tails":
                yield from self._tail_faults(name, receipt)
            elif receipt["artifact"] != "publication":
                self.by_chain += len(receipt["figures"])
        yield from self._publication_faults()

    def _table_faults(self) -> Iterator[Fault]:
        """Each table must be an output of the receipt of all tables, which names the scores that it was made of."""
        receipt = self.chain.of(TABLES, None)
        listed = {one["path"]: one["sha256"] for one in self.bundle.manifest["tables"]}
        if receipt is None:
            yield Fault("heads/_study/row_tables.json", "is missing: the tables of rows are bound by no receipt")
            return
        stated = {output["name"]: output["sha256"] for output in receipt["outputs"]}
        for path in sorted({*listed, *stated}):
            if listed.get(path) != stated.get(path):
                yield Fault(path, "is not the table that its receipt states")
            elif self.bundle.original_sha256(path) != stated[path]:
                yield Fault(path, "bytes do not have the hash that its receipt states")

    def _table(self, arm: str, panel: str, score_path: str) -> ArmRows | None:
        path = self._tables.get((arm, panel, score_path))
        if path is None:
            return None
        if path not in self._rows:
            self._rows[path] = arm_rows(self.bundle, path)
        return self._rows[path]

    def _main(self, arm: str, panel: str) -> ArmRows | None:
        for table in self.bundle.manifest["tables"]:
            if table["kind"] == "rows" and (table["arm"], table["panel"]) == (arm, panel) and table["main"]:
                return self._table(arm, panel, table["score_path"])
        return None

    # ------------------------------------------------------------------ arms

    def _summary_faults(self, name: str, receipt: Receipt) -> Iterator[Fault]:
        parameters = receipt["parameters"]
        judged = parameters["statistics"]
        if "q" not in parameters.get("not_asked", {}):
            yield from self._looks_left_out(name, receipt)
        for figure in receipt["figures"]:
            rows = self._main(receipt["arm"], figure["panel"])
            if rows is None or figure["measure"] not in rows.values:
                self.by_chain += 1
                continue
            chosen = rows.rows_of(figure["population"])
            values = rows.per_row(figure["measure"])
            found = (picked(values, chosen), picked(rows.keys["cluster"], chosen))
            looked = {**figure, **_corrected(figure["details"])}
            yield from _primary_faults(name, figure, figure["details"], parameters["panels"][figure["panel"]][2])
            yield from _look_faults(name, looked, found, judged, _kind(figure))
            yield from _run_faults(name, figure, rows, chosen)
            self.recomputed += 1
        made = {one["figure_id"]: one for one in receipt["figures"]}
        for figure in _figures_within(self._output(receipt, "summary.json")):
            own = made.get(figure["figure_id"])  # speeds and replies are figures of other receipts
            if own is not None and _stated(figure) != _stated(own):
                yield Fault(name, f"{figure['figure_id']}: summary.json and the receipt state different figures")

    def _looks_left_out(self, name: str, receipt: Receipt) -> Iterator[Fault]:
        for panel, (_, measures, _) in receipt["parameters"]["panels"].items():
            rows = self._main(receipt["arm"], panel)
            if rows is not None:
                by = receipt["parameters"].get("by", {}).get(panel, _BY)
                for what in left_out(receipt["figures"], looks_of(rows, panel, measures, by)):
                    yield Fault(name, what)

    def _tail_faults(self, name: str, receipt: Receipt) -> Iterator[Fault]:
        document = self._output(receipt, "tails.json")
        for panel, tails in (document or {"panels": {}})["panels"].items():
            rows = self._main(receipt["arm"], panel)
            if rows is not None and tails["measure"] in rows.values:
                for what in tail_faults(tails, rows):
                    yield Fault(name, f"panel {panel}: {what}")

    # ------------------------------------------------------------------ pairs

    def _comparison_faults(self, name: str, receipt: Receipt) -> Iterator[Fault]:
        document = self._output(receipt, "comparisons.json")
        if document is None:
            yield Fault(name, "its output comparisons.json is not in the bundle")
            return
        judged = receipt["parameters"]["statistics"]
        recorded = {figure["figure_id"]: figure for figure in receipt["figures"]}
        told = {figure["figure_id"] for figure in _figures_within(document)}
        for figure_id in recorded:
            if figure_id not in told:
                yield Fault(name, f"{figure_id}: stands in the receipt and not in comparisons.json")
        yield from self._pairs_left_out(name, document["pairs"], receipt["parameters"])
        pairs = {pair["pair_id"]: pair for pair in document["pairs"]}
        for pair in document["pairs"]:
            for figure in pair["figures"]:
                yield from _recorded_faults(name, figure, recorded)
                primary = receipt["parameters"]["panels"][figure["panel"]]["primary"]
                yield from _primary_faults(name, figure, figure, primary)
                yield from self._pair_faults(name, pair, figure, judged)
            for figure in pair.get("speed", {}).get("figures", ()):
                yield from _recorded_faults(name, figure, recorded)
                self.by_chain += 1
            for figure in pair.get("gap", {}).get("figures", ()):
                yield from _recorded_faults(name, figure, recorded)
                yield from self._gap_faults(name, pair, figure, judged)
                yield from _whose_gap_faults(name, pairs.get(pair["gap"]["pair_id"]), figure)

    def _pairs_left_out(
        self, name: str, pairs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> Iterator[Fault]:
        """Declared pairs and looks of which there is no figure although the rows of both sides lie here."""
        told = {pair["pair_id"]: pair for pair in pairs}
        decoded = {panel for _, panel, path in self._tables if path == "decode"}
        for plan in parameters["pairs"]:
            pair = told.get(plan["pair_id"])
            if pair is None or any(pair[side] != plan[side] for side in ("candidate", "baseline")):
                yield Fault(name, f"lacks the declared pair {plan['pair_id']}")
                continue
            paths = (plan["candidate_path"], plan["baseline_path"])
            for panel, own in parameters["panels"].items():
                if (panel in decoded) != ("decode" in paths) or "q" in pair.get("not_compared", {}):
                    continue
                sides = [
                    self._table(plan[f"{side}"], panel, plan[f"{side}_path"]) for side in ("candidate", "baseline")
                ]
                if sides[0] is None or sides[1] is None:
                    continue
                if pair["state"] != "compared":
                    yield Fault(
                        name, f"pair {plan['pair_id']} is called {pair['state']}; the rows of both sides lie here"
                    )
                    break
                by = parameters.get("by", {}).get(panel, _BY)
                declared = looks_of(sides[0], panel, [*own["measures"], *own["pair_measures"]], by)
                for what in left_out(pair["figures"], declared):
                    yield Fault(name, f"pair {plan['pair_id']} {what}")

    def _pair_faults(
        self, name: str, pair: Mapping[str, Any], figure: Figure, judged: Mapping[str, Any]
    ) -> Iterator[Fault]:
        candidate = self._table(pair["candidate"], figure["panel"], pair["candidate_path"])
        baseline = self._table(pair["baseline"], figure["panel"], pair["baseline_path"])
        if candidate is None or baseline is None:
            self.by_chain += 1
            return
        same_rows = all(candidate.keys[key] == baseline.keys[key] for key in ("window_id", "position", "next_token"))
        if not same_rows:
            yield Fault(name, f"{figure['figure_id']}: the arms' rows are not the same rows")
            return
        chosen, measure = candidate.rows_of(figure["population"]), figure["measure"]
        clusters = picked(candidate.keys["cluster"], chosen)
        if measure in candidate.values and measure in baseline.values:
            values = apart(candidate.per_row(measure), baseline.per_row(measure))
            yield from _look_faults(name, figure, (picked(values, chosen), clusters), judged, "difference")
            for side, rows in (("candidate_mean", candidate), ("baseline_mean", baseline)):
                mean = Clusters(picked(rows.per_row(measure), chosen), clusters).mean
                if not same(figure[side], mean):
                    yield Fault(name, f"{figure['figure_id']}: {side} is {figure[side]}; its rows give {mean!r}")
            yield from _verdict_faults(name, figure, candidate, baseline, chosen)
            groups, what = Clusters(picked(values, chosen), clusters), figure["figure_id"]
            yield from (Fault(name, f"{what}: {fault}") for fault in sensitivity_faults(figure, groups))
            yield from (Fault(name, f"{what}: {one}") for one in verdict_faults(figure, candidate, baseline, chosen))
            for side, rows in (("candidate", candidate), ("baseline", baseline)):
                found = floor_faults(figure[f"{side}_floor"], rows, measure, chosen, f"{side}'s ")
                yield from (Fault(name, f"{what}: {one}") for one in found)
            self.recomputed += 1
            return
        path = f"rows/pairs/{pair['pair_id']}.csv"
        if path not in self._pairs and path in self.bundle.files:
            self._pairs[path] = pair_rows(self.bundle, path)
        distances = self._pairs.get(path, {}).get(figure["panel"], {})
        keys = list(zip(candidate.keys["window_id"], candidate.keys["position"], strict=True))
        if any(key not in distances for key in keys):
            self.by_chain += 1
            return
        place = 1 if measure == "rows_bit_identical" else 0
        measured = [distances[key][place] for key in keys]
        if place and not _equal_rows(candidate, baseline, measured):
            yield Fault(
                path, f"{figure['panel']}: which rows are equal bit for bit is not what the hashes of the rows say"
            )
        numbers = [value for value in picked(measured, chosen) if value is not None]
        yield from _look_faults(name, figure, (numbers, clusters), judged, _kind(figure))
        self.recomputed += 1

    def _gap_faults(
        self, name: str, pair: Mapping[str, Any], figure: Figure, judged: Mapping[str, Any]
    ) -> Iterator[Fault]:
        """How much of a gap a setting closes, from the rows of the baseline, the arm without the setting, and the one with it."""
        sides = (
            (pair["gap"]["baseline"], pair["baseline_path"]),
            (pair["baseline"], pair["baseline_path"]),
            (pair["candidate"], pair["candidate_path"]),
        )
        found = [self._table(arm, figure["panel"], path) for arm, path in sides]
        rows = [one for one in found if one is not None and figure["distance"] in one.values]
        if len(rows) < len(sides):
            self.by_chain += 1
            return
        chosen = rows[0].rows_of(figure["population"])
        clusters = picked(rows[0].keys["cluster"], chosen)
        groups = [Clusters(picked(one.per_row(figure["distance"]), chosen), clusters) for one in rows]
        what, (b, c, s) = figure["figure_id"], (one.mean for one in groups)
        if (figure["rows"], figure["clusters"]) != (groups[0].rows, len(groups[0].sums)):
            yield Fault(name, f"{what}: states {figure['rows']} rows; there are {groups[0].rows}")
        for side, mean in zip(("baseline", "candidate", "setting"), (b, c, s), strict=True):
            if not same(figure["means"][side], mean):
                yield Fault(name, f"{what}: the mean of its {side} is {figure['means'][side]}; its rows give {mean!r}")
        if not same(figure["gap"]["difference"], c - b):
            yield Fault(name, f"{what}: its gap is {figure['gap']['difference']}; its rows give {c - b!r}")
        self.recomputed += 1
        if figure["gap"]["verdict"] != "resolved" or c == b:
            if not isinstance(figure["value"], dict):
                yield Fault(name, f"{what}: has a share of a gap that is {figure['gap']['verdict']}")
            return
        if not same(figure["value"], 1 - (s - b) / (c - b)):
            yield Fault(name, f"{what}: is {figure['value']}; its rows give {1 - (s - b) / (c - b)!r}")
        wide = 1 - (1 - judged["level"]) / figure["family"]
        for ends, level in ((figure["interval"], judged["level"]), (figure["interval_bonferroni"], wide)):
            own = closed_interval(groups, replicates=judged["replicates"], seed=judged["seed"], level=level)
            if (own is None) != ("missing" in ends):
                yield Fault(name, f"{what}: its interval is {ends}; its rows give {own}")
            elif own is not None and not (same(ends["low"], own[0]) and same(ends["high"], own[1])):
                yield Fault(name, f"{what}: its interval is [{ends['low']}, {ends['high']}]; its rows give {list(own)}")

    # ------------------------------------------------------------------ pages

    def _publication_faults(self) -> Iterator[Fault]:
        """What is published must be what was made: each figure of the page is the figure of its own artifact, to the last digit."""
        receipt = self.chain.of("publication", None)
        if receipt is None:
            return
        made = {
            figure["figure_id"]: figure
            for _, other in self.chain.current()
            if other["artifact"] != "publication"
            for figure in other["figures"]
        }
        name = f"receipts/{self.chain.heads['heads/_study/publication.json']}.json"
        for figure in receipt["figures"]:
            own = made.get(figure["figure_id"])
            if own is None or any(
                own[key] != figure[key] for key in ("value", "interval", "rows", "clusters", "measure")
            ):
                yield Fault(name, f"publishes {figure['figure_id']} otherwise than it was made")
        summary = self._output(receipt, "SUMMARY.json")
        for figure in _figures_within(summary):
            own = made.get(figure["figure_id"])
            if own is not None and _stated(figure) != _stated(own):
                yield Fault(name, f"SUMMARY.json states {figure['figure_id']} otherwise than it was made")
        told = {figure["figure_id"] for figure in _figures_within(summary)}
        for _, other in self.chain.current():
            if other["artifact"] in ("summaries", "comparisons"):
                for figure in other["figures"]:
                    if figure["figure_id"] not in told:
                        yield Fault(name, f"SUMMARY.json leaves out {figure['figure_id']}")

    def _output(self, receipt: Receipt, name: str) -> Any:
        for output in receipt["outputs"]:
            path = f"files/{output['sha256']}.{output['suffix']}"
            if output["name"] == name and path in self.bundle.files:
                return parse(self.bundle.read(path), path)
        return None


def _stated(figure: Figure | None) -> tuple[Any, ...] | None:
    return None if figure is None else (figure["value"], figure["interval"])


def _primary_faults(name: str, figure: Figure, stated: Mapping[str, Any], primary: Sequence[str]) -> Iterator[Fault]:
    """A look may be primary only where the protocol declared it: at a primary measure, over all rows."""
    if stated["primary"] and (figure["population"] != "all" or figure["measure"] not in primary):
        yield Fault(name, f"{figure['figure_id']}: is called primary; the protocol declares no such primary look")


def _whose_gap_faults(name: str, pair: Mapping[str, Any] | None, figure: Figure) -> Iterator[Fault]:
    """The gap must be what the pair that it is of says: its difference, interval and verdict."""
    key = (figure["panel"], figure["population"], figure["distance"])
    own = next(
        (
            one
            for one in (pair or {"figures": ()})["figures"]
            if (one["panel"], one["population"], one["measure"]) == key
        ),
        None,
    )
    if own is None:
        return
    told = (figure["gap"]["difference"], figure["gap"]["interval"], figure["gap"]["verdict"])
    if told != (own["value"], own["interval"], own["verdict"].removesuffix(", no floor")):
        yield Fault(name, f"{figure['figure_id']}: its gap is {told}; {own['figure_id']} says otherwise")


def _kind(figure: Figure) -> str:
    return "proportion" if figure["unit"] == "share of rows" else "mean"


def _corrected(details: Mapping[str, Any]) -> dict[str, Any]:
    return {name: details[name] for name in ("interval_bonferroni", "family")}


def _look_faults(
    name: str, figure: Figure, rows: tuple[Sequence[float], Sequence[str]], judged: Mapping[str, Any], kind: str
) -> Iterator[Fault]:
    """One figure against `rows`, the values and clusters of its rows: counts, value, and both intervals."""
    what = figure["figure_id"]
    values, clusters = rows
    if not values:
        if not isinstance(figure["value"], dict):
            yield Fault(name, f"{what}: has a value and no row")
        return
    groups = Clusters(values, clusters)
    stated, there = (figure["rows"], figure["clusters"]), (groups.rows, len(groups.sums))
    if stated != there:
        yield Fault(name, f"{what}: states {stated} rows and clusters; there are {there}")
        return
    if not same(figure["value"], groups.mean):
        yield Fault(name, f"{what}: is {figure['value']}; its rows give {groups.mean!r}")
    corrected = 1 - (1 - judged["level"]) / figure["family"]
    for ends, level in ((figure["interval"], judged["level"]), (figure["interval_bonferroni"], corrected)):
        found = interval(groups, replicates=judged["replicates"], seed=judged["seed"], level=level, kind=kind)
        if (found is None) != ("missing" in ends):
            yield Fault(name, f"{what}: its interval is {ends}; its rows give {found}")
        elif found is not None and not (same(ends["low"], found[0]) and same(ends["high"], found[1])):
            yield Fault(name, f"{what}: its interval is [{ends['low']}, {ends['high']}]; its rows give {list(found)}")


def _recorded_faults(name: str, figure: Figure, recorded: Mapping[str, Figure]) -> Iterator[Fault]:
    own = recorded.get(figure["figure_id"])
    if own is None or any(own[key] != figure[key] for key in ("value", "interval", "rows", "clusters")):
        yield Fault(name, f"{figure['figure_id']}: comparisons.json and the receipt state different figures")
    elif own["details"].get("verdict") != figure["verdict"]:
        yield Fault(name, f"{figure['figure_id']}: comparisons.json and the receipt state different verdicts")


def _run_faults(name: str, figure: Figure, rows: ArmRows, chosen: Sequence[int]) -> Iterator[Fault]:
    """The floor beside an arm's figure, and the runs that it is of."""
    for what in floor_faults(figure["details"]["floor"], rows, figure["measure"], chosen, ""):
        yield Fault(name, f"{figure['figure_id']}: {what}")
    runs = list(rows.values[figure["measure"]])
    if runs != figure["details"]["runs"]:
        yield Fault(name, f"{figure['figure_id']}: states runs {figure['details']['runs']}; there are rows of {runs}")


def _verdict_faults(
    name: str, figure: Figure, candidate: ArmRows, baseline: ArmRows, chosen: Sequence[int]
) -> Iterator[Fault]:
    """What needs no test: rows that are all equal are called so and no others; a resolved one has an interval without 0."""
    hashes = zip(candidate.keys["raw_row_sha256"], baseline.keys["raw_row_sha256"], strict=True)
    same = [one == other and not one.startswith("light:") for one, other in hashes]
    word = figure["verdict"].removesuffix(", no floor")
    if (word == "bit-identical") != all(picked(same, chosen)):
        yield Fault(name, f"{figure['figure_id']}: is called {word}; the hashes of the rows say otherwise")
    ends = figure["interval"] if figure["primary"] else figure["interval_bonferroni"]
    if word == "resolved" and ("missing" in ends or ends["low"] <= 0 <= ends["high"]):
        yield Fault(name, f"{figure['figure_id']}: is called resolved; the interval that decides includes 0")


def _equal_rows(candidate: ArmRows, baseline: ArmRows, found: Sequence[float | None]) -> bool:
    hashes = zip(candidate.keys["raw_row_sha256"], baseline.keys["raw_row_sha256"], strict=True)
    return all(
        value is None or (value == 1) == (one == other) for value, (one, other) in zip(found, hashes, strict=True)
    )


def _figures_within(value: Any) -> Iterator[Figure]:
    """Every object in a document that is a figure: it has an id, a value and an interval."""
    if isinstance(value, dict):
        if {"figure_id", "value", "interval"} <= set(value):
            yield value
        for inner in value.values():
            yield from _figures_within(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _figures_within(inner)
