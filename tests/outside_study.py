"""A study of published things alone: checkpoint, drafter and tokenizer of a hub, panels from data sets, as glm53-flash has them. No tests.

Everything is small and made here: a checkpoint of two shards, a teacher's rows of one window, a fidelity set of two, a document of tokens,
and a panel whose place nobody knows. The hub is a server of this machine; the tokenizer on it is SmolLM2's, which says for what it stands.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save
from tiny import TinyStudy

from engcmp_resources import host_image
from engcmp_resources.fidelity_set import SET_SCHEMA, set_sha256
from engcmp_resources.tokenizing import TextTokenizer, load_tokenizer
from tests.fetching.places import Place, hub
from tests.launchers.launched import LAUNCHERS, TAG, repository

OUTSIDE = "outside-tiny"
ARM = "M/fork@v1"
VOCAB, K, PB_ROWS = 49_200, 24, 6  # a row is wider than the tokenizer has ids, as models have it
STAND_IN = "the tokenizer of GLM-5.3-Flash"
COMMIT = {
    name: f"{number:x}" * 40 for number, name in enumerate(("model", "drafter", "tokenizer", "pa", "pb", "q2"), start=1)
}
SHARDS = {
    "config.json": b'{"model_type": "small"}', "model-00001-of-00002.safetensors": bytes(range(256)) * 800,
    "model-00002-of-00002.safetensors": bytes(range(255, -1, -1)) * 800, "model.safetensors.index.json": b'{"weight_map": {}}',
}  # fmt: skip
_KINDS = {"model": "model", "drafter": "drafter", "tokenizer": "tokenizer", "pa": "panel", "pb": "panel", "q2": "panel"}
_UNKNOWN = [{"field": "files", "why": "the hub lists them"}, {"field": "bytes", "why": "not stated"}]
TEXT = "The river rose in spring and the bridge stood under water for nine days until the level fell again. " * 4

PROTOCOL = """comparisons = []
schema = "engcmp.protocol/1"
study = "outside-tiny"
title = "Published things alone"
question = "Can it be frozen?"
owners = ["team:engcmp"]
[sources]
model = {{ listed = "model" }}
drafter = {{ listed = "drafter" }}
tokenizer = {{ listed = "tokenizer" }}
root = {{ listed = "root" }}
set-pa = {{ listed = "pa" }}
set-pb = {{ listed = "pb" }}
set-q2 = {{ listed = "q2" }}
set-q3 = {{ listed = "q3" }}
image = {{ image = "{image}", tag = "{image_tag}", digest = "{image_id}", license = "Apache-2.0" }}
launcher = {{ repository = "file://{launcher}", tag = "{tag}", commit = "{commit}", license = "MIT" }}
[reference]
label = "as published"
engine = "published"
weights = "root"
precision = "bfloat16"
[checkpoints.M]
label = "M"
published = "model"
producer = "somebody"
[engines.fork]
kind = "vllm-fork"
label = "an engine with a launcher"
settings = {{ served_model = "M", environment = {{ MODEL_PROFILE = "k325" }} }}
[engines.fork.versions.v1]
source = "launcher"
files = {{ image = "image", drafter = "drafter" }}
[[arms]]
arm = "M/fork@v1"
[prompt_set]
file = "prompt_set.json"
texts = "texts"
tokenizer = "tokenizer"
[statistics]
preset = "panel"
replicates = 200
seed = 1
level = 0.95
cluster = "document"
[panels.pa]
label = "a teacher's rows"
reference = "full"
rows = "stated"
rows_per_window = 8
roles = ["context"]
measures = ["kl_full", "nll"]
primary = []
pair_measures = ["kl_pair_full"]
[panels.pa.external]
source = "set-pa"
layout = "teacher"
window = "final-([0-9]{{4}})"
rows_file = "teacher/window-{{number}}.safetensors"
tokens_file = "arrays/{{window}}.tokens.npy"
windows = 1
rows = 8
clusters = 1
cluster = "window"
vocab = {vocab}
scored = "all"
drawn_from = "a draw"
[panels.pb]
label = "a fidelity set"
reference = "topk"
top_k = {k}
rows = "stated"
rows_per_window = {pb_rows}
roles = ["generated"]
measures = ["kl_coarse", "nll"]
primary = []
pair_measures = ["kl_pair_coarse"]
[panels.pb.external]
source = "set-pb"
layout = "topk"
window = "[ac][0-9]{{2}}"
rows_file = "set/{{window}}.safetensors"
windows_file = "set/windows.json"
windows = 2
rows = 12
rows_by_role = {{ generated = 4, trailing = 2, context = 6 }}
windows_by_block = {{ A = 1, C = 1 }}
clusters = 2
cluster = "window"
vocab = {vocab}
scored = "six of each"
drawn_from = "a draw"
[panels.q2]
label = "tokens alone"
reference = "none"
rows = "stated"
rows_per_window = 5
roles = ["context"]
measures = ["nll"]
primary = []
pair_measures = ["kl_pair_full"]
[panels.q2.external]
source = "set-q2"
layout = "tokens"
window = "q2-prose-one-(?:032|064)k"
tokens_file = "q2/{{window}}.tokens.npy"
windows = 2
rows = 10
windows_by_block = {{ prose = 2 }}
clusters = 1
cluster = "document"
vocab = {vocab}
scored = "the last five"
drawn_from = "a draw"
[panels.q3]
label = "documents that nobody names"
reference = "none"
rows = "stated"
rows_per_window = 5
roles = ["context"]
measures = ["nll"]
primary = []
pair_measures = ["kl_pair_full"]
[panels.q3.external]
source = "set-q3"
layout = "tokens"
window = "x"
tokens_file = "q3/{{window}}.npy"
windows = 1
clusters = 1
cluster = "window"
vocab = {vocab}
scored = "the last five"
drawn_from = "unknown"
[capture.prefill]
panels = ["pa", "pb", "q2", "q3"]
launches = 1
repeats = 1
[throughput]
kinds = ["prose"]
prompt_tokens = [64]
concurrency = [1]
requests = 2
output_tokens = 4
warmup = 1
repeats = 1
seconds_between_repeats = 0
start_each_repeat = true
order = "abba"
seed = 3
sampling = {{ temperature = 1.0, top_p = 1.0, top_k = 0, min_p = 0.0, presence_penalty = 0.0, frequency_penalty = 0.0, ignore_eos = false }}
chat = {{ before = "<|user|>\\n", after = "<|assistant|>", template = {{}}, to = "every engine" }}
[long_replies]
kinds = ["prose"]
replies_per_kind = 1
seed = 4
concurrency = 1
sampling = {{ temperature = 1.0, top_p = 1.0, top_k = 0, min_p = 0.0, presence_penalty = 0.0, frequency_penalty = 0.0, ignore_eos = false }}
stages = [{{ stage = "L1", cap_tokens = 32 }}]
early_stop = {{ verdicts = 3, characters = 10000 }}
chat = {{ before = "<|user|>\\n", after = "<|assistant|>" }}
[limits]
"""


@dataclass(frozen=True)
class OutsideStudy(TinyStudy):
    """The study's folder and home, and what its hub serves by source."""

    served: dict[str, dict[str, bytes]]

    @property
    def folder(self) -> Path:
        return self.root / "protocol" / OUTSIDE

    @property
    def fetched(self) -> Path:
        return self.home / "fetched" / OUTSIDE

    @property
    def snapshot(self) -> Path:
        """Where the checkpoint lies once it is fetched."""
        return self.fetched / "hub" / "models--maker--model" / "snapshots" / COMMIT["model"]

    def prompt_set(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "prompt_set.json").read_bytes())
        return found


def outside_study(root: Path, place: Place, weights: Path, *, texts: bool = True) -> OutsideStudy:
    """The study, not frozen, with nothing fetched; its hub is `place`. `texts` false: without texts and prompts of replies."""
    folder = root / "protocol" / OUTSIDE
    folder.mkdir(parents=True)
    (root / "wheels").mkdir()
    commit = repository(root / "launcher", {"simulator.env": ""}, LAUNCHERS / "vllm_fork")
    filled = PROTOCOL.format(
        image=host_image.NAME, image_tag=host_image.TAG, image_id=host_image.IMAGE_ID, launcher=root / "launcher", tag=TAG, commit=commit,
        vocab=VOCAB, k=K, pb_rows=PB_ROWS,
    )  # fmt: skip
    (folder / "protocol.toml").write_text(filled, encoding="utf-8")
    if texts:
        for name in ("texts/prose-1.txt", "replies/prose-1.txt"):
            (folder / name).parent.mkdir()
            (folder / name).write_text(TEXT, encoding="utf-8")
    tokenizer = load_tokenizer(weights)
    served = {"model": SHARDS, "drafter": {"config.json": b"{}", "model.safetensors": b"\0" * 400}}
    served |= {"tokenizer": {"tokenizer.json": tokenizer.as_json().encode(), "chat_template.jinja": b"{{ messages }}"}}
    served |= panels(tokenizer)
    for name, files in served.items():
        kind = "datasets" if _KINDS[name] == "panel" else "models"
        large = {one for one in files if one.endswith((".safetensors", ".npy", "tokenizer.json"))}
        hub(place, f"maker/{name}", COMMIT[name], files, large=large, kind=kind)
    (folder / "SOURCES.json").write_text(json.dumps({"schema": "engcmp.study-sources/1", "sources": entries()}))
    return OutsideStudy(root, served)


def entries() -> list[dict[str, Any]]:
    """SOURCES.json: what the hub has, and two things that are known by name only."""
    found: list[dict[str, Any]] = [
        {
            "id": name, "kind": "hf", "role": role, "what": f"a small {role}", "where": f"maker/{name}", "revision": COMMIT[name],
            "repo_type": "dataset" if role == "panel" else "model", "files": "unknown", "licence": "MIT", "bytes": "unknown",
            "unknown": _UNKNOWN, **({"stand_in": STAND_IN} if name == "tokenizer" else {}),
        }
        for name, role in _KINDS.items()
    ]  # fmt: skip
    told = [
        {"field": "where", "why": "no document names it"},
        {"field": "revision", "why": "no document states it"},
        *_UNKNOWN,
    ]
    for name, role in (("root", "model"), ("q3", "panel")):
        found.append(
            {
                "id": name, "kind": "mirror", "role": role, "what": name, "where": "unknown", "revision": "unknown", "files": "unknown",
                "licence": "MIT", "bytes": "unknown", "fetch": False, "note": "known by name", "unknown": told,
            }
        )  # fmt: skip
    return found


def panels(tokenizer: TextTokenizer) -> dict[str, dict[str, bytes]]:
    """The files of the three data sets. Rows are drawn, so that every figure of them is of its own."""
    draw, ids = np.random.default_rng(5), tokenizer.encode(TEXT)
    logits = draw.normal(size=(8, VOCAB)).astype(np.float32)
    pa = {"teacher/window-0007.safetensors": save({"logits": logits}), "arrays/final-0007.tokens.npy": _npy(ids[:9])}
    windows, pb = [], dict[str, bytes]()
    for name, block, roles in (("a00", "A", "cccccggggcc"), ("c00", "C", "ccccccccccc")):
        start, tokens = 5, ids[:11]
        words = ["gen" if one == "g" else "ctx" for one in roles]
        windows.append(
            {
                "id": name,
                "block": block,
                "bucket": "0-2K",
                "tokens": tokens,
                "roles": words,
                "score_from": start,
                "more": 1,
            }
        )
        pb[f"set/{name}.safetensors"] = save(_topk(draw, tokens, words, start))
    document: dict[str, Any] = {"schema": SET_SCHEMA, "family": "small", "windows": windows}
    pb["set/windows.json"] = json.dumps(document | {"set_sha256": set_sha256(document)}).encode()
    q2 = {f"q2/q2-prose-one-{name}k.tokens.npy": _npy(ids[:size]) for name, size in (("032", 12), ("064", 20))}
    return {"pa": pa, "pb": pb, "q2": q2}


def _topk(
    draw: np.random.Generator, tokens: list[int], words: list[str], start: int
) -> dict[str, np.ndarray[Any, Any]]:
    """Top-K rows as a fidelity set publishes them: a position is that of the predicted token."""
    positions = np.arange(start, start + PB_ROWS)
    logits = draw.normal(size=(PB_ROWS, VOCAB)) * 3
    log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    order = np.argsort(-log_probs, axis=1, kind="stable")[:, :K]
    top = np.take_along_axis(log_probs, order, axis=1)
    following = np.asarray(tokens)[positions]
    return {
        "positions": positions.astype(np.uint32), "next_token_ids": following.astype(np.uint32),
        "roles": np.asarray([words[one] == "gen" for one in positions], dtype=np.uint8), "top_ids": order.astype(np.uint32),
        "top_log_probs": top.astype(np.float16), "tail_log_mass": np.log1p(-np.exp(top).sum(axis=1)).astype(np.float32),
        "next_token_log_prob": log_probs[np.arange(PB_ROWS), following].astype(np.float32),
    }  # fmt: skip


def _npy(ids: list[int]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(ids, dtype=np.int32))
    return buffer.getvalue()
