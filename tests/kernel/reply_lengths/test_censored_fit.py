"""The length ratio under a cap, held against simulated replies whose true ratio is known."""

import math

import numpy as np
import pytest
from length_draws import PROMPT_SPREAD, REPLY_SPREAD, capped_at, drawn
from scipy import optimize, stats

from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.reply_lengths.censored_fit import length_ratio
from engcmp_assets.kernel.reply_lengths.comparing import compare_lengths
from engcmp_assets.kernel.reply_lengths.records import PairedLengths, ReplyLength, pair_up
from engcmp_assets.kernel.reply_lengths.under_cap import under_the_cap
from engcmp_assets.kernel.uncertainty import Preset

FEW = Preset(replicates=40, seed=3)
ONE = Preset(replicates=1, seed=3)  # where only the ratio is looked at


def pairs_of(rng: np.random.Generator, share: float, *, ratio: float = 1.3, replies: int = 1) -> PairedLengths:
    cap = capped_at(share, ratio)
    return pair_up(*drawn(rng, ratio=ratio, cap=cap, replies=replies), cap)


def test_without_a_capped_reply_the_ratio_is_the_geometric_mean() -> None:
    pairs = pairs_of(np.random.default_rng(1), 1e-9)
    found = length_ratio(pairs, preset=ONE)
    assert found.ratio == pytest.approx(under_the_cap(pairs).ratio, rel=1e-12)
    assert found.baseline_capped == 0
    assert found.fit == Missing("no reply was capped: the geometric mean needs no fit")


def test_one_capped_reply_moves_the_fit_little_from_the_geometric_mean() -> None:
    """The two ways agree where they meet: so no ratio jumps when a single reply is cut."""
    baseline, candidate = drawn(np.random.default_rng(21), ratio=1.3, cap=10**7)
    longest = max(candidate, key=lambda one: one.tokens)
    cap = longest.tokens - 1
    cut = [ReplyLength(one.prompt_id, cap, "capped") if one is longest else one for one in candidate]
    whole = length_ratio(pair_up(baseline, candidate, 10**7), preset=FEW)
    found = length_ratio(pair_up(baseline, cut, cap), preset=FEW)
    assert not isinstance(found.fit, Missing)
    assert found.ratio == pytest.approx(whole.ratio, rel=0.02)
    assert not isinstance(found.interval, Missing)
    assert not isinstance(whole.interval, Missing)
    assert found.interval.low == pytest.approx(whole.interval.low, rel=0.03)


def test_replies_that_are_all_the_same_have_a_ratio_of_exactly_one() -> None:
    baseline = [ReplyLength(f"p{n}", 300 + 7 * n, "finished") for n in range(12)]
    found = length_ratio(pair_up(baseline, baseline, 1000), preset=FEW)
    assert found.ratio == 1
    assert not isinstance(found.interval, Missing)
    assert (found.interval.low, found.interval.high) == (1, 1)


def test_the_fit_is_the_most_likely_bivariate_log_normal() -> None:
    """Against scipy's own normal law: densities of finished pairs, conditional tails of half-capped ones, orthants of capped ones."""
    pairs = pairs_of(np.random.default_rng(2), 0.2)

    def negative(values: np.ndarray) -> float:
        middle, (s_b, s_c), r = values[:2], np.exp(values[2:4]), math.tanh(values[4])
        joint = stats.multivariate_normal(middle, [[s_b**2, r * s_b * s_c], [r * s_b * s_c, s_c**2]])
        cap, total = math.log(pairs.cap), 0.0
        for pair in pairs.pairs:
            one, other = math.log(pair.baseline[0]), math.log(pair.candidate[0])
            if math.isinf(one) and math.isinf(other):
                total += math.log(1 - joint.cdf([cap, math.inf]) - joint.cdf([math.inf, cap]) + joint.cdf([cap, cap]))
            elif math.isinf(one) or math.isinf(other):
                (at, mid, s), (m, t) = (
                    ((one, middle[0], s_b), (middle[1], s_c))
                    if math.isinf(other)
                    else ((other, middle[1], s_c), (middle[0], s_b))
                )
                tail = stats.norm.logsf(cap, m + r * t * (at - mid) / s, t * math.sqrt(1 - r * r))
                total += stats.norm.logpdf(at, mid, s) + tail
            else:
                total += joint.logpdf([one, other])
        return -total

    wanted = optimize.minimize(
        negative,
        [9.8, 10.0, -0.2, -0.2, 1.0],
        method="Nelder-Mead",
        options={"xatol": 1e-6, "fatol": 1e-8, "maxiter": 4000},
    )
    found = length_ratio(pairs, preset=ONE).fit
    assert not isinstance(found, Missing)
    assert found.ratio == pytest.approx(math.exp(wanted.x[1] - wanted.x[0]), rel=1e-3)
    assert found.correlation == pytest.approx(math.tanh(wanted.x[4]), abs=2e-3)


@pytest.mark.parametrize(("share", "trials"), [(0.05, 16), (0.25, 24)])
def test_the_interval_covers_the_true_ratio(share: float, trials: int) -> None:
    """A small one; bench_length_coverage.py runs as many as it is asked for."""
    rng = np.random.default_rng(11)
    covered = told = 0
    for _ in range(trials):
        found = length_ratio(pairs_of(rng, share), preset=FEW)
        if isinstance(found.interval, Missing):
            assert str(found.interval.reason).startswith("bounded below")
            continue
        told += 1
        covered += found.interval.low <= 1.3 <= found.interval.high
    assert told >= 6
    assert covered >= 0.8 * told


def test_the_fit_is_not_biased_where_the_plain_geometric_mean_is() -> None:
    rng = np.random.default_rng(12)
    ratios, plain = [], []
    for _ in range(120):
        pairs = pairs_of(rng, 0.25)
        plain.append(under_the_cap(pairs).ratio)
        found = length_ratio(pairs, preset=ONE).ratio
        if not isinstance(found, Missing):
            ratios.append(math.log(found))
    assert math.exp(float(np.median(ratios))) == pytest.approx(1.3, abs=0.05)
    assert float(np.mean(plain)) < 1.25


def test_with_half_of_the_replies_capped_a_true_1_30_reads_1_13_as_plain_geometric_mean() -> None:
    rng = np.random.default_rng(13)
    cap = 18_000
    plain = [under_the_cap(pair_up(*drawn(rng, ratio=1.3, cap=cap), cap)) for _ in range(100)]
    assert float(np.mean([one.ratio for one in plain])) == pytest.approx(1.13, abs=0.02)
    assert plain[0].label == "under the cap of 18000 tokens"


@pytest.mark.parametrize("share", [0.45, 0.75])
def test_too_many_capped_replies_withhold_the_ratio(share: float) -> None:
    rng = np.random.default_rng(14)
    for _ in range(20):
        found = length_ratio(pairs_of(rng, share), preset=ONE)
        assert isinstance(found.ratio, Missing)
        assert found.ratio.reason.startswith("bounded below: ")
        assert found.interval == found.ratio


def test_one_arm_that_is_capped_too_often_is_enough() -> None:
    baseline = [ReplyLength(f"p{n}", 50, "finished") for n in range(10)]
    candidate = [
        ReplyLength(f"p{n}", 100, "capped") if n < 4 else ReplyLength(f"p{n}", 60, "finished") for n in range(10)
    ]
    found = length_ratio(pair_up(baseline, candidate, 100), preset=ONE)
    assert "0% of the baseline's and 40% of the candidate's" in str(found.ratio)


def test_several_replies_to_a_prompt_narrow_the_interval() -> None:
    """The law of several replies keeps the prompt's share of the spread apart."""
    rng = np.random.default_rng(15)
    found = length_ratio(pairs_of(rng, 0.1, replies=4), preset=FEW)
    assert not isinstance(found.fit, Missing)
    assert not isinstance(found.interval, Missing)
    share = PROMPT_SPREAD**2 / (PROMPT_SPREAD**2 + REPLY_SPREAD**2)
    assert found.fit.correlation == pytest.approx(share, abs=0.08)
    assert found.interval.low < 1.3 < found.interval.high
    assert found.interval.high / found.interval.low < 1.35


def test_few_prompts_have_a_ratio_without_an_interval() -> None:
    baseline, candidate = drawn(np.random.default_rng(16), ratio=1.3, cap=10**7, prompts=7)
    found = length_ratio(pair_up(baseline, candidate, 10**7))
    assert not isinstance(found.ratio, Missing)
    assert found.interval == Missing("resampling needs 8 prompts, there are 7")
    assert length_ratio(pair_up([], [], 9)).ratio == Missing("no prompt has a usable reply of both arms")


def test_the_same_seed_gives_the_same_interval() -> None:
    pairs = pairs_of(np.random.default_rng(17), 0.1)
    assert length_ratio(pairs, preset=FEW).interval == length_ratio(pairs, preset=FEW).interval


def test_a_sensitivity_counts_loops_as_capped() -> None:
    baseline = [ReplyLength(f"p{n}", 50 + n, "finished") for n in range(20)]
    candidate = [ReplyLength(f"p{n}", 55 + n, "looped" if n < 9 else "finished") for n in range(20)]
    found = compare_lengths(baseline, candidate, 200, preset=FEW)
    assert found.main.longer.candidate_more == 11
    assert found.main.capped.candidate_more == 0
    assert found.sensitivity.longer.candidate_more == 20
    assert found.sensitivity.capped.candidate_more == 9
    assert not isinstance(found.main.ratio.ratio, Missing)
    assert isinstance(found.sensitivity.ratio.ratio, Missing)
