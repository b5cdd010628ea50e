"""CuteAFD's scoring endpoint. The row at position p predicts token p of the prompt; so it is row p - 1 of all others."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from . import model as truth
from .chat import TextParts
from .engine import Asked, Engine
from .exchange import Exchange, Refusal
from .model import Rows

_FNV_OFFSET, _FNV_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
_MOST_VERIFY_ROWS = 64
_LEAF = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class Prober:
    """The `/v1/bench/` routes of one engine. A probe is exclusive."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._options = engine, engine.options
        self._busy = threading.Lock()

    @property
    def is_busy(self) -> bool:
        """Whether a probe runs now."""
        return self._busy.locked()

    def status(self, exchange: Exchange) -> None:
        """GET /v1/bench/status"""
        options = self._options
        answer = {
            "active": self.is_busy,
            "readiness_s": 0.0,
            "full_prefill_logits": options.full_prefill_logits,
            "snapshot": "0" * 40,
            "fingerprint": "simulator",
            "model": self._engine.model_name(exchange),
            "checkpoint": options.model,
            "baseline": None,
            "quality_failed": False,
            "auth": options.api_key_file is not None,
        }
        exchange.send_json(answer)

    def probe(self, exchange: Exchange) -> None:
        """POST /v1/bench/probe"""
        if not self._busy.acquire(blocking=False):
            raise Refusal(409, "a probe is running", kind="benchmark_running")
        try:
            body = exchange.body()
            spec, chat = body.get("spec") or {}, body.get("body") or {}
            with self._engine.admitted(exchange):
                ids = spec.get("prompt_ids") or self._engine.encode_chat(exchange, chat.get("messages"), thinking=True)
                prompt = self._engine.take_prompt(exchange, ids)
                if spec.get("score_from") is None:
                    self._generate(exchange, spec, chat, prompt)
                else:
                    self._score(exchange, spec, prompt)
        finally:
            self._busy.release()

    def _generate(self, exchange: Exchange, spec: dict[str, Any], chat: dict[str, Any], prompt: list[int]) -> None:
        engine = self._engine
        engine.read_cache(exchange, prompt, use=not spec.get("cold"))
        asked = Asked(prompt, int(chat.get("max_tokens") or 16), temperature=float(chat.get("temperature") or 0.0))
        tokens: list[int] = []
        parts, texts = TextParts(engine.model.start(prompt).thinking), {"reasoning": "", "content": ""}
        for step in engine.steps(exchange, asked):
            tokens += step.tokens
            for name, text in parts.read(step.tokens, last=step.finish is not None).items():
                texts[name] += text
        exchange.hold(tokens)
        self._send(exchange, spec, rows=[], texts=texts, tokens=tokens, reasoning=parts.reasoning_tokens)

    def _score(self, exchange: Exchange, spec: dict[str, Any], prompt: list[int]) -> None:
        engine = self._engine
        if refused := exchange.fault("prompt_logprobs_refused"):
            raise Refusal(refused["status"], "the probe failed", kind="native_v41_error")
        positions = self._positions(spec, len(prompt))
        leaf = self._leaf(spec)
        engine.read_cache(exchange, prompt, use=exchange.fault("logprobs_stale") is not None)
        timing = engine.faults.timing
        exchange.pause_until(
            time.monotonic_ns() + round((timing.ttft_ms + len(prompt) * timing.prefill_ms_per_token) * 1e6)
        )
        short = exchange.fault("prompt_logprobs_short")
        positions = (
            [] if exchange.fault("prompt_logprobs_missing") else positions[: -short["rows"]] if short else positions
        )
        decoded = spec.get("score_path", "decode") == "decode"
        rows = engine.score(exchange, prompt, [position - 1 for position in positions], decoded=decoded)
        told = self._told(exchange, spec, positions, rows)
        if leaf is not None:
            leaf.mkdir()
            _dump(leaf, positions, rows, exchange)
        self._send(exchange, spec, rows=told, texts={"reasoning": "", "content": ""}, tokens=[], reasoning=0)

    def _positions(self, spec: dict[str, Any], length: int) -> list[int]:
        path, verify = spec.get("score_path", "decode"), spec.get("verify_rows", _MOST_VERIFY_ROWS)
        if path not in ("decode", "prefill"):
            raise Refusal(400, f"score_path {path!r}")
        if path == "prefill" and not self._options.full_prefill_logits:
            raise Refusal(400, "score_path prefill needs FULL_PREFILL_LOGITS=on")
        if not 1 <= verify <= _MOST_VERIFY_ROWS:
            raise Refusal(400, f"verify_rows {verify} is not in 1..{_MOST_VERIFY_ROWS}")
        first = spec["score_from"]
        positions = sorted(spec.get("score_positions") or range(first, length))
        if not positions or first < 1 or positions[0] < first or positions[-1] >= length:
            raise Refusal(400, f"score positions must be in {max(1, first)}..{length - 1}")
        return positions

    def _leaf(self, spec: dict[str, Any]) -> Path | None:
        name = spec.get("dump_rows")
        if name is None:
            return None
        if self._options.dump_root is None:
            raise Refusal(400, "dump_rows needs PROBE_DUMP_ROOT")
        if not _LEAF.fullmatch(str(name)):
            raise Refusal(400, f"dump_rows {name!r} is no leaf name")
        leaf = self._options.dump_root / str(name)
        if leaf.exists():
            raise Refusal(400, f"dump_rows {name!r} exists")
        return leaf

    def _told(
        self, exchange: Exchange, spec: dict[str, Any], positions: Sequence[int], rows: Rows
    ) -> list[dict[str, Any]]:
        wanted, count = spec.get("want") or {}, spec.get("top_k", 1)
        told = []
        for position, row, number in zip(positions, rows, fnv1a(rows).tolist(), strict=True):
            wrong = exchange.fault("hash_wrong", row=position - 1)
            best = truth.likeliest(row, count).tolist()
            told.append(
                {
                    "position": position,
                    "hash": f"{number ^ (1 if wrong else 0):016x}",
                    "argmax": int(row.argmax()),
                    "top": [[one, float(row[one])] for one in best],
                    "wanted": [[one, float(row[one])] for one in wanted.get(str(position), [])],
                    "finite": bool(np.isfinite(row).all()),
                }
            )
        return told

    def _send(
        self,
        exchange: Exchange,
        spec: dict[str, Any],
        *,
        rows: list[dict[str, Any]],
        texts: dict[str, str],
        tokens: list[int],
        reasoning: int,
    ) -> None:
        record, cached = exchange.record, self._engine.told_cached(exchange)
        total_s = (time.monotonic_ns() - record["received_ns"]) / 1e9
        counts = {"prompt_tokens": len(record["prompt_ids"]), "completion_tokens": len(tokens), "cached_tokens": cached}
        timing = {"reasoning_tokens": reasoning, "ttft_s": total_s, "total_s": total_s, "decode_s": 0.0}
        scored = spec.get("score_from") is not None
        probe = {
            "engine": "glmf",
            "prompt_ids": record["prompt_ids"],
            "cached_tokens": cached,
            "cold_steps": 0,
            "rows": rows,
            "generated": tokens,
            "cold": bool(spec.get("cold")) or scored,
            "no_speculation": bool(spec.get("no_speculation")) or scored,
            "scored": len(rows),
            "score_path": spec.get("score_path", "decode") if scored else None,
            "verify_rows": spec.get("verify_rows", _MOST_VERIFY_ROWS) if scored else None,
            "error": None,
        }
        answer = {
            "timing": counts | timing | {"reasoning_end_s": None, "finish_reason": record["finish_reason"]},
            **texts,
            "tool_calls": [],
            "usage": counts | {"total_tokens": counts["prompt_tokens"] + len(tokens)},
            "probe": probe,
            "server": self._server(exchange),
        }
        exchange.send_json(answer)

    def _server(self, exchange: Exchange) -> dict[str, Any]:
        options, engine = self._options, self._engine
        values = {
            "max_sequences": (options.max_seqs, 8, "flag"),
            "max_context": (options.context, 0, "flag"),
            "max_output": (options.max_output, 4096, "flag"),
            "pool_tokens": (options.kv_tokens, 0, "resolved"),
            "prefill_batch_tokens": (engine.batch_tokens(exchange), 2048, "flag"),
            "drafts": (options.drafts, 0, "flag"),
            "deterministic": (engine.says_deterministic(exchange), False, "flag"),
            "full_prefill_logits": (options.full_prefill_logits, False, "env"),
        }
        return {
            "model": engine.model_name(exchange),
            "family": "glm5_flash",
            "snapshot": "0" * 40,
            "settings": [
                {"name": name, "value": str(value), "default": str(default), "source": source}
                for name, (value, default, source) in values.items()
            ],
            "build": options.version or "v3.0.1",
        }


def fnv1a(rows: Rows) -> npt.NDArray[np.uint64]:
    """FNV-1a, 64 bits, of the little-endian float32 bytes of each row [n, vocab]."""
    columns = (
        np.ascontiguousarray(rows, dtype="<f4").view(np.uint8).reshape(len(rows), 4 * rows.shape[1]).T.astype(np.uint64)
    )
    hashes = np.full(len(rows), _FNV_OFFSET)
    for column in columns:
        hashes = (hashes ^ column) * _FNV_PRIME
    return hashes


def _dump(leaf: Path, positions: Sequence[int], rows: Rows, exchange: Exchange) -> None:
    lines = []
    for position, row in zip(positions, rows, strict=True):
        if exchange.fault("dump_row_missing", row=position - 1):
            continue
        name = f"row-{position:08d}.safetensors"
        content = safetensors_of(row)
        if exchange.fault("dump_cut_short", row=position - 1):
            content = content[: len(content) // 2]
        (leaf / name).write_bytes(content)
        entry = {"position": position, "vocab_size": len(row), "file": name, "tensor": "log_probs"}
        lines.append(json.dumps(entry | {"dtype": "F32", "byte_order": "little"}) + "\n")
    (leaf / "manifest.jsonl").write_text("".join(lines), encoding="utf-8")


def safetensors_of(row: truth.Row) -> bytes:
    """A safetensors file with the one tensor `log_probs`, F32 [vocab]."""
    content = row.astype("<f4").tobytes()
    tensor = {"dtype": "F32", "shape": [len(row)], "data_offsets": [0, len(content)]}
    header = json.dumps({"log_probs": tensor}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + content
