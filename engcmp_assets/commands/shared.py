"""`engcmp push` and `engcmp pull`: results that several machines share in an object store."""

from __future__ import annotations

import click

from engcmp_assets.kernel.study import load_study
from engcmp_resources.places import home_folder
from engcmp_resources.shared_heads import pull as pull_results
from engcmp_resources.shared_heads import push as push_results
from engcmp_resources.store import Store


@click.command(epilog="Example: engcmp push smollm2-cpu        (with ENGCMP_OBJECT_STORE=s3://bucket/prefix)")
@click.argument("study")
def push(study: str) -> None:
    """Put STUDY's results into the object store: receipts, and all files that they name. What is there already is not sent again.

    Runs do so by themselves where ENGCMP_OBJECT_STORE is set; this is for results from before, and after a lost connection.
    """
    store = Store(home_folder())
    count = push_results(store, load_study(study).folder.name)
    click.echo(f"{study}: {count} results are in the object store, with all that they rest on")


@click.command(epilog="Example: engcmp pull smollm2-cpu        (with ENGCMP_OBJECT_STORE=s3://bucket/prefix)")
@click.argument("study")
@click.option("--files/--no-files", default=True, show_default=True, help="Also the files, or only receipts and heads.")
def pull(study: str, files: bool) -> None:
    """Take STUDY's results from the object store into this machine's home; every file and receipt must have its hash."""
    store = Store(home_folder())
    moved = pull_results(store, load_study(study).folder.name, files=files)
    click.echo(f"{study}: {len(moved)} results are new here" + (", with all files that they need" if files else ""))
