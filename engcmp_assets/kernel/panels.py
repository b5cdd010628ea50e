"""Several panels on the same windows: one forward pass of a window gives the rows of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engcmp_assets.kernel.records import Panel, Window


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward pass over a window: every row that any panel keeps of it, in rising order."""

    window_id: str
    tokens: tuple[int, ...]
    tokens_sha256: str
    positions: tuple[int, ...]

    def indices(self, window: Window) -> list[int]:
        """Where a panel's rows of this window stand among the rows of the pass."""
        place = {position: index for index, position in enumerate(self.positions)}
        return [place[position] for position in window.positions]


def passes(panels: Sequence[Panel]) -> tuple[Pass, ...]:
    """The passes that serve `panels`, in the order in which their windows first occur."""
    rows: dict[str, set[int]] = {}
    windows: dict[str, Window] = {}
    for panel in panels:
        for window in panel.windows:
            windows.setdefault(window.window_id, window)
            rows.setdefault(window.window_id, set()).update(window.positions)
    return tuple(
        Pass(name, window.tokens, window.tokens_sha256, tuple(sorted(rows[name]))) for name, window in windows.items()
    )


def window_of(panel: Panel, window_id: str) -> Window | None:
    """The panel's window of that name, or None where it does not keep rows of it."""
    return next((window for window in panel.windows if window.window_id == window_id), None)
