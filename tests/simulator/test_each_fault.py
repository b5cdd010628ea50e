"""Every fault that can be named does what it says, in a real exchange with a real server."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import cases_life, cases_rows, cases_stream
from .cases import CASES, Of
from .faults import FAULTS
from .running import Simulator

MODULES = (cases_life, cases_rows, cases_stream)  # importing them fills the table


@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_does_what_it_says(name: str, of: Of, dump_root: Path) -> None:
    assert name in CASES, f"no case shows the fault {name}: register one with @shows({name!r})"
    touched: list[Simulator] = []

    def recorded(dialect: str) -> Simulator:
        touched.append(of(dialect))
        return touched[-1]

    for case in CASES[name]:
        case(recorded, dump_root)
    for simulator in touched:
        fired = {one for record in simulator.truth() for one in record["faults"]}
        assert name in fired, f"the truth of {simulator.dialect} does not tell that {name} happened"


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_described_in_a_line(name: str) -> None:
    assert 10 < len(FAULTS[name].does) <= 120
    assert "\n" not in FAULTS[name].does
