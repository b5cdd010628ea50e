"""catalog: every file of every artifact of every arm, as tables and as a page."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from engcmp_assets.catalog.entries import COLUMNS, FILES, as_columns, columns_of, lines_of, stored_bytes
from engcmp_assets.catalog.gathering import licences_of, listed_of
from engcmp_assets.catalog.page import catalog_page, style_text
from engcmp_assets.kernel.names import CATALOG
from engcmp_assets.kernel.plots import bars
from engcmp_assets.kernel.records import ArmKey, Check
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.tables import parquet_bytes
from engcmp_assets.kernel.work import Made, Product, Session, Source, Step, Use, Work
from engcmp_resources.canonical import sha256_bytes, sha256_of

FILES_TABLE, COLUMNS_TABLE, PAGE = "catalog.parquet", "columns.parquet", "catalog.html"


def parameters(study: Study, _arm: ArmKey | None) -> Mapping[str, Any]:
    """The study, and the style of the page: a page of another style is another page."""
    return {"study": study.protocol.study, "style_sha256": sha256_bytes(style_text().encode("utf-8"))}


def seen(session: Session, inputs: Collection[Source]) -> dict[str, Any]:
    """Which receipts there are. The catalog names them, so that it is another one where the same results have other receipts."""
    hashes = {}
    for artifact, arm in inputs:
        done = session.sound(artifact, ArmKey.parse(arm) if arm else None)
        hashes[f"{artifact} of {arm or 'the study'}"] = done.sha256 if done else ""
    return {"receipts_sha256": sha256_of(hashes)}


def make(work: Work) -> Made:
    """List the outputs of every input's receipt."""
    study = work.study
    # In one order, whatever that of the inputs is: what belongs to the whole study first, then arm by arm.
    arms = [None, *map(str, study.protocol.arm_keys)]
    names = list(dict.fromkeys(use.artifact for use in work.step.uses))
    places = sorted(work.inputs, key=lambda place: (arms.index(place[1]), names.index(place[0])))
    listed = listed_of(work.store, ((work.inputs[place].sha256, work.inputs[place].receipt) for place in places))
    files, columns = lines_of(listed, licences_of(work.store, listed)), columns_of(listed)
    tables = [line for line in files if line["kind"] == "parquet"]
    bare = [f"{line['output']} of {line['artifact']}" for line in tables if not line["schema"]]
    sizes = {name: stored_bytes(line for line in files if line["artifact"] == name) for name in names}
    page = catalog_page(f"Catalog of {study.protocol.study}", files, columns)
    plot = bars("Files by artifact", names, [sizes[name] / 1e6 for name in names], unit="megabytes")
    return Made(
        products=[
            Product(FILES_TABLE, "parquet", parquet_bytes(FILES, as_columns(FILES, files)), rows=len(files), columns=FILES),
            Product(
                COLUMNS_TABLE, "parquet", parquet_bytes(COLUMNS, as_columns(COLUMNS, columns)), rows=len(columns), columns=COLUMNS
            ),
            Product(PAGE, "html", page.encode("utf-8"), role="view"),
            Product("plot.png", "png", plot, role="view"),
        ],
        checks=[
            Check(
                "every_table_is_described", not bare,
                f"{len(tables) - len(bare)} of {len(tables)} tables among {len(files)} files name their columns and units",
                {"tables": len(tables)} | {"without": ", ".join(dict.fromkeys(bare)) or "none"},
            )
        ],
        details={"files": len(files), "artifacts": len(listed), "bytes": stored_bytes(files)},
    )  # fmt: skip


def step(above: Sequence[Step]) -> Step:
    """The step of a study whose other steps are `above`: it lists them all."""
    uses = tuple(Use(one.artifact, "every arm" if one.per_arm else "study") for one in above)
    return Step(
        artifact=CATALOG,
        title="Catalog",
        description=(
            "Every file of every artifact of every arm: its kind, where it lies, its rows and bytes, its columns with their units, its "
            "SHA-256, the receipt that vouches for it, the version of the code that made it, and its licence. The audit and the look for "
            "new versions are made apart from it: `engcmp catalog` lists them too."
        ),
        group="results",
        kinds=("parquet", "html"),
        version="2",
        uses=uses,
        per_arm=False,
        parameters=parameters,
        make=make,
        columns=FILES,
        checks={"every_table_is_described": "Each table of each artifact names its columns and their units"},
        seen=seen,
    )
