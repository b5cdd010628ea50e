"""Private texts of replies: which are still needed, which nothing names, and whether those that are here are as they were written."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from engcmp_assets.audit.reached import Problem
from engcmp_assets.kernel.names import REPLIES
from engcmp_assets.long_replies.journalled import SCRATCH
from engcmp_assets.long_replies.step import PRIVATE
from engcmp_resources import private_store
from engcmp_resources.journal import read_journal
from engcmp_resources.store import Store

Receipt = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PrivateTexts:
    """How many of the private texts that receipts name are here, and how many are not: they are never exported."""

    here: int
    absent: int

    def __str__(self) -> str:
        if not self.here:
            return f"{private_store.NOT_HERE}: {self.absent:,} replies cannot be judged again in this copy"
        return f"{self.here:,} private texts hashed" + (f", {self.absent:,} are not here" if self.absent else "")


def named_texts(receipts: Iterable[Receipt]) -> set[str]:
    """The hashes of the private texts that receipts name."""
    return {
        sha256
        for receipt in receipts
        if receipt["artifact"] == REPLIES
        for sha256 in receipt["details"].get(PRIVATE, ())
    }


def unreached_texts(store: Store, receipts: Iterable[Receipt], dead: Collection[str] = ()) -> tuple[str, ...]:
    """The texts that are here and that neither these receipts nor an unfinished measurement name; those in `dead` count for none."""
    needed = named_texts(receipts) | set(_unfinished(store, dead))
    return tuple(sha256 for sha256, _ in private_store.stored(store.home) if sha256 not in needed)


def verified_texts(store: Store, receipts: Iterable[Receipt]) -> tuple[PrivateTexts, list[Problem]]:
    """Hash every text that is here, and count those that are not. One that is here and was changed is a problem."""
    states = {sha256: private_store.verify(store.home, sha256) for sha256 in sorted(named_texts(receipts))}
    problems = [
        Problem(
            str(private_store.private_path(store.home, sha256).relative_to(store.home)),
            "a private text was changed after it was written",
        )
        for sha256, state in states.items()
        if state == "changed"
    ]
    counts = PrivateTexts(
        sum(state == "sound" for state in states.values()), sum(state == "absent" for state in states.values())
    )
    return counts, problems


def _unfinished(store: Store, dead: Collection[str]) -> Iterator[str]:
    for journal in sorted((store.home / "scratch").glob(f"{SCRATCH}*/journal.jsonl")):
        for entry in read_journal(journal) if journal.parent.name not in dead else ():
            if entry["kind"] == "reply" and entry["row"]["private_sha256"]:
                yield entry["row"]["private_sha256"]
