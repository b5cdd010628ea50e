"""`engcmp teacher`: a transformers model's rows of any token ids, as row files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from engcmp_assets.commands.paths import PathArgument
from engcmp_assets.commands.reference import read_windows
from engcmp_resources.engines.teacher import RECEIPT, teacher_rows


@click.command(epilog="Example: engcmp teacher models/glm --tokens window.json --out rows/ --device cuda")
@click.argument("model", type=PathArgument())
@click.option(
    "--tokens", "tokens_file", required=True, type=PathArgument(),
    help='JSON: {"window_id": NAME, "tokens": [IDS]}, a list of such, {"windows": [...]}, or one such object a line.',
)  # fmt: skip
@click.option(
    "--out", required=True, type=PathArgument(),
    help="Folder for NAME.safetensors, NAME.tokens.npy and the receipt; made if need be. What is there already is not computed again.",
)  # fmt: skip
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default="float32", show_default=True)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="cuda: one GPU.")
def teacher(model: Path, tokens_file: Path, out: Path, dtype: Any, device: Any) -> None:
    """Compute the full-vocabulary rows of MODEL, a folder with a transformers model in safetensors, for your own token ids."""
    windows = read_windows(tokens_file)
    receipt = teacher_rows(model, windows, out, dtype=dtype, device=device, say=lambda text: click.echo(text, err=True))
    rows = sum(receipt["windows"][name]["rows"] for name in windows)
    click.echo(f"{len(windows)} windows, {rows} rows in {out}; receipt {out / RECEIPT}")
