"""`engcmp ui`: the Dagster webserver and daemon on loopback, on the results of ENGCMP_HOME."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import click
import httpx

from engcmp_assets.commands.instance import add_partitions, open_instance
from engcmp_assets.kernel.progress import stderr_line
from engcmp_assets.kernel.study import load_study
from engcmp_resources.errors import EngcmpError
from engcmp_resources.places import CHECKOUT, home_folder, study_names

HOST = "127.0.0.1"
_START_S, _STOP_S, _POLL_S = 60.0, 10.0, 0.2


@click.command(epilog="Example: engcmp ui --port 3001")
@click.option("--port", default=3000, show_default=True, type=click.IntRange(1, 65535), help="Port on 127.0.0.1.")
@click.option(
    "--read-only", is_flag=True, help="For auditors: nothing can be started, changed or reported. No daemon runs."
)
def ui(port: int, read_only: bool) -> None:
    """Open the Dagster UI on 127.0.0.1. Ctrl-C ends it; measurements that it started are ended too and can be continued."""
    _require_free(port)
    with open_instance() as instance:
        for name in study_names():
            add_partitions(instance, load_study(name))
    children: list[subprocess.Popen[bytes]] = []
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        children.append(
            _start("dagster-webserver", "-h", HOST, "-p", str(port), *(["--read-only"] if read_only else []))
        )
        if not read_only:
            children.append(_start("dagster-daemon", "run"))
        _wait_until_ready(f"http://{HOST}:{port}", children)
        stderr_line(f"The UI is open on http://{HOST}:{port} (Ctrl-C ends it)")
        while all(child.poll() is None for child in children):
            time.sleep(_POLL_S)
        raise EngcmpError(
            "a process of the UI ended by itself", where=str(home_folder()), remedy="its reason stands above"
        )
    except KeyboardInterrupt:
        stderr_line("The UI is closed")
    finally:
        signal.signal(signal.SIGTERM, previous)
        _stop(children)


def _start(tool: str, *arguments: str) -> subprocess.Popen[bytes]:
    path = Path(sys.executable).with_name(tool)
    if not path.exists():
        raise EngcmpError(f"{tool} is not installed", where=str(path.parent), remedy="`make setup`")
    environment = os.environ | {"DAGSTER_HOME": str(home_folder() / "dagster"), "ENGCMP_HOME": str(home_folder())}
    command = [str(path), *arguments, "-w", str(CHECKOUT / "workspace.yaml")]
    return subprocess.Popen(command, cwd=CHECKOUT, env=environment)


def _wait_until_ready(url: str, children: list[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if any(child.poll() is not None for child in children):
            raise EngcmpError("the UI did not start", where=url, remedy="its reason stands above")
        try:
            if httpx.get(f"{url}/server_info", timeout=2).is_success:
                return
        except httpx.TransportError:
            time.sleep(_POLL_S)
    raise EngcmpError(f"the UI did not answer within {_START_S:.0f} s", where=url, remedy="start it again")


def _require_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise EngcmpError(
                f"port {port} is taken: {error.strerror}",
                where=HOST,
                remedy=f"end what uses it, or `engcmp ui --port {port + 1}`",
            ) from error


def _stop(children: list[subprocess.Popen[bytes]]) -> None:
    for child in children:
        child.terminate()
    for child in children:
        try:
            child.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
