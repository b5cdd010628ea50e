"""Faults of statistics that users of other tools have met (FAULTS, section 11).

Tested where the part itself is tested:

| fault | test |
| --- | --- |
| a standard error of exactly 0 at 0 % and 100 % | kernel/test_uncertainty.py: where every row agrees; Wilson at both ends |
| a "bootstrap" that was a permutation and had no width | kernel/test_uncertainty.py: a bootstrap of differing clusters has a width |
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engcmp_assets.kernel.floors import RunValues, floor
from engcmp_assets.kernel.records import Interval, Missing
from engcmp_assets.kernel.uncertainty import PANEL, Preset, clustered_standard_error, population_mean

QUICK = Preset(2000, 5)


def test_documents_are_resampled_and_not_rows_or_windows() -> None:
    """What was replicated was the wrong unit, and the number of units and z were written into the code."""
    # 4 documents of 50 rows: between documents the rows differ by 1, within one not at all.
    values, documents = np.repeat([0.0, 1.0, 2.0, 3.0], 50), np.repeat(["a", "b", "c", "d"], 50)
    found = population_mean(values, documents, preset=PANEL, kind="difference")
    as_if_rows = population_mean(values, [f"r{row:03}" for row in range(200)], preset=QUICK, kind="difference")
    assert isinstance(found.interval, Interval) and isinstance(as_if_rows.interval, Interval)
    assert found.clusters == 4 and found.method == "t-interval on 4 cluster means" and found.distinct_resamples == 35
    half = 3.182446305284263 * math.sqrt(5 / 3) / 2  # t with 3 degrees of freedom, not z
    assert (found.interval.low, found.interval.high) == pytest.approx((1.5 - half, 1.5 + half), rel=1e-12)
    assert as_if_rows.interval.high - as_if_rows.interval.low < 0.2 * 2 * half
    assert found.sign_flip_p == 4 / 16  # the mean 0 keeps its size: all others of one sign, either way
    two = population_mean(values[:100], documents[:100], preset=PANEL, kind="difference")
    assert isinstance(two.interval, Missing) and isinstance(two.sign_flip_p, Missing)


@given(st.lists(st.tuples(st.integers(-50, 50), st.integers(1, 9)), min_size=2, max_size=12))
def test_the_standard_error_of_groups_is_the_law_s(groups: list[tuple[int, int]]) -> None:
    """The formula for the standard error of groups was wrong: combined beside pooled."""
    sums, counts = [Fraction(one) for one, _ in groups], [Fraction(count) for _, count in groups]
    mean, size = sum(sums) / sum(counts), len(groups)
    exact = Fraction(size, size - 1) * sum((one - count * mean) ** 2 for one, count in zip(sums, counts, strict=True))
    found = clustered_standard_error([float(one) for one in sums], [float(count) for count in counts])
    assert found == pytest.approx(math.sqrt(exact) / float(sum(counts)), rel=1e-9, abs=1e-12)


def test_repeats_of_one_launch_are_no_floor_across_launches() -> None:
    """Repeats of one session all shared its bias."""
    truth, chance = np.linspace(1, 2, 40), np.random.default_rng(1)
    documents = [f"d{row // 4:02}" for row in range(40)]

    def run(bias: float) -> np.ndarray:
        return truth + bias + chance.normal(0, 1e-4, truth.size)

    session = floor(
        RunValues(("1.1", "1.2", "1.3", "1.4"), np.stack([run(0.5) for _ in range(4)])), documents, preset=QUICK
    )
    assert isinstance(session.across_launches, Missing) and session.across_launches.reason == "one launch was captured"
    assert not isinstance(session.within_launch, Missing)
    assert all(abs(float(str(one.difference.value))) < 1e-3 for one in session.within_launch)  # the bias is not seen
    both = floor(RunValues(("1.1", "1.2", "2.1"), np.stack([run(0.5), run(0.5), run(-0.2)])), documents, preset=QUICK)
    assert not isinstance(both.across_launches, Missing)
    assert both.across_launches[0].difference.value == pytest.approx(-0.7, abs=1e-3)
