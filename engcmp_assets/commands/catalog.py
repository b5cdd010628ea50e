"""`engcmp catalog`: what lies where, of all that there is now. It needs no Dagster instance."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import click

from engcmp_assets.audit.recompute import Evidence
from engcmp_assets.catalog.entries import COLUMNS, FILES, as_columns, columns_of, lines_of, stored_bytes
from engcmp_assets.catalog.gathering import current_receipts, licences_of, listed_of
from engcmp_assets.catalog.page import catalog_page
from engcmp_assets.catalog.step import COLUMNS_TABLE, FILES_TABLE, PAGE
from engcmp_assets.commands.paths import PathArgument
from engcmp_assets.kernel.receipts import Column
from engcmp_assets.kernel.study import load_study
from engcmp_assets.kernel.tables import parquet_bytes
from engcmp_assets.steps import steps_of
from engcmp_resources.disk import disk_errors, replace_visible
from engcmp_resources.errors import EngcmpError
from engcmp_resources.places import home_folder, study_names
from engcmp_resources.store import Store

Line = Mapping[str, Any]
_NUMBERS = (2, 3, 4)  # columns of the terminal table that are aligned to the right
_HASH_CHARS = 16


@click.command(
    short_help="List every file of every artifact: tables, page, terminal.",
    epilog="Example: engcmp catalog smollm2-cpu --out catalog",
)
@click.argument("study", required=False)
@click.option(
    "--out",
    type=PathArgument(),
    help="Write catalog.parquet, columns.parquet and catalog.html here.",
)
@click.option("--json", "as_json", is_flag=True, help="For machines: one JSON object a file on standard output.")
def catalog(study: str | None, out: Path | None, as_json: bool) -> None:
    """List every file of every artifact of every arm: of STUDY, or of all studies that have results.

    Each line says what the file is, where it lies, its rows and bytes, its columns with their units, its SHA-256, the receipt that vouches
    for it, the version of the code that made it, and its licence. The asset `catalog` is the same of one study, kept with a receipt; this
    command also lists what is made apart from it, such as the audit.
    """
    store = Evidence(home_folder())
    files, columns = _lines(store, [study] if study else study_names())
    if not files:
        raise EngcmpError(
            f"no results of {study or 'any study'} here",
            where=str(store.home),
            remedy=f"`engcmp run {study or 'STUDY'}`",
        )
    if out is not None:
        title = f"Catalog of {study}" if study else "Catalog of all studies"
        _write(out, store.home, title, files, columns)
    if as_json:
        click.echo("\n".join(json.dumps(line) for line in files))
    else:
        click.echo("\n".join([*_table(files), _total(files) + (f", in {out}" if out is not None else "")]))


def _lines(store: Store, names: Iterable[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    files: list[dict[str, Any]] = []
    columns: list[dict[str, Any]] = []
    for name in names:
        loaded = load_study(name)
        artifacts = [step.artifact for step in steps_of(loaded)]
        listed = listed_of(store, current_receipts(store, loaded, artifacts))
        files += lines_of(listed, licences_of(store, listed))
        columns += columns_of(listed)
    return files, columns


def _write(out: Path, home: Path, title: str, files: Sequence[Line], columns: Sequence[Line]) -> None:
    with disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    page = catalog_page(title, files, columns, home_href=f"{os.path.relpath(home, out.absolute())}/")
    for name, data in (
        (FILES_TABLE, _parquet(FILES, files)), (COLUMNS_TABLE, _parquet(COLUMNS, columns)), (PAGE, page.encode("utf-8")),
    ):  # fmt: skip
        replace_visible(out / name, data)


def _parquet(columns: Sequence[Column], lines: Sequence[Line]) -> bytes:
    return parquet_bytes(columns, as_columns(columns, lines))


def _table(files: Sequence[Line]) -> list[str]:
    """One line for each artifact of each arm: its files, rows, bytes, and the receipt that names them."""
    rows = [("artifact", "partition", "files", "rows", "MB", "receipt")]
    for (study, arm, artifact), group in groupby(
        files, lambda line: (line["study"], line["partition"], line["artifact"])
    ):
        own = list(group)
        tables = [line["rows"] for line in own if line["rows"] is not None]
        size = sum(line["bytes"] for line in own) / 1e6
        counted = (f"{len(own):,}", f"{sum(tables):,}" if tables else "-", f"{size:,.3f}")
        rows.append((artifact, arm or study, *counted, own[0]["receipt_sha256"][:_HASH_CHARS]))
    wide = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return ["  ".join(_aligned(text, wide[place], place) for place, text in enumerate(row)).rstrip() for row in rows]


def _total(files: Sequence[Line]) -> str:
    """Arms share files: the sum of the lines above is more than what lies on the disk."""
    return f"{len(files):,} outputs in {len({line['path'] for line in files}):,} files, {stored_bytes(files) / 1e6:,.3f} MB on the disk"


def _aligned(text: str, width: int, place: int) -> str:
    return text.rjust(width) if place in _NUMBERS else text.ljust(width)
