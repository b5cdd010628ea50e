"""`engcmp gc`: what dead runs left, and files that nothing needs."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import click

from engcmp_assets.audit.captures import DeadCapture, dead_captures
from engcmp_assets.audit.collect import Unreached, remove, unreached
from engcmp_assets.audit.leftovers import clean_up
from engcmp_assets.commands.instance import open_instance
from engcmp_assets.lost_runs import end_lost_runs
from engcmp_resources.errors import EngcmpError
from engcmp_resources.gpu_locks import leases
from engcmp_resources.places import home_folder
from engcmp_resources.store import Store


@click.command(epilog="Example: engcmp gc --files        (a dry run; add --yes to remove)")
@click.option(
    "--files",
    is_flag=True,
    help="Also list captures that no run goes on with, and files and receipts that nothing reaches.",
)
@click.option("--yes", is_flag=True, help="With --files: remove them. A tombstone receipt says what there was.")
def gc(files: bool, yes: bool) -> None:
    """Clean up after runs that were killed: engine processes, GPU leases, Dagster runs whose process is gone, temporary files.

    Beside a run that measures it leaves alone what is that run's; files are then only listed.
    """
    if yes and not files:
        raise click.UsageError("--yes goes with --files")
    found = clean_up(click.echo)
    store = Store(home_folder())
    with open_instance() as instance:
        found += [f"reported as ended: run {run_id}" for run_id in end_lost_runs(instance)]
    click.echo("\n".join(found) or "no run has left anything")
    for lease, stale in leases():
        if not stale:
            click.echo(f"held: {lease.what}, by {lease}")
    if yes:
        _collect_for_good(store)
    elif files:
        _collect(store)


def _collect(store: Store) -> None:
    """A dry run: it may be done beside a run, whose unrecorded files are then among those listed."""
    dead: list[DeadCapture] = []
    try:
        with store.alone():
            dead = dead_captures(store)
    except EngcmpError as error:
        click.echo(f"unfinished captures were not looked at: {error.what}")
    found = unreached(store, [one.name for one in dead])
    _list("would remove", store, found, dead)
    click.echo(f"{_total(found, dead)}; nothing was removed, add --yes to remove them")


def _collect_for_good(store: Store) -> None:
    with store.alone():
        dead = dead_captures(store)
        found = unreached(store, [one.name for one in dead])
        if not (found.files or found.receipts or found.private or dead):
            click.echo(_total(found, dead))
            return
        for one in dead:  # first: a folder whose rows are gone would only be found damaged
            store.drop_scratch(one.name)
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        tombstone = remove(store, found, removed_at=now)
    _list("removed", store, found, dead)
    click.echo(f"{_total(found, dead)} removed; tombstone tombstones/{tombstone}.json")


def _list(word: str, store: Store, found: Unreached, dead: Sequence[DeadCapture]) -> None:
    for one in dead:
        click.echo(f"{word} scratch/{one.name} ({one.bytes:,} bytes, {one.windows} {one.unit}s): {one.why}")
    for blob in found.files:
        click.echo(f"{word} {store.here(blob).relative_to(store.home)} ({blob.bytes:,} bytes)")
    for name in found.receipts:
        click.echo(f"{word} receipts/{name}.json")
    for name in found.private:
        click.echo(f"{word} private text {name}")


def _total(found: Unreached, dead: Sequence[DeadCapture]) -> str:
    captures = f"{len(dead)} unfinished captures, " if dead else ""
    texts = f", {len(found.private)} private texts" if found.private else ""
    return f"{captures}{len(found.files)} files, {found.bytes / 1e6:,.1f} MB, {len(found.receipts)} receipts{texts}"
