"""Releases as tags of a git repository, asked for with `git ls-remote`; nothing is cloned."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from engcmp_resources.errors import EngcmpError
from engcmp_resources.releases.base import (
    Listing,
    RateLimitedError,
    Release,
    ReleasePlace,
    UnreachableError,
    register_lister,
)
from engcmp_resources.releases.tags import is_prerelease, tag_order
from engcmp_resources.releases.web import LIMIT_BYTES, garbage, hidden, shown

_POLL_S = 0.02
_TERMINATE_WAIT_S = 1.0
_RETRY_S = 300.0
# https, ssh, file, `host:path` as ssh has it, or an absolute path. Never a helper (`ext::`), an option, or a remote's name.
_URL = re.compile(r"(https|ssh|file)://[^\s]+|([\w.-]+@)?[\w.-]+:(?!:|//)[^\s@]+|/[^\s].*")
# What git says, in the C locale. The first that matches counts.
_LIMITED = re.compile(r"returned error: 429|too many requests", re.IGNORECASE)
_UNREACHABLE = re.compile(
    r"could not resolve|name resolution|name or service not known|failed to connect|couldn't connect|connection (refused|reset"
    r"|timed out|closed)|operation timed out|network is unreachable|no route to host|empty reply|early eof|SSL|TLS|certificate"
    r"|returned error: (5\d\d|408)|rpc failed|transfer closed|unexpected disconnect",
    re.IGNORECASE,
)
_LOGIN = re.compile(
    r"authentication failed|could not read (username|password)|permission denied|returned error: 40[13]"
    r"|host key verification failed|prompts disabled",
    re.IGNORECASE,
)
_MISSING = re.compile(
    r"not found|does not exist|not appear to be a git repository|returned error: 4(04|10)", re.IGNORECASE
)


@register_lister("git")
def list_git(place: ReleasePlace, *, wanted: Callable[[str], bool], timeout_s: float) -> Listing:
    """The tags of the repository at the URL `place.name`, each with its commit as digest. git runs with the user's settings."""
    if place.name.startswith("-") or _URL.fullmatch(place.name) is None:
        raise EngcmpError(
            "not the URL of a git repository",
            where=place.name.rsplit("@", 1)[-1],
            remedy="give one that begins with https://, ssh:// or file://",
        )
    where = shown(place.name)
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        code = _run(["git", "ls-remote", "--heads", "--tags", "--", place.name], output, errors, where, timeout_s)
        if code != 0:
            raise _explain(_read(errors)[-2000:].decode(errors="replace"), where)
        commits = _commits(_read(output), where)
    releases = [Release(tag, f"git:{commits[tag]}", prerelease=is_prerelease(tag)) for tag in commits]
    return Listing(f"tags of {where}", tuple(sorted(releases, key=lambda release: tag_order(release.tag))))


def _run(command: list[str], output: IO[bytes], errors: IO[bytes], where: str, timeout_s: float) -> int:
    """The exit code. The child has no terminal to ask at, and its whole process group is ended at the time limit."""
    deadline = time.monotonic() + timeout_s
    # The repository that this process may stand in has no say: neither by GIT_DIR, a hook's, nor by the working folder.
    env = {name: value for name, value in os.environ.items() if name not in ("GIT_DIR", "GIT_WORK_TREE")}
    env |= {"GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "", "SSH_ASKPASS": "", "SSH_ASKPASS_REQUIRE": "never"}
    env |= {"GCM_INTERACTIVE": "never", "GIT_ALLOW_PROTOCOL": "https:ssh:file", "LC_ALL": "C"}
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            env=env,
            cwd=Path(tempfile.gettempdir()).anchor,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise EngcmpError("git is not installed", remedy="install git, or watch another kind of place") from error
    try:
        while process.poll() is None:
            if time.monotonic() > deadline:
                raise UnreachableError(
                    "git: no whole answer in time", where=where, remedy="check the network; it is asked again"
                )
            if os.fstat(output.fileno()).st_size > LIMIT_BYTES:
                raise EngcmpError(
                    f"git: the listing has more than {LIMIT_BYTES / 1e6:.0f} MB",
                    where=where,
                    remedy="check that the URL is that of the engine's repository",
                )
            time.sleep(_POLL_S)
    finally:
        _end_group(process)
    return process.returncode


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End git and its helpers (git-remote-https, ssh), which outlive a git that is ended alone."""
    if process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(_TERMINATE_WAIT_S)
    except subprocess.TimeoutExpired:
        pass  # killed below
    finally:
        with suppress(ProcessLookupError, PermissionError):  # macOS says the latter of a group of dead members
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _read(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read(LIMIT_BYTES)


def _commits(output: bytes, where: str) -> dict[str, str]:
    """Tag to commit: `git ls-remote` prints an annotated tag's own object first and its commit as `TAG^{}` after it."""
    commits = {}
    lines = output.decode(errors="backslashreplace").split("\n")[:-1]
    if not lines:
        # Branches are asked for because of this: git takes a network's login page for a repository that holds nothing.
        raise garbage("git", where, "it names neither a branch nor a tag")
    for line in lines:
        match = re.fullmatch(r"([0-9a-f]{40}|[0-9a-f]{64})\trefs/(heads|tags)/(.+?)(\^\{\})?", line)
        if match is None:
            raise garbage("git", where, "a line of it has no commit and tag")
        if match[2] == "tags":
            commits[match[3]] = match[1]
    return commits


def _explain(errors: str, where: str) -> EngcmpError:
    lines = [line for line in errors.splitlines() if line.strip()] or ["git gave no reason"]
    fatal = [line for line in lines if re.match("fatal:|error:|remote:", line)] or lines
    said = hidden(" ".join(fatal))[:300]
    if _LIMITED.search(errors):
        return RateLimitedError(f"git: too many requests: {said}", where=where, retry_after_s=_RETRY_S)
    if _LOGIN.search(errors):
        return EngcmpError(
            f"git: a login is needed, or there is no such repository: {said}",
            where=where,
            remedy="correct the URL, or give git a login for this host (a credential helper, or a key for ssh)",
        )
    if _MISSING.search(errors):
        return EngcmpError(f"git: no such repository: {said}", where=where, remedy="correct the URL")
    if _UNREACHABLE.search(errors):
        return UnreachableError(
            f"git: no answer: {said}", where=where, remedy="check the network; it is asked again at the next look"
        )
    return EngcmpError(f"git failed: {said}", where=where, remedy="run `git ls-remote --tags` with this URL")
