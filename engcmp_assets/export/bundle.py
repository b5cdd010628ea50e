"""Writes the bundle of a study: scanned, listed by hash, signed if asked for; whole or not at all."""

from __future__ import annotations

import datetime
import getpass
import io
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from PIL import Image

from engcmp_assets.audit.reached import link_problems, reached_from_heads
from engcmp_assets.export.contents import Contents, contents, require_held
from engcmp_assets.export.provenance import prov_json, ro_crate
from engcmp_assets.export.scan import Scan, replaced, scan_for
from engcmp_assets.export.signing import public_key, signed
from engcmp_assets.export.verifier.faults import Fault
from engcmp_assets.export.verifier.main import head_of, verify
from engcmp_assets.export.verifier.reading import MANIFEST, SCHEMA, SIGNATURE
from engcmp_assets.kernel.progress import Progress, Say
from engcmp_assets.kernel.study import Study
from engcmp_resources.canonical import canonical_bytes, parse_canonical, sha256_bytes
from engcmp_resources.disk import disk_errors, require_space, sync_folder
from engcmp_resources.errors import EngcmpError
from engcmp_resources.places import CHECKOUT, home_folder
from engcmp_resources.store import Store

_HERE = Path(__file__).parent
_VERIFIER = ("verify.py", *(f"verifier/{path.name}" for path in sorted((_HERE / "verifier").glob("*.py"))))
_TEXT = ("json", "md", "html", "csv", "toml", "txt", "svg", "py", "config", "env", "sh")
_SECRET_NAMES = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL")
_SHORTEST_SECRET = 8
_MANIFEST_SHARE = 1.1  # of space beside the files themselves


@dataclass(frozen=True, slots=True)
class Exported:
    """A written bundle. `replaced` says of each file with placeholders what stood there; `left_out` what is known by hash only for it."""

    folder: Path
    head_sha256: str
    files: int
    bytes: int
    by_hash: int
    replaced: Mapping[str, tuple[str, ...]]
    left_out: Mapping[str, tuple[str, ...]]
    signed_by: str | None


def export(
    study: Study, store: Store, out: Path, say: Say, *, key: Ed25519PrivateKey | None = None, with_rows: bool = False
) -> Exported:
    """Write the bundle of a study's current results to the folder `out`, which must not exist or be empty.

    Raises EngcmpError for a store that does not hold together, a folder with something in it, and a full disk; then nothing is left.
    """
    study.require_frozen()
    if os.path.lexists(out) and (not out.is_dir() or any(out.iterdir())):
        raise EngcmpError("there is something already", where=str(out), remedy="give a folder that does not exist")
    reached = reached_from_heads(store, study.folder.name)
    name = study.folder.name
    problems = [*reached.problems, *link_problems(store, reached)]
    if problems:
        raise EngcmpError(f"the store does not hold together: {problems[0]}", remedy=f"`engcmp verify {name}`")
    if not reached.heads:
        raise EngcmpError(f"no result of {name} in this store", where=str(store.home), remedy=f"`engcmp run {name}`")
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    found = contents(study, store, reached, with_rows=with_rows)
    with disk_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        size = sum(blob.bytes for blob in found.stored.values()) + sum(len(data) for data in found.data.values())
        require_space(folder, int(size * _MANIFEST_SHARE), "the exported study")
        with disk_errors(out):
            exported = _Writer(folder, store, _own_scan(), say).write(study, found, key, now)
            say("export: verifying what was written, as its reader will")
            _refuse_unsound(folder, name)
            folder.chmod(0o755)
            if out.is_dir():
                out.rmdir()
            folder.replace(out)
            sync_folder(out.parent)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return Exported(out, *exported)


def _refuse_unsound(folder: Path, study: str) -> None:
    """What its own verifier would refuse is not handed out."""
    try:
        verify(folder)
    except Fault as fault:
        raise EngcmpError(
            f"the bundle would not verify: {fault.what}",
            where=fault.file,
            remedy=f"`engcmp verify {study}`; if that passes, report this",
        ) from fault


class _Writer:
    """Writes one bundle file by file and keeps its manifest."""

    def __init__(self, folder: Path, store: Store, scan: Scan, say: Say) -> None:
        self.folder, self.store, self.scan, self.say = folder, store, scan, say
        self.files: list[dict[str, Any]] = []
        self.replaced: dict[str, tuple[str, ...]] = {}
        self.left_out: dict[str, tuple[str, ...]] = {}

    def write(self, study: Study, found: Contents, key: Ed25519PrivateKey | None, now: str) -> tuple[Any, ...]:
        """Everything, the manifest and the signature last; the fields of Exported after its folder."""
        total = len(found.data) + len(found.stored)
        progress = Progress(self.say, "export", "files", total, time.monotonic_ns)
        for done, (path, data) in enumerate(sorted(found.data.items()), 1):
            self._put(path, data)
            progress.update(done, "writing files")
        for done, (path, blob) in enumerate(sorted(found.stored.items()), len(found.data) + 1):
            require_held(self.store, blob, study.folder.name)
            why = self._put(path, self.store.path(blob).read_bytes())
            if why:
                self.left_out[path] = why
                entry = {
                    "sha256": blob.sha256,
                    "bytes": blob.bytes,
                    "suffix": blob.suffix,
                    "what": "left out by the content scan",
                }
                found.by_hash.append(entry)
            progress.update(done, "writing files")
        receipts = {
            Path(path).stem: parse_canonical(data, what="receipt", where=path, remedy="verify the study")
            for path, data in found.data.items()
            if path.startswith("receipts/")
        }
        title, name = study.protocol.title, study.folder.name
        for path in _VERIFIER:
            self._put(path, (_HERE / path).read_bytes())
        self._put("README.md", _readme(name, title).encode())
        self._put("prov.json", canonical_bytes(prov_json(name, receipts)))
        listed = [(entry["path"], entry["sha256"], entry["bytes"]) for entry in self.files]
        crate = ro_crate(name, title, receipts, listed, license_name="Apache-2.0", now=now)
        self._put("ro-crate-metadata.json", canonical_bytes(crate))
        head = head_of(found.heads)
        manifest = {
            "schema": SCHEMA, "study": name, "frozen_sha256": study.frozen_sha256, "head_sha256": head,
            "files": sorted(self.files, key=lambda entry: str(entry["path"])),
            "by_hash": sorted(found.by_hash, key=lambda entry: str(entry["sha256"])), "tables": found.tables,
        }  # fmt: skip
        data = canonical_bytes(manifest)
        self._keep(MANIFEST, data)
        if key is not None:
            facts = {"study": name, "frozen_sha256": study.frozen_sha256, "head_sha256": head}
            self._keep(SIGNATURE, signed(key, sha256_bytes(data), facts))
        size = sum(entry["bytes"] for entry in self.files)
        signer = public_key(key) if key is not None else None
        return head, len(self.files), size, len(found.by_hash), self.replaced, self.left_out, signer

    def _put(self, path: str, data: bytes) -> tuple[str, ...]:
        """Write a file with placeholders for what must not leave. A table or picture with such a thing is not written: why, in words."""
        suffix = path.rpartition(".")[2]
        kinds = () if suffix in _TEXT else _kinds_within(suffix, data, self.scan)
        if kinds:
            return kinds
        entry: dict[str, Any] = {"path": path}
        if suffix in _TEXT:
            text = data.decode("utf-8", errors="surrogateescape")
            findings = self.scan.findings(text)
            if findings:
                self.replaced[path] = tuple(sorted({one.kind for one in findings}))
                entry["original_sha256"] = sha256_bytes(data)
                data = replaced(text, findings).encode("utf-8", errors="surrogateescape")
        self._keep(path, data)
        self.files.append(entry | {"sha256": sha256_bytes(data), "bytes": len(data)})
        return ()

    def _keep(self, path: str, data: bytes) -> None:
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def _kinds_within(suffix: str, data: bytes, scan: Scan) -> tuple[str, ...]:
    """What must not leave in the strings of a table, or in the words that a picture's file carries."""
    texts: list[str] = []
    if suffix == "parquet":
        table = pl.read_parquet(io.BytesIO(data))
        for column in table.select(pl.col(pl.String)).iter_columns():
            texts += [one for one in column.unique().to_list() if one]
    elif suffix == "png":
        texts += [str(value) for value in Image.open(io.BytesIO(data)).info.values()]
    return tuple(sorted({one.kind for text in texts for one in scan.findings(text)}))


def _own_scan() -> Scan:
    """A scan for this machine's names, this user's, and the secrets in this process's environment."""
    hosts = [socket.gethostname(), socket.gethostname().split(".")[0], socket.getfqdn()]
    try:
        users = [getpass.getuser()]
    except (KeyError, OSError):
        users = []
    secrets = [
        value for name, value in os.environ.items()
        if any(part in name.upper() for part in _SECRET_NAMES) and len(value) >= _SHORTEST_SECRET and "/" not in value
    ]  # fmt: skip
    places = [str(home_folder()), str(CHECKOUT), str(Path.home())]
    return scan_for(hosts=hosts, users=users, secrets=secrets, places=[one for one in places if one.count("/") > 1])


def _readme(study: str, title: str) -> str:
    return f"""# {study}

{title}

This folder is an exported engcmp study. `python verify.py` (Python 3.11 or newer, nothing else, no network) holds every file against its
hash, every receipt against the others down to the frozen protocol, and recomputes the figures from the rows in `rows/`.

* `site/index.html` is where a reader begins: every number there is a link to its trace.
* `protocol/` the frozen study; `receipts/` what was made of what, by which code, on which machine; `heads/` the current receipts.
* `files/` results by hash: pages, tables, documents. What is listed under `by_hash` in `{MANIFEST}` (row files, weights) stayed behind.
* `rows/` each row's values for each run as CSV, from which the figures follow; bound by the receipt `row_tables`.
* `prov.json` (PROV-JSON) and `ro-crate-metadata.json` (RO-Crate 1.1) say the same as the receipts.

A bundle that someone made anew as a whole is sound in itself: compare its head with one that was published elsewhere
(`python verify.py --head HEAD`), or its signature with a key that you trust (`--key KEY`). Better yet, run a verifier of your own:
`engcmp export --check FOLDER`.
"""
