"""What belongs into a bundle: receipts, heads, the protocol, small results, and of large ones the hash; and the tables of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import numpy.typing as npt

from engcmp_assets.audit.reached import Reached, Receipt
from engcmp_assets.export.tables import pairs_csv, rows_csv
from engcmp_assets.export.verifier.chain import TABLES
from engcmp_assets.kernel.names import scored_rows
from engcmp_assets.kernel.receipts import SCHEMA, Input, content_id, part_id, task_key
from engcmp_assets.kernel.records import ArmKey, plain
from engcmp_assets.kernel.row_table import row_table
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.tables import read_parquet
from engcmp_assets.kernel.work import output_blob
from engcmp_resources.canonical import canonical_bytes, sha256_bytes
from engcmp_resources.errors import EngcmpError
from engcmp_resources.places import FROZEN_FILE
from engcmp_resources.store import STUDY_WIDE, Blob, Place, Store, head_bytes

VERSION = 2  # of the tables' form
_EPOCH = "1970-01-01T00:00:00.000+00:00"
SITE = "site/"
"""Begins the names of the site's files, among the outputs of the publication and in the bundle."""
READABLE = ("json", "parquet", "png", "svg", "md", "html", "csv", "toml", "txt", "config", "env", "sh")


@dataclass(slots=True)
class Contents:
    """A bundle before it is written: bytes by path, stored files by path, files that are known by hash only, the tables, the heads."""

    data: dict[str, bytes] = field(default_factory=dict)
    stored: dict[str, Blob] = field(default_factory=dict)
    by_hash: list[dict[str, Any]] = field(default_factory=list)
    tables: list[dict[str, Any]] = field(default_factory=list)
    heads: dict[str, str] = field(default_factory=dict)


def contents(study: Study, store: Store, reached: Reached, *, with_rows: bool = False) -> Contents:
    """Everything of a study's current results; `with_rows` takes in row files and weights too.

    Raises EngcmpError for rows that do not pair up, and what reading the store raises.
    """
    found = Contents()
    _add_protocol(found, study)
    rested_on = {id(receipt) for receipt in reached.needed()}
    for sha256, receipt in reached.receipts.items():
        found.data[f"receipts/{sha256}.json"] = canonical_bytes(receipt)
        # What a result was answered from may be another study's, whose own inputs need not be kept here any more.
        _add_outputs(found, receipt, kept=id(receipt) in rested_on, with_rows=with_rows)
    _add_site(found, reached.of(Place(study.folder.name, STUDY_WIDE, "publication")))
    for place, sha256 in reached.heads.items():
        _add_head(found, place, sha256)
    _add_tables(found, study, store, reached)
    return found


def _add_protocol(found: Contents, study: Study) -> None:
    for name, data in study.files.items():
        found.data[f"protocol/{name}"] = data
    for name, data in study.iteration_files.items():
        found.data[f"protocol/iterations/{name}"] = data
    found.data[f"protocol/{FROZEN_FILE}"] = canonical_bytes(study.frozen or {})


def _add_outputs(found: Contents, receipt: Receipt, *, kept: bool, with_rows: bool) -> None:
    listed = {(entry["sha256"], entry["suffix"]) for entry in found.by_hash}
    for output in receipt["outputs"]:
        blob = Blob(output["sha256"], output["bytes"], output["suffix"])
        if kept and (with_rows or blob.suffix in READABLE):
            found.stored[f"files/{blob.sha256}.{blob.suffix}"] = blob
        elif (blob.sha256, blob.suffix) not in listed:
            what = f"{output['name']} of {receipt['artifact']}"
            entry = {"sha256": blob.sha256, "bytes": blob.bytes, "suffix": blob.suffix, "what": what}
            found.by_hash.append(entry)
            listed.add((blob.sha256, blob.suffix))


def _add_site(found: Contents, publication: Receipt | None) -> None:
    """The published site once more, by names: its pages link to each other."""
    for output in publication["outputs"] if publication else ():
        if output["name"].startswith(SITE):
            found.stored[output["name"]] = Blob(output["sha256"], output["bytes"], output["suffix"])


def _add_head(found: Contents, place: Place, sha256: str) -> None:
    path = f"heads/{place.arm_folder}/{place.artifact}.json"
    found.data[path] = head_bytes(place, sha256)
    found.heads[path] = sha256


def _add_tables(found: Contents, study: Study, store: Store, reached: Reached) -> None:
    """The tables and the receipt that binds them to the scores and distances that they are a copy of."""
    inputs: list[Input] = []
    for arm in study.protocol.arm_keys:
        scores = reached.of(Place(study.folder.name, arm.folder, "scores"))
        if scores is not None:
            used = [scored_rows(panel) for panel in study.protocol.panels]
            inputs.append(_input(reached, scores, arm, used))
            for entry, data in _arm_tables(study, store, scores, arm):
                found.tables.append(entry)
                found.data[entry["path"]] = data
    pairs = reached.of(Place(study.folder.name, STUDY_WIDE, "comparisons"))
    names = [output["name"] for output in (pairs or {"outputs": []})["outputs"] if output["name"].startswith("rows/")]
    if pairs is not None and names:
        inputs.append(_input(reached, pairs, None, names))
        for name in names:
            blob = output_blob(pairs, name)
            pair = name.removeprefix("rows/").removesuffix(".parquet")
            data = pairs_csv({key: column.tolist() for key, column in _columns(store, blob, study.folder.name).items()})
            entry = {"path": f"rows/pairs/{pair}.csv", "kind": "pair", "pair": pair}
            found.tables.append(entry | {"sha256": sha256_bytes(data), "parquet_sha256": blob.sha256})
            found.data[entry["path"]] = data
    made_at = max((receipt["finished_at"] for _, _, receipt in reached.current()), default=_EPOCH)
    receipt = _tables_receipt(study, found, inputs, made_at)
    data = canonical_bytes(receipt)
    found.data[f"receipts/{sha256_bytes(data)}.json"] = data
    _add_head(found, Place(study.folder.name, STUDY_WIDE, TABLES), sha256_bytes(data))


def _arm_tables(study: Study, store: Store, scores: Receipt, arm: ArmKey) -> Iterator[tuple[dict[str, Any], bytes]]:
    for panel, plan in study.protocol.panels.items():
        blob = output_blob(scores, scored_rows(panel))
        columns = _columns(store, blob, study.folder.name)
        for path in sorted(set(columns["score_path"].tolist())):
            where = f"scores of {arm}, panel {panel}"
            data = rows_csv(row_table(columns, plan.measures, roles=plan.roles, path=path, where=where))
            entry = {
                "path": f"rows/{arm.folder}/{panel}-{path}.csv", "kind": "rows", "arm": str(arm), "panel": panel, "score_path": path,
                "main": path == study.protocol.capture.main_path(panel), "sha256": sha256_bytes(data), "parquet_sha256": blob.sha256,
            }  # fmt: skip
            yield entry, data


def _columns(store: Store, blob: Blob, study: str) -> dict[str, npt.NDArray[Any]]:
    require_held(store, blob, study)
    return read_parquet(store.path(blob))


def require_held(store: Store, blob: Blob, study: str) -> None:
    """Raises EngcmpError for a file of the store that has gone or whose bytes are not those of its name."""
    if not store.holds(blob):
        raise EngcmpError(
            "a file of the store is missing or changed", where=str(store.path(blob)), remedy=f"`engcmp verify {study}`"
        )


def _input(reached: Reached, receipt: Receipt, arm: ArmKey | None, uses: list[str]) -> Input:
    place = Place(receipt["study"], arm.folder if arm else STUDY_WIDE, receipt["artifact"])
    part = part_id(receipt, uses)
    return Input(
        receipt["artifact"], str(arm) if arm else None, reached.heads[place], receipt["content_id"], tuple(uses), part
    )


def _tables_receipt(study: Study, found: Contents, inputs: list[Input], made_at: str) -> Mapping[str, Any]:
    """It says nothing of this export's time and machine: the same results give the same receipt, and so the same head."""
    outputs = [
        {
            "name": entry["path"], "sha256": entry["sha256"], "bytes": len(found.data[entry["path"]]), "suffix": "csv", "role": "data",
            "rows": found.data[entry["path"]].count(b"\n") - 1, "columns": [],
        }
        for entry in found.tables
    ]  # fmt: skip
    parameters, versions = {"study": study.folder.name}, {"tables": VERSION}
    key = task_key(TABLES, parameters, inputs, versions)
    return {
        "schema": SCHEMA, "study": study.folder.name, "frozen_sha256": study.frozen_sha256, "iterations": [], "artifact": TABLES,
        "arm": None, "task_key": key, "content_id": content_id(key, outputs), "parameters": parameters, "versions": versions,
        "inputs": plain(inputs), "outputs": outputs, "code": {"package": "engcmp", "version": version("engcmp")}, "environment": {},
        "run_id": "export", "started_at": made_at, "finished_at": made_at, "figures": [], "checks": [], "flags": [],
        "details": {}, "answered_by": None, "measurement": 1,
    }  # fmt: skip
