"""Whether a context bucket can be told from a kind of content: what claims, audit and pages ask alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from engcmp_assets.kernel.records import Panel

BUCKET_SHARE = 0.8
"""Of a bucket's rows from one block: from here on the bucket's figure is that block's."""


def rows_by_bucket(panel: Panel) -> dict[str, dict[str, int]]:
    """Rows by context bucket and block."""
    found: dict[str, dict[str, int]] = {}
    for window in panel.windows:
        own = found.setdefault(window.bucket, {})
        own[window.block] = own.get(window.block, 0) + len(window.positions)
    return found


def dominant_block(rows: Mapping[str, Mapping[str, int]], bucket: str) -> str | None:
    """The block that makes up the bucket while it does not make up the rest; None where buckets have like contents.

    `rows` are counts by bucket and block.
    """
    own = rows.get(bucket, {})
    total = sum(own.values())
    outside: dict[str, int] = {}
    for name, blocks in rows.items():
        for block, count in blocks.items() if name != bucket else ():
            outside[block] = outside.get(block, 0) + count
    if not total or not outside:
        return None
    block = max(sorted(own), key=lambda name: own[name])
    rest = outside.get(block, 0) / sum(outside.values())
    return block if own[block] >= BUCKET_SHARE * total and rest < BUCKET_SHARE else None


def confounded(panel: Panel) -> Iterator[str]:
    """A sentence for each bucket of the panel that is one kind of content and so says nothing of context length."""
    rows = rows_by_bucket(panel)
    for bucket, blocks in rows.items():
        block = dominant_block(rows, bucket)
        if block is not None:
            share = blocks[block] / sum(blocks.values())
            yield f"{100 * share:.3g} % of the rows of bucket {bucket} are of block {block}: no figure of it is one of context length"
