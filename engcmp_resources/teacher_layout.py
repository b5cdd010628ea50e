"""A published teacher's files laid out as `engcmp score` reads a reference: each window's rows beside its token array, by links.

Nothing is copied: the rows of one window weigh 1.3 GB. Every file is held against what its set says of it before a link is made.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from engcmp_resources.canonical import sha256_file
from engcmp_resources.checkpoint_relations import tensor_header
from engcmp_resources.disk import disk_errors, make_folder
from engcmp_resources.errors import EngcmpError

Say = Callable[[str], None]
_LINE = re.compile(r"([0-9a-f]{64}) [ *](?:\./)?(.+)")
_FETCH = "fetch the set again at its revision"


@dataclass(frozen=True, slots=True)
class TeacherWindow:
    """A window as it lies in the published set: its id, and its two files (paths with / below the set's folder)."""

    window_id: str
    rows: str
    tokens: str


def lay_out(
    source: Path, target: Path, windows: Sequence[TeacherWindow], *, vocab: int, mask: str | None = None,
    digests: Mapping[str, str] | None = None, say: Say = lambda _: None,
) -> dict[str, tuple[int, ...]]:  # fmt: skip
    """Link every window's files into `target` as `<window_id>.safetensors` and `<window_id>.tokens.npy`; the tokens of each by its id.

    A rows file has one tensor `logits`, F32 [n-1, vocab], for n tokens (int32); `mask` is an array of ones, as long as a window. Files that
    `digests` (SHA-256 by path, as `sums_of` reads them) names are hashed. Raises EngcmpError naming window and file for anything else.
    """
    found: dict[str, tuple[int, ...]] = {}
    known = digests or {}
    for window in windows:
        say(f"window {window.window_id}")
        tokens = window_tokens(source, window.window_id, window.tokens, vocab)
        check_teacher_rows(source, window.window_id, window.rows, (len(tokens) - 1, vocab))
        for name in (window.rows, window.tokens):
            if name in known and sha256_file(source / name) != known[name]:
                raise _fault(window.window_id, name, "has another SHA-256 than its set says")
        found[window.window_id] = tokens
    if mask is not None:
        _check_mask(source, mask, {len(tokens) for tokens in found.values()})
        if mask in known and sha256_file(source / mask) != known[mask]:
            raise EngcmpError(
                f"file {mask} has another SHA-256 than its set says", where=str(source / mask), remedy=_FETCH
            )
    with disk_errors(target):
        make_folder(target)
        for window in windows:
            for name, suffix in ((window.rows, "safetensors"), (window.tokens, "tokens.npy")):
                _link(target / f"{window.window_id}.{suffix}", (source / name).resolve())
    return found


def sums_of(path: Path) -> dict[str, str]:
    """The digests of a list as sha256sum writes it, by path. Raises EngcmpError naming the first line that is none."""
    found: dict[str, str] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = _LINE.fullmatch(line)
        if match is None or found.get(match[2], match[1]) != match[1]:
            raise EngcmpError(f"line {number} is no digest of one file", where=str(path), remedy=_FETCH)
        found[match[2]] = match[1]
    return found


def window_tokens(source: Path, window_id: str, name: str, vocab: int) -> tuple[int, ...]:
    """The token ids of a window, of its file `name` below `source`: int32 of one dimension. Raises EngcmpError for anything else."""
    array = _array(source, name, f"window {window_id}")
    if array.dtype.str != "<i4" or array.ndim != 1 or len(array) < 2:  # noqa: PLR2004 - a row needs two tokens
        raise _fault(window_id, name, f"is {array.dtype} {list(array.shape)}, not int32 of one dimension")
    if array.min() < 0 or array.max() >= vocab:
        raise _fault(window_id, name, f"has a token outside the vocabulary of {vocab:,}")
    return tuple(int(token) for token in array)


def check_teacher_rows(source: Path, window_id: str, name: str, shape: tuple[int, int]) -> None:
    """Raise EngcmpError unless the file `name` below `source` has one tensor `logits`, F32 of this shape."""
    path = source / name
    if not path.is_file():
        raise _fault(window_id, name, "is missing")
    tensors = tensor_header(path)
    if set(tensors) != {"logits"} or (tensors["logits"].dtype, tensors["logits"].shape) != ("F32", shape):
        told = ", ".join(f"{name} {one.dtype} {list(one.shape)}" for name, one in sorted(tensors.items()))
        raise _fault(window_id, name, f"holds {told or 'nothing'}, not logits F32 {list(shape)}")


def _check_mask(source: Path, mask: str, lengths: set[int]) -> None:
    array = _array(source, mask, "the mask")
    if array.ndim != 1 or {len(array)} != lengths or not (array == 1).all():
        raise EngcmpError(
            f"the mask {mask} is no array of ones as long as a window: some positions would not be scored", where=str(source / mask),
            remedy="score by hand what such a mask leaves, or fetch the declared set",
        )  # fmt: skip


def _array(source: Path, name: str, what: str) -> npt.NDArray[np.generic]:
    path = source / name
    try:
        found: npt.NDArray[np.generic] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, SyntaxError) as error:
        raise EngcmpError(f"{what}: file {name} is no array: {error}", where=str(path), remedy=_FETCH) from error
    return found


def _link(link: Path, to: Path) -> None:
    """A symbolic link that appears whole; one that is there already must lead to the same file."""
    if link.is_symlink() or link.exists():
        if link.resolve() != to:
            raise EngcmpError(
                f"{link.name} is there already and leads elsewhere", where=str(link), remedy="name an empty folder"
            )
        return
    partial = link.with_name(f".{link.name}.{os.getpid()}.partial")
    partial.symlink_to(to)
    partial.replace(link)


def _fault(window_id: str, name: str, what: str) -> EngcmpError:
    return EngcmpError(f"window {window_id}: file {name} {what}", where=f"window {window_id}", remedy=_FETCH)
