"""A claim as data: who is compared, by what, on which rows, what was read, how sure it is, why, and on which evidence."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field

from engcmp_assets.kernel.fields import ScorePath, Sha256, Strict
from engcmp_assets.kernel.records import Role

States = Literal[
    "difference", "distance", "ratio", "trend", "identical inputs", "identical rows", "cause", "ablation", "loops", "bar", "quality",
    "counts", "looks", "replies",
]  # fmt: skip
"""What kind of thing a claim states. `identical rows`: bit for bit. `loops`: how many replies ended in a loop. `ablation`: what one
setting alone does. `quality`: that answers are as good, or worse. `counts`: how many cells have which verdict. `looks`: how many looks
share one error rate, and at which level each is judged. `replies`: how two arms' long replies differ, or how many are the same."""
Word = Literal[
    "resolved", "baseline-dependent", "not resolved", "within bar", "not shown within bar", "level", "faster", "slower", "bit-identical",
    "not comparable", "descriptive",
]  # fmt: skip
"""The verdict words of MEASURES section 5; `no floor` is a limit that stands beside any of them."""
Limit = Literal[
    "no floor", "value only", "prefill path only", "decode path only", "rewards sharpness", "by analogy", "one document carries it",
    "looked at after the data", "no telemetry", "no control between captures",
]  # fmt: skip
"""What a claim says against itself, as codes."""
Factor = Literal[
    "batching", "prefill chunk", "context length", "content", "setting", "draft policy", "candidate", "baseline", "reference",
]  # fmt: skip
ANY = "any"
"""In place of a measure: the claim is of all of them."""
BOOTSTRAP = "cluster bootstrap"


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("holds a line break or another control character, and would be printed")
    return text


Words = Annotated[str, AfterValidator(_printable)]
"""Free words on one line: a claim is printed to a terminal."""


class _Numbers(Strict):
    model_config = ConfigDict(allow_inf_nan=False)


class Population(Strict):
    """Which rows, or which cell of a speed block; what is not named is not narrowed."""

    panel: Words | None = None
    role: Role | None = None
    block: Words | None = None
    bucket: Words | None = None
    cell: Words | None = None


class Ends(_Numbers):
    """An interval in the measure's unit: its level, and the name of its method up to the first comma."""

    low: float
    high: float
    level: float = Field(gt=0, lt=1)
    method: Words


class ClaimedFloor(_Numbers):
    """What the claim sets beside its estimate: the floor's value, what it is a statistic of, and the documents that it is from."""

    value: float
    statistic: Literal["per row", "shift of a mean"] = "per row"
    documents: tuple[Words, ...] = ()


class Cause(Strict):
    """What the claim gives as the reason; `name` says which setting, chunk or block, where there are several."""

    factor: Factor
    name: Words | None = None


class Cited(Strict):
    """The receipts and row files that the claim rests on, by SHA-256."""

    receipts: tuple[Sha256, ...] = ()
    row_files: tuple[Sha256, ...] = ()


class Claim(_Numbers):
    """One statement. `candidate` is compared with `baseline`; an estimate is candidate minus baseline, or candidate / baseline of a ratio.

    `bound` is the largest effect that is not excluded; `band` the noise band of a ratio; `baseline_measure` stands where the two sides
    were read by different measures; `text` says where the panel's text came from; `content` what the requests made the model write;
    `headline` whether the claim is put forward as a main result; `shown_as` how its sign is shown; `counts` how many cells have each
    verdict word, or under `looks` how many share an error rate; `level` that at which each of these is judged.
    """

    claim_id: Words = Field(min_length=1)
    states: States
    candidate: Words
    baseline: Words | None = None
    measure: Words
    baseline_measure: Words | None = None
    population: Population = Population()
    score_path: ScorePath | None = None
    estimate: float | None = None
    unit: Words = ""
    interval: Ends | None = None
    bound: float | None = None
    clusters: int | None = Field(default=None, ge=0)
    floor: ClaimedFloor | None = None
    band: tuple[float, float] | None = None
    verdict: Word
    headline: bool = False
    bar: Literal["absolute", "paired"] | None = None
    cause: Cause | None = None
    paired_by: Literal["row", "prompt", "seed"] | None = None
    text: Words | None = None
    content: Words | None = None
    counts: dict[Words, int] | None = None
    level: float | None = Field(default=None, gt=0, lt=1)
    shown_as: Literal["number", "sign colour"] = "number"
    confounds: tuple[Words, ...] = ()
    limits: tuple[Limit, ...] = ()
    evidence: Cited = Cited()

    def with_limit(self, limit: Limit) -> Claim:
        """The same claim, which says this against itself."""
        return self.model_copy(update={"limits": tuple(dict.fromkeys((*self.limits, limit)))})

    def changed(self, **fields: object) -> Claim:
        """The same claim with other values of these fields."""
        return self.model_copy(update=fields)
