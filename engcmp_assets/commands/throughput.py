"""`engcmp throughput`: measure any OpenAI-compatible server by a plan. It needs neither a study nor a Dagster instance."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from engcmp_assets.commands.paths import PathArgument
from engcmp_assets.kernel.progress import stderr_line
from engcmp_assets.kernel.throughput.plans import Plan, parse_plan
from engcmp_assets.kernel.throughput.recounts import recount_words
from engcmp_assets.kernel.throughput.requests import FLAGS, cause_words
from engcmp_assets.throughput_events.cell_folders import EARLIER
from engcmp_assets.throughput_events.steps import Target, measure_plan
from engcmp_resources.errors import EngcmpError
from engcmp_resources.load.streams import Address, Deadlines

_DEFAULTS = Deadlines()
_SECONDS = click.FloatRange(min=0, min_open=True)
_FIGURES = (
    ("TTFT ms", "ttft_median_ms", None),
    ("TTFT max", "ttft_max_ms", None),
    ("decode tok/s", "decode_tok_s", "decode_first1_tok_s"),
    ("prefill tok/s", "prefill_tok_s", None),
    ("aggregate tok/s", "aggregate_tok_s", None),
)
_COLUMNS = """\
width: requests at a time, or the rate of an open loop; whole: requests that were answered whole, of all that were sent.
TTFT: time from just before a request is sent to its first token; decode: tokens after the first ones over the time they took;
prefill: prompt tokens that were not cached over TTFT, with one request at a time only; aggregate: all tokens of the cell over its time.
Medians of as many requests as are whole, [10th, 90th percentile] behind them. -: cells.json says why."""
_STANDS_IN = "~"
_FIRST1 = "~: the server does not say how many tokens its first update holds; it is taken as one."


@click.command(
    epilog="""\b
The plan: {"model": NAME, "sampling": {"temperature": 0, ...}, "cells": [{"cell_id": ID, "kind": "code", "concurrency": 4,
"requests": [{"request_id": ID, "messages": [...], "max_tokens": 256, "seed": 1, "expected_prompt_tokens": 1024}]}]}
A request has one of "messages", "prompt" and "token_ids". A cell may have "rate_per_s" (an open loop) and "warmup".
Example: engcmp throughput --base-url http://127.0.0.1:8000 --plan plan.json --out speed/
Example: engcmp throughput --study smollm2-cpu --dry-run"""
)
@click.option("--base-url", metavar="URL", help="Address of the server, with or without /v1.")
@click.option("--plan", "plan_file", type=PathArgument(), help="The plan, as JSON.")
@click.option(
    "--study", metavar="STUDY", help="With --dry-run: the frozen plan of a study, and what each of its arms must count."
)
@click.option("--out", type=PathArgument(), help="Folder for the results; one of the same plan is continued.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Print every request that would be sent, untimed ones too, and send none. Needs no server.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--key-env", metavar="NAME", help="Environment variable that holds the server's API key.")
@click.option(
    "--again",
    multiple=True,
    metavar="CELL",
    help="Measure this finished cell again; the old one is kept in OUT/earlier. Repeatable.",
)
@click.option("--again-failed", is_flag=True, help="The same for each cell in which a request failed.")
@click.option(
    "--calibrate/--no-calibrate",
    default=True,
    show_default=True,
    help="Measure a null server before: does this client keep up?",
)
@click.option(
    "--warmup",
    default=1,
    show_default=True,
    type=click.IntRange(0),
    help="Untimed requests of each stream before a new width.",
)
@click.option(
    "--retries-429",
    default=3,
    show_default=True,
    type=click.IntRange(0),
    help="Times that a request refused with 429 is sent again.",
)
@click.option(
    "--connect-s", default=_DEFAULTS.connect_s, show_default=True, type=_SECONDS, help="Deadline for a connection."
)
@click.option(
    "--first-byte-s",
    default=_DEFAULTS.first_byte_s,
    show_default=True,
    type=_SECONDS,
    help="Deadline for the first byte.",
)
@click.option(
    "--between-s",
    default=_DEFAULTS.between_s,
    show_default=True,
    type=_SECONDS,
    help="Longest silence within a stream.",
)
@click.option(
    "--whole-s", default=_DEFAULTS.whole_s, show_default=True, type=_SECONDS, help="Deadline for a whole reply."
)
def throughput(
    *, base_url: str | None, plan_file: Path | None, study: str | None, out: Path | None, dry_run: bool, as_json: bool,
    key_env: str | None, again: tuple[str, ...], again_failed: bool, calibrate: bool, warmup: int, retries_429: int, connect_s: float,
    first_byte_s: float, between_s: float, whole_s: float,
) -> int:  # fmt: skip
    """Measure an OpenAI-compatible server by a plan: events, requests and cells, in OUT.

    Every finished cell is kept, however the command ends; the same call measures what is missing. A cell in which a request failed is
    finished too, and has no figures: --again-failed measures it again. Exit 1 where one failed. OUT holds no text: of each prompt and
    reply the digest.
    """
    if study is not None and (not dry_run or plan_file is not None):
        raise click.UsageError("--study goes with --dry-run and without --plan; `engcmp run` measures a study")
    if study is None and plan_file is None:
        raise click.UsageError("name the plan with --plan")
    plan, address = _read(plan_file) if plan_file else None, Address.parse(base_url) if base_url else None
    if dry_run:
        _print_requests(plan, study, warmup, as_json=as_json)
        return 0
    if plan is None or address is None or out is None:
        raise click.UsageError("name the server with --base-url, and a folder for the results with --out")
    deadlines = Deadlines(connect_s, first_byte_s, between_s, whole_s)
    target = Target(address, _key(key_env), deadlines, retries_429, warmup)
    document = measure_plan(
        plan, target, out.resolve(), calibrated=calibrate, say=stderr_line, again=again, again_failed=again_failed
    )
    if as_json:
        click.echo(json.dumps(document, indent=1))
    else:
        _print_cells(document)
        click.echo(f"events.parquet, requests.parquet and cells.json are in {out}")
    return 0 if all(cell["complete"] for cell in document["cells"]) else 1


def _print_requests(plan: Plan | None, study: str | None, warm_up: int, *, as_json: bool) -> None:
    """What a dry run prints. What reads studies is loaded here alone: a client that measures does without its 20 MB."""
    from engcmp_assets.commands.speed_requests import print_requests, print_study_requests  # noqa: PLC0415 - see above

    if study is not None:
        print_study_requests(study, as_json=as_json)
    elif plan is not None:
        print_requests(plan, warm_up, as_json=as_json)


def _read(path: Path) -> Plan:
    try:
        return parse_plan(path.read_bytes(), where=str(path))
    except OSError as error:
        raise EngcmpError(
            f"the plan cannot be read: {error.strerror}", where=str(path), remedy="name a file that is there"
        ) from error


def _key(name: str | None) -> str | None:
    """The key, of an environment variable: it never stands on a command line."""
    if name is None:
        return None
    key = os.environ.get(name, "").strip()
    if not key or not key.isascii() or not key.isprintable():
        raise EngcmpError(
            f"the environment variable {name} holds no key", remedy="set it to the server's API key, in ASCII"
        )
    return key


def _print_cells(document: Mapping[str, Any]) -> None:
    """One line a cell, its failures, flags and labels below it, and in words what columns, causes and flags mean."""
    heads = ["cell", "width", "whole", *(title for title, _, _ in _FIGURES)]
    rows = [heads]
    for cell in document["cells"]:
        whole = f"{cell['requests'] - len(cell['failures'])}/{cell['requests']}"
        rate = cell["client"].get("asked_rate_per_s")
        width = str(cell["concurrency"]) if rate is None else f"{rate:g}/s"
        rows.append([cell["cell_id"], width, whole, *(_shown(cell, one, other) for _, one, other in _FIGURES)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
    click.echo("  ".join(text.ljust(width) for text, width in zip(heads, widths, strict=True)).rstrip())
    seen: dict[str, str] = {}
    for cell, row in zip(document["cells"], rows[1:], strict=True):
        click.echo("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
        for failure in cell["failures"]:
            click.echo(f"    {failure['status']}: {failure['request_id']}: {failure['cause']}")
            seen[failure["cause"]] = cause_words(failure["cause"])
        for flag in cell["flags"]:
            click.echo(f"    flag: {flag}")
            seen |= {name: words for name, words in FLAGS.items() if flag.startswith(name)}
        for label in cell["labels"]:
            click.echo(f"    label: {label}")
        if recount := cell.get("recounted"):  # what was measured before there was one has none
            click.echo(f"    {recount_words(recount)}")
        if cell.get("earlier"):
            click.echo(f"    measured again: {len(cell['earlier'])} earlier in {EARLIER}/")
    click.echo(_COLUMNS)
    if any(_STANDS_IN in text for row in rows[1:] for text in row):
        click.echo(_FIRST1)
    for name, words in seen.items():
        click.echo(f"{name}: {words}")


def _shown(cell: Mapping[str, Any], name: str, other: str | None) -> str:
    """A figure with its spread; one that stands in for another is marked."""
    found = cell["figures"].get(name) or {}
    if "value" in found:
        spread = f" [{found['p10']:.4g}, {found['p90']:.4g}]" if "p10" in found else ""
        return f"{found['value']:.4g}{spread}"
    stands_in = other is not None and "value" in (cell["figures"].get(other) or {})
    return f"{_STANDS_IN}{_shown(cell, str(other), None)}" if stands_in else "-"
