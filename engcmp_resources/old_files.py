"""Protocol files as they were when they were frozen: kept by their hash at each freeze, else looked for in the history of git."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from engcmp_resources.canonical import sha256_bytes
from engcmp_resources.disk import make_folder, replace_visible

_LOOKED_AT = 200  # commits that touched a file, newest first
_DEADLINE_S = 30.0


def keep_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Keep the bytes of each file under its SHA-256 in `folder`; what is there is not written again."""
    make_folder(folder)
    for data in files.values():
        path = folder / sha256_bytes(data)
        if not path.is_file():
            replace_visible(path, data)


def old_files(kept: Path, study: Path, wanted: Mapping[str, str]) -> dict[str, bytes]:
    """Bytes by SHA-256 of the files of the folder `study` that had the hashes `wanted` (path to SHA-256), as far as they are found.

    What `keep_files` has left in `kept` counts first, then the commits of a git repository around `study`.
    """
    found = {}
    for name, sha256 in wanted.items():
        data = _kept(kept / sha256, sha256) or _in_git(study, name, sha256)
        if data is not None:
            found[sha256] = data
    return found


def _kept(path: Path, sha256: str) -> bytes | None:
    if re.fullmatch(r"[0-9a-f]{64}", sha256) is None or not path.is_file():
        return None
    data = path.read_bytes()
    return data if sha256_bytes(data) == sha256 else None


def _in_git(folder: Path, name: str, sha256: str) -> bytes | None:
    listed = _git(folder, "log", f"-n{_LOOKED_AT}", "--format=%H", "--", name)
    for commit in (listed or b"").decode("ascii", "replace").split():
        data = _git(folder, "show", f"{commit}:./{name}")
        if data is not None and sha256_bytes(data) == sha256:
            return data
    return None


def _git(folder: Path, *arguments: str) -> bytes | None:
    """What git prints, or None where there is no git, no repository or no such thing in it."""
    try:
        command = ["git", "-C", str(folder), *arguments]
        done = subprocess.run(command, capture_output=True, check=False, timeout=_DEADLINE_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
