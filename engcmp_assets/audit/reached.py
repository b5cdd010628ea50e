"""What the heads of a study reach: receipts, and through them files. Reads the store's bytes and trusts none of them."""

from __future__ import annotations

import gc
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engcmp_assets.kernel.receipts import part_id
from engcmp_assets.kernel.work import sound_receipt
from engcmp_resources.errors import EngcmpError
from engcmp_resources.hashing_ahead import hashing_ahead
from engcmp_resources.store import STUDY_WIDE, Blob, Place, Store, read_head

Receipt = Mapping[str, Any]
_MANY = 2000  # receipts from which on a process of its own is worth its start
# What a receipt that was answered from the store takes over from the one that did the work.
_TAKEN_OVER = ("artifact", "task_key", "content_id", "outputs", "figures", "checks", "flags", "details", "measurement")


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that does not verify: the file, and what is wrong with it."""

    file: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}: {self.what}"


@dataclass(slots=True)
class Reached:
    """The heads of a study with their receipt hashes, the receipts that they reach, and the others of the study (both by hash)."""

    heads: dict[Place, str] = field(default_factory=dict)
    receipts: dict[str, Receipt] = field(default_factory=dict)
    history: dict[str, Receipt] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def current(self) -> Iterator[tuple[Place, str, Receipt]]:
        """The receipts that heads point to, each with its place and hash."""
        for place, sha256 in self.heads.items():
            if sha256 in self.receipts:
                yield place, sha256, self.receipts[sha256]

    def needed(self) -> list[Receipt]:
        """The current receipts and all their inputs: those whose files must be there.

        What else is reached did the work that a current receipt was answered from; its outputs are that receipt's own.
        """
        queue = [sha256 for _, sha256, _ in self.current()]
        found: dict[str, Receipt] = {}
        while queue:
            sha256 = queue.pop()
            if sha256 in self.receipts and sha256 not in found:
                found[sha256] = self.receipts[sha256]
                queue += [item["receipt_sha256"] for item in found[sha256]["inputs"]]
        return list(found.values())

    def leave_out(self, artifacts: Collection[str]) -> None:
        """Forget the heads and receipts of these artifacts, on which nothing else rests."""
        self.heads = {place: sha256 for place, sha256 in self.heads.items() if place.artifact not in artifacts}
        for kept in (self.receipts, self.history):
            for sha256 in [name for name, receipt in kept.items() if receipt["artifact"] in artifacts]:
                del kept[sha256]

    def of(self, place: Place) -> Receipt | None:
        """The current receipt of `place`, if it has a sound one."""
        return self.receipts.get(self.heads.get(place, ""))


def place_of(receipt: Receipt) -> Place:
    """Where the head of a receipt lies."""
    return Place(receipt["study"], folder_of(receipt["arm"]), receipt["artifact"])


def folder_of(arm: str | None) -> str:
    """The folder of an arm, as receipts name it."""
    return STUDY_WIDE if arm is None else arm.replace("/", "~")


def shown(store: Store, path: Path) -> str:
    """A path as problems name it: below ENGCMP_HOME, on one line whatever its name is."""
    text = str(path.relative_to(store.home))
    return text if text.isprintable() else ascii(text)


def reached_from_heads(store: Store, study: str) -> Reached:
    """Follow every head of `study` through its receipt's inputs, and read every other receipt; problems are collected, not raised."""
    reached = Reached()
    root = store.home / "heads" / study
    for path in sorted(root.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            continue
        parts = path.relative_to(root).parts
        name = "/".join(parts[1:])
        if not name.endswith(".json"):
            reached.problems.append(Problem(shown(store, path), "not a head: remove it"))
            continue
        place = Place(study, parts[0], name.removesuffix(".json"))
        try:
            sha256 = read_head(path, place)
        except EngcmpError as error:
            reached.problems.append(Problem(shown(store, path), error.what))
            continue
        reached.heads[place] = sha256
        follow(store, reached, sha256, needed_by=shown(store, path))
        receipt = reached.receipts.get(sha256)
        if not store.receipt_path(sha256).exists():
            reached.problems.append(Problem(shown(store, path), f"points to receipt {sha256[:12]}, which is missing"))
        elif receipt and place_of(receipt) != place:
            what = f"points to receipt {sha256[:12]}, which is of {receipt['artifact']} of {receipt['arm'] or receipt['study']}"
            reached.problems.append(Problem(shown(store, path), what))
    _read_history(store, study, reached)
    return reached


def follow(store: Store, reached: Reached, sha256: str, *, needed_by: str) -> None:
    """Read a receipt and all that it names. Receipts form a chain by hash, so this ends."""
    queue = [(sha256, needed_by)]
    while queue:
        sha256, needed_by = queue.pop()
        if sha256 in reached.receipts:
            continue
        name = shown(store, store.receipt_path(sha256))
        try:
            receipt = sound_receipt(store, sha256)
        except EngcmpError as error:
            reached.problems.append(Problem(name, f"{error.what} (needed by {needed_by})"))
            continue
        reached.receipts[sha256] = receipt
        queue += [(item["receipt_sha256"], name) for item in receipt["inputs"]]
        if receipt["answered_by"]:
            queue.append((receipt["answered_by"], name))


def _read_history(store: Store, study: str, reached: Reached) -> None:
    """Every receipt that no head reaches: its bytes must have the hash of its name too."""
    known = {problem.file for problem in reached.problems}
    folder = store.home / "receipts"
    names = _names(folder)
    with _uncollected(), hashing_ahead(store.hashed) if len(names) >= _MANY else nullcontext() as ask:
        for name in names:
            stem, dot, suffix = name.rpartition(".")
            if stem in reached.receipts or (known and shown(store, folder / name) in known):
                continue
            try:
                if dot + suffix != ".json":
                    raise EngcmpError("not a receipt")
                receipt = sound_receipt(store, stem)
            except EngcmpError as error:
                what = f"{error.what}; no current result needs it: restore it from a copy, or remove it"
                reached.problems.append(Problem(shown(store, folder / name), what))
                continue
            if receipt["study"] == study:
                reached.history[stem] = receipt
                if ask is not None:
                    for output in receipt["outputs"]:
                        blob = Blob(output["sha256"], output["bytes"], output["suffix"])
                        ask(store.place(blob), blob.sha256, blob.bytes)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without looking for cycles: receipts have none, and to walk all of them again and again takes a tenth of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _names(folder: Path) -> list[str]:
    """The names in a folder in order; as text, since a Path for each of very many costs as much as to check them."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


def link_problems(store: Store, reached: Reached) -> Iterator[Problem]:
    """Every way in which a reached receipt says something else of another receipt than that one itself."""
    for sha256, receipt in reached.receipts.items():
        name = shown(store, store.receipt_path(sha256))
        for item in receipt["inputs"]:
            source = reached.receipts.get(item["receipt_sha256"])
            if source is not None:
                yield from (Problem(name, what) for what in _input_faults(receipt, item, source))
        maker = reached.receipts.get(receipt["answered_by"] or "")
        if maker is not None:
            odd = [key for key in _TAKEN_OVER if receipt[key] != maker[key]]
            if odd or maker["answered_by"]:
                yield Problem(
                    name, f"was answered from another receipt, and differs from it in {', '.join(odd) or 'kind'}"
                )


def _input_faults(receipt: Receipt, item: Receipt, source: Receipt) -> Iterator[str]:
    names = ("artifact", "arm", "content_id")
    if source["study"] != receipt["study"] or any(source[name] != item[name] for name in names):
        yield f"its input {item['artifact']} is not what that receipt says"
        return
    try:
        part = part_id(source, item["uses"])
    except EngcmpError as error:
        yield error.what
        return
    if part != item["part_id"]:
        yield f"what it used of its input {item['artifact']} is not what that receipt says"


def leads_to_frozen(reached: Reached, receipt: Receipt) -> bool:
    """Whether a receipt's inputs all are of its frozen hash, and lead to that of the frozen protocol."""
    queue, found = [receipt], False
    seen: set[str] = set()
    while queue:
        item = queue.pop()
        if item["frozen_sha256"] != receipt["frozen_sha256"]:
            return False
        found = found or item["artifact"] == "frozen_protocol"
        hashes = {entry["receipt_sha256"] for entry in item["inputs"]} - seen
        seen |= hashes
        queue += [reached.receipts[sha256] for sha256 in hashes if sha256 in reached.receipts]
    return found
