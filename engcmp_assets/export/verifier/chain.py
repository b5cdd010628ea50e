"""The chain of a bundle: heads, receipts, what they say of each other and of the files, down to the frozen protocol."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .faults import Fault
from .reading import Bundle, canonical, parse, sha256

Receipt = Mapping[str, Any]
_FIELDS = {
    "schema", "study", "frozen_sha256", "iterations", "artifact", "arm", "task_key", "content_id", "parameters", "versions", "inputs",
    "outputs", "code", "environment", "run_id", "started_at", "finished_at", "figures", "checks", "flags", "details", "answered_by",
    "measurement",
}  # fmt: skip
_TAKEN_OVER = ("artifact", "task_key", "content_id", "outputs", "figures", "checks", "flags", "details", "measurement")
_STUDY_WIDE = "_study"
_FROZEN = "protocol/FROZEN.json"
TABLES = "row_tables"
"""The receipt of the bundle's own tables, whose outputs lie under their names."""


class Chain:
    """The receipts of a bundle by hash, and the heads by their path: `heads/FOLDER/ARTIFACT.json`."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.receipts: dict[str, Receipt] = {}
        self.heads: dict[str, str] = {}
        for name in bundle.files:
            if name.startswith("receipts/"):
                self._take_receipt(name)
        for name in bundle.files:
            if name.startswith("heads/"):
                self.heads[name] = self._head(name)

    def _take_receipt(self, name: str) -> None:
        named = name.removeprefix("receipts/").removesuffix(".json")
        if self.bundle.original_sha256(name) != named:
            raise Fault(name, "the receipt's bytes do not have the hash of its name")
        receipt = parse(self.bundle.read(name), name)
        if not isinstance(receipt, dict) or set(receipt) != _FIELDS or receipt["schema"] != "engcmp.receipt/1":
            raise Fault(name, "is not a receipt of engcmp.receipt/1")
        self.receipts[named] = receipt

    def _head(self, name: str) -> str:
        data = self.bundle.read(name)
        head = parse(data, name)
        folder, _, artifact = name.removeprefix("heads/").removesuffix(".json").partition("/")
        place = {"study": self.bundle.manifest["study"], "arm_folder": folder, "artifact": artifact}
        found = str(head.get("receipt_sha256")) if isinstance(head, dict) else ""
        if data != canonical({"schema": "engcmp.head/1", **place, "receipt_sha256": found}):
            raise Fault(name, "is not the head of the place that its name says")
        if found not in self.receipts:
            raise Fault(name, f"points to receipt {found[:12]}, which is missing")
        receipt = self.receipts[found]
        if (folder_of(receipt["arm"]), receipt["artifact"]) != (folder, artifact):
            raise Fault(
                name, f"points to a receipt of {receipt['artifact']} of {receipt['arm'] or 'the study'}: swapped"
            )
        return found

    def current(self) -> Iterator[tuple[str, Receipt]]:
        """Receipts that heads point to, with their hashes."""
        for found in self.heads.values():
            yield found, self.receipts[found]

    def of(self, artifact: str, arm: str | None) -> Receipt | None:
        """The current receipt of an artifact, or None."""
        found = self.heads.get(f"heads/{folder_of(arm)}/{artifact}.json")
        return None if found is None else self.receipts[found]


def folder_of(arm: str | None) -> str:
    """The folder of an arm, as heads and tables name it."""
    return _STUDY_WIDE if arm is None else arm.replace("/", "~")


def check_chain(chain: Chain) -> Iterator[Fault]:
    """Every way in which the chain does not hold, in the order in which later ones follow from earlier ones."""
    yield from _protocol_faults(chain)
    for named, receipt in chain.receipts.items():
        name = f"receipts/{named}.json"
        if "original_sha256" not in chain.bundle.files[name]:
            yield from (Fault(name, what) for what in _identity_faults(receipt))
        yield from (Fault(name, what) for what in _link_faults(chain, receipt))
        yield from (Fault(name, what) for what in _file_faults(chain.bundle, receipt))
    frozen = chain.bundle.manifest["frozen_sha256"]
    for named in sorted(_reached(chain, through_answers=False)):
        receipt = chain.receipts[named]
        if receipt["study"] != chain.bundle.manifest["study"]:
            yield Fault(f"receipts/{named}.json", f"is of study {receipt['study']}")
        if receipt["frozen_sha256"] != frozen:
            what = "is of another freeze than the bundle: it was measured under another protocol"
            yield Fault(f"receipts/{named}.json", what)
    for named, receipt in chain.current():
        if not _leads_to_freeze(chain, receipt):
            yield Fault(f"receipts/{named}.json", "its inputs do not lead to the frozen protocol")
    reached = _reached(chain)
    for named in chain.receipts:
        if named not in reached:
            yield Fault(f"receipts/{named}.json", "no head leads to this receipt")


def _protocol_faults(chain: Chain) -> Iterator[Fault]:
    bundle = chain.bundle
    frozen = parse(bundle.read(_FROZEN), _FROZEN)
    body = {name: value for name, value in frozen.items() if name != "frozen_sha256"}
    if sha256(canonical(body)) != frozen.get("frozen_sha256"):
        yield Fault(_FROZEN, "was changed after the freeze: its content does not have the frozen hash")
        return
    if frozen["frozen_sha256"] != bundle.manifest["frozen_sha256"]:
        yield Fault(_FROZEN, "has another frozen hash than the manifest: the study was frozen again")
        return
    there = {name.removeprefix("protocol/") for name in bundle.files if name.startswith("protocol/")} - {"FROZEN.json"}
    for name in sorted({*frozen["files"], *(one for one in there if not one.startswith("iterations/"))}):
        path = f"protocol/{name}"
        if name not in frozen["files"]:
            yield Fault(path, "is no file of the frozen protocol")
        elif path not in bundle.files:
            yield Fault(path, "is a file of the frozen protocol and missing")
        elif bundle.original_sha256(path) != frozen["files"][name]:
            yield Fault(path, "was edited after the freeze")
        else:
            bundle.read(path)


def _identity_faults(receipt: Receipt) -> Iterator[str]:
    used = [[item["artifact"], item["part_id"]] for item in receipt["inputs"] if item["uses"] is None or item["uses"]]
    task = {
        "artifact": receipt["artifact"],
        "parameters": receipt["parameters"],
        "inputs": used,
        "versions": receipt["versions"],
    }
    if sha256(canonical(task)) != receipt["task_key"]:
        yield "its task key does not follow from its parameters, inputs and versions"
        return
    data = sorted([output["name"], output["sha256"]] for output in receipt["outputs"] if output["role"] == "data")
    if sha256(canonical({"task_key": receipt["task_key"], "outputs": data})) != receipt["content_id"]:
        yield "its content id does not follow from its outputs"
    names = [output["name"] for output in receipt["outputs"]]
    if len(set(names)) != len(names):
        yield "an output stands twice"


def _link_faults(chain: Chain, receipt: Receipt) -> Iterator[str]:
    for item in receipt["inputs"]:
        source = chain.receipts.get(item["receipt_sha256"])
        if source is None:
            yield f"its input {item['artifact']} (receipt {item['receipt_sha256'][:12]}) is missing"
        elif any(source[name] != item[name] for name in ("artifact", "arm", "content_id")):
            yield f"its input {item['artifact']} is not what that receipt says: swapped or changed"
        elif _part(source, item["uses"]) != item["part_id"]:
            yield f"what it used of its input {item['artifact']} is not what that receipt says"
    if receipt["answered_by"]:
        maker = chain.receipts.get(receipt["answered_by"])
        if maker is None:
            yield f"the receipt {receipt['answered_by'][:12]} that did its work is missing"
        elif maker["answered_by"] or any(receipt[name] != maker[name] for name in _TAKEN_OVER):
            yield "differs from the receipt that did its work"


def _part(receipt: Receipt, uses: list[str] | None) -> str | None:
    if uses is None:
        return str(receipt["content_id"])
    hashes = {output["name"]: output["sha256"] for output in receipt["outputs"]}
    if any(name not in hashes for name in uses):
        return None
    return sha256(canonical({name: hashes[name] for name in sorted(uses)}))


def _file_faults(bundle: Bundle, receipt: Receipt) -> Iterator[str]:
    """An output lies in the bundle, or is listed as one that is known by its hash alone."""
    by_hash = {(entry["sha256"], entry["bytes"]) for entry in bundle.manifest["by_hash"]}
    for output in receipt["outputs"]:
        path = f"files/{output['sha256']}.{output['suffix']}"
        if receipt["artifact"] == TABLES:
            path = output["name"]
        if path in bundle.files:
            if bundle.original_sha256(path) != output["sha256"]:
                yield f"its output {output['name']} has other bytes than it states"
            elif "original_sha256" not in bundle.files[path] and bundle.files[path]["bytes"] != output["bytes"]:
                yield f"its output {output['name']} has another size than it states"
        elif (output["sha256"], output["bytes"]) not in by_hash:
            yield f"its output {output['name']} is neither in the bundle nor listed by hash"


def _leads_to_freeze(chain: Chain, receipt: Receipt) -> bool:
    queue, found = [receipt], False
    seen: set[str] = set()
    while queue:
        item = queue.pop()
        if item["frozen_sha256"] != receipt["frozen_sha256"]:
            return False
        found = found or item["artifact"] == "frozen_protocol"
        hashes = {entry["receipt_sha256"] for entry in item["inputs"]} - seen
        seen |= hashes
        queue += [chain.receipts[one] for one in hashes if one in chain.receipts]
    return found


def _reached(chain: Chain, *, through_answers: bool = True) -> set[str]:
    """The receipts that heads lead to. Without `through_answers` only those that a result rests on: what it was answered from may be the
    work of another study or an earlier freeze, and is held to be the same work by its task, outputs and figures.
    """
    queue, found = list(chain.heads.values()), set()
    while queue:
        named = queue.pop()
        if named in found or named not in chain.receipts:
            continue
        found.add(named)
        receipt = chain.receipts[named]
        queue += [item["receipt_sha256"] for item in receipt["inputs"]]
        queue += [receipt["answered_by"]] if through_answers and receipt["answered_by"] else []
    return found
