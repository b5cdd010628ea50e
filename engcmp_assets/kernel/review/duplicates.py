"""Windows that hold the same text count as one item: shared n-grams of token ids, groups of windows, merged clusters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy

from engcmp_assets.kernel.review.shared import Names, many
from engcmp_resources.errors import EngcmpError

Int64 = npt.NDArray[np.int64]

LENGTH = 50  # tokens: two texts do not share so long a run by chance
SHARE = 0.5  # of the shorter text's n-grams: from here on two windows are near-copies


@dataclass(frozen=True, slots=True)
class DuplicateGroup:
    """Windows that are near-copies of each other, directly or through others. `clusters` are theirs before merging.

    `shared_tokens` is, over the group's windows, the smallest share of tokens that lie in an n-gram which another of them holds too.
    """

    windows: tuple[str, ...]
    clusters: tuple[str, ...]
    shared_tokens: float


@dataclass(frozen=True, slots=True)
class Duplicates:
    """`merged` gives each window's cluster after merging: that of its group, named by the least id in it.

    `found`: a group joins windows of different clusters, so that the bootstrap would have counted one text more than once.
    """

    groups: tuple[DuplicateGroup, ...]
    merged: Mapping[str, str]
    clusters_before: int
    clusters_after: int
    windows_too_short: tuple[str, ...]
    found: bool
    sentence: str

    def clusters_of(self, windows: Names) -> list[str]:
        """The merged cluster of each row, given each row's window."""
        return [self.merged[str(window)] for window in windows]


def duplicate_windows(
    texts: Mapping[str, Sequence[int] | Int64],
    clusters: Mapping[str, str],
    *,
    length: int = LENGTH,
    share: float = SHARE,
) -> Duplicates:
    """Find windows whose texts share at least `share` of the n-grams (of `length` tokens) of the shorter one, and merge their clusters.

    `texts[window]` are the token ids that the figure's rows predict, and not the whole prompt: a preamble that all windows share is then
    no duplicate, while a filler that was appended to all of them is. `clusters[window]` is its declared cluster. The comparison is of
    whole n-grams, exact. A window shorter than `length` is named and never joined. Raises EngcmpError for windows that lack a cluster
    or ids that are not whole numbers, and for a length below 1 or a share outside (0, 1].
    """
    names = sorted(texts)
    if not names or set(names) != set(clusters):
        raise EngcmpError(
            f"{len(names)} texts and {len(clusters)} clusters of windows", remedy="give both for the same windows"
        )
    if length < 1 or not 0 < share <= 1:
        raise EngcmpError(f"n-grams of {length} tokens, a share of {share}", remedy="give 1 or more, and above 0 to 1")
    grams = _grams([_ids(texts[name], name) for name in names], length)
    holds = _table(grams)
    sizes = np.asarray(holds.sum(axis=1)).ravel()
    together = (holds @ holds.T).tocoo()
    least = np.minimum(sizes[together.row], sizes[together.col])
    close = (together.data / least >= share) & (together.row != together.col)
    size = len(names)
    near = scipy.sparse.coo_array(
        (np.ones(int(close.sum())), (together.row[close], together.col[close])), shape=(size, size)
    )
    group_of = scipy.sparse.csgraph.connected_components(near, directed=False)[1].tolist()
    merged = _merge(names, clusters, group_of)
    groups = _groups(names, clusters, group_of, grams, length)
    before, after = len(set(clusters.values())), len(set(merged.values()))
    short = tuple(name for name, own in zip(names, grams, strict=True) if own.size == 0)
    return Duplicates(
        groups, merged, before, after, short, after < before, _sentence(groups, before, after, length, short)
    )


def _ids(tokens: Sequence[int] | Int64, window: str) -> Int64:
    ids = np.asarray(tokens)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise EngcmpError(
            f"token ids are {ids.dtype} {list(ids.shape)}", where=f"window {window}", remedy="give ids in a row"
        )
    return ids.astype(np.int64)


def _grams(texts: Sequence[Int64], length: int) -> list[Int64]:
    """Of each text, a number for the n-gram that starts at each token: equal numbers are equal n-grams, and nothing else is.

    Numbers of twice the length come from pairs of numbers, so the comparison is exact and takes log2(length) sorts of all tokens.
    """
    everything = np.concatenate(texts)
    number = np.unique(everything, return_inverse=True)[1].astype(np.int64)
    reach = 1
    while reach < length:
        step = min(reach, length - reach)  # the last step overlaps: two runs that cover the n-gram name it too
        count = max(0, len(number) - step)
        pairs = number[:count] * (int(number.max(initial=0)) + 1) + number[step : step + count]
        number, reach = np.unique(pairs, return_inverse=True)[1].astype(np.int64), reach + step
    # An n-gram that runs over a text's end is none.
    starts = np.cumsum([0, *(len(text) for text in texts)])
    return [
        number[first : max(first, first + len(text) - length + 1)]
        for first, text in zip(starts.tolist(), texts, strict=False)
    ]


def _table(grams: Sequence[Int64]) -> scipy.sparse.csr_array:
    """Which window holds which n-gram, 0/1 [windows, n-grams]."""
    own = [np.unique(one) for one in grams]
    rows = np.repeat(np.arange(len(own)), [len(one) for one in own])
    columns = np.concatenate(own)
    return scipy.sparse.csr_array(
        (np.ones(len(columns)), (rows, columns)), shape=(len(own), int(columns.max(initial=0)) + 1)
    )


def _merge(names: Sequence[str], clusters: Mapping[str, str], group_of: Sequence[int]) -> dict[str, str]:
    """Each window's cluster, where clusters that a group joins are one, named by its least id."""
    ids = sorted(set(clusters.values()))
    place = {cluster: index for index, cluster in enumerate(ids)}
    # Windows' groups stand behind the clusters: an edge from each window's cluster to its group joins all that belong together.
    own = np.array([place[clusters[name]] for name in names])
    size = len(ids) + max(group_of) + 1
    edges = scipy.sparse.coo_array((np.ones(len(names)), (own, len(ids) + np.array(group_of))), shape=(size, size))
    joined = scipy.sparse.csgraph.connected_components(edges, directed=False)[1].tolist()
    least: dict[int, str] = {}
    for cluster, label in zip(ids, joined[: len(ids)], strict=True):
        least.setdefault(label, cluster)
    return {name: least[joined[index]] for name, index in zip(names, own.tolist(), strict=True)}


def _groups(
    names: Sequence[str], clusters: Mapping[str, str], group_of: Sequence[int], grams: Sequence[Int64], length: int
) -> tuple[DuplicateGroup, ...]:
    found = []
    for label in sorted(set(group_of)):
        members = [index for index, own in enumerate(group_of) if own == label]
        if len(members) == 1:
            continue
        known, holders = np.unique(np.concatenate([np.unique(grams[index]) for index in members]), return_counts=True)
        shared = known[holders > 1]
        windows = tuple(names[index] for index in members)
        covered = min(_covered(np.isin(grams[index], shared), length) for index in members)
        found.append(DuplicateGroup(windows, tuple(sorted({clusters[name] for name in windows})), covered))
    return tuple(found)


def _covered(starts: npt.NDArray[np.bool_], length: int) -> float:
    """Share of a text's tokens that lie in an n-gram which starts where `starts` says."""
    edges = np.zeros(len(starts) + length, dtype=np.int64)
    edges[: len(starts)] += starts
    edges[length:] -= starts
    return float((np.cumsum(edges)[:-1] > 0).mean())


def _sentence(groups: tuple[DuplicateGroup, ...], before: int, after: int, length: int, short: tuple[str, ...]) -> str:
    tail = f" ({many(len(short), 'window')} shorter than {length} tokens could not be compared)" if short else ""
    if not groups:
        return f"No two windows share their text in runs of {length} tokens{tail}."
    largest = max(groups, key=lambda group: len(group.windows))
    text = (
        f"{many(sum(len(group.windows) for group in groups), 'window')} hold {many(len(groups), 'text')}; in the largest group "
        f"{len(largest.windows)} windows share {100 * largest.shared_tokens:.3g} % of their tokens or more"
    )
    if after == before:
        return f"{text}, all within one declared cluster each{tail}."
    return f"{text}: {many(before, 'cluster')} count as {after}{tail}."
