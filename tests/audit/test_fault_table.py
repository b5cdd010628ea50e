"""The table of where each fault of the simulator is met: it has every fault, and every test that it names exists."""

from __future__ import annotations

import re
from collections import Counter

from homes import CHECKOUT

from tests.simulator.faults import FAULTS

TABLE = (CHECKOUT / "tests" / "audit" / "README.md").read_text(encoding="utf-8")
SHARED = {"settings_cut", "cache_hidden"}  # met in one way by one engine, in another by others


def test_every_fault_stands_in_the_table() -> None:
    named = Counter(name for name in re.findall(r"`([a-z0-9_]+)`", TABLE) if name in FAULTS)
    assert set(named) == set(FAULTS)
    assert {name for name, count in named.items() if count > 1} <= SHARED


def test_every_test_that_it_names_exists() -> None:
    named = re.findall(r"`([a-z_/]+\.py)::(test_[a-z0-9_]*)(\.\.\.)?`", TABLE)
    assert len(named) > 25
    for path, name, rest in named:
        text = (CHECKOUT / "tests" / path).read_text(encoding="utf-8")
        assert f"def {name}{'' if rest else '('}" in text, f"{path}::{name}"
