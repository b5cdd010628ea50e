"""Make every artifact again that follows from others, by the same functions, and hold it against what is stored.

Taken as given are the engine's and the reference's row files and what an engine said of its starts; everything else follows.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from engcmp_assets.audit.reached import Reached, Receipt
from engcmp_assets.captured_rows.step import captured_made
from engcmp_assets.engine_launch.step import launch_made, launch_spec
from engcmp_assets.kernel.names import LAUNCH, PANEL, ROWS
from engcmp_assets.kernel.records import ArmKey, plain
from engcmp_assets.kernel.row_measures import score_rows
from engcmp_assets.kernel.tables import parquet_columns, read_parquet
from engcmp_assets.kernel.work import Done, Made, Session, Work, output_blob
from engcmp_assets.steps import BY_ARTIFACT
from engcmp_resources.canonical import sha256_bytes
from engcmp_resources.errors import EngcmpError
from engcmp_resources.row_files import read_rows, row_hashes
from engcmp_resources.store import Store

# Elementary functions differ between processors in the last bits; anything larger is another result.
_RELATIVE, _ABSOLUTE = 1e-9, 1e-12
_SHOWN = 3  # differences of one output that are told
_PICTURE = re.compile(r"data:image/[a-z+]+;base64,[A-Za-z0-9+/=]*|<svg.*?</svg>", re.DOTALL)
# Each step's order is that of its inputs, so that the first difference told is the one that the others follow from.
REMADE = ("frozen_protocol", "prompt_set", LAUNCH, ROWS, "scores", "tails", "summaries", "comparisons", "publication")
RECOMPUTED = (*REMADE[:2], "reference_rows", *REMADE[2:])
# What a forged file can break in functions that were written for sound ones. Whatever it breaks is a finding.
_BROKEN = (ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, StopIteration, TypeError, ValueError)


class Evidence(Store):
    """The store as an auditor uses it: it writes nothing, and takes no result from the index."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, read_only=True)

    def part(self, key: str) -> bytes | None:
        """None: parts are made again."""
        del key
        return None

    def keep_part(self, key: str, data: bytes) -> None:
        """Nothing is kept."""


def recompute(session: Session, reached: Reached, sha256: str) -> Iterator[str]:
    """Yield every way in which the receipt's results differ from what its inputs give.

    What several arms share (one task) is made once for each receipt that claims it: it costs little, and each is evidence.
    """
    receipt = reached.receipts[sha256]
    try:
        yield from _differences_of(_work(session, reached, receipt), receipt)
    except EngcmpError as error:
        yield f"cannot be made again: {error.what}" + (f" ({error.where})" if error.where else "")
    except _BROKEN as error:
        yield f"cannot be made again: {type(error).__name__}: {' '.join(str(error).split())}"


def _differences_of(work: Work, receipt: Receipt) -> Iterator[str]:
    if receipt["artifact"] == "reference_rows":
        yield from _reference_differences(work, receipt)
        return
    if receipt["artifact"] == LAUNCH:
        made = _launch(work, receipt)
    elif receipt["artifact"] == ROWS:
        made = _captured(work, receipt)
    else:
        made = work.step.make(work)
    yield from _product_differences(work, receipt, made)
    yield from differences(plain(list(made.figures)), receipt["figures"], "the receipt's figures")
    yield from differences(sorted(made.flags), receipt["flags"], "the receipt's flags")
    outcomes = {check.name: check.passed for check in made.checks}
    yield from differences(
        outcomes, {check["name"]: check["passed"] for check in receipt["checks"]}, "the receipt's checks"
    )


def _product_differences(work: Work, receipt: Receipt, made: Made) -> Iterator[str]:
    stored = {output["name"]: output for output in receipt["outputs"]}
    fresh = {product.name: product for product in made.products}
    if set(stored) != set(fresh):
        yield f"outputs {', '.join(sorted(set(stored) ^ set(fresh))[:_SHOWN])} are missing or too many"
        return
    for name, product in fresh.items():
        output = stored[name]
        if (product.suffix, product.role, product.rows) != (output["suffix"], output["role"], output["rows"]):
            yield f"{name} is another kind of output than its step makes"
        elif isinstance(product.content, bytes) and sha256_bytes(product.content) != output["sha256"]:
            found = list(_content_differences(product.suffix, product.content, _path(work, receipt, name), name))
            yield from found[:_SHOWN]
            if len(found) > _SHOWN:
                yield f"{name}: {len(found) - _SHOWN} more differences"


def _content_differences(suffix: str, fresh: bytes, path: Path, name: str) -> Iterator[str]:
    if suffix == "json":
        yield from differences(json.loads(fresh), json.loads(path.read_bytes()), name)
    elif suffix == "parquet":
        yield from _table_differences(parquet_columns(fresh), read_parquet(path), name)
    elif suffix in ("md", "html"):
        # Pictures are drawn by libraries whose bytes differ between machines; the numbers beside them do not.
        texts = [_PICTURE.sub("", data.decode("utf-8")).splitlines() for data in (fresh, path.read_bytes())]
        if texts[0] != texts[1]:
            pairs = zip(*texts, strict=False)
            line = next((index for index, pair in enumerate(pairs) if pair[0] != pair[1]), min(map(len, texts)))
            yield f"{name}: line {line + 1} differs from the page that SUMMARY.json gives"


def differences(fresh: Any, stored: Any, place: str) -> Iterator[str]:
    """Where two JSON values differ beyond the last bits of a float, as `place: fresh, stored`."""
    if isinstance(fresh, Mapping) and isinstance(stored, Mapping):
        for key in sorted(set(fresh) | set(stored)):
            yield from differences(fresh.get(key), stored.get(key), f"{place}.{key}")
    elif isinstance(fresh, (list, tuple)) and isinstance(stored, (list, tuple)) and len(fresh) == len(stored):
        for index, (one, other) in enumerate(zip(fresh, stored, strict=True)):
            yield from differences(one, other, f"{place}[{index}]")
    elif _number(fresh) and _number(stored):
        if not math.isclose(fresh, stored, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE):
            yield f"{place}: recomputed {fresh!r}, stored {stored!r}"
    elif type(fresh) is not type(stored) or fresh != stored:
        yield f"{place}: recomputed {str(fresh)[:60]!r}, stored {str(stored)[:60]!r}"


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _table_differences(fresh: Mapping[str, Any], stored: Mapping[str, Any], place: str) -> Iterator[str]:
    if list(fresh) != list(stored):
        yield f"{place}: columns {sorted(set(fresh) ^ set(stored)) or 'in another order'} differ"
        return
    for name, one in fresh.items():
        other = np.asarray(stored[name])
        if one.shape != other.shape or one.dtype != other.dtype:
            yield f"{place}: column {name}: recomputed {one.dtype} {one.shape}, stored {other.dtype} {other.shape}"
            continue
        if one.dtype.kind == "f":
            bad = ~np.isclose(one, other, rtol=_RELATIVE, atol=_ABSOLUTE, equal_nan=True)
        else:
            bad = np.asarray([a != b for a, b in zip(one.tolist(), other.tolist(), strict=True)], dtype=bool)
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            yield f"{place}: column {name}, line {row}: recomputed {one[row]!r}, stored {other[row]!r}"


def _launch(work: Work, receipt: Receipt) -> Made:
    panel = work.study.panel(PANEL)
    starts = json.loads(_path(work, receipt, "starts.json").read_bytes())
    return launch_made(launch_spec(work, panel), starts, len(panel.windows))


def _captured(work: Work, receipt: Receipt) -> Made:
    """The capture as its row files have it: every launch, repeat and window of the plan, and the hash of each raw row."""
    panel, plan = work.study.panel(PANEL), work.study.protocol.panels[PANEL]
    table = read_parquet(_path(work, receipt, "capture.parquet"))
    places = zip(table["launch"].tolist(), table["window_id"].tolist(), strict=True)
    starts = dict(zip(places, table["start"].tolist(), strict=True))
    hashes: dict[str, list[str]] = {}
    entries = []
    for launch in range(1, plan.launches + 1):
        for window in panel.windows:
            repeats = []
            for repeat in range(1, plan.repeats + 1):
                blob = output_blob(receipt, f"rows/{launch}.{repeat}/{window.window_id}")
                if blob.sha256 not in hashes:
                    rows = read_rows(
                        work.store.path(blob), window_id=window.window_id, tokens_sha256=window.tokens_sha256,
                        positions=window.positions, vocab=panel.vocab,
                    )  # fmt: skip
                    hashes[blob.sha256] = row_hashes(rows.logits)
                repeats.append({"sha256": blob.sha256, "bytes": blob.bytes, "row_sha256": hashes[blob.sha256]})
            start = starts[(launch, window.window_id)]
            entries.append({"launch": launch, "start": start, "window": window.window_id, "repeats": repeats})
    return captured_made(panel, entries, plan.score_path)


def _reference_differences(work: Work, receipt: Receipt) -> Iterator[str]:
    """The table beside the reference's rows; the rows themselves are the reference's word."""
    panel = work.study.panel(PANEL)
    stored = read_parquet(_path(work, receipt, "reference.parquet"))
    names = ("reference_nll", "reference_entropy", "reference_top_id", "reference_top_probability")
    fresh: dict[str, list[Any]] = {name: [] for name in ("window_id", "position", *names)}
    for window in panel.windows:
        rows = read_rows(
            _path(work, receipt, f"rows/{window.window_id}"), window_id=window.window_id,
            tokens_sha256=window.tokens_sha256, positions=window.positions, vocab=panel.vocab,
        )  # fmt: skip
        scores = score_rows(rows.logits, rows.logits, window.next_tokens, where=f"window {window.window_id}")
        fresh["window_id"] += [window.window_id] * len(window.positions)
        fresh["position"] += list(window.positions)
        for name in names:
            fresh[name] += np.asarray(getattr(scores, name)).tolist()
    arrays = {name: np.asarray(values, dtype=object if name == "window_id" else None) for name, values in fresh.items()}
    yield from _table_differences(arrays, {name: stored[name] for name in arrays}, "reference.parquet")


def _work(session: Session, reached: Reached, receipt: Receipt) -> Work:
    """The work of a receipt as it was: its inputs are the receipts that it names, not today's heads."""
    inputs = {
        (item["artifact"], item["arm"]): Done(reached.receipts[item["receipt_sha256"]], item["receipt_sha256"], True)
        for item in receipt["inputs"]
    }
    arm = ArmKey.parse(receipt["arm"]) if receipt["arm"] else None
    return Work(session, BY_ARTIFACT[receipt["artifact"]], arm, inputs, receipt["task_key"])


def _path(work: Work, receipt: Receipt, name: str) -> Path:
    return work.store.path(output_blob(receipt, name))
