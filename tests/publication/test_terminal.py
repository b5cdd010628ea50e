"""The terminal shows what a person wants when a run has ended: the arms, how far apart each pair is, which side is closer."""

from __future__ import annotations

from typing import Any

import pytest
from summary_sample import (
    ARMS,
    BETTER,
    DEFINITIONS,
    VALUES,
    difference,
    distance,
    path_pair,
    sample,
    second_panel,
    six_arms,
    whole_study,
)

from engcmp_assets.kernel.plots import format_number
from engcmp_assets.publication.claims import claim, pair_name, short_names, short_sentence
from engcmp_assets.publication.formats import not_measured
from engcmp_assets.publication.pages import TERMINAL_COLUMNS, render_table


def term(measure: str) -> dict[str, str]:
    return {"better": BETTER[measure], "definition": DEFINITIONS[measure]}


PAIR = {"candidate": ARMS[1], "baseline": ARMS[0]}


@pytest.mark.parametrize("make", [sample, six_arms, lambda: second_panel(six_arms()), whole_study])
def test_no_line_is_wider_than_the_terminal(make: Any) -> None:
    assert max(map(len, render_table(make()).splitlines())) <= TERMINAL_COLUMNS


def test_two_arms_fit_a_screen_and_six_arms_with_six_pairs_stay_readable() -> None:
    assert len(render_table(sample()).splitlines()) <= 30
    assert len(render_table(whole_study()).splitlines()) <= 45


def test_each_arm_has_its_values_above_their_intervals() -> None:
    lines = render_table(sample()).splitlines()
    header = next(line for line in lines if line.startswith("arm, panel pa"))
    place = next(place for place, line in enumerate(lines) if line.startswith(ARMS[1]))
    column = header.index("kl_full")
    assert lines[place][column:].startswith(format_number(VALUES[ARMS[1]]["kl_full"]))
    assert lines[place + 1][column:].startswith("[")
    assert header.split() == ["arm,", "panel", "pa", "kl_full", "nll", "top1", "entropy"]


def test_a_floor_that_is_not_zero_stands_under_its_arm_with_its_reason() -> None:
    table = render_table(sample())
    assert table.count("  floor ") == 2
    assert "0 / (1)" in table
    assert "(1) not measured: only one launch was made" in table


def test_floors_of_zero_are_said_once() -> None:
    table = render_table(six_arms())
    assert "  floor " not in table
    assert "Floor: 0 within a launch and across launches, for every figure" in table


def test_floors_of_zero_that_were_not_measured_everywhere_are_said_so() -> None:
    assert "Floor: 0 within a launch / across launches wherever measured" in render_table(whole_study())


def test_a_further_panel_is_on_the_pages() -> None:
    table = render_table(second_panel(six_arms()))
    assert "The pages also have panel pb." in table
    assert "kl_coarse" not in table
    assert format_number(VALUES[ARMS[0]]["nll"] * 0.5) not in table


def lines_of(name: str) -> list[str]:
    return [" ".join(line.split()) for line in render_table(whole_study()).splitlines() if line.startswith(name)]


def test_every_pair_stands_beside_the_floor_with_what_lies_between_its_sides() -> None:
    assert lines_of("q4_0/llamacpp@b10809 beside")[0].endswith("0.4224 [0.3928, 0.4549] 36 of 384 0")
    assert lines_of("decode beside prefill")[0].endswith("q8_0/llamacpp@b11549 0.002896 0 of 16 0 / none")


def test_every_pair_has_its_difference_and_verdict_in_one_line() -> None:
    """Some names of this study are too long for that, so the ids stand for them."""
    assert lines_of("pair-0") == ["pair-0 second, by 0.05671 [0.05274, 0.06108] resolved"]
    assert lines_of("pair-2") == ["pair-2 0.05671 [0.05274, 0.06108] baseline-dependent"]
    assert lines_of("decode-vs-prefill") == ["decode-vs-prefill -7.840e-05, 2 documents: value only not resolved"]


def test_a_pair_that_is_bit_identical_says_so_in_its_lines() -> None:
    assert lines_of("q4_0/llamacpp@b9 beside")[0].endswith("0 384 of 384 0")
    assert lines_of("pair-3")[0].endswith("bit-identical")


def test_a_side_is_named_where_its_name_is_short() -> None:
    assert "q4_0 beside q8_0, llamacpp@b11549  q8_0, by 0.05671 [0.05274, 0.06108]  resolved" in render_table(sample())


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
        "q4_0 minus q8_0: 0.05671 nats; more than 0.1113 is excluded",
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


def test_two_score_paths_are_called_by_their_paths_and_never_arm_minus_itself() -> None:
    pair = path_pair()
    kl, nll = pair["figures"][:2]
    assert pair_name(pair) == "decode beside prefill, q8_0/llamacpp@b11549"
    assert (
        short_sentence(pair, nll, term("nll")) == "decode minus prefill: 0.02170 nats; a value only, from 2 documents"
    )
    assert claim(pair, kl, term("kl_full")) == "Decode beside prefill: values only, from 2 documents"
    assert f"{ARMS[0]} minus {ARMS[0]}" not in render_table(whole_study())


@pytest.mark.parametrize(
    ("figure", "sentence"),
    [
        (distance("p", "kl_pair_full", 0.4224), "apart by 0.4224 nats [0.3928, 0.4549]; between runs of one arm 0"),
        (
            distance("p", "kl_pair_full", 0.0029, clusters=2),
            "apart by 0.002900 nats; between runs of one arm 0 within a launch",
        ),
        (
            distance("p", "rows_bit_identical", 36 / 384),
            "36 of 384 rows are equal bit for bit; between runs of one arm all",
        ),
    ],
)
def test_a_distance_is_read_between_two_sides_and_nothing_is_subtracted(figure: dict[str, Any], sentence: str) -> None:
    assert short_sentence(PAIR, figure, {"better": "higher", "definition": ""}) == sentence


def test_a_pair_is_named_by_what_differs_and_what_is_shared() -> None:
    def named(candidate: str, baseline: str) -> str:
        return pair_name({"kind": "arms", "candidate": candidate, "baseline": baseline})

    assert named("q4_0/e@1", "q8_0/e@1") == "q4_0 beside q8_0, e@1"
    assert named("q4_0/e@2", "q4_0/e@1") == "2 beside 1, q4_0/e"
    assert named("q4_0/e@2", "q8_0/e@1") == "q4_0/e@2 beside q8_0/e@1"


def test_a_reason_that_says_itself_that_nothing_was_measured_is_not_said_twice() -> None:
    yet = "not measured yet: engcmp run s --arm a"
    assert not_measured({"state": "not measured", "reason": yet}) == yet
    assert not_measured({"state": "not measured", "reason": "the engine died"}) == "not measured: the engine died"
