"""A forger who knows the format: changes what a receipt says and hashes it, and everything above it, anew.

Only a check of the contents can find such a forgery; no hash is wrong.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from homes import STUDY, replace_file

from engcmp_assets.kernel.names import CATALOG
from engcmp_assets.kernel.receipts import Input, content_id, part_id, task_key
from engcmp_assets.kernel.study import load_study
from engcmp_assets.kernel.work import Session, materialize
from engcmp_assets.steps import step_named
from engcmp_resources.canonical import canonical_bytes, sha256_bytes
from engcmp_resources.store import Blob, Place, Store, head_bytes

Receipt = dict[str, Any]


class Forger:
    """The current receipts of a home by artifact and arm; `finish` writes them back as one sound chain and removes all others."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.store = Store(home)
        self.receipts: dict[tuple[str, str | None], Receipt] = {}
        self._hashes: dict[tuple[str, str | None], str] = {}
        for path in list((home / "heads" / STUDY).rglob("*.json")):
            sha256 = json.loads(path.read_bytes())["receipt_sha256"]
            receipt = json.loads((home / "receipts" / f"{sha256}.json").read_bytes())
            if receipt["artifact"] == CATALOG:
                # It names every receipt by its hash, and nothing rests on it: whoever forges receipts takes it away.
                path.unlink()
                continue
            receipt["answered_by"] = None
            self.receipts[(receipt["artifact"], receipt["arm"])] = receipt
            self._hashes[(receipt["artifact"], receipt["arm"])] = sha256

    def put(self, artifact: str, arm: str | None, output_name: str, data: bytes) -> None:
        """Other bytes as an output, stored under their own hash."""
        output = next(entry for entry in self.receipts[(artifact, arm)]["outputs"] if entry["name"] == output_name)
        blob = self.store.put_bytes(data, output["suffix"])
        output["sha256"], output["bytes"] = blob.sha256, blob.bytes

    def read(self, artifact: str, arm: str | None, output_name: str) -> bytes:
        output = next(entry for entry in self.receipts[(artifact, arm)]["outputs"] if entry["name"] == output_name)
        return self.store.path(Blob(output["sha256"], output["bytes"], output["suffix"])).read_bytes()

    def edit_json(self, artifact: str, arm: str | None, output_name: str, edit: Callable[[Any], None]) -> None:
        document = json.loads(self.read(artifact, arm, output_name))
        edit(document)
        self.put(artifact, arm, output_name, canonical_bytes(document))

    def finish(self) -> dict[tuple[str, str | None], str]:
        """Write every receipt, its identities and those of its inputs hashed anew, and its head; their names by artifact and arm."""
        shutil.rmtree(self.home / "dagster", ignore_errors=True)  # it would tell of the receipts that were forged over
        for folder in ("receipts", "tasks"):
            for path in (self.home / folder).iterdir():
                path.unlink()
        names: dict[tuple[str, str | None], str] = {}
        while len(names) < len(self.receipts):
            before = len(names)
            for key, receipt in self.receipts.items():
                sources = [(item["artifact"], item["arm"]) for item in receipt["inputs"]]
                if key not in names and all(source in names for source in sources):
                    names[key] = self._write(key, receipt, names)
            assert len(names) > before
        self._hashes = dict(names)
        return names

    def _write(self, key: tuple[str, str | None], receipt: Receipt, names: dict[tuple[str, str | None], str]) -> str:
        for item in receipt["inputs"]:
            source = self.receipts[(item["artifact"], item["arm"])]
            item["receipt_sha256"] = names[(item["artifact"], item["arm"])]
            item["content_id"] = source["content_id"]
            item["part_id"] = part_id(source, item["uses"])
        if key[0] == "publication":
            self._rename_in_pages(key, names)
        inputs = [
            Input(**{**item, "uses": None if item["uses"] is None else tuple(item["uses"])})
            for item in receipt["inputs"]
        ]
        receipt["task_key"] = task_key(receipt["artifact"], receipt["parameters"], inputs, receipt["versions"])
        receipt["content_id"] = content_id(receipt["task_key"], receipt["outputs"])
        data = canonical_bytes(receipt)
        sha256 = sha256_bytes(data)
        (self.home / "receipts" / f"{sha256}.json").write_bytes(data)
        place = Place(receipt["study"], "_study" if key[1] is None else key[1].replace("/", "~"), key[0])
        replace_file(self.store.head_path(place), head_bytes(place, sha256))
        for output in receipt["outputs"]:
            link = self.store.view_path(place, output["name"], output["suffix"])
            self.store.view(link, Blob(output["sha256"], output["bytes"], output["suffix"]))
        return sha256

    def _rename_in_pages(self, key: tuple[str, str | None], names: dict[tuple[str, str | None], str]) -> None:
        """Pages name the receipts that they rest on, by the whole hash: a forger writes the new ones there."""
        for output in self.receipts[key]["outputs"]:
            text = old = self.read(*key, output["name"])
            for one, sha256 in names.items():
                text = text.replace(self._hashes[one].encode(), sha256.encode())
            if text != old:
                self.put(*key, output["name"], text)


def make_again(home: Path, *artifacts: tuple[str, str | None]) -> None:
    """Let engcmp itself make these artifacts from what the home now holds."""
    study = load_study(STUDY)
    session = Session(study, Store(home), "forger", lambda _: None)
    for artifact, arm in artifacts:
        materialize(session, step_named(study, artifact), None if arm is None else study.protocol.require_arm(arm))
