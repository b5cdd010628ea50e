"""Stream a panel's windows through the scorer: every row is read once, the next ones while these are computed, and given back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from engcmp_assets.kernel.measures import ROW_MEASURES, TOPK_ROW_MEASURES
from engcmp_assets.kernel.panel_files import check_ids, check_roles, check_width, refuse_bad_rows, rows_of
from engcmp_assets.kernel.records import Panel, Window
from engcmp_assets.kernel.row_measures import pair_kl, score_rows
from engcmp_assets.kernel.topk_measures import ReducedRows, TopKRows, pair_coarse, reduce_rows, score_topk
from engcmp_assets.scores.alignment import Alignment, check_alignment
from engcmp_resources.errors import EngcmpError
from engcmp_resources.row_layouts.finding import RowFolder, open_rows, read_top_k
from engcmp_resources.row_layouts.source import RowSource
from engcmp_resources.row_layouts.topk_rows import TopKWindow

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
# What one turn holds of all sides at once; the next turn's rows come beside it.
_TURN_BYTES = 96 << 20
# Files that are read at once: from a cold disk one reader waits for each answer before it asks again, two keep it busy.
_READERS = 2
WITHOUT_REFERENCE = ("nll", "entropy", "agree_text")
REFERENCE = "reference"  # its name among the sides; no arm may have it
_TOP_PROBABILITY = "reference_top_probability"
# What one arm, or one pair of arms, gives of some rows.
_Found = tuple[dict[str, dict[str, Float64]], dict[str, Int64], dict[tuple[str, str], dict[str, Float64]]]


@dataclass(slots=True)
class Scored:
    """What the rows give: for each arm its measures by id, float64 [rows]; for each pair of arms its distance and equality.

    Rows are in the order of the panel: window by window, position by position. `files` are the files read, with their sizes.
    """

    measures: dict[str, dict[str, Float64]] = field(default_factory=dict)
    pairs: dict[tuple[str, str], dict[str, Float64]] = field(default_factory=dict)
    alignment: dict[str, Alignment] = field(default_factory=dict)
    files: dict[str, dict[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Turn:
    """Some rows of one window, on every side: `places` are their indices in each side's file, `tokens` those that they predict."""

    window: Window
    tokens: Int64
    sources: Mapping[str, RowSource]
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
        paths = [self.top_k.path if name == REFERENCE and self.top_k else self.sources[name].path for name in names]
        return ("file " if len(paths) == 1 else "files ") + " and ".join(str(path) for path in paths)

    def each(self) -> Iterator[tuple[RowSource, int, int]]:
        for name, source in self.sources.items():
            for first, last in _spans(self.places[name]):
                yield source, first, last

    def block(self, name: str) -> Array:
        source, parts = self.sources[name], _spans(self.places[name])
        blocks = [source.block(first, last) for first, last in parts]
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)


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

    def score(turn: _Turn) -> _Found:
        return _score(turn, panel, list(arms), pairs, jobs)

    scored = Scored()
    parts: dict[str, list[Mapping[str, Float64]]] = {name: [] for name in arms}
    pair_parts: dict[tuple[str, str], list[Mapping[str, Float64]]] = {pair: [] for pair in pairs}
    tops: dict[str, dict[str, list[Int64]]] = {name: {} for name in arms}
    done = 0
    for _ in _windows(panel, reference, arms, scored):
        pass  # what is missing or damaged anywhere is said before the first row is read
    with ThreadPoolExecutor(_READERS, thread_name_prefix="read-ahead") as readers:
        for turn in _ahead(_turns(_windows(panel, reference, arms, scored), panel.vocab), readers):
            try:
                found, own_tops, distances = score(turn)
            except EngcmpError as error:
                raise _of_first_bad_row(turn, error, score) from error
            for name in arms:
                parts[name].append(found[name])
                tops[name].setdefault(turn.window.window_id, []).append(own_tops[name])
            for pair in pairs:
                pair_parts[pair].append(distances[pair])
            for source, first, last in turn.each():
                source.release(first, last)
            done += turn.rows
            progress(done, f"window {turn.window.window_id}")
    for name in arms:
        scored.measures[name] = _joined(parts[name])
        windows = [(window, np.concatenate(tops[name][window.window_id])) for window in panel.windows]
        scored.alignment[name] = _aligned(name, arms[name], check_alignment(windows))
    scored.pairs = {pair: _joined(pair_parts[pair]) for pair in pairs}
    return scored


def measures_of(panel: Panel) -> tuple[str, ...]:
    """The measures of single rows that a panel's reference allows."""
    if panel.reference == "full":
        return ROW_MEASURES
    return TOPK_ROW_MEASURES if panel.reference == "topk" else WITHOUT_REFERENCE


def _windows(
    panel: Panel, reference: RowFolder | None, arms: Mapping[str, RowFolder], scored: Scored
) -> Iterator[_Turn]:
    """All rows of each window; files are opened and checked, rows not yet read."""
    full = {**({REFERENCE: reference} if reference is not None and panel.reference == "full" else {}), **arms}
    for window in panel.windows:
        sources = {name: open_rows(folder, window.window_id) for name, folder in full.items()}
        places = {}
        for name, source in sources.items():
            check_width(source, source.vocab, panel, arm=name)
            places[name] = rows_of(source, window, arm=name)
            scored.files.setdefault(name, {})[str(source.path)] = source.bytes_on_disk
        top_k = None
        if panel.reference == "topk" and reference is not None:
            top_k = read_top_k(reference, window.window_id)
            found = rows_of(top_k, window, arm=REFERENCE, next_token_ids=top_k.next_token_ids)
            check_ids(top_k, top_k.top_ids[found], window.positions, panel.vocab, arm=REFERENCE)
            check_roles(top_k, top_k.roles[found], window, arm=REFERENCE)
            places[REFERENCE] = found
            scored.files.setdefault(REFERENCE, {})[str(top_k.path)] = top_k.bytes_on_disk
        tokens = np.asarray(window.next_tokens, dtype=np.int64)
        yield _Turn(window, tokens, sources, places, top_k, 0, len(tokens))


def _turns(windows: Iterator[_Turn], vocab: int) -> Iterator[_Turn]:
    for whole in windows:
        step = max(1, _TURN_BYTES // (len(whole.sources) * vocab * np.dtype(np.float32).itemsize))
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


def _score(turn: _Turn, panel: Panel, arms: Sequence[str], pairs: Sequence[tuple[str, str]], jobs: int) -> _Found:
    """Measures and first choices of each arm, and the distances of each pair, on the turn's rows."""
    blocks = {name: turn.block(name) for name in turn.sources}
    found: dict[str, dict[str, Float64]] = {}
    tops: dict[str, Int64] = {}
    reduced: dict[str, ReducedRows] = {}
    for name in arms:
        if panel.reference == "topk":
            where, stored = f"arm {name}, {turn.files(name, REFERENCE)}", _stored(turn)
            reduced[name] = reduce_rows(blocks[name], stored.top_ids, turn.tokens, where=where)
            of_top_k = score_topk(stored, reduced[name], where=where)
            found[name] = {one: getattr(of_top_k, one) for one in TOPK_ROW_MEASURES}
            tops[name] = reduced[name].argmax
            continue
        other, extra = (REFERENCE, (_TOP_PROBABILITY,)) if panel.reference == "full" else (name, ())
        where = f"arm {name}, {turn.files(*dict.fromkeys((name, other)))}"
        scores = score_rows(blocks[other], blocks[name], turn.tokens, where=where, jobs=jobs)
        found[name] = {one: getattr(scores, one) for one in (*measures_of(panel), *extra)}
        tops[name] = scores.engine_top_id
    distances = {}
    for a, b in pairs:
        where = f"arms {a} and {b}, {turn.files(a, b)}"
        if panel.reference == "topk":
            own = {"kl_pair_coarse": pair_coarse(reduced[a], reduced[b], where=where)}
        else:
            own = {"kl_pair_full": pair_kl(blocks[a], blocks[b], where=where, jobs=jobs)}
        distances[(a, b)] = own | {"rows_bit_identical": _equal_rows(blocks[a], blocks[b])}
    return found, tops, distances


def _of_first_bad_row(turn: _Turn, error: EngcmpError, score: Callable[[_Turn], _Found]) -> EngcmpError:
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
                remedy=own.remedy,
            )
    return error


def _stored(turn: _Turn) -> TopKRows:
    if turn.top_k is None:
        raise EngcmpError("a top-K panel needs a reference", remedy="give --reference")
    own = turn.places[REFERENCE]
    return TopKRows(
        turn.top_k.top_ids[own], turn.top_k.top_log_probs[own], turn.top_k.tail_log_mass[own], turn.top_k.next_token_log_prob[own]
    )  # fmt: skip


def _equal_rows(a: Array, b: Array) -> Float64:
    """1 where two raw rows have the same bits and type, else 0."""
    if a.dtype != b.dtype:
        return np.zeros(len(a))
    bits = np.dtype(f"u{a.dtype.itemsize}")
    return np.array([np.array_equal(x.view(bits), y.view(bits)) for x, y in zip(a, b, strict=True)], dtype=np.float64)


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
