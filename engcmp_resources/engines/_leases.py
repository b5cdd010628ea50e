"""Leases of containers that launchers start: they carry none of our labels, so a file says whose they are.

The name is written to the launch's scratch folder before anything starts; a killed process leaves it, and `remove_leftovers` ends what
runs under it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from engcmp_resources.containers import DockerHost
from engcmp_resources.disk import disk_errors, files_below
from engcmp_resources.locks import names_one_of

LEASE = "launched-container.json"
KEY_FOLDER = "key"


def write_lease(scratch: Path, name: str, labels: Mapping[str, str]) -> None:
    """Say that the container `name` is this launch's, whole or not at all."""
    path = scratch / LEASE
    partial = path.with_suffix(".partial")
    with disk_errors(path):
        partial.write_text(json.dumps({"name": name, "labels": dict(labels)}), encoding="utf-8")
        partial.replace(path)


def remove_lease(scratch: Path) -> None:
    """The container is gone."""
    (scratch / LEASE).unlink(missing_ok=True)


def remove_leftovers(scratch_root: Path, *locks: Path) -> list[str]:
    """Remove the containers that launchers of dead runs have left, and their keys, by the leases below `scratch_root`; a sentence for each.

    Call it with `locks` just taken and before the scratch folders of dead runs are removed: only leases that name one of them are
    heeded, whose holder is then dead. Raises EngcmpError where the Docker engine fails.
    """
    sentences: list[str] = []
    for lease in (path for path in files_below(scratch_root) if path.name == LEASE):
        with suppress(OSError, ValueError, KeyError, TypeError):  # a damaged one is nobody's
            said = json.loads(lease.read_text(encoding="utf-8"))
            name, labels = str(said["name"]), said["labels"]
            if names_one_of(str(labels.get("ENGCMP_LOCK", "")), locks):
                sentences += _remove(name, labels)
                shutil.rmtree(lease.parent / KEY_FOLDER, ignore_errors=True)
                lease.unlink(missing_ok=True)
    return sentences


def _remove(name: str, labels: Mapping[str, str]) -> list[str]:
    host = DockerHost()
    try:
        container = host.find(name)
        if container is None:
            return []
        container.remove()
    finally:
        host.close()
    arm, run = labels.get("ENGCMP_ARM", "unknown"), labels.get("ENGCMP_RUN", "unknown")
    return [f"removed a container left by a dead run: {name} of arm {arm}, run {run}"]
