"""`engcmp reap`: ends runs whose worker is gone, on this machine or another."""

from __future__ import annotations

import time

import click

from engcmp_assets.beats import BEAT_S, end_silent_runs
from engcmp_assets.commands.instance import instance_in_use
from engcmp_assets.kernel.silent_runs import SILENT_S, Heard
from engcmp_assets.lost_runs import end_lost_runs


@click.command(epilog="Example: engcmp reap        (the sensor engcmp_lost_runs does the same all the time)")
def reap() -> None:
    """Find runs whose worker was killed or whose host is off, and report them as failed, with the cause.

    Of runs on other machines it watches for a minute whether each says that it lives. What they completed is kept: launch them again.
    """
    with instance_in_use() as instance:
        ended = end_lost_runs(instance)
        heard: dict[str, Heard] = {}
        until = time.monotonic() + SILENT_S + BEAT_S
        while True:
            heard, silent = end_silent_runs(instance, heard, time.monotonic())
            ended += silent
            if not heard or time.monotonic() > until:
                break
            time.sleep(BEAT_S)
    click.echo(
        "\n".join(f"reported as ended: run {run_id}" for run_id in ended) or "every run in progress has its worker"
    )
