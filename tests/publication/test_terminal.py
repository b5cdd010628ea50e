"""The terminal shows what a person wants when a run has ended: the arms, the verdicts, one small table by block."""

from __future__ import annotations

from typing import Any

import pytest
from summary_sample import ARMS, BETTER, DEFINITIONS, VALUES, difference, sample, second_panel, six_arms

from engcmp_assets.kernel.plots import format_number
from engcmp_assets.publication.claims import claim, short_names, short_sentence
from engcmp_assets.publication.pages import TERMINAL_COLUMNS, render_table


def term(measure: str) -> dict[str, str]:
    return {"better": BETTER[measure], "definition": DEFINITIONS[measure]}


PAIR = {"candidate": ARMS[1], "baseline": ARMS[0]}


@pytest.mark.parametrize("make", [sample, six_arms, lambda: second_panel(six_arms())])
def test_no_line_is_wider_than_the_terminal(make: Any) -> None:
    assert max(map(len, render_table(make()).splitlines())) <= TERMINAL_COLUMNS


def test_two_arms_fit_a_screen_and_six_arms_with_five_pairs_stay_readable() -> None:
    assert len(render_table(sample()).splitlines()) <= 35
    assert len(render_table(six_arms()).splitlines()) <= 65


def test_each_arm_has_its_values_above_their_intervals() -> None:
    lines = render_table(sample()).splitlines()
    header = next(line for line in lines if line.startswith("arm "))
    place = next(place for place, line in enumerate(lines) if line.startswith(ARMS[1]))
    column = header.index("kl_full")
    assert lines[place][column:].startswith(format_number(VALUES[ARMS[1]]["kl_full"]))
    assert lines[place + 1][column:].startswith("[")
    assert header.split() == ["arm", "kl_full", "nll", "top1", "entropy"]


def test_a_floor_that_is_not_zero_stands_under_its_arm_with_its_reason() -> None:
    table = render_table(sample())
    assert table.count("  floor ") == 2
    assert "0 / (1)" in table
    assert "(1) not measured: only one launch was made" in table


def test_floors_of_zero_are_said_once() -> None:
    table = render_table(six_arms())
    assert "  floor " not in table
    assert "Floor: 0 within a launch and across launches, for every figure" in table


def test_a_block_has_values_only_and_of_the_primary_measure() -> None:
    lines = render_table(sample()).splitlines()
    place = next(place for place, line in enumerate(lines) if line.startswith("kl_full by block"))
    assert lines[place].split()[-3:] == ["prose", "code", "json"]
    assert lines[place + 2].split()[1:] == [format_number(VALUES[ARMS[0]]["kl_full"] * k) for k in (0.83, 1.21, 1.34)]
    assert sum("by block" in line for line in lines) == 1


def test_a_measure_of_a_second_panel_is_shown_once() -> None:
    table = render_table(second_panel(six_arms()))
    assert table.count("kl_coarse") >= 2
    assert "The pages also have the same measures on panel pb." in table
    assert format_number(VALUES[ARMS[0]]["nll"] * 0.5) not in table


def test_a_pair_that_is_bit_identical_is_one_line() -> None:
    assert "Pair 3: bit-identical, every row of every window" in render_table(six_arms())


@pytest.mark.parametrize(
    ("measure", "sentence"),
    [
        ("kl_full", "q8_0 stays closer, by 0.05671 nats [0.05274, 0.06108]"),
        ("nll", "q8_0 is better (lower), by 0.04706 nats [0.04188, 0.05275]"),
        ("top1", "q8_0 stays closer, by 0.09115 share of rows [0.08012, 0.1012]"),
        ("entropy", "q4_0 is higher, by 0.02941 nats [0.02617, 0.03297]"),
    ],
)
def test_a_resolved_difference_says_which_side_and_by_how_much(measure: str, sentence: str) -> None:
    assert short_sentence(PAIR, difference(measure, "resolved"), term(measure)) == sentence


def test_other_verdicts_claim_no_side() -> None:
    def said(verdict: str) -> tuple[str, str]:
        figure = difference("kl_full", verdict)
        return claim(PAIR, figure, term("kl_full")), short_sentence(PAIR, figure, term("kl_full"))

    assert said("not resolved") == (
        "Neither q4_0 nor q8_0 is shown to stay closer to the reference",
        "q4_0 minus q8_0: 0.05671 nats; more than 0.07130 is excluded",
    )
    assert said("baseline-dependent")[0] == "q4_0 beside q8_0: it depends on the run of the baseline"
    assert "closer" not in "".join(said("descriptive"))
    assert said("resolved, no floor")[0] == "q8_0 stays closer to the reference than q4_0"


def test_a_missing_difference_is_its_reason() -> None:
    figure = difference("kl_full", "not comparable") | {"value": {"missing": "NaN in window code-2"}}
    assert short_sentence(PAIR, figure, term("kl_full")) == "not measured: NaN in window code-2"
    assert claim(PAIR, figure, term("kl_full")) == "q4_0 beside q8_0: not measured: NaN in window code-2"


def test_two_arms_are_called_by_the_one_part_in_which_they_differ() -> None:
    assert short_names("q4_0/llamacpp@b1", "q8_0/llamacpp@b1") == ("q4_0", "q8_0")
    assert short_names("q4_0/llamacpp@b1", "q4_0/llamacpp@b2") == ("b1", "b2")
    whole = ("q4_0/llamacpp@b1", "q8_0/llamacpp@b2")
    assert short_names(*whole) == whole
    assert short_names("<b>", "q8_0/llamacpp@b2") == ("<b>", "q8_0/llamacpp@b2")
    assert short_names("q4_0/e@1+fast", "q4_0/e@1") == ("q4_0/e@1+fast", "q4_0/e@1")
