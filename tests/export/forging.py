"""An attacker's tools: a bundle as bytes by path, which can be changed, listed again, and given a new chain that fits."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from engcmp_assets.export.verifier.chain import TABLES, folder_of
from engcmp_assets.export.verifier.main import head_of
from engcmp_assets.export.verifier.reading import MANIFEST, canonical, sha256

Q4, Q8 = "q4_0/llamacpp@b11549", "q8_0/llamacpp@b11549"


class Forger:
    """A bundle in memory. `relist` makes the manifest fit the bytes, `rechain` makes all receipts fit each other first."""

    def __init__(self, folder: Path) -> None:
        paths = [path for path in folder.rglob("*") if path.is_file()]
        self.files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
        self.manifest: dict[str, Any] = json.loads(self.files[MANIFEST])
        self.original = dict(self.files)

    def write(self, source: Path, target: Path) -> Path:
        """The bundle as a folder: what was not changed is linked from `source`."""
        for name, data in self.files.items():
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if data == self.original.get(name):
                path.hardlink_to(source / name)
            else:
                path.write_bytes(data)
        return target

    # ------------------------------------------------------------------ what lies where

    def head(self, artifact: str, arm: str | None = None) -> str:
        return f"heads/{folder_of(arm)}/{artifact}.json"

    def receipt_path(self, artifact: str, arm: str | None = None) -> str:
        return f"receipts/{json.loads(self.files[self.head(artifact, arm)])['receipt_sha256']}.json"

    def receipt(self, artifact: str, arm: str | None = None) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.files[self.receipt_path(artifact, arm)])
        return found

    def output(self, artifact: str, name: str, arm: str | None = None) -> str:
        found = next(one for one in self.receipt(artifact, arm)["outputs"] if one["name"] == name)
        return f"files/{found['sha256']}.{found['suffix']}"

    def table(self, arm: str, panel: str = "pa", path: str = "prefill") -> str:
        return f"rows/{folder_of(arm)}/{panel}-{path}.csv"

    # ------------------------------------------------------------------ changing it

    def change(self, name: str, change: Callable[[bytes], bytes]) -> None:
        self.files[name] = change(self.files[name])

    def edit(self, name: str, change: Callable[[Any], Any]) -> None:
        """Change a JSON file, and write it canonically again."""
        value = json.loads(self.files[name])
        change(value)
        self.files[name] = canonical(value)

    def edit_receipt(self, artifact: str, change: Callable[[Any], Any], arm: str | None = None) -> None:
        self.edit(self.receipt_path(artifact, arm), change)

    def replace_output(
        self, artifact: str, name: str, change: Callable[[bytes], bytes], arm: str | None = None
    ) -> None:
        """Change an output and what its receipt says of it: hash and size."""
        old = self.output(artifact, name, arm)
        data = change(self.files.pop(old))
        new = f"files/{sha256(data)}.{old.rpartition('.')[2]}"
        self.files[new] = data

        def restate(receipt: dict[str, Any]) -> None:
            for output in receipt["outputs"]:
                if output["name"] == name:
                    output |= {"sha256": sha256(data), "bytes": len(data)}

        for path in [one for one in self.files if one.startswith("receipts/")]:
            if old.encode()[6:70] in self.files[path]:
                self.edit(path, restate)

    def replace_table(self, name: str, change: Callable[[bytes], bytes]) -> None:
        """Change a table, and what the receipt of tables and the manifest say of it."""
        data = self.files[name] = change(self.files[name])

        def restate(receipt: dict[str, Any]) -> None:
            for output in receipt["outputs"]:
                if output["name"] == name:
                    output |= {"sha256": sha256(data), "bytes": len(data), "rows": data.count(b"\n") - 1}

        self.edit_receipt(TABLES, restate)
        for entry in self.manifest["tables"]:
            if entry["path"] == name:
                entry["sha256"] = sha256(data)

    # ------------------------------------------------------------------ making it fit again

    def relist(self) -> None:
        """A manifest that states the files as they are, and the heads' own head."""
        known = {entry["path"]: entry for entry in self.manifest["files"]}
        names = sorted(set(self.files) - {MANIFEST, "SIGNATURE.json"})
        self.manifest["files"] = [
            {key: value for key, value in known.get(name, {}).items() if key == "original_sha256"}
            | {"path": name, "sha256": sha256(self.files[name]), "bytes": len(self.files[name])}
            for name in names
        ]
        heads = {name: json.loads(self.files[name])["receipt_sha256"] for name in names if name.startswith("heads/")}
        self.manifest["head_sha256"] = head_of(heads)
        self.files[MANIFEST] = canonical(self.manifest)

    def rechain(self) -> None:
        """Every identity, link, name and head as its makers would have made it from what now stands in the receipts."""
        old = {Path(name).stem: json.loads(data) for name, data in self.files.items() if name.startswith("receipts/")}
        renamed: dict[str, str] = {}
        new: dict[str, dict[str, Any]] = {}

        def settle(name: str) -> str:
            if name not in renamed:
                receipt = old[name]
                for item in receipt["inputs"]:
                    source = settle(item["receipt_sha256"])
                    item |= {
                        "receipt_sha256": source,
                        "content_id": new[source]["content_id"],
                        "part_id": _part(new[source], item["uses"]),
                    }
                if receipt["answered_by"]:
                    receipt["answered_by"] = settle(receipt["answered_by"])
                _identify(receipt)
                renamed[name] = sha256(canonical(receipt))
                new[renamed[name]] = receipt
            return renamed[name]

        for name in old:
            settle(name)
        for name in [one for one in self.files if one.startswith("receipts/")]:
            del self.files[name]
        for name, receipt in new.items():
            self.files[f"receipts/{name}.json"] = canonical(receipt)
        for name in [one for one in self.files if one.startswith("heads/")]:
            self.edit(
                name,
                lambda head: head.update(receipt_sha256=renamed.get(head["receipt_sha256"], head["receipt_sha256"])),
            )
        self.relist()


def _identify(receipt: dict[str, Any]) -> None:
    used = [[item["artifact"], item["part_id"]] for item in receipt["inputs"] if item["uses"] is None or item["uses"]]
    task = {
        "artifact": receipt["artifact"],
        "parameters": receipt["parameters"],
        "inputs": used,
        "versions": receipt["versions"],
    }
    receipt["task_key"] = sha256(canonical(task))
    data = sorted([output["name"], output["sha256"]] for output in receipt["outputs"] if output["role"] == "data")
    receipt["content_id"] = sha256(canonical({"task_key": receipt["task_key"], "outputs": data}))


def _part(receipt: Mapping[str, Any], uses: list[str] | None) -> str:
    if uses is None:
        return str(receipt["content_id"])
    hashes = {output["name"]: output["sha256"] for output in receipt["outputs"]}
    return sha256(canonical({name: hashes[name] for name in sorted(uses)}))


def copied(source: Path, target: Path) -> Path:
    """The bundle's folder again, by hard links."""
    shutil.copytree(source, target, copy_function=lambda one, other: Path(other).hardlink_to(one))
    return target
