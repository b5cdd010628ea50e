"""What the evidence says of a claim's subject: plain records, filled from row files and receipts (or from a comparison's figures).

None means that the evidence at hand says nothing of it; what was looked for and is not recorded is for the rules to judge.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engcmp_assets.kernel.claims.records import Ends, Word


@dataclass(frozen=True, slots=True)
class AgainstRun:
    """The difference against one single run of the baseline, and whether it stands there by the headline's own test."""

    run: str
    value: float | None
    stands: bool


@dataclass(frozen=True, slots=True)
class Look:
    """What was measured at the claim's look, in the measure's unit.

    `deciding` is the interval that decides (at its family's level unless the look is primary); `documents` the clusters that have a row;
    `independent` how many are left when near-copies count once; `without_one` the range when each cluster in turn is left out, and
    `carried_by` the cluster whose removal leaves half of it or less; `others` whether other measures are resolved on the same rows.
    """

    estimate: float | None = None
    unit: str | None = None
    interval: Ends | None = None
    deciding: Ends | None = None
    declared: bool = True
    primary: bool = True
    documents: tuple[str, ...] | int | None = None
    independent: int | None = None
    against: tuple[AgainstRun, ...] = ()
    sign_flip_p: float | None = None
    carried_by: str | None = None
    rows_equal: float | None = None
    others: Mapping[str, bool] = field(default_factory=dict)

    @property
    def clusters(self) -> int | None:
        """The number of clusters."""
        return len(self.documents) if isinstance(self.documents, tuple) else self.documents

    @property
    def bounding(self) -> Ends | None:
        """The interval that bounds what was not resolved: of a look that is not primary that of its family, or none."""
        return self.deciding if self.deciding is not None or not self.primary else self.interval


@dataclass(frozen=True, slots=True)
class Repeats:
    """Runs of one arm beside each other, by the claim's measure: the documents that were repeated, what differs per row, and the
    estimate on those documents alone. `others` are further floors that were measured: of the other arm, within and across launches.
    """

    documents: tuple[str, ...] = ()
    per_row: float | None = None
    others: tuple[float, ...] = ()
    estimate_on_them: float | None = None


@dataclass(frozen=True, slots=True)
class Requests:
    """How the rows were computed: other requests in the engine's steps in all, cached prompt tokens in all, and the prefill chunk (from 1)
    at which repeats begin to differ (0: they do not differ).
    """

    shared_steps: int | None = None
    cached_tokens: int | None = None
    differs_from_chunk: int | None = None


@dataclass(frozen=True, slots=True)
class Inputs:
    """Whether both sides were given the same: token digests, nonces, and prompt tokens as each engine counted them."""

    same_tokens: bool | None = None
    same_nonces: bool | None = None
    counted: tuple[int, int] | None = None
    same_engine: bool | None = None


@dataclass(frozen=True, slots=True)
class Contents:
    """Rows by context bucket and block. `within`: by block, the ends of what the longest bucket adds within that block alone (None: no
    interval); empty where no block has rows in two buckets.
    """

    rows: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    within: Mapping[str, tuple[float, float] | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Launches:
    """How the launches differ: settings that were asked for or resolved differently, and all that the protocol does not declare."""

    settings: tuple[str, ...] = ()
    undeclared: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Speeds:
    """`band` is that which the drift repeats bear out (None: none). `acceptance`: whether both engines' draft counters were recorded.

    `answers`: share of the cell's replies that left the reasoning. `kind`: the content that the cell's prompts ask for.
    """

    band: tuple[float, float] | None = None
    drift_repeats: int = 0
    telemetry: bool | None = None
    acceptance: bool | None = None
    answers: float | None = None
    kind: str | None = None


@dataclass(frozen=True, slots=True)
class Texts:
    """The panel's text: where it came from, whether it was generated greedily, and the roles that a headline may pool."""

    provenance: str | None = None
    greedy: bool | None = None
    roles: Mapping[str, int] = field(default_factory=dict)
    headline_roles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Replies:
    """Replies that were flagged as loops, and how many of them repeat themselves within the span in which they ended."""

    flagged: int
    self_repeating: int


@dataclass(frozen=True, slots=True)
class Replied:
    """Long replies of two arms: whether the test of the figure was declared before the run, its exact p, and the larger share of either
    arm's replies that ran into the cap.
    """

    declared: bool = False
    p: float | None = None
    capped: float | None = None


@dataclass(frozen=True, slots=True)
class Ages:
    """How far apart the two sides were measured, whether under one frozen hash and on one machine, and whether a control ran between."""

    hours_apart: float | None = None
    same_freeze: bool | None = None
    same_machine: bool | None = None
    control: bool | None = None


@dataclass(frozen=True, slots=True)
class Cells:
    """How many of all cells have each verdict word, by their ratios and the noise band."""

    verdicts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Family:
    """How many looks were taken that were not declared primary, and the level of an interval of one that is alone."""

    looks: int
    level: float = 0.95


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that is known of a claim's subject. `known`: the SHA-256 of all receipts and row files that there are;
    `owners`: of those that belong to arms, the arms; `measured_of`: of those that hold what was measured of arms, these arms.

    `unmeasured` is why nothing was measured of what the claim is about; None where something was, or where nobody looked. `not_comparable`:
    it is because the comparison of the two sides was refused.
    """

    unmeasured: str | None = None
    not_comparable: bool = False
    look: Look | None = None
    repeats: Repeats | None = None
    requests: Requests | None = None
    inputs: Inputs | None = None
    contents: Contents | None = None
    launches: Launches | None = None
    speeds: Speeds | None = None
    texts: Texts | None = None
    replies: Replies | None = None
    replied: Replied | None = None
    ages: Ages | None = None
    cells: Cells | None = None
    family: Family | None = None
    paired_bar: Word | None = None
    scored_paths: tuple[str, ...] | None = None
    wild_with_itself: float | None = None
    repeated_documents: tuple[str, ...] | None = None
    known: frozenset[str] | None = None
    owners: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    measured_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
