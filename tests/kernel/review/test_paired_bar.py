"""The one-sided paired bar against its definition written as a plain loop, and planted candidates on both sides of it."""

import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.review.paired_bar import (
    PAIRED_BAR,
    absolute_bar,
    full_bar,
    loss_tripwire,
    paired_bar,
    rise_tripwire,
    share_tripwire,
)
from engcmp_assets.kernel.uncertainty import Preset
from engcmp_resources.errors import EngcmpError

MASK = (1 << 64) - 1


def rows(windows=12, *, loss=0.0, rise=0.0, size=200, seed=1):
    """Rows (window, role, top-1 of both, KL of both): the candidate misses `loss` more rows and is `rise` nats further."""
    chance, table = random.Random(seed), []
    for window in range(windows):
        for _ in range(size):
            hit = chance.random() < 0.95
            worse = hit and chance.random() < loss
            kl = chance.expovariate(50)
            table.append((f"a{window:02}", "generated", float(hit and not worse), float(hit), kl + rise, kl))
        table.append((f"a{window:02}", "context", 0.0, 1.0, 9.0, 0.0))
    return table


def judge(table, **more):
    windows, roles, candidate, baseline, far, near = zip(*table, strict=True)
    return paired_bar(
        candidate_top1=candidate, baseline_top1=baseline, candidate_kl=far, baseline_kl=near, windows=windows, roles=roles,
        **({"same_engine": True} | more),
    )  # fmt: skip


def plain_bar(table, replicates, seed):
    """The definition, step by step: windows by id, one stream of draws for both statistics."""
    own = [row for row in table if row[1] == "generated"]
    names = sorted({row[0] for row in own})
    sums = []
    for name in names:
        mine = [row for row in own if row[0] == name]
        sums.append((len(mine), sum(row[3] - row[2] for row in mine), sum(row[4] - row[5] for row in mine)))
    state, size, losses, rises = seed, len(names), [], []

    def index():
        nonlocal state
        while True:
            state = (state + 0x9E3779B97F4A7C15) & MASK
            z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
            z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
            z ^= z >> 31
            if z >= ((1 << 64) - size) % size:
                return z % size

    for _ in range(replicates):
        drawn = [sums[index()] for _ in range(size)]
        count = sum(one[0] for one in drawn)
        losses.append(sum(one[1] for one in drawn) / count)
        rises.append(sum(one[2] for one in drawn) / count)
    ordered, place = sorted(rises), 0.95 * (replicates - 1)
    quantile = ordered[int(place)] + (place - int(place)) * (ordered[int(place) + 1] - ordered[int(place)])
    total = sum(one[0] for one in sums)
    loss = sum(one[1] for one in sums) / total
    return loss, loss + 1.6448536269514722 * statistics.stdev(losses), sum(one[2] for one in sums) / total, quantile


def test_the_preset_and_the_margins_are_those_of_the_law():
    assert (PAIRED_BAR.replicates, PAIRED_BAR.seed) == (5_000, 20260829)
    found = judge(rows(2))
    assert (found.top1.margin, found.kl.margin) == (0.005, 0.005)


def test_the_bounds_equal_a_plain_loop_of_the_definition():
    table = rows(9, loss=0.01, rise=0.001, seed=3)
    found = judge(table)
    wanted = plain_bar(table, 5_000, 20260829)
    assert (found.top1.worse_by, found.top1.upper, found.kl.worse_by, found.kl.upper) == pytest.approx(
        wanted, abs=1e-12
    )


def test_a_candidate_that_is_hardly_worse_is_within_and_context_rows_do_not_count():
    found = judge(rows(rise=0.001))
    assert found.verdict == "within bar" and found.top1.within and found.kl.within
    assert (found.windows, found.rows) == (12, 2_400)
    assert found.kl.worse_by == pytest.approx(0.001) and not found.by_analogy


@pytest.mark.parametrize(("more", "side"), [({"loss": 0.03}, "top1"), ({"rise": 0.006}, "kl")])
def test_a_worse_candidate_is_not_shown_within_and_the_side_says_so(more, side):
    found = judge(rows(**more))
    assert found.verdict == "not shown within bar" and not getattr(found, side).within


def test_the_bound_decides_and_not_the_value_itself():
    # Half of the windows lose 8 nats per 1,000 rows, half none: 0.004 is below the margin, its bound is not.
    table = [(f"a{w:02}", "generated", 1.0, 1.0, 0.008 * (w % 2), 0.0) for w in range(12) for _ in range(10)]
    found = judge(table)
    assert found.kl.worse_by == pytest.approx(0.004) and found.kl.upper > 0.005
    assert found.verdict == "not shown within bar"


def test_a_bound_at_the_margin_is_not_below_it():
    table = [(f"a{w}", "generated", 1.0, 1.0, 0.5, 0.25) for w in range(8)]
    assert judge(table, kl_margin=0.25).kl.upper == 0.25
    assert judge(table, kl_margin=0.25).verdict == "not shown within bar"
    assert judge(table, kl_margin=0.2500001).verdict == "within bar"


def test_identical_arms_are_within_with_bounds_of_zero():
    found = judge(rows())
    assert (found.top1.upper, found.kl.upper, found.verdict) == (0.0, 0.0, "within bar")


def test_one_window_has_no_spread_and_shows_nothing():
    found = judge(rows(1))
    assert isinstance(found.top1.upper, Missing) and found.verdict == "not shown within bar"


def test_two_windows_have_a_bound():
    found = judge(rows(2))
    assert (found.top1.upper, found.verdict) == (0.0, "within bar")


def test_few_windows_get_a_t_bound_beside_and_many_do_not():
    # Rises 1, 2, 6 in 1/1000: mean 3, sd sqrt(7), t(0.95, 2) = 2.919986 (tables).
    table = [(name, "generated", 1.0, 1.0, rise / 1000, 0.0) for name, rise in (("a", 1), ("b", 2), ("c", 6))]
    found = judge(table)
    assert found.kl.t_upper == pytest.approx((3 + 2.919986 * (7 / 3) ** 0.5) / 1000, rel=1e-6)
    assert found.kl.t_upper > found.kl.upper and "t bound" in found.sentence
    assert isinstance(judge(rows(8)).kl.t_upper, Missing) and isinstance(judge(rows(2)).kl.t_upper, Missing)


def test_across_engines_it_is_by_analogy():
    found = judge(rows(), same_engine=False)
    assert found.by_analogy and "by analogy" in found.sentence
    assert judge(rows()).sentence.startswith("Within bar: on 12 windows top-1 falls by +0, at most +0 (margin 0.005)")


def test_no_generated_row_and_a_margin_of_zero_are_refused():
    with pytest.raises(EngcmpError, match="no generated row"):
        judge([(name, "context", *rest) for name, _, *rest in rows(2)])
    with pytest.raises(EngcmpError, match="margin"):
        judge(rows(2), kl_margin=0)


BITS = st.sampled_from([0.0, 1.0])
DRAWN = st.tuples(st.sampled_from("abcde"), BITS, BITS, st.floats(0, 1), st.floats(0, 1))


@settings(max_examples=20, deadline=None)
@given(st.lists(DRAWN, min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_the_order_of_the_rows_does_not_matter(drawn, chance):
    table = [(name, "generated", *rest) for name, *rest in drawn]
    quick = Preset(200, 1)
    assert judge(table, preset=quick) == judge(chance.sample(table, len(table)), preset=quick)


def alone(top1, kl, windows=None):
    names = windows or ["a"] * len(top1)
    return absolute_bar(top1, kl, windows=names, roles=["generated"] * len(top1))


def test_the_absolute_bar_at_its_edges():
    assert alone([1.0] * 9 + [0.0], [0.06] * 10).within
    assert "below 0.9" in alone([1.0] * 8 + [0.0] * 2, [0.0] * 10).failures[0]
    assert "above 0.06" in alone([1.0], [0.0601]).failures[0]


def test_one_poor_window_fails_the_absolute_bar_by_name():
    found = alone([1.0] * 30 + [1.0, 1.0, 0.0], [0.0] * 33, ["a"] * 30 + ["b"] * 3)
    assert (found.lowest_window, found.lowest_window_top1) == ("b", pytest.approx(2 / 3))
    assert found.failures == ("top-1 of window b, 0.6667, is below 0.8",)


def test_tripwires_trip_on_their_own_side_only():
    assert not share_tripwire("confident top-1", [1.0] * 98 + [0.0] * 2, least=0.98).tripped
    assert share_tripwire("confident top-1", [1.0] * 97 + [0.0] * 3, least=0.98).tripped
    assert rise_tripwire("nll", [1.2, 1.0], [1.0, 1.0], most=0.05).tripped
    assert not rise_tripwire("nll", [1.0, 1.0], [1.2, 1.0], most=0.05).tripped
    windows = [f"w{place}" for place in range(10)]
    assert loss_tripwire("top-3", [0.9] * 10, [1.0] * 10, windows=windows, most=0.05).tripped
    assert not loss_tripwire("top-3", [1.0] * 10, [0.9] * 10, windows=windows, most=0.05).tripped
    # A loss in one window of ten is above 0.05 on average, and not shown to be.
    one = loss_tripwire("top-3", [0.0] + [1.0] * 9, [1.0] * 10, windows=windows, most=0.05)
    assert not one.tripped and one.value == 0.0


def test_the_full_bar_wants_everything():
    paired, run = judge(rows()), alone([1.0], [0.0])
    held = share_tripwire("confident top-1", [1.0], least=0.98)
    good = full_bar(paired, candidate=run, baseline=run, tripwires=[held])
    assert good.verdict == "within bar" and good.failures == ()
    assert isinstance(full_bar(paired, candidate=run, baseline=run, tripwires=[]), Missing)
    tripped = share_tripwire("confident top-1", [0.0], least=0.98)
    bad = full_bar(judge(rows(1)), candidate=alone([0.0], [0.0]), baseline=run, tripwires=[held, tripped])
    assert bad.verdict == "not shown within bar"
    assert [text.split(":")[0] for text in bad.failures] == [
        "the paired bar", "1 window, at least 2 are wanted", "the candidate's absolute bar", "the candidate's absolute bar",
        "tripwire confident top-1",
    ]  # fmt: skip
