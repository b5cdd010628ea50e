"""Recompute every published figure from the row files, by the same functions that made it, and hold it against what is stored."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from engcmp_assets.audit.reached import Reached
from engcmp_assets.comparisons.pairs import not_comparable, pair_document
from engcmp_assets.kernel.looks import declared_looks
from engcmp_assets.kernel.names import PANEL, SCORED_ROWS
from engcmp_assets.kernel.records import ArmKey, plain
from engcmp_assets.kernel.row_table import RowTable, row_table
from engcmp_assets.kernel.tables import read_parquet
from engcmp_assets.kernel.work import Done, Session, Work, output_blob
from engcmp_assets.publication.step import summary_document
from engcmp_assets.scores.step import scored_table
from engcmp_assets.steps import BY_ARTIFACT
from engcmp_assets.summaries.figures import arm_figures
from engcmp_assets.tails.step import tails_of

# Elementary functions differ between processors in the last bits; anything larger is another result.
_RELATIVE, _ABSOLUTE = 1e-9, 1e-12


def recompute(session: Session, reached: Reached, sha256: str) -> Iterator[str]:
    """Yield every way in which the receipt's stored figures differ from what its inputs give; nothing for other artifacts."""
    receipt = reached.receipts[sha256]
    work = _work(session, reached, receipt)
    artifact = receipt["artifact"]
    if artifact == "scores":
        fresh, _ = scored_table(work, session.study.panel(PANEL))
        yield from _table_differences(fresh, read_parquet(_own(work, receipt, SCORED_ROWS)))
    elif artifact == "tails":
        blob = output_blob(work.receipt("scores"), SCORED_ROWS)
        tails = tails_of(work.store.path(blob), blob.sha256, session.study.protocol.panels[PANEL].roles)
        yield from differences(plain(tails), _json(work, receipt, "tails.json"), "tails.json")
    elif artifact == "summaries":
        arm = ArmKey.parse(receipt["arm"])
        table = _rows(work, arm)
        looks = declared_looks(session.study.protocol.statistics, table.populations())
        fresh_figures = plain(arm_figures(session.study.protocol.study, arm, table, looks))
        yield from differences(fresh_figures, _json(work, receipt, "summary.json")["figures"], "summary.json")
        yield from differences(fresh_figures, receipt["figures"], "the receipt's figures")
    elif artifact == "comparisons":
        yield from differences(_pairs(work), _json(work, receipt, "comparisons.json")["pairs"], "comparisons.json")
    elif artifact == "publication":
        yield from differences(summary_document(work), _json(work, receipt, "SUMMARY.json"), "SUMMARY.json")


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
    elif fresh != stored:
        yield f"{place}: recomputed {str(fresh)[:60]!r}, stored {str(stored)[:60]!r}"


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _table_differences(fresh: Mapping[str, list[Any]], stored: Mapping[str, Any]) -> Iterator[str]:
    if set(fresh) != set(stored):
        yield f"columns {sorted(set(fresh) ^ set(stored))} differ"
        return
    for name, values in fresh.items():
        one, other = np.asarray(values), np.asarray(stored[name])
        if one.shape != other.shape:
            yield f"column {name}: recomputed {one.shape}, stored {other.shape}"
        elif one.dtype.kind == "f":
            bad = ~np.isclose(one, other, rtol=_RELATIVE, atol=_ABSOLUTE)
            if bad.any():
                row = int(np.flatnonzero(bad)[0])
                yield f"column {name}, line {row}: recomputed {one[row]!r}, stored {other[row]!r}"
        elif one.tolist() != other.tolist():
            yield f"column {name}: recomputed values differ from the stored ones"


def _pairs(work: Work) -> list[dict[str, Any]]:
    protocol = work.study.protocol
    pairs = []
    for plan in protocol.comparisons:
        arms = [ArmKey.parse(plan.candidate), ArmKey.parse(plan.baseline)]
        absent = [arm for arm in arms if ("scores", str(arm)) not in work.inputs]
        if absent:
            reason = f"{absent[0]} was not measured yet: engcmp run {protocol.study} --arm {absent[0]}"
            pairs.append(not_comparable(plan, reason))
            continue
        candidate, baseline = (_rows(work, arm) for arm in arms)
        looks = declared_looks(protocol.statistics, candidate.populations())
        pairs.append(pair_document(protocol, plan, candidate, baseline, looks))
    return pairs


def _rows(work: Work, arm: ArmKey) -> RowTable:
    protocol = work.study.protocol
    columns = read_parquet(work.file("scores", SCORED_ROWS, arm))
    return row_table(
        columns, protocol.statistics.measures, roles=protocol.panels[PANEL].roles, where=f"scores of {arm}"
    )


def _work(session: Session, reached: Reached, receipt: Mapping[str, Any]) -> Work:
    """The work of a receipt as it was: its inputs are the receipts that it names, not today's heads."""
    inputs = {
        (item["artifact"], item["arm"]): Done(reached.receipts[item["receipt_sha256"]], item["receipt_sha256"], True)
        for item in receipt["inputs"]
    }
    arm = ArmKey.parse(receipt["arm"]) if receipt["arm"] else None
    return Work(session, BY_ARTIFACT[receipt["artifact"]], arm, inputs, receipt["task_key"])


def _own(work: Work, receipt: Mapping[str, Any], name: str) -> Any:
    return work.store.path(output_blob(receipt, name))


def _json(work: Work, receipt: Mapping[str, Any], name: str) -> Any:
    return json.loads(_own(work, receipt, name).read_bytes())
