"""frozen_protocol: the first artifact. It holds the study's folder against its freeze and fails on any difference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engcmp_assets.frozen_protocol.conformance import conformance_values, current_versions
from engcmp_assets.frozen_protocol.freezing import check_frozen, check_versions
from engcmp_assets.kernel.plots import bars
from engcmp_assets.kernel.receipts import Column
from engcmp_assets.kernel.records import ArmKey, Check
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.tables import parquet_bytes
from engcmp_assets.kernel.work import Made, Product, Step, Work
from engcmp_resources.canonical import canonical_bytes, sha256_bytes

COLUMNS = (
    Column("file", "str", "1", "Path of a frozen file within the study's folder"),
    Column("bytes", "int", "byte", "Size of the file"),
    Column("sha256", "str", "1", "SHA-256 of the file's raw bytes, as frozen"),
)


def parameters(study: Study, _arm: ArmKey | None) -> Mapping[str, Any]:
    """The frozen hash is all that this artifact is."""
    return {"frozen_sha256": study.frozen_sha256}


def make(work: Work) -> Made:
    """Check files, versions and conformance; keep FROZEN.json and the table of files."""
    study, frozen = work.study, work.study.frozen or {}
    check_frozen(study.files, frozen, where=str(study.folder))
    check_versions(frozen, current_versions(), conformance_values(), where=str(study.folder))
    names = sorted(study.files)
    sizes = [len(study.files[name]) for name in names]
    table: dict[str, list[Any]] = {
        "file": names,
        "bytes": sizes,
        "sha256": [sha256_bytes(study.files[name]) for name in names],
    }
    return Made(
        products=[
            Product("FROZEN.json", "json", canonical_bytes(frozen)),
            Product("files.parquet", "parquet", parquet_bytes(COLUMNS, table), rows=len(names), columns=COLUMNS),
            Product("plot.png", "png", bars("Frozen files", names, sizes, unit="bytes"), role="view"),
        ],
        checks=[
            Check("frozen_hashes", True, f"All {len(names)} files have the hashes of FROZEN.json", {"files": len(names)}),
            Check(
                "conformance", True, "Every measure gives on the conformance vector what it gave at the freeze",
                {"values": len(frozen["conformance"])},
            ),
        ],
        details={"frozen_sha256": study.frozen_sha256, "versions": frozen["versions"]},
    )  # fmt: skip


STEP = Step(
    artifact="frozen_protocol",
    title="Frozen protocol",
    description=(
        "The study's plan as plain data files: what is fetched, what is measured and how it is judged, held against the hashes that were "
        "frozen with it. Everything below carries the hash of this protocol; a file edited after the freeze, or a measure that now "
        "gives another result, stops the study here."
    ),
    group="protocol",
    kinds=("toml", "json"),
    version="1",
    uses=(),
    per_arm=False,
    parameters=parameters,
    make=make,
    columns=COLUMNS,
    checks={
        "frozen_hashes": "Every protocol file has the SHA-256 that FROZEN.json states",
        "conformance": "Every measure gives on the frozen conformance vector what it gave at the freeze",
    },
)
