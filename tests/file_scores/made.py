"""Panels of a few random rows on disk, written without the readers' code, and exact answers for them in 50 digits."""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

sys.path.insert(0, str(Path(__file__).parent.parent / "row_layouts"))

from writing import bf16_bits, save_light, save_raw

from engcmp_assets.kernel.topk_measures import topk_of

VOCAB = 11
LIGHT = ("window_id", "position", "next_token", "next_token_log_prob", "top_ids", "top_log_probs", "tokens_sha256")
DTYPES = ("F32", "F16", "BF16")


def digest(tokens: list[int]) -> str:
    return hashlib.sha256(struct.pack(f"<{len(tokens)}I", *tokens)).hexdigest()


def stored(rows: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Float32 rows as a file of this type holds them, and the values that they then are."""
    if dtype == "F32":
        return rows, rows
    if dtype == "F16":
        return rows.astype("<f2"), rows.astype("<f2").astype(np.float32)
    bits = bf16_bits(rows)
    return bits, (bits.astype("<u4") << 16).view(np.float32)


@dataclass
class Made:
    """A panel in `folder`, every row of every side by window: `rows[side][window]` float32 [n - 1, V], as they were meant."""

    folder: Path
    document: dict[str, Any]
    rows: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)

    @property
    def panel(self) -> Path:
        return self.folder / "panel.json"

    @property
    def reference(self) -> Path:
        return self.folder / "reference"

    @property
    def windows(self) -> list[dict[str, Any]]:
        return list(self.document["windows"])

    def write_panel(self, **changes: Any) -> None:
        self.document |= changes
        self.panel.write_text(json.dumps(self.document), encoding="utf-8")

    def write(self, side: str, dtype: str = "F32", *, order: Any = None, positions: Any = None, shift: int = 0) -> Path:
        """A side's files: of each window the rows at `positions` (by default all) in the order that `order` makes of them."""
        for window in self.windows:
            name = window["window_id"]
            kept = np.arange(len(window["tokens"]) - 1) if positions is None else np.asarray(positions(window))
            kept = kept if order is None else order(kept)
            values = self.rows[side][name][np.clip(kept + shift, 0, len(window["tokens"]) - 2)]
            tensors = {"positions": ("I32", kept.astype("<i4")), "logits": (dtype, stored(values, dtype)[0])}
            metadata = {"window_id": name, "tokens_sha256": window["tokens_sha256"]}
            save_raw(self.folder / side / f"{name}.safetensors", tensors, metadata)
        return self.folder / side

    def light(self, side: str, windows: Any = None, *, shift: int = 0) -> dict[str, list[Any]]:
        """The side's rows as an API gives them: the top 20 and the actual token. With `shift` they are those of another row."""
        columns: dict[str, list[Any]] = {name: [] for name in LIGHT}
        for window in self.windows:
            last = len(window["tokens"]) - 2
            for position in range(last + 1) if windows is None or window["window_id"] in windows else ():
                row = self.rows[side][window["window_id"]][min(max(position + shift, 0), last)].astype(np.float64)
                log_probs = row - row.max() - np.log(np.exp(row - row.max()).sum())
                top = np.lexsort((np.arange(row.size), -row))[:20]
                token = window["tokens"][position + 1]
                values = (window["window_id"], position, token, log_probs[token], top.tolist(), log_probs[top].tolist())
                for name, value in zip(LIGHT, (*values, window["tokens_sha256"]), strict=True):
                    columns[name].append(value)
        return columns

    def write_light(self, side: str, *, each: bool = False, shift: int = 0, **changes: list[Any]) -> Path:
        """A side's light rows: one file of all windows, or one for each."""
        if each:
            for window in self.windows:
                name = window["window_id"]
                save_light(self.folder / side / f"{name}.parquet", self.light(side, [name], shift=shift))
        else:
            save_light(self.folder / side / "rows.parquet", self.light(side, shift=shift) | changes)
        return self.folder / side

    def column(self, side: str) -> list[tuple[np.ndarray, int]]:
        """The side's rows that the panel keeps, in its order, each with the token that follows."""
        return [
            (self.rows[side][window["window_id"]][row], window["tokens"][row + 1])
            for window in self.windows
            for row in window["positions"]
        ]


def made(
    folder: Path, *, windows: int = 3, tokens: int = 9, vocab: int = VOCAB, reference: str = "full",
    sides: tuple[str, ...] = ("reference", "A", "B"), roles: Any = lambda row: "context", seed: int = 1, noise: float = 0.5,
) -> Made:  # fmt: skip
    """A panel that keeps two of three rows, and its sides: the reference's random rows, and those with noise added."""
    chance = np.random.default_rng(seed)
    entries, rows = [], {side: {} for side in sides}
    for number in range(windows):
        own = chance.integers(0, vocab, tokens).tolist()
        name = f"w{number}"
        positions = [row for row in range(tokens - 1) if row % 3 != 1]
        entries.append({
            "window_id": name, "tokens": own, "tokens_sha256": digest(own), "positions": positions,
            "roles": [roles(row) for row in positions], "cluster": f"c{number // 2}", "block": ("code", "prose")[number % 2],
            "bucket": ("short", "long")[number > 1],
        })  # fmt: skip
        base = chance.normal(0, 3, (tokens - 1, vocab)).astype(np.float32)
        for side in sides:
            more = 0.0 if side == "reference" else chance.normal(0, noise, base.shape)
            rows[side][name] = (base + more).astype(np.float32)
    found = Made(
        folder, {"panel": "made", "vocab": vocab, "reference": reference, "windows": entries, "note": "x"}, rows
    )
    folder.mkdir(parents=True, exist_ok=True)
    found.write_panel()
    return found


def with_topk_reference(one: Made, k: int, *, counted_from: int = 0, **changes: np.ndarray) -> None:
    """The made reference, reduced to its top `k`; positions counted from the row or (1) from the predicted token."""
    one.write_panel(reference="topk")
    for window in one.windows:
        rows = one.rows["reference"][window["window_id"]]
        tokens = window["tokens"][1:]
        top = topk_of(rows, tokens, k, where="made")
        generated = dict(zip(window["positions"], window["roles"], strict=True))
        tensors = {
            "positions": ("U32", np.arange(len(rows), dtype="<u4") + counted_from),
            "next_token_ids": ("U32", np.array(tokens, dtype="<u4")),
            "roles": ("U8", np.array([generated.get(row) == "generated" for row in range(len(rows))], dtype="u1")),
            "top_ids": ("U32", top.top_ids), "top_log_probs": ("F16", top.top_log_probs), "tail_log_mass": ("F32", top.tail_log_mass),
            "next_token_log_prob": ("F32", top.next_token_log_prob),
        }  # fmt: skip
        tensors |= {name: (tensors[name][0], array) for name, array in changes.items()}
        save_topk_raw(one.reference / f"{window['window_id']}.safetensors", tensors, window["window_id"])


def save_topk_raw(path: Path, tensors: dict[str, tuple[str, np.ndarray]], window_id: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: np.ascontiguousarray(array) for name, (_, array) in tensors.items()}, path, {"window_id": window_id}
    )


def log_softmax(row: np.ndarray) -> list[Decimal]:
    exact = [Decimal(float(value)) for value in row]
    total = sum((value.exp() for value in exact), Decimal(0)).ln()
    return [value - total for value in exact]


def kl(log_p: list[Decimal], log_q: list[Decimal]) -> Decimal:
    return sum((a.exp() * (a - b) for a, b in zip(log_p, log_q, strict=True)), Decimal(0))


def entropy(log_q: list[Decimal]) -> Decimal:
    return -sum((b.exp() * b for b in log_q), Decimal(0))


def answers(reference: np.ndarray, engine: np.ndarray, token: int) -> dict[str, float]:
    """Every measure of one row of finite values, by its definition."""
    with localcontext() as context:
        context.prec = 50
        log_p, log_q = log_softmax(reference), log_softmax(engine)
        first_p, first_q = log_p.index(max(log_p)), log_q.index(max(log_q))
        top3 = sorted(range(len(log_p)), key=lambda one: (-log_p[one], one))[:3]
        return {
            "kl_full": float(kl(log_p, log_q)), "nll": float(-log_q[token]), "top1": float(first_p == first_q),
            "entropy": float(entropy(log_q)), "excess_entropy": float(entropy(log_q) - entropy(log_p)),
            "nll_minus_reference": float(log_p[token] - log_q[token]), "agree_text": float(first_q == token),
            "top3_contained": float(first_q in top3), "reference_top_probability": float(max(log_p).exp()),
        }  # fmt: skip


def masses(log_p: list[Decimal], ids: list[int]) -> list[Decimal]:
    """The ids of a bucket, then all others as one."""
    rest = sum((value.exp() for one, value in enumerate(log_p) if one not in ids), Decimal(0))
    return [*(log_p[one] for one in ids), rest.ln()]


def top20(row: np.ndarray) -> list[int]:
    return sorted(range(len(row)), key=lambda one: (-row[one], one))[:20]


def kl_top20(reference: np.ndarray, engine: np.ndarray) -> float:
    with localcontext() as context:
        context.prec = 50
        return float(kl(*(masses(log_softmax(row), top20(engine)) for row in (reference, engine))))


def kl_pair20(a: np.ndarray, b: np.ndarray) -> float:
    with localcontext() as context:
        context.prec = 50
        shared = [one for one in top20(a) if one in top20(b)]
        return float(kl(*(masses(log_softmax(row), shared) for row in (a, b))))


def pair_kl(a: np.ndarray, b: np.ndarray) -> float:
    with localcontext() as context:
        context.prec = 50
        return float(kl(log_softmax(a), log_softmax(b)))
