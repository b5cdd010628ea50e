"""What a study's row files and receipts say of a claim that somebody states of it: the facts that the claim's rules look at."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from engcmp_assets.audit.gathered import Gathered
from engcmp_assets.audit.pair_claims import Known, documents_of
from engcmp_assets.audit.reply_claims import reply_claims
from engcmp_assets.kernel.claims.facts import AgainstRun, Contents, Facts, Inputs, Launches, Look, Replies
from engcmp_assets.kernel.claims.records import ANY, Claim, Ends
from engcmp_assets.kernel.claims.rules_kinds import APART
from engcmp_assets.kernel.differences import Comparison, compare
from engcmp_assets.kernel.floors import RunValues
from engcmp_assets.kernel.looks import declared_looks
from engcmp_assets.kernel.measures import MEASURES
from engcmp_assets.kernel.names import EVENTS, REPLY_CHECKS, part_of, population_parts, scored_rows
from engcmp_assets.kernel.records import ArmKey, Interval, Missing
from engcmp_assets.kernel.reply_measures import REPLY_IDS
from engcmp_assets.kernel.reply_verdicts import population_of, verdicts_of
from engcmp_assets.kernel.review.confounding import difference_of_differences
from engcmp_assets.kernel.review.paired_bar import paired_bar
from engcmp_assets.kernel.row_table import RowTable, row_table
from engcmp_assets.kernel.tables import read_parquet
from engcmp_assets.kernel.uncertainty import Preset
from engcmp_assets.kernel.work import sound_file
from engcmp_assets.long_output_checks.step import VERDICTS_FILE
from engcmp_assets.publication.formats import number
from engcmp_assets.publication.stated import verdict_word
from engcmp_assets.publication.stated_counts import cells_of, family_of
from engcmp_resources.store import Place

Pair = Mapping[str, Any]
Figure = Mapping[str, Any]
_GENERATED = "generated"


class StudyFacts:
    """The facts of claims of one study, each looked up when a claim asks for it."""

    def __init__(self, found: Gathered) -> None:
        self._found, self._known = found, Known(found)

    def of(self, claim: Claim) -> Facts:
        """Everything that is known of the claim's subject; `unmeasured` where that is nothing."""
        return replace(
            self._of(claim), known=self._found.known, owners=self._found.owners, measured_of=self._found.measured_of
        )

    def _of(self, claim: Claim) -> Facts:
        if claim.states == "loops":
            return self._loops(claim)
        pair = self._pair(claim)
        if isinstance(pair, Facts):
            return pair
        if claim.states in ("ratio", "counts") or claim.population.cell is not None:
            return self._speed(claim, pair)
        if claim.states == "replies" or claim.measure in REPLY_IDS:
            return self._replies(claim, pair)
        return self._of_panel(claim, pair)

    def _of_panel(self, claim: Claim, pair: Pair) -> Facts:
        panel = self._panel(claim, pair)
        if panel is None:
            there, named = ", ".join(sorted({one["panel"] for one in pair["figures"]})), claim.population.panel or "any"
            return Facts(unmeasured=f"pair {pair['pair_id']} has no {claim.measure} on panel {named}: it has {there}")
        several = {one["panel"] for one in pair["figures"] if claim.measure in (ANY, one["measure"])}
        if claim.population.panel is None and (len(several) > 1 or claim.states == "identical inputs"):
            there = ", ".join(sorted({one["panel"] for one in pair["figures"]}))
            return Facts(unmeasured=f"no panel is named: pair {pair['pair_id']} has {there}, and a claim is of one")
        if claim.states == "identical inputs":
            same = Inputs(same_tokens=True, same_nonces=True)  # rows that do not pair up are never compared
            return replace(self._known.context(pair, panel), inputs=same, look=Look())
        role, pooled = claim.population.role, self._found.study.protocol.panels[panel].roles
        if role is not None and [role] != list(pooled) and claim.states != "bar":
            return Facts(
                unmeasured=f"the figures of panel {panel} are of rows of role {' and '.join(pooled)}, not of {role}"
            )
        return self._bar(claim, pair, panel) if claim.states == "bar" else self._rows(claim, pair, panel)

    def _pair(self, claim: Claim) -> Pair | Facts:
        """The declared pair that the claim is of, or why there is none."""
        if claim.baseline is None:
            return Facts(unmeasured="no baseline is named: a claim is of two arms, or of two score paths of one")
        pairs = [
            one for one in self._found.pairs if (one["candidate"], one["baseline"]) == (claim.candidate, claim.baseline)
        ]
        if not pairs:
            turned = any(
                (one["baseline"], one["candidate"]) == (claim.candidate, claim.baseline) for one in self._found.pairs
            )
            why = "it is declared the other way round" if turned else "the study declares no such pair"
            return Facts(unmeasured=f"{claim.candidate} against {claim.baseline}: {why}")
        chosen = next((one for one in pairs if claim.score_path in (None, one["candidate_path"])), None)
        if chosen is None:
            paths = ", ".join(dict.fromkeys(one["candidate_path"] for one in pairs))
            return Facts(
                scored_paths=tuple(dict.fromkeys(one["candidate_path"] for one in pairs)),
                unmeasured=f"{claim.candidate} against {claim.baseline} was compared on the {paths} path, not on {claim.score_path}",
            )
        if chosen["state"] != "compared":
            return Facts(
                unmeasured=f"pair {chosen['pair_id']} is not comparable: {chosen['reason']}", not_comparable=True
            )
        return chosen

    # Rows.

    def _panel(self, claim: Claim, pair: Pair) -> str | None:
        figures = [
            one
            for one in pair["figures"]
            if claim.measure in (ANY, one["measure"]) or claim.states in ("bar", "identical inputs")
        ]
        wanted = claim.population.panel
        return next((one["panel"] for one in figures if wanted in (None, one["panel"])), None)

    def _rows(self, claim: Claim, pair: Pair, panel: str) -> Facts:
        population = part_of(claim.population.block, claim.population.bucket)
        declared = any((one["panel"], one["population"]) == (panel, population) for one in pair["figures"])
        if claim.population.bucket is not None and not declared:
            return self._bucket(claim, pair, panel)
        figures = [one for one in pair["figures"] if (one["panel"], one["population"]) == (panel, population)]
        figure = next((one for one in figures if claim.measure in (ANY, one["measure"])), None)
        if figure is None:
            return Facts(unmeasured=f"pair {pair['pair_id']} has no {claim.measure} on panel {panel}, {population}")
        if number(figure["value"]) is None:
            return Facts(unmeasured=f"{figure['figure_id']} has no value: {figure['value']['missing']}")
        facts = self._known.facts(pair, figure)
        if facts.look is not None and facts.look.rows_equal is None:
            facts = replace(facts, look=replace(facts.look, rows_equal=self._share_equal(pair, panel)))
        if claim.measure == ANY:
            others = {one["measure"]: verdict_word(one) == "resolved" for one in figures}
            equal = facts.look.rows_equal if facts.look else None
            facts = replace(facts, look=Look(others=others, rows_equal=equal), family=family_of(pair["figures"], panel))
        return self._beside(claim, pair, panel, population, facts)

    def _beside(self, claim: Claim, pair: Pair, panel: str, population: str, facts: Facts) -> Facts:
        """The facts with what repeats show of these rows, what context adds within a block, and whether tasks were checked."""
        again = self._repeated(pair, panel)
        repeats = facts.repeats
        if repeats is not None and facts.look is not None:
            block, bucket = population_parts(population) or (None, None)
            chosen = [
                one for one in self._windows(pair, panel) if block in (None, one.block) and bucket in (None, one.bucket)
            ]
            own = documents_of([one for one in chosen if one.cluster in again])
            whole = set(own) == set(documents_of(chosen))
            repeats = replace(repeats, documents=own, estimate_on_them=facts.look.estimate if whole else None)
        said = claim.states == "trend" or (claim.cause is not None and claim.cause.factor == "context length")
        contents = (
            replace(facts.contents or Contents(), within=self._within(claim, pair, panel)) if said else facts.contents
        )
        return replace(
            facts, repeats=repeats, contents=contents, repeated_documents=again,
            wild_with_itself=_wildest(pair, panel, population),
        )  # fmt: skip

    def _share_equal(self, pair: Pair, panel: str) -> float | None:
        """The share of a panel's rows that first runs of both sides have in common, by the hashes of the rows themselves."""
        hashes = []
        for side in ("candidate", "baseline"):
            own = next((one for one in self._found.rows if (one.arm, one.panel.panel) == (pair[side], panel)), None)
            runs = [] if own is None else own.paths.get(pair[f"{side}_path"], [])
            if own is None or not runs:
                return None
            hashes.append([own.hashes[(runs[0], *row)] for row in own.rows])
        if len(hashes[0]) != len(hashes[1]) or not hashes[0]:
            return None
        return sum(map(str.__eq__, *hashes)) / len(hashes[0])

    def _windows(self, pair: Pair, panel: str) -> Sequence[Any]:
        return next(
            rows.panel.windows
            for rows in self._found.rows
            if (rows.arm, rows.panel.panel) == (pair["candidate"], panel)
        )

    def _repeated(self, pair: Pair, panel: str) -> tuple[str, ...]:
        """The documents of which both sides have two runs or more on one score path."""
        sides = [
            rows
            for rows in self._found.rows
            if rows.arm in (pair["candidate"], pair["baseline"]) and rows.panel.panel == panel
        ]
        if not sides or any(len(runs) < 2 for rows in sides for runs in rows.paths.values()):  # noqa: PLR2004 - one run has no repeat
            return ()
        return documents_of(sides[0].panel.windows)

    def _bucket(self, claim: Claim, pair: Pair, panel: str) -> Facts:
        """A context bucket at which the study declares no look: it is read from the rows, and told as looked at after the data."""
        sides, bucket = self._tables(pair, panel, claim.measure), claim.population.bucket
        if isinstance(sides, str):
            return Facts(unmeasured=sides)
        block = claim.population.block
        windows = [one for one in self._windows(pair, panel) if one.bucket == bucket and block in (None, one.block)]
        chosen = sides[0].keys["bucket"] == bucket
        if block is not None:
            chosen = chosen & (sides[0].keys["block"] == block)
        if not chosen.any():
            there = ", ".join(sorted(set(sides[0].keys["bucket"].tolist())))
            beside = "" if block is None else f" with rows of block {block}"
            return Facts(unmeasured=f"panel {panel} has no bucket {bucket}{beside}: it has {there}")
        looked = self._compared(sides, panel, claim.measure, chosen)
        look = replace(
            _look_of(looked),
            unit=MEASURES[claim.measure].unit if claim.measure in MEASURES else None,
            declared=False,
            documents=documents_of(windows),
            independent=self._known.independent(panel, windows),
        )
        population = part_of(block)
        return self._beside(claim, pair, panel, population, replace(self._known.context(pair, panel), look=look))

    def _compared(
        self, sides: tuple[RowTable, RowTable], panel: str, measure: str, chosen: npt.NDArray[np.bool_]
    ) -> Comparison:
        protocol, (candidate, baseline) = self._found.study.protocol, sides
        looks = declared_looks(protocol.statistics, protocol.panels[panel], candidate)
        return compare(
            RunValues(candidate.runs, candidate.values[measure][:, chosen]),
            RunValues(baseline.runs, baseline.values[measure][:, chosen]), candidate.clusters_of(chosen), preset=looks.preset,
            primary=False, family=looks.family, level=looks.level, measure=measure,
        )  # fmt: skip

    def _within(self, claim: Claim, pair: Pair, panel: str) -> dict[str, tuple[float, float] | None]:
        """By block with rows at several lengths: the interval of what the longest adds to the difference."""
        sides = self._tables(pair, panel, claim.measure)
        if isinstance(sides, str):
            return {}
        values = sides[0].per_row(claim.measure) - sides[1].per_row(claim.measure)
        keys, statistics = sides[0].keys, self._found.study.protocol.statistics
        lengths: dict[str, int] = {}
        for window in self._windows(pair, panel):
            lengths[window.bucket] = max(lengths.get(window.bucket, 0), len(window.tokens))
        found: dict[str, tuple[float, float] | None] = {}
        for block in sorted(set(keys["block"].tolist())):
            own = keys["block"] == block
            buckets = sorted(set(keys["bucket"][own].tolist()), key=lambda name: lengths[name])
            if len(buckets) > 1:
                adds = difference_of_differences(
                    values[own], keys["cluster"][own].tolist(), inside=keys["bucket"][own] == buckets[-1],
                    preset=Preset(statistics.replicates, statistics.seed), level=statistics.level,
                )  # fmt: skip
                ends = adds.interval
                found[block] = None if isinstance(ends, Missing) else (ends.low, ends.high)
        return found

    def _bar(self, claim: Claim, pair: Pair, panel: str) -> Facts:
        if claim.population.block is not None or claim.population.bucket is not None:
            return Facts(unmeasured=f"a bar is read on all generated rows of panel {panel}, not on a part of them")
        kl = next((name for name in self._found.study.protocol.panels[panel].primary if name.startswith("kl_")), "")
        first, second = (self._tables(pair, panel, name, role=_GENERATED) for name in ("top1", kl))
        if isinstance(first, str) or isinstance(second, str):
            return Facts(unmeasured=f"no bar can be read: {first if isinstance(first, str) else second}")
        (top, base_top), (far, base_far) = first, second
        context = self._known.context(pair, panel)
        same = bool(context.inputs and context.inputs.same_engine)
        found = paired_bar(
            candidate_top1=top.per_row("top1"), baseline_top1=base_top.per_row("top1"), candidate_kl=far.per_row(kl),
            baseline_kl=base_far.per_row(kl), windows=top.keys["window_id"].tolist(), roles=top.keys["role"].tolist(), same_engine=same,
        )  # fmt: skip
        return replace(context, paired_bar=found.verdict, look=Look())

    def _tables(
        self, pair: Pair, panel: str, measure: str, *, role: str | None = None
    ) -> tuple[RowTable, RowTable] | str:
        """Both sides' scored rows, candidate first, or why there are none."""
        plan, tables = self._found.study.protocol.panels[panel], []
        for side in ("candidate", "baseline"):
            receipt = self._found.receipts.get(("scores", pair[side]))
            if receipt is None:
                return f"{pair[side]} was not scored"
            columns = read_parquet(sound_file(self._found.store, receipt, scored_rows(panel)))
            if measure not in columns:
                return f"panel {panel} has no measure {measure or 'of distance'}"
            roles = plan.roles if role is None else [role]
            if not np.isin(columns["role"], roles).any():
                return f"panel {panel} has no rows of role {role}"
            where = f"scores of {pair[side]}, panel {panel}"
            tables.append(row_table(columns, (measure,), roles=roles, path=pair[f"{side}_path"], where=where))
        return tables[0], tables[1]

    # Speeds and replies.

    def _speed(self, claim: Claim, pair: Pair) -> Facts:
        figures = [one for one in (pair.get("speed") or {}).get("figures", ()) if one["measure"] == claim.measure]
        if (unfit := _unfit(claim)) is not None:
            return Facts(unmeasured=unfit)
        if claim.states == "counts" and figures:
            return Facts(cells=cells_of(figures), launches=Launches(undeclared=tuple(pair.get("undeclared") or ())))
        if claim.states == "identical inputs" and claim.population.cell is not None:
            return Facts(inputs=self._inputs(pair, claim.population.cell), look=Look())
        figure = next((one for one in figures if one["population"] == claim.population.cell), None)
        if figure is None or number(figure["value"]) is None:
            why = figure["value"]["missing"] if figure else "no such cell was compared"
            return Facts(
                unmeasured=f"pair {pair['pair_id']}, {claim.measure} of cell {claim.population.cell or '(none is named)'}: {why}"
            )
        facts = replace(
            self._known.facts(pair, figure),
            look=Look(estimate=number(figure["value"]), unit=figure.get("unit"), documents=figure["clusters"]),
        )
        return (
            facts
            if facts.speeds is None
            else replace(facts, speeds=replace(facts.speeds, acceptance=self._acceptance(pair)))
        )

    def _inputs(self, pair: Pair, cell: str) -> Inputs:
        """The prompts of a cell are of one frozen plan; what each engine counted of them is in its own requests."""
        counted: list[dict[str, float]] = []
        for side in ("candidate", "baseline"):
            table = self._found.requests.get(pair[side])
            chosen = np.zeros(0, bool) if table is None else table["cell_id"] == cell
            told = {} if table is None else dict(
                zip(table["request_id"][chosen].tolist(), table["usage_prompt_tokens"][chosen].astype(np.float64).tolist(), strict=True)
            )  # fmt: skip
            counted.append(told if told and all(map(math.isfinite, told.values())) else {})
        known = all(counted)
        # The first request that they count apart, so that two errors do not make up for each other; else all together.
        apart = [name for name in sorted(counted[0].keys() & counted[1].keys()) if counted[0][name] != counted[1][name]]
        sums = [int(own[apart[0]]) if apart else int(sum(own.values())) for own in counted]
        asked = [_prompts_of(self._found.receipts.get((EVENTS, pair[side]))) for side in ("candidate", "baseline")]
        same = (
            None if None in asked else asked[0] == asked[1]
        )  # a nonce is part of a frozen prompt: nothing is added when it is sent
        return Inputs(same_tokens=same, same_nonces=same, counted=(sums[0], sums[1]) if known else None)

    def _acceptance(self, pair: Pair) -> bool:
        """Whether both engines' counters of drafted tokens were recorded."""

        def recorded(arm: str) -> bool:
            cells: Iterable[Any] = self._found.summaries.get(arm, {}).get("speed", ())
            return any(
                one["measure"] == "acceptance" and number(one["value"]) is not None
                for cell in cells
                for one in cell["figures"]
            )

        return all(recorded(pair[side]) for side in ("candidate", "baseline"))

    def _loops(self, claim: Claim) -> Facts:
        receipt = self._reply_receipt(claim.candidate)
        if receipt is None:
            return Facts(unmeasured=f"no reply of {claim.candidate} was judged")
        named = {name: value for name, value in claim.population if value is not None}
        columns = read_parquet(sound_file(self._found.store, receipt, VERDICTS_FILE))
        verdicts = verdicts_of({name: column.tolist() for name, column in columns.items()})
        own = [
            one for one in verdicts if claim.population.block in (None, population_of(one.block, one.stage, one.block))
        ]
        if set(named) - {"block"} or not own:
            return Facts(unmeasured=f"no replies of {claim.candidate} are of {', '.join(map(str, named.values()))}")
        looped = sum(one.looped == "yes" for one in own)
        return Facts(
            replies=Replies(flagged=looped, self_repeating=looped),
            look=Look(estimate=float(looped), documents=len(own)),
        )

    def _replies(self, claim: Claim, pair: Pair) -> Facts:
        """The facts of the figure of replies that the claim names: its stage is the population's block."""
        read = list(reply_claims(self._found, pair))
        there = [
            facts for one, facts in read
            if one.measure == claim.measure and one.population == claim.population
        ]  # fmt: skip
        if there:
            context = self._known.context(pair, None)
            return replace(
                there[0], ages=context.ages, launches=Launches(undeclared=tuple(pair.get("undeclared") or ()))
            )
        named = ", ".join(sorted({f"{one.population.panel} {one.population.block}" for one, _ in read})) or "none"
        return Facts(unmeasured=f"pair {pair['pair_id']} has no {claim.measure} of such replies: it has {named}")

    def _reply_receipt(self, arm: str) -> Mapping[str, Any] | None:
        return self._found.reached.of(Place(self._found.study.folder.name, ArmKey.parse(arm).folder, REPLY_CHECKS))


def _unfit(claim: Claim) -> str | None:
    """Why cells of the speed block can have no such claim; None where they can."""
    beside = [name for name, value in claim.population if value is not None and name != "cell"]
    if beside:
        return f"a cell has no {beside[0]}: its figure is of requests, not of a panel's rows"
    if claim.states == "counts":
        return None if claim.population.cell is None else "cells are counted over all of them, and one is named"
    fits = claim.states in ("ratio", "cause", "identical inputs")
    return None if fits else f"a cell has ratios of speeds, and no {claim.states}"


def _prompts_of(receipt: Mapping[str, Any] | None) -> str | None:
    """The part of the prompt set that an arm's requests were made of, by its id."""
    inputs = () if receipt is None else receipt["inputs"]
    return next((str(one["part_id"]) for one in inputs if one["artifact"] == "prompt_set"), None)


def _look_of(found: Comparison) -> Look:
    """The numbers of a comparison as a look."""
    deciding = found.interval95 if found.primary else found.interval_bonferroni
    flip = found.sign_flip_p
    return Look(
        estimate=found.difference.value if not isinstance(found.difference.value, Missing) else None,
        interval=_ends(found.interval95), deciding=_ends(deciding), primary=found.primary, documents=found.difference.clusters,
        against=tuple(
            AgainstRun(one.run, None if isinstance(one.difference.value, Missing) else one.difference.value, one.stands)
            for one in found.against_each_run
        ),
        sign_flip_p=None if isinstance(flip, Missing) else flip,
    )  # fmt: skip


def _ends(interval: Interval | Missing) -> Ends | None:
    if isinstance(interval, Missing):
        return None
    return Ends(low=interval.low, high=interval.high, level=interval.level, method=interval.method)


def _wildest(pair: Pair, panel: str, population: str) -> float | None:
    """How far an arm of the pair is from itself on these rows, in nats: the largest floor of the distance between two captures."""
    found = [
        float(floor["value"])
        for one in pair["figures"]
        if (one["panel"], one["population"]) == (panel, population) and one["measure"] in APART
        for floor in (one.get("floor") or {}).values()
        if isinstance(floor, Mapping) and "value" in floor
    ]
    return max(found) if found else None
