"""The noise band: declared, then checked against repeats of both arms; the wider of the two is used and said."""

from __future__ import annotations

from typing import Any

import pytest

from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.throughput.bands import (
    ArmRuns,
    DeclaredBand,
    NoBand,
    NoiseBand,
    Run,
    drift_ratios,
    figure_value,
    noise_band,
    ratio_of,
)
from engcmp_resources.errors import EngcmpError

DECLARED = DeclaredBand(0.08, 3)
HOUR = 3600.0


def cell(decode: float, **more: Any) -> dict[str, Any]:
    return {"complete": True, "failures": [], "requests": 8, "figures": {"decode_tok_s": {"value": decode}}} | more


def run(label: str, hours: float | None, **decodes: float) -> Run:
    started = None if hours is None else hours * HOUR
    return Run(label, {name: cell(decode) for name, decode in decodes.items()}, started_at_s=started)


def arms(again: float, other: float = 50.0, hours: float | None = 4) -> tuple[ArmRuns, ArmRuns]:
    """Two arms of one cell; their repeats read `again` where the first run read 100, and `other` where it read 50."""
    return (
        ArmRuns("cand", run("cand 1", 0, k=100.0), (run("cand 2", hours, k=again),)),
        ArmRuns("base", run("base 1", 0, k=50.0), (run("base 2", hours, k=other),)),
    )


def band(sides: tuple[ArmRuns, ArmRuns], declared: DeclaredBand | None = DECLARED) -> NoiseBand | NoBand:
    return noise_band(declared, sides, tuple(one for side in sides for one in drift_ratios(side, "decode_tok_s")))


def test_repeats_inside_the_declared_band_confirm_it_and_nothing_is_said() -> None:
    found = band(arms(105, 49))
    assert isinstance(found, NoiseBand)
    assert (found.share, found.declared, found.labels) == (0.08, 0.08, ())
    assert found.widest_drift == pytest.approx(0.05)
    assert (found.low, found.high) == (1 / 1.08, 1.08)


@pytest.mark.parametrize(("again", "share"), [(113, 0.13), (100 / 1.13, 0.13)])
def test_where_repeats_leave_the_band_up_or_down_the_wider_one_is_used_and_said(again: float, share: float) -> None:
    found = band(arms(again))
    assert isinstance(found, NoiseBand)
    assert found.share == pytest.approx(share) and found.declared == 0.08
    assert found.labels == ("the repeats leave the declared band of ±8.0%: ±13.0%, the widest of them, is used",)


def test_without_a_declared_band_the_word_is_descriptive_also_where_repeats_were_run() -> None:
    assert band(arms(105), None) == NoBand("descriptive", "no noise band was declared")


def test_a_declared_band_that_was_not_checked_on_both_arms_is_no_band() -> None:
    candidate, baseline = arms(105)
    found = band((candidate, ArmRuns("base", baseline.main)))
    assert found == NoBand("no floor", "the declared band was not checked: no drift repeat of base")
    both = band((ArmRuns("cand", candidate.main), ArmRuns("base", baseline.main)))
    assert both == NoBand("no floor", "the declared band was not checked: no drift repeat of cand or of base")


def test_repeats_of_one_session_are_labelled_so() -> None:
    near = band(arms(105, hours=0.25))
    assert isinstance(near, NoiseBand)
    assert (
        near.labels[0] == "band from one session: the repeats of cand lie 0.25 h apart, and the protocol asks for 3 h"
    )
    unknown = band(arms(105, hours=None))
    assert isinstance(unknown, NoiseBand)
    assert "when cand was repeated is not known" in unknown.labels[0]


def test_an_incomplete_repeat_checks_nothing() -> None:
    candidate, baseline = arms(105)
    broken = cell(105.0, complete=False, failures=[{"cause": "reset"}])
    halted = ArmRuns("cand", candidate.main, (Run("cand 2", {"k": broken}, started_at_s=4 * HOUR),))
    assert drift_ratios(halted, "decode_tok_s") == ()
    assert isinstance(band((halted, baseline)), NoBand)


def test_a_figure_that_cannot_be_divided_says_why() -> None:
    broken = Run("x", {"k": cell(1.0, complete=False, failures=[{"cause": "reset"}, {"cause": "reset"}])})
    assert figure_value(broken, "k", "decode_tok_s") == Missing("x is incomplete: 2 of 8 requests failed (reset)")
    assert figure_value(broken, "z", "decode_tok_s") == Missing("x has no cell z")
    refused = Run("x", {"k": cell(1.0) | {"figures": {"decode_tok_s": {"missing": "one update"}}}})
    assert figure_value(refused, "k", "decode_tok_s") == Missing("x: one update")
    assert ratio_of(1.0, 0.0) == Missing("the baseline reads 0: a ratio has no value")
    assert ratio_of(Missing("a"), Missing("b")) == Missing("a")


def test_a_band_of_nothing_is_refused() -> None:
    with pytest.raises(EngcmpError, match="noise band of 0"):
        DeclaredBand(0, 3)
