"""Which layout a folder or file of rows has, told from what it holds, and the rows of one window of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from engcmp_resources.canonical import parse_json
from engcmp_resources.errors import EngcmpError
from engcmp_resources.row_layouts import full_rows, teacher_rows, topk_rows
from engcmp_resources.row_layouts.light_rows import LightWindow, light_windows, read_light_window
from engcmp_resources.row_layouts.places import check_window_id, fault, inside, small_file
from engcmp_resources.row_layouts.probe_dump import MANIFEST, TENSOR, is_leaf_of, open_dump
from engcmp_resources.row_layouts.source import RowSource
from engcmp_resources.row_layouts.tensor_map import map_tensors, tensor_names
from engcmp_resources.row_layouts.topk_rows import TopKWindow, read_topk_window

Layout = Literal["full", "teacher", "dump", "topk", "light"]
LOOKED_FOR = (
    f"<window_id>.safetensors with {' and '.join(sorted(full_rows.NAMES))}, or with logits alone and a token array .npy, or with the "
    f"top-K tensors ({', '.join(sorted(topk_rows.NAMES))}); folders with {MANIFEST}; .parquet files of light rows"
)
_REMEDY = "name a folder that holds the rows of one capture, in one layout"
# Lists of files that published data come with: file name, key of the list, key of the window.
_LISTS = (("dataset-manifest.json", "logit_files", "window_id"), ("manifest.json", "files", "window"))
_MOST_LIST_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class RowFolder:
    """A folder (or one file) of rows: its layout, and the file of each window, or the folder for a dump."""

    place: Path
    layout: Layout
    files: Mapping[str, Path]


def find_rows(place: Path) -> RowFolder:
    """What `place` holds. Raises EngcmpError that says what was looked for where that is nothing, or of several layouts, and naming the
    file for one that is damaged or foreign.
    """
    if place.is_file():
        tensors, parquet, leaves = _one_file(place)
    elif place.is_dir():
        tensors, parquet, leaves = _listed(place), _visible(place, "*.parquet"), _leaves(place)
    else:
        raise EngcmpError("there is no such folder or file of rows", where=str(place), remedy=_REMEDY)
    found: dict[Layout, dict[str, Path]] = {}
    for window_id, path in tensors.items():
        if path.is_file() or place.is_file():
            found.setdefault(_layout_of(path, window_id), {})[window_id] = path
    if leaves:
        found["dump"] = {leaf.name: leaf for leaf in leaves}
    if parquet:
        found["light"] = _by_window(parquet)
    if not found:
        raise EngcmpError(f"it holds no rows; looked for {LOOKED_FOR}", where=f"folder {place}", remedy=_REMEDY)
    if len(found) > 1:
        examples = "; ".join(f"{layout}: {next(iter(files.values())).name}" for layout, files in sorted(found.items()))
        raise EngcmpError(f"rows of several layouts ({examples})", where=f"folder {place}", remedy=_REMEDY)
    ((layout, files),) = found.items()
    missing = {window_id: path for window_id, path in tensors.items() if window_id not in files}
    return RowFolder(place, layout, files | missing)


def open_rows(place: Path | RowFolder, window_id: str) -> RowSource:
    """The full rows of a window; for many windows give what find_rows found.

    Raises EngcmpError naming window and file for rows that are missing, damaged, foreign, of another window, or not full.
    """
    folder, path = _file_of(place, window_id)
    if folder.layout == "full":
        return full_rows.open_full(path, window_id)
    if folder.layout == "teacher":
        root = folder.place if folder.place.is_dir() else folder.place.parent
        return teacher_rows.open_teacher(path, window_id, folder=root)
    if folder.layout == "dump":
        return open_dump(path, window_id)
    raise fault(window_id, f"{folder.layout} rows, full ones are needed", path, remedy=_REMEDY)


def read_top_k(place: Path | RowFolder, window_id: str) -> TopKWindow:
    """The top-K rows of a window. Raises as open_rows."""
    folder, path = _file_of(place, window_id)
    if folder.layout != "topk":
        raise fault(window_id, f"{folder.layout} rows, top-K ones are needed", path, remedy=_REMEDY)
    return read_topk_window(path, window_id)


def read_light(place: Path | RowFolder, window_id: str) -> LightWindow:
    """The light rows of a window. Raises as open_rows."""
    folder, path = _file_of(place, window_id)
    if folder.layout != "light":
        raise fault(window_id, f"{folder.layout} rows, light ones are needed", path, remedy=_REMEDY)
    return read_light_window(path, window_id)


def _file_of(place: Path | RowFolder, window_id: str) -> tuple[RowFolder, Path]:
    check_window_id(window_id)
    folder = place if isinstance(place, RowFolder) else find_rows(place)
    if folder.layout == "dump":
        named = [path for path in folder.files.values() if is_leaf_of(path, window_id)]
        exact = [path for path in named if path.name == window_id]
        named = exact or named
    else:
        named = [folder.files[window_id]] if window_id in folder.files else []
    if len(named) > 1:
        names = ", ".join(path.name for path in named[:3])
        raise EngcmpError(
            f"window {window_id}: several dumps are its by their names: {names}", where=f"folder {folder.place}",
            remedy=f"keep one, or name it {window_id}",
        )  # fmt: skip
    if not named:
        has = ", ".join(list(folder.files)[:5])
        raise EngcmpError(
            f"window {window_id}: no rows of it; there are {len(folder.files)} windows in {folder.layout} layout: {has}",
            where=f"folder {folder.place}", remedy="capture or fetch this window too",
        )  # fmt: skip
    return folder, named[0]


def _one_file(path: Path) -> tuple[dict[str, Path], list[Path], list[Path]]:
    """A file that was named itself: a dump's manifest stands for its folder, and a file of tensors says its window or is named after it."""
    if path.name == MANIFEST:
        return {}, [], [path.parent]
    if path.suffix == ".parquet":
        return {}, [path], []
    said = map_tensors(path, window_id=path.stem).metadata.get("window_id", path.stem)
    return {said: path}, [], []


def _visible(folder: Path, pattern: str) -> list[Path]:
    """Files in the folder; what begins with a dot is unfinished or the system's."""
    return sorted(path for path in folder.glob(pattern) if not path.name.startswith("."))


def _leaves(folder: Path) -> list[Path]:
    """The folders of dumps: this one, or those in it."""
    leaves = [path.parent for path in sorted(folder.glob(f"*/{MANIFEST}")) if not path.parent.name.startswith(".")]
    return [folder] if _visible(folder, MANIFEST) else leaves


def _listed(folder: Path) -> dict[str, Path]:
    """Files of tensors by window: as a list of files that lies in the folder says, else by their names."""
    if _visible(folder, MANIFEST):
        return {}  # the rows of a dump
    for name, key, window_key in _LISTS:
        path = folder / name
        if not path.is_file():
            continue
        data = small_file(path, most_bytes=_MOST_LIST_BYTES, window_id="")
        document = parse_json(data, what=name, where=f"file {path}", remedy=_REMEDY)
        entries = document.get(key) if isinstance(document, dict) else None
        if isinstance(entries, list) and entries and all(_names_window(entry, window_key) for entry in entries):
            return _files_listed(entries, window_key, path)
    return {path.stem: path for path in _visible(folder, "*.safetensors")}


def _names_window(entry: Any, window_key: str) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get(window_key), str) and "path" in entry


def _files_listed(entries: list[dict[str, Any]], window_key: str, listed_in: Path) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for entry in entries:
        if entry[window_key] in files:
            raise fault(entry[window_key], "listed twice", listed_in, remedy="list each window once")
        files[entry[window_key]] = inside(listed_in.parent, entry["path"], listed_in=listed_in)
    return files


def _layout_of(path: Path, window_id: str) -> Layout:
    """Told from the names of the file's tensors. Raises EngcmpError for other names, and for those of two layouts at once."""
    names = tensor_names(path, window_id=window_id)
    found: list[Layout] = []
    if names >= full_rows.NAMES:
        found.append("full")
    if names >= topk_rows.NAMES:
        found.append("topk")
    if names == teacher_rows.NAMES:
        found.append("teacher")
    if len(found) == 1:
        return found[0]
    held = (", ".join(sorted(names)) or "nothing")[:300]
    hint = f"; a dump's rows need their {MANIFEST}" if names == {TENSOR} else ""
    what = "tensors of several layouts" if found else "tensors of no layout"
    raise fault(window_id, f"{what}: it holds {held}; looked for {LOOKED_FOR}{hint}", path, remedy=_REMEDY)


def _by_window(paths: list[Path]) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for path in paths:
        for window_id in light_windows(path):
            if window_id in files:
                raise fault(
                    window_id, f"it has rows in {files[window_id].name} too", path, remedy="keep one of the two"
                )
            files[window_id] = path
    return files
