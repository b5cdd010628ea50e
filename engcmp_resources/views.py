"""The readable names of an artifact's outputs: those of earlier ones go."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from engcmp_resources.disk import disk_errors
from engcmp_resources.store import Place, Store


def drop_views(store: Store, place: Place, *, keep: Collection[Path]) -> None:
    """Remove the readable names of an artifact's earlier outputs: all links but `keep`. What is no link is a user's own and stays."""
    folder = store.home / "views" / place.study / place.arm_folder / place.artifact
    artifacts_below = store.head_path(place).with_suffix("")  # they have views of their own there
    if not folder.is_dir() or artifacts_below.is_dir():
        return
    with disk_errors(folder):
        for path in sorted(folder.rglob("*"), reverse=True):  # what lies in a folder comes before it
            if path.is_symlink() and path not in keep:
                path.unlink(missing_ok=True)
            elif path.is_dir() and not path.is_symlink() and not any(path.iterdir()):
                path.rmdir()
