"""A teacher: reference rows over the whole vocabulary from a transformers model, in the layout that the field publishes them in.

For checkpoints that the numpy reference does not compute. Needs the extra `torch`; nothing is imported of it before it is used. A window
is one pass without a cache, and its rows are kept as the model's head gives them: nothing is rounded or normalised after it.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from engcmp_resources.canonical import parse_json, sha256_file
from engcmp_resources.disk import disk_errors, keep_whole, make_folder, replace_visible, require_space
from engcmp_resources.errors import EngcmpError

Dtype = Literal["bfloat16", "float32"]
Device = Literal["cpu", "cuda"]

RECEIPT = "teacher.json"
SCHEMA = "engcmp.teacher/1"
_STORED = {"bfloat16": ("BF16", 2), "float32": ("F32", 4)}
_ALIGNMENT = 8
_OTHER_FOLDER = "name another folder, or remove this one to compute all windows again"


def teacher_rows(
    model: Path,
    windows: Mapping[str, Sequence[int]],
    out: Path,
    *,
    dtype: Dtype,
    device: Device = "cpu",
    say: Callable[[str], None] = lambda _text: None,
) -> dict[str, Any]:
    """Write each window's rows to `out`, and the receipt `teacher.json`, which is also returned.

    `model` is a folder with `config.json` and weights in safetensors, `windows` token ids by window id. A window of n tokens becomes
    `ID.safetensors` with `logits` [n - 1, V] in BF16 or F32 (row r is the distribution after tokens 0..r) and `ID.tokens.npy`, int32 [n].
    Windows that the receipt has, with files as it says, are not computed again: a call that was ended goes on where it was. The receipt
    holds the hashes of model and rows, versions, device and threads.

    Raises EngcmpError for a missing extra, a model that cannot be read, tokens outside its vocabulary, a window longer than its context,
    a GPU that is not there, rows that are not finite, and a folder that holds rows of another model, dtype, device or tokens.
    """
    torch, transformers = _needed("torch"), _needed("transformers")
    settings = _settings(model, torch, transformers, dtype=dtype, device=device)
    with disk_errors(out):
        make_folder(out)
    receipt = _receipt(out, settings)
    done: dict[str, Any] = receipt["windows"]
    missing = [name for name, tokens in windows.items() if not _is_done(done.get(name), name, tokens, out)]
    if not missing:
        say(f"all {len(windows)} windows are there")
        return receipt
    loaded = _load(model, torch, transformers, dtype=dtype, device=device)
    vocab, context = int(loaded.config.vocab_size), int(getattr(loaded.config, "max_position_embeddings", 1 << 30))
    for name in missing:
        _check(name, windows[name], vocab, context)
    size = sum(len(windows[name]) - 1 for name in missing) * vocab * _STORED[dtype][1]
    require_space(out, size, f"writing the rows of {len(missing)} windows")
    for name in missing:
        started = time.perf_counter()
        logits = _logits(loaded, torch, windows[name], dtype=dtype, device=device, window=name)
        seconds = time.perf_counter() - started
        digest = _write(out, name, windows[name], logits, _STORED[dtype][0])
        done[name] = {
            "tokens_sha256": _tokens_sha256(windows[name]), "rows": len(logits), "file_sha256": digest, "seconds": seconds,
        }  # fmt: skip
        replace_visible(out / RECEIPT, (json.dumps(receipt, indent=1, sort_keys=True) + "\n").encode())
        say(f"{name}: {len(logits)} rows in {seconds:.1f} s ({len(done)} of {len(windows)} windows)")
    return receipt


def _needed(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise EngcmpError(f"a teacher needs the package {name}", remedy="pip install 'engcmp[torch]'") from error


def _settings(model: Path, torch: Any, transformers: Any, *, dtype: Dtype, device: Device) -> dict[str, Any]:
    """All that the rows depend on, but for the tokens."""
    weights = sorted(model.glob("*.safetensors"))
    if not weights or not (model / "config.json").is_file():
        raise EngcmpError(
            "no model of transformers: config.json and weights in safetensors are needed", where=str(model),
            remedy="give the folder of a snapshot, with its weights; pickled weights are never read",
        )  # fmt: skip
    if device == "cuda" and not torch.cuda.is_available():
        raise EngcmpError(
            "this torch sees no GPU", remedy="use --device cpu, or a build of torch for this machine's GPU"
        )
    return {
        "model": {path.name: sha256_file(path) for path in [*weights, *sorted(model.glob("*.json"))]},
        "dtype": dtype,
        "device": torch.cuda.get_device_name(0) if device == "cuda" else f"cpu, {platform.machine()}",
        "threads": int(torch.get_num_threads()),
        "attention": "eager",
        "torch": str(torch.__version__),
        "transformers": str(transformers.__version__),
    }


def _receipt(out: Path, settings: dict[str, Any]) -> dict[str, Any]:
    path = out / RECEIPT
    if not path.exists():
        return {"schema": SCHEMA, "settings": settings, "windows": {}}
    with disk_errors(path):
        data = path.read_bytes()
    found = parse_json(data, what="the teacher's receipt", where=f"file {path}", remedy=_OTHER_FOLDER)
    if not isinstance(found, dict) or found.get("schema") != SCHEMA or not isinstance(found.get("windows"), dict):
        raise EngcmpError(f"not a receipt of the schema {SCHEMA}", where=f"file {path}", remedy=_OTHER_FOLDER)
    before = found["settings"]
    if apart := sorted(name for name in settings.keys() | before.keys() if settings.get(name) != before.get(name)):
        shown = "; ".join(f"{name} was {before.get(name)!r:.80} and is {settings.get(name)!r:.80}" for name in apart)
        raise EngcmpError(f"the folder holds rows of another teacher: {shown}", where=str(out), remedy=_OTHER_FOLDER)
    return dict(found)


def _is_done(entry: Any, name: str, tokens: Sequence[int], out: Path) -> bool:
    if entry is None:
        return False
    if entry["tokens_sha256"] != _tokens_sha256(tokens):
        raise EngcmpError(
            f"window {name}: the folder holds its rows of other tokens", where=str(out), remedy=_OTHER_FOLDER
        )
    path = out / f"{name}.safetensors"
    return path.is_file() and (out / f"{name}.tokens.npy").is_file() and sha256_file(path) == entry["file_sha256"]


def _load(model: Path, torch: Any, transformers: Any, *, dtype: Dtype, device: Device) -> Any:
    transformers.utils.logging.disable_progress_bar()
    # A GPU may otherwise round the factors of a float32 product to 10 bits.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    try:
        loaded = transformers.AutoModelForCausalLM.from_pretrained(
            str(model), dtype=getattr(torch, dtype), attn_implementation="eager", local_files_only=True,
            use_safetensors=True, trust_remote_code=False,
        )  # fmt: skip
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise EngcmpError(
            f"transformers cannot load the model: {error}",
            where=str(model),
            remedy="use a version that knows this architecture",
        ) from error
    return loaded.eval().to(device)


def _check(name: str, tokens: Sequence[int], vocab: int, context: int) -> None:
    where = f"window {name}"
    if not 2 <= len(tokens) <= context:  # noqa: PLR2004 - a row needs a next token
        raise EngcmpError(f"{len(tokens)} tokens, 2 to {context:,} are possible", where=where, remedy="cut the window")
    outside = [token for token in tokens if not 0 <= token < vocab]
    if outside:
        raise EngcmpError(
            f"token {outside[0]} is not in the vocabulary of {vocab:,}",
            where=where,
            remedy="tokenize with this model's own tokenizer",
        )


def _logits(
    loaded: Any, torch: Any, tokens: Sequence[int], *, dtype: Dtype, device: Device, window: str
) -> npt.NDArray[Any]:
    """Rows [n - 1, V]: float32, or uint16 as the bits of BF16."""
    with torch.inference_mode():
        logits = loaded(torch.tensor([list(tokens)], device=device), use_cache=False).logits[0, :-1]
        if not bool(torch.isfinite(logits).all()):
            raise EngcmpError(f"window {window}: the model gives NaN or infinity", remedy="compute in float32")
        if logits.dtype != getattr(torch, dtype):
            raise EngcmpError(
                f"window {window}: the head gives {logits.dtype}", remedy=f"this model computes no {dtype}"
            )
        logits = logits.to("cpu").contiguous()
        found: npt.NDArray[Any] = (logits.view(torch.uint16) if dtype == "bfloat16" else logits).numpy()
    return found


def _write(out: Path, name: str, tokens: Sequence[int], logits: npt.NDArray[Any], stored: str) -> str:
    """Both files of a window, each whole or not at all; the SHA-256 of the rows' file."""
    header = {
        "__metadata__": {"kind": "logits", "tokens_sha256": _tokens_sha256(tokens), "window_id": name},
        "logits": {"dtype": stored, "shape": list(logits.shape), "data_offsets": [0, logits.nbytes]},
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    digest = hashlib.sha256()
    partials = [out / f".{name}.{os.getpid()}.{kind}.partial" for kind in ("tokens", "rows")]
    try:
        with disk_errors(out):
            with partials[0].open("wb") as file:
                np.save(file, np.asarray(tokens, dtype="<i4"))
            with partials[1].open("wb") as file:
                for block in (len(text).to_bytes(8, "little"), text, np.ascontiguousarray(logits).data.cast("B")):
                    file.write(block)
                    digest.update(block)
        keep_whole(partials[0], out / f"{name}.tokens.npy")
        keep_whole(partials[1], out / f"{name}.safetensors")
    finally:
        for partial in partials:
            partial.unlink(missing_ok=True)
    return digest.hexdigest()


def _tokens_sha256(tokens: Sequence[int]) -> str:
    return hashlib.sha256(np.asarray(tokens, dtype="<u4").tobytes()).hexdigest()
