"""`engcmp launch diff`: how the launches of two arms differ. It needs no Dagster instance."""

from __future__ import annotations

import json

import click

from engcmp_assets.engine_launch.sides import launch_side
from engcmp_assets.kernel.fields import ScorePath
from engcmp_assets.kernel.launch_diff import differences_text, launch_differences
from engcmp_assets.kernel.names import LAUNCH
from engcmp_assets.kernel.records import ArmKey, plain
from engcmp_assets.kernel.study import load_study
from engcmp_resources.errors import EngcmpError
from engcmp_resources.places import home_folder, study_names
from engcmp_resources.store import Store


@click.group(epilog="Example: engcmp launch diff smollm2-cpu/q4_0/llamacpp@b8672 smollm2-cpu/q4_0/llamacpp@b10809")
def launch() -> None:
    """What is known of the launches that were measured."""


@launch.command(
    short_help="List every difference between two launches.",
    epilog="Example: engcmp launch diff smollm2-cpu/q4_0/llamacpp@b8672 smollm2-cpu/q4_0/llamacpp@b10809",
)
@click.argument("first")
@click.argument("second")
@click.option(
    "--path",
    type=click.Choice(["prefill", "decode"]),
    help="Score path whose starts are compared; by default the first that both arms have.",
)
@click.option("--json", "as_json", is_flag=True, help="For machines: one JSON object on standard output.")
def diff(first: str, second: str, path: ScorePath | None, as_json: bool) -> None:
    """List every difference between the launches of two arms, each named STUDY/ARM.

    First what the receipts tell and the protocol does not declare: each is a confound of a comparison. Then what it declares.
    """
    store = Store(home_folder(), read_only=True)
    sides = [launch_side(store, *_named(store, name), path=path) for name in (first, second)]
    found = launch_differences(*sides)
    click.echo(
        json.dumps({"first": first, "second": second, "differences": plain(found)}, indent=1)
        if as_json
        else differences_text(found, (first, second))
    )


def _named(store: Store, text: str) -> tuple[str, ArmKey]:
    study, _, arm = text.partition("/")
    if not arm or study not in study_names():
        measured = _measured(store)
        there = f"measured here: {', '.join(measured)}" if measured else "none was measured here yet: engcmp run STUDY"
        raise EngcmpError(
            f"{text!r} names no launch: a name is STUDY/ARM, as smollm2-cpu/q4_0/llamacpp@b8672, and the studies are "
            f"{', '.join(study_names())}",
            remedy=f"name one of those {there}" if measured else there,
        )
    return study, load_study(study).protocol.require_arm(arm)


def _measured(store: Store) -> list[str]:
    """The launches that were measured, as they are named."""
    root = store.home / "heads"
    return [
        f"{study}/{folder.name.replace('~', '/')}"
        for study in study_names()
        for folder in (sorted((root / study).iterdir()) if (root / study).is_dir() else ())
        if (folder / f"{LAUNCH}.json").is_file()
    ]
