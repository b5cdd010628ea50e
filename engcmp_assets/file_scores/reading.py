"""Stream a panel's windows through the scorer: every row is read once, the next ones while these are computed, and given back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engcmp_assets.file_scores.measuring import REFERENCE, Measured, Pair, Part, lacking, measure
from engcmp_assets.kernel.light_measures import LightRows, light_rows
from engcmp_assets.kernel.panel_files import check_ids, check_roles, check_width, refuse_bad_rows, rows_of
from engcmp_assets.kernel.records import Missing, Panel, Window
from engcmp_assets.kernel.rounding import rounded_to
from engcmp_assets.kernel.topk_measures import TopKRows
from engcmp_assets.scores.alignment import Alignment, check_alignment
from engcmp_resources.errors import EngcmpError
from engcmp_resources.row_layouts.finding import RowFolder, open_rows, read_light, read_top_k
from engcmp_resources.row_layouts.light_rows import LightFile, LightWindow
from engcmp_resources.row_layouts.source import RowSource
from engcmp_resources.row_layouts.topk_rows import TopKWindow

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
# What one turn holds of all sides at once; the next turn's rows come beside it.
_TURN_BYTES = 96 << 20
# Files that are read at once: from a cold disk one reader waits for each answer before it asks again, two keep it busy.
_READERS = 2


@dataclass(slots=True)
class Scored:
    """What the rows give: for each arm its measures by id, float64 [rows]; for each pair of arms its distance and equality.

    Rows are in the order of the panel: window by window, position by position. `lacking` are the measures that an arm of light rows, and
    `not_of_pair` those that a pair cannot give, each with its reason. `files` are the files read, with their sizes;
    `rounded` by arm and window the decimal step that light rows were rounded to, None where they were not;
    `chunks` the lengths of the prefill chunks by arm and window, where the capture recorded them.
    """

    measures: dict[str, dict[str, Float64]] = field(default_factory=dict)
    pairs: dict[Pair, dict[str, Float64]] = field(default_factory=dict)
    lacking: dict[str, dict[str, Missing]] = field(default_factory=dict)
    not_of_pair: dict[Pair, dict[str, Missing]] = field(default_factory=dict)
    alignment: dict[str, Alignment] = field(default_factory=dict)
    files: dict[str, dict[str, int]] = field(default_factory=dict)
    chunks: dict[str, dict[str, tuple[int, ...]]] = field(default_factory=dict)
    rounded: dict[str, dict[str, float | None]] = field(default_factory=dict)

    def step_of(self, arm: str) -> float | None:
        """The finest decimal step that all light rows of an arm were rounded to; None where not all were, and for full rows."""
        steps = [step for step in self.rounded.get(arm, {}).values() if step is not None]
        return min(steps) if steps and len(steps) == len(self.rounded[arm]) else None


@dataclass(frozen=True, slots=True)
class _Turn:
    """Some rows of one window, on every side: `places` are their indices in each side's file, `tokens` those that they predict."""

    window: Window
    tokens: Int64
    sources: Mapping[str, RowSource]
    lights: Mapping[str, LightWindow]
    places: Mapping[str, Int64]
    top_k: TopKWindow | None
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start

    @property
    def positions(self) -> tuple[int, ...]:
        return self.window.positions[self.start : self.stop]

    def part(self, start: int, stop: int) -> _Turn:
        """Some of the turn's rows, counted from its first."""
        places = {name: found[start:stop] for name, found in self.places.items()}
        first, last = self.start + start, self.start + stop
        return replace(self, tokens=self.tokens[start:stop], places=places, start=first, stop=last)

    def files(self, *names: str) -> str:
        """The files of these sides, for an error."""
        paths = [self._path(name) for name in names]
        return ("file " if len(paths) == 1 else "files ") + " and ".join(str(path) for path in paths)

    def _path(self, name: str) -> Path:
        if name == REFERENCE and self.top_k:
            return self.top_k.path
        return self.lights[name].path if name in self.lights else self.sources[name].path

    def each(self) -> Iterator[tuple[RowSource, int, int]]:
        for name, source in self.sources.items():
            for first, last in _spans(self.places[name]):
                yield source, first, last

    def block(self, name: str) -> Array:
        source, parts = self.sources[name], _spans(self.places[name])
        blocks = [source.block(first, last) for first, last in parts]
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)

    def light(self, name: str, vocab: int) -> LightRows:
        own, file = self.places[name], self.lights[name]
        return light_rows(
            file.top_ids[own], file.top_log_probs[own], file.next_token_log_prob[own], self.tokens,
            vocab=vocab, where=f"arm {name}, {self.files(name)}",
        )  # fmt: skip

    def stored(self) -> TopKRows | None:
        """The rows of a top-K reference."""
        if self.top_k is None:
            return None
        own, file = self.places[REFERENCE], self.top_k
        return TopKRows(
            file.top_ids[own], file.top_log_probs[own], file.tail_log_mass[own], file.next_token_log_prob[own]
        )

    def rows_of_all(self, vocab: int) -> Part:
        """The rows of every side."""
        full = {name: self.block(name) for name in self.sources}
        light = {name: self.light(name, vocab) for name in self.lights}
        return Part(self.tokens, full, light, self.stored(), self.files)


def score_files(
    panel: Panel,
    reference: RowFolder | None,
    arms: Mapping[str, RowFolder],
    pairs: Sequence[tuple[str, str]],
    *,
    jobs: int = 1,
    progress: Callable[[int, str], None] = lambda _rows, _words: None,
) -> Scored:
    """Score every arm against the reference (None: a panel without one), and hold the rows of `pairs` against each other.

    `jobs` threads share the rows of a full reference (a top-K one is scored on one); the result is the same bits for any number.
    `progress` is told how many rows are done, and where.

    Raises EngcmpError naming arm, file, window and row for rows that are missing, damaged, foreign or bad; then there is no result.
    """

    def score(turn: _Turn) -> Measured:
        return measure(turn.rows_of_all(panel.vocab), panel.reference, list(arms), pairs, jobs=jobs)

    scored = Scored()
    parts: list[Measured] = []
    tops: dict[str, dict[str, list[Int64]]] = {name: {} for name in arms}
    done = 0
    for _ in _windows(panel, reference, arms, scored):
        pass  # what is missing or damaged anywhere is said before the first row is read
    with ThreadPoolExecutor(_READERS, thread_name_prefix="read-ahead") as readers:
        for turn in _ahead(_turns(_windows(panel, reference, arms, scored), panel.vocab), readers):
            try:
                found = score(turn)
            except EngcmpError as error:
                raise _of_first_bad_row(turn, error, score) from error
            parts.append(found)
            for name in arms:
                tops[name].setdefault(turn.window.window_id, []).append(found.tops[name])
            for source, first, last in turn.each():
                source.release(first, last)
            done += turn.rows
            progress(done, f"window {turn.window.window_id}")
    for name, folder in arms.items():
        scored.measures[name] = _joined([part.measures[name] for part in parts])
        scored.lacking[name] = lacking(panel.reference, light=folder.layout == "light")
        windows = [(window, np.concatenate(tops[name][window.window_id])) for window in panel.windows]
        scored.alignment[name] = _aligned(name, folder, check_alignment(windows))
    for pair in pairs:
        scored.not_of_pair[pair] = {one: why for part in parts for one, why in part.missing[pair].items()}
        kept = [
            {one: values for one, values in part.distances[pair].items() if one not in scored.not_of_pair[pair]}
            for part in parts
        ]
        scored.pairs[pair] = _joined(kept)
    return scored


def _windows(
    panel: Panel, reference: RowFolder | None, arms: Mapping[str, RowFolder], scored: Scored
) -> Iterator[_Turn]:
    """All rows of each window; files are opened and checked, rows not yet read."""
    light = {name: folder for name, folder in arms.items() if folder.layout == "light"}
    full = {name: folder for name, folder in arms.items() if name not in light}
    names = [window.window_id for window in panel.windows]
    shared = {path: LightFile(path, names) for folder in light.values() for path in _of_many_windows(folder)}
    if reference is not None and panel.reference == "full":
        full = {REFERENCE: reference} | full
    for window in panel.windows:
        sources = {name: open_rows(folder, window.window_id) for name, folder in full.items()}
        places = {}
        for name, source in sources.items():
            check_width(source, source.vocab, panel, arm=name)
            places[name] = rows_of(source, window, arm=name)
            scored.files.setdefault(name, {})[str(source.path)] = source.bytes_on_disk
            if (lengths := source.chunk_lengths) is not None:
                scored.chunks.setdefault(name, {})[window.window_id] = lengths
        lights = {}
        for name, folder in light.items():
            path = folder.files.get(window.window_id)
            own = shared[path].window(window.window_id) if path in shared else read_light(folder, window.window_id)
            lights[name] = own
            logarithms = np.append(own.top_log_probs, own.next_token_log_prob)
            scored.rounded.setdefault(name, {})[window.window_id] = rounded_to(logarithms)
            places[name] = rows_of(own, window, arm=name, next_token_ids=own.next_token_ids)
            check_ids(own, own.top_ids[places[name]], window.positions, panel.vocab, arm=name)
            scored.files.setdefault(name, {})[str(own.path)] = own.bytes_on_disk
        top_k = None
        if panel.reference == "topk" and reference is not None:
            top_k = read_top_k(reference, window.window_id)
            found = rows_of(top_k, window, arm=REFERENCE, next_token_ids=top_k.next_token_ids)
            check_ids(top_k, top_k.top_ids[found], window.positions, panel.vocab, arm=REFERENCE)
            check_roles(top_k, top_k.roles[found], window, arm=REFERENCE)
            places[REFERENCE] = found
            scored.files.setdefault(REFERENCE, {})[str(top_k.path)] = top_k.bytes_on_disk
        tokens = np.asarray(window.next_tokens, dtype=np.int64)
        yield _Turn(window, tokens, sources, lights, places, top_k, 0, len(tokens))


def _of_many_windows(folder: RowFolder) -> set[Path]:
    """The files that hold the rows of several windows."""
    counts = Counter(folder.files.values())
    return {path for path, windows in counts.items() if windows > 1}


def _turns(windows: Iterator[_Turn], vocab: int) -> Iterator[_Turn]:
    for whole in windows:
        step = max(1, _TURN_BYTES // (max(1, len(whole.sources)) * vocab * np.dtype(np.float32).itemsize))
        for start in range(0, whole.rows, step):
            yield whole.part(start, min(start + step, whole.rows))


def _ahead(turns: Iterator[_Turn], readers: ThreadPoolExecutor) -> Iterator[_Turn]:
    """Each turn, while the rows of the next one are read from the disk beside it, several sides at once."""
    waiting: list[tuple[_Turn, list[Future[None]]]] = []
    for turn in turns:
        waiting.append((turn, [readers.submit(source.prefetch, first, last) for source, first, last in turn.each()]))
        if len(waiting) > 1:
            yield _read(*waiting.pop(0))
    for one in waiting:
        yield _read(*one)


def _read(turn: _Turn, asked: list[Future[None]]) -> _Turn:
    for one in asked:
        one.result()
    return turn


def _of_first_bad_row(turn: _Turn, error: EngcmpError, score: Callable[[_Turn], Measured]) -> EngcmpError:
    """`error`, raised by the rows of a turn, as one of its first bad row: with its window and its position."""
    for name, source in turn.sources.items():
        refuse_bad_rows(turn.block(name), turn.positions, source, arm=name)
    for row, position in enumerate(turn.positions):
        try:
            score(turn.part(row, row + 1))
        except EngcmpError as own:
            what = own.what.removeprefix("1 of 1 rows cannot be scored: ").removeprefix("row 0: ")
            return EngcmpError(
                f"window {turn.window.window_id}, the row at position {position}: {what}",
                where=own.where,
                remedy=error.remedy,
            )
    return error


def _joined(parts: Sequence[Mapping[str, Float64]]) -> dict[str, Float64]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _aligned(arm: str, folder: RowFolder, found: Alignment) -> Alignment:
    """Refuse rows that belong to the token before or after: such figures look plausible and mean nothing."""
    if found.verdict == "misaligned":
        raise EngcmpError(
            f"arm {arm}: its rows are not those of its tokens: {found.explanation}", where=f"folder {folder.place}",
            remedy="row r is the distribution after tokens 0..r: mend the capture, or its positions",
        )  # fmt: skip
    return found


def _spans(indices: Int64) -> list[tuple[int, int]]:
    """`indices` as (start, stop) of consecutive ones, in their order: blocks that are read at once."""
    breaks = np.flatnonzero(np.diff(indices) != 1) + 1
    return [(int(part[0]), int(part[-1]) + 1) for part in np.split(indices, breaks)]
