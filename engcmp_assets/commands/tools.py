"""`engcmp tools`: scenarios of tool calling, run against a server, imported from result files, and held against each other."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from engcmp_assets.commands.paths import PathArgument
from engcmp_assets.kernel.progress import stderr_line
from engcmp_assets.kernel.records import Missing, plain
from engcmp_assets.kernel.reply_lengths.paired import SignTest
from engcmp_assets.kernel.tool_calling.builtin import SCENARIOS, SUITE, SYSTEM, VERSION
from engcmp_assets.kernel.tool_calling.grading import grade
from engcmp_assets.kernel.tool_calling.self_test import check_grader
from engcmp_assets.kernel.tool_calling.suite_runs import Flips, SuiteComparison, builtin_run, compare_runs, score
from engcmp_assets.kernel.tool_calling.world import World
from engcmp_resources.canonical import canonical_bytes, parse_json
from engcmp_resources.disk import replace_visible
from engcmp_resources.errors import EngcmpError
from engcmp_resources.tool_calling import ChatSettings, Talk, hold_talks
from engcmp_resources.tool_eval.installation import COMMAND, find_tool
from engcmp_resources.tool_eval.results import read_result
from engcmp_resources.tool_eval.running import SuiteSettings, run_suite

SCHEMA = "engcmp.tool-run/1"
_HOURS_S = 6 * 3600.0
_NAMED = 40  # scenarios that a table names
_FILE = PathArgument()
_EXAMPLES = """Example: engcmp tools run --base-url http://127.0.0.1:8000 --model NAME --out runs/v1 --repeats 2

Example: engcmp tools compare --baseline runs/v1/1.json --baseline runs/v1/2.json --candidate runs/v2/1.json"""


@click.group(epilog=_EXAMPLES)
def tools() -> None:
    """Tool calling: run scenarios, import results of tool-eval-bench, compare two builds scenario by scenario."""


@tools.command(
    "import",
    short_help="Read a result file of tool-eval-bench.",
    epilog="Example: engcmp tools import RESULTS.json --out v1.json",
)
@click.argument("results", metavar="RESULTS.json", type=_FILE)
@click.option("--out", type=PathArgument(dir_okay=False), help="Write the run here, without any text.")
@click.option("--json", "as_json", is_flag=True, help="For machines: the run as one JSON object on standard output.")
def import_results(results: Path, out: Path | None, as_json: bool) -> None:
    """Read a result file of tool-eval-bench 2.8.0 or 3.0.0 (--json-file): a file of another version is refused.

    A scenario that the server's fault ended is missing, one that ran into max_tokens while thinking is capped: neither is 0.
    """
    run = read_run(results)
    if out is not None:
        replace_visible(out, canonical_bytes(run))
    click.echo(json.dumps(run, indent=1) if as_json else run_text(run, str(out or results)))


@tools.command(epilog="Example: engcmp tools compare --baseline v1.json --candidate v2.json")
@click.option("--baseline", "baselines", multiple=True, required=True, type=_FILE, help="A run; once for each repeat.")
@click.option(
    "--candidate", "candidates", multiple=True, required=True, type=_FILE, help="The same of the other build."
)
@click.option("--json", "as_json", is_flag=True, help="For machines: the comparison as one JSON object.")
def compare(baselines: Sequence[Path], candidates: Sequence[Path], as_json: bool) -> None:
    """Compare two builds scenario by scenario. Files are result files of tool-eval-bench, or runs of `engcmp tools`.

    The floor is how often a scenario flips between repeats of one build. Runs of other versions, scenarios or settings are refused.
    """
    found = compare_runs([read_run(path) for path in baselines], [read_run(path) for path in candidates])
    click.echo(json.dumps(plain(found), indent=1) if as_json else comparison_text(found))


@tools.command(
    short_help="Run a suite of scenarios.",
    epilog="Example: engcmp tools run --base-url http://127.0.0.1:8000 --model NAME --out runs/v1 --concurrency 8",
)
@click.option("--base-url", required=True, help="Address of an OpenAI-compatible server, as http://127.0.0.1:8000.")
@click.option("--model", required=True, help="Name of the model, as the server knows it.")
@click.option("--out", required=True, type=PathArgument(file_okay=False), help="Folder for 1.json, 2.json ...")
@click.option("--suite", type=click.Choice([SUITE, COMMAND]), default=SUITE, show_default=True, help="Which scenarios.")
@click.option("--command", type=PathArgument(), help=f"Where {COMMAND} is installed, if not on PATH.")
@click.option("--concurrency", type=click.IntRange(1), default=1, show_default=True, help="Scenarios at once.")
@click.option(
    "--repeats", type=click.IntRange(1), default=1, show_default=True, help="Runs, each with a seed of its own."
)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Seed of the first run.")
@click.option("--max-tokens", type=click.IntRange(1), default=16_384, show_default=True, help="Of each message.")
@click.option("--temperature", type=click.FloatRange(0), default=0.0, show_default=True)
@click.option("--no-thinking", is_flag=True, help="Ask the chat template not to think.")
def run(  # noqa: PLR0917 - click calls it by name
    base_url: str, model: str, out: Path, suite: str, command: Path | None, concurrency: int, repeats: int, seed: int,
    max_tokens: int, temperature: float, no_thinking: bool,
) -> None:  # fmt: skip
    """Run a suite: the 12 built-in scenarios, or the 88 of tool-eval-bench where you have it installed.

    A run that is there already is kept, so the same call goes on where it was stopped; one in which scenarios ended in errors is made
    again, and the old one kept as NUMBER.errors.json. Texts of replies are not written.
    """
    for number in range(1, repeats + 1):
        place = out / f"{number}.json"
        own = seed + number - 1
        asked_for = {
            "suite": suite, "model": model, "base_url": base_url, "seed": own, "concurrency": concurrency, "max_tokens": max_tokens,
            "temperature": temperature, "thinking": not no_thinking,
        }  # fmt: skip
        if place.exists() and _is_kept(place, asked_for):
            continue
        if suite == SUITE:
            extra = {"chat_template_kwargs": {"enable_thinking": False}} if no_thinking else {}
            settings = ChatSettings(own, temperature, max_tokens, extra=extra)
            made = run_builtin(base_url, model, settings, concurrency)
        else:
            asked = SuiteSettings(own, concurrency, temperature, max_tokens, thinking=not no_thinking)
            folder = out / f"{COMMAND}-{number}"
            made = _imported(
                run_suite(find_tool(command), base_url, model, asked, folder, timeout_s=_HOURS_S, heard=_heard)
            )
        replace_visible(place, canonical_bytes(made | {"asked": asked_for}))
        click.echo(run_text(made, str(place)))


def _is_kept(place: Path, asked_for: Mapping[str, Any]) -> bool:
    """Whether the run that lies there stands. Raises EngcmpError for one of another server, model or setting: runs are never mixed."""
    found = read_run(place)
    was = found.get("asked") or {}
    other = [name for name, value in asked_for.items() if was.get(name) != value]
    if other:
        told = ", ".join(f"{name} {was.get(name, 'unknown')!r} there, {asked_for[name]!r} now" for name in other)
        raise EngcmpError(f"a run of something else lies there: {told}", where=str(place), remedy="name another --out")
    errors = sum(one["outcome"] == "error" for one in found["scenarios"])
    if errors:
        kept = place.with_suffix(".errors.json")
        stderr_line(f"{place}: {errors} scenarios ended in errors: the run is made again, the old one is {kept.name}")
        place.replace(kept)
        return False
    stderr_line(f"{place} is there already: it is kept")
    return True


def run_builtin(base_url: str, model: str, settings: ChatSettings, concurrency: int) -> dict[str, Any]:
    """The built-in scenarios against a server, as a run.

    Raises EngcmpError where the grader fails its own test, and where the server answered no scenario at all.
    """
    check_grader()
    talks = [
        Talk(
            one.scenario_id, SYSTEM, [tool.as_json() for tool in one.tools], [turn.user for turn in one.turns], World(one).respond
        )
        for one in SCENARIOS
    ]  # fmt: skip
    held = hold_talks(
        base_url, model, talks, settings, concurrency=concurrency, done=lambda name: stderr_line(f"{name}: held")
    )
    grades = {one.scenario_id: grade(one, held[one.scenario_id]) for one in SCENARIOS}
    if all(one.outcome == "error" for one in grades.values()):
        why = "; ".join(next(iter(grades.values())).reasons)
        raise EngcmpError(
            f"no scenario got an answer: {why}",
            where=base_url,
            remedy="is it the address of an OpenAI-compatible server that runs?",
        )
    told = {
        "seed": settings.seed, "concurrency": concurrency, "temperature": settings.temperature, "max_tokens": settings.max_tokens,
        "max_steps": settings.max_steps, "extra": dict(settings.extra),
    }  # fmt: skip
    return {"schema": SCHEMA, **builtin_run(grades, held, told)}


def read_run(path: Path) -> dict[str, Any]:
    """A run of `engcmp tools`, or a result file of tool-eval-bench. Raises EngcmpError for anything else."""
    remedy = f"give a --json-file of {COMMAND}, or a file that `engcmp tools` wrote"
    try:
        data = path.read_bytes()
    except OSError as error:
        raise EngcmpError(f"the run cannot be read: {error.strerror}", where=str(path), remedy=remedy) from error
    found = parse_json(data, what="the run", where=str(path), remedy=remedy)
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        return _imported(path)
    _check_run(found, str(path))
    return found


def _imported(path: Path) -> dict[str, Any]:
    return {"schema": SCHEMA, **read_result(path).document}


def _check_run(found: Mapping[str, Any], where: str) -> None:
    """What a run must hold for a comparison. A changed file is refused where it cannot be compared."""
    scenarios, settings = found.get("scenarios"), found.get("settings")
    whole = (
        isinstance(settings, dict)
        and isinstance(found.get("suite"), str)
        and isinstance(found.get("version"), str)
        and isinstance(scenarios, list)
        and bool(scenarios)
        and all(
            isinstance(one, dict)
            and isinstance(one.get("scenario_id"), str)
            and one.get("points", "") in (None, 0, 1, 2)
            and isinstance(one.get("outcome"), str)
            and isinstance(one.get("turn_ms"), list)
            and all(isinstance(ms, int | float) for ms in one["turn_ms"])
            for one in scenarios
        )
    )  # fmt: skip
    if not whole:
        raise EngcmpError("not a whole run", where=where, remedy="import it again, or run it again")
    if found["suite"] == SUITE and found["version"] != VERSION:
        raise EngcmpError(
            f"a run of version {found['version']} of the built-in scenarios; these are {VERSION}", where=where,
            remedy="run them again: texts or grader have changed",
        )  # fmt: skip


def run_text(run: Mapping[str, Any], place: str) -> str:
    """A run in a few lines."""
    counted = score(run)
    outcomes = ", ".join(f"{count} {name}" for name, count in sorted(counted.outcomes.items()))
    settings = run["settings"]
    return "\n".join(
        [
            f"{run['suite']} {run['version']}: {counted} points; {outcomes}",
            f"seed {settings.get('seed')}, {settings.get('concurrency')} at once: {place}",
        ]
    )


def comparison_text(found: SuiteComparison) -> str:
    """The comparison for a terminal: points, floors, exact tests, and each scenario that changed."""
    lines = []
    for name, scores, floor in (
        ("baseline", found.baseline, found.floors[0]),
        ("candidate", found.candidate, found.floors[1]),
    ):
        lines.append(f"{name}: {'; '.join(map(str, scores))} points; flips between its repeats: {_flips(floor)}")
    lines += [
        f"between the builds: {_flips(found.between)}",
        f"points by scenario: {_test(found.points)}",
        f"passed by scenario: {_test(found.passed)}",
        f"a turn, median: {_turns(found.turn_ms)}",
    ]
    if isinstance(found.floors[0], Missing) or isinstance(found.floors[1], Missing):
        lines.append(
            "Without a repeat of each build there is no floor: a difference may be chance. No test was declared: descriptive."
        )
    else:
        lines.append("No test was declared before the runs: descriptive. A difference counts only beyond the floor.")
    if found.changes:
        lines += ["", "scenario  baseline  candidate"]
        lines += [
            f"{one.scenario_id}  {_points(one.baseline)}  {_points(one.candidate)}" for one in found.changes[:_NAMED]
        ]
        if len(found.changes) > _NAMED:
            lines.append(f"and {len(found.changes) - _NAMED} more, in --json")
    else:
        lines.append("no scenario's points differ anywhere")
    if found.not_compared:
        lines.append(f"left out of the tests, for they lack as many graded repeats: {', '.join(found.not_compared)}")
    return "\n".join(lines)


def _flips(found: Flips | Missing) -> str:
    return found.reason if isinstance(found, Missing) else f"{found.flips} of {found.compared}"


def _test(found: SignTest) -> str:
    p = found.p.reason if isinstance(found.p, Missing) else f"exact p = {found.p:.3g}"
    return f"candidate more in {found.candidate_more}, baseline in {found.baseline_more}, neither in {found.undecided}; {p}"


def _turns(found: Mapping[str, float | Missing]) -> str:
    texts = {
        name: one.reason if isinstance(one, Missing) else f"{one:.3g}" + ("" if name == "ratio" else " ms")
        for name, one in found.items()
    }
    return f"baseline {texts['baseline']}, candidate {texts['candidate']}, ratio {texts['ratio']}"


def _points(values: Sequence[int | None]) -> str:
    return " ".join("-" if one is None else str(one) for one in values)


def _heard(event: Mapping[str, Any]) -> None:
    if event.get("event") == "scenario_result":
        stderr_line(f"{event.get('scenario_id')}: {event.get('status', 'done')}")
