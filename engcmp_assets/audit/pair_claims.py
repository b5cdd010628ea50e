"""Every published figure of a pair, count of cells and note as a claim, held against what the evidence says beyond the figure itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from engcmp_assets.audit.finders import (
    differs_from_chunk,
    duplicates_of,
    hours_apart,
    requests_beside,
    run_pairs,
    same_machine,
    settings_changed,
)
from engcmp_assets.audit.found import ClaimRead
from engcmp_assets.audit.gathered import ArmRows, Gathered
from engcmp_assets.audit.reply_claims import reply_claims
from engcmp_assets.kernel.claims.checking import RULES, check_claim, narrowed
from engcmp_assets.kernel.claims.contents import rows_by_bucket
from engcmp_assets.kernel.claims.facts import Ages, Contents, Facts, Inputs, Launches, Look, Requests, Speeds, Texts
from engcmp_assets.kernel.claims.records import Cited, Claim
from engcmp_assets.kernel.launch_diff import launch_differences, undeclared_names
from engcmp_assets.kernel.names import LAUNCH, SPEED, captured_rows
from engcmp_assets.kernel.protocol import PanelPlan
from engcmp_assets.kernel.records import ArmKey, Window
from engcmp_assets.publication.claims import compares_paths
from engcmp_assets.publication.formats import number
from engcmp_assets.publication.notes import note_claims
from engcmp_assets.publication.stated import claim_of, facts_of
from engcmp_assets.publication.stated_counts import counts_of_cells

GENERATED = "generated"


def claims_read(found: Gathered) -> Iterator[ClaimRead]:
    """Each figure of each compared pair that has a value, speeds and replies among them; each count of cells; and what notes state."""
    known = Known(found)
    for pair in found.pairs:
        yield from (_read(claim, facts) for claim, facts in counts_of_cells(pair))
        for figure in (*pair["figures"], *(pair.get("speed") or {}).get("figures", ())):
            if number(figure["value"]) is not None:
                yield _read(known.claim(pair, figure), known.facts(pair, figure))
        yield from (
            _read(claim, replace(facts, ages=known.context(pair, None).ages))
            for claim, facts in reply_claims(found, pair)
        )

    published = {"arms": [one for one in found.summaries.values() if one["figures"]], "comparisons": found.pairs}
    for claim, facts in note_claims(published):
        equal = _least_equal(found, claim) if claim.states == "identical rows" else None
        yield _read(claim, facts if equal is None else Facts(look=Look(rows_equal=min(equal, _equal_of(facts)))))


def _equal_of(facts: Facts) -> float:
    return 0.0 if facts.look is None or facts.look.rows_equal is None else facts.look.rows_equal


def _least_equal(found: Gathered, claim: Claim) -> float | None:
    """The least share of rows that two runs of the claim's arm have in common, by the hashes of the rows themselves."""
    panel = claim.population.panel
    shares = [
        float(rows.equal(*pair).mean())
        for rows in found.rows
        if rows.arm == claim.candidate and rows.panel.panel == panel
        for pair in run_pairs(rows)
    ]
    return min(shares) if shares else None


def _read(claim: Claim, facts: Facts) -> ClaimRead:
    wrong = check_claim(claim, facts)
    if not wrong:
        return ClaimRead(claim.claim_id, "holds", claim.verdict, claim.verdict, (), ())
    left = narrowed(claim, facts)
    rules, what = tuple(one.rule_id for one in wrong), tuple(one.what for one in wrong)
    if left is None:
        return ClaimRead(claim.claim_id, "corrected", claim.verdict, None, rules, what)
    return ClaimRead(claim.claim_id, "narrowed", claim.verdict, left.verdict, rules, what)


class Known:
    """What the evidence says of each panel and arm, looked up once."""

    def __init__(self, found: Gathered) -> None:
        self._found = found
        self._panels = {rows.panel.panel: rows.panel for rows in found.rows}
        self._merged = {name: duplicates_of(panel) for name, panel in self._panels.items()}
        self._requests = {(rows.arm, rows.panel.panel): _requests(rows) for rows in found.rows}
        self._paths = {(rows.arm, rows.panel.panel): tuple(rows.paths) for rows in found.rows}

    def claim(self, pair: Mapping[str, Any], figure: Mapping[str, Any]) -> Claim:
        """The page's claim with what the page says around the figure: its score path, its role, and the receipts that it rests on."""
        claim = claim_of(pair, figure)
        if figure["panel"] == SPEED:
            return claim.changed(content=self._kind(pair, figure))
        plan = self._found.study.protocol.panels[figure["panel"]]
        role = plan.roles[0] if len(plan.roles) == 1 else None
        arms = dict.fromkeys((pair["candidate"], pair["baseline"]))
        artifacts = (LAUNCH, captured_rows(figure["panel"]), "scores")
        heads = self._found.reached.heads
        cited = [
            sha256 for place, sha256 in heads.items()
            if place.artifact in artifacts and place.arm_folder in {ArmKey.parse(arm).folder for arm in arms}
        ]  # fmt: skip
        outside = plan.external
        return claim.changed(
            text=outside.drawn_from if outside is not None and role == GENERATED else None,
            score_path=pair["candidate_path"],
            population=claim.population.model_copy(update={"role": role}),
            evidence=Cited(receipts=tuple(cited)),
        )

    def facts(self, pair: Mapping[str, Any], figure: Mapping[str, Any]) -> Facts:
        """The figure's own numbers, and what row files and receipts add to them."""
        own, name = facts_of(pair, figure), figure["panel"]
        if name == SPEED:
            beyond, speeds = self.context(pair, None), own.speeds or Speeds()
            watched = all(self._found.samples.get(arm, 0) > 0 for arm in _arms(pair))
            answers = self._answers(_arms(pair), figure)
            seen = replace(speeds, telemetry=watched, answers=answers, kind=self._kind(pair, figure))
            undeclared = Launches(undeclared=tuple(pair.get("undeclared") or ()))
            return replace(own, ages=beyond.ages, inputs=beyond.inputs, speeds=seen, launches=undeclared)
        look, part = own.look, claim_of(pair, figure).population
        beyond = self.context(pair, name)
        if look is not None:
            chosen = [
                window for window in self._panels[name].windows
                if part.block in (None, window.block) and part.bucket in (None, window.bucket)
            ]  # fmt: skip
            look = replace(look, documents=documents_of(chosen), independent=self.independent(name, chosen))
        return replace(beyond, look=look, repeats=own.repeats)

    def independent(self, panel: str, chosen: Sequence[Window]) -> int:
        """How many of these windows are left when near-copies count once."""
        return len({self._merged[panel].merged[window.window_id] for window in chosen})

    def context(self, pair: Mapping[str, Any], name: str | None) -> Facts:
        """What is known of a pair's sides and of a panel (None: of no rows), whatever the figure."""
        found, arms = self._found, _arms(pair)
        engines = {ArmKey.parse(arm).engine for arm in arms}
        own = Facts(
            ages=Ages(hours_apart=hours_apart(found, pair), same_freeze=True, same_machine=same_machine(found, pair)),
            inputs=Inputs(same_engine=len(engines) == 1),
        )
        if name is None:
            return own
        panel, plan = self._panels[name], found.study.protocol.panels[name]
        roles: dict[str, int] = {}
        for window in panel.windows:
            for role in window.roles:
                roles[role] = roles.get(role, 0) + (role in plan.roles)
        sides = None if compares_paths(pair) else found.sides(pair)
        shared = [self._requests[(arm, name)] for arm in arms if (arm, name) in self._requests]
        settings, other = ((), ()) if sides is None else settings_changed(*sides)
        return replace(
            own,
            texts=Texts(
                provenance=plan.external.drawn_from if plan.external is not None else None,
                greedy=greedy_of(plan),
                roles={role: count for role, count in roles.items() if count},
                headline_roles=tuple(plan.roles),
            ),
            requests=next((one for one in shared if one is not None), None),
            launches=Launches(
                settings=(*settings, *other),
                undeclared=() if sides is None else tuple(undeclared_names(launch_differences(*sides))),
            ),
            contents=Contents(rows=rows_by_bucket(panel)),
            scored_paths=tuple(dict.fromkeys(path for arm in arms for path in self._paths.get((arm, name), ()))),
            known=found.known,
            owners=found.owners,
        )

    def _kind(self, pair: Mapping[str, Any], figure: Mapping[str, Any]) -> str | None:
        """The kind of content that the cell is named after."""
        table = self._found.requests.get(pair["candidate"])
        own = [] if table is None else table["kind"][table["cell_id"] == figure["population"]].tolist()
        return str(own[0]) if own else None

    def _answers(self, arms: Sequence[str], figure: Mapping[str, Any]) -> float | None:
        """Share of the cell's replies that left their reasoning; None where no engine tells reasoning from answer."""
        left = total = 0
        for arm in arms:
            table = self._found.requests.get(arm)
            if table is None:
                return None
            own = table["cell_id"] == figure["population"]
            thought = [
                value is not None and np.isfinite(value) and value > 0 for value in table["reasoning_tokens"][own]
            ]
            answered = [value is not None and np.isfinite(value) for value in table["ttfa_ns"][own]]
            if not any(thought):
                return None
            left, total = left + sum(answered), total + len(answered)
        return left / total if total else None


def greedy_of(plan: PanelPlan) -> bool | None:
    """Whether a panel's generated texts were drawn at temperature 0; None where nothing was generated, or nobody says how."""
    stated = None if plan.external is None else plan.external.temperature
    return None if stated is None else stated == 0


def _arms(pair: Mapping[str, Any]) -> tuple[str, str]:
    return pair["candidate"], pair["baseline"]


def documents_of(windows: Sequence[Window]) -> tuple[str, ...]:
    """The clusters that these windows are of."""
    return tuple(sorted({window.cluster for window in windows}))


def _requests(rows: ArmRows) -> Requests | None:
    if not rows.notes:
        return None
    chunks = [found for pair in run_pairs(rows) if (found := differs_from_chunk(rows, *pair)) is not None]
    return Requests(shared_steps=requests_beside(rows), differs_from_chunk=max(chunks) if chunks else None)


RULE_IDS = tuple(RULES)
"""Every rule that a claim is held against, for the page."""
