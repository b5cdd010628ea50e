"""An engine's launcher as files: its repository at one commit, as a tar that is the same bytes everywhere, unpacked and patched."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from engcmp_resources.canonical import sha256_file
from engcmp_resources.disk import disk_errors
from engcmp_resources.errors import EngcmpError

FETCH_DEADLINE_S = 300.0
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_URL = re.compile(r"(https|file)://[^\s]+")
_MOST_BYTES = 1 << 30
_SAID_CHARACTERS = 500
_PATCH_DEADLINE_S = 60.0


def fetch_launcher(repository: str, commit: str, to: Path, *, deadline_s: float = FETCH_DEADLINE_S) -> Path:
    """Write the files of `repository` at `commit` as a tar into the folder `to`, and return its path. Needs git.

    No hook runs, no submodule is followed, nothing is checked out. The tar has sorted members without times and owners, and names its
    commit in its header, so it is the same bytes wherever it is made. Raises EngcmpError for a URL that is not https:// or file://, a
    commit that is no full one or not there, and a repository that does not answer within `deadline_s` seconds.
    """
    if _URL.fullmatch(repository) is None:
        raise EngcmpError(
            "not the URL of a launcher's repository", where=repository, remedy="give one that begins with https://"
        )
    if _COMMIT.fullmatch(commit) is None:
        raise EngcmpError(f"{commit!r} is no full commit", where=repository, remedy="write all of its 40 digits")
    with tempfile.TemporaryDirectory(prefix="engcmp-launcher-") as name:
        folder = Path(name)
        _git(["init", "--quiet", "--template=", "."], folder, repository, deadline_s)
        fetch = ["fetch", "--quiet", "--no-tags", "--no-recurse-submodules", "--depth=1", "--", repository]
        try:
            _git([*fetch, commit], folder, repository, deadline_s)
        except EngcmpError:  # some servers give only what a name points at
            fetch.remove("--depth=1")
            refs = ["+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"]
            _git([*fetch, *refs], folder, repository, deadline_s)
        found = _git(
            ["rev-parse", "--verify", "--end-of-options", f"{commit}^{{commit}}"], folder, repository, deadline_s
        )
        if found.decode().strip() != commit:
            raise EngcmpError(
                f"commit {commit} is not in the repository", where=repository, remedy="look where the tag points now"
            )
        # The repository's own attributes may leave files out of an archive or write into them.
        (folder / ".git" / "info").mkdir(exist_ok=True)
        (folder / ".git" / "info" / "attributes").write_text("* -export-ignore -export-subst\n", encoding="ascii")
        archive = folder / "archive.tar"
        _git(["archive", "--format=tar", f"--output={archive}", commit], folder, repository, deadline_s)
        tar = to / f"launcher-{commit}.tar"
        _write_plain(archive, commit, tar)
    return tar


def unpack_launcher(tar: Path, commit: str, folder: Path) -> None:
    """Unpack a tar of `fetch_launcher` into the new `folder`.

    Raises EngcmpError for a tar of another commit, for members that are no plain file, folder or link within it, and for one that stands
    twice.
    """
    with disk_errors(folder):
        folder.mkdir(mode=0o700)
        try:
            with tarfile.open(tar) as archive:
                if (found := archive.pax_headers.get("comment")) != commit:
                    raise EngcmpError(
                        f"the launcher's files are of commit {found}, the launch names {commit}", where=str(tar),
                        remedy="fetch them again",
                    )  # fmt: skip
                left = _MOST_BYTES
                for member in archive:
                    left -= member.size
                    _unpack(archive, member, folder, tar, left)
            _refuse_links_that_lead_out(folder, tar)
        except tarfile.TarError as error:
            raise EngcmpError(
                f"the launcher's files cannot be read: {error}", where=str(tar), remedy="fetch them again"
            ) from error


def apply_patch(folder: Path, patch: Path, sha256: str) -> None:
    """Apply the file `patch` to an unpacked launcher. Raises EngcmpError for a file that is not the pinned one, or does not fit."""
    if not patch.is_file():
        raise EngcmpError("there is no such patch", where=str(patch), remedy="put it below the study's folder")
    if (found := sha256_file(patch)) != sha256:
        raise EngcmpError(
            f"the patch has sha256 {found}, the settings name {sha256}", where=str(patch),
            remedy="restore the file, or pin the new one in the protocol",
        )  # fmt: skip
    _git(["apply", "--whitespace=nowarn", "--", str(patch.absolute())], folder, str(patch), _PATCH_DEADLINE_S)


def run_program(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], deadline_s: float
) -> tuple[int | None, str]:
    """Exit code and output (both streams) of a program; None where it was ended at the deadline, with all that it started."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            list(command), cwd=folder, env=dict(environment), stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        code = None
        try:
            code = process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            pass  # ended below
        finally:
            end_group(process)
        output.seek(0)
        return code, output.read(_MOST_BYTES).decode(errors="replace")


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a program that leads a group of processes, and all of that group; one that has ended is no error."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _git(arguments: Sequence[str], folder: Path, where: str, deadline_s: float) -> bytes:
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env |= {"GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "", "SSH_ASKPASS": "", "GIT_ALLOW_PROTOCOL": "https:file"}
    env |= {"GIT_CEILING_DIRECTORIES": str(folder.parent), "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    command = ["git", "-c", "core.hooksPath=/dev/null", "-c", "tar.umask=0022", *arguments]
    try:
        code, said = run_program(command, folder, env, deadline_s)
    except FileNotFoundError as error:
        raise EngcmpError("git is not installed", remedy="install git: launchers come from repositories") from error
    if code is None:
        raise EngcmpError(
            f"git {arguments[0]}: no whole answer within {deadline_s:g} s", where=where, remedy="check the network"
        )
    if code != 0:
        raise EngcmpError(
            f"git {arguments[0]}: {' '.join(said.split())[:_SAID_CHARACTERS]}", where=where,
            remedy="check the URL and the commit" if arguments[0] != "apply" else "make the patch anew for this commit",
        )  # fmt: skip
    return said.encode()


def _write_plain(archive: Path, commit: str, to: Path) -> None:
    partial = to.with_name(f"{to.name}.partial")
    try:
        with (
            disk_errors(to),
            tarfile.open(archive) as source,
            tarfile.open(partial, "w", format=tarfile.PAX_FORMAT, pax_headers={"comment": commit}) as plain,
        ):
            for member in sorted(source.getmembers(), key=lambda one: one.name):
                made = tarfile.TarInfo(member.name)
                made.type, made.linkname, made.size = member.type, member.linkname, member.size
                made.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
                content = source.extractfile(member) if member.isreg() else None
                plain.addfile(made, io.BytesIO(content.read()) if content else None)
        with disk_errors(to):
            partial.replace(to)
    finally:
        partial.unlink(missing_ok=True)


def _unpack(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path, tar: Path, left: int) -> None:
    parts = PurePosixPath(member.name).parts
    target = folder.joinpath(*parts)
    above = PurePosixPath(os.path.normpath("/".join([*parts[:-1], member.linkname or "."])))
    what = None
    if not parts or member.name.startswith("/") or ".." in parts or ".git" in parts:
        what = "is no path within the launcher"
    elif not (member.isreg() or member.isdir() or member.issym()):
        what = "is no file, folder or link"
    elif member.issym() and (member.linkname.startswith("/") or ".." in above.parts):
        what = "is a link that leads out of the launcher"
    elif left < 0:
        what = f"is beyond {_MOST_BYTES:,} bytes in all"
    elif target.parent.resolve() != (folder.resolve() / Path(*parts)).parent:
        what = "is below a link"
    elif os.path.lexists(target) and not (member.isdir() and target.is_dir() and not target.is_symlink()):
        what = "stands twice"  # a file that is written over a link would be written where that leads
    if what is not None:
        raise EngcmpError(
            f"the launcher's file {member.name!r} {what}", where=str(tar), remedy="use a repository that you trust"
        )
    if member.isdir():
        target.mkdir(exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if member.issym():
        target.symlink_to(member.linkname)
        return
    content = archive.extractfile(member)
    with target.open("xb") as file:  # never through a link
        file.write(content.read() if content else b"")
    target.chmod(0o755 if member.mode & 0o100 else 0o644)


def _refuse_links_that_lead_out(folder: Path, tar: Path) -> None:
    """What a link's text says may pass through other links, so where each really leads is asked when all are there."""
    root = folder.resolve()
    for path in folder.rglob("*"):
        if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(root):
            raise EngcmpError(
                f"the launcher's file {str(path.relative_to(folder))!r} is a link that leads out of the launcher", where=str(tar),
                remedy="use a repository that you trust",
            )  # fmt: skip
