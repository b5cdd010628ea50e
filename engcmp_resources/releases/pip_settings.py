"""pip's own settings, read with `pip config list`: so a user's index, proxy, certificates and logins work without another setting."""

from __future__ import annotations

import ast
import functools
import netrc
import os
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from engcmp_resources.errors import EngcmpError
from engcmp_resources.releases.base import UnreachableError
from engcmp_resources.releases.web import Connection, hidden, is_loopback, shown, web_url

_YES = ("y", "yes", "t", "true", "on", "1")
# Of what a later section says, the last counts: the file's [global], its section of the command, the environment.
_SECTIONS = ("global", "download", ":env:")
_WAIT_S = 15.0


@dataclass(frozen=True, slots=True)
class PipSettings:
    """Where pip looks for wheels, in its order: `indexes` are addresses of simple indexes, `find_links` of folders or pages."""

    indexes: tuple[str, ...]
    find_links: tuple[str, ...]
    connection: Connection

    def login(self, address: str) -> httpx.BasicAuth | None:
        """The login for an address: its userinfo, else that of the netrc file."""
        url = web_url(address)
        if url.userinfo:
            return httpx.BasicAuth(url.username, url.password)
        files = [Path(os.environ["NETRC"])] if os.environ.get("NETRC") else []
        for path in files or [Path.home() / ".netrc", Path.home() / "_netrc"]:
            with suppress(OSError, netrc.NetrcParseError, UnicodeDecodeError):  # pip goes on without it too
                found = netrc.netrc(str(path)).authenticators(url.host)
                return httpx.BasicAuth(found[0] or found[1], found[2]) if found is not None else None
        return None

    def require_secure(self, address: str) -> None:
        """Refuse an address of plain http that is neither of this machine nor trusted, as pip does."""
        url = web_url(address)
        if url.scheme == "http" and not is_loopback(url.host) and not self.connection.trusts(url):
            raise EngcmpError(
                "the index is on plain http and not trusted, so what it says could be changed on the way",
                where=shown(address),
                remedy="name it with https://, or name its host in pip's trusted-host",
            )


def read_pip_settings(timeout_s: float) -> PipSettings:
    """What pip of this Python is set to. Raises EngcmpError where there is no pip or its files cannot be read."""
    command = [sys.executable, "-P", "-m", "pip", "config", "list", "--no-input", "--disable-pip-version-check"]
    try:
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=max(timeout_s, 0.01), check=False
        )
    except subprocess.TimeoutExpired:
        raise UnreachableError("pip did not tell its settings in time", remedy="it is asked again") from None
    output, errors = ended.stdout.decode(errors="replace"), ended.stderr.decode(errors="replace")
    if "No module named pip" in errors:
        raise EngcmpError("this Python has no pip", where=sys.executable, remedy="run `python -m ensurepip` with it")
    if ended.returncode != 0:
        raise EngcmpError(
            f"pip's settings cannot be read: {hidden(' '.join(errors.split()[-40:]))[-300:]}",
            remedy="correct them: `python -m pip config debug` shows where they are",
        )
    return settings_in(output)


def settings_in(output: str) -> PipSettings:
    """The settings in the output of `pip config list`: lines of `section.name='value'`."""
    pooled: dict[tuple[str, str], str] = {}
    for line in output.splitlines():
        match = re.fullmatch(r"(:env:|[\w-]+)\.([\w-]+)=('.*'|\".*\")", line)
        if match is not None:
            value = ast.literal_eval(match[3])
            if str(value).strip():  # an empty value is none for pip
                pooled[match[1], match[2]] = str(value)
    options = {name: value for wanted in _SECTIONS for (section, name), value in pooled.items() if section == wanted}
    alone = options.get("no-index", "").strip().lower() in _YES
    indexes = (
        [] if alone else [options.get("index-url") or _public_index(), *options.get("extra-index-url", "").split()]
    )
    return PipSettings(
        tuple(index.strip().rstrip("/") for index in indexes),
        tuple(options.get("find-links", "").split()),
        Connection(
            cert=_path(options.get("cert")),
            client_cert=_path(options.get("client-cert")),
            proxy=_proxy(options.get("proxy")),
            trusted_hosts=frozenset(options.get("trusted-host", "").split()),
            wait_s=_seconds(options.get("timeout", options.get("default-timeout"))),
        ),
    )


def _path(value: str | None) -> str | None:
    return None if value is None else str(Path(value).expanduser())


def _proxy(value: str | None) -> str | None:
    return value if value is None or "://" in value else f"http://{value}"


def _seconds(value: str | None) -> float:
    try:
        return max(float(value or _WAIT_S), 0.1)
    except ValueError:
        return _WAIT_S


@functools.cache
def _public_index() -> str:
    """The index that pip asks where none is set, in pip's own words: its address is pip's to know."""
    command = [sys.executable, "-P", "-m", "pip", "download", "--help", "--disable-pip-version-check"]
    try:
        told = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_WAIT_S, check=False
        ).stdout
    except subprocess.TimeoutExpired:
        raise UnreachableError("pip did not tell its default index in time", remedy="it is asked again") from None
    found = re.search(rb"\(default\s+(https://\S+?)\)", told)
    if found is None:
        raise EngcmpError("pip does not tell its default index", where=sys.executable, remedy="set PIP_INDEX_URL")
    return found[1].decode("ascii")
