"""The one exception family. A leaf module: pure functions may import it."""

from __future__ import annotations


class EngcmpError(Exception):
    """An error that a user can act on.

    The text names the thing, the place and the remedy, as
    `window code-2: 31 rows, plan has 32 (file rows/code-2.safetensors); recapture this window`.
    """

    def __init__(self, what: str, *, where: str | None = None, remedy: str | None = None) -> None:
        self.what = what
        self.where = where
        self.remedy = remedy
        text = what if where is None else f"{what} ({where})"
        super().__init__(text if remedy is None else f"{text}; {remedy}")
