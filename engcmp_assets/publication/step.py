"""publication: SUMMARY.json, and the pages that are made from it and from nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from engcmp_assets.kernel.measures import MEASURES
from engcmp_assets.kernel.names import ALL
from engcmp_assets.kernel.receipts import Column
from engcmp_assets.kernel.records import ArmKey, Check, Figure, Interval, Missing
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.throughput.ratios import COMPARED
from engcmp_assets.kernel.work import Made, Product, Step, Use, Work
from engcmp_assets.publication.pages import SCHEMA, render_pages, render_plot
from engcmp_resources.canonical import canonical_bytes

# Of SUMMARY.json the list `arms`, one line for each arm of the protocol; what stands beside it is said in the description.
COLUMNS = (
    Column("arm", "str", "1", "The arm, as checkpoint/engine@version"),
    Column("checkpoint", "str", "1", "Name of the checkpoint"),
    Column("engine", "str", "1", "Name of the engine"),
    Column("version", "str", "1", "Version of the engine"),
    Column("state", "str", "1", "measured, or not measured"),
    Column("reason", "str", "1", "Why it has no figures and how to measure it; empty where it was measured"),
    Column(
        "runs", "int", "run", "Passes over the texts: launches times repeats. This and what follows: of measured arms"
    ),
    Column("launches", "int", "launch", "Starts of the engine for the score path that is shown"),
    Column("repeats", "int", "run", "Runs within a launch"),
    Column("rows", "int", "row", "Rows of the first panel"),
    Column("windows", "int", "window", "Texts of the first panel"),
    Column(
        "score_path",
        "str",
        "1",
        "How the rows were computed: prefill = a whole text in one batch, decode = one token at a time",
    ),
    Column("file_bytes", "int", "byte", "Size of the checkpoint's file"),
    Column(
        "figures",
        "object",
        "1",
        "Each measure on each population: value, unit, interval, floor, and the id for engcmp trace",
    ),
    Column(
        "speed",
        "object",
        "1",
        "Each cell of the speed block: how it was measured, its flags, and its figures. Only where the study measures speed",
    ),
)


def parameters(study: Study, _arm: ArmKey | None) -> Mapping[str, Any]:
    """The words of the protocol that the pages quote."""
    protocol = study.protocol
    return {
        "title": protocol.title, "question": protocol.question, "limits": protocol.limits,
        "arms": [str(arm) for arm in protocol.arm_keys], "reference": protocol.reference.model_dump(),
        "frozen_sha256": study.frozen_sha256,
    }  # fmt: skip


def summary_document(work: Work) -> dict[str, Any]:
    """SUMMARY.json: everything that a page shows."""
    protocol = work.study.protocol
    arms = [_arm(work, arm) for arm in protocol.arm_keys]
    pairs = json.loads(work.file("comparisons", "comparisons.json").read_bytes())["pairs"]
    panel, plan = next(iter(protocol.panels.items()))
    primary = (plan.primary or plan.measures)[0]
    named = [name for plan in protocol.panels.values() for name in (*plan.measures, *plan.pair_measures)]
    speeds = (*COMPARED, "decode_first1_tok_s") if protocol.throughput else ()
    terms = [MEASURES[name] for name in dict.fromkeys([*named, *speeds])]
    return {
        "schema": SCHEMA,
        "study": protocol.study,
        "title": protocol.title,
        "question": protocol.question,
        "frozen_sha256": work.study.frozen_sha256,
        "reference": {
            "label": protocol.reference.label, "precision": protocol.reference.precision, "path": "numpy forward pass",
        },
        "terms": [
            {
                "measure": term.id, "version": term.version, "unit": term.unit, "title": term.title,
                "definition": term.definition, "better": term.better,
            }
            for term in terms
        ],
        "panels": [
            {
                "panel": name, "label": plan.label, "reference": plan.reference,
                "score_path": " and ".join(path for path, one in protocol.capture.plans if name in one.panels),
            }
            for name, plan in protocol.panels.items()
        ],
        "arms": arms,
        "comparisons": pairs,
        "limits": list(protocol.limits.values()),
        "plot": {
            "title": "Distance from the reference", "unit": f"{MEASURES[primary].unit} ({primary})",
            "rows": [_plot_row(arm, panel, primary) for arm in arms],
        },
    }  # fmt: skip


def make(work: Work) -> Made:
    """Write SUMMARY.json and render the pages from it."""
    summary = summary_document(work)
    pairs = {pair["pair_id"]: pair["state"] for pair in summary["comparisons"]}
    measured = [arm for arm in summary["arms"] if arm["state"] == "measured"]
    why = {arm["arm"]: arm["reason"] for arm in summary["arms"] if arm["reason"]}
    markdown, html = render_pages(summary, plot_href="plot.png")
    return Made(
        products=[
            Product("SUMMARY.json", "json", canonical_bytes(summary), rows=len(summary["arms"]), columns=COLUMNS),
            Product("SUMMARY.md", "md", markdown.encode("utf-8"), role="view"),
            Product("SUMMARY.html", "html", html.encode("utf-8"), role="view"),
            Product("plot.png", "png", render_plot(summary), role="view"),
        ],
        figures=[_published(figure) for arm in measured for figure in arm["figures"] if figure["population"] == ALL],
        checks=[
            Check(
                "every_arm_measured", len(measured) == len(summary["arms"]),
                f"{len(measured)} of {len(summary['arms'])} arms are measured", {"measured": len(measured)} | why,
            )
        ],
        details={"pairs": pairs, "frozen_sha256": work.study.frozen_sha256},
    )  # fmt: skip


def _arm(work: Work, arm: ArmKey) -> dict[str, Any]:
    if ("summaries", str(arm)) in work.inputs:
        document: dict[str, Any] = json.loads(work.file("summaries", "summary.json", arm).read_bytes())
        return document
    reason = f"not measured yet: engcmp run {work.study.protocol.study} --arm {arm}"
    return {
        "arm": str(arm), "checkpoint": arm.checkpoint, "engine": arm.engine, "version": arm.version,
        "state": "not measured", "reason": reason, "figures": [],
    }  # fmt: skip


def _plot_row(arm: Mapping[str, Any], panel: str, measure: str) -> dict[str, Any]:
    figure = next(
        (f for f in arm["figures"] if (f["panel"], f["measure"], f["population"]) == (panel, measure, ALL)), None
    )
    if figure is None:
        return {
            "label": arm["arm"],
            "value": {"missing": arm["reason"]},
            "low": None,
            "high": None,
            "group": arm["checkpoint"],
        }
    ends = figure["interval"]
    return {
        "label": arm["arm"], "value": figure["value"], "low": ends.get("low"), "high": ends.get("high"), "group": arm["checkpoint"],
    }  # fmt: skip


def _published(figure: Mapping[str, Any]) -> Figure:
    """A figure of a summary as a record again, for the receipt."""
    value, interval = figure["value"], figure["interval"]
    return Figure(
        **{
            **figure,
            "value": Missing(value["missing"]) if isinstance(value, dict) else value,
            "interval": Missing(interval["missing"]) if "missing" in interval else Interval(**interval),
        }
    )


STEP = Step(
    artifact="publication",
    title="Publication",
    description=(
        "What a reader gets of the study: SUMMARY.json with every figure of every arm and pair, and the Markdown and HTML pages that are "
        "made from it and nothing else. Each figure's id leads back to its rows, launch and frozen protocol with `engcmp trace`. The "
        "columns below are those of `arms` in SUMMARY.json, one line for each arm; beside it stand `comparisons` (each pair: differences, "
        "intervals, floors, verdicts), `terms` (each measure: unit and definition), `panels`, `limits` and the rows of the `plot`."
    ),
    group="results",
    kinds=("json", "html"),
    version="4",
    uses=(
        Use("frozen_protocol", "study", ()),
        Use("summaries", "every arm", ("summary.json",)),
        Use("comparisons", "study", ("comparisons.json",)),
    ),
    per_arm=False,
    parameters=parameters,
    make=make,
    columns=COLUMNS,
    checks={"every_arm_measured": "Every arm of the protocol has figures"},
)
