"""`engcmp score`, `tails` and `bar`: figures of a user's own row files. None needs a Dagster instance."""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from engcmp_assets.commands.paths import PathArgument
from engcmp_assets.commands.sharing import beside_no_timed_cell
from engcmp_assets.file_scores.documents import arm_document, pair_document
from engcmp_assets.file_scores.figures import Keys, keys_of
from engcmp_assets.file_scores.gaps import gap_document
from engcmp_assets.file_scores.measuring import REFERENCE
from engcmp_assets.file_scores.reading import Scored, score_files
from engcmp_assets.file_scores.request import PairOf, Request, request
from engcmp_assets.file_scores.reviewing import Repeats
from engcmp_assets.kernel.measures import DISTANCES, MEASURES
from engcmp_assets.kernel.panel_files import parse_panel_file
from engcmp_assets.kernel.progress import Progress, stderr_line
from engcmp_assets.kernel.receipts import Column
from engcmp_assets.kernel.records import Panel, plain
from engcmp_assets.kernel.review.paired_bar import PAIRED_BAR, absolute_bar, paired_bar
from engcmp_assets.kernel.rounding import rounding_sentence
from engcmp_assets.kernel.tables import measure_column, parquet_bytes, read_parquet
from engcmp_assets.kernel.uncertainty import PANEL, Preset
from engcmp_assets.tails.tail_statistics import TailRows, tail_statistics
from engcmp_resources.canonical import canonical_bytes, parse_json, sha256_bytes, sha256_file
from engcmp_resources.disk import disk_errors, make_folder, replace_visible, sync_folder
from engcmp_resources.errors import EngcmpError
from engcmp_resources.row_layouts.finding import find_rows
from engcmp_resources.row_layouts.known_digests import known_sha256

OUTSIDE = 3
_PRESETS = {"panel": PANEL, "paired-bar": PAIRED_BAR}
_KEYS = (
    Column("window_id", "str", "1", "Name of the window"),
    Column("position", "int", "row", "Row index r: the distribution after tokens 0..r"),
    Column("next_token", "int", "token id", "The token that follows in the text, at r + 1"),
    Column("role", "str", "1", "generated, context or trailing"),
    Column("cluster", "str", "1", "What is resampled as a whole: the document"),
    Column("block", "str", "1", "Kind of content"),
    Column("bucket", "str", "1", "Length of the context, in classes"),
)
_CONFIDENCE = Column("reference_top_probability", "float", "1", "Probability of the reference's first choice")
_ABSOLUTE, _RELATIVE = 1e-15, 1e-12
_NAME_ROWS = "name a file that `engcmp score` wrote"
_MB = 10**6


@click.command(
    epilog="Example: engcmp score --panel panel.json --reference rows/teacher --arm V1=rows/v1 --arm C1=rows/c1 --pair V1,C1 --out scores/"
)
@click.option("--panel", "panel_file", required=True, type=PathArgument(), help="The panel, as JSON.")
@click.option("--reference", type=PathArgument(), help="Folder of the reference's rows, full or top-K.")
@click.option(
    "--arm", "arms", multiple=True, metavar="NAME=DIR", help="An arm and the folder of its rows; at least one."
)
@click.option(
    "--pair", "pairs", multiple=True, metavar="A,B", help="Compare: difference = B - A. A side may be 'mean(V1,V1r)'."
)
@click.option(
    "--repeat", "repeats", multiple=True, metavar="A,A2", help="A2 is the same arm measured again: the floor."
)
@click.option(
    "--gap",
    "gaps",
    multiple=True,
    metavar="BASE,CANDIDATE,SETTING",
    help="How much of the gap from BASE to CANDIDATE closes with SETTING.",
)
@click.option(
    "--preset", type=click.Choice(sorted(_PRESETS)), default="panel", show_default=True, help="How intervals resample."
)
@click.option(
    "--jobs", default=lambda: os.cpu_count() or 1, type=click.IntRange(1, 256), help="Threads [default: all cores]."
)
@click.option(
    "--hash-inputs", is_flag=True, help="Also write the SHA-256 of every file read; it takes longer than scoring."
)
@click.option("--out", required=True, type=PathArgument(), help="Folder for the results: a new or empty one.")
def score(
    *, panel_file: Path, reference: Path | None, arms: Sequence[str], pairs: Sequence[str], repeats: Sequence[str], gaps: Sequence[str],
    preset: str, jobs: int, hash_inputs: bool, out: Path,
) -> None:  # fmt: skip
    """Score row files against a reference, and compare arms: rows, figures, differences and tails, in OUT.

    Rows may be full (float32, float16, bfloat16), a teacher file, a probe dump, light (an API's top 20 and the actual token, in Parquet),
    or top-K for the reference; what a folder holds is told from its files. The first measure over all rows is the declared look, all
    others are judged at their Bonferroni level.
    """
    asked = request(_named(arms), pairs, repeats, gaps)
    out = out.resolve()
    _refuse_taken(out)
    panel_bytes = _bytes_of(panel_file)
    panel = parse_panel_file(panel_bytes, where=str(panel_file))
    _check_reference(panel, reference, panel_file)
    folders = {name: find_rows(Path(text.split("=", 1)[1])) for name, text in zip(asked.arms, arms, strict=True)}
    teacher = None if reference is None else find_rows(reference)
    rows = _progress(panel, "", "rows", panel.rows)
    with beside_no_timed_cell("score"):
        scored = score_files(panel, teacher, folders, asked.row_pairs(), jobs=jobs, progress=rows.update)
        own_panel = {
            "name": panel_file.name, "of": "panel", "bytes": len(panel_bytes), "sha256": sha256_bytes(panel_bytes),
        }  # fmt: skip
        inputs = {"panel": [own_panel]} | _inputs(panel, scored.files, hashed=hash_inputs)
        files = _results(panel, asked, scored, inputs, preset=_PRESETS[preset])
    _publish(out, files)
    for name in asked.arms:
        if (step := scored.step_of(name)) is not None:
            click.echo(f"{name}: {rounding_sentence(step)}.")
    for pair in asked.pairs:
        document = json.loads(files[pair.file_name])
        click.echo(f"{pair}: {document['measures'][document['declared']['primary']]['sentence']}")
    for gap in asked.gaps:
        click.echo(_gap_sentence(str(gap), json.loads(files[gap.file_name])))
    click.echo(f"{panel.rows:,} rows of {_arms(len(asked.arms))} scored; results are in {out}")


@click.command(epilog="Example: engcmp tails scores/V1.rows.parquet --check scores/tails/V1.json")
@click.argument("rows", type=PathArgument())
@click.option("--check", type=PathArgument(), help="Published tails: exit 1 if any differs from what the rows give.")
def tails(rows: Path, check: Path | None) -> int:
    """Print how bad the worst rows of a row file are, as JSON; with --check, hold published tails against the rows."""
    found = json.loads(_tails(_row_file(rows), rows, sha256_file(rows)))
    if check is None:
        click.echo(json.dumps(found, indent=1))
        return 0
    published = parse_json(
        _bytes_of(check), what="published tails", where=str(check), remedy="name the tails that were published"
    )
    apart = list(_differences(published, found))
    for text in apart:
        click.echo(f"FAILED {check}: {text}")
    click.echo(f"{check}: {len(apart)} differences from {rows}" if apart else f"{check}: agrees with {rows}")
    return 1 if apart else 0


@click.command(epilog="Example: engcmp bar --candidate scores/V2.rows.parquet --baseline scores/V1.rows.parquet")
@click.option("--candidate", required=True, type=PathArgument(), help="Row file of the candidate.")
@click.option("--baseline", required=True, type=PathArgument(), help="Row file of the baseline, on the same rows.")
@click.option("--full", is_flag=True, help="Also want two windows or more, and both runs inside the absolute bar.")
@click.option(
    "--across-engines", is_flag=True, help="The two are different engines: the bar holds by analogy only, and says so."
)
def bar(candidate: Path, baseline: Path, full: bool, across_engines: bool) -> int:
    """Judge a candidate by the one-sided paired bar, on generated rows. Exit 0 within the bar, 3 outside, 1 for an error."""
    one, two = _same_rows(candidate, baseline)
    kl = next((name for name in ("kl_full", "kl_coarse") if name in one and name in two), None)
    if kl is None or "top1" not in one:
        raise EngcmpError(
            "no KL from a reference over its whole vocabulary or its top K in the row files", where=str(candidate),
            remedy="score full rows with a reference: the bar's margins are not those of a KL over an engine's top 20",
        )  # fmt: skip
    found = paired_bar(
        candidate_top1=one["top1"], baseline_top1=two["top1"], candidate_kl=one[kl], baseline_kl=two[kl],
        windows=one["window_id"], roles=one["role"], same_engine=not across_engines,
    )  # fmt: skip
    click.echo(found.sentence)
    failures: list[str] = [] if found.verdict == "within bar" else [found.verdict]
    if full:
        failures += [] if found.windows > 1 else ["one window, two or more are wanted"]
        for label, rows in (("candidate", one), ("baseline", two)):
            run = absolute_bar(rows["top1"], rows[kl], windows=rows["window_id"], roles=rows["role"])
            failures += [f"the {label}'s absolute bar: {text}" for text in run.failures]
        click.echo(f"Full bar, without the data set's tripwires: {'; '.join(failures) or 'within bar'}.")
    return OUTSIDE if failures else 0


def _named(arms: Sequence[str]) -> list[str]:
    for text in arms:
        if "=" not in text or not text.split("=", 1)[1]:
            raise EngcmpError(f"--arm {text!r} has no folder", remedy="write --arm NAME=DIR")
    if not arms:
        raise EngcmpError("no arm is given", remedy="write --arm NAME=DIR")
    return [text.split("=", 1)[0] for text in arms]


def _refuse_taken(out: Path) -> None:
    """Results appear as one new folder, so two scorings never mix: what cannot become that folder is refused before rows are read."""
    with disk_errors(out):
        if out == Path.cwd() or (out.exists() and not (out.is_dir() and not any(out.iterdir()))):
            raise _taken(out)
        parent = next(path for path in out.parents if path.exists())
        if not (parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)):
            raise EngcmpError(
                "results cannot be written there", where=str(out), remedy="name a folder that you may write in"
            )


def _taken(out: Path) -> EngcmpError:
    return EngcmpError(
        "there is something at --out already", where=str(out), remedy="name a new folder, or move that away"
    )


def _check_reference(panel: Panel, reference: Path | None, where: Path) -> None:
    if (panel.reference == "none") == (reference is None):
        return
    need = (
        "has no reference: leave --reference out"
        if reference
        else f"has a {panel.reference} reference: give --reference"
    )
    raise EngcmpError(f"panel {panel.panel} {need}", where=str(where), remedy="or mend the panel's `reference`")


def _progress(panel: Panel, what: str, unit: str, total: int) -> Progress:
    return Progress(stderr_line, f"score {panel.panel}{what}", unit, total, time.monotonic_ns)


def _gap_sentence(gap: str, document: Mapping[str, Any]) -> str:
    name = document["declared"]["primary"]
    own = document["gap_closed"][name]
    if own["value"] is None:
        return f"{gap}: gap closed by {name}: none, {own['reason']}."
    ends = own["interval95"]
    interval = own["reason"] if ends is None else f"95 % interval {ends[0]:+.4g} to {ends[1]:+.4g}"
    return f"{gap}: gap closed by {name}: {own['value']:.4g} of 1 ({interval})."


def _arms(count: int) -> str:
    return f"{count} arm{'s' * (count > 1)}"


def _results(
    panel: Panel, asked: Request, scored: Scored, inputs: Mapping[str, list[dict[str, Any]]], *, preset: Preset
) -> dict[str, bytes]:
    """Every file of the results, by its name."""
    keys, files = keys_of(panel), {}
    again = Repeats(asked.repeats, scored.pairs, scored.chunks)
    progress = _progress(panel, ": intervals", "documents", len(asked.arms) + len(asked.pairs) + len(asked.gaps))
    for number, name in enumerate(asked.arms):
        progress.update(number, f"{name}.json")
        rows, measures = f"{name}.rows.parquet", scored.measures[name]
        columns, table = _rows_table(keys, measures)
        files[rows] = parquet_bytes(columns, table)
        own = [one for owner in ("panel", REFERENCE, name) for one in inputs.get(owner, [])]
        document = arm_document(
            panel, name, keys, measures, preset=preset, inputs=own, lacking=scored.lacking[name], repeats=again
        )
        step = scored.step_of(name)
        document |= {
            "alignment": plain(scored.alignment[name]),
            "rounded": None if step is None else {"step": step, "sentence": rounding_sentence(step)},
        }
        files[f"{name}.json"] = canonical_bytes(document)
        if panel.reference != "none":
            files[f"tails/{name}.json"] = _tails(table, Path(rows), sha256_bytes(files[rows]))
    for number, pair in enumerate(asked.pairs, len(asked.arms)):

        def say(place: str, number: int = number, pair: PairOf = pair) -> None:
            progress.update(number, f"{pair.file_name}, {place}")

        found = pair_document(
            pair, keys, scored.measures, repeats=asked.repeats, distances=scored.pairs, preset=preset, progress=say,
            lacking=scored.lacking, not_of_pair=scored.not_of_pair, chunks=scored.chunks,
        )  # fmt: skip
        files[pair.file_name] = canonical_bytes(found)
    for number, gap in enumerate(asked.gaps, len(asked.arms) + len(asked.pairs)):
        progress.update(number, gap.file_name)
        files[gap.file_name] = canonical_bytes(gap_document(gap, keys, scored.measures, preset=preset))
    return files


def _publish(out: Path, files: Mapping[str, bytes]) -> None:
    """Make `out` with all `files` in it, or nothing. What a kill leaves beside it has a name with a dot in front."""
    partial = out.with_name(f".{out.name}.{secrets.token_hex(4)}.partial")
    with disk_errors(out):
        make_folder(out.parent)
        try:
            for name, data in files.items():
                replace_visible(partial / name, data)
            try:
                partial.rename(out)
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise _taken(out) from error
                raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        sync_folder(out.parent)


def _rows_table(keys: Keys, measures: Mapping[str, Any]) -> tuple[tuple[Column, ...], dict[str, Any]]:
    """A line for each row: where it is, its measures, and of the reference what derived measures need."""
    extra = (_CONFIDENCE,) if _CONFIDENCE.name in measures else ()
    columns = (*_KEYS, *(measure_column(name) for name in measures if name in MEASURES), *extra)
    own = {column.name: getattr(keys, column.name) for column in _KEYS}
    return columns, own | {column.name: measures[column.name] for column in columns if column not in _KEYS}


def _row_file(path: Path) -> dict[str, Any]:
    """The columns of a row file, its rows by window and position. Raises EngcmpError for a foreign file and a row that stands twice."""
    if not path.is_file():
        what = "it is a folder or a device, not a file" if path.exists() else "there is no such file"
        raise EngcmpError(what, where=str(path), remedy=_NAME_ROWS)
    table = read_parquet(path)
    wanted = {column.name: "O" if column.dtype == "str" else "i" for column in _KEYS}
    for name, kind in (wanted | {name: "f" for name in table if name in MEASURES}).items():
        if name not in table or table[name].dtype.kind != kind:
            fault = "is missing" if name not in table else f"has empty or foreign values ({table[name].dtype})"
            raise EngcmpError(f"column {name} {fault}", where=str(path), remedy=_NAME_ROWS)
    order = np.lexsort((table["position"], table["window_id"].astype(str)))
    table = {name: values[order] for name, values in table.items()}
    twice = (table["window_id"][1:] == table["window_id"][:-1]) & (table["position"][1:] == table["position"][:-1])
    if twice.any():
        raise EngcmpError(f"{_row(table, int(twice.argmax()))} stands twice", where=str(path), remedy=_NAME_ROWS)
    return table


def _row(table: Mapping[str, Any], row: int) -> str:
    return f"window {table['window_id'][row]}, row {table['position'][row]}"


def _same_rows(candidate: Path, baseline: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Both files, once they are known to be of the same rows."""
    one, two = (_row_file(path) for path in (candidate, baseline))
    where, remedy = f"{candidate} and {baseline}", "score both on one panel"
    if len(one["position"]) != len(two["position"]):
        counts = f"{len(one['position']):,} and {len(two['position']):,} rows"
        raise EngcmpError(f"the two files have {counts}", where=where, remedy=remedy)
    for name in ("window_id", "position", "next_token", "role"):
        apart = np.flatnonzero(one[name] != two[name])
        if apart.size:
            place = " and ".join(dict.fromkeys(_row(table, int(apart[0])) for table in (one, two)))
            raise EngcmpError(f"the two files differ in {name}: {place}", where=where, remedy=remedy)
    return one, two


def _tails(table: Mapping[str, Any], path: Path, sha256: str) -> bytes:
    """The tails of a row file, as canonical JSON."""
    kl = next((name for name in DISTANCES if name in table), None)
    if kl is None:
        raise EngcmpError("no KL from a reference", where=str(path), remedy="score with a reference")
    tails = tail_statistics(table[kl], TailRows.of(table), row_file_sha256=sha256)
    return canonical_bytes({"measure": kl} | plain(tails))


def _differences(published: Any, found: Any, place: str = "") -> Iterator[str]:
    """Every place where two documents differ; numbers by more than the rounding of another machine."""
    name = place.lstrip(".") or "the whole"
    if isinstance(published, dict) and isinstance(found, dict):
        for key in sorted(set(published) | set(found)):
            if key not in published or key not in found:
                fault = "is not published" if key in found else "does not follow from the rows"
                yield f"{place}.{key} {fault}".lstrip(".")
            else:
                yield from _differences(published[key], found[key], f"{place}.{key}")
    elif isinstance(published, list) and isinstance(found, list) and len(published) == len(found):
        for index, (one, two) in enumerate(zip(published, found, strict=True)):
            yield from _differences(one, two, f"{place}[{index}]")
    elif not _equal(published, found):
        yield f"{name} is published as {str(published)[:80]}, the rows give {str(found)[:80]}"


def _equal(one: Any, other: Any) -> bool:
    if all(type(value) in (int, float) for value in (one, other)):
        return math.isclose(one, other, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)
    return type(one) is type(other) and bool(one == other)  # true is not 1


def _inputs(panel: Panel, files: Mapping[str, Mapping[str, int]], *, hashed: bool) -> dict[str, list[dict[str, Any]]]:
    """The files that were read, by what they are of; `sha256_from` says whether a digest was read from the file or only said of it."""
    total = sum(size for own in files.values() for size in own.values())
    progress, done = _progress(panel, ": hashing", "MB", total // _MB), 0
    found: dict[str, list[dict[str, Any]]] = {}
    for owner, own in files.items():
        for path, size in sorted(own.items()):
            if hashed:
                progress.update(done // _MB, Path(path).name)
            digest, source = (_digest(Path(path)), "the file") if hashed else known_sha256(Path(path)) or (None, None)
            own_entry = {"name": Path(path).name, "of": owner, "bytes": size, "sha256": digest, "sha256_from": source}
            found.setdefault(owner, []).append(own_entry)
            done += size
    return found


def _digest(path: Path) -> str:
    """SHA-256 of a file; of a dump's folder, that of the lines `sha256sum *` prints in it."""
    if path.is_file():
        return sha256_file(path)
    lines = [f"{sha256_file(one)}  {one.name}\n" for one in sorted(path.iterdir()) if one.is_file()]
    return sha256_bytes("".join(lines).encode())


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise EngcmpError(
            f"cannot be read: {error.strerror}", where=f"file {path}", remedy="name a file that is there"
        ) from error
