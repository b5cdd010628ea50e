"""`engcmp gc`: what dead runs left, and files that nothing needs."""

from __future__ import annotations

import datetime

import click

from engcmp_assets.audit.collect import remove, unreached
from engcmp_assets.commands.instance import open_instance
from engcmp_assets.graph import end_lost_runs
from engcmp_resources.errors import EngcmpError
from engcmp_resources.locks import engine_lock, remove_orphans
from engcmp_resources.places import home_folder
from engcmp_resources.store import Store


@click.command(epilog="Example: engcmp gc --files        (a dry run; add --yes to remove)")
@click.option(
    "--files", is_flag=True, help="Also list files and receipts that no result and no unfinished capture reaches."
)
@click.option("--yes", is_flag=True, help="With --files: remove them. A tombstone receipt says what there was.")
def gc(files: bool, yes: bool) -> None:
    """Clean up after runs that were killed: engine processes, Dagster runs whose process is gone, temporary files."""
    if yes and not files:
        raise click.UsageError("--yes goes with --files")
    before = _temporaries()
    store = Store(home_folder())  # opening it removes the temporary files of processes that are gone
    found = _end_orphans() + [f"removed temporary scratch/{name}" for name in sorted(before - _temporaries())]
    with open_instance() as instance:
        found += [f"reported as ended: run {run_id}" for run_id in end_lost_runs(instance)]
    click.echo("\n".join(found) or "no run has left anything")
    if files:
        _collect(store, yes=yes)


def _temporaries() -> set[str]:
    return {path.name for path in (home_folder() / "scratch").glob("tmp-*") if path.suffix != ".lock"}


def _end_orphans() -> list[str]:
    """End engine processes without an owner. While a run holds the engine lock, its engine is left alone."""
    try:
        with engine_lock(arm="gc", run_id="gc", waiting=lambda _text: None, timeout_s=0) as lock:
            return remove_orphans(lock)
    except EngcmpError as error:
        click.echo(f"engine processes were not looked at: {error.what}")
        return []


def _collect(store: Store, *, yes: bool) -> None:
    found = unreached(store)
    for blob in found.files:
        click.echo(
            f"{'removed' if yes else 'would remove'} {store.path(blob).relative_to(store.home)} ({blob.bytes:,} bytes)"
        )
    for name in found.receipts:
        click.echo(f"{'removed' if yes else 'would remove'} receipts/{name}.json")
    total = f"{len(found.files)} files, {found.bytes / 1e6:,.1f} MB, {len(found.receipts)} receipts"
    if not yes:
        click.echo(f"{total}; nothing was removed, add --yes to remove them")
    elif found.files or found.receipts:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        click.echo(f"{total} removed; tombstone tombstones/{remove(store, found, removed_at=now)}.json")
    else:
        click.echo(total)
