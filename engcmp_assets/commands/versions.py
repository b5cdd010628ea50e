"""`engcmp versions`: look for new versions of a study's engines, and approve one."""

from __future__ import annotations

import json

import click

from engcmp_assets.automation import sync_partitions
from engcmp_assets.commands.instance import open_instance
from engcmp_assets.commands.run import run_job
from engcmp_assets.engine_versions.look import candidates_of
from engcmp_assets.frozen_protocol.iteration_freeze import freeze_iteration
from engcmp_assets.graph import definitions
from engcmp_assets.kernel.names import ENGINE_VERSIONS
from engcmp_assets.kernel.study import Study, load_study
from engcmp_assets.kernel.tables import read_parquet
from engcmp_assets.kernel.work import output_blob
from engcmp_resources.errors import EngcmpError
from engcmp_resources.places import home_folder
from engcmp_resources.store import Store

_NAMES = ("engine", "tag", "version", "state", "why")
_UNSHOWN = "does not count"


@click.command(
    epilog="Example: engcmp versions smollm2-cpu, then engcmp versions smollm2-cpu --approve llamacpp-b11600"
)
@click.argument("study")
@click.option("--approve", help="Freeze this candidate, so that its arms are part of the study; nothing is looked for.")
@click.option(
    "--all", "show_all", is_flag=True, help="Also list the releases that do not count by the protocol's rule."
)
@click.option("--json", "as_json", is_flag=True, help="For machines: one JSON object on standard output.")
def versions(study: str, approve: str | None, show_all: bool, as_json: bool) -> None:
    """Look for new versions of STUDY's engines; each new one that counts becomes a candidate that waits for approval."""
    loaded = load_study(study)
    loaded.require_frozen()
    if approve is not None:
        click.echo(freeze_iteration(loaded, approve))
        with open_instance() as instance:
            sync_partitions(instance, load_study(study))
        click.echo(f"Measure it: engcmp run {study}   (or the UI does, where `measure = true` stands in its file)")
        return
    if not loaded.protocol.releases:
        raise EngcmpError(
            f"study {study} looks for no new versions", where="protocol field releases",
            remedy="add [releases.ENGINE] to its protocol.toml and amend it",
        )  # fmt: skip
    job = f"{loaded.protocol.asset_prefix}_{ENGINE_VERSIONS}"
    with open_instance() as instance:
        sync_partitions(instance, loaded)
        run_job(definitions(), job, instance)
    rows, silent = _found(loaded)
    waiting = [name for name, adds in candidates_of(load_study(study)).items() if adds.declined is None]
    if as_json:
        click.echo(json.dumps({"releases": rows, "waiting": waiting, "no_answer": silent}, indent=1))
        return
    click.echo(_text(rows, show_all=show_all))
    for engine, why in silent.items():
        click.echo(f"\n{engine}: no answer ({why}); look again later")
    for name in waiting:
        click.echo(f"\nwaiting for approval: {name}\n  read     {loaded.folder / 'iterations' / name}.toml\n"
                   f"  approve  engcmp versions {study} --approve {name}")  # fmt: skip


def _found(study: Study) -> tuple[list[dict[str, str]], dict[str, str]]:
    store, name = Store(home_folder()), study.protocol.study
    receipt = store.read_receipt(str(store.head(name, None, ENGINE_VERSIONS)))
    table = read_parquet(store.path(output_blob(receipt, "engine_versions.parquet")))
    rows = [dict(zip(_NAMES, row, strict=True)) for row in zip(*(table[one].tolist() for one in _NAMES), strict=True)]
    check = next(one for one in receipt["checks"] if one["name"] == "every_place_answered")
    return rows, {} if check["passed"] else dict(check["evidence"])


def _text(rows: list[dict[str, str]], *, show_all: bool) -> str:
    shown = [row for row in rows if show_all or row["state"] != _UNSHOWN]
    widths = {name: max([len(name), *(len(row[name]) for row in shown)]) for name in _NAMES[:-1]}
    lines = [
        "  ".join([*(row[name].ljust(width) for name, width in widths.items()), row["why"]]).rstrip()
        for row in [{name: name for name in _NAMES}, *shown]
    ]
    left_out = len(rows) - len(shown)
    return "\n".join([*lines, *([f"{left_out} more do not count; --all lists them"] if left_out else [])])
