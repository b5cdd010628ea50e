"""What `engcmp throughput --dry-run` prints: every request of a plan, or of a study's speed block. Nothing is sent."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import click

from engcmp_assets.engine_launch.serving import plan_of
from engcmp_assets.kernel.blocks import blocks_of_arm
from engcmp_assets.kernel.study import load_study
from engcmp_assets.kernel.throughput.plans import Plan, sent
from engcmp_assets.kernel.throughput_tables import PLAN_FILE
from engcmp_assets.throughput_events.plan import parse_index, texts_by_kind
from engcmp_assets.throughput_events.planned_requests import planned_requests


def print_requests(plan: Plan, warm_up: int, *, as_json: bool) -> None:
    """The requests of a plan file as one server would be sent them."""
    rows = sent(plan, warm_up)
    if as_json:
        _print_json({"plan_sha256": plan.sha256, "model": plan.model, "sampling": plan.sampling}, rows)
        return
    for row in rows:
        count = "not stated" if row["expected_prompt_tokens"] is None else row["expected_prompt_tokens"]
        line = "as token ids" if row["first_line_sha256"] is None else row["first_line_sha256"][:16]
        _print_row(row, f"expected prompt tokens {count}  first line {line}")
    timed = sum(row["timed"] for row in rows)
    click.echo(
        f"{timed} timed requests in {len(plan.cells)} cells, {len(rows) - timed} untimed, and one short one to ask what the server takes; "
        f"plan {plan.sha256}"
    )
    lines = Counter(row["first_line_sha256"] for row in rows if row["timed"] and row["first_line_sha256"])
    if shared := sum(count for count in lines.values() if count > 1):
        click.echo(
            f"{shared} timed prompts begin with a line that another has too: a prefix cache may answer part of them"
        )


def print_study_requests(name: str, *, as_json: bool) -> None:
    """The requests of a study's speed block as each of its arms is sent them. Raises EngcmpError where a prompt is not the frozen one."""
    study = load_study(name)
    plan = plan_of(study)
    study.require_frozen()
    index = parse_index(study.files[PLAN_FILE], where=str(study.folder / PLAN_FILE))
    arms = [arm for arm in study.protocol.arm_keys if "t" in blocks_of_arm(study.protocol, arm)]
    rows = planned_requests(index, texts_by_kind(study.files[study.protocol.prompt_set.file]), arms)
    sampling = dict(index.sampling)
    if as_json:
        known = {
            "study": name,
            "frozen_sha256": study.frozen_sha256,
            "arms": list(map(str, arms)),
            "sampling": sampling,
        }
        _print_json(known | {"order": plan.order}, rows)
        return
    for row in rows:
        line = " ".join(map(str, row["first_line"]))
        _print_row(row, f"expected prompt tokens {expected(row['expected_prompt_tokens'])}  first line (ids) {line}")
    timed = sum(row["timed"] for row in rows)
    click.echo(
        f"{timed} timed requests and {len(rows) - timed} untimed ones for each of {len(arms)} arms, in {plan.repeats} repeats; each prompt "
        f"has the frozen digest. Where no arm is named, all count alike: {', '.join(map(str, arms))}"
    )


def expected(counts: Mapping[str, int]) -> str:
    """The prompt tokens that each arm must count: one number where all count alike, else each number with its arms."""
    arms: dict[int, list[str]] = {}
    for arm, count in counts.items():
        arms.setdefault(count, []).append(arm)
    if len(arms) == 1:
        return str(next(iter(arms)))
    return ", ".join(f"{count} ({' '.join(own)})" for count, own in sorted(arms.items()))


def _print_row(row: Mapping[str, Any], told: str) -> None:
    untimed = "" if row["timed"] else "  untimed"
    click.echo(
        f"{row['cell_id']}  {row['request_id']}{untimed}  prompt {row['prompt_sha256']}  {told}  seed {row['seed']}  "
        f"max_tokens {row['max_tokens']}"
    )


def _print_json(known: Mapping[str, Any], rows: list[dict[str, Any]]) -> None:
    click.echo(json.dumps({**known, "requests": rows}, indent=1))
