"""audit: the whole audit of a study as an artifact, made in a confined process from row files and receipts alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from engcmp_assets.audit.confinement import run_confined
from engcmp_assets.audit.page import findings_page
from engcmp_assets.kernel.names import AUDIT, CELLS, EVENTS, LAUNCH, REPLIES, REPLY_CHECKS, SERVING, captured_rows
from engcmp_assets.kernel.plots import bars
from engcmp_assets.kernel.receipts import Column
from engcmp_assets.kernel.records import ArmKey, Check
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.tables import parquet_bytes
from engcmp_assets.kernel.work import Made, Product, Step, Use, Work
from engcmp_resources.canonical import canonical_bytes

FINDINGS = "findings.json"
COLUMNS = (
    Column("check", "str", "1", "What was looked for"),
    Column("outcome", "str", "1", "holds; narrowed: it holds of less than is said; corrected: it does not hold"),
    Column("about", "str", "1", "The arm, panel, pair or file that a fault is in; empty for a check that holds"),
    Column("what", "str", "1", "What was found; for a check that holds, how it was looked at"),
    Column("remedy", "str", "1", "What to do about it; empty for a check that holds"),
)


def parameters(study: Study, _arm: ArmKey | None) -> Mapping[str, Any]:
    """The rules by which figures are read."""
    return {
        "study": study.protocol.study,
        "reading_rules": [rule.model_dump() for rule in study.protocol.reading_rules],
    }


def make(work: Work) -> Made:
    """Run the audit in a confined process, and lay out what it says."""
    report = run_confined(work.study.protocol.study, work.store.home, work.say)
    return audit_made(report)


def audit_made(report: Mapping[str, Any]) -> Made:
    """The artifact of a report."""
    table = _table(report)
    counts = Counter(one["outcome"] for one in report["claims"])
    words = ("holds", "narrowed", "corrected")
    plot = bars(
        "Published statements of pairs, by what the audit leaves of them", list(words),
        [float(counts[word]) for word in words], unit="statements",
    )  # fmt: skip
    faults = [f"{one['about']}: {one['what']}" for one in report["found"]]
    narrowed = counts["narrowed"] + counts["corrected"]
    return Made(
        products=[
            Product(FINDINGS, "json", canonical_bytes(report)),
            Product("FINDINGS.md", "md", findings_page(report).encode("utf-8"), role="view"),
            Product(
                "findings.parquet", "parquet", parquet_bytes(COLUMNS, table), rows=len(table["check"]), columns=COLUMNS
            ),
            Product("plot.png", "png", plot, role="view"),
        ],
        checks=[
            Check("no_fault_found", not faults, "; ".join(faults) or "No check found a fault", {"faults": len(faults)}),
            Check(
                "claims_hold", not narrowed,
                f"{counts['holds']} of {len(report['claims'])} published statements of pairs hold as they are said",
                {word: counts[word] for word in words},
            ),
        ],
        details={"in force": report["confined"]["in force"], "checks": {one["check"]: one["outcome"] for one in report["checks"]}},
    )  # fmt: skip


def _table(report: Mapping[str, Any]) -> dict[str, list[Any]]:
    lines = [
        (one["check"], one["outcome"], "", f"{one['how']}: {one['looked_at']}", "")
        for one in report["checks"]
        if one["outcome"] == "holds"
    ]
    lines += [tuple(one[column.name] for column in COLUMNS) for one in report["found"]]
    return {column.name: [line[place] for line in lines] for place, column in enumerate(COLUMNS)}


def step(study: Study) -> Step:
    """The step of a study: it rests on everything that the study has."""
    protocol = study.protocol
    speed = (
        (Use(SERVING, "every arm"), Use(EVENTS, "every arm"), Use(CELLS, "every arm")) if protocol.throughput else ()
    )
    replies = (Use(REPLIES, "every arm"), Use(REPLY_CHECKS, "every arm")) if protocol.long_replies else ()
    return Step(
        artifact=AUDIT,
        title="Audit",
        description=(
            "The study looked at again by a process that can reach no engine and write nothing: each figure made again from its row files, "
            "every capture and launch searched for faults that users of such tools have met, and every published statement of a pair held "
            "against what its evidence carries. FINDINGS.md says what holds and how that was checked, what is narrowed, what is corrected."
        ),
        group="results",
        kinds=("json", "parquet"),
        version="7",
        uses=(
            Use("frozen_protocol", "study"),
            *(Use(name, "every arm") for name in ("sources", "prompt_set", "reference_rows", LAUNCH)),
            *(Use(captured_rows(name), "every arm") for name in protocol.panels),
            *(Use(name, "every arm") for name in ("scores", "tails", "summaries")),
            *speed,
            *replies,
            Use("comparisons", "study"),
            Use("publication", "study"),
        ),
        per_arm=False,
        parameters=parameters,
        make=make,
        columns=COLUMNS,
        checks={
            "no_fault_found": "No capture, launch, panel or pair has a fault that the audit looks for",
            "claims_hold": "Every published figure, count and note of a pair holds as it is said",
        },
    )
