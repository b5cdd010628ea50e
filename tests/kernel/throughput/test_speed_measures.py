"""Every figure of a cell is a measure, described once with all others."""

from __future__ import annotations

from engcmp_assets.kernel.measures import ADDED, MEASURES
from engcmp_assets.kernel.tables import measure_column
from engcmp_assets.kernel.throughput.ratios import COMPARED
from engcmp_assets.kernel.throughput.request_values import QUANTILES
from engcmp_assets.kernel.throughput.speed_measures import SPEED_IDS, SPEED_MEASURES


def test_the_speed_measures_are_measures_that_no_earlier_freeze_holds() -> None:
    assert set(SPEED_IDS) <= set(MEASURES) and set(SPEED_IDS) <= ADDED
    assert len(SPEED_IDS) == len(set(SPEED_IDS))


def test_a_column_of_one_carries_its_unit_and_its_definition() -> None:
    for one in SPEED_MEASURES:
        column = measure_column(one.id)
        assert column.unit == one.unit and one.definition in column.description


def test_a_unit_stands_in_the_id_that_has_one() -> None:
    for one in SPEED_MEASURES:
        assert one.id.endswith("_ms") == (one.unit == "ms")
        assert one.id.endswith("_tok_s") == (one.unit == "tokens/s")


def test_what_is_compared_or_resampled_is_a_measure() -> None:
    assert set(COMPARED) | set(QUANTILES) <= set(SPEED_IDS)
