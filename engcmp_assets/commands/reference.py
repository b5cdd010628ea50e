"""`engcmp reference`: the float32 reference's rows of any token ids, as row files."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from engcmp_assets.commands.paths import PathArgument
from engcmp_assets.kernel.progress import Progress, stderr_line
from engcmp_assets.kernel.records import tokens_sha256
from engcmp_assets.kernel.study import load_study
from engcmp_assets.sources.step import fetched_weights
from engcmp_resources.disk import disk_errors, keep_whole, require_space
from engcmp_resources.engines.reference import RowRequest, reference_rows
from engcmp_resources.errors import EngcmpError
from engcmp_resources.places import home_folder
from engcmp_resources.row_files import RowFile, write_rows
from engcmp_resources.store import Store

_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_LEAST_TOKENS = 2
_FLOAT32_BYTES = 4
_UNKNOWN = 1  # progress is of the whole call, so its total is known only when the first step is done


@click.command(epilog="Example: engcmp reference smollm2-cpu --tokens window.json --out rows/")
@click.argument("study")
@click.option(
    "--tokens", "tokens_file", required=True, type=PathArgument(),
    help='JSON: {"window_id": NAME, "tokens": [IDS]}, a list of such, {"windows": [...]}, or one such object a line.',
)  # fmt: skip
@click.option("--out", required=True, type=PathArgument(), help="Folder for NAME.safetensors; made if need be.")
def reference(study: str, tokens_file: Path, out: Path) -> None:
    """Compute STUDY's reference rows for your own token ids: full vocabulary, every row of each window (row r predicts token r + 1)."""
    loaded = load_study(study)
    loaded.require_frozen()
    windows = read_windows(tokens_file)
    requests = [RowRequest(name, ids, range(len(ids) - 1)) for name, ids in windows.items()]
    rows = sum(len(ids) - 1 for ids in windows.values())
    _require_place(out, rows * loaded.panel(next(iter(loaded.base.panels))).vocab * _FLOAT32_BYTES)
    store = Store(home_folder())
    model = store.path(fetched_weights(loaded, store, stderr_line))
    progress = Progress(stderr_line, f"[{study}] reference", "steps", _UNKNOWN, time.monotonic_ns)

    def keep(name: str, logits: npt.NDArray[np.float32]) -> None:
        partial = out / f".{name}.partial"
        positions = np.arange(len(logits), dtype=np.int32)
        try:
            write_rows(partial, RowFile(name, tokens_sha256(windows[name]), positions, logits))
            keep_whole(partial, out / f"{name}.safetensors")
        finally:
            partial.unlink(missing_ok=True)

    def tell(note: str, done: int, total: int) -> None:
        progress.total = total
        progress.update(done, note)

    reference_rows(model, requests, on_rows=keep, progress=tell)
    click.echo(f"{len(windows)} windows, {rows} rows in {out}")


def _require_place(out: Path, needed_bytes: int) -> None:
    """Refuse before the work, not after it, where the results cannot be written."""
    probe = out / ".engcmp.partial"
    with disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    require_space(out, needed_bytes, "writing the rows")


def read_windows(path: Path) -> dict[str, list[int]]:
    """Token ids by window name. Raises EngcmpError naming the file, the entry and what is wrong with it."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors begin a file with a mark
    except (OSError, UnicodeDecodeError) as error:
        raise EngcmpError(f"tokens file cannot be read: {error}", where=str(path), remedy="give a JSON file") from error
    windows: dict[str, list[int]] = {}
    for number, entry in enumerate(_entries(text, path), start=1):
        name, ids = _window(entry, f"{path}, entry {number}")
        if name in windows:
            raise EngcmpError(f"window {name} stands twice", where=str(path), remedy="name each window once")
        windows[name] = ids
    if not windows:
        raise EngcmpError("no window in the file", where=str(path), remedy='give {"window_id": NAME, "tokens": [IDS]}')
    return windows


def _entries(text: str, path: Path) -> list[Any]:
    """One object, a list, a panel, or one object a line."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        try:
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        except (ValueError, RecursionError) as error:
            raise EngcmpError(
                f"not JSON: {error}", where=str(path), remedy="give JSON, or one JSON object a line"
            ) from error
    if isinstance(document, Mapping) and "windows" in document:
        document = document["windows"]
    return document if isinstance(document, list) else [document]


def _window(entry: Any, where: str) -> tuple[str, list[int]]:
    if not isinstance(entry, Mapping) or "window_id" not in entry or "tokens" not in entry:
        raise EngcmpError('an entry needs "window_id" and "tokens"', where=where, remedy="add what is missing")
    name, ids = entry["window_id"], entry["tokens"]
    if not isinstance(name, str) or not _SAFE_NAME.fullmatch(name):
        raise EngcmpError(
            f"window_id {str(name)[:60]!r} cannot be a file name", where=where, remedy="use letters, digits, . _ and -"
        )
    whole = isinstance(ids, list) and all(isinstance(item, int) and not isinstance(item, bool) for item in ids)
    if not whole or len(ids) < _LEAST_TOKENS:
        raise EngcmpError(f"window {name}: tokens must be a list of at least 2 integers", where=where, remedy="mend it")
    return name, ids
