"""Servers on this machine, and no settings, logins or proxies of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from places import Place, serving


@pytest.fixture
def place() -> Iterator[Place]:
    with ExitStack() as stack:
        yield stack.enter_context(serving())


@pytest.fixture
def other() -> Iterator[Place]:
    with ExitStack() as stack:
        yield stack.enter_context(serving())


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("HF_", "ENGCMP_REGISTRY", "ENGCMP_MIRROR")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
