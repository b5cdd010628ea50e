"""The float32 reference pass against a float64 one written out here and against planted values of transformers."""

from __future__ import annotations

import cmath
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from homes import EVERY_ARM

from engcmp_resources.engines.reference import RowRequest, reference_rows
from engcmp_resources.errors import EngcmpError

PLANTED = Path(__file__).with_name("reference_planted.json")


@dataclass(frozen=True)
class Tiny:
    """A random Llama that fits on a page: 2 layers, 4 query heads over 2 key heads."""

    untied: bool = False
    head_width: int = 8
    rotated: int = 8
    width: int = 32
    hidden: int = 48
    vocab: int = 64
    context: int = 160
    layers: int = 2
    heads: int = 4
    key_heads: int = 2
    rope_base: float = 500.0
    epsilon: float = 1e-5

    def weights(self) -> dict[str, np.ndarray]:
        random = np.random.default_rng(11)
        q, k = self.heads * self.head_width, self.key_heads * self.head_width
        shapes: dict[str, tuple[int, ...]] = {"token_embd": (self.vocab, self.width), "output_norm": (self.width,)}
        if self.untied:
            shapes["output"] = (self.vocab, self.width)
        for layer in range(self.layers):
            shapes |= {
                f"blk.{layer}.attn_norm": (self.width,),
                f"blk.{layer}.attn_q": (q, self.width),
                f"blk.{layer}.attn_k": (k, self.width),
                f"blk.{layer}.attn_v": (k, self.width),
                f"blk.{layer}.attn_output": (self.width, q),
                f"blk.{layer}.ffn_norm": (self.width,),
                f"blk.{layer}.ffn_gate": (self.hidden, self.width),
                f"blk.{layer}.ffn_up": (self.hidden, self.width),
                f"blk.{layer}.ffn_down": (self.width, self.hidden),
            }
        return {
            f"{name}.weight": (random.standard_normal(shape) * (0.3 if len(shape) == 2 else 1)).astype(np.float32)
            for name, shape in shapes.items()
        }

    def write(
        self,
        path: Path,
        *,
        architecture: str = "llama",
        extra_keys: dict[str, float] | None = None,
        change: dict[str, np.ndarray | None] | None = None,
    ) -> Path:
        writer = gguf.GGUFWriter(path, architecture)
        writer.add_block_count(self.layers)
        writer.add_context_length(self.context)
        writer.add_embedding_length(self.width)
        writer.add_feed_forward_length(self.hidden)
        writer.add_head_count(self.heads)
        writer.add_head_count_kv(self.key_heads)
        writer.add_key_length(self.head_width)
        writer.add_value_length(self.head_width)
        writer.add_rope_dimension_count(self.rotated)
        writer.add_rope_freq_base(self.rope_base)
        writer.add_layer_norm_rms_eps(self.epsilon)
        for key, value in (extra_keys or {}).items():
            writer.add_float32(key, value)
        for name, tensor in (self.weights() | (change or {})).items():
            if tensor is not None:
                writer.add_tensor(name, tensor)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


def slow_logits(tiny: Tiny, tokens: Sequence[int]) -> np.ndarray:
    """The same model in float64, one token, head and key at a time; the rotary turn is a complex product."""
    weights = {name.removesuffix(".weight"): value.astype(np.float64) for name, value in tiny.weights().items()}

    def norm(vector: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return np.asarray(vector * weight / math.sqrt(float(vector @ vector) / len(vector) + tiny.epsilon))

    def turn(vector: np.ndarray, position: int) -> np.ndarray:
        turned = vector.copy()
        for pair in range(tiny.rotated // 2):
            angle = position * tiny.rope_base ** (-2 * pair / tiny.rotated)
            product = complex(vector[2 * pair], vector[2 * pair + 1]) * cmath.exp(1j * angle)
            turned[2 * pair], turned[2 * pair + 1] = product.real, product.imag
        return turned

    states = [weights["token_embd"][token] for token in tokens]
    for layer in range(tiny.layers):
        part = {name.split(".")[2]: value for name, value in weights.items() if name.startswith(f"blk.{layer}.")}
        normed = [norm(state, part["attn_norm"]) for state in states]
        heads_of = {
            letter: [np.split(part[f"attn_{letter}"] @ vector, count) for vector in normed]
            for letter, count in (("q", tiny.heads), ("k", tiny.key_heads), ("v", tiny.key_heads))
        }
        keys = [[turn(head, place) for head in heads] for place, heads in enumerate(heads_of["k"])]
        for place in range(len(tokens)):
            mixed = []
            for head in range(tiny.heads):
                shared = head // (tiny.heads // tiny.key_heads)
                query = turn(heads_of["q"][place][head], place)
                scores = [float(query @ keys[key][shared]) / math.sqrt(tiny.head_width) for key in range(place + 1)]
                raised = [math.exp(score - max(scores)) for score in scores]
                seen = np.stack([heads_of["v"][key][shared] for key in range(place + 1)])
                mixed.append(np.array(raised) @ seen / sum(raised))
            state = states[place] + part["attn_output"] @ np.concatenate(mixed)
            inner = norm(state, part["ffn_norm"])
            gate = part["ffn_gate"] @ inner
            silu = np.array([x / (1 + math.exp(-x)) for x in gate])
            states[place] = state + part["ffn_down"] @ (silu * (part["ffn_up"] @ inner))
    output = weights["output"] if tiny.untied else weights["token_embd"]
    return np.stack([output @ norm(state, weights["output_norm"]) for state in states])


def rows_of(path: Path, windows: Sequence[RowRequest], **options: Any) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    reference_rows(path, windows, on_rows=lambda window_id, rows: found.update({window_id: rows}), **options)
    return found


def some_tokens(count: int, seed: int = 3) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 64, count)]


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Tiny().write(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.mark.parametrize(
    "tiny",
    [Tiny(), Tiny(untied=True), Tiny(rotated=4), Tiny(head_width=6, rotated=6)],
    ids=lambda tiny: repr(tiny)[:46],
)
def test_rows_agree_with_a_float64_pass_written_out_in_loops(tiny: Tiny, tmp_path: Path) -> None:
    tokens = some_tokens(140)  # more than one block of queries
    found = rows_of(tiny.write(tmp_path / "tiny.gguf"), [RowRequest("w", tokens, range(140))])["w"]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, slow_logits(tiny, tokens), rtol=0, atol=2e-5)


def test_the_sizes_of_the_blocks_do_not_show_in_the_rows(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    windows = [RowRequest("a", some_tokens(50), range(50)), RowRequest("b", some_tokens(9), [8])]
    whole = rows_of(tiny_path, windows)
    monkeypatch.setattr("engcmp_resources.engines._llama_layers._QUERIES_AT_ONCE", 7)
    monkeypatch.setattr("engcmp_resources.engines._llama_layers._TOKENS_AT_ONCE", 11)
    monkeypatch.setattr("engcmp_resources.engines.reference._HEAD_ROWS_AT_ONCE", 10)
    monkeypatch.setattr("engcmp_resources.engines.reference._GROUP_BYTES", 1)
    split = rows_of(tiny_path, windows)
    assert list(split) == ["a", "b"]
    for window_id, rows in whole.items():
        np.testing.assert_allclose(split[window_id], rows, rtol=0, atol=2e-5)


def test_a_row_does_not_see_later_tokens_and_does_see_its_own(tiny_path: Path) -> None:
    tokens = some_tokens(30)
    changed = [*tokens[:20], *[(token + 1) % 64 for token in tokens[20:]]]
    before = rows_of(tiny_path, [RowRequest("w", tokens, range(30))])["w"]
    after = rows_of(tiny_path, [RowRequest("w", changed, range(30))])["w"]
    np.testing.assert_array_equal(after[:20], before[:20])
    assert np.abs(after[20:] - before[20:]).max(axis=1).min() > 0.01


def test_row_r_is_the_distribution_after_tokens_0_to_r(tiny_path: Path) -> None:
    tokens = some_tokens(12)
    rows = rows_of(tiny_path, [RowRequest("whole", tokens, [4]), RowRequest("cut", tokens[:5], [4])])
    np.testing.assert_allclose(rows["whole"], rows["cut"], rtol=0, atol=2e-5)


# Known and open: NumPy's matrix library has kernels for processors without AVX-512 that round a row by its place in a product.
@pytest.mark.skipif(not EVERY_ARM, reason="without AVX-512 a row's last bits depend on its place in a product")
@pytest.mark.parametrize("positions", [[17], [3, 29, 11], list(range(5, 25))])
def test_asking_for_some_positions_gives_the_same_bits_in_the_order_asked(
    tiny_path: Path, positions: list[int]
) -> None:
    tokens = some_tokens(30)
    whole = rows_of(tiny_path, [RowRequest("w", tokens, range(30))])["w"]
    np.testing.assert_array_equal(rows_of(tiny_path, [RowRequest("w", tokens, positions)])["w"], whole[positions])


def test_a_windows_bits_do_not_depend_on_the_other_windows(tiny_path: Path) -> None:
    window = RowRequest("w", some_tokens(30), range(30))
    others = [RowRequest("x", some_tokens(64, seed=8), [63]), RowRequest("y", some_tokens(3, seed=9), [0, 1])]
    np.testing.assert_array_equal(
        rows_of(tiny_path, [others[0], window, others[1]])["w"], rows_of(tiny_path, [window])["w"]
    )


def test_progress_counts_every_window_through_every_layer_and_then_the_rows(tiny_path: Path) -> None:
    steps: list[tuple[str, int, int]] = []
    windows = [RowRequest("a", [1, 2, 3], [0, 2]), RowRequest("b", [4], [0])]
    rows_of(tiny_path, windows, progress=lambda *step: steps.append(step))
    assert steps == [*[("layers", done, 4) for done in range(1, 5)], ("rows", 2, 3), ("rows", 3, 3)]


@pytest.mark.parametrize(
    ("window", "message"),
    [
        (RowRequest("w", [], [0]), r"no tokens \(window w\)"),
        (RowRequest("w", [1, 2], []), r"no positions \(window w\)"),
        (
            RowRequest("w", [1, 64], [0]),
            r"token 64 \(number 1\) is not in the vocabulary, which ends at 63 \(window w\)",
        ),
        (RowRequest("w", [-1], [0]), r"token -1 \(number 0\)"),
        (RowRequest("w", [1.5], [0]), r"token 1\.5 \(number 0\)"),
        (RowRequest("w", [1, 2], [2]), r"position 2 \(number 0\) is not in the window, which ends at 1"),
        (RowRequest("w", [1, 2], [-1]), r"position -1"),
        (RowRequest("w", [1] * 161, [0]), r"161 tokens, the model's context is 160"),
        (RowRequest("first", [1], [0]), r"the window id is given twice \(window first\)"),
    ],
)
def test_a_window_that_cannot_be_computed_is_refused_before_any_row(
    tiny_path: Path, window: RowRequest, message: str
) -> None:
    given: list[str] = []
    with pytest.raises(EngcmpError, match=message):
        reference_rows(
            tiny_path, [RowRequest("first", [1], [0]), window], on_rows=lambda window_id, rows: given.append(window_id)
        )
    assert given == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"architecture": "qwen2"}, r"architecture 'qwen2'"),
        ({"extra_keys": {"llama.rope.scaling.factor": 8.0}}, r"setting 'llama\.rope\.scaling\.factor'"),
        ({"change": {"blk.1.attn_q.bias": np.zeros(32, np.float32)}}, r"tensor 'blk\.1\.attn_q\.bias' is not one"),
        ({"change": {"blk.1.ffn_up.weight": None}}, r"no tensor 'blk\.1\.ffn_up\.weight'"),
        ({"change": {"blk.0.attn_k.weight": np.zeros((32, 32), np.float32)}}, r"shape \(32, 32\), expected \(16, 32\)"),
    ],
)
def test_weights_that_the_pass_would_not_compute_rightly_are_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    path = Tiny().write(tmp_path / "other.gguf", **options)
    with pytest.raises(EngcmpError, match=message + r".*other\.gguf"):
        rows_of(path, [RowRequest("w", [1], [0])])


def test_the_real_weights_agree_with_transformers_to_under_1e_4_nats_on_every_token(smollm2_weights: Path) -> None:
    planted = json.loads(PLANTED.read_text())["windows"]
    windows = [RowRequest(w["window_id"], w["tokens"], range(len(w["tokens"]) - 1)) for w in planted]
    found = rows_of(smollm2_weights, windows)
    assert len(planted) == 6
    for window in planted:
        rows = found[window["window_id"]].astype(np.float64)
        peak = rows.max(axis=1)
        log_sum = peak + np.log(np.exp(rows - peak[:, None]).sum(axis=1))
        nll_nats = log_sum - rows[np.arange(len(rows)), window["tokens"][1:]]
        assert np.abs(nll_nats - window["nll_nats"]).max() < 1e-4, window["window_id"]
