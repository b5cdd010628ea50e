"""The scores of one window: what several machines may share of the scoring of a panel.

A window's scores follow from its two row files alone. A machine that is given a share of the windows keeps each window's scores in the
store; `scores` then takes what is kept and computes the rest, in the panel's own order, so that its table is the same to the byte
whoever did which part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load, save

from engcmp_assets.kernel.light_measures import score_light, score_light_topk
from engcmp_assets.kernel.measures import (
    LIGHT_ROW_MEASURES,
    LIGHT_TOPK_ROW_MEASURES,
    ROW_MEASURES,
    TOPK_ROW_MEASURES,
    WITHOUT_REFERENCE,
)
from engcmp_assets.kernel.names import captured_rows
from engcmp_assets.kernel.records import Panel, Window
from engcmp_assets.kernel.row_measures import score_rows
from engcmp_assets.kernel.tables import read_parquet
from engcmp_assets.kernel.topk_measures import score_topk
from engcmp_assets.kernel.window_files import read_full, read_kept, read_light, read_reference
from engcmp_assets.kernel.work import Work
from engcmp_assets.reference_rows.step import output_name
from engcmp_resources.canonical import sha256_of
from engcmp_resources.host import usable_cores

Scores = Mapping[str, npt.NDArray[Any]]
_SUFFIX = "safetensors"
_FULL = (
    *ROW_MEASURES,
    "reference_nll",
    "reference_entropy",
    "reference_top_probability",
    "engine_top_id",
    "reference_top_id",
)


def window_scores(work: Work, panel: Panel, window: Window, run: str) -> Scores:
    """The scores of a window in one run, one value a row and column: those that were kept, or computed now."""
    kept = work.store.part(_part_key(work, panel, window, run), _SUFFIX)
    return _scored(work, panel, window, run) if kept is None else load(kept)


def score_share(work: Work, share: int, of: int) -> tuple[int, int]:
    """Score every `of`-th window of all panels, from number `share` (1 is the first) on, and keep the scores in the store.

    `work` is that of `scores`. A window whose row file another run shares is scored once. Returns how many windows were scored, and how
    many of the share were kept before.
    """
    made = before = 0
    for number, (panel, window, run) in enumerate(_distinct(work)):
        if number % of != share - 1:
            continue
        key = _part_key(work, panel, window, run)
        if work.store.part(key, _SUFFIX) is not None:
            before += 1
            continue
        scores = _scored(work, panel, window, run)
        work.store.keep_part(
            key, save({name: np.ascontiguousarray(values) for name, values in scores.items()}), _SUFFIX
        )
        made += 1
        work.say(f"panel {panel.panel}, run {run}, window {window.window_id} is kept")
    return made, before


def _distinct(work: Work) -> Iterator[tuple[Panel, Window, str]]:
    """Each distinct row file of all panels, in the order in which `scores` comes by them."""
    for name in work.study.protocol.panels:
        panel = work.study.panel(name)
        seen = set()
        for run in sorted(set(read_parquet(work.file(captured_rows(name), "capture.parquet"))["run"].tolist())):
            for window in panel.windows:
                digest = _digest(work, captured_rows(name), f"rows/{run}/{window.window_id}")
                if digest not in seen:
                    seen.add(digest)
                    yield panel, window, run


def _part_key(work: Work, panel: Panel, window: Window, run: str) -> str:
    """Identity of a window's scores: its row files, which rows and tokens they are of, and the versions of step and measures."""
    return sha256_of(
        {
            "scores": work.step.versions(), "panel": [panel.reference, panel.keep, panel.vocab, panel.top_k],
            "window": [window.window_id, window.tokens_sha256, list(window.positions), list(window.next_tokens)],
            "reference": None
            if panel.reference == "none"
            else _digest(work, "reference_rows", output_name(panel.panel, window.window_id)),
            "engine": _digest(work, captured_rows(panel.panel), f"rows/{run}/{window.window_id}"),
        }
    )  # fmt: skip


def _digest(work: Work, artifact: str, name: str) -> str:
    return next(str(output["sha256"]) for output in work.receipt(artifact)["outputs"] if output["name"] == name)


def _scored(work: Work, panel: Panel, window: Window, run: str) -> Scores:
    if panel.keep == "light":
        return _score_light(work, panel, window, run)
    return {"full": _score_full, "topk": _score_topk, "none": _score_alone}[panel.reference](work, panel, window, run)


def _score_full(work: Work, panel: Panel, window: Window, run: str) -> Scores:
    reference, engine = (read_full(path, window, vocab=panel.vocab) for path in _files(work, panel, window, run))
    where = f"{work.arm}, panel {panel.panel}, run {run}, window {window.window_id}"
    scores = score_rows(reference, engine, window.next_tokens, where=where, jobs=usable_cores())
    return {name: np.asarray(getattr(scores, name)) for name in _FULL}


def _score_alone(work: Work, panel: Panel, window: Window, run: str) -> Scores:
    """What an engine's rows say without a reference: of their distance nothing."""
    engine = read_full(
        work.file(captured_rows(panel.panel), f"rows/{run}/{window.window_id}"), window, vocab=panel.vocab
    )
    where = f"{work.arm}, panel {panel.panel}, run {run}, window {window.window_id}"
    scores = score_rows(engine, engine, window.next_tokens, where=where, jobs=usable_cores())
    return {name: np.asarray(getattr(scores, name)) for name in (*WITHOUT_REFERENCE, "engine_top_id")}


def _score_topk(work: Work, panel: Panel, window: Window, run: str) -> Scores:
    reference_file, engine_file = _files(work, panel, window, run)
    reference = read_reference(reference_file, window, vocab=panel.vocab, k=panel.top_k or 0)
    engine = read_kept(engine_file, window, vocab=panel.vocab, k=panel.top_k or 0)
    where = f"{work.arm}, panel {panel.panel}, run {run}, window {window.window_id}"
    scores = score_topk(reference, engine, where=where)
    return {name: np.asarray(getattr(scores, name)) for name in TOPK_ROW_MEASURES} | {"engine_top_id": engine.argmax}


def _score_light(work: Work, panel: Panel, window: Window, run: str) -> Scores:
    reference_file, engine_file = _files(work, panel, window, run)
    engine = read_light(engine_file, window, vocab=panel.vocab)
    where = f"{work.arm}, panel {panel.panel}, run {run}, window {window.window_id}"
    if panel.reference == "full":
        full = read_full(reference_file, window, vocab=panel.vocab)
        scores = score_light(full, engine, window.next_tokens, where=where, jobs=usable_cores())
        return {name: np.asarray(getattr(scores, name)) for name in (*LIGHT_ROW_MEASURES, "engine_top_id")}
    topk = read_reference(reference_file, window, vocab=panel.vocab, k=panel.top_k or 0)
    values, _ = score_light_topk(topk, engine, window.next_tokens, where=where)
    return {name: values[name] for name in LIGHT_TOPK_ROW_MEASURES} | {"engine_top_id": engine.argmax}


def _files(work: Work, panel: Panel, window: Window, run: str) -> tuple[Path, Path]:
    reference = work.file("reference_rows", output_name(panel.panel, window.window_id))
    return reference, work.file(captured_rows(panel.panel), f"rows/{run}/{window.window_id}")
