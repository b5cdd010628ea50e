"""Near-duplicate windows: thirty copies of one filler are one item, a shared preamble that nothing averages is none."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engcmp_assets.kernel.review.duplicates import duplicate_windows
from engcmp_assets.kernel.review.few_clusters import few_clusters
from engcmp_assets.kernel.uncertainty import Preset, distinct_resamples
from engcmp_resources.errors import EngcmpError


def text(size, seed):
    return random.Random(seed).choices(range(50_000), k=size)


def find(texts, clusters=None, **more):
    return duplicate_windows(texts, clusters or {name: f"c-{name}" for name in texts}, **more)


FILLER = text(400, 0)


def test_near_copies_of_one_filler_are_one_group_and_one_cluster():
    texts = {f"a{number:02}": FILLER[number:] + text(number, number + 1) for number in range(30)}
    texts |= {f"b{number}": text(400, 100 + number) for number in range(3)}
    found = find(texts)
    (group,) = found.groups
    assert group.windows == tuple(f"a{number:02}" for number in range(30))
    assert group.shared_tokens == pytest.approx(371 / 400, abs=0.01)
    assert (found.clusters_before, found.clusters_after, found.found) == (33, 4, True)
    assert set(found.merged.values()) == {"c-a00", "c-b0", "c-b1", "c-b2"}
    assert "33 clusters count as 4" in found.sentence


def test_windows_of_different_text_are_left_as_they_are():
    texts = {name: text(400, seed) for seed, name in enumerate("abcd")}
    found = find(texts)
    assert found.groups == () and not found.found
    assert found.merged == {name: f"c-{name}" for name in "abcd"}


def test_a_shared_span_below_the_share_joins_nothing_and_one_above_does():
    # 100 of 400 tokens are shared: 51 of 351 50-grams.
    texts = {name: FILLER[:100] + text(300, name) for name in "ab"}
    assert not find(texts).found
    assert find(texts, share=51 / 351).found and not find(texts, share=51 / 351 + 1e-9).found


def test_what_a_chain_of_copies_joins_is_one_group():
    long = text(300, 3)
    texts = {"a": long[:200], "b": long[50:250], "c": long[100:300]}
    assert not find({"a": texts["a"], "c": texts["c"]}).found  # 51 of 151
    assert find(texts).groups[0].windows == ("a", "b", "c")


def test_clusters_that_hold_the_copies_are_merged_whole():
    texts = {"a": FILLER, "b": FILLER, "a2": text(400, 5), "z": text(400, 6)}
    found = find(texts, {"a": "doc1", "a2": "doc1", "b": "doc2", "z": "doc3"})
    assert found.merged == {"a": "doc1", "a2": "doc1", "b": "doc1", "z": "doc3"}
    assert found.clusters_of(["b", "z", "b"]) == ["doc1", "doc3", "doc1"]


def test_copies_within_one_declared_cluster_are_reported_and_change_nothing():
    found = find({"a": FILLER, "b": FILLER}, {"a": "doc", "b": "doc"})
    assert len(found.groups) == 1 and not found.found and found.merged == {"a": "doc", "b": "doc"}


def test_a_window_shorter_than_the_n_gram_is_named_and_not_joined():
    found = find({"a": FILLER[:30], "b": FILLER[:30], "c": FILLER})
    assert found.windows_too_short == ("a", "b") and not found.found
    assert "could not be compared" in found.sentence


def test_the_comparison_is_exact_by_hand():
    # 3-grams of a: 123 234 341; of b: 234 345: they share 234, half of b's.
    texts = {"a": [1, 2, 3, 4, 1], "b": [2, 3, 4, 5]}
    assert find(texts, length=3).groups[0].shared_tokens == pytest.approx(3 / 5)
    assert "2 windows share 60 % of their tokens or more" in find(texts, length=3).sentence
    assert not find(texts, length=3, share=0.51).found
    # A run over the end of one text into the next is no n-gram.
    assert not find({"a": [1, 2], "b": [3, 4], "c": [2, 3]}, length=2).found


@settings(max_examples=80, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=5), st.integers(1, 7))
def test_shared_n_grams_are_those_of_a_plain_set(texts, length):
    named = {f"w{number}": own for number, own in enumerate(texts)}
    grams = {name: {tuple(own[i : i + length]) for i in range(len(own) - length + 1)} for name, own in named.items()}
    joined = {
        (one, two) for one in named for two in named
        if one < two and grams[one] & grams[two] and 2 * len(grams[one] & grams[two]) >= min(len(grams[one]), len(grams[two]))
    }  # fmt: skip
    found = find(named, length=length)
    group_of = {name: place for place, group in enumerate(found.groups) for name in group.windows}
    assert {name for pair in joined for name in pair} == set(group_of)
    assert all(group_of[one] == group_of[two] for one, two in joined)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([FILLER, FILLER[:300], text(200, 1), text(200, 2)]), st.integers(0, 4)),
        min_size=1,
        max_size=8,
    ),
    st.randoms(use_true_random=False),
)
def test_merging_never_adds_resamples_and_the_order_of_windows_does_not_matter(drawn, chance):
    names = [f"w{number}" for number in range(len(drawn))]
    texts = {name: own for name, (own, _) in zip(names, drawn, strict=True)}
    clusters = {name: f"d{number}" for name, (_, number) in zip(names, drawn, strict=True)}
    found = find(texts, clusters)
    assert distinct_resamples(found.clusters_after) <= distinct_resamples(found.clusters_before)
    # Whoever shared a cluster before still does.
    assert all(
        found.merged[one] == found.merged[two] for one in names for two in names if clusters[one] == clusters[two]
    )
    shuffled = chance.sample(names, len(names))
    assert find({name: texts[name] for name in shuffled}, clusters) == found


def test_a_bootstrap_on_merged_clusters_no_longer_takes_copies_for_evidence():
    texts = {f"a{number}": FILLER for number in range(9)} | {"b": text(400, 1), "c": text(400, 2)}
    values = [1.0 + 0.01 * number for number in range(9)] + [0.1, -0.2]
    found = find(texts)
    before = few_clusters(values, list(texts), preset=Preset(400, 5))
    after = few_clusters(values, found.clusters_of(list(texts)), preset=Preset(400, 5))
    assert before.estimate.interval.low > 0 > after.estimate.interval.low


@pytest.mark.parametrize(
    ("texts", "clusters", "more", "named"),
    [
        ({}, {}, {}, "0 texts"),
        ({"a": [1]}, {"b": "c"}, {}, "same windows"),
        ({"a": [1.5]}, {"a": "c"}, {}, "window a"),
        ({"a": np.zeros((2, 2), dtype=int)}, {"a": "c"}, {}, "window a"),
        ({"a": [1]}, {"a": "c"}, {"length": 0}, "n-grams of 0"),
        ({"a": [1]}, {"a": "c"}, {"share": 0}, "share of 0"),
    ],
)
def test_bad_input_is_refused_with_its_place(texts, clusters, more, named):
    with pytest.raises(EngcmpError, match=named):
        duplicate_windows(texts, clusters, **more)
