"""What the catalog is made from: current receipts, the work behind them, and the licences that sources state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from engcmp_assets.catalog.entries import Listed
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.tables import read_parquet
from engcmp_assets.kernel.work import output_blob, sound_receipt
from engcmp_resources.errors import EngcmpError
from engcmp_resources.store import STUDY_WIDE, Store

_SOURCES = "sources.parquet"


def listed_of(store: Store, receipts: Iterable[tuple[str, Mapping[str, Any]]]) -> list[Listed]:
    """Receipts by hash, each with that of the work behind it. Raises EngcmpError where one is missing or was changed."""
    found = []
    for sha256, receipt in receipts:
        maker = receipt["answered_by"] or sha256
        found.append(Listed(receipt, sha256, receipt if maker == sha256 else sound_receipt(store, maker), maker))
    return found


def licences_of(store: Store, listed: Iterable[Listed]) -> dict[str, dict[str, str]]:
    """For each arm the licence of each file of its sources, as their table has it. Raises EngcmpError where that was changed."""
    found = {}
    for one in listed:
        if one.receipt["artifact"] == "sources":
            blob = output_blob(one.receipt, _SOURCES)
            if not store.holds(blob):
                raise EngcmpError(
                    f"{_SOURCES} of sources is missing or was changed after it was written", where=str(store.path(blob)),
                    remedy=f"`engcmp run {one.receipt['study']}`: it is made anew",
                )  # fmt: skip
            table = read_parquet(store.path(blob))
            found[one.receipt["arm"]] = dict(zip(table["file"].tolist(), table["license"].tolist(), strict=True))
    return found


def current_receipts(store: Store, study: Study, artifacts: Iterable[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Hash and receipt of everything that the study has now: what belongs to the whole study first, then arm by arm.

    Raises EngcmpError where a head or a receipt was changed.
    """
    names, study_name = list(artifacts), study.folder.name
    for folder in (STUDY_WIDE, *(arm.folder for arm in study.protocol.arm_keys)):
        for artifact in names:
            sha256 = store.head(study_name, folder, artifact)
            if sha256 is not None:
                yield sha256, sound_receipt(store, sha256)
