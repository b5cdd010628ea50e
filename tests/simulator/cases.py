"""The table of what shows each fault: a case module registers a function for each name, `test_each_fault.py` runs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .faults import FAULTS
from .running import Simulator

Of = Callable[[str], Simulator]
CASES: dict[str, list[Callable[..., Any]]] = {}


def shows(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function, which is given `of(dialect)` and a folder, as what shows the fault `name`."""
    if name not in FAULTS:
        raise KeyError(f"no fault {name!r}")

    def register(case: Callable[..., None]) -> Callable[..., None]:
        CASES.setdefault(name, []).append(case)
        return case

    return register
