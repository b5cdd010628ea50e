"""How far apart two captures of the same rows are, read from their row files: the pair measures, row by row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engcmp_assets.captured_rows.step import NOTES_FILE
from engcmp_assets.kernel.fields import ScorePath
from engcmp_assets.kernel.light_measures import pair_kl20
from engcmp_assets.kernel.names import captured_rows
from engcmp_assets.kernel.records import ArmKey, Missing, Panel, Window
from engcmp_assets.kernel.row_measures import pair_kl
from engcmp_assets.kernel.tables import read_parquet
from engcmp_assets.kernel.topk_measures import pair_coarse
from engcmp_assets.kernel.window_files import read_full, read_kept, read_light
from engcmp_assets.kernel.work import Work
from engcmp_resources.host import usable_cores

Float64 = npt.NDArray[np.float64]
IDENTICAL = "rows_bit_identical"


class Captured:
    """One arm's capture of a panel on one score path: its runs, row files and raw-row hashes."""

    def __init__(self, work: Work, arm: ArmKey, panel: Panel, path: ScorePath) -> None:
        artifact = captured_rows(panel.panel)
        table = read_parquet(work.file(artifact, "capture.parquet", arm))
        own = table["score_path"] == path
        keys = zip(table["run"][own], table["window_id"][own], table["position"][own], strict=True)
        self.hashes: Mapping[tuple[str, str, int], str] = dict(zip(keys, table["raw_row_sha256"][own], strict=True))
        self.runs = sorted(set(table["run"][own].tolist()))
        self.arm, self.panel, self._work, self._artifact = arm, panel, work, artifact

    @property
    def notes(self) -> list[dict[str, Any]]:
        """What the engine noted of each capture on this score path, empty where it notes nothing."""
        outputs = self._work.inputs[(self._artifact, str(self.arm))].receipt["outputs"]
        if not any(output["name"] == NOTES_FILE for output in outputs):
            return []
        kept: list[dict[str, Any]] = json.loads(self._work.file(self._artifact, NOTES_FILE, self.arm).read_bytes())
        return [one for one in kept if one["run"] in self.runs]

    def file(self, run: str, window: Window) -> Path:
        return self._work.file(self._artifact, f"rows/{run}/{window.window_id}", self.arm)

    def row_hashes(self, run: str) -> list[str]:
        return [self.hashes[(run, window.window_id, row)] for window in ordered(self.panel) for row in window.positions]


def ordered(panel: Panel) -> list[Window]:
    """The windows in the order in which row tables hold them."""
    return sorted(panel.windows, key=lambda window: window.window_id)


def distances(first: Captured, run: str, second: Captured, other: str) -> dict[str, Float64]:
    """The pair measures of `first`'s run to `second`'s other run, float64 [rows]: KL in nats, and 1 where a row is bit-identical (which
    light rows cannot tell).
    """
    panel = first.panel
    measure = (
        "kl_pair20" if panel.keep == "light" else "kl_pair_coarse" if panel.reference == "topk" else "kl_pair_full"
    )
    kl = [
        _window_kl(first.panel, window, first.file(run, window), second.file(other, window))
        for window in ordered(first.panel)
    ]
    if panel.keep == "light":  # an API's answers may be equal where the raw rows are not
        return {measure: np.concatenate(kl)}
    one, two = np.asarray(first.row_hashes(run)), np.asarray(second.row_hashes(other))
    return {measure: np.concatenate(kl), IDENTICAL: (one == two).astype(np.float64)}


def run_floors(captures: tuple[Captured, Captured]) -> dict[str, Mapping[str, Float64] | Missing]:
    """The pair measures between runs of one arm, of the run pair that is furthest apart by mean KL, for both arms together."""
    return {
        "within_launch": _furthest(captures, same_launch=True),
        "across_launches": _furthest(captures, same_launch=False),
    }


def _furthest(captures: tuple[Captured, Captured], *, same_launch: bool) -> Mapping[str, Float64] | Missing:
    found: list[dict[str, Float64]] = []
    for capture in captures:
        pairs = _run_pairs(capture.runs, same_launch=same_launch)
        if not pairs:
            return Missing(f"{capture.arm} has no second {'repeat' if same_launch else 'launch'} on this score path")
        found += [distances(capture, run, capture, other) for run, other in pairs]
    return max(found, key=lambda values: float(np.mean(next(iter(values.values())))))


def _run_pairs(runs: list[str], *, same_launch: bool) -> list[tuple[str, str]]:
    """Within a launch: its first repeat and each later one. Across: the first launch and each later one, in their first repeats."""
    launches: dict[str, list[str]] = {}
    for run in runs:
        launches.setdefault(run.split(".")[0], []).append(run)
    if same_launch:
        return [(repeats[0], later) for repeats in launches.values() for later in repeats[1:]]
    firsts = [repeats[0] for repeats in launches.values()]
    return [(firsts[0], later) for later in firsts[1:]]


def _window_kl(panel: Panel, window: Window, first: Path, second: Path) -> Float64:
    if first == second:
        return np.zeros(len(window.positions))  # one file in the store: a row's KL to itself is exactly 0
    where = f"window {window.window_id}"
    if panel.keep == "light":
        light = [read_light(path, window, vocab=panel.vocab) for path in (first, second)]
        return pair_kl20(light[0], light[1], where=where)[0]
    if panel.reference != "topk":
        one, two = (read_full(path, window, vocab=panel.vocab) for path in (first, second))
        return pair_kl(one, two, where=where, jobs=usable_cores())
    a, b = (read_kept(path, window, vocab=panel.vocab, k=panel.top_k or 0) for path in (first, second))
    return pair_coarse(a, b, where=where)
