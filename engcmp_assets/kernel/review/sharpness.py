"""Whether an arm is flatter or sharper than another, and how much of an NLL gap that is.

The split is exact on every row. With H(q) the entropy of an arm's distribution q and y the token that follows,

    -log q(y) = H(q) + (-log q(y) - H(q)),

so the gap of NLL between two arms is the gap of their entropies (**sharpness**) plus the gap of what is left (**displacement**: how much
more the token surprised the arm than the arm itself expected, which is 0 on average where the text is drawn from q). An arm that is only
flatter has its gap in sharpness; one that puts the mass on other tokens has it in displacement. Displacement also holds what the text
rewards: on confident rows of a greedily generated text a flatter arm gains more entropy than NLL, so that displacement is below zero.
A second exact split sets the gap of KL from the reference beside it: in expectation over the reference's own distribution the gap of NLL
*is* the gap of KL, so the rest is what the tokens of this text reward beyond it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy.typing as npt

from engcmp_assets.kernel.records import Interval, Missing
from engcmp_assets.kernel.review.shared import (
    Float64,
    Names,
    between,
    check_rows,
    numbers,
    ratio_interval,
    said,
    stands,
    strings,
)
from engcmp_assets.kernel.uncertainty import Estimate, Preset, by_cluster, population_mean

_MOSTLY = 0.5  # of the gap


@dataclass(frozen=True, slots=True)
class EntropyOfArm:
    """Mean entropy of an arm in nats, its excess over the reference's, and the excess as a share of the reference's mean entropy."""

    entropy: Estimate
    excess: Estimate | Missing
    excess_share: float | Missing
    excess_share_interval: Interval | Missing
    sentence: str


@dataclass(frozen=True, slots=True)
class NllSplit:
    """Candidate minus baseline in nats: `gap` = `sharpness` + `displacement`, and `gap` = `kl_gap` + `beyond_kl`.

    `found`: sharpness is told from zero, has the gap's sign and is at least half of a gap that is told from zero too: the arm is mostly
    flatter or sharper, rather than wrong about other tokens.
    """

    gap: Estimate
    sharpness: Estimate
    displacement: Estimate
    kl_gap: Estimate | Missing
    beyond_kl: Estimate | Missing
    sharpness_share: float | Missing
    found: bool
    sentence: str


def entropy_of_arm(
    entropy: npt.ArrayLike,
    clusters: Names,
    *,
    reference_entropy: npt.ArrayLike | None = None,
    bound: bool = False,
    preset: Preset,
    level: float = 0.95,
) -> EntropyOfArm:
    """Mean entropy of one arm and its excess over the reference's; columns are [rows], in nats.

    `bound` says that the reference's entropy is only a lower bound (a top-K reference with its rest as one token), so that the excess is an
    upper one; the sentence labels it. Raises EngcmpError for columns that do not pair up and values not finite.
    """
    own, names = numbers(entropy), strings(clusters)
    check_rows(entropy=own, clusters=names)
    mean = population_mean(own, names, preset=preset, level=level)
    if reference_entropy is None:
        none = Missing("there is no reference")
        return EntropyOfArm(mean, none, none, none, f"Entropy {said(mean.value)} nats; no reference to set it beside.")
    reference = numbers(reference_entropy)
    check_rows(entropy=own, reference_entropy=reference)
    excess = population_mean(own - reference, names, preset=preset, level=level, kind="difference")
    share = _share(own - reference, reference, names, preset, level)
    part = share[0] if isinstance(share[0], Missing) else 100 * share[0]
    label = ", an upper bound, as the reference keeps its rest as one token" if bound else ""
    text = f"Entropy {said(mean.value)} nats, {said(excess.value)} {between(excess.interval)} over the reference's ({said(part)} %){label}."
    return EntropyOfArm(mean, excess, *share, text)


def split_nll_gap(
    candidate_nll: npt.ArrayLike,
    baseline_nll: npt.ArrayLike,
    *,
    candidate_entropy: npt.ArrayLike,
    baseline_entropy: npt.ArrayLike,
    clusters: Names,
    candidate_kl: npt.ArrayLike | None = None,
    baseline_kl: npt.ArrayLike | None = None,
    preset: Preset,
    level: float = 0.95,
) -> NllSplit:
    """Split the gap of NLL between two arms on the same rows; all columns are [rows], in nats, and the KL is from the reference.

    Raises EngcmpError for columns that do not pair up and values not finite. The KL split is Missing unless both arms' KL is given.
    """
    columns = {
        "candidate_nll": numbers(candidate_nll), "baseline_nll": numbers(baseline_nll),
        "candidate_entropy": numbers(candidate_entropy), "baseline_entropy": numbers(baseline_entropy),
    }  # fmt: skip
    names = strings(clusters)
    check_rows(**columns, clusters=names)

    def mean(values: Float64) -> Estimate:
        return population_mean(values, names, preset=preset, level=level, kind="difference")

    gaps = columns["candidate_nll"] - columns["baseline_nll"]
    flatter = columns["candidate_entropy"] - columns["baseline_entropy"]
    gap, sharpness, displacement = mean(gaps), mean(flatter), mean(gaps - flatter)
    kl_gap: Estimate | Missing = Missing("no KL from a reference was given")
    beyond: Estimate | Missing = Missing("no KL from a reference was given")
    if candidate_kl is not None and baseline_kl is not None:
        further = [numbers(candidate_kl), numbers(baseline_kl)]
        check_rows(candidate_nll=gaps, candidate_kl=further[0], baseline_kl=further[1])
        kl_gap, beyond = mean(further[0] - further[1]), mean(gaps - (further[0] - further[1]))
    share = _part(sharpness.value, gap.value)
    found = stands(gap) and stands(sharpness) and not isinstance(share, Missing) and share >= _MOSTLY
    text = _sentence(gap, sharpness, displacement, kl_gap, found=found)
    return NllSplit(gap, sharpness, displacement, kl_gap, beyond, share, found, text)


def _part(value: float | Missing, whole: float | Missing) -> float | Missing:
    if isinstance(value, Missing) or isinstance(whole, Missing) or whole == 0:
        return Missing("the gap is 0")
    return value / whole


def _share(
    excess: Float64, reference: Float64, clusters: Names, preset: Preset, level: float
) -> tuple[float | Missing, Interval | Missing]:
    """Summed excess over summed reference entropy, resampled jointly from 8 clusters on."""
    top, bottom = by_cluster(excess, clusters), by_cluster(reference, clusters)
    if (bottom.sums <= 0).any():
        none = Missing("the reference's entropy is 0 in a cluster: a share has no value")
        return none, none
    return top.mean / bottom.mean, ratio_interval(top, bottom, preset, level)


def _sentence(
    gap: Estimate, sharpness: Estimate, displacement: Estimate, kl_gap: Estimate | Missing, *, found: bool
) -> str:
    text = (
        f"NLL gap {said(gap.value)} nats {between(gap.interval)} = sharpness {said(sharpness.value)} "
        f"{between(sharpness.interval)} + displacement {said(displacement.value)} {between(displacement.interval)}"
    )
    if not isinstance(kl_gap, Missing):
        text += f"; KL gap {said(kl_gap.value)} {between(kl_gap.interval)}"
    if found and not isinstance(gap.value, Missing):
        return f"{text}: the candidate is mostly {'flatter' if gap.value > 0 else 'sharper'}."
    return f"{text}."
