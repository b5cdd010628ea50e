"""What other machines have committed of a study, taken into this home; and what this one has, put where they find it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from engcmp_resources.errors import EngcmpError
from engcmp_resources.object_store import VARIABLE
from engcmp_resources.shared_files import SharedFiles
from engcmp_resources.store import Blob, Place, Store, head_of

_HEAD = re.compile(
    r"heads/[a-z0-9-]+/(?P<arm>[A-Za-z0-9_][A-Za-z0-9._@+~-]*)/(?P<artifact>[a-z0-9_]+(?:/[a-z0-9_]+)*)\.json"
)


def pull(store: Store, study: str, *, files: bool = False) -> list[Place]:
    """Take in the heads of `study` that other machines have moved, with all receipts that they reach, and their readable names.

    With `files` also every file that a current result needs; else a file comes when it is read. Returns the places whose head moved.
    Of two heads the later measurement stands. Raises EngcmpError where the object store does not answer, or has bytes of another hash.
    """
    shared = required(store)
    moved = []
    for name, listed in sorted(shared.objects.names(f"heads/{study}/").items()):
        found = _HEAD.fullmatch(name)
        if found is None:
            continue  # not a head: `verify` on the machine that put it there tells of it
        place = Place(study, found["arm"], found["artifact"])
        if not _same(store.head_path(place), listed.tag):
            data = shared.objects.read(name)
            if data is not None and _take(store, place, head_of(data, place, where=shared.objects.where(name))):
                moved.append(place)
    if files:
        for receipt in _needed(store, study):
            for output in receipt["outputs"]:
                store.path(Blob(output["sha256"], output["bytes"], output["suffix"]))
    return moved


def push(store: Store, study: str) -> int:
    """Put every current result of `study`, and all that it rests on, where the others find it, also what is thought to be there.

    Returns the number of heads. Raises EngcmpError as `pull`.
    """
    required(store).forget()
    places = list(_places(store, study))
    for place in places:
        store.share(place)
    return len(places)


def required(store: Store) -> SharedFiles:
    """The store's object store. Raises EngcmpError where none is set."""
    if store.shared is None:
        raise EngcmpError("no object store is set", remedy=f"set {VARIABLE}=s3://bucket/prefix and its keys")
    return store.shared


def _take(store: Store, place: Place, sha256: str) -> bool:
    """Whether the head moved: all that it reaches is here before."""
    current = store.head(place.study, place.arm_folder, place.artifact)
    reached = list(_chain(store, [sha256]))
    if current == sha256 or (
        current is not None and store.read_receipt(current)["finished_at"] > reached[0]["finished_at"]
    ):
        return False
    for output in reached[0]["outputs"]:
        blob = Blob(output["sha256"], output["bytes"], output["suffix"])
        store.view(store.view_path(place, output["name"], output["suffix"]), blob)
    store.take_head(place, sha256)
    return True


def _chain(store: Store, names: list[str], *, history: bool = True) -> Iterator[Mapping[str, Any]]:
    """These receipts, and those that they rest on; with `history` also those that did the work that they were answered from."""
    queue, seen = list(names), set[str]()
    while queue:
        sha256 = queue.pop(0)
        if sha256 not in seen:
            seen.add(sha256)
            receipt = store.read_receipt(sha256)
            yield receipt
            queue += [item["receipt_sha256"] for item in receipt["inputs"]]
            queue += [receipt["answered_by"]] if history and receipt["answered_by"] else []


def _needed(store: Store, study: str) -> Iterator[Mapping[str, Any]]:
    heads = [store.head(place.study, place.arm_folder, place.artifact) for place in _places(store, study)]
    return _chain(store, [sha256 for sha256 in heads if sha256 is not None], history=False)


def _places(store: Store, study: str) -> Iterator[Place]:
    root = store.home / "heads" / study
    for path in sorted(root.rglob("*.json")):
        arm, *artifact = path.relative_to(root).with_suffix("").parts
        yield Place(study, arm, "/".join(artifact))


def _same(head: Path, tag: str) -> bool:
    """Whether the listing says that the object has the bytes of the head that is here; where it does not tell, they are read."""
    return head.is_file() and hashlib.md5(head.read_bytes(), usedforsecurity=False).hexdigest() == tag
