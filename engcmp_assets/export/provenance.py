"""The chain of a study in the forms that other tools read: PROV-JSON (W3C) and RO-Crate 1.1. Both say what the receipts say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Receipt = Mapping[str, Any]
_CRATE = "https://w3id.org/ro/crate/1.1"


def prov_json(study: str, receipts: Mapping[str, Receipt]) -> dict[str, Any]:
    """Receipts as activities, their outputs as entities, the code as the agent. Names are `engcmp:` and a hash."""
    document: dict[str, Any] = {
        "prefix": {"engcmp": "urn:engcmp:", "sha256": "urn:sha256:"},
        "entity": {}, "activity": {}, "agent": {}, "wasGeneratedBy": {}, "used": {}, "wasAssociatedWith": {},
    }  # fmt: skip
    for name, receipt in sorted(receipts.items()):
        activity, agent = f"engcmp:{name}", f"engcmp:code-{receipt['code']['version']}"
        document["activity"][activity] = {
            "prov:startTime": receipt["started_at"], "prov:endTime": receipt["finished_at"], "prov:type": receipt["artifact"],
            "engcmp:study": study, "engcmp:arm": receipt["arm"] or "", "engcmp:frozen_sha256": receipt["frozen_sha256"],
        }  # fmt: skip
        document["agent"][agent] = {
            "prov:type": "prov:SoftwareAgent",
            "prov:label": f"engcmp {receipt['code']['version']}",
        }
        document["wasAssociatedWith"][f"_:a{name}"] = {"prov:activity": activity, "prov:agent": agent}
        for output in receipt["outputs"]:
            entity = f"sha256:{output['sha256']}"
            document["entity"][entity] = {"prov:label": output["name"], "engcmp:bytes": output["bytes"]}
            document["wasGeneratedBy"][f"_:g{name}-{output['name']}"] = {
                "prov:entity": entity,
                "prov:activity": activity,
            }
        for number, item in enumerate(receipt["inputs"]):
            for output in _used_outputs(receipts.get(item["receipt_sha256"]), item["uses"]):
                entity = f"sha256:{output['sha256']}"
                document["entity"].setdefault(entity, {"prov:label": output["name"], "engcmp:bytes": output["bytes"]})
                document["used"][f"_:u{name}-{number}-{output['name']}"] = {
                    "prov:activity": activity,
                    "prov:entity": entity,
                }
    return document


def ro_crate(
    study: str,
    title: str,
    receipts: Mapping[str, Receipt],
    files: Iterable[tuple[str, str, int]],
    *,
    license_name: str,
    now: str,
) -> dict[str, Any]:
    """The crate's metadata: `files` are (path in the bundle, sha256, bytes); each receipt is a CreateAction."""
    listed = sorted(files)
    by_hash = {sha256: path for path, sha256, _ in listed}
    actions = [_action(name, receipt, by_hash) for name, receipt in sorted(receipts.items())]
    root = {
        "@id": "./", "@type": "Dataset", "name": f"engcmp study {study}", "description": title, "datePublished": now,
        "license": license_name, "hasPart": [{"@id": path} for path, _, _ in listed],
        "mentions": [{"@id": action["@id"]} for action in actions],
    }  # fmt: skip
    head = {
        "@id": "ro-crate-metadata.json",
        "@type": "CreativeWork",
        "conformsTo": {"@id": _CRATE},
        "about": {"@id": "./"},
    }
    tool = {"@id": "#engcmp", "@type": "SoftwareApplication", "name": "engcmp"}
    entries = [
        {"@id": path, "@type": "File", "sha256": sha256, "contentSize": str(size)} for path, sha256, size in listed
    ]
    return {"@context": f"{_CRATE}/context", "@graph": [head, root, tool, *entries, *actions]}


def _action(name: str, receipt: Receipt, by_hash: Mapping[str, str]) -> dict[str, Any]:
    made = [{"@id": by_hash[output["sha256"]]} for output in receipt["outputs"] if output["sha256"] in by_hash]
    return {
        "@id": f"receipts/{name}.json#action", "@type": "CreateAction", "name": receipt["artifact"], "instrument": {"@id": "#engcmp"},
        "startTime": receipt["started_at"], "endTime": receipt["finished_at"], "result": made,
        "object": [{"@id": f"receipts/{item['receipt_sha256']}.json#action"} for item in receipt["inputs"]],
    }  # fmt: skip


def _used_outputs(source: Receipt | None, uses: list[str] | None) -> list[Mapping[str, Any]]:
    if source is None:
        return []
    return [output for output in source["outputs"] if uses is None or output["name"] in uses]
