"""A window's way into the store: equal rows share their files, lost files are taken again, bad rows leave nothing.

The engine's part is played by functions that write planted rows where an engine would write its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from homes import quiet, replace_file

from engcmp_assets.captured_rows import rows as taking
from engcmp_assets.captured_rows.journalled import Capture, open_capture
from engcmp_assets.captured_rows.rows import take_window
from engcmp_assets.captured_rows.running import Running
from engcmp_assets.captured_rows.step import captured_made
from engcmp_assets.kernel.panels import Pass, passes
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.window_files import read_full
from engcmp_assets.kernel.work import Session
from engcmp_resources.errors import EngcmpError
from engcmp_resources.row_files import row_hashes
from engcmp_resources.store import Blob, Store

ARM = ArmKey.parse("q4_0/llamacpp@b11549")
WINDOWS = ("code-1", "prose-1")


@pytest.fixture
def capture(home_copy: Path, study: Study) -> Capture:
    """A capture that has begun on two windows: full rows and top-K rows of one, full rows of the other."""
    whole = open_capture(Session(study, Store(home_copy), "test", quiet), ARM, remeasure=True)
    pb, pd = (next(panel for panel in whole.panels if panel.panel == name) for name in ("pb", "pd"))
    return replace(whole, panels=(replace(pb, windows=tuple(w for w in pb.windows if w.window_id == "code-1")), pd))


@pytest.fixture
def reductions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the reductions to the reference's ids, which are really done."""
    counted: list[int] = []
    real = taking.reduce_rows

    def reduce_rows(*arguments: Any, **named: Any) -> Any:
        counted.append(1)
        return real(*arguments, **named)

    monkeypatch.setattr(taking, "reduce_rows", reduce_rows)
    return counted


def planted(seed: int, vocab: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(seed).normal(size=vocab).astype(np.float32)


def engine(seed: int, vocab: int, spoil: Callable[[Any], Any] = lambda rows: rows) -> Running:
    """Writes one planted row, each time times its position + 1."""

    def compute(_window: str, _tokens: Sequence[int], positions: Sequence[int], out: Path) -> None:
        scale = np.asarray(positions, dtype=np.float32)[:, None] / 64 + 1
        spoil(planted(seed, vocab)[None, :] * scale).tofile(out)

    return Running({}, full=compute)


def take(capture: Capture, one: Pass, seed: int, earlier: Sequence[Any] = ()) -> dict[str, Any]:
    return take_window(capture, engine(seed, capture.spec.vocab), capture.launches[0], one, earlier)


def blobs(taken: dict[str, Any]) -> dict[str, Blob]:
    return {panel: Blob(file["sha256"], file["bytes"], "safetensors") for panel, file in taken["files"].items()}


def journal(capture: Capture, launch: int, seed: int) -> list[dict[str, Any]]:
    """Capture and journal what the launch lacks; the repeats of the last window."""
    asked, taken = capture.launches[launch], []
    for one in capture.missing(asked):
        taken = []
        for _ in range(asked.repeats):
            taken.append(take(capture, one, seed, taken))
        capture.add_window(asked, launch + 1, one, taken)
    return taken


def test_each_panel_keeps_its_own_rows_of_one_pass(capture: Capture) -> None:
    one = passes(capture.panels)[0]
    taken = take(capture, one, 1)
    assert set(taken["files"]) == {"pb", "pd"}
    assert set(taken["row_sha256"]) == {str(row) for row in one.positions}
    pd = capture.panels[1]
    window = next(window for window in pd.windows if window.window_id == one.window_id)
    rows = read_full(capture.work.store.path(blobs(taken)["pd"]), window, vocab=pd.vocab)
    assert [taken["row_sha256"][str(row)] for row in window.positions] == row_hashes(rows)


def test_rows_that_are_equal_bit_for_bit_share_their_files_and_are_reduced_once(
    capture: Capture, reductions: list[int]
) -> None:
    one = passes(capture.panels)[0]
    first = take(capture, one, 1)
    assert take(capture, one, 1, [first])["files"] == first["files"]
    capture.add_window(capture.launches[0], 1, one, [first])
    again = take_window(capture, engine(1, capture.spec.vocab), capture.launches[1], one, [])
    assert again == first  # of a later launch, by the journal
    assert len(reductions) == 1


def test_rows_that_differ_are_reduced_and_kept_anew(capture: Capture, reductions: list[int]) -> None:
    one = passes(capture.panels)[0]
    first = take(capture, one, 1)
    other = take(capture, one, 2, [first])
    assert len(reductions) == 2
    assert set(other["files"]) == {"pb", "pd"}
    assert all(other["files"][panel]["sha256"] != first["files"][panel]["sha256"] for panel in first["files"])


@pytest.mark.parametrize("how", ["gone", "changed"])
def test_files_of_equal_rows_are_not_shared_once_they_are(capture: Capture, reductions: list[int], how: str) -> None:
    one = passes(capture.panels)[0]
    first = take(capture, one, 1)
    path = capture.work.store.path(blobs(first)["pb"])
    data = path.read_bytes()
    lose(path, how)
    assert take(capture, one, 1, [first]) == first
    assert path.read_bytes() == data
    assert len(reductions) == 2


def lose(path: Path, how: str) -> None:
    data = path.read_bytes()
    path.unlink()
    if how == "changed":
        replace_file(path, data[:-1] + bytes([data[-1] ^ 1]))


@pytest.mark.parametrize("how", ["gone", "changed"])
def test_a_window_whose_file_was_lost_is_missing_again_and_stands_once_when_it_was_retaken(
    capture: Capture, how: str
) -> None:
    launch = capture.launches[0]
    assert [one.window_id for one in capture.missing(launch)] == list(WINDOWS)
    journal(capture, 0, 1)
    assert capture.missing(launch) == []
    code = next(entry for entry in capture.windows() if entry["window"] == "code-1")
    lose(capture.work.store.path(blobs(code["repeats"][0])["pb"]), how)
    assert [one.window_id for one in capture.missing(launch)] == ["code-1"]
    journal(capture, 0, 2)
    assert capture.missing(launch) == []
    assert sorted(entry["window"] for entry in capture.windows()) == list(WINDOWS)
    assert capture.rows_done() == launch.repeats * sum(len(one.positions) for one in passes(capture.panels))
    made = captured_made(capture.panels[0], capture.windows())
    names = [product.name for product in made.products]
    assert len(names) == len(set(names))
    newest = next(entry for entry in capture.windows() if entry["window"] == "code-1")["repeats"][0]["files"]["pb"]
    assert [p.content.sha256 for p in made.products if isinstance(p.content, Blob)] == [
        newest["sha256"]
    ] * launch.repeats


def test_launches_lack_their_windows_each_on_its_own(capture: Capture) -> None:
    journal(capture, 0, 1)
    assert [one.window_id for one in capture.missing(capture.launches[1])] == list(WINDOWS)
    decode = capture.launches[2]
    assert decode.path == "decode"
    assert [panel.panel for panel in capture.panels_of(decode)] == ["pd"]
    assert [len(one.positions) for one in capture.missing(decode)] == [8, 8]


def test_a_journal_that_is_opened_again_knows_its_windows(capture: Capture, study: Study) -> None:
    journal(capture, 0, 1)
    again = open_capture(Session(study, capture.work.store, "test", quiet), ARM, remeasure=True)
    assert again.windows() == capture.windows()
    assert again.scratch == capture.scratch


SPOILT: dict[str, tuple[Callable[[Any], Any], str]] = {
    "NaN": (lambda rows: np.where(np.arange(len(rows))[:, None] == 1, np.float32("nan"), rows), "1 of .* rows hold NaN"),
    "a row less": (lambda rows: rows[:-1], "values, .* rows of 49152 were asked for"),
}  # fmt: skip


@pytest.mark.parametrize("spoilt", SPOILT)
def test_of_rows_that_no_engine_may_give_nothing_is_kept(capture: Capture, spoilt: str) -> None:
    spoil, words = SPOILT[spoilt]
    store, one = capture.work.store, passes(capture.panels)[1]
    before = files_of(store)
    compute = engine(3, capture.spec.vocab, spoil)
    with pytest.raises(EngcmpError, match=words) as raised:
        take_window(capture, compute, capture.launches[0], one, [])
    assert one.window_id in raised.value.what
    assert files_of(store) == before


def files_of(store: Store) -> list[Path]:
    """All files but this process's mark on its folder of temporary files."""
    found = (path for name in ("store", "scratch") for path in (store.home / name).rglob("*"))
    return sorted(path for path in found if path.is_file() and path.suffix != ".lock")
