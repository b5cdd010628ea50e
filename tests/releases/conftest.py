"""Servers on this machine, a certificate of theirs, and settings of pip and git that hold nothing of this machine."""

from __future__ import annotations

import os
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from release_places import Server, serving


@pytest.fixture
def server() -> Iterator[Server]:
    with ExitStack() as stack:
        yield serving(stack)


@pytest.fixture
def other_server() -> Iterator[Server]:
    with ExitStack() as stack:
        yield serving(stack)


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate that this machine does not know, and its key, for 127.0.0.1."""
    path = tmp_path / "certificate.pem"
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    )
    try:
        subprocess.run(
            [*command.split(), "-keyout", str(tmp_path / "key"), "-out", str(tmp_path / "cert")],
            check=True,
            capture_output=True,
        )
    except FileNotFoundError:
        pytest.skip("there is no openssl to make a certificate with")
    path.write_text((tmp_path / "key").read_text() + (tmp_path / "cert").read_text())
    return path


@pytest.fixture
def secure_server(certificate: Path) -> Iterator[Server]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with ExitStack() as stack:
        yield serving(stack, context)


@pytest.fixture
def bare_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only what a test says counts: no settings, login or proxy of this machine."""
    for name in list(os.environ):
        if name.startswith(("PIP_", "SSL_CERT", "GIT_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("NETRC", os.devnull)
