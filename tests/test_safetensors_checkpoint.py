"""A GGUF as a checkpoint of transformers: names, shapes, order of heads, rounding, and the same bytes on every run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from tokenizers import Tokenizer

from engcmp_resources.canonical import sha256_file
from engcmp_resources.errors import EngcmpError
from engcmp_resources.gguf_files import open_gguf
from engcmp_resources.row_layouts.tensor_map import map_tensors
from engcmp_resources.safetensors_checkpoint import rounded_to_bf16, write_checkpoint

WIDTH, HIDDEN, HEADS, KEY_HEADS, HEAD = 16, 24, 4, 2, 4
TOKENS = ["<s>", "a", "b", "ab", "c"]


def write_gguf(path: Path, *, rotated: int = HEAD, tied: bool = True, spoiled: bool = False) -> Path:
    rng = np.random.default_rng(3)
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in (
        ("context_length", 64), ("embedding_length", WIDTH), ("block_count", 1), ("feed_forward_length", HIDDEN),
    ):  # fmt: skip
        writer.add_uint32(f"llama.{key}", value)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_rope_dimension_count(rotated)
    writer.add_rope_freq_base(5000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 1, 1, 1, 1])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    shapes = {
        "token_embd": (len(TOKENS), WIDTH), "output_norm": (WIDTH,), "blk.0.attn_norm": (WIDTH,), "blk.0.ffn_norm": (WIDTH,),
        "blk.0.attn_q": (HEADS * HEAD, WIDTH), "blk.0.attn_k": (KEY_HEADS * HEAD, WIDTH),
        "blk.0.attn_v": (KEY_HEADS * HEAD, WIDTH), "blk.0.attn_output": (WIDTH, HEADS * HEAD),
        "blk.0.ffn_gate": (HIDDEN, WIDTH), "blk.0.ffn_up": (HIDDEN, WIDTH), "blk.0.ffn_down": (WIDTH, HIDDEN),
    }  # fmt: skip
    if not tied:
        shapes["output"] = (len(TOKENS), WIDTH)
    for name, shape in shapes.items():
        values = rng.standard_normal(shape).astype(np.float32)
        if spoiled and name == "blk.0.ffn_up":
            values[3, 4] = np.nan
        writer.add_tensor(f"{name}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "small.gguf")


def test_the_digests_are_those_of_the_files(small: Path, tmp_path: Path) -> None:
    digests = write_checkpoint(small, tmp_path / "out")
    files = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    assert sorted(digests) == files == sorted(path.name for path in (tmp_path / "out").iterdir())
    assert digests == {name: sha256_file(tmp_path / "out" / name) for name in files}


def test_another_process_writes_the_same_bytes(small: Path, tmp_path: Path) -> None:
    code = (
        "import sys, json; from pathlib import Path; from engcmp_resources.safetensors_checkpoint import write_checkpoint;"
        "print(json.dumps(write_checkpoint(Path(sys.argv[1]), Path(sys.argv[2]))))"
    )
    told = [
        subprocess.run([sys.executable, "-c", code, small, tmp_path / name], capture_output=True, text=True, check=True)
        for name in ("one", "two")
    ]
    assert json.loads(told[0].stdout) == json.loads(told[1].stdout)


def test_float32_weights_are_the_gguf_s_with_the_pairs_of_a_head_parted(small: Path, tmp_path: Path) -> None:
    write_checkpoint(small, tmp_path / "out", dtype="F32")
    file = map_tensors(tmp_path / "out" / "model.safetensors", window_id="w")
    with open_gguf(small) as model:
        assert np.array_equal(file.view("model.embed_tokens.weight"), model.tensor("token_embd.weight"))
        assert np.array_equal(file.view("model.layers.0.mlp.down_proj.weight"), model.tensor("blk.0.ffn_down.weight"))
        assert np.array_equal(file.view("model.layers.0.self_attn.v_proj.weight"), model.tensor("blk.0.attn_v.weight"))
        for theirs, ours in (("q_proj", "attn_q"), ("k_proj", "attn_k")):
            found = file.view(f"model.layers.0.self_attn.{theirs}.weight")
            paired = model.tensor(f"blk.0.{ours}.weight")
            for head in range(len(paired) // HEAD):
                rows = [head * HEAD + row for row in (0, 2, 1, 3)]  # a head's even rows, then its odd ones
                assert np.array_equal(found[head * HEAD : (head + 1) * HEAD], paired[rows])
    assert len(file.tensors) == 11
    assert file.tensors["model.norm.weight"].shape == (WIDTH,)


def test_bf16_is_rounded_to_the_nearest_and_ties_to_even() -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, 1.0039064, -1.00390625, 0.0], dtype=np.float32)
    assert [f"{bits:04x}" for bits in rounded_to_bf16(values)] == ["3f80", "3f80", "3f82", "3f81", "bf80", "0000"]


def test_bf16_weights_are_the_rounded_ones(small: Path, tmp_path: Path) -> None:
    write_checkpoint(small, tmp_path / "bf16")
    file = map_tensors(tmp_path / "bf16" / "model.safetensors", window_id="w")
    with open_gguf(small) as model:
        wanted = rounded_to_bf16(model.tensor("blk.0.ffn_gate.weight"))
    assert np.array_equal(file.view("model.layers.0.mlp.gate_proj.weight"), wanted)
    assert {place.dtype for place in file.tensors.values()} == {"BF16"}


@pytest.mark.parametrize("tied", [True, False])
def test_the_config_says_what_the_gguf_says(tmp_path: Path, tied: bool) -> None:
    write_checkpoint(write_gguf(tmp_path / "g.gguf", tied=tied), tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["hidden_size"], config["intermediate_size"], config["head_dim"]) == (WIDTH, HIDDEN, HEAD)
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (HEADS, KEY_HEADS)
    assert config["rope_parameters"] == {"rope_theta": 5000.0, "rope_type": "default"}
    assert config["tie_word_embeddings"] is tied
    assert config["vocab_size"] == len(TOKENS)
    file = map_tensors(tmp_path / "out" / "model.safetensors", window_id="w")
    assert ("lm_head.weight" in file.tensors) is not tied


def test_the_tokenizer_is_the_gguf_s(small: Path, tmp_path: Path) -> None:
    write_checkpoint(small, tmp_path / "out")
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    assert tokenizer.encode("<s>abca").ids == [0, 3, 4, 1]
    settings = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert {settings[f"{role}_token"] for role in ("bos", "eos")} == {TOKENS[0]}


def test_a_folder_that_exists_is_left_alone(small: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(EngcmpError, match="exists"):
        write_checkpoint(small, tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ({"spoiled": True}, r"'blk\.0\.ffn_up\.weight' holds NaN"),
        ({"rotated": 2}, "2 of 4 elements of a head are rotated"),
    ],
)
def test_weights_that_cannot_be_used_leave_nothing(tmp_path: Path, fault: dict[str, bool], told: str) -> None:
    source = write_gguf(tmp_path / "bad.gguf", **fault)
    with pytest.raises(EngcmpError, match=told):
        write_checkpoint(source, tmp_path / "made" / "out")
    assert not list((tmp_path / "made").glob("*"))
