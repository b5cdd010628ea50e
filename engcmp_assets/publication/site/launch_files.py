"""What a user copies to start an engine as an arm was started: the launcher's own files, from what the start left in its receipt.

A receipt has no secret, no path of the machine and no address: these stand in it by name (`{scratch}`, `{address}`, `{cache}`) or by
their hash, and so they do in the files.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

Facts = Mapping[str, Any]


def launch_files(facts: Facts) -> list[dict[str, str]]:
    """The files of one start: `name` (without the arm), `title` and `text`, in the order in which they are used; none of a server that
    somebody else started, or of an engine within our own process: there what was asked for is all that there is.
    """
    return list(_files(facts))


def _files(facts: Facts) -> Iterator[dict[str, str]]:
    command = facts.get("command")
    if not isinstance(command, list) or not command:
        return
    launcher: Mapping[str, Any] = facts.get("launcher") or {}
    if "config" in launcher:
        yield _file("launcher.config", "The launcher's config file", str(launcher["config"]))
    environment = {name: value for name, value in (facts.get("environment") or {}).items() if isinstance(value, str)}
    if environment:
        lines = "".join(f"{name}={value}\n" for name, value in sorted(environment.items()))
        yield _file("launch.env", "Its environment", lines)
    yield _file("start.sh", "The command", _script(facts, launcher, [str(word) for word in command], bool(environment)))


def _script(facts: Facts, launcher: Mapping[str, Any], command: list[str], with_environment: bool) -> str:
    image = facts.get("image") or {}
    lines = ["#!/bin/bash"]
    if "commit" in launcher:
        lines.append(f"# in the launcher's repository at commit {launcher['commit']}")
        lines += (
            [f"# with the patch whose SHA-256 is {launcher['patch_sha256']}"] if launcher.get("patch_sha256") else []
        )
        lines += ["set -a; . ./launch.env; set +a"] if with_environment else []
        return "\n".join([*lines, shlex.join(command)]) + "\n"
    if not image:
        lines += ["set -a; . ./launch.env; set +a"] if with_environment else []
        return "\n".join([*lines, shlex.join(command)]) + "\n"
    options = ["docker", "run", "--rm", *(["--env-file", "launch.env"] if with_environment else [])]
    options += ["--network", str(facts["network"])] if facts.get("network") else []
    for mount in facts.get("mounts") or ():
        mode = "ro" if mount.get("read_only") else "rw"
        what = mount.get("path") or mount.get("file") or "a file"
        lines.append(f"# needs {what} at {mount.get('target')}, {mode}")
    named = image.get("digest") or image.get("id")
    return "\n".join([*lines, shlex.join([*options, str(named), *command])]) + "\n"


def _file(name: str, title: str, text: str) -> dict[str, str]:
    return {"name": name, "title": title, "text": text if text.endswith("\n") else f"{text}\n"}
