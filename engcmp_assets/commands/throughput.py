"""`engcmp throughput`: measure any OpenAI-compatible server by a plan. It needs neither a study nor a Dagster instance."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from engcmp_assets.kernel.progress import stderr_line
from engcmp_assets.kernel.throughput.plans import Plan, listing, parse_plan
from engcmp_assets.throughput_events.steps import Target, measure_plan
from engcmp_resources.errors import EngcmpError
from engcmp_resources.load.streams import Address, Deadlines

_DEFAULTS = Deadlines()
_SECONDS = click.FloatRange(min=0, min_open=True)
_FIGURES = (
    ("TTFT ms", "ttft_median_ms", None),
    ("TTFT p90", "ttft_p90_ms", None),
    ("decode tok/s", "decode_tok_s", "decode_first1_tok_s"),
    ("aggregate tok/s", "aggregate_tok_s", None),
)


@click.command(
    epilog="""\b
The plan: {"model": NAME, "sampling": {"temperature": 0, ...}, "cells": [{"cell_id": ID, "kind": "code", "concurrency": 4,
"requests": [{"request_id": ID, "messages": [...], "max_tokens": 256, "seed": 1, "expected_prompt_tokens": 1024}]}]}
A request has one of "messages", "prompt" and "token_ids". A cell may have "rate_per_s" (an open loop) and "warmup".
Example: engcmp throughput --base-url http://127.0.0.1:8000 --plan plan.json --out speed/"""
)
@click.option("--base-url", required=True, metavar="URL", help="Address of the server, with or without /v1.")
@click.option("--plan", "plan_file", required=True, type=click.Path(path_type=Path), help="The plan, as JSON.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder for the results; one of the same plan is continued."
)
@click.option("--dry-run", is_flag=True, help="Print every request that would be sent, and send none.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--key-env", metavar="NAME", help="Environment variable that holds the server's API key.")
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
    *, base_url: str, plan_file: Path, out: Path | None, dry_run: bool, as_json: bool, key_env: str | None, calibrate: bool,
    warmup: int, retries_429: int, connect_s: float, first_byte_s: float, between_s: float, whole_s: float,
) -> int:  # fmt: skip
    """Measure an OpenAI-compatible server by a plan: events, requests and cells, in OUT.

    Every finished cell is kept, however the command ends; the same call measures what is missing. A cell in which a request failed is
    finished too, and has no figures: remove its folder in OUT/parts, or name a new OUT, to measure it again. Exit 1 where one failed.
    """
    address, plan = Address.parse(base_url), _read(plan_file)
    if dry_run:
        _print_plan(plan, as_json=as_json)
        return 0
    if out is None:
        raise click.UsageError("name a folder for the results with --out")
    deadlines = Deadlines(connect_s, first_byte_s, between_s, whole_s)
    target = Target(address, _key(key_env), deadlines, retries_429, warmup)
    document = measure_plan(plan, target, out.resolve(), calibrated=calibrate, say=stderr_line)
    if as_json:
        click.echo(json.dumps(document, indent=1))
    else:
        _print_cells(document)
        click.echo(f"events.parquet, requests.parquet and cells.json are in {out}")
    return 0 if all(cell["complete"] for cell in document["cells"]) else 1


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


def _print_plan(plan: Plan, *, as_json: bool) -> None:
    rows = listing(plan)
    if as_json:
        click.echo(
            json.dumps(
                {"plan_sha256": plan.sha256, "model": plan.model, "sampling": plan.sampling, "requests": rows}, indent=1
            )
        )
        return
    for row in rows:
        expected = "not stated" if row["expected_prompt_tokens"] is None else row["expected_prompt_tokens"]
        click.echo(
            f"{row['cell_id']}  {row['request_id']}  prompt {row['prompt_sha256']}  expected prompt tokens {expected}  "
            f"seed {row['seed']}  max_tokens {row['max_tokens']}"
        )
    click.echo(f"{len(rows)} requests in {len(plan.cells)} cells; plan {plan.sha256}")


def _print_cells(document: Mapping[str, Any]) -> None:
    """One line a cell, its failures and flags below it."""
    heads = ["cell", "width", "whole", *(title for title, _, _ in _FIGURES)]
    rows = [heads]
    for cell in document["cells"]:
        whole = f"{cell['requests'] - len(cell['failures'])}/{cell['requests']}"
        rows.append(
            [
                cell["cell_id"],
                str(cell["concurrency"]),
                whole,
                *(_shown(cell, one, other) for _, one, other in _FIGURES),
            ]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
    click.echo("  ".join(text.ljust(width) for text, width in zip(heads, widths, strict=True)).rstrip())
    for cell, row in zip(document["cells"], rows[1:], strict=True):
        click.echo("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
        for failure in cell["failures"]:
            click.echo(f"    {failure['status']}: {failure['request_id']}: {failure['cause']}")
        for flag in cell["flags"]:
            click.echo(f"    flag: {flag}")


def _shown(cell: Mapping[str, Any], name: str, other: str | None) -> str:
    found = cell["figures"].get(name) or {}
    if "value" in found:
        return f"{found['value']:.4g}"
    return (
        f"{_shown(cell, other, None)} (n_first 1)" if other and "value" in (cell["figures"].get(other) or {}) else "-"
    )
