"""What a user writes after --arm, --pair and --repeat."""

from __future__ import annotations

import pytest

from engcmp_assets.file_scores.request import GapOf, PairOf, Side, request
from engcmp_resources.errors import EngcmpError

ARMS = ["V1", "V1r", "V2", "C1"]


def test_a_side_is_an_arm_or_the_mean_over_its_runs() -> None:
    found = request(ARMS, ["V1,C1", "mean(V1, V1r, V2) , C1", "C1,mean(V1,V1r)"], [])
    assert found.pairs == (
        PairOf(Side(("V1",)), Side(("C1",))),
        PairOf(Side(("V1", "V1r", "V2")), Side(("C1",))),
        PairOf(Side(("C1",)), Side(("V1", "V1r"))),
    )
    assert [pair.file_name for pair in found.pairs] == [
        "V1-vs-C1.json",
        "mean-V1-V1r-V2-vs-C1.json",
        "C1-vs-mean-V1-V1r.json",
    ]
    assert str(found.pairs[1]) == "mean(V1,V1r,V2),C1"


def test_a_pair_that_is_written_twice_is_one() -> None:
    assert request(ARMS, ["V1,C1", "V1, C1", "mean(V1),C1"], []).pairs == (PairOf(Side(("V1",)), Side(("C1",))),)


def test_repeats_of_one_arm_add_up_and_are_rows_to_compare() -> None:
    found = request(ARMS, ["mean(V1,V1r),C1"], ["V1,V1r", "V1, V2", "V1,V1r"])
    assert found.repeats == {"V1": ("V1r", "V2")}
    assert found.row_pairs() == (("V1", "C1"), ("V1", "V1r"), ("V1", "V2"))


@pytest.mark.parametrize("arms", [["reference"], ["a/b"], [""], [".x"], ["V1", "v1"], ["V1", "V1"], ["C" * 300]])
def test_names_that_cannot_be_files_of_their_own_are_refused(arms: list[str]) -> None:
    with pytest.raises(EngcmpError):
        request(arms, [], [])


@pytest.mark.parametrize("pair", ["", "V1", "V1,C1,V2", "mean(V1,C1", "V1,V1", "mean(V1,mean(V2)),C1", "V1,X", ",V1"])
def test_pairs_that_cannot_be_read_are_refused_by_name(pair: str) -> None:
    with pytest.raises(EngcmpError, match="--pair"):
        request(ARMS, [pair], [])


def test_two_results_of_one_name_are_refused() -> None:
    with pytest.raises(EngcmpError, match=r"arm V1-vs-C1 and pair V1,C1 would share the file V1-vs-C1\.json"):
        request([*ARMS, "V1-vs-C1"], ["V1,C1"], [])


def test_a_gap_is_of_three_sides_and_may_be_written_twice() -> None:
    found = request(ARMS, [], [], ["V1,C1,V2", "V1, C1 ,V2", "mean(V1,V1r),C1,V2"])
    assert found.gaps == (
        GapOf(Side(("V1",)), Side(("C1",)), Side(("V2",))),
        GapOf(Side(("V1", "V1r")), Side(("C1",)), Side(("V2",))),
    )
    assert [gap.file_name for gap in found.gaps] == ["gap-V1-C1-V2.json", "gap-mean-V1-V1r-C1-V2.json"]
    assert str(found.gaps[1]) == "mean(V1,V1r),C1,V2"


@pytest.mark.parametrize("gap", ["", "V1", "V1,C1", "V1,C1,V2,V1r", "V1,C1,C1", "V1,C1,X", "V1,,C1", "mean(V1),V1,C1"])
def test_gaps_that_cannot_be_read_are_refused_by_name(gap: str) -> None:
    with pytest.raises(EngcmpError, match="--gap"):
        request(ARMS, [], [], [gap])


def test_a_gap_and_an_arm_of_one_file_are_refused() -> None:
    with pytest.raises(EngcmpError, match=r"arm gap-V1-C1-V2 and gap V1,C1,V2 would share the file"):
        request([*ARMS, "gap-V1-C1-V2"], [], [], ["V1,C1,V2"])
