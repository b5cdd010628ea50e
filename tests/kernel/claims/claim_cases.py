"""For each rule a claim that was made by mistake, the facts that do not carry it, and its sound twin. No tests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from engcmp_assets.kernel.claims.facts import (
    AgainstRun,
    Ages,
    Cells,
    Contents,
    Facts,
    Family,
    Inputs,
    Launches,
    Look,
    Repeats,
    Replied,
    Replies,
    Requests,
    Speeds,
    Texts,
)
from engcmp_assets.kernel.claims.records import Cause, Cited, Claim, ClaimedFloor, Ends, Population

RECEIPT, ROWS = "a1" * 32, "b2" * 32
DOCUMENTS = tuple(f"doc-{number}" for number in range(12))
THREE = DOCUMENTS[:3]
BOOTSTRAP, T = "cluster bootstrap, 20,000 replicates, seed 20260929", "t-interval on cluster means"
ABOVE = Ends(low=0.001, high=0.004, level=0.95, method=BOOTSTRAP)
ACROSS = Ends(low=-0.001, high=0.004, level=0.95, method=BOOTSTRAP)
FAMILY = Ends(low=0.0005, high=0.0047, level=0.9967, method=BOOTSTRAP)
LOOK = Look(estimate=0.0027, interval=ABOVE, deciding=ABOVE, documents=DOCUMENTS)
OPEN = Look(estimate=0.0027, interval=ACROSS, deciding=ACROSS, documents=DOCUMENTS)
BLOCKS = {"8-16K": {"reading": 6144, "chat": 1378}, "0-8K": {"chat": 9000, "math": 9000}}
FLAT = {"chat": (-0.003, 0.0044)}
GROWING = {"chat": (0.001, 0.006)}


def claim(**fields: Any) -> Claim:
    """A sound claim of a difference, with these fields changed."""
    return Claim(
        **{
            "claim_id": "c-1", "states": "difference", "candidate": "K/cand@v1", "baseline": "K/base@v1", "measure": "kl_full",
            "score_path": "prefill", "estimate": 0.0027, "unit": "nats", "interval": ABOVE, "clusters": 12, "verdict": "resolved",
            "evidence": Cited(receipts=(RECEIPT,), row_files=(ROWS,)),
        }
        | fields
    )  # fmt: skip


def ratio(**fields: Any) -> Claim:
    """A sound claim of a ratio of speeds."""
    own = {
        "states": "ratio",
        "measure": "decode_tok_s",
        "interval": None,
        "clusters": None,
        "estimate": 1.2,
        "verdict": "faster",
    }
    return claim(**(own | {"unit": "ratio", "score_path": None} | fields))


def counted(**counts: int) -> Claim:
    """A claim of how many cells have which verdict."""
    return ratio(states="counts", estimate=None, verdict="descriptive", counts=counts)


def looked(looks: int, level: float) -> Claim:
    """A claim of how many looks share an error rate."""
    return claim(
        states="looks",
        estimate=None,
        interval=None,
        clusters=None,
        verdict="descriptive",
        counts={"looks": looks},
        level=level,
    )


@dataclass(frozen=True)
class Case:
    """A rule, the facts, the claim that goes further than they do, and the twin that does not."""

    rule_id: str
    facts: Facts
    mistaken: Claim
    sound: Claim
    twin_facts: Facts | None = None

    @property
    def facts_of_twin(self) -> Facts:
        return self.twin_facts or self.facts


def replied(verdict: Any, **fields: Any) -> Claim:
    """Of how two arms' replies ended."""
    own: dict[str, Any] = {
        "states": "replies",
        "measure": "reply_looped",
        "interval": None,
        "clusters": None,
        "estimate": 0.5,
    }
    return claim(**(own | {"verdict": verdict} | fields))


def cause(factor: Any, name: str | None = None, **fields: Any) -> Claim:
    """A claim that gives a reason."""
    return claim(states="cause", cause=Cause(factor=factor, name=name), **fields)


SOLO = Facts(look=LOOK, requests=Requests(shared_steps=0, cached_tokens=0, differs_from_chunk=2))
LAUNCHES = Facts(look=LOOK, launches=Launches(settings=("kda_fp8", "output_shard"), undeclared=()))
SIX, TWO = DOCUMENTS[:6], DOCUMENTS[:2]
ELSEWHERE = Facts(
    look=Look(estimate=0.0141, documents=SIX), repeats=Repeats(documents=TWO, per_row=0.0047, estimate_on_them=0.0086)
)
NO_TELEMETRY = Facts(speeds=Speeds(band=(0.92, 1.08), drift_repeats=1, telemetry=False))
BAND = Facts(speeds=Speeds(band=(0.92, 1.08), drift_repeats=1, telemetry=True, answers=0.0, acceptance=False))
THREE_LOOK = Look(
    estimate=-0.0029, documents=THREE, sign_flip_p=0.25,
    interval=Ends(low=-0.012, high=0.0062, level=0.95, method=T), deciding=Ends(low=-0.012, high=0.0062, level=0.95, method=T),
)  # fmt: skip
GREEDY = Facts(look=LOOK, texts=Texts(provenance="engine v1.0.0 on the FP8 model, temperature 0", greedy=True))
TRAILING = Texts(roles={"generated": 18_432, "trailing": 12_032}, headline_roles=("generated",))

CASES = (
    # I1
    Case("batching-of-captures-that-ran-alone", SOLO, cause("batching"), cause("prefill chunk", "2")),
    Case("batching-of-captures-that-ran-alone", Facts(look=LOOK), cause("batching"), claim()),
    Case("chunk-where-repeats-agree", Facts(look=LOOK, requests=Requests(shared_steps=0, differs_from_chunk=0)),
         cause("prefill chunk", "2"), claim()),
    Case("another-number-than-measured", Facts(look=LOOK), claim(estimate=0.0006), claim(estimate=0.002701)),
    Case("rows-that-are-not-identical", Facts(look=Look(estimate=0.0, rows_equal=0.67)),
         claim(states="identical rows", measure="rows_bit_identical", verdict="bit-identical", estimate=None, interval=None, clusters=None),
         claim(states="identical rows", measure="rows_bit_identical", verdict="descriptive", estimate=None, interval=None, clusters=None),
         Facts(look=Look(rows_equal=1.0))),
    Case("one-run-of-the-baseline",
         Facts(look=Look(estimate=0.0027, deciding=ABOVE, documents=DOCUMENTS,
                         against=(AgainstRun("1.1", 0.0031, True), AgainstRun("2.1", 0.0009, False)))),
         claim(), claim(verdict="baseline-dependent")),
    Case("shift-of-a-mean-as-the-floor",
         Facts(look=LOOK, repeats=Repeats(documents=DOCUMENTS, per_row=0.019)),
         claim(floor=ClaimedFloor(value=0.0006, statistic="shift of a mean", documents=DOCUMENTS)),
         claim(floor=ClaimedFloor(value=0.019, documents=DOCUMENTS))),
    Case("no-word-of-a-missing-floor", Facts(look=LOOK, repeats=Repeats()), claim(), claim(limits=("no floor",))),
    Case("another-floor-than-measured", Facts(look=LOOK, repeats=Repeats(documents=DOCUMENTS, per_row=0.019)),
         claim(floor=ClaimedFloor(value=0.0001)), claim(floor=ClaimedFloor(value=0.019))),
    Case("measure-of-another-kind", Facts(look=LOOK), claim(measure="kl_pair_full"),
         claim(states="distance", measure="kl_pair_full", verdict="descriptive")),
    Case("measure-of-another-kind", Facts(look=OPEN), claim(states="distance", interval=ACROSS, verdict="descriptive"),
         claim(interval=ACROSS, verdict="descriptive")),
    Case("number-of-nothing-measured", Facts(look=Look(estimate=0.0027)),
         claim(verdict="descriptive", clusters=None), claim(verdict="descriptive", clusters=None, interval=None)),
    Case("number-of-nothing-measured", Facts(look=Look(estimate=0.0027)),
         claim(verdict="not resolved", clusters=None, interval=None, bound=0.001),
         claim(verdict="not resolved", clusters=None, interval=None, limits=("value only",))),
    # I2
    Case("inputs-that-differ", Facts(inputs=Inputs(same_tokens=True, same_nonces=False)),
         claim(states="identical inputs", verdict="descriptive"),
         claim(states="identical inputs", verdict="descriptive"), Facts(inputs=Inputs(same_tokens=True, same_nonces=True))),
    Case("inputs-that-differ", Facts(inputs=Inputs(same_tokens=True, same_nonces=True, counted=(131_096, 131_072))),
         claim(states="identical inputs", verdict="descriptive"), claim(verdict="descriptive")),
    Case("inputs-that-differ", Facts(), claim(states="identical inputs", verdict="descriptive"), claim(verdict="descriptive")),
    Case("engines-paired-by-seed", Facts(look=LOOK, inputs=Inputs(same_engine=False)), claim(paired_by="seed"), claim(paired_by="prompt")),
    # U1
    Case("bucket-of-one-block", Facts(look=LOOK, contents=Contents(rows=BLOCKS)),
         claim(population=Population(panel="pb", bucket="8-16K")), claim(population=Population(panel="pb", block="reading"))),
    Case("trend-within-no-block", Facts(contents=Contents(rows={}, within=FLAT)), claim(states="trend"),
         claim(states="trend"), Facts(contents=Contents(rows={}, within=GROWING))),
    Case("trend-within-no-block", Facts(look=LOOK, contents=Contents(rows={}, within=FLAT)), cause("context length"), claim()),
    Case("none-in-one-measure-said-of-all", Facts(look=Look(others={"kl_full": False, "nll": True})),
         claim(measure="any", verdict="not resolved", estimate=None, interval=None, clusters=None, limits=("value only",)),
         claim(measure="kl_full", verdict="not resolved", estimate=None, interval=None, clusters=None, limits=("value only",))),
    Case("rows-of-all-measures", Facts(look=Look(others={"kl_full": True, "nll": False})),
         claim(measure="any", estimate=None, interval=None, clusters=None),
         claim(measure="any", estimate=None, interval=None, clusters=None), Facts(look=Look(others={"kl_full": True, "nll": True}))),
    Case("trend-within-no-block", Facts(contents=Contents(rows={}, within={"chat": (-0.006, -0.001)})), claim(states="trend"),
         claim(states="trend"), Facts(contents=Contents(rows={}, within=GROWING))),
    Case("look-chosen-after-the-data", Facts(look=Look(estimate=0.0027, interval=ABOVE, documents=12, declared=False)),
         claim(headline=True, verdict="descriptive", limits=("looked at after the data",), population=Population(bucket="8-16K")),
         claim(verdict="descriptive", limits=("looked at after the data",), population=Population(bucket="8-16K"))),
    Case("beside-another-kind", Facts(look=LOOK), claim(level=0.9999), claim()),
    Case("beside-another-kind", Facts(look=LOOK), claim(counts={"faster": 99}), claim()),
    Case("content-as-the-cause", Facts(look=LOOK), cause("content", "reading"), claim()),
    Case("look-chosen-after-the-data", Facts(look=Look(estimate=0.0027, deciding=ABOVE, documents=12, declared=False)),
         claim(headline=True, population=Population(bucket="8-16K")),
         claim(verdict="descriptive", limits=("looked at after the data",), population=Population(bucket="8-16K"))),
    Case("headline-of-a-secondary-look", Facts(look=Look(estimate=0.0027, deciding=FAMILY, documents=12, primary=False)),
         claim(headline=True), claim(headline=True, interval=FAMILY)),
    # U2
    Case("ablation-of-several-settings", LAUNCHES, claim(states="ablation", cause=Cause(factor="setting", name="kda_fp8")),
         claim(confounds=("kda_fp8", "output_shard"))),
    Case("ablation-of-several-settings", Facts(look=LOOK), claim(states="ablation"),
         claim(states="ablation", cause=Cause(factor="setting", name="kda_fp8")),
         Facts(look=LOOK, launches=Launches(settings=("kda_fp8",)))),
    Case("ablation-of-several-settings", Facts(look=LOOK, launches=Launches(settings=("kda_fp8",))), claim(states="ablation"),
         claim(states="ablation", cause=Cause(factor="setting", name="kda_fp8"))),
    Case("ablation-of-several-settings", Facts(look=LOOK, launches=Launches()),
         claim(states="ablation", cause=Cause(factor="setting", name="kda_fp8")), claim()),
    Case("cause-that-is-not-named", Facts(look=LOOK), claim(states="cause"), claim()),
    Case("one-cause-of-several", Facts(look=LOOK, launches=Launches(undeclared=("indexer keys", "placement"))),
         cause("candidate", confounds=("indexer keys", "placement")), claim(confounds=("indexer keys", "placement"))),
    Case("sharpness-read-as-quality", GREEDY, claim(measure="nll", text="greedy, engine v1"),
         claim(measure="nll", text="greedy, engine v1", limits=("rewards sharpness",))),
    # U3
    Case("another-interval-than-measured", Facts(look=LOOK),
         claim(interval=Ends(low=5.0, high=6.0, level=0.95, method=BOOTSTRAP)), claim()),
    Case("another-interval-than-measured", Facts(look=LOOK),
         claim(interval=Ends(low=ABOVE.high, high=ABOVE.low, level=0.95, method=BOOTSTRAP)), claim()),
    Case("another-interval-than-measured", Facts(look=LOOK),
         claim(interval=Ends(low=ABOVE.low, high=ABOVE.high, level=0.99, method=BOOTSTRAP)), claim()),
    Case("another-interval-than-measured", Facts(look=LOOK),
         claim(interval=Ends(low=ABOVE.low, high=ABOVE.high, level=0.95, method="none at all")),
         claim()),
    Case("another-interval-than-measured", Facts(look=LOOK),
         claim(interval=Ends(low=ABOVE.low, high=ABOVE.high, level=0.9504, method=BOOTSTRAP)), claim()),
    Case("another-verdict-than-measured", Facts(look=LOOK), claim(verdict="not resolved", bound=0.004), claim()),
    Case("another-verdict-than-measured", Facts(look=OPEN), claim(verdict="baseline-dependent", interval=ACROSS),
         claim(verdict="not resolved", interval=ACROSS, bound=0.004)),
    Case("another-unit-than-measured", Facts(look=replace(LOOK, unit="nats")),
         claim(unit="bits"), claim()),
    Case("interval-that-holds-zero", Facts(look=OPEN), claim(interval=ACROSS), claim(interval=ACROSS, verdict="not resolved", bound=0.004)),
    Case("interval-that-holds-zero", Facts(look=THREE_LOOK),
         claim(estimate=-0.0029, clusters=3, interval=Ends(low=-0.012, high=0.0062, level=0.95, method=T)),
         claim(estimate=-0.0029, clusters=3, interval=Ends(low=-0.012, high=0.0062, level=0.95, method=T), verdict="not resolved",
               bound=0.012)),
    Case("bootstrap-of-few-documents", Facts(look=THREE_LOOK),
         claim(estimate=-0.0029, clusters=3, interval=Ends(low=-0.0078, high=-0.0002, level=0.95, method=BOOTSTRAP)),
         claim(estimate=-0.0029, clusters=3, interval=Ends(low=-0.012, high=0.0062, level=0.95, method=T), verdict="not resolved",
               bound=0.012)),
    Case("floor-of-other-documents", ELSEWHERE,
         claim(estimate=0.0141, clusters=6, interval=None, verdict="descriptive", floor=ClaimedFloor(value=0.0047, documents=TWO)),
         claim(estimate=0.0086, clusters=2, interval=None, verdict="descriptive", floor=ClaimedFloor(value=0.0047, documents=TWO))),
    Case("no-bound", Facts(look=OPEN), claim(interval=ACROSS, verdict="not resolved"),
         claim(interval=ACROSS, verdict="not resolved", bound=0.004)),
    Case("no-bound", Facts(look=OPEN), claim(interval=ACROSS, verdict="not resolved", limits=("value only",)),
         claim(interval=ACROSS, verdict="not resolved", bound=0.004)),
    Case("bound-below-the-interval", Facts(look=OPEN), claim(interval=ACROSS, verdict="descriptive", bound=0.001),
         claim(interval=ACROSS, verdict="descriptive")),
    Case("floor-of-other-documents", ELSEWHERE,
         claim(estimate=0.0141, clusters=6, interval=None, verdict="descriptive", floor=ClaimedFloor(value=0.0047)),
         claim(estimate=0.0141, clusters=6, interval=None, verdict="descriptive")),
    Case("bound-below-the-interval", Facts(look=OPEN), claim(interval=ACROSS, verdict="not resolved", bound=0.001),
         claim(interval=ACROSS, verdict="not resolved", bound=0.0041)),
    Case("one-document-carries-it", Facts(look=Look(estimate=0.0027, deciding=ABOVE, documents=DOCUMENTS, carried_by="doc-4")),
         claim(), claim(limits=("one document carries it",))),
    Case("wild-rows-laid-at-one-side",
         Facts(look=Look(estimate=0.0027, deciding=ABOVE, documents=DOCUMENTS, carried_by="doc-4"), repeated_documents=("doc-1",)),
         cause("baseline", limits=("one document carries it",)), claim(limits=("one document carries it",))),
    # U4
    Case("near-copies-counted-apart", Facts(look=Look(estimate=0.0027, interval=ABOVE, deciding=ABOVE, documents=DOCUMENTS, independent=1)),
         claim(), claim(clusters=1, interval=None, verdict="descriptive")),
    Case("reference-blamed-for-fragile-rows", Facts(look=LOOK, wild_with_itself=1.96), cause("reference"), claim()),
    Case("roles-pooled", Facts(look=LOOK, texts=TRAILING), claim(text="greedy"),
         claim(text="greedy", population=Population(role="generated"))),
    # U5
    Case("restated-text-counted-as-a-loop", Facts(replies=Replies(flagged=7, self_repeating=0)),
         claim(states="loops", measure="looped", estimate=7.0, interval=None, clusters=None, verdict="descriptive"),
         claim(states="loops", measure="looped", estimate=0.0, interval=None, clusters=None, verdict="descriptive")),
    Case("restated-text-counted-as-a-loop", Facts(replies=Replies(flagged=7, self_repeating=3)),
         claim(states="loops", measure="looped", estimate=0.0, interval=None, clusters=None, verdict="descriptive"),
         claim(states="loops", measure="looped", estimate=3.0, interval=None, clusters=None, verdict="descriptive")),
    # Long replies
    Case("replies-judged-by-no-declared-test", Facts(replied=Replied(declared=False, p=0.01)), replied("resolved"), replied("descriptive")),
    Case("replies-resolved-without-their-test", Facts(replied=Replied(declared=True, p=0.2)), replied("resolved"),
         replied("not resolved", limits=("value only",))),
    Case("ratio-of-replies-that-were-cut", Facts(replied=Replied(capped=0.4)), replied("descriptive", measure="length_ratio", estimate=1.1),
         replied("descriptive", measure="length_ratio", estimate=None)),
    # M1, M2
    Case("ratio-inside-the-band", BAND, ratio(estimate=1.05), ratio(estimate=1.05, verdict="level")),
    Case("level-outside-the-band", BAND, ratio(estimate=1.2, verdict="level"), ratio(estimate=1.2)),
    Case("another-band-than-measured", BAND, ratio(verdict="level", band=(0.1, 10.0)), ratio(band=(0.92, 1.08))),
    Case("another-band-than-measured", BAND, ratio(estimate=1.05, band=(0.999, 1.001)), ratio(estimate=1.05, verdict="level")),
    Case("side-of-a-ratio", BAND, ratio(verdict="slower"), ratio()),
    Case("side-of-a-ratio", BAND, ratio(measure="ttft_median_ms"), ratio(measure="ttft_median_ms", verdict="slower")),
    Case("content-of-another-cell", Facts(speeds=replace(BAND.speeds or Speeds(), answers=1.0, kind="code")), ratio(content="prose"),
         ratio(content="code")),
    Case("verdict-without-a-band", Facts(speeds=Speeds(telemetry=True)), ratio(), ratio(verdict="descriptive")),
    Case("speed-without-telemetry", NO_TELEMETRY, ratio(), ratio(limits=("no telemetry",))),
    Case("drafts-without-acceptance", BAND, ratio(cause=Cause(factor="draft policy")), ratio()),
    Case("content-that-was-not-written", BAND, ratio(content="code"), ratio(content="reasoning about code")),
    # M3
    Case("differences-left-out", Facts(look=LOOK, launches=Launches(undeclared=("memory share", "launcher"))), claim(),
         claim(confounds=("memory share", "launcher"))),
    # M4, M5, M6
    Case("word-of-another-kind", Facts(look=LOOK), claim(verdict="within bar"), claim()),
    Case("word-of-another-kind", Facts(look=LOOK), claim(verdict="level"), claim(verdict="descriptive")),
    Case("absolute-bar-without-the-paired-one", Facts(look=LOOK, paired_bar="not shown within bar"),
         claim(states="bar", bar="absolute", verdict="within bar"), claim(states="bar", bar="paired", verdict="not shown within bar")),
    Case("another-verdict-than-the-bar-gives", Facts(look=LOOK, paired_bar="not shown within bar"),
         claim(states="bar", bar="paired", verdict="within bar"), claim(states="bar", bar="paired", verdict="not shown within bar")),
    Case("bar-of-one-engine-used-across-two", Facts(look=LOOK, inputs=Inputs(same_engine=False)),
         claim(states="bar", bar="paired", verdict="within bar"),
         claim(states="bar", bar="paired", verdict="within bar", limits=("by analogy",))),
    Case("text-of-unsaid-provenance", GREEDY, claim(), claim(text="engine v1.0.0 on the FP8 model, temperature 0")),
    Case("path-that-was-not-scored", Facts(look=LOOK, scored_paths=("prefill",)), claim(score_path=None), claim(score_path="prefill")),
    Case("path-that-was-not-scored", Facts(look=LOOK, scored_paths=("prefill",)), claim(score_path="decode"), claim(score_path="prefill")),
    # public tools
    Case("colour-by-sign-alone", Facts(look=OPEN), claim(shown_as="sign colour", interval=ACROSS, verdict="not resolved", bound=0.004),
         claim(interval=ACROSS, verdict="not resolved", bound=0.004)),
    Case("quality-from-kl-alone", Facts(look=LOOK), claim(states="quality"), claim()),
    Case("quality-from-kl-alone", Facts(look=LOOK), claim(states="quality", measure="nll"), claim(measure="nll")),
    Case("compared-and-called-not-comparable", Facts(look=LOOK), claim(verdict="not comparable"), claim(verdict="descriptive")),
    Case("nothing-measured-of-it", Facts(unmeasured="pair p is not comparable: its sites differ", not_comparable=True), claim(),
         claim(verdict="not comparable", estimate=None, interval=None, clusters=None)),
    Case("evidence-of-one-side-alone", Facts(look=LOOK, measured_of={ROWS: ("K/cand@v1",), RECEIPT: ("K/base@v1", "K/cand@v1")}),
         claim(evidence=Cited(row_files=(ROWS,))), claim()),
    Case("truncated-beside-full", Facts(look=LOOK), claim(measure="kl_top20", baseline_measure="kl_full"),
         claim(measure="kl_top20", baseline_measure="kl_top20")),
    Case("stale-baseline", Facts(look=LOOK, ages=Ages(hours_apart=200.0)), claim(), claim(limits=("no control between captures",))),
    Case("stale-baseline", Facts(look=LOOK, ages=Ages(hours_apart=1.0, same_freeze=False)), claim(), claim(),
         Facts(look=LOOK, ages=Ages(hours_apart=1.0, same_freeze=True))),
    Case("evidence-that-is-not-there", Facts(look=LOOK, known=frozenset({RECEIPT, ROWS})), claim(evidence=Cited()), claim()),
    Case("evidence-that-is-not-there", Facts(look=LOOK, known=frozenset({RECEIPT, ROWS})), 
         claim(evidence=Cited(receipts=("cc" * 32,))), claim()),
    Case("evidence-of-other-arms", Facts(look=LOOK, owners={RECEIPT: ("K/cand@v1",), "cc" * 32: ("K/third@v1", "K/fourth@v1")}),
         claim(evidence=Cited(receipts=(RECEIPT, "cc" * 32))), claim(evidence=Cited(receipts=(RECEIPT,), row_files=(ROWS,)))),
    # counts
    Case("cells-counted-otherwise", Facts(cells=Cells({"faster": 12, "level": 9, "slower": 1})), counted(faster=19, level=3),
         counted(faster=12, level=9, slower=1)),
    Case("cells-counted-otherwise", Facts(cells=Cells({"faster": 12, "level": 10})), counted(faster=12), counted(faster=12, level=10)),
    Case("error-rate-of-fewer-looks", Facts(family=Family(15)), looked(5, 0.99), looked(15, 1 - 0.05 / 15)),
    Case("error-rate-of-fewer-looks", Facts(family=Family(15)), looked(15, 0.95), looked(15, 1 - 0.05 / 15)),
    Case("nothing-measured-of-it", Facts(unmeasured="the pair was not measured"), claim(), claim(), Facts(look=LOOK)),
)  # fmt: skip
