"""The measures of throughput, each described once (MEASURES section 6); kernel/measures.py has them with all others."""

from __future__ import annotations

from engcmp_assets.kernel.measure_record import Measure

_LATENCIES = {
    "ttft": (
        "First token",
        "Time from just before a request's bytes are sent to its first token event, reasoning included; events without a token do not "
        "count.",
    ),
    "ttfa": (
        "First answer text",
        "Time from just before a request's bytes are sent to its first token event of answer text, over the replies that have one.",
    ),
    "ttft_scheduled": (
        "First token, from the schedule",
        "Time from when a request was due to be sent to its first token event, so that a client that sends late is not hidden.",
    ),
}
_STATISTICS = {
    "median": ("median", "The median of the cell's requests."),
    "p90": (
        "90th percentile",
        "The 90th percentile of the cell's requests, between two of them by linear interpolation.",
    ),
    "max": ("longest", "The longest of the cell's requests."),
}
_FIRST1 = "The first update is taken as one token, as where an engine gives neither token ids nor continuous usage."

SPEED_MEASURES: tuple[Measure, ...] = (
    *(
        Measure(f"{name}_{statistic}_ms", 1, "ms", f"{title}, {word}", f"{definition} {which}", "lower")
        for name, (title, definition) in _LATENCIES.items()
        for statistic, (word, which) in _STATISTICS.items()
    ),
    Measure(
        "e2e_median_ms",
        1,
        "ms",
        "Last token, median",
        "Time from just before a request's bytes are sent to its last token event; what closes the stream is not in it. The median of "
        "the cell's requests.",
        "lower",
    ),
    Measure(
        "decode_tok_s",
        1,
        "tokens/s",
        "Decode rate of a stream",
        "The tokens of a reply after its first token event, divided by the time from the first to the last token event. The median of the "
        "cell's requests.",
        "higher",
    ),
    Measure(
        "decode_first1_tok_s",
        1,
        "tokens/s",
        "Decode rate of a stream, first update taken as one token",
        "The tokens of a reply less one, divided by the time from the first to the last token event; the median of the cell's requests. "
        + _FIRST1,
        "higher",
    ),
    Measure(
        "clean_decode_tok_s",
        1,
        "tokens/s",
        "Decode rate of a stream without prefill beside it",
        "The decode rate of the streams of which under 5 % of the time from the first to the last token event lies in other streams' "
        "prefill; their median.",
        "higher",
    ),
    Measure(
        "clean_decode_first1_tok_s",
        1,
        "tokens/s",
        "Decode rate of a stream without prefill beside it, first update taken as one token",
        "The decode rate, first update taken as one token, of the streams of which under 5 % of the time from the first to the last token "
        "event lies in other streams' prefill; their median.",
        "higher",
    ),
    Measure(
        "aggregate_tok_s",
        1,
        "tokens/s",
        "Tokens of all streams",
        "All tokens of the cell's replies, divided by the time from its first sending to its last token event. Prefill is in that time.",
        "higher",
    ),
    Measure(
        "aggregate_steady_tok_s",
        1,
        "tokens/s",
        "Tokens of all streams while all decode",
        "The tokens that came between the last stream's first token and the first stream's end, divided by that time. In a cell of several "
        "batches, the sum over the batches that have such a time.",
        "higher",
    ),
    Measure(
        "prefill_tok_s",
        1,
        "tokens/s",
        "Prefill rate",
        "Prompt tokens that were not cached, divided by the time to the first token, in cells of one stream only. The median of the cell's "
        "requests.",
        "higher",
    ),
    Measure(
        "prefill_share",
        1,
        "share of time",
        "Share of the cell before the last first token",
        "Time from the first sending to the last stream's first token, divided by the time to the last token event. In a cell of several "
        "batches, sums over the batches.",
        "neither",
    ),
    Measure(
        "overlap_share",
        1,
        "share of time",
        "Share of decode beside other streams' prefill",
        "The share of a stream's time from its first to its last token event during which another stream had not had its first token. The "
        "median of the cell's requests.",
        "neither",
    ),
    Measure(
        "update_gap_median_ms",
        1,
        "ms",
        "Time between updates, median",
        "Time from one token event to the next of its reply, over the replies of 8 token events or more. An event may carry several "
        "tokens: this is no time per token.",
        "lower",
    ),
    Measure(
        "tokens_per_update",
        1,
        "tokens",
        "Tokens of an update",
        "All tokens of the cell's replies, divided by their token events.",
        "neither",
    ),
    Measure(
        "chars_per_token",
        1,
        "characters",
        "Characters of a token",
        "All characters of the cell's replies, reasoning included, divided by their tokens.",
        "neither",
    ),
    Measure(
        "reasoning_share",
        1,
        "share of tokens",
        "Tokens in the reasoning",
        "Tokens that came as reasoning, divided by all tokens of the cell's token events.",
        "neither",
    ),
    Measure(
        "left_reasoning_share",
        1,
        "share of replies",
        "Replies with answer text",
        "The share of the cell's replies that have a token event of answer text or of a tool call.",
        "neither",
    ),
    Measure(
        "acceptance",
        1,
        "share of tokens",
        "Drafted tokens that were accepted",
        "Accepted tokens divided by drafted tokens, from the engine's own counters as differences over the cell.",
        "higher",
    ),
    Measure(
        "accepted_length",
        1,
        "tokens",
        "Tokens of a draft step",
        "1 + accepted tokens divided by draft steps, from the engine's own counters as differences over the cell.",
        "higher",
    ),
)

SPEED_IDS: tuple[str, ...] = tuple(one.id for one in SPEED_MEASURES)
