"""Files that are cut short while they are mapped: an error that names the file, and never the end of the process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from writing import save_raw

sys.path.append(str(Path(__file__).parent.parent / "file_scores"))

from made import made

from engcmp_assets.file_scores.reading import score_files
from engcmp_assets.kernel.panel_files import parse_panel_file
from engcmp_resources.errors import EngcmpError
from engcmp_resources.row_layouts import cut_files, tensor_map
from engcmp_resources.row_layouts.finding import find_rows
from engcmp_resources.row_layouts.full_rows import open_full

ROWS, VOCAB = 64, 4096
CUT = 100_000  # bytes that are left
needs_handler = pytest.mark.skipif(sys.platform != "linux", reason="rows are copied there, so no page can be gone")


def row_file(folder: Path) -> Path:
    path = folder / "w1.safetensors"
    values = np.arange(ROWS * VOCAB, dtype=np.float32).reshape(ROWS, VOCAB)
    return save_raw(path, {"positions": ("I32", np.arange(ROWS, dtype=np.int32)), "logits": ("F32", values)})


@needs_handler
def test_rows_that_are_gone_are_an_error_when_they_are_given_back(tmp_path: Path) -> None:
    path = row_file(tmp_path)
    source = open_full(path, "w1")
    block = source.block(0, ROWS)
    os.truncate(path, CUT)
    assert block[-1].max() == 0  # SIGBUS, were it not caught
    with pytest.raises(EngcmpError, match=r"window w1: cut from 1,048,\d\d\d to 100,000 bytes while it is read"):
        source.release(0, ROWS)


@pytest.mark.parametrize("step", ["prefetch", "block", "release"])
def test_every_step_tells_a_cut_file(tmp_path: Path, step: str) -> None:
    source = open_full(row_file(tmp_path), "w1")
    os.truncate(source.path, CUT)
    with pytest.raises(EngcmpError, match=r"window w1: cut from .*file .*w1\.safetensors"):
        getattr(source, step)(0, ROWS)


def test_without_the_handler_rows_are_copied_and_a_cut_file_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = row_file(tmp_path)
    in_place = open_full(path, "w1").block(3, 9)
    monkeypatch.setattr(tensor_map, "announce", lambda _data: False)
    source = open_full(path, "w1")
    source.prefetch(3, 9)
    copied = source.block(3, 9)
    assert copied.tolist() == in_place.tolist() and copied.flags.owndata and not in_place.flags.owndata
    source.release(3, 9)
    monkeypatch.setattr(type(source.file), "refuse_shorter", lambda _self: None)  # cut between the look and the read
    os.truncate(path, CUT)
    with pytest.raises(EngcmpError, match=r"window w1: it ends 9\d\d,\d\d\d bytes before its tensor logits"):
        source.block(0, ROWS)


@needs_handler
def test_a_map_that_is_gone_leaves_its_place_to_others(tmp_path: Path) -> None:
    path, free = row_file(tmp_path), len(cut_files._free)
    sources = [open_full(path, "w1") for _ in range(5)]
    assert len(cut_files._free) == free - 5
    rows = sources[0].block(0, 1)
    del sources
    assert len(cut_files._free) == free - 1  # an array of it keeps the map
    del rows
    assert len(cut_files._free) == free


@needs_handler
def test_more_maps_than_there_are_places_are_read_by_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = row_file(tmp_path)
    monkeypatch.setattr(cut_files, "_free", [])
    assert not tensor_map.map_tensors(path, window_id="w1").in_place


@needs_handler
def test_a_fault_in_any_other_map_ends_the_process_as_before(tmp_path: Path) -> None:
    program = """
import mmap, os, sys
import numpy as np
from pathlib import Path
from engcmp_resources.row_layouts.full_rows import open_full
source = open_full(Path(sys.argv[1]), "w1")
other = open(sys.argv[2], "w+b")
other.truncate(1 << 20)
rows = np.frombuffer(mmap.mmap(other.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
other.truncate(100)
print("before", flush=True)
print(rows.max())
"""
    done = subprocess.run(
        [sys.executable, "-c", program, row_file(tmp_path), tmp_path / "other"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout == "before\n" and done.returncode < 0, done


@pytest.mark.parametrize("side", ["reference", "A"])
def test_a_file_that_is_cut_while_a_panel_is_scored_ends_the_scoring_with_its_name(tmp_path: Path, side: str) -> None:
    one = made(tmp_path, windows=6, tokens=40, vocab=5000, sides=("reference", "A"))
    folders = {name: find_rows(one.write(name)) for name in ("reference", "A")}
    panel = parse_panel_file(one.panel.read_bytes(), where="here")
    last = tmp_path / side / "w5.safetensors"
    steps: list[str] = []

    def progress(_rows: int, place: str) -> None:
        steps.append(place)
        if place == "window w2":
            os.truncate(last, 50_000)

    with pytest.raises(EngcmpError, match=r"window w5: .*file .*w5\.safetensors"):
        score_files(panel, folders["reference"], {"A": folders["A"]}, [], progress=progress)
    assert steps[:3] == ["window w0", "window w1", "window w2"]


@needs_handler
def test_rows_that_go_while_they_are_used_are_an_error_of_the_scoring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = made(tmp_path, windows=2, tokens=40, vocab=5000, sides=("reference", "A"))
    folders = {name: find_rows(one.write(name)) for name in ("reference", "A")}
    panel = parse_panel_file(one.panel.read_bytes(), where="here")
    whole = tensor_map.TensorMap.view

    def cut_behind_its_back(self: tensor_map.TensorMap, name: str) -> tensor_map.Array:
        found = whole(self, name)
        if name == "logits" and self.path.parent.name == "A":
            os.truncate(self.path, 50_000)  # after the look at its size, before its pages are touched
        return found

    monkeypatch.setattr(tensor_map.TensorMap, "view", cut_behind_its_back)
    with pytest.raises(EngcmpError, match=r"window w0: cut from .* to 50,000 bytes while it is read"):
        score_files(panel, folders["reference"], {"A": folders["A"]}, [])
