"""The chain of receipts below one: each named by its hash in the receipt above it, down to the frozen protocol."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Link:
    """A receipt of a chain, `depth` steps below the first one."""

    depth: int
    sha256: str
    receipt: Mapping[str, Any]


def chain_below(sha256: str, arms: Collection[str | None], read: Callable[[str], Mapping[str, Any]]) -> Iterator[Link]:
    """The receipts below one that are of these arms or of the study, each once, an input's own inputs before the next input.

    `read` gives the receipt of a hash. What is listed leaves no gap: each receipt is named in the one above it.
    """
    stack, seen = [(sha256, 0)], set()
    while stack:
        sha256, depth = stack.pop()
        if sha256 in seen:
            continue
        seen.add(sha256)
        receipt = read(sha256)
        yield Link(depth, sha256, receipt)
        # The last that is put is the first that is taken, and the nearest inputs stand last in a receipt.
        wanted = [item for item in receipt["inputs"] if item["arm"] is None or item["arm"] in arms]
        stack += [(item["receipt_sha256"], depth + 1) for item in wanted]
