"""Log-probabilities that were rounded before they were written are told from those that were not."""

from __future__ import annotations

import numpy as np
import pytest

from engcmp_assets.kernel.light_measures import light_rows
from engcmp_assets.kernel.rounding import rounded_to, rounding_sentence
from engcmp_resources.errors import EngcmpError

VALUES = -np.random.default_rng(5).gamma(2.0, 3.0, size=200)


@pytest.mark.parametrize("decimals", range(6))
@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_the_step_is_found_in_both_precisions(decimals: int, kind: type) -> None:
    values = np.unique(np.round(VALUES, decimals)) if decimals else -np.arange(40.0)
    assert rounded_to(values.astype(kind)) == 10.0**-decimals
    assert rounded_to(np.append(values, -np.inf).astype(kind)) == 10.0**-decimals


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16])
def test_values_with_all_their_digits_have_none(kind: type) -> None:
    assert rounded_to(VALUES.astype(kind)) is None
    assert rounded_to(np.round(VALUES, 6)) is None


def test_few_values_tell_nothing() -> None:
    assert rounded_to(np.array([-0.5, -1.0, -1.5])) is None
    assert rounded_to(np.tile(np.array([-0.5, -1.0]), 100)) is None
    assert rounded_to(np.array([])) is None


def test_what_it_costs_is_half_a_step() -> None:
    assert "multiple of 0.0001" in rounding_sentence(1e-4) and "5e-05 nats" in rounding_sentence(1e-4)


def test_rows_that_rounding_has_broken_say_so() -> None:
    """Rounded up, the top of a sure row sums to more than 1: to capture the same again would not help."""
    log_probs = np.tile(np.log(np.linspace(0.9, 0.002, 20) / np.linspace(0.9, 0.002, 20).sum()), (2, 1))
    ids, up = np.tile(np.arange(20), (2, 1)), np.ceil(log_probs * 100) / 100
    with pytest.raises(
        EngcmpError, match=r"sum to more than 1 .*capture this window with all digits: .*multiple of 0\.01"
    ):
        light_rows(ids, up, up[:, 0], [0, 0], vocab=40, where="here")
    with pytest.raises(EngcmpError, match="recapture this window"):
        light_rows(ids, log_probs + 0.1, log_probs[:, 0] + 0.1, [0, 0], vocab=40, where="here")
