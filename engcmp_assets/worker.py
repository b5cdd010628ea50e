"""`engcmp-worker QUEUE`: takes the runs of one GPU host, one at a time, from the queue that is named after it.

It needs the extra `machines`, ENGCMP_BROKER (the address of Redis) and a DAGSTER_HOME with deploy/dagster.yaml. Addresses are read from
the environment, so that no password stands in the list of processes.
"""

import contextlib
import os
import re
import sys
from pathlib import Path
from typing import Any

from celery.signals import task_postrun, task_prerun
from dagster_celery.config import DEFAULT_CONFIG
from dagster_celery.make_app import make_app
from dagster_celery.tasks import create_execute_job_task

from engcmp_assets.beats import beating

_QUEUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
# Redis gives a message to another worker after this time, were it not taken up: longer than any run.
_LONGEST_RUN_S = 7 * 86400
_running: dict[str, contextlib.ExitStack] = {}


def main() -> None:
    """Serve one queue until told to stop (SIGTERM: after the run in progress). Exit 2 for wrong usage."""
    arguments, broker, home = sys.argv[1:], os.environ.get("ENGCMP_BROKER"), os.environ.get("DAGSTER_HOME")
    if len(arguments) != 1 or _QUEUE.fullmatch(arguments[0]) is None:
        sys.exit("usage: engcmp-worker QUEUE        (the name of this host: letters, digits, dots, dashes)")
    if not broker or not home or not (Path(home) / "dagster.yaml").is_file():
        sys.exit(
            "engcmp-worker: set ENGCMP_BROKER, and DAGSTER_HOME to a folder with engcmp_resources/deploy/dagster.yaml"
        )
    (queue,) = arguments
    app = make_app(
        {
            "broker": broker, "backend": broker, "task_default_queue": queue,
            "config_source": DEFAULT_CONFIG | {"broker_transport_options": {"visibility_timeout": _LONGEST_RUN_S}},
        }
    )  # fmt: skip
    create_execute_job_task(app)
    task_prerun.connect(_begin, weak=False)
    task_postrun.connect(_end, weak=False)
    app.worker_main(
        ["worker", "-Q", queue, "-n", f"{queue}@%h", "--concurrency=1", "--prefetch-multiplier=1", "--loglevel=INFO"]
    )


def _begin(task_id: str, args: Any = (), kwargs: Any = None, **_signal: Any) -> None:
    packed = (kwargs or {}).get("execute_job_args_packed") or (args[0] if args else {})
    run_id = packed.get("run_id")
    if run_id:
        _running[task_id] = contextlib.ExitStack()
        _running[task_id].enter_context(beating(run_id))


def _end(task_id: str, **_signal: Any) -> None:
    if stack := _running.pop(task_id, None):
        stack.close()


if __name__ == "__main__":
    main()
