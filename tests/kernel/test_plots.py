"""The plots are deterministic, small, and never draw a missing value as zero."""

from __future__ import annotations

import io
import math

import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image

from engcmp_assets.kernel.plots import (
    NOT_DRAWN,
    WIDTH_PX,
    DotRow,
    bars,
    dots_with_intervals,
    format_number,
    format_tick,
    markdown_image,
    needs_log_scale,
    survival,
    undrawn,
)
from engcmp_assets.kernel.records import Missing
from engcmp_resources.errors import EngcmpError

BLUE = (0x00, 0x72, 0xB2)
ROWS = [
    DotRow("q8_0/llamacpp@b11549", 0.00132, 0.0011, 0.0016, "llamacpp", ""),
    DotRow("q4_0/llamacpp@b11549", 0.058, 0.0512, 0.0651, "llamacpp", ""),
]


def pixels(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def blue_pixels(png: bytes) -> int:
    return int((pixels(png) == BLUE).all(axis=2).sum())


def every_plot() -> list[bytes]:
    rng = np.random.default_rng(7)
    series = {"q4_0": rng.exponential(0.06, 4000), "q8_0": np.maximum(rng.exponential(0.002, 384) - 0.001, 0)}
    return [
        bars("Decode", ["a", "b"], [12.0, Missing("was not run")], unit="tok/s", groups=["x", "y"]),
        dots_with_intervals("Distance", ROWS, unit="nats", zero_line=True),
        survival("Tail", series, unit="nats"),
    ]


def test_the_same_data_give_the_same_bytes_whatever_the_user_has_set() -> None:
    first = every_plot()
    with mpl.rc_context({"font.size": 20, "axes.facecolor": "black", "xtick.direction": "in", "figure.dpi": 50}):
        assert every_plot() == first


def test_where_nothing_is_to_be_drawn_every_plot_is_a_placeholder() -> None:
    first = every_plot()
    with undrawn():
        assert every_plot() == [NOT_DRAWN] * 3
        with undrawn():
            pass
        assert every_plot() == [NOT_DRAWN] * 3
    assert every_plot() == first


def test_a_plot_is_small_and_carries_no_metadata() -> None:
    for png in every_plot():
        image = Image.open(io.BytesIO(png))
        assert image.format == "PNG"
        assert image.width == WIDTH_PX
        assert len(png) < 60_000
        assert image.info == {}


def test_a_missing_value_is_words_and_not_a_dot_or_bar() -> None:
    missing = [DotRow("a", None, None, None, "", "the engine died")]
    zero = [DotRow("a", 0.0, None, None, "", "")]
    assert blue_pixels(dots_with_intervals("t", missing, unit="nats")) == 0
    assert blue_pixels(dots_with_intervals("t", zero, unit="nats")) > 0
    assert blue_pixels(bars("t", ["a"], [Missing("the engine died")], unit="nats")) == 0
    reason = dots_with_intervals("t", missing, unit="nats")
    other = dots_with_intervals("t", [DotRow("a", None, None, None, "", "disk full")], unit="nats")
    assert reason != other


def test_the_zero_line_keeps_zero_in_view() -> None:
    assert dots_with_intervals("t", ROWS[1:], unit="nats") != dots_with_intervals(
        "t", ROWS[1:], unit="nats", zero_line=True
    )


def test_a_log_axis_is_for_values_far_apart_and_all_above_zero() -> None:
    assert needs_log_scale(ROWS)
    assert not needs_log_scale(ROWS[1:])
    assert not needs_log_scale([*ROWS, DotRow("a", 0.0, None, None, "", "")])
    assert not needs_log_scale([*ROWS, DotRow("a", 0.003, -0.001, 0.007, "", "")])
    assert not needs_log_scale([DotRow("a", None, None, None, "", "the engine died")])


def test_a_log_axis_shows_the_width_of_a_small_interval() -> None:
    linear, log = (dots_with_intervals("t", [ROWS[0], DotRow("b", 0.4, 0.35, 0.45, "b", "")], unit="nats", log=on)
                   for on in (False, True))  # fmt: skip
    assert blue_pixels(log) > blue_pixels(linear)
    below_zero = [DotRow("a", 0.3, -0.1, 0.7, "", "")]
    assert dots_with_intervals("t", below_zero, unit="nats", log=True) == dots_with_intervals(
        "t", below_zero, unit="nats"
    )


def test_a_finer_plot_is_the_same_plot_in_twice_the_pixels() -> None:
    fine = Image.open(io.BytesIO(dots_with_intervals("t", ROWS, unit="nats", pixel_ratio=2)))
    coarse = Image.open(io.BytesIO(dots_with_intervals("t", ROWS, unit="nats")))
    assert fine.width == 2 * coarse.width == 2 * WIDTH_PX
    assert abs(fine.height - 2 * coarse.height) <= 1


def test_a_legend_is_drawn_only_where_the_labels_do_not_say_the_group() -> None:
    def height(*groups: str) -> int:
        return int(pixels(bars("t", ["chat-1", "code-1"], [1.0, 2.0], unit="u", groups=groups)).shape[0])

    assert height("chat", "code") == height("", "") < height("first", "second")


def test_series_with_the_same_values_are_one_curve_with_all_their_names() -> None:
    values = [0.01, 0.1, 1.0]
    one = survival("t", {"1.1": values}, unit="nats")
    both = survival("t", {"1.1": values, "1.2": list(reversed(values))}, unit="nats")
    apart = survival("t", {"1.1": values, "1.2": [0.02, 0.2, 2.0]}, unit="nats")
    orange = [int((pixels(png) == (0xD5, 0x5E, 0x00)).all(axis=2).sum()) for png in (one, both, apart)]
    assert orange[0] == orange[1] == 0 < orange[2]
    assert both != one


def test_a_long_reason_stays_within_its_row() -> None:
    long = dots_with_intervals("t", [DotRow("a", None, None, None, "", "word " * 200)], unit="nats")
    short = dots_with_intervals("t", [DotRow("a", None, None, None, "", "word " * 40)], unit="nats")
    assert pixels(long).shape == pixels(short).shape
    assert long == short


def test_a_series_without_a_row_above_zero_is_named_and_not_drawn() -> None:
    assert blue_pixels(survival("t", {"same": [0.0, 0.0]}, unit="nats")) < blue_pixels(
        survival("t", {"same": [0.01, 0.1, 1.0]}, unit="nats")
    )


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(EngcmpError, match="not a figure"):
        dots_with_intervals("t", [DotRow("a", bad, None, None, "", "")], unit="nats")
    with pytest.raises(EngcmpError, match="not a figure"):
        bars("t", ["a"], [bad], unit="nats")
    with pytest.raises(EngcmpError, match="must be finite"):
        survival("t", {"a": [1.0, bad]}, unit="nats")
    with pytest.raises(EngcmpError, match="not a figure"):
        format_number(bad)


def test_nothing_to_draw_is_refused() -> None:
    with pytest.raises(EngcmpError, match="no rows"):
        dots_with_intervals("t", [], unit="nats")
    with pytest.raises(EngcmpError, match="no series"):
        survival("t", {}, unit="nats")
    with pytest.raises(EngcmpError, match="differ in length"):
        bars("t", ["a"], [1.0, 2.0], unit="nats")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.358, "0.3580"),
        (0.35804999, "0.3580"),
        (0.0, "0"),
        (-0.0, "0"),
        (1.0, "1.000"),
        (-2.5, "-2.500"),
        (999.96, "1000"),
        (1234.5, "1234"),
        (12345.6, "12,350"),
        (9999.7, "10,000"),
        (1.2344e-5, "1.234e-05"),
        (0.000123449, "0.0001234"),
    ],
)
def test_a_number_has_four_significant_digits(value: float, text: str) -> None:
    assert format_number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.001, "0.001"), (0.00001, "10⁻⁵"), (0.25, "0.25"), (16_000.0, "16,000"), (-0.5, "−0.5")],  # noqa: RUF001 - as the plots print them
)
def test_a_tick_is_written_out_and_a_small_power_of_ten_as_one(value: float, text: str) -> None:
    assert format_tick(value) == text


def test_the_markdown_image_needs_no_file() -> None:
    assert (
        markdown_image(b"\x89PNG", "a [plot]\nof two arms") == "![a (plot) of two arms](data:image/png;base64,iVBORw==)"
    )
