"""`engcmp export`: a study as a folder that anyone can verify, and the check of such a folder."""

from __future__ import annotations

import json
from pathlib import Path

import click

from engcmp_assets.audit.recompute import Evidence
from engcmp_assets.commands.paths import PathArgument
from engcmp_assets.export.bundle import Exported
from engcmp_assets.export.bundle import export as write_bundle
from engcmp_assets.export.signing import read_key
from engcmp_assets.export.verifier.faults import Fault
from engcmp_assets.export.verifier.main import verify
from engcmp_assets.export.verifier.reading import MANIFEST
from engcmp_assets.kernel.progress import stderr_line
from engcmp_assets.kernel.records import plain
from engcmp_assets.kernel.study import load_study
from engcmp_resources.errors import EngcmpError
from engcmp_resources.places import home_folder


@click.command(epilog="Example: engcmp export smollm2-cpu --out smollm2-cpu-bundle")
@click.argument("study", required=False)
@click.option("--out", type=PathArgument(), help="The folder to write; it must not exist, or be empty.")
@click.option("--sign", type=PathArgument(), help="Sign by this Ed25519 key (PEM, mode 0600).")
@click.option("--with-rows", is_flag=True, help="Take row files and weights along, not only their hashes.")
@click.option("--check", type=PathArgument(), help="Verify this bundle with this engcmp's own verifier.")
@click.option("--head", help="With --check: the head that was published; the bundle must have it.")
@click.option("--key", help="With --check: the public key (hex) that must have signed.")
@click.option("--json", "as_json", is_flag=True, help="For machines: one JSON object on standard output.")
def export(  # noqa: PLR0917 - click calls it by name
    study: str | None, out: Path | None, sign: Path | None, with_rows: bool, check: Path | None, head: str | None,
    key: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Write STUDY's results as a folder: receipts, results, pages, rows as CSV, and a verifier that needs only Python.

    Before anything is written, each file is scanned: keys, home paths, names of this host and user, and e-mail addresses are replaced
    by placeholders, and both hashes are kept. Reply texts are not part of any export. The head that is printed is worth publishing:
    with it, `python verify.py --head HEAD` tells a bundle that was made anew from this one.
    """
    if check is not None:
        if study or out or sign or with_rows:
            raise click.UsageError("--check FOLDER goes alone, with --head and --key")
        _check(check, head, key, as_json=as_json)
        return
    if study is None or out is None or head or key:
        raise click.UsageError(
            "an export needs a study and --out FOLDER; --head and --key go with --check FOLDER, the folder of an export"
        )
    signer = read_key(sign) if sign is not None else None
    made = write_bundle(load_study(study), Evidence(home_folder()), out, stderr_line, key=signer, with_rows=with_rows)
    click.echo(json.dumps(plain(made), indent=1, default=str) if as_json else _text(study, made))


def _check(folder: Path, head: str | None, key: str | None, *, as_json: bool) -> None:
    if not folder.is_dir():
        raise EngcmpError(
            "no such folder", where=str(folder), remedy="name a folder that `engcmp export STUDY --out FOLDER` wrote"
        )
    if not (folder / MANIFEST).exists():
        raise EngcmpError(
            f"not an export: it has no {MANIFEST}", where=str(folder),
            remedy="name the folder that `engcmp export` wrote, whole as it was; if this is it, fetch it again",
        )  # fmt: skip
    try:
        text = verify(folder, head=head, key=key)
    except Fault as fault:
        raise EngcmpError(
            fault.what, where=fault.file, remedy="fetch the bundle again, or do not believe it"
        ) from fault
    click.echo(json.dumps({"verified": True, "text": text}) if as_json else text)


def _text(study: str, made: Exported) -> str:
    lines = [
        f"{study}: exported to {made.folder}",
        f"  {made.files} files, {made.bytes / 1e6:,.1f} MB; {made.by_hash} more (row files, weights) by their hash",
        f"  head {made.head_sha256}",
        f"  signed by {made.signed_by}" if made.signed_by else "  not signed (--sign KEY.pem)",
    ]
    lines += [f"  placeholders in {path}: {', '.join(kinds)}" for path, kinds in sorted(made.replaced.items())]
    lines += [f"  left out {path}: it holds {', '.join(kinds)}" for path, kinds in sorted(made.left_out.items())]
    return "\n".join([*lines, f"verify it anywhere: python {made.folder}/verify.py"])
