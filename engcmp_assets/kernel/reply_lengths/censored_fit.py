"""The length ratio from a joint log-normal fit with censoring (MEASURES section 7).

The logarithm of a reply's length is mu + spread * (sqrt(r) u + sqrt(1 - r) e): mu and spread of its arm, u of its prompt and e of the
reply, both standard normal. With one reply of each arm to a prompt that is the bivariate log-normal law of a pair with correlation r,
and with several the same for every two replies to a prompt. A capped reply counts with the chance that its length is at least the cap.
Ratio = exp(mu_c - mu_b), of the medians.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy
from threadpoolctl import threadpool_limits

from engcmp_assets.kernel.records import Interval, Missing
from engcmp_assets.kernel.reply_lengths.records import PairedLengths
from engcmp_assets.kernel.splitmix import cluster_draws
from engcmp_assets.kernel.uncertainty import BOOTSTRAP_CLUSTERS, Preset

Floats = npt.NDArray[np.float64]

CAPPED_LIMIT = 0.3  # of either arm: above it the ratio rests on the shape of the tail, which nothing here shows
LENGTHS = Preset(replicates=1000, seed=20260929)
_NODES, _NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(40)  # means over a standard normal, exact up to degree 79
_LOG_WEIGHTS = np.log(_NODE_WEIGHTS / _NODE_WEIGHTS.sum())
_BOUNDS = np.array([(math.log(1e-3), math.log(20.0))] * 2 + [(-9.0, 6.0)])  # of both log spreads, and of the logit of r
_LOG_2PI = math.log(2 * math.pi)
_FAILED_SHARE = 0.02  # of the resamples that may have no fit
_SLOPE = (
    1e-3  # of a prompt's mean log-likelihood: at most this is left at a fit; the integral's own error is below 1e-4
)


@dataclass(frozen=True, slots=True)
class LengthFit:
    """The fitted law: median lengths in tokens, the spread of their natural logarithms, and the correlation within a prompt."""

    baseline_median: float
    candidate_median: float
    baseline_spread: float
    candidate_spread: float
    correlation: float

    @property
    def ratio(self) -> float:
        return self.candidate_median / self.baseline_median


@dataclass(frozen=True, slots=True)
class LengthRatio:
    """Candidate / baseline of the median lengths; Missing ("bounded below: ..") where too many replies were capped to tell."""

    ratio: float | Missing
    interval: Interval | Missing
    baseline_capped: float
    candidate_capped: float
    prompts: int
    fit: LengthFit | Missing


@dataclass(frozen=True, slots=True)
class _Sums:
    """What the likelihood needs of each prompt and arm [prompts, 2]: finished replies, sums of their logs and squares, capped ones."""

    finished: Floats
    logs: Floats
    squares: Floats
    capped: Floats
    log_cap: float


def length_ratio(lengths: PairedLengths, *, preset: Preset = LENGTHS, level: float = 0.95) -> LengthRatio:
    """The ratio with its interval by resampling prompts, or the reason why there is none. The law is fitted where a reply was capped.

    Percentiles of the refitted resamples, widened for few prompts as a t interval is. No interval for fewer than 8 prompts.
    """
    shares = (lengths.capped_share("baseline"), lengths.capped_share("candidate"))
    size = len(lengths.pairs)
    withheld = _withheld(size, shares)
    if withheld is not None:
        return LengthRatio(withheld, withheld, *shares, size, withheld)
    if not any(shares):
        return _uncapped(lengths, preset, level)
    sums = _sums(lengths)
    weights = np.ones(size)
    start = _start(sums, weights)
    with threadpool_limits(
        1
    ):  # on shared cores, threads that wait for one another in a 5 x 5 problem cost a hundred times the work
        found = _fit(sums, weights, start)
        if found is None:
            none = Missing("the fit did not converge")
            return LengthRatio(none, none, *shares, size, none)
        interval = _interval(sums, found, preset, level)
    first, second, spread_first, spread_second = np.exp(found[:4]).tolist()
    fit = LengthFit(first, second, spread_first, spread_second, float(scipy.special.expit(found[4])))
    return LengthRatio(fit.ratio, interval, *shares, size, fit)


def _uncapped(lengths: PairedLengths, preset: Preset, level: float) -> LengthRatio:
    """Where no reply was capped the geometric mean over prompts says it all, whatever law the lengths follow."""
    size = len(lengths.pairs)
    logs = np.array([np.log(pair.candidate).mean() - np.log(pair.baseline).mean() for pair in lengths.pairs])
    interval: Interval | Missing = _too_few(size)
    if size >= BOOTSTRAP_CLUSTERS:
        means = logs[cluster_draws(size, preset.replicates, preset.seed)].mean(axis=1)
        interval = _between(means, size, level, "prompt bootstrap of the geometric mean")
    none = Missing("no reply was capped: the geometric mean needs no fit")
    return LengthRatio(math.exp(float(logs.mean())), interval, 0.0, 0.0, size, none)


def _withheld(size: int, shares: tuple[float, float]) -> Missing | None:
    if size == 0:
        return Missing("no prompt has a usable reply of both arms")
    if max(shares) > CAPPED_LIMIT:
        return Missing(
            f"bounded below: {shares[0]:.0%} of the baseline's and {shares[1]:.0%} of the candidate's replies were capped, "
            f"and the ratio is given up to {CAPPED_LIMIT:.0%}"
        )
    if size < 3:  # noqa: PLR2004 (two spreads and their tie need three prompts)
        return Missing(f"a fit needs 3 prompts, there are {size}")
    return None


def _sums(lengths: PairedLengths) -> _Sums:
    columns = []
    for pair in lengths.pairs:
        for side in (pair.baseline, pair.candidate):
            logs = np.log([one for one in side if not math.isinf(one)] or [1.0])
            count = sum(not math.isinf(one) for one in side)
            columns.append((count, logs.sum(), (logs * logs).sum(), len(side) - count))
    table = np.asarray(columns, dtype=np.float64).reshape(len(lengths.pairs), 2, 4)
    return _Sums(table[..., 0], table[..., 1], table[..., 2], table[..., 3], math.log(lengths.cap))


def _start(sums: _Sums, weights: Floats) -> Floats:
    """Moments with each capped reply at the cap."""
    count = weights @ (sums.finished + sums.capped)
    means = weights @ (sums.logs + sums.capped * sums.log_cap) / count
    squares = weights @ (sums.squares + sums.capped * sums.log_cap**2) / count
    spread = math.log(max(0.05, math.sqrt(float(np.maximum(squares - means**2, 0).mean()))))
    return np.array([*means, spread, spread, 1.0])


def _fit(sums: _Sums, weights: Floats, start: Floats) -> Floats | None:
    """The most likely (mu_b, mu_c, log spread_b, log spread_c, logit r) of prompts that count `weights` times; None if not found."""

    def negative(values: Floats) -> tuple[float, Floats]:
        likelihood, scores = _scores(values, sums)
        size = weights.sum()
        return -float(weights @ likelihood) / size, -(weights @ scores) / size

    bounds = [(None, None), (None, None), *_BOUNDS.tolist()]
    found = scipy.optimize.minimize(negative, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"gtol": 1e-7})
    ended: Floats = found.x
    slope = negative(ended)[1]
    slope[:2] *= np.exp(ended[2:4]) * math.sqrt(1 - scipy.special.expit(ended[4]))  # of a shift by one deviation of e
    slope[2:][(ended[2:] <= _BOUNDS[:, 0]) | (ended[2:] >= _BOUNDS[:, 1])] = 0
    return ended if np.isfinite(ended).all() and float(np.abs(slope).max()) < _SLOPE else None


def _scores(theta: Floats, sums: _Sums) -> tuple[Floats, Floats]:
    """The log-likelihood [prompts] and its gradient [prompts, 5] at `theta` [5].

    The finished replies leave a normal law of u; the capped ones are integrated over it. The gradient is the mean, over u given all
    replies of a prompt, of the gradient with u known.
    """
    mu, spread, r = theta[:2], np.exp(theta[2:4]), float(scipy.special.expit(theta[4]))
    shared, s = spread * np.sqrt(r), spread * np.sqrt(1 - r)
    n, precision = sums.finished, s**-2.0
    residual = sums.logs - n * mu
    squares = sums.squares - 2 * mu * sums.logs + n * mu**2
    sharpness = 1 + (n * shared**2 * precision).sum(axis=1)
    mean, variance = (shared * residual * precision).sum(axis=1) / sharpness, 1 / sharpness
    likelihood = (mean**2 * sharpness - np.log(sharpness)) / 2
    likelihood -= (squares * precision / 2 + n * np.log(s) + n * _LOG_2PI / 2).sum(axis=1)
    first, second = mean, mean**2 + variance  # moments of u
    hazard, hazard_u, hazard_z = (np.zeros_like(residual) for _ in range(3))  # expected, times the capped replies
    rows = np.flatnonzero(sums.capped.any(axis=1))
    if rows.size:
        u = mean[rows, None] + np.sqrt(variance[rows, None]) * _NODES
        z = (sums.log_cap - mu[:, None] - shared[:, None] * u[:, None, :]) / s[:, None]  # [prompts, 2, nodes]
        log_above = scipy.special.log_ndtr(-z)
        capped = sums.capped[rows, :, None]
        log_terms = (capped * log_above).sum(axis=1) + _LOG_WEIGHTS
        highest = log_terms.max(axis=1, keepdims=True)
        share = np.exp(log_terms - highest)
        total = share.sum(axis=1, keepdims=True)
        likelihood[rows] += (highest + np.log(total))[:, 0]
        share /= total
        first[rows], second[rows] = (share * u).sum(axis=1), (share * u * u).sum(axis=1)
        weighted = capped * np.exp(-(z**2 + _LOG_2PI) / 2 - log_above) * share[:, None, :]
        hazard[rows], hazard_z[rows] = weighted.sum(axis=2), (weighted * z).sum(axis=2)
        hazard_u[rows] = (weighted * u[:, None, :]).sum(axis=2)
    first, second = first[:, None], second[:, None]
    d_mu = (residual - n * shared * first) * precision + hazard / s
    d_log_shared = shared * ((residual * first - n * shared * second) * precision + hazard_u / s)
    d_log_s = (squares - 2 * shared * first * residual + n * shared**2 * second) * precision - n + hazard_z
    d_r = (d_log_shared * (1 - r) - d_log_s * r).sum(axis=1, keepdims=True) / 2
    return likelihood, np.concatenate([d_mu, d_log_shared + d_log_s, d_r], axis=1)


def _interval(sums: _Sums, found: Floats, preset: Preset, level: float) -> Interval | Missing:
    size = len(sums.finished)
    if size < BOOTSTRAP_CLUSTERS:
        return _too_few(size)
    logs = []
    for draw in cluster_draws(size, preset.replicates, preset.seed):
        again = _fit(sums, np.bincount(draw, minlength=size).astype(np.float64), found)
        if again is not None:
            logs.append(float(again[1] - again[0]))
    failed = preset.replicates - len(logs)
    if failed > _FAILED_SHARE * preset.replicates:
        return Missing(f"{failed} of {preset.replicates} resamples have no fit")
    return _between(np.asarray(logs), size, level, "prompt bootstrap of the censored fit")


def _between(logs: Floats, size: int, level: float, method: str) -> Interval:
    """Percentiles of resampled log ratios. As they are, they are as narrow as a normal interval with 1 / n: widen them to those of a t
    interval with 1 / (n - 1).
    """
    wider = math.sqrt(size / (size - 1)) * float(scipy.stats.t.ppf((1 - level) / 2, size - 1))
    tail = float(scipy.stats.norm.cdf(wider))
    low, high = np.quantile(logs, [tail, 1 - tail])
    return Interval(math.exp(low), math.exp(high), level, method)


def _too_few(size: int) -> Missing:
    return Missing(f"resampling needs {BOOTSTRAP_CLUSTERS} prompts, there are {size}")
