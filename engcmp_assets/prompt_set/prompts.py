"""The prompt set as data: from tokenized texts to the frozen file, and from there to the panel files that users can read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engcmp_assets.kernel.prompt_files import consecutive_positions, even_positions
from engcmp_assets.kernel.protocol import PanelPlan, Protocol
from engcmp_assets.kernel.records import Panel, Window, tokens_sha256
from engcmp_resources.errors import EngcmpError

SCHEMA = "engcmp.prompts/2"
_BUCKETS = (128, 256, 512, 1024, 2048, 4096, 8192)


def prompt_document(tokens: Mapping[str, Sequence[int]], protocol: Protocol, *, vocab: int) -> dict[str, Any]:
    """The prompt set of texts named `<block>-<number>`: ids, digests, cluster (the document), bucket, and the rows of each panel of texts.

    Raises EngcmpError for a text of fewer than 3 tokens and for a panel that names a window without a text.
    """
    windows = []
    for name in sorted(tokens):
        ids = [int(token) for token in tokens[name]]
        if len(ids) < 3:  # noqa: PLR2004 - two tokens would leave no row to choose from
            raise EngcmpError(f"text {name} has {len(ids)} tokens", remedy="write a longer text")
        windows.append(
            {
                "window_id": name, "tokens": ids, "tokens_sha256": tokens_sha256(ids),
                "cluster": name, "block": name.rsplit("-", 1)[0], "bucket": bucket(len(ids)),
            }
        )  # fmt: skip
    sizes = {name: len(tokens[name]) for name in sorted(tokens)}
    panels = {name: _kept_rows(sizes, plan, name) for name, plan in protocol.panels.items() if plan.external is None}
    return {"schema": SCHEMA, "vocab": vocab, "windows": windows, "panels": panels}


def _kept_rows(sizes: Mapping[str, int], plan: PanelPlan, panel: str) -> dict[str, Any]:
    choose = even_positions if plan.rows == "even" else consecutive_positions
    kept = {}
    for name in plan.windows or sizes:
        if name not in sizes:
            raise EngcmpError(
                f"panel {panel} names window {name}, which has no text", remedy="write it or leave it out"
            )
        positions = choose(sizes[name], plan.rows_per_window)
        kept[name] = {"positions": list(positions), "roles": [plan.roles[0]] * len(positions)}
    return kept


def bucket(tokens: int) -> str:
    """The context bucket of a window: the smallest standard length that holds it, as `upto256`."""
    for size in _BUCKETS:
        if tokens <= size:
            return f"upto{size}"
    return f"over{_BUCKETS[-1]}"


def panel_document(panel: Panel) -> dict[str, Any]:
    """A panel as the JSON that `engcmp score` and other tools read."""
    return {
        "panel": panel.panel,
        "vocab": panel.vocab,
        "reference": panel.reference,
        "windows": [_window_document(window) for window in panel.windows],
    }


def _window_document(window: Window) -> dict[str, Any]:
    return {
        "window_id": window.window_id, "tokens": list(window.tokens), "tokens_sha256": window.tokens_sha256,
        "positions": list(window.positions), "roles": list(window.roles), "cluster": window.cluster,
        "block": window.block, "bucket": window.bucket,
    }  # fmt: skip
