"""The paths that commands take: an empty one is refused, which would name the folder that the command happens to be called in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click


class PathArgument(click.Path):
    """click's path as a `pathlib.Path`; empty text is wrong usage, as left behind by an unset variable of a shell."""

    def __init__(self, **options: Any) -> None:
        super().__init__(path_type=Path, **options)

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """The path. Wrong usage for one that is empty, or holds a zero byte."""
        if not os.fspath(value):
            self.fail("the path is empty; `.` names the current folder", param, ctx)
        if "\0" in os.fspath(value):
            self.fail("the path holds a zero byte", param, ctx)
        return super().convert(value, param, ctx)
