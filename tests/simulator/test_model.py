"""The ground truth: what the simulator computes, without any server."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from . import model as truth
from .model import Model, detokenize, log_softmax, tokenize
from .running import CHECKOUT

TEXT = "The quick brown fox jumps over the lazy dog. Caf\u00e9 \u65e5\u672c\u8a9e \U0001f600\n"


def test_logits_are_the_same_in_another_process() -> None:
    code = "from tests.simulator.model import Model; print(Model(seed=3).logits([9, 8, 7]).tobytes().hex())"
    other = subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    assert other.stdout.strip() == Model(seed=3).logits([9, 8, 7]).tobytes().hex()


def test_logits_are_these_bits_on_every_machine() -> None:
    rows = Model(vocab=300, seed=1).rows(tokenize("ab cd ef gh"), range(11))
    assert rows.dtype == np.float32
    assert rows.shape == (11, 300)
    digest = hashlib.sha256(rows.astype("<f4").tobytes()).hexdigest()
    assert digest == "a9651d92bd8113cda7ab88c52592fdb81a1b68faffdaa037d6f2ef3a0efb1886"


def test_every_token_of_the_prefix_and_the_seed_matter() -> None:
    prefix = tokenize("hello")
    rows = [Model(seed=1).logits(prefix), Model(seed=2).logits(prefix), Model(seed=1).logits([*prefix, 40])]
    rows += [Model(seed=1).logits([prefix[0] + 1, *prefix[1:]]), Model(seed=1).logits(prefix[::-1])]
    assert len({row.tobytes() for row in rows}) == len(rows)


def test_rows_are_the_logits_after_each_prefix_in_the_order_asked_for() -> None:
    model, tokens = Model(), tokenize(TEXT)
    rows = model.rows(tokens, [5, 0, 5, len(tokens) - 1])
    for row, position in zip(rows, [5, 0, 5, len(tokens) - 1], strict=True):
        assert row.tobytes() == model.logits(tokens[: position + 1]).tobytes()
    with pytest.raises(IndexError, match=f"row {len(tokens)} of {len(tokens)} tokens"):
        model.rows(tokens, [len(tokens)])


def test_most_rows_are_peaked_and_some_are_flat() -> None:
    tokens = tokenize(TEXT) * 8
    best = np.exp(log_softmax(Model().rows(tokens, range(len(tokens)))).max(axis=1).astype(np.float64))
    assert 0.4 < np.median(best) < 0.9
    assert 0.03 < np.mean(best < 0.1) < 0.3
    assert np.mean(best > 0.9) > 0.05


def test_a_perturbed_model_is_near_and_not_equal() -> None:
    tokens = tokenize(TEXT)
    near, exact = (Model(perturb=scale).rows(tokens, range(len(tokens))) for scale in (0.01, 0.0))
    difference = (near - exact).astype(np.float64)
    assert (difference != 0).mean() > 0.99
    assert difference.std() == pytest.approx(0.01, rel=0.05)
    assert abs(difference.mean()) < 0.001


def test_log_probabilities_sum_to_one() -> None:
    rows = log_softmax(Model(vocab=5000).rows(tokenize(TEXT), range(20)))
    assert rows.dtype == np.float32
    assert np.abs(np.exp(rows.astype(np.float64)).sum(axis=1) - 1).max() < 1e-6


def test_greedy_is_the_most_likely_token_after_each_prefix() -> None:
    model, prompt = Model(), truth.chat_prompt([("user", "Hello")])
    reply = model.greedy(prompt, 40)
    for index, token in enumerate(reply):
        assert token == int(model.logits([*prompt, *reply[:index]]).argmax())
    assert detokenize(reply).isprintable()


def test_a_chat_thinks_then_answers_then_ends() -> None:
    model = Model()
    reply = model.greedy(truth.chat_prompt([("user", "Hello")]), 400)
    assert truth.END_THINK in reply
    assert truth.IM_END in reply[reply.index(truth.END_THINK) :]


@settings(max_examples=100, deadline=None)
@given(st.text())
def test_text_survives_tokens(text: str) -> None:
    ids = tokenize(text)
    assert detokenize(ids) == text
    assert len(ids) == len(text.encode())
    assert min(ids, default=truth.CONTROLS) >= truth.CONTROLS


def test_names_of_control_tokens_are_text_unless_they_are_parsed() -> None:
    text = "a<think>b</think><|im_end|>"
    assert len(tokenize(text)) == len(text)
    a, b = tokenize("ab")
    assert tokenize(text, parse_special=True) == [a, truth.THINK, b, truth.END_THINK, truth.IM_END]
    assert detokenize(tokenize(text, parse_special=True), special=True) == text
    assert detokenize(tokenize(text, parse_special=True)) == "ab"


def test_decoding_and_encoding_again_changes_the_count_of_words() -> None:
    words = [truth.FIRST_WORD, truth.FIRST_WORD + 70, truth.FIRST_WORD + 5000]
    assert tokenize(detokenize(words)) != words
    assert len({detokenize([truth.FIRST_WORD + index]) for index in range(5000)}) == 5000


def test_sampling_depends_on_seed_and_position_alone() -> None:
    row = Model().logits(tokenize(TEXT)) * np.float32(0.1)
    drawn = [truth.sample(row, temperature=1.0, seed=seed, position=p) for seed in range(20) for p in range(20)]
    assert drawn == [truth.sample(row, temperature=1.0, seed=s, position=p) for s in range(20) for p in range(20)]
    assert len(set(drawn)) > 3
    assert truth.sample(row, temperature=0.0, seed=1, position=1) == int(row.argmax())
    assert {truth.sample(row, temperature=1.0, top_k=1, seed=s, position=0) for s in range(20)} == {int(row.argmax())}
    assert {truth.sample(row, temperature=1.0, top_p=1e-6, seed=s, position=0) for s in range(20)} == {
        int(row.argmax())
    }


def test_sampling_follows_the_probabilities() -> None:
    row = np.log(np.array([0.7, 0.2, 0.1], dtype=np.float32))
    drawn = (
        np.bincount([truth.sample(row, temperature=1.0, seed=s, position=7) for s in range(4000)], minlength=3) / 4000
    )
    assert np.abs(drawn - [0.7, 0.2, 0.1]).max() < 0.03


def test_a_vocabulary_that_is_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="a vocabulary of 100: the tokenizer needs 272"):
        Model(vocab=100)


_SOME = st.lists(st.sampled_from([0.0, -1.5, 2.0, 7.25, float("-inf"), float("nan")]), min_size=1, max_size=12)


@given(values=_SOME, count=st.integers(0, 14))
def test_the_likeliest_are_those_of_a_stable_sort_with_ties_and_nan(values: list[float], count: int) -> None:
    row = np.array(values, dtype=np.float32)
    assert truth.likeliest(row, count).tolist() == np.argsort(-row, kind="stable")[:count].tolist()
