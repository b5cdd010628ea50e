"""`engcmp panel`: a fetched panel, laid out so that `engcmp score` reads it; `engcmp relate`: two checkpoints on disk."""

from __future__ import annotations

import json
from pathlib import Path

import click

from engcmp_assets.commands.paths import PathArgument
from engcmp_assets.kernel.external_panels import ExternalPanel, teacher_panel, windows_of
from engcmp_assets.kernel.progress import stderr_line
from engcmp_assets.kernel.study import load_study
from engcmp_resources.canonical import canonical_bytes
from engcmp_resources.checkpoint_relations import check_fp8, compare_shared
from engcmp_resources.disk import replace_visible
from engcmp_resources.errors import EngcmpError
from engcmp_resources.teacher_layout import TeacherWindow, lay_out, sums_of

_SUMS = "SHA256SUMS"
_Folder = PathArgument(exists=True, file_okay=False)


@click.command(
    epilog="Example: engcmp panel glm53-flash pa --source k4-evidence --mask calibration/windows/arrays/causal-mask-2048.npy --out pa"
)
@click.argument("study")
@click.argument("panel")
@click.option("--source", required=True, type=_Folder, help="The fetched data set.")
@click.option(
    "--mask", type=PathArgument(), help="An array of the set that must be all ones: every position is scored."
)
@click.option("--out", required=True, type=PathArgument(), help="Where `rows/` and `panel.json` are made.")
def panel(study: str, panel: str, source: Path, mask: Path | None, out: Path) -> None:
    """Lay out PANEL of STUDY, whose reference is a published teacher: links to its rows, and the panel file. Nothing is copied.

    Every file is held against the protocol and, where the set has a SHA256SUMS, against that.
    """
    plan = _external(study, panel)
    paths = [path.relative_to(source).as_posix() for path in sorted(source.rglob("*")) if path.is_file()]
    windows = [
        TeacherWindow(one.window_id, one.rows or "", one.tokens or "") for one in windows_of(plan, paths, panel=panel)
    ]
    digests = sums_of(source / _SUMS) if (source / _SUMS).is_file() else {}
    tokens = lay_out(
        source,
        out / "rows",
        windows,
        vocab=plan.vocab,
        mask=None if mask is None else mask.as_posix(),
        digests=digests,
        say=stderr_line,
    )
    replace_visible(out / "panel.json", canonical_bytes(teacher_panel(plan, tokens, panel=panel)))
    checked = f"{len(digests)} digests of {_SUMS}" if digests else f"no {_SUMS}: shapes, types and tokens only"
    click.echo(f"{len(tokens)} windows laid out in {out}, checked against {checked}")
    click.echo(f"engcmp score --panel {out / 'panel.json'} --reference {out / 'rows'} --arm NAME=ROWS --out RESULTS")


@click.command(epilog="Example: engcmp relate GLM-5.3-Flash-EXL3-K3.25-v1 GLM-5.3-Flash-EXL3-K3.25-Core-FP8 --fp8")
@click.argument("one", type=_Folder)
@click.argument("other", type=_Folder)
@click.option(
    "--fp8", is_flag=True, help="Also hold matrices that are BF16 in ONE and FP8 in OTHER against their scales."
)
def relate(one: Path, other: Path, fp8: bool) -> None:
    """Say as JSON which tensors two checkpoints (folders of safetensors) share byte for byte, and how the others differ.

    Shards are read one after the other in blocks: no GPU and little memory is needed.
    """
    shared = compare_shared(one, other, say=stderr_line)
    found = {
        "equal": len(shared.equal), "bytes_compared": shared.bytes_compared, "differing": dict(shared.differing),
        "only_one": list(shared.only_one), "only_other": list(shared.only_other),
    }  # fmt: skip
    if fp8:
        held = check_fp8(one, other, say=stderr_line)
        found["fp8"] = {
            "matrices": len(held.by_tensor), "values": held.whole.values, "apart": held.whole.apart,
            "worst_steps": held.whole.worst_steps, "scale_rule": held.whole.rule if held.by_tensor else "no matrix to tell it from",
            "without_scales": list(held.without), "of_each": {name: one.apart for name, one in held.by_tensor.items() if one.apart},
        }  # fmt: skip
    click.echo(json.dumps(found, indent=1))


def _external(study: str, panel: str) -> ExternalPanel:
    plan = load_study(study).base.panel_plan(panel).external
    if plan is None or plan.layout != "teacher":
        raise EngcmpError(
            f"panel {panel} of study {study} has no published teacher",
            remedy="name a panel whose table external has layout teacher",
        )
    return plan
