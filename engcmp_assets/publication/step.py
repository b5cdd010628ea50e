"""publication: SUMMARY.json, and the pages that are made from it and from nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from engcmp_assets.kernel.declared_words import words_of_study
from engcmp_assets.kernel.measures import MEASURES
from engcmp_assets.kernel.names import ALL
from engcmp_assets.kernel.receipts import Column
from engcmp_assets.kernel.records import ArmKey, Check, Figure, Interval, Missing
from engcmp_assets.kernel.reply_measures import REPLY_MEASURES
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.throughput.ratios import COMPARED, SCHEDULED
from engcmp_assets.kernel.throughput.startup_measures import STARTUP_IDS
from engcmp_assets.kernel.work import Made, Product, Step, Use, Work
from engcmp_assets.publication.formats import arm_remarks
from engcmp_assets.publication.pages import SCHEMA, render_pages, render_plot
from engcmp_assets.publication.site.evidence import evidence_document, uses
from engcmp_assets.publication.site.labels import labels_of
from engcmp_assets.publication.site.site import render_site
from engcmp_resources.canonical import canonical_bytes

# Of SUMMARY.json the list `arms`, one line for each arm of the protocol; what stands beside it is said in the description.
COLUMNS = (
    Column("arm", "str", "1", "The arm, as checkpoint/engine@version"),
    Column("checkpoint", "str", "1", "Name of the checkpoint"),
    Column("engine", "str", "1", "Name of the engine"),
    Column("version", "str", "1", "Version of the engine"),
    Column("state", "str", "1", "measured, refused (its last run ended before it had figures), or not measured"),
    Column(
        "reason", "str", "1", "Why it has no figures: what it was refused for and when; empty where it was measured"
    ),
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
    Column(
        "startup",
        "object",
        "1",
        "Ready times, memory, a repeated prompt and the thinking switch, with their figures. Only where the study measures them",
    ),
    Column(
        "replies",
        "object",
        "1",
        "Each group of long replies: how they ended, its figures, what was not graded and why. Only where the study makes them",
    ),
)


def parameters(study: Study, _arm: ArmKey | None) -> Mapping[str, Any]:
    """The words of the protocol that the pages quote."""
    protocol = study.protocol
    return {
        "title": protocol.title, "question": protocol.question, "limits": protocol.limits,
        "arms": [str(arm) for arm in protocol.arm_keys], "reference": protocol.reference.model_dump(),
        "frozen_sha256": study.frozen_sha256,
    } | ({"known": known} if (known := words_of_study(protocol)[len(protocol.limits) :]) else {})  # fmt: skip


def summary_document(work: Work) -> dict[str, Any]:
    """SUMMARY.json: everything that a page shows."""
    protocol = work.study.protocol
    compared = json.loads(work.file("comparisons", "comparisons.json").read_bytes())
    arms = [_arm(work, arm, compared.get("refused", {})) for arm in protocol.arm_keys]
    panel, plan = next(iter(protocol.panels.items()))
    primary = (plan.primary or plan.measures)[0]
    named = [name for plan in protocol.panels.values() for name in (*plan.measures, *plan.pair_measures)]
    speeds = (*COMPARED, "decode_first1_tok_s") if protocol.throughput else ()
    speeds = (*speeds, *(SCHEDULED if protocol.throughput and protocol.throughput.open_loop else ()))
    speeds = (*speeds, *(STARTUP_IDS if protocol.startup else ()))
    speeds = (*speeds, *(one.id for one in REPLY_MEASURES if protocol.long_replies))
    speeds = (*speeds, *(("gap_closed",) if any(plan.closes for plan in protocol.comparisons) else ()))
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
        "comparisons": compared["pairs"],
        **({"before_freeze": early} if (early := compared.get("before_freeze")) else {}),
        "limits": words_of_study(protocol),
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
    why = {arm["arm"]: _why(arm) for arm in summary["arms"] if arm["reason"]}
    markdown, html = render_pages(summary, plot_href="plot.png")
    evidence = evidence_document(work, summary)
    # As a reader has them: what is rendered again from the two files is the same, byte for byte.
    site = render_site(*(json.loads(canonical_bytes(one)) for one in (summary, evidence)))
    labels = labels_of(evidence["launches"])
    broken = {
        one.label: f"{len(one.builds)} builds; also {', '.join(one.also) or 'none'}" for one in labels if not one.holds
    }
    return Made(
        products=[
            Product("SUMMARY.json", "json", canonical_bytes(summary), rows=len(summary["arms"]), columns=COLUMNS),
            Product("SUMMARY.md", "md", markdown.encode("utf-8"), role="view"),
            Product("SUMMARY.html", "html", html.encode("utf-8"), role="view"),
            Product("plot.png", "png", render_plot(summary), role="view"),
            Product("EVIDENCE.json", "json", canonical_bytes(evidence), rows=len(evidence["chains"])),
            *(
                Product(f"site/{name}", name.rpartition(".")[2], data, role="view")
                for name, data in sorted(site.items())
            ),
        ],
        figures=[_published(figure) for arm in measured for figure in arm["figures"] if figure["population"] == ALL],
        checks=[
            Check(
                "every_arm_measured", len(measured) == len(summary["arms"]),
                f"{len(measured)} of {len(summary['arms'])} arms are measured", {"measured": len(measured)} | why,
            ),
            Check(
                "one_label_one_build", not broken,
                f"{len(labels) - len(broken)} of {len(labels)} labels stand for one build that has no other label",
                {"labels": len(labels)} | broken,
            ),
        ],
        details={"pairs": pairs, "frozen_sha256": work.study.frozen_sha256},
    )  # fmt: skip


def _arm(work: Work, arm: ArmKey, refused: Mapping[str, str]) -> dict[str, Any]:
    if ("summaries", str(arm)) in work.inputs:
        document: dict[str, Any] = json.loads(work.file("summaries", "summary.json", arm).read_bytes())
        return document
    state, reason = "refused", refused.get(str(arm))
    if reason is None:
        state, reason = "not measured", f"not measured yet: engcmp run {work.study.protocol.study} --arm {arm}"
    return {
        "arm": str(arm), "checkpoint": arm.checkpoint, "engine": arm.engine, "version": arm.version,
        "state": state, "reason": reason, "figures": [],
    }  # fmt: skip


def _why(arm: Mapping[str, Any]) -> str:
    """Why an arm has no figures, where its state does not stand beside it."""
    return f"refused: {arm['reason']}" if arm["state"] == "refused" else str(arm["reason"])


def _plot_row(arm: Mapping[str, Any], panel: str, measure: str) -> dict[str, Any]:
    figure = next(
        (f for f in arm["figures"] if (f["panel"], f["measure"], f["population"]) == (panel, measure, ALL)), None
    )
    if figure is None:
        return {
            "label": arm["arm"],
            "value": {"missing": _why(arm) if arm["reason"] else "; ".join(arm_remarks(arm)) or "no such figure"},
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


def step(study: Study) -> Step:
    """The step of a study: what its pages show beside the figures depends on its blocks."""
    return Step(
        artifact="publication",
        title="Publication",
        description=(
            "What a reader gets of the study: SUMMARY.json with every figure of every arm and pair, EVIDENCE.json with what stands behind "
            "them, and the pages and the site that are made from these two and nothing else. "
            "Each figure's id leads back to its rows, launch and frozen protocol with `engcmp trace`. "
            "The columns below are those of `arms` in SUMMARY.json, one line for each arm; beside it stand "
            "`comparisons` (each pair: differences, intervals, floors, verdicts), `terms` (each measure: unit and definition), `panels`, "
            "`limits` and the rows of the `plot`."
        ),
        group="results",
        kinds=("json", "html"),
        version="12",
        uses=(
            Use("frozen_protocol", "study", ()),
            Use("summaries", "every arm", ("summary.json",)),
            Use("comparisons", "study", ("comparisons.json",)),
            *uses(study),
        ),
        per_arm=False,
        parameters=parameters,
        make=make,
        columns=COLUMNS,
        checks={
            "every_arm_measured": "Every arm of the protocol has figures",
            "one_label_one_build": "Each label of a version or a checkpoint stands for one build, and that build for no other label",
        },
    )
