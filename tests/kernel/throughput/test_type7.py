"""Quantiles of few values, against numpy's."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engcmp_assets.kernel.throughput.type7 import quantiles

SHARES = (0.5, 0.0, 1.0, 0.1, 0.9, 0.99, 1 / 3)


@given(st.lists(st.floats(-1e18, 1e18), min_size=1, max_size=40))
def test_quantiles_of_few_values_are_those_of_numpy_to_the_last_bit(values: list[float]) -> None:
    found = np.array(values)
    assert quantiles(found, SHARES) == np.quantile(found, SHARES, method="linear").tolist()


def test_many_values_are_left_to_numpy() -> None:
    values = np.random.default_rng(8).random(2000)
    for size in (511, 512, 513, 2000):
        own = values[:size]
        assert quantiles(own, SHARES) == np.quantile(own, SHARES, method="linear").tolist()
