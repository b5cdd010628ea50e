"""The matrix of arms as the store has it: every arm's state and primary figure, and what the comparisons say of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from engcmp_assets.captured_rows.refusals import refusals_of
from engcmp_assets.comparisons.asked import compared_blocks
from engcmp_assets.kernel.matrix import (
    FAILED,
    MEASURED,
    NOT_COMPARABLE,
    NOT_MEASURED,
    REFUSED,
    Standing,
    Verdict,
    matrix_table,
    over_all,
    pair_verdict,
)
from engcmp_assets.kernel.names import ALL, figure_id
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.work import Done, Session, output_blob, sound_receipt
from engcmp_resources.errors import EngcmpError

Look = tuple[str, str]  # panel and measure
Failed = Callable[[Sequence[str]], Mapping[str, str]]
# A receipt never changes under its name, and the matrix of each of many arms is of all arms: a process reads each of them once.
_SUMMARIES: dict[tuple[str, Look], tuple[str, Mapping[str, Any] | None]] = {}
_COMPARISONS: dict[tuple[str, Look], tuple[dict[str, str], dict[str, Mapping[str, Any]]]] = {}


def matrix_now(session: Session, own: ArmKey, failed: Failed, page: Callable[[ArmKey], str]) -> str:
    """The matrix of what stands now, for the page of `own`.

    Of the arms that have no summary, those whose last run was refused say why; of the rest `failed` names those whose last run failed,
    with what to know of it.
    """
    study, look = session.study, _look(session.study)
    found: dict[ArmKey, Standing] = {}
    contents: dict[str, str] = {}
    for arm in study.protocol.arm_keys:
        try:
            head = _head(session, "summaries", arm)
            if head is not None:
                contents[str(arm)], figure = _summary(session, head, look)
                found[arm] = Standing(arm, MEASURED, None, figure)
        except EngcmpError as error:
            found[arm] = Standing(arm, FAILED, error.what)
    refused = refusals_of(session, [arm for arm in study.protocol.arm_keys if arm not in found])
    found |= {ArmKey.parse(arm): Standing(ArmKey.parse(arm), REFUSED, why) for arm, why in refused.items()}
    missing = [str(arm) for arm in study.protocol.arm_keys if arm not in found]
    why = failed(missing) if missing else {}
    standings = [found.get(arm) or _not_measured(study, arm, why) for arm in study.protocol.arm_keys]
    standings += [
        Standing(ArmKey.parse(one.arm), NOT_COMPARABLE, f"{one.state}: {one.reason}") for one in study.protocol.not_run
    ]
    try:
        verdicts = _verdicts(session, _head(session, "comparisons", None), look, contents)
    except EngcmpError:  # damaged evidence: `verify` says so, and here it counts as none
        verdicts = _verdicts(session, None, look, contents)
    return _table(standings, verdicts, look, page, own)


def matrix_published(session: Session, done: Done, page: Callable[[ArmKey], str]) -> str:
    """The matrix of what SUMMARY.json has published."""
    look = _look(session.study)
    document = json.loads(session.store.path(output_blob(done.receipt, "SUMMARY.json")).read_bytes())
    standings = [
        Standing(ArmKey.parse(one["arm"]), one["state"], one["reason"], over_all(one["figures"], *look))
        for one in document["arms"]
    ]
    inputs = {(item["artifact"], item["arm"]): item for item in done.receipt["inputs"]}
    contents = {str(arm): item["content_id"] for (artifact, arm), item in inputs.items() if artifact == "summaries"}
    verdicts = _verdicts(session, inputs["comparisons", None]["receipt_sha256"], look, contents)
    return _table(standings, verdicts, look, page, None)


def _look(study: Study) -> Look:
    """The study's headline: the first primary measure of its first panel."""
    panel, plan = next(iter(study.protocol.panels.items()))
    return panel, (plan.primary or plan.measures)[0]


def _not_measured(study: Study, arm: ArmKey, failed: Mapping[str, str]) -> Standing:
    if str(arm) in failed:
        return Standing(arm, FAILED, failed[str(arm)])
    return Standing(arm, NOT_MEASURED, f"engcmp run {study.protocol.study} --arm {arm}")


def _verdicts(session: Session, compared: str | None, look: Look, contents: Mapping[str, str]) -> list[Verdict]:
    """Every declared pair of two arms, by the receipt `compared`; current are those of the summaries that `contents` has."""
    beside, figures = _compared(session, compared, look) if compared else ({}, {})
    protocol = session.study.protocol
    found = []
    for plan in protocol.comparisons:
        if plan.compares_paths or "q" not in compared_blocks(protocol, plan):
            continue
        figure = figures.get(figure_id(f"{protocol.study}/pair/{plan.pair_id}", look[0], ALL, look[1]))
        current = all(beside.get(arm) == contents.get(arm) for arm in (plan.candidate, plan.baseline))
        found.append(pair_verdict(plan.candidate, plan.baseline, figure, current=current))
    return found


def _table(
    standings: list[Standing], verdicts: list[Verdict], look: Look, page: Callable[[ArmKey], str], own: ArmKey | None
) -> str:
    links = {one.arm: page(one.arm) for one in standings if one.state != NOT_COMPARABLE}
    return matrix_table(standings, verdicts, panel=look[0], measure_id=look[1], links=links, own=own)


def _head(session: Session, artifact: str, arm: ArmKey | None) -> str | None:
    place = session.place(artifact, arm)
    return session.store.head(place.study, place.arm_folder, place.artifact)


def _summary(session: Session, sha256: str, look: Look) -> tuple[str, Mapping[str, Any] | None]:
    """Content id and primary figure of a summary's receipt."""
    if (sha256, look) not in _SUMMARIES:
        receipt = sound_receipt(session.store, sha256)
        _SUMMARIES[sha256, look] = receipt["content_id"], over_all(receipt["figures"], *look)
    return _SUMMARIES[sha256, look]


def _compared(session: Session, sha256: str, look: Look) -> tuple[dict[str, str], dict[str, Mapping[str, Any]]]:
    """Of a receipt of `comparisons`: content ids of the summaries that it was made beside, and each pair's primary figure."""
    if (sha256, look) not in _COMPARISONS:
        receipt = sound_receipt(session.store, sha256)
        beside = {str(item["arm"]): item["content_id"] for item in receipt["inputs"] if item["artifact"] == "summaries"}
        wanted = (*look, ALL)
        figures = [one for one in receipt["figures"] if (one["panel"], one["measure"], one["population"]) == wanted]
        _COMPARISONS[sha256, look] = beside, {one["figure_id"]: one for one in figures}
    return _COMPARISONS[sha256, look]
