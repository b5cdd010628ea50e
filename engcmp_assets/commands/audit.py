"""`engcmp audit`, `engcmp verify` and `engcmp trace`: what an auditor runs. None needs a Dagster instance."""

from __future__ import annotations

import json
import os
import time

import click

from engcmp_assets.audit.confinement import run_confined
from engcmp_assets.audit.event_claims import EventCounts
from engcmp_assets.audit.page import findings_page
from engcmp_assets.audit.recompute import Evidence
from engcmp_assets.audit.trace import figures_of, trace_text
from engcmp_assets.audit.trace import trace as find_trace
from engcmp_assets.audit.verify import Verification
from engcmp_assets.audit.verify import verify as verify_study
from engcmp_assets.commands.sharing import beside_no_timed_cell
from engcmp_assets.kernel.progress import stderr_line
from engcmp_assets.kernel.records import plain
from engcmp_assets.kernel.study import load_study
from engcmp_resources.errors import EngcmpError
from engcmp_resources.object_store import VARIABLE
from engcmp_resources.places import home_folder
from engcmp_resources.shared_heads import pull
from engcmp_resources.store import Store


@click.command(epilog="Example: engcmp verify smollm2-cpu")
@click.argument("study")
@click.option("--json", "as_json", is_flag=True, help="For machines: one JSON object on standard output.")
@click.option("--no-events", is_flag=True, help="Leave out Dagster's event log, in which no result lies.")
def verify(study: str, as_json: bool, no_events: bool) -> int:
    """Prove STUDY's results offline: every hash, the chain to the frozen hash, and every figure again from its rows.

    What Dagster's event log shows is held against the receipts too: a forged or changed event is a problem. With an object store
    (ENGCMP_OBJECT_STORE), what is not on this machine is fetched first.
    Exit 0 if all holds, 1 if anything does not; each problem names its file.
    """
    loaded = load_study(study)
    if os.environ.get(VARIABLE):
        pull(Store(home_folder()), loaded.folder.name, files=True)
    store = _store()
    with beside_no_timed_cell("verify"):
        result = verify_study(loaded, store, stderr_line, time.monotonic_ns, with_events=not no_events)
    click.echo(json.dumps(plain(result), indent=1) if as_json else _verification_text(study, result))
    return 1 if result.problems else 0


@click.command(epilog="Example: engcmp audit smollm2-cpu > FINDINGS.md")
@click.argument("study")
@click.option("--json", "as_json", is_flag=True, help="For machines: one JSON object on standard output.")
def audit(study: str, as_json: bool) -> int:
    """Look at STUDY again from row files and receipts alone: what holds, what is narrowed, what is corrected.

    It proves all that `engcmp verify` proves, searches captures and launches for known faults, and holds each published figure of a
    pair against its evidence. It runs in a process that can reach no engine and write nothing, and says what kept it from that.
    Exit 0 if all holds, 1 if anything does not. The asset `audit` is the same, kept with a receipt.
    """
    report = run_confined(load_study(study).folder.name, _store().home, stderr_line)
    click.echo(json.dumps(report, indent=1) if as_json else findings_page(report), nl=as_json)
    return 1 if report["found"] or any(one["outcome"] != "holds" for one in report["claims"]) else 0


@click.command(epilog="Example: engcmp trace smollm2-cpu/q4_0/llamacpp@b11549/pa/all/kl_full")
@click.argument("figure")
@click.option(
    "--list", "list_all", is_flag=True, help="FIGURE is a study, or how ids begin: list the ids of all its figures."
)
@click.option("--json", "as_json", is_flag=True, help="For machines: one JSON object on standard output.")
def trace(figure: str, list_all: bool, as_json: bool) -> None:
    """Follow FIGURE from its value to the frozen hash: each artifact, its receipt and its files."""
    study, store = load_study(figure.split("/", 1)[0]), _store()
    if list_all:
        ids = [name for name in sorted(figures_of(store, study)) if _begins(name, figure)]
        if not ids:
            raise _nothing_listed(study.folder.name, figure, store)
        click.echo(json.dumps(ids) if as_json else "\n".join(ids))
        return
    found = find_trace(store, study, figure)
    click.echo(json.dumps(plain(found), indent=1) if as_json else trace_text(store, found))


def _nothing_listed(study: str, words: str, store: Evidence) -> EngcmpError:
    if words.strip("/") == study:
        remedy = f"`engcmp run {study}`, or set ENGCMP_HOME to where its results are"
        return EngcmpError(f"no figure of {study} in this store", where=str(store.home), remedy=remedy)
    remedy = f"`engcmp trace --list {study}` lists all"
    return EngcmpError(f"no figure whose id begins with {words}", where=str(store.home), remedy=remedy)


def _begins(figure_id: str, words: str) -> bool:
    """Whether the id begins with these whole words: `a/b` begins `a/b/c` and not `a/bc`."""
    return f"{figure_id}/".startswith(f"{words.strip('/')}/")


def _store() -> Evidence:
    home = home_folder()
    if not any((home / name).is_dir() for name in ("heads", "receipts")):
        raise EngcmpError(
            "no results here", where=str(home), remedy="`make demo`, or set ENGCMP_HOME to where they are"
        )
    return Evidence(home)


def _verification_text(study: str, result: Verification) -> str:
    if result.problems:
        lines = [f"FAILED {problem}" for problem in result.problems]
        rest = "" if result.judged else "; figures and Dagster's events, which rest on these, were not judged"
        count = len(result.problems)
        return "\n".join([*lines, f"{study}: {count} problem{'s' if count > 1 else ''}{rest}; nothing was changed"])
    lines = [
        f"{study}: verified",
        f"  {result.files} files, {result.bytes / 1e6:,.0f} MB, and {result.receipts} receipts have the hashes of their names",
        f"  {result.artifacts_recomputed} artifacts with {result.figures} figures were recomputed from the row files and agree",
        f"  every chain ends in the frozen hash {result.frozen_sha256}",
    ]
    if result.private is not None:
        lines.append(f"  {result.private}")
    if result.events is not None:
        lines.append(_events_line(result.events))
    lines += [f"  not made yet: {name}" for name in result.not_made]
    return "\n".join(lines)


def _events_line(events: EventCounts) -> str:
    some = f" ({events.collected} of receipts that `engcmp gc` removed)" if events.collected else ""
    rest = f"current artifacts without an event: {events.current_without}"
    rest += " (materialize them to see them in the UI)" if events.current_without else ""
    return f"  {events.agree} Dagster events agree with their receipts{some}; {rest}"
