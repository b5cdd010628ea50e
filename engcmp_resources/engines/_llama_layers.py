"""One Llama layer in float32 numpy: RMS norm, rotary embedding, grouped-query attention, SwiGLU.

Shapes: n tokens, width d, h query heads over k key heads of e elements each, f feed-forward elements.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from engcmp_resources.errors import EngcmpError
from engcmp_resources.gguf_files import GgufModel

Float32: TypeAlias = npt.NDArray[np.float32]
Rotation: TypeAlias = tuple[Float32, Float32]

_QUERIES_AT_ONCE = 128  # 8,192 keys then need 12 MB of scores for a group of three heads, not 800 MB
_TOKENS_AT_ONCE = 1024  # bounds the feed-forward's three intermediate arrays
_DEFAULT_ROPE_BASE = 10000.0
# Keys under `llama.` that this pass honours or that cannot change its result. Any other might: it is refused.
_KNOWN_KEYS = frozenset(
    {
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.layer_norm_rms_epsilon",
        "attention.value_length",
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "rope.dimension_count",
        "rope.freq_base",
        "vocab_size",
    }
)


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """The sizes and constants of a Llama model; `head` names the tensor of the output head, tied or its own."""

    layers: int
    context: int
    width: int
    hidden: int
    heads: int
    key_heads: int
    head_width: int
    rotated: int
    rope_base: float
    epsilon: float
    vocab: int
    head: str


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's weights by their GGUF names, float32; matrices are [out, in]."""

    attn_norm: Float32
    attn_q: Float32
    attn_k: Float32
    attn_v: Float32
    attn_output: Float32
    ffn_norm: Float32
    ffn_gate: Float32
    ffn_up: Float32
    ffn_down: Float32


def llama_shape(model: GgufModel) -> LlamaShape:
    """The model's shape, with every tensor present and of that shape and no tensor or setting beyond it.

    Raises EngcmpError for another architecture, a missing key or tensor, a tensor of the wrong shape, and anything
    that this pass would leave out (biases, rotary scaling, experts): a reference that ignores it would be wrong.
    """
    if model.architecture != "llama":
        raise _refusal(model, f"architecture {model.architecture!r}; the reference engine computes llama")
    for key in model.metadata:
        if key.startswith("llama.") and key.removeprefix("llama.") not in _KNOWN_KEYS:
            raise _refusal(model, f"the setting {key!r} is not one that the reference engine computes")
    heads = model.integer("llama.attention.head_count")
    width = model.integer("llama.embedding_length")
    if heads < 1 or width % heads:
        raise _refusal(model, f"a width of {width} does not divide into {heads} heads")
    head_width = model.integer("llama.attention.key_length", width // heads)
    shape = LlamaShape(
        layers=model.integer("llama.block_count"),
        context=model.integer("llama.context_length"),
        width=width,
        hidden=model.integer("llama.feed_forward_length"),
        heads=heads,
        key_heads=model.integer("llama.attention.head_count_kv", heads),
        head_width=head_width,
        rotated=model.integer("llama.rope.dimension_count", head_width),
        rope_base=model.number("llama.rope.freq_base", _DEFAULT_ROPE_BASE),
        epsilon=model.number("llama.attention.layer_norm_rms_epsilon"),
        vocab=model.entry("token_embd.weight").rows,
        head="output.weight" if "output.weight" in model.tensors else "token_embd.weight",
    )
    if model.integer("llama.attention.value_length", head_width) != head_width:
        raise _refusal(model, "values of another width than the keys")
    if shape.key_heads < 1 or heads % shape.key_heads:
        raise _refusal(model, f"{heads} query heads do not divide over {shape.key_heads} key heads")
    if shape.rotated % 2 or not 0 <= shape.rotated <= head_width:
        raise _refusal(model, f"{shape.rotated} rotated elements in a head of {head_width}")
    _check_tensors(model, shape)
    return shape


def _refusal(model: GgufModel, what: str) -> EngcmpError:
    return EngcmpError(what, where=str(model.path), remedy="choose weights of a plain Llama architecture")


def _check_tensors(model: GgufModel, shape: LlamaShape) -> None:
    queries, keys = shape.heads * shape.head_width, shape.key_heads * shape.head_width
    of_layer = {
        "attn_norm": (shape.width,),
        "attn_q": (queries, shape.width),
        "attn_k": (keys, shape.width),
        "attn_v": (keys, shape.width),
        "attn_output": (shape.width, queries),
        "ffn_norm": (shape.width,),
        "ffn_gate": (shape.hidden, shape.width),
        "ffn_up": (shape.hidden, shape.width),
        "ffn_down": (shape.width, shape.hidden),
    }
    expected: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (shape.vocab, shape.width),
        "output_norm.weight": (shape.width,),
        shape.head: (shape.vocab, shape.width),
    }
    for number in range(shape.layers):
        expected |= {_tensor_name(number, part): size for part, size in of_layer.items()}
    for name, size in expected.items():
        if model.entry(name).shape != size:
            raise _refusal(model, f"tensor {name!r} has the shape {model.entry(name).shape}, expected {size}")
    beyond = sorted(set(model.tensors) - set(expected))
    if beyond:
        raise _refusal(model, f"the tensor {beyond[0]!r} is not one that the reference engine computes")


def _tensor_name(number: int, part: str) -> str:
    return f"blk.{number}.{part}.weight"


def load_layer(model: GgufModel, number: int) -> Layer:
    """Layer `number`, from 0, dequantized."""
    return Layer(**{part.name: model.tensor(_tensor_name(number, part.name)) for part in fields(Layer)})


def rotation(shape: LlamaShape, tokens: int) -> Rotation:
    """Cosines and sines of the rotary angles, float32 [tokens, rotated / 2]: position * base ** (-2i / rotated)."""
    # Angles in float64: at position 8,000 a float32 angle is off by 5e-4, far more than the pass's own rounding.
    frequencies = shape.rope_base ** (-np.arange(0, shape.rotated, 2) / max(shape.rotated, 1))
    angles = np.outer(np.arange(tokens), frequencies)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def rms_norm(states: Float32, weight: Float32, shape: LlamaShape) -> Float32:
    """`states` [n, d] divided by their root mean square, times `weight` [d]."""
    squares = np.mean(states * states, axis=-1, keepdims=True)
    normed: Float32 = states / np.sqrt(squares + np.float32(shape.epsilon)) * weight
    return normed


def apply_layer(states: Float32, layer: Layer, shape: LlamaShape, turns: Rotation) -> Float32:
    """A window's hidden states [n, d] after `layer`; `turns` covers at least n positions."""
    normed = rms_norm(states, layer.attn_norm, shape)
    queries = _rotated((normed @ layer.attn_q.T).reshape(len(states), shape.heads, -1), turns)
    keys = _rotated((normed @ layer.attn_k.T).reshape(len(states), shape.key_heads, -1), turns)
    values = (normed @ layer.attn_v.T).reshape(len(states), shape.key_heads, -1)
    attended = states + _attention(queries, keys, values) @ layer.attn_output.T
    for start in range(0, len(attended), _TOKENS_AT_ONCE):
        part = attended[start : start + _TOKENS_AT_ONCE]
        part += _feed_forward(rms_norm(part, layer.ffn_norm, shape), layer)
    return attended


def _rotated(heads: Float32, turns: Rotation) -> Float32:
    """[n, heads, e] with each adjacent pair (2i, 2i + 1) turned by its angle: the pair order of a Llama in GGUF."""
    cosines, sines = (part[: len(heads), None, :] for part in turns)
    width = 2 * cosines.shape[-1]
    even, odd = heads[..., 0:width:2], heads[..., 1:width:2]
    turned = heads.copy()
    turned[..., 0:width:2] = even * cosines - odd * sines
    turned[..., 1:width:2] = even * sines + odd * cosines
    return turned


def _attention(queries: Float32, keys: Float32, values: Float32) -> Float32:
    """Causal attention of queries [n, h, e] over keys and values [n, k, e]: [n, h * e].

    In blocks of queries, each against the keys up to its own end, so that memory grows with n and not with n squared.
    """
    tokens, heads, width = queries.shape
    key_heads = keys.shape[1]
    group = heads // key_heads
    scaled = np.multiply(queries, width**-0.5, dtype=np.float32)
    attended = np.empty((tokens, heads, width), dtype=np.float32)
    for key_head in range(key_heads):
        of_group = slice(key_head * group, (key_head + 1) * group)
        head_keys, head_values = keys[:, key_head].T, np.ascontiguousarray(values[:, key_head])
        for start in range(0, tokens, _QUERIES_AT_ONCE):
            stop = min(start + _QUERIES_AT_ONCE, tokens)
            block = scaled[start:stop, of_group].reshape(-1, width)
            weights = _causal_softmax((block @ head_keys[:, :stop]).reshape(stop - start, group, stop))
            mixed = weights.reshape(-1, stop) @ head_values[:stop]
            attended[start:stop, of_group] = mixed.reshape(stop - start, group, width)
    return attended.reshape(tokens, heads * width)


def _causal_softmax(scores: Float32) -> Float32:
    """Softmax over the keys, in place; of scores [b, group, stop] row i is the query at stop - b + i."""
    rows, _, stop = scores.shape
    later = np.triu(np.ones((rows, rows), dtype=bool), k=1)
    scores[:, :, stop - rows :][np.broadcast_to(later[:, None, :], (rows, scores.shape[1], rows))] = -np.inf
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores


def _feed_forward(normed: Float32, layer: Layer) -> Float32:
    gate: Float32 = normed @ layer.ffn_gate.T
    # exp overflows to infinity below -88, where x / (1 + infinity) is the right 0.
    with np.errstate(over="ignore"):
        gate /= np.add(np.exp(-gate), 1, dtype=np.float32)
    gate *= normed @ layer.ffn_up.T
    down: Float32 = gate @ layer.ffn_down.T
    return down
