"""`engcmp plan`: everything that a study asks for, counted before anything is started. It needs no GPU and no Dagster instance."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterable, Sequence
from typing import Any

import click

from engcmp_assets.commands.plan_sources import size_text, sources_document, sources_line
from engcmp_assets.kernel.blocks import is_asked
from engcmp_assets.kernel.names import ENGINE_VERSIONS
from engcmp_assets.kernel.planning import AnyPanel, ArmPlan, arm_plan, declared_panel, reference_bytes
from engcmp_assets.kernel.records import ArmKey, Missing, plain
from engcmp_assets.kernel.study import Study, load_study
from engcmp_assets.kernel.work import Session, Step, output_blob, prepare, resting_on
from engcmp_assets.publication.formats import counted
from engcmp_assets.steps import steps_of
from engcmp_resources.errors import EngcmpError
from engcmp_resources.places import home_folder
from engcmp_resources.store import Store

DONE, TO_DO, OTHER, AGAIN = "done", "to do", "made under another freeze", "to be made again"


@click.command(epilog="Example: engcmp plan smollm2-cpu")
@click.argument("study")
@click.option("--arm", "arms", multiple=True, help="Only this arm (may be given more than once). Default: all arms.")
@click.option("--json", "as_json", is_flag=True, help="For machines: one JSON object on standard output.")
def plan(study: str, arms: Sequence[str], as_json: bool) -> None:
    """Print what STUDY asks for: launches, captures, requests, disk and hours, and what is done already. Nothing is started."""
    document = plan_document(load_study(study), arms)
    click.echo(json.dumps(document, indent=1) if as_json else "\n".join(_lines(document)))


def plan_document(study: Study, arms: Sequence[str] = ()) -> dict[str, Any]:
    """The plan as plain JSON types. What cannot be counted is `{"missing": REASON}`. Raises EngcmpError for an unknown arm."""
    protocol = study.protocol
    chosen = [protocol.require_arm(text) for text in arms] or list(protocol.arm_keys)
    panels = {name: _panel(study, name) for name in protocol.panels}
    plans = [arm_plan(protocol, arm, panels) for arm in chosen]
    store = Store(home_folder(), read_only=True)
    disk = {
        "rows_bytes": _known(rows.bytes for one in plans for launch in one.launches for rows in launch.captures),
        "reference_bytes": _known(reference_bytes(panel) for panel in panels.values()),
        "free_bytes": _free_bytes(store),
        "says": "rows where every repeat differs; repeats that agree bit for bit share their files",
    }
    session = Session(study, store, "plan", lambda _text: None)
    per_arm = {str(arm): _states(session, arm) for arm in chosen}
    return {
        "study": protocol.study,
        "frozen": _freeze(study),
        "arms": [_arm_document(one) | {"artifacts": per_arm[one.arm]} for one in plans],
        "study_wide": _states(session, None),
        "disk": disk,
        "sources": sources_document(study, store, chosen),
        "gpu_hours": _known(launch.hours for one in plans for launch in one.launches),
        "rates": {name: rates.model_dump() for name, rates in protocol.rates.items()},
    }


def _panel(study: Study, name: str) -> AnyPanel:
    try:
        return study.panel(name)
    except EngcmpError as error:
        return declared_panel(study.protocol.panel_plan(name)) or Missing(f"panel {name}: {error.what}")


def _freeze(study: Study) -> dict[str, Any]:
    try:
        study.require_frozen()
    except EngcmpError as error:
        return {"sha256": None, "why": error.what}
    return {"sha256": study.frozen_sha256, "why": None}


def _states(session: Session, arm: ArmKey | None) -> dict[str, str]:
    """Each artifact that is asked of the arm (None: of the study), and whether it is there as the protocol asks for it now."""
    study = session.study
    steps = [step for step in steps_of(study) if step.per_arm == (arm is not None) and step.artifact != ENGINE_VERSIONS]
    asked = [step for step in steps if arm is None or is_asked(study.protocol, arm, step.artifact)]
    return {step.artifact: _state(session, step, arm) for step in asked}


def _state(session: Session, step: Step, arm: ArmKey | None) -> str:
    """As `engcmp verify` sees it, by what receipts say: of this freeze, these versions, parameters and inputs, every file here."""
    try:
        done = session.sound(step.artifact, arm)
    except EngcmpError:  # damaged: it is made anew
        return TO_DO
    if done is None:
        return TO_DO
    if done.receipt["frozen_sha256"] != (session.study.frozen_sha256 if session.study.frozen else None):
        return OTHER
    try:
        work = prepare(session, step, arm)
    except EngcmpError:  # an input is not there
        return AGAIN
    same = (done.receipt["task_key"], done.receipt["iterations"]) == (
        work.task_key,
        resting_on(session.study, step, arm),
    )
    blobs = [output_blob(done.receipt, output["name"]) for output in done.receipt["outputs"]]
    return DONE if same and all(session.store.holds(one) for one in blobs) else AGAIN


def _free_bytes(store: Store) -> int:
    there = next(folder for folder in (store.home, *store.home.parents) if folder.is_dir())
    return shutil.disk_usage(there).free


def _arm_document(one: ArmPlan) -> dict[str, Any]:
    found: dict[str, Any] = plain(one)
    for document, launch in zip(found["launches"], one.launches, strict=True):
        document["bytes"] = _plain(launch.bytes)
    return found | {"hours": _known(launch.hours for launch in one.launches), "rates_of": one.rates_of}


def _plain(value: Any) -> Any:
    return value.as_json() if isinstance(value, Missing) else value


def _known(values: Iterable[float | Missing]) -> dict[str, Any]:
    """The sum of what is known, and why the rest is not: each reason once."""
    found = list(values)
    why = dict.fromkeys(one.reason for one in found if isinstance(one, Missing))
    return {"known": sum(one for one in found if not isinstance(one, Missing)), "unknown": list(why)}


# ---------------------------------------------------------------- in words


def _lines(document: dict[str, Any]) -> list[str]:
    frozen = document["frozen"]
    head = f"frozen as {frozen['sha256']}" if frozen["sha256"] else f"not to be run as it is: {frozen['why']}"
    lines = [f"{document['study']}: {counted(len(document['arms']), 'arm')}, {head}", ""]
    for arm in document["arms"]:
        lines += [f"{arm['arm']}  ({_done_words(arm['artifacts'])})"]
        lines += [f"  {line}" for line in _launch_lines(arm["launches"])]
        borrowed = arm["rates_of"] if arm["hours"]["known"] else None
        lines += [f"  hours: {_hours(arm['hours'])}{_borrowed(borrowed)}", ""]
    disk = document["disk"]
    lines += [
        f"study-wide: {_done_words(document['study_wide'])}",
        f"disk: rows {_sizes(disk['rows_bytes'])} at most ({disk['says']}), reference {_sizes(disk['reference_bytes'])}; "
        f"{_size(disk['free_bytes'])} free",
        f"sources: {sources_line(document['sources'])}",
        f"expected GPU hours: {_hours(document['gpu_hours'])}" + _borrowed(_lent(document), of="some arms' are"),
    ]
    lines += [f"  rates of {name}: {rates['basis']}" for name, rates in document["rates"].items()]
    if disk["rows_bytes"]["known"] + document["sources"]["missing_bytes"]["known"] > disk["free_bytes"]:
        lines.append("the disk may become full: each capture is refused before it starts where its own rows do not fit")
    return lines


def _lent(document: dict[str, Any]) -> str | None:
    """The arms whose rates are used for others, if any."""
    arms = [one for one in document["arms"] if one["rates_of"] and one["hours"]["known"]]
    return " and ".join(dict.fromkeys(str(one["rates_of"]) for one in arms)) or None


def _borrowed(arm: str | None, *, of: str = "") -> str:
    return f" ({of}{' ' if of else ''}worked out at the rates of {arm}, borrowed)" if arm else ""


def _launch_lines(launches: Sequence[dict[str, Any]]) -> list[str]:
    """One line for each kind of launch: those that ask the same stand together."""
    lines = []
    alike = itertools.groupby(
        launches, key=lambda one: {name: value for name, value in one.items() if name != "number"}
    )
    for launch, same in alike:
        numbers = [one["number"] for one in same]
        count = len(numbers)
        told = "long replies (tasks apart)" if numbers[0] == 1 else "long replies, a second time"
        what = {"scoring": f"scoring, {launch['path']}", "replies": told}.get(launch["mode"], "serving")
        asked = f"requests {_amount(launch['requests'])}, prompt tokens {_amount(launch['prompt_tokens'])}"
        if launch["output_tokens"] != 0:
            asked += f", output tokens {_amount(launch['output_tokens'])}"
        lines.append(f"{count} x {what}: {launch['repeats']} repeats, {asked}")
        lines += [
            f"    {one['panel']}: rows {_amount(one['rows'])}, at most {_size(one['bytes'])}"
            for one in launch["captures"]
        ]
    return lines


def _done_words(artifacts: dict[str, str]) -> str:
    counts = {state: sum(1 for one in artifacts.values() if one == state) for state in (DONE, OTHER, AGAIN)}
    words = [f"{counts[DONE]} of {len(artifacts)} artifacts done"]
    return ", ".join([*words, *(f"{counts[state]} {state}" for state in (OTHER, AGAIN) if counts[state])])


def _amount(value: Any, form: str = ",") -> str:
    return f"unknown: {value['missing']}" if isinstance(value, dict) else format(value, form)


def _size(value: Any) -> str:
    return f"unknown: {value['missing']}" if isinstance(value, dict) else size_text(value)


def _sizes(told: dict[str, Any]) -> str:
    return _size(told["known"]) + _unknown(told)


def _hours(told: dict[str, Any]) -> str:
    if not told["known"] and told["unknown"]:
        return f"unknown: {'; '.join(told['unknown'])}"
    return f"{told['known']:.1f}{_unknown(told)}"


def _unknown(told: dict[str, Any]) -> str:
    return f" and an unknown rest ({'; '.join(told['unknown'])})" if told["unknown"] else ""
