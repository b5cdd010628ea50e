"""A checkpoint for engines that read no GGUF: the same weights in safetensors, with the config and tokenizer that transformers reads.

The weights are the GGUF's, dequantized and rounded once to BF16, or kept in float32. The same GGUF gives the same bytes on every run:
the header is written by our own few lines, as in `row_files`. Nothing is pickled.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from engcmp_resources.canonical import sha256_file
from engcmp_resources.disk import disk_errors, make_folder, sync_folder
from engcmp_resources.engines._llama_layers import LlamaShape, llama_shape
from engcmp_resources.errors import EngcmpError
from engcmp_resources.gguf_files import GgufModel, open_gguf
from engcmp_resources.tokenizing import GgufTokenizer

Dtype = Literal["BF16", "F32"]

_ALIGNMENT = 8
_BYTES = {"BF16": 2, "F32": 4}
_TORCH_NAMES = {"BF16": "bfloat16", "F32": "float32"}
_OF_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OF_MODEL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.weight")


def write_checkpoint(source: Path, target: Path, *, dtype: Dtype = "BF16") -> dict[str, str]:
    """Write the Llama-architecture GGUF `source` as the folder `target`; SHA-256 of each of its files by name.

    The folder holds `model.safetensors`, `config.json`, `tokenizer.json` and `tokenizer_config.json`, and appears whole or not at all.
    Raises EngcmpError for a GGUF that is damaged, of another architecture or another tokenizer, with weights that are not finite, and
    for a target that is there already or cannot be written.
    """
    if target.exists():
        raise EngcmpError("the folder of the checkpoint exists", where=str(target), remedy="remove it, or name another")
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    with open_gguf(source) as model:
        shape = llama_shape(model)
        if shape.rotated != shape.head_width:
            raise EngcmpError(
                f"{shape.rotated} of {shape.head_width} elements of a head are rotated",
                where=str(source), remedy="choose weights whose heads are rotated whole",
            )  # fmt: skip
        texts = {
            "config.json": _json(_config(model, shape, dtype)),
            "tokenizer.json": GgufTokenizer.from_model(model)._tokenizer.to_str(),
            "tokenizer_config.json": _json(_tokenizer_config(model)),
        }
        with disk_errors(target):
            make_folder(target.parent)
            partial.mkdir()
            try:
                for name, text in texts.items():
                    (partial / name).write_text(text, encoding="utf-8")
                _write_weights(model, shape, partial / "model.safetensors", dtype)
                digests = {path.name: sha256_file(path) for path in sorted(partial.iterdir())}
                partial.rename(target)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
            sync_folder(target.parent)
    return digests


def _write_weights(model: GgufModel, shape: LlamaShape, path: Path, dtype: Dtype) -> None:
    names = {_name(name): name for name in model.tensors}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for theirs, ours in sorted(names.items()):
        entry = model.entry(ours)
        start, end = end, end + entry.rows * entry.shape[-1] * _BYTES[dtype]
        header[theirs] = {"dtype": dtype, "shape": list(entry.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for _, ours in sorted(names.items()):
            for values in _values(model, shape, ours):
                if not np.isfinite(values).all():
                    raise EngcmpError(f"tensor {ours!r} holds NaN or infinity", where=str(model.path))
                file.write((rounded_to_bf16(values) if dtype == "BF16" else values.astype("<f4")).tobytes())
        file.flush()
        os.fsync(file.fileno())


def _values(model: GgufModel, shape: LlamaShape, name: str) -> Iterator[npt.NDArray[np.float32]]:
    """A tensor in blocks, its rows in the order of transformers."""
    found = _LAYER_TENSOR.fullmatch(name)
    heads = {"attn_q": shape.heads, "attn_k": shape.key_heads}.get(found[2], 0) if found else 0
    if heads:
        # A GGUF has the two halves of a rotated pair side by side, transformers half a head apart.
        paired = model.tensor(name).reshape(heads, shape.head_width // 2, 2, shape.width)
        yield paired.swapaxes(1, 2).reshape(-1, shape.width)
        return
    entry, rows = model.entry(name), 4096
    for start in range(0, entry.rows, rows):
        yield model.tensor_rows(name, start, min(start + rows, entry.rows))


def rounded_to_bf16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The bits of finite float32 `values` in BF16, little-endian uint16 of the same shape: to the nearest, ties to even."""
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype("<u2")


def _name(name: str) -> str:
    found = _LAYER_TENSOR.fullmatch(name)
    return f"model.layers.{found[1]}.{_OF_LAYER[found[2]]}.weight" if found else _OF_MODEL[name]


def _config(model: GgufModel, shape: LlamaShape, dtype: Dtype) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": model.integer("tokenizer.ggml.bos_token_id"),
        "dtype": _TORCH_NAMES[dtype],
        "eos_token_id": model.integer("tokenizer.ggml.eos_token_id"),
        "head_dim": shape.head_width,
        "hidden_act": "silu",
        "hidden_size": shape.width,
        "intermediate_size": shape.hidden,
        "max_position_embeddings": shape.context,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.key_heads,
        "rms_norm_eps": shape.epsilon,
        "rope_parameters": {"rope_theta": shape.rope_base, "rope_type": "default"},
        "rope_theta": shape.rope_base,  # what readers older than `rope_parameters` look for
        "tie_word_embeddings": shape.head == "token_embd.weight",
        "vocab_size": shape.vocab,
    }


def _tokenizer_config(model: GgufModel) -> dict[str, Any]:
    tokens = model.texts("tokenizer.ggml.tokens")

    def token(role: str) -> str:
        return tokens[model.integer(f"tokenizer.ggml.{role}_token_id")]

    settings: dict[str, Any] = {
        "bos_token": token("bos"),
        "clean_up_tokenization_spaces": False,
        "eos_token": token("eos"),
        "model_max_length": model.integer("llama.context_length"),
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    if "tokenizer.chat_template" in model.metadata:
        settings["chat_template"] = model.text("tokenizer.chat_template")
    return settings


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2, sort_keys=True) + "\n"
