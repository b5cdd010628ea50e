"""Every measure, described once: its unit, its one definition and which way is better (MEASURES sections 2 and 6)."""

from __future__ import annotations

from engcmp_assets.kernel.measure_record import Measure
from engcmp_assets.kernel.reply_measures import REPLY_IDS, REPLY_MEASURES
from engcmp_assets.kernel.throughput.speed_measures import SPEED_IDS, SPEED_MEASURES
from engcmp_assets.kernel.throughput.startup_measures import STARTUP_IDS, STARTUP_MEASURES
from engcmp_resources.errors import EngcmpError

_ALL = (
    Measure(
        "kl_full",
        1,
        "nats",
        "KL divergence from the reference",
        "Sum over the whole vocabulary of p (log p - log q), where p is the reference's distribution of the next token "
        "and q the engine's. 0 means that the two are equal.",
        "lower",
    ),
    Measure(
        "nll",
        1,
        "nats",
        "Negative log-likelihood of the text",
        "-log q(next token): how surprised the engine is by the token that follows in the window.",
        "lower",
    ),
    Measure(
        "top1",
        1,
        "share of rows",
        "Same first choice as the reference",
        "1 where the engine's most probable token is the reference's most probable token, else 0. "
        "Equal probabilities go to the lower token id on both sides.",
        "higher",
    ),
    Measure(
        "entropy",
        1,
        "nats",
        "Entropy of the engine's distribution",
        "Minus the sum over the vocabulary of q log q: how spread out the engine's prediction is.",
        "neither",
    ),
    Measure(
        "excess_entropy",
        1,
        "nats",
        "Entropy above the reference's",
        "Entropy of the engine's distribution minus entropy of the reference's on the same row. "
        "Above 0 the engine is less certain than the reference, below 0 more.",
        "neither",
    ),
    Measure(
        "nll_minus_reference",
        1,
        "nats",
        "Negative log-likelihood above the reference's",
        "The engine's -log q(next token) minus the reference's -log p(next token) of the same token.",
        "lower",
    ),
    Measure(
        "agree_text",
        1,
        "share of rows",
        "First choice is the text's next token",
        "1 where the engine's most probable token is the token that follows in the window, else 0.",
        "higher",
    ),
    Measure(
        "top3_contained",
        1,
        "share of rows",
        "First choice among the reference's top three",
        "1 where the engine's most probable token is one of the reference's three most probable tokens, else 0. "
        "Equal probabilities go to the lower token id.",
        "higher",
    ),
    Measure(
        "top1_confident50",
        1,
        "share of rows",
        "Same first choice where the reference is confident (0.5)",
        "Share of rows with the same first choice as the reference, over the rows where the reference gives its own "
        "first choice a probability of at least 0.5.",
        "higher",
    ),
    Measure(
        "top1_confident90",
        1,
        "share of rows",
        "Same first choice where the reference is confident (0.9)",
        "Share of rows with the same first choice as the reference, over the rows where the reference gives its own "
        "first choice a probability of at least 0.9.",
        "higher",
    ),
    Measure(
        "misses_per_1000",
        1,
        "rows per 1,000",
        "First choices that differ, per 1,000 rows",
        "1,000 times the share of rows where the engine's first choice is not the reference's.",
        "lower",
    ),
    Measure(
        "rows_bit_identical",
        1,
        "share of rows",
        "Rows equal bit for bit",
        "Share of rows whose raw values are equal bit for bit in two captures, by a hash of each raw row that was "
        "taken at capture.",
        "higher",
    ),
    Measure(
        "kl_pair_full",
        1,
        "nats",
        "KL divergence between two captures",
        "Sum over the whole vocabulary of a (log a - log b), where a and b are two engines' distributions of the same "
        "next token (or those of two repeats of one engine).",
        "neither",
    ),
    Measure(
        "kl_coarse",
        1,
        "nats",
        "KL divergence from a top-K reference",
        "Sum over the reference's 1,024 most probable tokens, and all other tokens as one, of p (log p - log q), where p is "
        "the reference's distribution of the next token and q the engine's. The reference's values are stored as 16-bit "
        "numbers and scaled to sum to 1 again, so a row can read a little above its full divergence.",
        "lower",
    ),
    Measure(
        "kl_pb20",
        1,
        "nats",
        "KL divergence from a top-K reference, engine's top 20",
        "Sum over those of the engine's 20 most probable tokens that are among the reference's 1,024, and all other tokens "
        "as one, of p (log p - log q), where p is the reference's distribution, scaled to sum to 1 as stored, and q the "
        "engine's. The engine's share of the other tokens is 1 minus the sum of the listed ones.",
        "lower",
    ),
    Measure(
        "kl_pair_coarse",
        1,
        "nats",
        "KL divergence between two captures, reference's top K",
        "Sum over the reference's 1,024 most probable tokens, and all other tokens as one, of a (log a - log b), where a and "
        "b are two engines' distributions of the same next token (or those of two repeats of one engine).",
        "neither",
    ),
    Measure(
        "kl_top20",
        1,
        "nats",
        "KL divergence from the reference, engine's top 20",
        "Sum over the engine's 20 most probable tokens, and all other tokens as one, of p (log p - log q), where p is the "
        "reference's distribution of the next token and q the engine's. Of an engine that gives no more than these 20, its "
        "share of the other tokens is 1 minus their sum; the value never exceeds the divergence over the whole vocabulary.",
        "lower",
    ),
    Measure(
        "kl_pair20",
        1,
        "nats",
        "KL divergence between two captures, shared top 20",
        "Sum over the tokens that both captures list among their 20 most probable, and all other tokens as one, of "
        "a (log a - log b), where a and b are two engines' distributions of the same next token (or those of two repeats of "
        "one engine).",
        "neither",
    ),
    Measure(
        "kl_pair_full_symmetric",
        1,
        "nats",
        "KL divergence between two captures, mean of both directions",
        "Half the sum of the divergence from the first capture to the second and that from the second to the first, each "
        "over the whole vocabulary.",
        "neither",
    ),
    Measure(
        "confident90_misses_per_1000",
        1,
        "rows per 1,000",
        "First choices that differ, per 1,000 rows where the reference is confident (0.9)",
        "1,000 times the share of rows where the engine's first choice is not the reference's, over the rows where the "
        "reference gives its own first choice a probability of at least 0.9.",
        "lower",
    ),
    Measure(
        "confident90_misses_per_1000_of_all",
        1,
        "rows per 1,000",
        "First choices that differ where the reference is confident (0.9), per 1,000 rows of all",
        "1,000 times the number of rows where the reference gives its own first choice a probability of at least 0.9 and the "
        "engine's first choice is another, divided by the number of all rows.",
        "lower",
    ),
    Measure(
        "entropy_ratio",
        1,
        "ratio",
        "Entropy as a ratio to the reference's",
        "Entropy of the engine's distribution, summed over the rows, divided by that of the reference's over the same rows. "
        "Above 1 the engine is less certain than the reference, below 1 more.",
        "neither",
    ),
    Measure(
        "excess_entropy_at_most",
        1,
        "nats",
        "Entropy above a top-K reference's, at most",
        "Entropy of the engine's distribution minus that of the reference's stored tokens and all other tokens as one. "
        "The reference's own entropy is at least this, so the excess is at most the value: an upper bound.",
        "neither",
    ),
    Measure(
        "gap_closed",
        1,
        "share",
        "Share of a gap that a setting closes",
        "1 - (s - b) / (c - b), of the mean distance from the reference of a baseline b, a candidate c and the candidate with a setting s, "
        "all resampled together: 1 where s is as close as b, 0 where the setting changes nothing. Missing unless the difference of c and b "
        "is resolved.",
        "higher",
    ),
    *SPEED_MEASURES,
    *STARTUP_MEASURES,
    *REPLY_MEASURES,
)

MEASURES: dict[str, Measure] = {one.id: one for one in _ALL}

ADDED: frozenset[str] = frozenset(
    {
        "kl_top20",
        "kl_pair20",
        "kl_pair_full_symmetric",
        "confident90_misses_per_1000",
        "confident90_misses_per_1000_of_all",
        "entropy_ratio",
        "excess_entropy_at_most",
        "gap_closed",
        *SPEED_IDS,
        *STARTUP_IDS,
        *REPLY_IDS,
    }
)
"""The measures that came after studies were frozen: a freeze covers one of them only where its study declares it, so that a study
that does not can be frozen again to the same hash."""

ROW_MEASURES: tuple[str, ...] = (
    "kl_full",
    "nll",
    "top1",
    "entropy",
    "excess_entropy",
    "nll_minus_reference",
    "agree_text",
    "top3_contained",
)
"""The measures with one value a row, which are columns of a row file; the others are made of these or of row hashes."""

TOPK_ROW_MEASURES: tuple[str, ...] = ("kl_coarse", "kl_pb20", "nll", "top1", "entropy")
"""The same on a panel whose reference is top-K rows."""

LIGHT_ROW_MEASURES: tuple[str, ...] = ("kl_top20", "nll", "top1", "nll_minus_reference", "agree_text", "top3_contained")
"""The same where only an engine's 20 most probable tokens and the actual one are kept, with a full reference."""

LIGHT_TOPK_ROW_MEASURES: tuple[str, ...] = ("kl_pb20", "nll", "top1")
"""The same with a top-K reference."""

WITHOUT_REFERENCE: tuple[str, ...] = ("nll", "entropy", "agree_text")
"""The same on a panel that has no reference."""

DISTANCES: tuple[str, ...] = ("kl_full", "kl_coarse", "kl_top20", "kl_pb20")
"""The distances from a reference: of these a share or a ratio means something. No two are ever compared with each other."""


def measure(measure_id: str) -> Measure:
    """The measure called `measure_id`. Raises EngcmpError for an id that nothing defines."""
    found = MEASURES.get(measure_id)
    if found is None:
        raise EngcmpError(f"no measure is called {measure_id!r}", remedy=f"the measures are {', '.join(MEASURES)}")
    return found
