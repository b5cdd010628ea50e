"""engine_versions: every release that the engines' places show, what it is for the study, and the candidates written for new ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from engcmp_assets.engine_versions.decisions import Finding
from engcmp_assets.engine_versions.look import Look, look_patiently, unreadable, write_candidates
from engcmp_assets.kernel.names import ENGINE_VERSIONS
from engcmp_assets.kernel.plots import bars
from engcmp_assets.kernel.receipts import Column
from engcmp_assets.kernel.records import ArmKey, Check, Missing
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.tables import parquet_bytes
from engcmp_assets.kernel.work import Made, Product, Step, Use, Work

COLUMNS = (
    Column("engine", "str", "1", "Engine of the study"),
    Column("tag", "str", "1", "Tag as its place shows it: a package's version, a git tag, or an image's tag"),
    Column("version", "str", "1", "Name of the engine version in arms; empty where the tag does not count"),
    Column(
        "state", "str", "1",
        "in the study, waiting for approval, declined, new, pushed again (other content), does not count, withdrawn, or gone",
    ),
    Column("why", "str", "1", "Why it is in that state; empty where the state says all"),
    Column("digest", "str", "1", "What the tag stands for: commit, image digest, or hash over the wheels' hashes"),
    Column("iteration", "str", "1", "The candidate iteration that holds it; empty for the protocol and for other tags"),
)  # fmt: skip


def parameters(study: Study, _arm: ArmKey | None) -> Mapping[str, Any]:
    """The rules by which releases are looked for."""
    return {"rules": {engine: rule.model_dump() for engine, rule in study.protocol.releases.items()}}


def make(work: Work) -> Made:
    """Look at every place, write a candidate for each new version, and keep the table of what there is."""
    looks: list[Look] = []
    written: list[str] = []
    failed: dict[str, str] = {}
    for engine in work.study.protocol.releases:
        work.say(f"looking for versions of {engine}")
        seen = look_patiently(work.study, engine)
        looks.append(seen)
        new = write_candidates(work.study, work.store, seen, work.say)
        written += new.names
        failed |= new.failed
    findings = [finding for seen in looks for finding in seen.findings]
    table = {column.name: [getattr(one, column.name) or "" for one in findings] for column in COLUMNS}
    states = Counter(one.state for one in findings)
    silent = unreadable(looks)
    repushed = [one for one in findings if one.repushed]
    gone = [one for one in findings if one.state == "gone"]
    bar: list[float | Missing] = [float(count) for count in states.values()]
    labels = [str(state) for state in states] or ["releases"]
    return Made(
        products=[
            Product(
                "engine_versions.parquet", "parquet", parquet_bytes(COLUMNS, table), rows=len(findings), columns=COLUMNS
            ),
            Product(
                "plot.png", "png", bars("Releases by state", labels, bar or [Missing("no place answered")], unit="tags"),
                role="view",
            ),
        ],
        checks=[
            Check(
                "no_tag_pushed_again", not repushed,
                _alarm(repushed) if repushed else "Every pinned tag still stands for the content that is pinned",
                {one.tag: one.digest or "" for one in repushed} or {"tags": len(findings)},
            ),
            Check(
                "pinned_tags_are_there", not gone,
                f"Gone from their place: {', '.join(one.tag for one in gone)}; what was measured of them stays" if gone
                else "Every pinned tag is still shown by its place",
                {one.tag: one.why for one in gone} or {"tags": len(findings)},
            ),
            Check(
                "every_place_answered", not silent,
                f"No answer for {', '.join(silent)}; it is asked again at the next look" if silent else "Every place answered",
                silent or {"places": len(looks)},
            ),
            Check(
                "every_new_release_pinned", not failed,
                f"No candidate for {', '.join(failed)}" if failed else "Every new release that counts has its candidate",
                failed or {"candidates": len(written)},
            ),
        ],
        flags=[] if not repushed else ["a tag was pushed again"],
        details={
            "candidates_written": written,
            "states": {str(state): count for state, count in states.items()},
        },
    )  # fmt: skip


def _alarm(repushed: list[Finding]) -> str:
    named = ", ".join(f"{one.engine} {one.tag}" for one in repushed)
    return f"Pushed again with other content: {named}. The former content stays what its arms are; the new one is a version of its own"


STEP = Step(
    artifact=ENGINE_VERSIONS,
    title="Engine versions",
    description=(
        "Every release of the study's engines that their makers show now, and what it is for this study by the protocol's rule. For a "
        "new one a candidate iteration is written, with its files pinned by hash: approve it with the job that ends in `_approve`, and "
        "its arms appear. Each materialization looks anew."
    ),
    group="versions",
    kinds=("parquet",),
    version="1",
    uses=(Use("frozen_protocol", "study", ()),),
    per_arm=False,
    parameters=parameters,
    make=make,
    columns=COLUMNS,
    checks={
        "no_tag_pushed_again": "No pinned tag stands for other content than it did when it was pinned",
        "pinned_tags_are_there": "Every pinned tag is still shown by its place",
        "every_place_answered": "Every place that releases are looked for at gave an answer",
        "every_new_release_pinned": "Every new release that counts could be pinned and has a candidate",
    },
)
