"""An object store with the S3 interface, through s3fs: files by name under one prefix of a bucket.

ENGCMP_OBJECT_STORE (`s3://bucket/prefix`) turns it on, and ENGCMP_OBJECT_STORE_ENDPOINT names a server other than Amazon's. The keys
come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN): from the environment, or from a file of such lines with
mode 0600 that ENGCMP_OBJECT_STORE_CREDENTIALS names. No other place is looked at.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engcmp_resources.errors import EngcmpError

VARIABLE, ENDPOINT, CREDENTIALS = (
    "ENGCMP_OBJECT_STORE", "ENGCMP_OBJECT_STORE_ENDPOINT", "ENGCMP_OBJECT_STORE_CREDENTIALS",
)  # fmt: skip
_KEY, _SECRET, _TOKEN = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"
_URL = re.compile(r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(?P<prefix>[A-Za-z0-9][A-Za-z0-9/._-]*?))?/?")
_RANGE_BYTES = 16 << 20
_CONNECT_S, _READ_S, _ATTEMPTS = 5, 30, 4
_SHOWN = 200  # characters of another library's words
_KEPT = "what was measured is kept here: start again, or `engcmp push`, once the object store answers"


@dataclass(frozen=True, slots=True)
class Listed:
    """An object as a listing tells of it. The tag is the MD5 of a small object on most servers, and never more than a hint."""

    bytes: int
    tag: str


class ObjectStore:
    """One prefix of a bucket. Every call raises EngcmpError that names bucket and key where the server refuses or does not answer."""

    def __init__(self, bucket: str, prefix: str, *, keys: Mapping[str, str], endpoint: str | None = None) -> None:
        self._root = f"{bucket}/{prefix}" if prefix else bucket
        try:
            import s3fs  # noqa: PLC0415 - an extra, which a single machine does without
        except ImportError as error:
            raise EngcmpError(
                "s3fs is not installed", where=VARIABLE, remedy="install the extra: pip install 'engcmp[s3]'"
            ) from error
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - as boto3, only where an object store is named

        self._errors = (OSError, BotoCoreError, ClientError)
        self._files: Any = s3fs.S3FileSystem(
            key=keys[_KEY], secret=keys[_SECRET], token=keys.get(_TOKEN), endpoint_url=endpoint, use_listings_cache=False,
            config_kwargs={"connect_timeout": _CONNECT_S, "read_timeout": _READ_S, "retries": {"total_max_attempts": _ATTEMPTS}},
        )  # fmt: skip
        self._files.retries = 1  # its own ones would multiply those above, to an hour without a word

    def where(self, name: str) -> str:
        """An object as errors name it."""
        return f"s3://{self._root}/{name}"

    def size(self, name: str) -> int | None:
        """The object's size in bytes; None where there is none."""
        with self._told(name):
            try:
                return int(self._files.info(self._key(name))["size"])
            except FileNotFoundError:
                return None

    def read(self, name: str) -> bytes | None:
        """A small object's bytes; None where there is none."""
        with self._told(name):
            try:
                return bytes(self._files.cat_file(self._key(name)))
            except FileNotFoundError:
                return None

    def write(self, name: str, data: bytes) -> None:
        """Put a small object in the place of what is there; readers find the old bytes or the new ones."""
        with self._told(name):
            self._files.pipe_file(self._key(name), data)

    def upload(self, path: Path, name: str) -> None:
        """Put a file, unless an object of its size is there: names are hashes. An upload that is cut off leaves no object."""
        if self.size(name) != path.stat().st_size:
            with self._told(name):
                self._files.put_file(str(path), self._key(name))

    def download(self, name: str, partial: Path) -> bool:
        """Append to `partial` what it lacks of the object, so that a lost connection costs what was under way; False without an object."""
        size = self.size(name)
        if size is None:
            return False
        have = partial.stat().st_size if partial.exists() else 0
        with partial.open("ab" if have <= size else "wb") as file:
            for start in range(have if have <= size else 0, size, _RANGE_BYTES):
                with self._told(name):
                    file.write(self._files.cat_file(self._key(name), start=start, end=min(start + _RANGE_BYTES, size)))
        return True

    def names(self, below: str) -> dict[str, Listed]:
        """Every object whose name begins with `below`, which ends at a slash."""
        with self._told(below):
            found = self._files.find(self._key(below), detail=True)
        skip = len(self._root) + 1
        return {
            name[skip:]: Listed(int(one["size"]), str(one.get("ETag", "")).strip('"')) for name, one in found.items()
        }

    def _key(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextmanager
    def _told(self, name: str) -> Iterator[None]:
        try:
            yield
        except PermissionError as error:
            raise EngcmpError(
                "the object store refuses these keys", where=self.where(name),
                remedy=f"set {_KEY} and {_SECRET} to keys that may read, write and list this prefix",
            ) from error  # fmt: skip
        except self._errors as error:
            missing = isinstance(error, FileNotFoundError)
            what = "there is no such bucket" if missing else "the object store does not answer, or refuses"
            raise EngcmpError(
                f"{what} ({type(error).__name__}: {' '.join(str(error).split())[:_SHOWN]})", where=self.where(name),
                remedy=f"look at {VARIABLE} and make the bucket" if missing else f"look at {ENDPOINT} and the network; {_KEPT}",
            ) from error  # fmt: skip


def configured() -> ObjectStore | None:
    """The object store that the environment names; None where it names none. Raises EngcmpError for settings that cannot be used."""
    url = os.environ.get(VARIABLE)
    if not url:
        return None
    found = _URL.fullmatch(url)
    if found is None:
        raise EngcmpError("not the address of a bucket", where=VARIABLE, remedy=f"set {VARIABLE}=s3://bucket/prefix")
    return ObjectStore(found["bucket"], found["prefix"] or "", keys=_keys(), endpoint=os.environ.get(ENDPOINT) or None)


def _keys() -> dict[str, str]:
    file = os.environ.get(CREDENTIALS)
    found = _read_private(Path(file)) if file else dict(os.environ)
    for name in (_KEY, _SECRET):
        if not found.get(name):
            raise EngcmpError(
                f"{name} is not set", where=file or "the environment",
                remedy=f"set it there, or name a file that has it, mode 0600, in {CREDENTIALS}",
            )  # fmt: skip
    return {name: found[name] for name in (_KEY, _SECRET, _TOKEN) if found.get(name)}


def _read_private(path: Path) -> dict[str, str]:
    """The NAME=value lines of a file that only its owner, who is this user, can read."""
    try:
        with path.open(encoding="utf-8") as file:
            state = os.fstat(file.fileno())
            if state.st_mode & 0o077 or state.st_uid != os.geteuid():
                raise EngcmpError(
                    "others can read this file of keys, or own it", where=str(path), remedy=f"chmod 600 {path}"
                )
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise EngcmpError("the file of keys cannot be read", where=str(path), remedy=f"mend {CREDENTIALS}") from error
    pairs = (line.partition("=") for line in lines if line.strip() and not line.startswith("#"))
    return {name.strip(): value.strip() for name, _, value in pairs}
