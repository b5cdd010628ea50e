"""Finds an installed tool-eval-bench and its version."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engcmp_resources.errors import EngcmpError

COMMAND = "tool-eval-bench"
VERSIONS = ("2.8.0", "3.0.0")
# The suite of 88 that scores are told of ("of 176"): both versions hold 97, so it is always asked for by name.
SCENARIO_IDS = tuple(f"TC-{number:02}" for number in range(1, 89))
_ANSWER = re.compile(r"tool-eval-bench (\S+)")
_START_S = 60


@dataclass(frozen=True, slots=True)
class SuiteTool:
    """The command of an installation, and which version it is."""

    command: Path
    version: str


def find_tool(command: Path | None = None) -> SuiteTool:
    """The installation whose command is given, else the one on PATH.

    Raises EngcmpError where there is none, it does not start, or its version is not known.
    """
    found = shutil.which(COMMAND if command is None else str(command))
    if found is None:
        raise EngcmpError(
            f"{COMMAND} is not installed" if command is None else f"{command} is no command",
            remedy=f"install it in an environment of its own (python -m venv DIR; DIR/bin/pip install {COMMAND}=={VERSIONS[-1]}) "
            f"and give DIR/bin/{COMMAND}",
        )
    place = Path(found).absolute()
    try:
        said = subprocess.run(
            [place, "--version"],
            capture_output=True,
            text=True,
            timeout=_START_S,
            check=False,
            env=clean_environment(place),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngcmpError(f"it does not start: {error}", where=found, remedy="install it again") from error
    match = _ANSWER.fullmatch(said.stdout.strip())
    if said.returncode != 0 or match is None:
        raise EngcmpError(
            f"asked for its version it says {(said.stdout + said.stderr).strip()[-200:]!r}",
            where=found,
            remedy=f"give the command of {COMMAND} {' or '.join(VERSIONS)}",
        )
    return SuiteTool(place, known_version(match[1], found))


def known_version(version: object, where: str) -> str:
    """The version, where its result files and graders are known here. Raises EngcmpError for another."""
    if version not in VERSIONS:
        raise EngcmpError(
            f"{COMMAND} {version} is not known: scenarios and graders change between versions",
            where=where,
            remedy=f"use {' or '.join(VERSIONS)}",
        )
    return str(version)


def clean_environment(command: Path, **more: str) -> Mapping[str, str]:
    """Nothing of the user's own: the suite reads addresses, models, keys and proxies from the environment."""
    return {"PATH": f"{command.parent}:/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "NO_COLOR": "1", **more}
