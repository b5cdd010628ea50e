"""The plots of throughput are deterministic and small; what has no ratio is words, and the band is in view only where there is one."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from PIL import Image

from engcmp_assets.kernel.plots import WIDTH_PX
from engcmp_assets.kernel.records import Interval, Missing
from engcmp_assets.kernel.throughput.bands import DriftRatio, NoBand, NoiseBand
from engcmp_assets.kernel.throughput.ratios import CellRatio, MeasureRatios
from engcmp_assets.kernel.throughput.speed_plots import decode_against_overlap, ratio_dots
from engcmp_resources.errors import EngcmpError

BLUE, RED, BAND = (0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00), (0xE3, 0xE5, 0xE8)
NONE = Missing("1 batch has a value on both arms: an interval needs at least 8")


def cell(name: str, ratio: float | Missing, verdict: str, interval: Interval | Missing = NONE) -> CellRatio:
    drift = (DriftRatio("a", name, "again", 1.02),)
    return CellRatio(name, "decode_tok_s", ratio, 1.0, ratio, verdict, interval, drift, ())


FOUND = MeasureRatios(
    "decode_tok_s",
    "higher",
    NoiseBand(0.08, 0.08, 0.02, ()),
    (
        cell("code 1K", 1.4, "faster", Interval(1.3, 1.5, 0.95, "bootstrap")),
        cell("code 8K", 0.7, "slower"),
        cell("prose 8K", Missing("2 of 8 requests failed"), "not comparable"),
    ),
    {},
    "",
    (),
)
STREAMS = {
    "a": pl.DataFrame({"overlap": [0.0, 0.5, None], "decode": [90.0, 60.0, None]}),
    "b": pl.DataFrame({"overlap": [0.01, 0.3], "decode": [91.0, 70.0]}),
}


def count(png: bytes, colour: tuple[int, int, int]) -> int:
    return int((np.asarray(Image.open(io.BytesIO(png)).convert("RGB")) == colour).all(axis=2).sum())


def test_the_same_ratios_and_streams_give_the_same_small_files() -> None:
    for png in (ratio_dots("Decode", FOUND), decode_against_overlap("Decode", STREAMS)):
        image = Image.open(io.BytesIO(png))
        assert image.width == WIDTH_PX and len(png) < 80_000 and image.info == {}
    assert ratio_dots("Decode", FOUND) == ratio_dots("Decode", FOUND)
    assert decode_against_overlap("Decode", STREAMS) == decode_against_overlap("Decode", STREAMS)
    assert Image.open(io.BytesIO(ratio_dots("Decode", FOUND, pixel_ratio=2))).width == 2 * WIDTH_PX


def test_a_verdict_has_its_colour_whichever_others_are_in_the_plot() -> None:
    for place, colour in ((0, BLUE), (1, RED)):
        alone = replace(FOUND, cells=FOUND.cells[place : place + 1])
        assert count(ratio_dots("Decode", alone), colour) > 20


def test_a_cell_that_is_not_comparable_is_words_and_no_dot() -> None:
    alone = replace(FOUND, cells=FOUND.cells[2:])
    png = ratio_dots("Decode", alone)
    assert count(png, BLUE) == count(png, RED) == 0
    other = replace(alone, cells=(cell("prose 8K", Missing("the engine died"), "not comparable"),))
    assert ratio_dots("Decode", other) != png


def test_the_band_is_shaded_where_there_is_one() -> None:
    bare = replace(FOUND, band=NoBand("no floor", "no drift repeat of base"))
    bare = replace(bare, cells=tuple(replace(one, verdict="no floor") for one in FOUND.cells[:2]))
    assert count(ratio_dots("Decode", FOUND), BAND) > count(ratio_dots("Decode", bare), BAND) + 5_000


def test_a_plot_of_streams_without_any_rate_is_refused() -> None:
    none = pl.DataFrame({"overlap": [None], "decode": [None]}, schema={"overlap": pl.Float64, "decode": pl.Float64})
    with pytest.raises(EngcmpError, match="no stream with a decode rate"):
        decode_against_overlap("Decode", {"a": none})
    assert decode_against_overlap("Decode", {"a": none, "b": STREAMS["b"]})
