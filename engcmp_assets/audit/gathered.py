"""The evidence of a study as an audit reads it: row files, tables and receipts that the heads reach, and nothing of an engine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from engcmp_assets.audit.reached import Reached, Receipt
from engcmp_assets.captured_rows.step import NOTES_FILE
from engcmp_assets.engine_launch.sides import side_of
from engcmp_assets.kernel.launch_diff import Side
from engcmp_assets.kernel.names import EVENTS, LAUNCH, REPLY_CHECKS, SERVING, captured_rows, scored_rows
from engcmp_assets.kernel.records import Panel, Window
from engcmp_assets.kernel.reply_verdicts import Verdict, verdicts_of
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.tables import read_parquet
from engcmp_assets.kernel.window_files import read_full, read_kept, read_light
from engcmp_assets.kernel.work import sound_file
from engcmp_assets.long_output_checks.step import VERDICTS_FILE
from engcmp_assets.throughput_events.step import REQUESTS_FILE
from engcmp_resources.store import STUDY_WIDE, Place, Store

Table = Mapping[str, npt.NDArray[Any]]
_NOT_MEASURED = ("sources", "prompt_set", "reference_rows", LAUNCH, SERVING)
"""Artifacts of an arm that hold what was asked for and given to it, and nothing that was read of it."""


@dataclass(frozen=True)
class ArmRows:
    """An arm's capture of a panel: its table (columns of capture.parquet), and what the engine noted of each request, by run and window."""

    arm: str
    panel: Panel
    table: Table
    notes: Mapping[tuple[str, str], Mapping[str, Any]]
    receipt: Receipt
    store: Store
    scored: Receipt | None

    @property
    def about(self) -> str:
        return f"{self.arm}, panel {self.panel.panel}"

    @cached_property
    def paths(self) -> dict[str, list[str]]:
        """The runs of each score path."""
        found: dict[str, set[str]] = {}
        for run, path in zip(self.table["run"].tolist(), self.table["score_path"].tolist(), strict=True):
            found.setdefault(path, set()).add(run)
        return {path: sorted(runs) for path, runs in found.items()}

    @cached_property
    def hashes(self) -> Mapping[tuple[str, str, int], str]:
        """The hash of each raw row by run, window and position."""
        names = ("run", "window_id", "position")
        keys = zip(*(self.table[name].tolist() for name in names), strict=True)
        return dict(zip(keys, self.table["raw_row_sha256"].tolist(), strict=True))

    def equal(self, first: str, second: str) -> npt.NDArray[np.bool_]:
        """Which rows are equal in two runs, bool [rows], in the order of `rows`."""
        return np.asarray([self.hashes[(first, *row)] == self.hashes[(second, *row)] for row in self.rows])

    @cached_property
    def rows(self) -> list[tuple[str, int]]:
        """Window and position of each row of one run."""
        return [(window.window_id, row) for window in self.panel.windows for row in window.positions]

    def first_choices(self) -> list[tuple[Window, npt.NDArray[np.int64]]]:
        """The engine's most probable ids of its first run: from the scored rows where there are any, else from the row files."""
        run = min(next(iter(self.paths.values())))
        if self.scored is not None:
            name = scored_rows(self.panel.panel)
            table = read_parquet(sound_file(self.store, self.scored, name))
            keys = zip(table["run"].tolist(), table["window_id"].tolist(), table["position"].tolist(), strict=True)
            top = dict(zip(keys, table["engine_top_id"].tolist(), strict=True))
            return [
                (one, np.asarray([top[(run, one.window_id, row)] for row in one.positions], dtype=np.int64))
                for one in self.panel.windows
            ]
        return [(window, self._argmax(run, window)) for window in self.panel.windows]

    def _argmax(self, run: str, window: Window) -> npt.NDArray[np.int64]:
        path = sound_file(self.store, self.receipt, f"rows/{run}/{window.window_id}")
        panel = self.panel
        if panel.keep == "light":
            return read_light(path, window, vocab=panel.vocab).argmax
        if panel.reference != "topk":
            return np.asarray(read_full(path, window, vocab=panel.vocab).argmax(axis=1), dtype=np.int64)
        return np.asarray(read_kept(path, window, vocab=panel.vocab, k=panel.top_k or 0).argmax, dtype=np.int64)


@dataclass(frozen=True)
class Gathered:
    """The study's evidence: captures, launches by arm, requests of the speed block by arm, summaries and verdicts on replies by arm;
    and the published comparisons.
    """

    study: Study
    reached: Reached
    rows: tuple[ArmRows, ...]
    starts: Mapping[str, list[dict[str, Any]]]
    store: Store
    requests: Mapping[str, Table]
    receipts: Mapping[tuple[str, str], Receipt]
    samples: Mapping[str, int]
    pairs: tuple[Mapping[str, Any], ...]
    summaries: Mapping[str, Mapping[str, Any]]
    verdicts: Mapping[str, list[Verdict]]

    def sides(self, pair: Mapping[str, Any]) -> tuple[Side, Side] | None:
        """The launches of a pair, baseline first, each on its score path; None where one was not measured."""
        launches = [self.receipts.get((LAUNCH, pair[name])) for name in ("baseline", "candidate")]
        paths = (pair["baseline_path"], pair["candidate_path"])
        found = [side_of(self.store, one, path=path) for one, path in zip(launches, paths, strict=True) if one]
        return (found[0], found[1]) if len(found) == len(launches) else None

    @cached_property
    def known(self) -> frozenset[str]:
        """The SHA-256 of every receipt that heads reach, and of every file that these name."""
        files = {output["sha256"] for receipt in self.reached.receipts.values() for output in receipt["outputs"]}
        return frozenset({*self.reached.receipts, *files})

    @cached_property
    def owners(self) -> dict[str, tuple[str, ...]]:
        """The arms of every receipt and file that belongs to arms alone, by SHA-256: arms with equal results share their files."""
        arms: dict[str, set[str | None]] = {}
        for sha256, receipt in self.reached.receipts.items():
            for name in (sha256, *(output["sha256"] for output in receipt["outputs"])):
                arms.setdefault(name, set()).add(receipt["arm"])
        return {name: tuple(sorted(filter(None, own))) for name, own in arms.items() if None not in own}

    @cached_property
    def measured_of(self) -> dict[str, tuple[str, ...]]:
        """The arms of every receipt and file that holds what was measured of them; the comparisons hold it of all."""
        everyone = {str(arm) for arm in self.study.protocol.arm_keys}
        arms: dict[str, set[str]] = {}
        for sha256, receipt in self.reached.receipts.items():
            own = {receipt["arm"]} if receipt["arm"] is not None else everyone
            if receipt["artifact"] in _NOT_MEASURED or (
                receipt["arm"] is None and receipt["artifact"] != "comparisons"
            ):
                continue
            for name in (sha256, *(output["sha256"] for output in receipt["outputs"])):
                arms.setdefault(name, set()).update(own)
        return {name: tuple(sorted(own)) for name, own in arms.items()}


def gather(study: Study, store: Store, reached: Reached) -> Gathered:
    """Read what the finders look at. Raises EngcmpError where one that a current receipt names is missing or changed."""
    name = study.folder.name
    arms = [str(arm) for arm in study.protocol.arm_keys]

    def current(artifact: str, arm: str | None) -> Receipt | None:
        return reached.of(Place(name, arm.replace("/", "~") if arm else STUDY_WIDE, artifact))

    receipts = {
        (artifact, arm): found
        for arm in arms
        for artifact in (
            LAUNCH,
            SERVING,
            EVENTS,
            "prompt_set",
            "scores",
            "summaries",
            REPLY_CHECKS,
            *map(captured_rows, study.protocol.panels),
        )
        if (found := current(artifact, arm)) is not None
    }
    rows = [
        _arm_rows(study.panel(panel), arm, store, receipts[(captured_rows(panel), arm)], receipts.get(("scores", arm)))
        for arm in arms
        for panel in study.protocol.panels
        if (captured_rows(panel), arm) in receipts
    ]
    launched = {arm: receipts[(LAUNCH, arm)] for arm in arms if (LAUNCH, arm) in receipts}
    compared = current("comparisons", None)
    pairs = () if compared is None else tuple(_json(store, compared, "comparisons.json")["pairs"])
    return Gathered(
        study=study,
        reached=reached,
        rows=tuple(rows),
        starts={arm: _json(store, receipt, "starts.json") for arm, receipt in launched.items()},
        store=store,
        requests={
            arm: read_parquet(sound_file(store, receipt, REQUESTS_FILE))
            for (artifact, arm), receipt in receipts.items()
            if artifact == EVENTS
        },
        receipts=receipts,
        samples={
            arm: next(one["rows"] or 0 for one in receipt["outputs"] if one["name"] == "telemetry.parquet")
            for (artifact, arm), receipt in receipts.items()
            if artifact == SERVING
        },
        pairs=pairs,
        summaries={
            arm: _json(store, receipt, "summary.json")
            for (artifact, arm), receipt in receipts.items()
            if artifact == "summaries"
        },
        verdicts={
            arm: _verdicts(store, receipt) for (artifact, arm), receipt in receipts.items() if artifact == REPLY_CHECKS
        },
    )


def _arm_rows(panel: Panel, arm: str, store: Store, receipt: Receipt, scored: Receipt | None) -> ArmRows:
    table = read_parquet(sound_file(store, receipt, "capture.parquet"))
    notes: dict[tuple[str, str], Mapping[str, Any]] = {}
    if NOTES_FILE in {output["name"] for output in receipt["outputs"]}:
        notes = {(one["run"], one["window_id"]): one for one in _json(store, receipt, NOTES_FILE)}
    return ArmRows(arm, panel, table, notes, receipt, store, scored)


def _verdicts(store: Store, receipt: Receipt) -> list[Verdict]:
    table = read_parquet(sound_file(store, receipt, VERDICTS_FILE))
    return verdicts_of({name: column.tolist() for name, column in table.items()})


def _json(store: Store, receipt: Receipt, name: str) -> Any:
    return json.loads(sound_file(store, receipt, name).read_bytes())
