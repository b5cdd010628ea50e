"""`engcmp versions`: look for new versions of a study's engines, and approve one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

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
from engcmp_resources.places import ITERATIONS, home_folder
from engcmp_resources.store import Store

_NAMES = ("engine", "tag", "version", "state", "why")
_UNSHOWN = "does not count"
# Names in the answer for machines, and the checks whose evidence they give.
_TOLD = {
    "pushed_again": "no_tag_pushed_again",
    "no_answer": "every_place_answered",
    "not_pinned": "every_new_release_pinned",
}


@click.command(
    epilog="Example: engcmp versions smollm2-cpu, then engcmp versions smollm2-cpu --approve llamacpp-b11600"
)
@click.argument("study")
@click.option("--approve", help="Freeze this candidate, so that its arms are part of the study; nothing is looked for.")
@click.option(
    "--all", "show_all", is_flag=True, help="Also list the releases that do not count by the protocol's rule."
)
@click.option("--json", "as_json", is_flag=True, help="For machines: one JSON object on standard output.")
def versions(study: str, approve: str | None, show_all: bool, as_json: bool) -> int:
    """Look for new versions of STUDY's engines; each new one that counts becomes a candidate that waits for approval.

    Exit 0 if every place answered and every new release could be pinned, else 1.
    """
    loaded = load_study(study)
    loaded.require_frozen()
    if approve is not None:
        click.echo(freeze_iteration(loaded, approve))
        with open_instance() as instance:
            sync_partitions(instance, load_study(study))
        click.echo(f"Measure it: engcmp run {study}")
        return 0
    if not loaded.protocol.releases:
        raise EngcmpError(
            f"study {study} looks for no new versions", where="protocol field releases",
            remedy="add [releases.ENGINE] to its protocol.toml and amend it",
        )  # fmt: skip
    job = f"{loaded.protocol.asset_prefix}_{ENGINE_VERSIONS}"
    with open_instance() as instance:
        sync_partitions(instance, loaded)
        run_job(definitions(), job, instance)
    rows, failed = _found(loaded)
    waiting = [name for name, adds in candidates_of(load_study(study)).items() if adds.declined is None]
    if as_json:
        told = {name: failed.get(check, {}) for name, check in _TOLD.items()}
        click.echo(json.dumps({"releases": rows, "waiting": waiting} | told, indent=1))
    else:
        click.echo(_text(rows, failed, [_how_to(loaded, name) for name in waiting], show_all=show_all))
    return 1 if {_TOLD["no_answer"], _TOLD["not_pinned"]} & set(failed) else 0


def _found(study: Study) -> tuple[list[dict[str, str]], dict[str, dict[str, str]]]:
    """The releases, line by line, and the evidence of each check that failed, by its name."""
    store, name = Store(home_folder()), study.protocol.study
    receipt = store.read_receipt(str(store.head(name, None, ENGINE_VERSIONS)))
    table = read_parquet(store.path(output_blob(receipt, "engine_versions.parquet")))
    rows = [dict(zip(_NAMES, row, strict=True)) for row in zip(*(table[one].tolist() for one in _NAMES), strict=True)]
    return rows, {one["name"]: dict(one["evidence"]) for one in receipt["checks"] if not one["passed"]}


def _how_to(study: Study, name: str) -> str:
    path = study.folder / ITERATIONS / f"{name}.toml"
    return f"waiting for approval: {name}\n  read     {path}\n  approve  engcmp versions {study.folder.name} --approve {name}"


def _text(
    rows: list[dict[str, str]], failed: Mapping[str, Mapping[str, str]], waiting: Sequence[str], *, show_all: bool
) -> str:
    def told(name: str) -> Mapping[str, str]:
        return failed.get(_TOLD[name], {})

    return "\n\n".join(
        [
            *([_table(rows, show_all=show_all)] if rows else []),
            *(
                f"ALARM: {tag} was pushed again with other content; what the study has stays as it is"
                for tag in told("pushed_again")
            ),
            *(f"{engine}: no answer ({why}); look again later" for engine, why in told("no_answer").items()),
            *(f"{tag} cannot be pinned: {why}" for tag, why in told("not_pinned").items()),
            *waiting,
        ]
    )


def _table(rows: list[dict[str, str]], *, show_all: bool) -> str:
    shown = [row for row in rows if show_all or row["state"] != _UNSHOWN]
    widths = {name: max([len(name), *(len(row[name]) for row in shown)]) for name in _NAMES[:-1]}
    lines = [
        "  ".join([*(row[name].ljust(width) for name, width in widths.items()), row["why"]]).rstrip()
        for row in [{name: name for name in _NAMES}, *shown]
    ]
    left_out = len(rows) - len(shown)
    return "\n".join([*lines, *([f"{left_out} more do not count; --all lists them"] if left_out else [])])
