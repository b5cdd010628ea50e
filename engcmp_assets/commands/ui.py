"""`engcmp ui`: the Dagster webserver and daemon on loopback, on the results of ENGCMP_HOME."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import click
import httpx

from engcmp_assets.automation import sync_partitions
from engcmp_assets.commands.instance import instance_folder, open_instance
from engcmp_assets.kernel.progress import stderr_line
from engcmp_assets.kernel.study import load_study
from engcmp_assets.lost_runs import end_lost_runs
from engcmp_resources.errors import EngcmpError
from engcmp_resources.places import CHECKOUT, home_folder, study_names

HOST = "127.0.0.1"
_START_S, _POLL_S = 90.0, 0.1
# A measurement that is told to stop ends its engine and reports itself; what needs longer than this is killed.
_STOP_S = 5.0
_LOG_TAIL_LINES = 20


@click.command(epilog="Example: engcmp ui --port 3001")
@click.option("--port", default=3000, show_default=True, type=click.IntRange(1, 65535), help="Port on 127.0.0.1.")
@click.option(
    "--read-only", is_flag=True, help="For auditors: nothing can be started, changed or reported. No daemon runs."
)
def ui(port: int, read_only: bool) -> None:
    """Open the Dagster UI on 127.0.0.1. Ctrl-C ends it; measurements that it started are ended too and can be continued."""
    url = f"http://{HOST}:{port}"
    _require_free(port)
    with _stop_signals() as told, _only_ui(url, unless=read_only) as lock:
        with open_instance() as instance:
            for name in study_names():
                sync_partitions(instance, load_study(name))
            for run_id in [] if read_only else end_lost_runs(instance):
                stderr_line(f"Run {run_id[:8]} was cut off: its process is gone. Materialize again to continue it")
        gc.freeze()  # what is loaded stays loaded: the collector's passes over all of it would take most of a second at the end
        log = instance_folder() / ("ui-read-only.log" if read_only else "ui.log")
        children: list[subprocess.Popen[bytes]] = []
        with log.open("wb") as sink:
            try:
                flags = ["--read-only"] if read_only else []
                children.append(_start("dagster-webserver", "-h", HOST, "-p", str(port), *flags, sink=sink))
                if lock is not None:
                    children.append(_start("dagster-daemon", "run", sink=sink, lock=lock))
                _serve(url, children, told, log)
            finally:
                _stop(children)
    stderr_line("The UI is closed")


def _serve(url: str, children: Sequence[subprocess.Popen[bytes]], told: Callable[[], bool], log: Path) -> None:
    """Wait until the UI answers, then until it is told to stop. Raises EngcmpError when one of its processes ends."""
    deadline = time.monotonic() + _START_S
    ready = False
    while not told():
        if any(child.poll() is not None for child in children):
            _show_tail(log)
            what = "a process of the UI ended by itself" if ready else "the UI did not start"
            raise EngcmpError(what, where=str(log), remedy="its last lines stand above")
        if not ready and _answers(url):
            ready = True
            stderr_line(f"The UI is open on {url}/assets (Ctrl-C ends it)\nWhat its processes print goes to {log}")
        if not ready and time.monotonic() > deadline:
            _show_tail(log)
            raise EngcmpError(f"the UI did not answer within {_START_S:.0f} s", where=url, remedy="start it again")
        time.sleep(_POLL_S)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/server_info", timeout=2).is_success
    except httpx.TransportError:
        return False


def _start(tool: str, *arguments: str, sink: IO[bytes], lock: int | None = None) -> subprocess.Popen[bytes]:
    """Start a process in a group of its own: its code server and runs are in that group too, and end with it.

    It inherits `lock`, so that the lock is held for as long as it lives.
    """
    path = Path(sys.executable).with_name(tool)
    if not path.exists():
        raise EngcmpError(f"{tool} is not installed", where=str(path.parent), remedy="`make setup`")
    environment = os.environ | {"DAGSTER_HOME": str(home_folder() / "dagster"), "ENGCMP_HOME": str(home_folder())}
    return subprocess.Popen(
        [str(path), *arguments, "-w", str(CHECKOUT / "workspace.yaml")],
        cwd=CHECKOUT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=sink,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        pass_fds=() if lock is None else (lock,),
    )


@contextmanager
def _stop_signals() -> Iterator[Callable[[], bool]]:
    """Whether a signal to stop has come.

    Handlers are set in any case: a shell that starts this in the background sets Ctrl-C to be ignored.
    """
    seen: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    previous = {number: signal.signal(number, lambda received, _frame: seen.append(received)) for number in numbers}
    try:
        yield lambda: bool(seen)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def _only_ui(url: str, *, unless: bool) -> Iterator[int | None]:
    """Hold the lock of the daemon of these results: two daemons would start every run twice."""
    if unless:
        yield None
        return
    path = instance_folder() / "ui.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EngcmpError(
                f"these results already have a UI: {path.read_text(encoding='utf-8').strip() or 'just starting'}",
                where=str(home_folder()), remedy="use that one or end it; `engcmp ui --read-only` runs beside it",
            ) from None  # fmt: skip
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{url}, process {os.getpid()}\n".encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def _require_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            other = port - 1 if port == 65535 else port + 1  # noqa: PLR2004 - the last port there is
            raise EngcmpError(
                f"port {port} cannot be used: {error.strerror}",
                where=HOST,
                remedy=f"end what uses it, or `engcmp ui --port {other}`",
            ) from error


def _show_tail(log: Path) -> None:
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_TAIL_LINES:]:
        stderr_line(line)


def _stop(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """End each process with its whole group: politely, then, for what is still there after a few seconds, by force."""
    for child in children:
        _signal_group(child, signal.SIGTERM)
    deadline = time.monotonic() + _STOP_S
    while time.monotonic() < deadline and any([_signal_group(child, 0) for child in children]):
        time.sleep(_POLL_S)
    for child in children:
        _signal_group(child, signal.SIGKILL)
        child.wait()


def _signal_group(child: subprocess.Popen[bytes], number: int) -> bool:
    """Send a signal (0: none) to the child's group; whether anything is left of it."""
    child.poll()  # bury it, if it has ended: the dead count as members of a group
    try:
        os.killpg(child.pid, number)
    except ProcessLookupError:
        return False
    except PermissionError:  # macOS says so of a group in which only the dead are left
        return False
    return True
