"""Drift: whether an arm that was measured again gave the same rows, beside what its own runs differ by."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from typing import Any

from engcmp_assets.captured_rows.agreement import identical_share
from engcmp_assets.kernel.records import Check
from engcmp_assets.kernel.tables import read_parquet
from engcmp_assets.kernel.work import output_blob, sound_receipt
from engcmp_resources.errors import EngcmpError
from engcmp_resources.store import Store

CHECK = "same_as_last_measurement"
ABOUT = "Measured again, the arm gives the rows that it gave before, as far as its own runs agree with each other"
_KEY = ("run", "window_id", "position")


def drift_check(store: Store, receipt: Mapping[str, Any]) -> Check:
    """Hold captured rows against the measurement before (measure rows_bit_identical).

    It passes if the share of rows that are equal bit for bit is no smaller than between the runs of this measurement.
    """
    if receipt["measurement"] == 1:
        return Check(CHECK, True, "Measured once: there is nothing to hold beside it", {"measurement": 1})
    earlier = _measurement_before(store, receipt)
    if earlier is None:
        return Check(
            CHECK, True, "The measurement before is not in this store any more", {"measurement": receipt["measurement"]}
        )
    now, then = _hashes(store, receipt), _hashes(store, earlier[1])
    evidence: dict[str, Any] = {"measurement": receipt["measurement"], "receipt of the measurement before": earlier[0]}
    if now.keys() != then.keys():
        return Check(CHECK, False, "The measurement before holds other runs or rows", evidence)
    share = identical_share(now, then)
    floor = min(receipt["details"]["rows_bit_identical"].values(), default=1.0)
    evidence |= {"rows_bit_identical": share, "rows_bit_identical between runs": floor, "rows": len(now)}
    passed = share >= floor
    words = (
        "no fewer than between its own runs"
        if passed
        else f"between its own runs the share is {floor:.4g}: something has moved"
    )
    return Check(
        CHECK,
        passed,
        f"{round(share * len(now))} of {len(now)} rows are those of the measurement before; {words}",
        evidence,
    )


def _measurement_before(store: Store, receipt: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
    """The receipt of the measurement before this one, of the same task and arm. Read only when there was one: it looks at all receipts."""
    same = ("study", "arm", "artifact", "task_key")
    for path in sorted((store.home / "receipts").glob("*.json")):
        text = path.read_bytes()
        if receipt["task_key"].encode("ascii") not in text:
            continue
        try:
            other = sound_receipt(store, path.stem)
        except (EngcmpError, json.JSONDecodeError):
            continue  # what is damaged is for `verify` to tell
        before = other["measurement"] == receipt["measurement"] - 1 and other["answered_by"] is None
        if before and all(other[name] == receipt[name] for name in same):
            return path.stem, other
    return None


def _hashes(store: Store, receipt: Mapping[str, Any]) -> dict[Hashable, str]:
    table = read_parquet(store.path(output_blob(receipt, "capture.parquet")))
    keys = zip(*(table[name].tolist() for name in _KEY), strict=True)
    return dict(zip(keys, table["raw_row_sha256"].tolist(), strict=True))
