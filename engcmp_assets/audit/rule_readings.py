"""The protocol's reading rules, applied to the study's own figures: pairs, speeds cell by cell, replies, start-ups, and gaps closed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engcmp_assets.audit.found import LookRead, RuleRead
from engcmp_assets.audit.gathered import Gathered
from engcmp_assets.kernel.derived_figures import gap_closed
from engcmp_assets.kernel.differences import compare
from engcmp_assets.kernel.floors import RunValues
from engcmp_assets.kernel.looks import declared_looks
from engcmp_assets.kernel.names import ALL, REPLY_PANEL, SPEED, scored_rows
from engcmp_assets.kernel.reading_rules import MEAN, VALUE, Baseline, ReadingRule, Statistic, apply_rule
from engcmp_assets.kernel.records import ArmKey, plain
from engcmp_assets.kernel.row_table import RowTable, row_table
from engcmp_assets.kernel.tables import read_parquet
from engcmp_assets.kernel.work import sound_file
from engcmp_resources.errors import EngcmpError

Figure = Mapping[str, Any]
_NOT_COMPARABLE, _LEVEL, _APART = "not comparable", "level", ("faster", "slower")
EACH_CELL = "each cell"


def readings(found: Gathered) -> Iterator[RuleRead]:
    """Each rule with its verdict. A rule whose figure is not here says so; one of several looks (`each cell`) has a verdict for each."""
    for rule in found.study.protocol.reading_rules:
        try:
            looks = [_read(rule, name, figures) for name, figures in _looks(found, rule)]
        except EngcmpError as error:
            yield RuleRead(rule.id, _NOT_COMPARABLE, error.what)
        else:
            yield _joined(rule.id, looks)


def _joined(rule_id: str, looks: Sequence[LookRead]) -> RuleRead:
    """The one verdict of all looks, or how many looks have which."""
    told = dict.fromkeys((one.verdict, one.means) for one in looks)
    if len(looks) == 1 or len(told) == 1:
        return RuleRead(rule_id, looks[0].verdict, looks[0].means, tuple(looks) if len(looks) > 1 else ())
    counts = Counter(one.verdict for one in looks)
    words = ", ".join(f"{count} {word}" for word, count in counts.items())
    return RuleRead(
        rule_id, f"{words} of {len(looks)}", "; ".join(dict.fromkeys(means for _, means in told)), tuple(looks)
    )


def _read(rule: ReadingRule, name: str, figures: Mapping[str, Figure]) -> LookRead:
    try:
        read = apply_rule(rule, figures)
    except EngcmpError as error:
        return LookRead(name, _NOT_COMPARABLE, error.what)
    band = _band(figures)
    if (
        band is not None
        and read.verdict in _APART
        and all(band[0] <= one["value"] <= band[1] for one in figures.values())
    ):
        wider = f"inside the wider band that the repeats show, {band[0]:.3g} to {band[1]:.3g}"
        return LookRead(name, _LEVEL, wider)
    return LookRead(name, read.verdict, read.means)


def _band(figures: Mapping[str, Figure]) -> tuple[float, float] | None:
    """The noise band of a speed: what was declared, or what the repeats show where that is wider."""
    band = next(((one.get("floor") or {}).get("band") for one in figures.values() if one.get("panel") == SPEED), None)
    return (band[0], band[1]) if isinstance(band, (list, tuple)) else None


def _looks(found: Gathered, rule: ReadingRule) -> list[tuple[str, Mapping[str, Figure]]]:
    """Each look that the rule speaks of, with its figures by run of the baseline. Raises EngcmpError where there is none."""
    statistic, baseline = rule.statistic, rule.baseline
    if statistic is None or baseline is None:
        raise EngcmpError("statistic and baseline are not both named", remedy="name them")
    if statistic.kind == "value":
        return [(str(one["population"]), {VALUE: one}) for one in _values(found, statistic)]
    if statistic.kind == "gap_closed":
        return [(statistic.population, _gap(found, statistic, baseline))]
    return [
        (str(one["population"]), _by_run(one, baseline)) for one in _of_pair(found, rule, statistic, str(baseline.arm))
    ]


def _of_pair(found: Gathered, rule: ReadingRule, statistic: Statistic, arm: str) -> list[Figure]:
    """The figures of the declared pair that the statistic names: one, or one for each cell or stage of replies."""
    pairs = [pair for pair in found.pairs if (pair["candidate"], pair["baseline"]) == (statistic.candidate, arm)]
    if not pairs:
        raise EngcmpError(
            f"no pair of {statistic.candidate} and {arm} is declared", remedy="declare it under [[comparisons]]"
        )
    figures = [
        one
        for pair in pairs
        for one in (*pair["figures"], *(pair.get("speed") or {}).get("figures", ()), *(pair.get("replies") or {}).get("figures", ()))
        if one["measure"] == statistic.measure and statistic.panel in (None, one["panel"])
    ]  # fmt: skip
    wanted = statistic.population
    chosen = [one for one in figures if one["population"] == wanted]
    if wanted == EACH_CELL:
        chosen = [one for one in figures if one["panel"] == SPEED]
    elif not chosen and wanted == ALL:  # replies have no figure over all stages: each is a look of its own
        chosen = [one for one in figures if one["panel"] == REPLY_PANEL]
    if not chosen:
        why = next((pair["reason"] for pair in pairs if pair["reason"]), "measure the arms and make the comparisons")
        raise EngcmpError(
            f"no figure of {statistic.measure}, {wanted}, of {statistic.candidate} against {arm}: {why}", remedy=why
        )
    speaks_of_bands = {case.verdict for case in rule.cases} & {_LEVEL, *_APART}
    return [_without_band(one) if speaks_of_bands and one["panel"] == SPEED else one for one in chosen]


def _without_band(figure: Figure) -> Figure:
    """A speed that no repeats bear out has no band, so that no word for a side of it can be given."""
    band = (figure.get("floor") or {}).get("band")
    if not isinstance(band, Mapping) or isinstance(figure["value"], Mapping):
        return figure
    return {**figure, "value": {"missing": f"no noise band: {band['missing']}"}}


def _by_run(figure: Figure, baseline: Baseline) -> Mapping[str, Figure]:
    if baseline.runs == MEAN:
        return {MEAN: figure}
    against = {one["run"]: one for one in figure.get("against_each_run") or ()}
    chosen = baseline.runs if isinstance(baseline.runs, list) else list(against)
    return {run: against[run] for run in chosen if run in against} or {MEAN: figure}


def _values(found: Gathered, statistic: Statistic) -> list[Figure]:
    """The candidate's own figures: of a panel, a cell, a start-up, or replies; of a prompt's length each time it was repeated."""
    summary = found.summaries.get(statistic.candidate)
    if summary is None:
        raise EngcmpError(f"{statistic.candidate} has no figures", remedy="measure it")
    parts = [
        summary["figures"],
        summary.get("startup", {}).get("figures", ()),
        *(cell["figures"] for cell in summary.get("speed", ())),
        *(group["figures"] for group in summary.get("replies", {}).get("groups", ())),
    ]
    figures = [
        one
        for part in parts
        for one in part
        if one["measure"] == statistic.measure and statistic.panel in (None, one["panel"])
    ]
    wanted = statistic.population
    again = f"prefix-{wanted}/repeat-"
    if wanted == EACH_CELL:
        chosen = [one for one in figures if one["panel"] == SPEED]
    else:
        chosen = [one for one in figures if one["population"] == wanted or str(one["population"]).startswith(again)]
    if not chosen:
        raise EngcmpError(f"{statistic.candidate} has no {statistic.measure} of {wanted}", remedy="measure it")
    return chosen


def _gap(found: Gathered, statistic: Statistic, baseline: Baseline) -> Mapping[str, Figure]:
    """How much of the gap between the baseline and the candidate without its setting the setting closes, by run of the baseline."""
    setting, panel = ArmKey.parse(statistic.candidate), str(statistic.panel)
    candidate, other = str(setting.without_setting()), str(baseline.arm)
    s, c, b = (_rows(found, arm, panel, statistic.measure) for arm in (str(setting), candidate, other))
    for arm, table in ((str(setting), s), (candidate, c)):
        if any(table.keys[name].tolist() != b.keys[name].tolist() for name in ("window_id", "position", "next_token")):
            raise EngcmpError(
                f"{arm} and {other} were not measured on the same rows", remedy="capture them on one prompt set"
            )
    chosen = b.rows_of(statistic.population)
    clusters, name = b.clusters_of(chosen), statistic.measure
    looks = declared_looks(found.study.protocol.statistics, found.study.protocol.panels[panel], b)
    plain_s, plain_c = s.per_row(name)[chosen], c.per_row(name)[chosen]
    gap = compare(
        RunValues(c.runs, c.values[name][:, chosen]), RunValues(b.runs, b.values[name][:, chosen]), clusters, preset=looks.preset,
        primary=looks.is_primary(name, statistic.population), family=looks.family, level=looks.level, measure=name,
    )  # fmt: skip

    def closed(rows: Any) -> Figure:
        one = gap_closed(
            rows[chosen],
            plain_c,
            plain_s,
            clusters,
            gap_verdict=gap.verdict.word,
            preset=looks.preset,
            level=looks.level,
        )
        return {"value": plain(one.value), "interval": plain(one.interval)}

    if baseline.runs == MEAN:
        return {MEAN: closed(b.per_row(name))}
    wanted = baseline.runs if isinstance(baseline.runs, list) else b.runs
    return {run: closed(b.values[name][b.runs.index(run)]) for run in wanted if run in b.runs}


def _rows(found: Gathered, arm: str, panel: str, measure: str) -> RowTable:
    plan, receipt = found.study.protocol.panels.get(panel), found.receipts.get(("scores", arm))
    if plan is None or receipt is None:
        what = f"{arm} was not measured" if plan else f"the study has no panel {panel}"
        raise EngcmpError(what, remedy="measure the arms, and name the panel")
    columns = read_parquet(sound_file(found.store, receipt, scored_rows(panel)))
    path = found.study.protocol.capture.main_path(panel)
    return row_table(columns, (measure,), roles=plan.roles, path=path, where=f"scores of {arm}, panel {panel}")
