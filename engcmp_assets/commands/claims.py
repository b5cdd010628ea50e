"""`engcmp claims`: a file of claims held against what was measured. It needs no Dagster instance."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from engcmp_assets.audit.claim_facts import StudyFacts
from engcmp_assets.audit.gathered import Gathered, gather
from engcmp_assets.audit.pair_claims import Known
from engcmp_assets.audit.reached import link_problems, reached_from_heads
from engcmp_assets.audit.recompute import Evidence
from engcmp_assets.commands.paths import PathArgument
from engcmp_assets.commands.sharing import beside_no_timed_cell
from engcmp_assets.kernel.claims.checking import Judged, judge
from engcmp_assets.kernel.claims.claims_file import ClaimsFile, parse_claims
from engcmp_assets.kernel.claims.records import Claim
from engcmp_assets.kernel.claims.words import claim_sentence
from engcmp_assets.kernel.names import ALL
from engcmp_assets.kernel.study import load_study
from engcmp_assets.publication.claims import headline
from engcmp_assets.publication.formats import number
from engcmp_resources.errors import EngcmpError
from engcmp_resources.places import home_folder, study_names

NOT_ALL_ACCEPTED = 3
_STATED = "by the facts that the file states, which nothing proves"


@click.command(
    epilog="Example: engcmp claims --example --study smollm2-cpu > claims.json, change them, then engcmp claims claims.json"
)
@click.argument("file", type=PathArgument(), required=False)
@click.option(
    "--study", help="Whose results the claims are of; by default the file's `study`, or the one that was measured."
)
@click.option(
    "--example", is_flag=True, help="Print the study's own headlines as a file of claims, each of which is accepted."
)
@click.option("--json", "as_json", is_flag=True, help="For machines: one JSON object on standard output.")
def claims(file: Path | None, study: str | None, example: bool, as_json: bool) -> int:
    """Hold each claim of FILE (TOML or JSON) against what was measured: accepted, rewritten, or refused.

    A claim is data: arms, measure, population, estimate, interval, floor, verdict, evidence, limits. What goes further than row files and
    receipts carry is rewritten to the sentence that they carry, or refused, with the rule, the reason and the remedy. A claim of something
    that was not measured here is refused, unless FILE states its facts ([facts.CLAIM_ID]); then it says so.
    Facts of arms that were measured here are refused.

    Exit 0 if all are accepted, 3 if any is rewritten or refused, 1 for a file that is none. `engcmp verify` proves the files themselves.
    """
    if example:
        click.echo(json.dumps(_example(_gathered(study)), indent=1))
        return 0
    if file is None:
        raise EngcmpError(
            "no file of claims is named", remedy="engcmp claims FILE, or engcmp claims --example --study STUDY for one"
        )
    given = parse_claims(_file_bytes(file), where=str(file))
    judged = _judged(given, study)
    click.echo(json.dumps(_document(judged, given), indent=1) if as_json else "\n".join(_text(judged, given)))
    return 0 if all(one.outcome == "accepted" for one in judged) else NOT_ALL_ACCEPTED


def _file_bytes(file: Path) -> bytes:
    remedy = "name a file of claims (TOML or JSON); engcmp claims --example --study STUDY writes one"
    if file.is_dir():
        raise EngcmpError("that is a folder, not a file of claims", where=str(file), remedy=remedy)
    try:
        return file.read_bytes()
    except OSError as error:
        raise EngcmpError(f"the claims cannot be read: {error.strerror}", where=str(file), remedy=remedy) from error


def _judged(given: ClaimsFile, study: str | None) -> list[Judged]:
    _refuse_facts_of_measured(given)
    own = [one for one in given.claims if one.claim_id not in given.facts]
    facts = dict(given.facts)
    if own:
        with beside_no_timed_cell("claims"):
            known = StudyFacts(_gathered(study or given.study))
            facts |= {one.claim_id: known.of(one) for one in own}
    return [judge(one, facts[one.claim_id]) for one in given.claims]


def _refuse_facts_of_measured(given: ClaimsFile) -> None:
    """Raise EngcmpError where a file states facts of arms that were measured here: what was measured speaks for itself."""
    if not given.facts:
        return
    for name in _measured_here():
        arms = {str(arm) for arm in load_study(name).protocol.arm_keys}
        for one in given.claims:
            if one.claim_id in given.facts and {one.candidate, one.baseline or one.candidate} <= arms:
                raise EngcmpError(
                    f"facts are stated of {one.claim_id}, whose arms were measured here in study {name}",
                    where=f"facts.{one.claim_id}", remedy="leave them out: the row files and receipts are looked at",
                )  # fmt: skip


def _measured_here() -> list[str]:
    home = home_folder()
    return [name for name in study_names() if (home / "heads" / name).is_dir()]


def _gathered(study: str | None) -> Gathered:
    home, measured = home_folder(), _measured_here()
    if study is None and len(measured) != 1:
        there = f"measured here: {', '.join(measured)}" if measured else "none was measured here yet"
        raise EngcmpError(f"the claims name no study; {there}", where=str(home), remedy="engcmp claims --study STUDY")
    loaded, store = load_study(study or measured[0]), Evidence(home)
    reached = reached_from_heads(store, loaded.folder.name)
    if not reached.heads:
        raise EngcmpError(
            f"no result of {loaded.folder.name} in this store",
            where=str(home),
            remedy=f"engcmp run {loaded.folder.name}",
        )
    for problem in (*reached.problems, *link_problems(store, reached)):
        raise EngcmpError(
            f"the evidence is damaged: {problem.what}", where=problem.file, remedy=f"engcmp verify {loaded.folder.name}"
        )
    return gather(loaded, store, reached)


def _example(found: Gathered) -> dict[str, Any]:
    """The headlines of the compared pairs as the pages state them, with the receipts that they rest on."""
    known = Known(found)
    stated = [
        known.claim(pair, figure)
        for pair in found.pairs
        if pair["state"] == "compared"
        and (figure := headline(pair["figures"])) is not None
        and figure["population"] == ALL
        and number(figure["value"]) is not None
    ]
    return {"study": found.study.folder.name, "claims": [_plain(one) for one in stated]}


def _plain(claim: Claim) -> dict[str, Any]:
    return claim.model_dump(mode="json", exclude_defaults=True)


def _text(judged: list[Judged], given: ClaimsFile) -> Iterator[str]:
    for one in judged:
        beside = f" ({_STATED})" if one.claim.claim_id in given.facts else ""
        yield f"{one.claim.claim_id}: {one.outcome}{beside}"
        yield f"  said: {claim_sentence(one.claim)}"
        yield from (f"  {found.rule_id} ({found.finding}): {found.what}; {found.remedy}" for found in one.findings)
        if one.outcome == "rewritten" and one.left is not None:
            yield f"  left: {claim_sentence(one.left)}"
    counts = Counter(one.outcome for one in judged)
    yield f"{len(judged)} claims: {', '.join(f'{counts[word]} {word}' for word in ('accepted', 'rewritten', 'refused'))}"


def _document(judged: list[Judged], given: ClaimsFile) -> dict[str, Any]:
    return {
        "claims": [
            {
                "claim_id": one.claim.claim_id,
                "outcome": one.outcome,
                "by": "facts of the file" if one.claim.claim_id in given.facts else "what was measured",
                "said": claim_sentence(one.claim),
                "findings": [
                    {
                        "rule": found.rule_id,
                        "finding": found.finding,
                        "action": found.action,
                        "what": found.what,
                        "remedy": found.remedy,
                    }
                    for found in one.findings
                ],
                "left": _left(one),
            }
            for one in judged
        ]
    }


def _left(one: Judged) -> Mapping[str, Any] | None:
    return None if one.left is None else {"said": claim_sentence(one.left), "claim": _plain(one.left)}
