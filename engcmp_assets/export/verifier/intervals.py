"""The intervals of a mean over rows that come in clusters, in plain Python: draws and definitions are engcmp's (MEASURES section 4)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from statistics import NormalDist

_MASK = (1 << 64) - 1
_BOOTSTRAP_FROM, _T_FROM = 8, 3
Ends = tuple[float, float]


@lru_cache(maxsize=8)
def draws(clusters: int, replicates: int, seed: int) -> tuple[tuple[int, ...], ...]:
    """Cluster indices of each replicate, from one SplitMix64 stream, every index exactly equally likely (by rejection)."""
    state, threshold = seed, ((1 << 64) - clusters) % clusters
    found = []
    for _ in range(replicates):
        drawn: list[int] = []
        while len(drawn) < clusters:
            state = (state + 0x9E3779B97F4A7C15) & _MASK
            z = state
            z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
            z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
            z ^= z >> 31
            if z >= threshold:
                drawn.append(z % clusters)
        found.append(tuple(drawn))
    return tuple(found)


class Clusters:
    """Values summed by cluster, clusters in the order of their names."""

    def __init__(self, values: Sequence[float], names: Sequence[str]) -> None:
        groups: dict[str, list[float]] = {}
        for value, name in zip(values, names, strict=True):
            groups.setdefault(name, []).append(value)
        self.rows = len(values)
        self.names = sorted(groups)
        self.sums = [math.fsum(groups[name]) for name in sorted(groups)]
        self.counts = [float(len(groups[name])) for name in sorted(groups)]

    @property
    def mean(self) -> float:
        """Each row counted once."""
        return math.fsum(self.sums) / math.fsum(self.counts)

    @property
    def means(self) -> list[float]:
        return [total / count for total, count in zip(self.sums, self.counts, strict=True)]


def interval(groups: Clusters, *, replicates: int, seed: int, level: float, kind: str) -> Ends | None:
    """The two-sided interval at `level` of the mean; None where there are too few clusters. `kind`: mean, proportion or difference."""
    size = len(groups.sums)
    if size < _T_FROM:
        return None
    if kind == "proportion" and (not any(groups.sums) or groups.sums == groups.counts):
        return wilson(size if any(groups.sums) else 0, size, level)
    if size < _BOOTSTRAP_FROM:
        means = groups.means
        centre = math.fsum(means) / size
        spread = math.sqrt(math.fsum((one - centre) ** 2 for one in means) / (size - 1))
        half = t_quantile(0.5 + level / 2, size - 1) * spread / math.sqrt(size)
        return centre - half, centre + half
    tail = (1 - level) / 2
    if replicates * tail < 1:
        return None
    ratios = resampled(tuple(groups.sums), tuple(groups.counts), replicates, seed)
    return quantile(ratios, tail), quantile(ratios, 1 - tail)


@lru_cache(maxsize=2)  # a figure is asked for at two levels, one after the other
def resampled(sums: tuple[float, ...], counts: tuple[float, ...], replicates: int, seed: int) -> tuple[float, ...]:
    """The means of all replicates, in rising order."""
    of_sums: Callable[[int], float] = sums.__getitem__
    of_counts: Callable[[int], float] = counts.__getitem__
    drawn = draws(len(sums), replicates, seed)
    return tuple(sorted(sum(map(of_sums, one)) / sum(map(of_counts, one)) for one in drawn))


def closed_interval(groups: Sequence[Clusters], *, replicates: int, seed: int, level: float) -> Ends | None:
    """The interval of the share of a gap that is closed, `groups` being baseline, candidate and candidate with the setting.

    None where there are too few clusters, or where a resample has no gap.
    """
    size, tail = len(groups[0].sums), (1 - level) / 2
    if size < _BOOTSTRAP_FROM or replicates * tail < 1:
        return None
    found = []
    for drawn in draws(size, replicates, seed):
        b, c, s = (sum(map(one.sums.__getitem__, drawn)) / sum(map(one.counts.__getitem__, drawn)) for one in groups)
        if c == b:
            return None
        found.append(1 - (s - b) / (c - b))
    found.sort()
    return quantile(found, tail), quantile(found, 1 - tail)


def quantile(ordered: Sequence[float], share: float) -> float:
    """The linear quantile of values in rising order."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def wilson(successes: int, trials: int, level: float) -> Ends:
    """Wilson's interval of a proportion; exactly 0 or 1 at its ends."""
    z = NormalDist().inv_cdf(0.5 + level / 2)
    share = successes / trials
    centre = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z * math.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2) / (1 + z * z / trials)
    return (0.0 if successes == 0 else centre - half), (1.0 if successes == trials else centre + half)


def t_quantile(share: float, freedom: int) -> float:
    """The quantile above 0.5 of Student's t with a whole number of degrees of freedom, by halving the interval of its distribution."""
    low, high = 0.0, 1.0
    while _t_below(high, freedom) < share:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if _t_below(middle, freedom) < share else (low, middle)
    return (low + high) / 2


def _t_below(t: float, freedom: int) -> float:
    """P(T <= t), t >= 0: the finite sums for whole degrees of freedom (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    term = cosine if freedom % 2 else 1.0
    terms = [term] if freedom > 1 else []
    for step in range(3 if freedom % 2 else 2, freedom - 1, 2):
        term *= cosine * cosine * (step - 1) / step
        terms.append(term)
    inside = sine * math.fsum(terms)
    within = (angle + inside) * 2 / math.pi if freedom % 2 else inside
    return 0.5 + within / 2


def sign_flip_p(means: Sequence[float]) -> float:
    """The exact two-sided sign-flip p of a mean."""
    observed = abs(math.fsum(means)) - 1e-12 * math.fsum(abs(one) for one in means)
    patterns = list(itertools.product((1.0, -1.0), repeat=len(means)))
    as_far = sum(abs(math.fsum(s * one for s, one in zip(signs, means, strict=True))) >= observed for signs in patterns)
    return as_far / len(patterns)
