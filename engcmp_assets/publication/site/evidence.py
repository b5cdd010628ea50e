"""EVIDENCE.json: what the pages show beside the figures of SUMMARY.json, gathered from the inputs' files and receipts.

Tails of the row files, the launches as they were asked for, streams for the plot of overlap, telemetry thinned for its strips, what the
protocol declares, and of every arm and pair the chain of receipts down to the frozen hash.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from engcmp_assets.kernel.chain import chain_below
from engcmp_assets.kernel.claims.contents import confounded
from engcmp_assets.kernel.names import ALL, EVENTS, LAUNCH, SERVING
from engcmp_assets.kernel.records import ArmKey, plain
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.tables import read_parquet
from engcmp_assets.kernel.telemetry_table import TELEMETRY_COLUMNS
from engcmp_assets.kernel.throughput.scheduling import CLEAN_BELOW
from engcmp_assets.kernel.throughput.streams import stream_table
from engcmp_assets.kernel.work import Use, Work, sound_receipt
from engcmp_assets.publication.site.launch_files import launch_files

SCHEMA = "engcmp.evidence/1"
TAILS_FILE, SPEC_FILE, STARTS_FILE, TELEMETRY_FILE = "tails.json", "spec.json", "starts.json", "telemetry.parquet"
EVENTS_FILE, REQUESTS_FILE = "events.parquet", "requests.parquet"
SERIES = ("host_cpu_percent", "host_cpu_mhz", "power_w", "temperature_c", "sm_clock_mhz", "memory_used_bytes")
"""Columns of telemetry that are drawn, where they were read."""
POINTS = 120
"""Points of a strip: each is the mean of the samples of an equal part of the time."""
STREAMS = 400
"""Streams of an arm that are drawn: of more, every n-th in the order of their requests. Counts and medians are of all."""
_OUTPUTS = 4
_NS = 1e9


def uses(study: Study) -> tuple[Use, ...]:
    """What the pages need beside summaries and comparisons."""
    protocol = study.protocol
    serving = protocol.throughput or protocol.long_replies
    return (
        Use("tails", "every arm", (TAILS_FILE,)),
        Use(LAUNCH, "every arm", (SPEC_FILE, STARTS_FILE, TELEMETRY_FILE)),
        *([Use(SERVING, "every arm", (SPEC_FILE, STARTS_FILE, TELEMETRY_FILE))] if serving else []),
        *([Use(EVENTS, "every arm", (EVENTS_FILE, REQUESTS_FILE))] if protocol.throughput else []),
    )


def evidence_document(work: Work, summary: Mapping[str, Any]) -> dict[str, Any]:
    """EVIDENCE.json of what has been measured. Raises EngcmpError for an input that is not as its receipt says."""
    arms = work.study.protocol.arm_keys
    receipts: dict[str, Any] = {}
    chains = {key: _chain(work, sha256, of, receipts) for key, sha256, of in _owners(work, summary)}
    return {
        "schema": SCHEMA,
        "protocol": _protocol(work.study),
        "tails": {str(arm): _tails(work, arm) for arm in arms if ("tails", str(arm)) in work.inputs},
        "launches": {str(arm): _spec(work, arm, mode) for arm in arms if (mode := _mode(work, arm)) is not None},
        "launch_files": {
            str(arm): files
            for arm in arms
            if (mode := _mode(work, arm, first=SERVING)) is not None and (files := _launch_files(work, arm, mode))
        },
        "telemetry": {
            f"{arm} {mode.rpartition('/')[2]}": strips(read_parquet(work.file(mode, TELEMETRY_FILE, arm)))
            for arm in arms
            for mode in (LAUNCH, SERVING)
            if (mode, str(arm)) in work.inputs
        },
        "streams": {str(arm): _streams(work, arm) for arm in arms if (EVENTS, str(arm)) in work.inputs},
        "receipts": receipts,
        "chains": chains,
    }


def _protocol(study: Study) -> dict[str, Any]:
    """What the pages quote of the protocol; an engine's settings and pins as they are declared."""
    protocol = study.protocol
    document: dict[str, Any] = plain(protocol.model_dump(mode="json", by_alias=True))
    kept = (
        "sources",
        "reference",
        "checkpoints",
        "engines",
        "capture",
        "statistics",
        "throughput",
        "startup",
        "releases",
        "drift",
        "gpus",
        "not_run",
        "deviations",
        "reading_rules",
        "gaps",
    )
    found = {name: document[name] for name in kept if document.get(name)}
    found["panels"] = {
        name: {"windows": len(study.panel(name).windows), "rows": study.panel(name).rows}
        | ({"confounded": list(confounded(study.panel(name)))} if "bucket" in plan.by else {})
        for name, plan in protocol.panels.items()
    }
    found["has_long_replies"] = protocol.long_replies is not None
    found["iterations"] = [{"name": one.name, "frozen_sha256": one.frozen_sha256} for one in study.iterations]
    return found


def _tails(work: Work, arm: ArmKey) -> dict[str, Any]:
    """Of each panel the tails over all rows, by kind of content and by context length; as in tails.json, without the worst rows."""
    panels: Mapping[str, Any] = json.loads(work.file("tails", TAILS_FILE, arm).read_bytes())["panels"]
    return {
        panel: {
            "measure": own["measure"],
            "row_file_sha256": own["row_file_sha256"],
            "populations": {ALL: _numbers(own["overall"])}
            | {f"block:{name}": _numbers(one) for name, one in own["by_block"].items()}
            | {f"bucket:{name}": _numbers(one) for name, one in own["by_bucket"].items()},
        }
        for panel, own in panels.items()
    }


def _numbers(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name != "worst_rows"}


def _mode(work: Work, arm: ArmKey, *, first: str = LAUNCH) -> str | None:
    """A mode in which the arm was launched: `first` where it was, else the other; None where it was in none."""
    modes = (first, LAUNCH, SERVING)
    return next((mode for mode in modes if (mode, str(arm)) in work.inputs), None)


def _spec(work: Work, arm: ArmKey, mode: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(work.file(mode, SPEC_FILE, arm).read_bytes())
    return found


def _launch_files(work: Work, arm: ArmKey, mode: str) -> list[dict[str, str]]:
    """What a user copies to start the engine so: of its first start that left facts."""
    starts = json.loads(work.file(mode, STARTS_FILE, arm).read_bytes())
    return launch_files(next((one["facts"] for one in starts if one.get("facts")), {}))


def strips(table: Mapping[str, Any]) -> dict[str, Any]:
    """A launch's telemetry: of each series [seconds since its first sample, mean] by equal parts of the time, its range and median.

    Starts follow each other without the time between them. A series that was not read is its reason.
    """
    seconds = _elapsed(list(table["start"]), list(table["t_ns"]))
    if not len(seconds):
        return {"missing": "no sample was taken"}
    columns = {column.name: column for column in TELEMETRY_COLUMNS}
    found: dict[str, Any] = {"seconds": float(seconds.max()), "samples": len(np.unique(seconds)), "series": {}}
    for name in SERIES:
        values = np.asarray([np.nan if one is None else float(one) for one in table[name]], dtype=np.float64)
        known = np.isfinite(values)
        if not known.any():
            found["series"][name] = {"missing": _why(table, name), "unit": columns[name].unit}
            continue
        found["series"][name] = {
            "unit": columns[name].unit,
            "points": thinned(seconds[known], values[known]),
            "least": float(values[known].min()),
            "median": float(np.median(values[known])),
            "most": float(values[known].max()),
        }
    return found


def _elapsed(starts: Sequence[int], t_ns: Sequence[int]) -> np.ndarray:
    """Seconds of each sample since the first, the time between two starts left out: a clock may begin anew with the machine."""
    times, of = np.asarray(t_ns, dtype=np.float64), np.asarray(starts)
    found, offset = np.zeros(len(times)), 0.0
    for start in np.unique(of):
        own = of == start
        found[own] = offset + (times[own] - times[own].min()) / _NS
        offset = found[own].max()
    return found


def thinned(seconds: np.ndarray, values: np.ndarray, points: int = POINTS) -> list[list[float]]:
    """At most `points` pairs [mean time, mean value] of samples in equal parts of the time; parts without a sample are left out."""
    span = float(seconds.max()) or 1.0
    part = np.minimum((seconds / span * points).astype(np.int64), points - 1)
    return [
        [round(float(seconds[part == one].mean()), 3), round(float(values[part == one].mean()), 3)]
        for one in np.unique(part)
    ]


def _why(table: Mapping[str, Any], name: str) -> str:
    for text in table["missing"]:
        reasons = json.loads(text)
        for key in (name, name.removeprefix("host_"), "gpus", "index", "failed"):
            if key in reasons:
                return str(reasons[key])
    return "it was not read"


def _streams(work: Work, arm: ArmKey) -> dict[str, Any]:
    """The arm's streams with a decode rate: [share beside other streams' prefill, tokens/s]; how many, and those that are clean."""
    events, requests = (pl.read_parquet(work.file(EVENTS, name, arm)) for name in (EVENTS_FILE, REQUESTS_FILE))
    table = stream_table(events, requests)
    rate = "decode" if table["decode"].drop_nulls().len() else "decode_first1"
    return streams_of(table.select("overlap", rate).drop_nulls().rows(), rate)


def streams_of(streams: Sequence[tuple[float, float]], rate: str) -> dict[str, Any]:
    """The streams as the plot takes them: at most STREAMS points, and counts and medians of all."""
    if not streams:
        return {"missing": "no stream has a decode rate"}
    clean = [speed for overlap, speed in streams if overlap < CLEAN_BELOW]
    beside = [speed for overlap, speed in streams if overlap >= CLEAN_BELOW]
    step = -(-len(streams) // STREAMS)
    return {
        "rate": rate,
        "streams": len(streams),
        "clean": len(clean),
        "clean_below": CLEAN_BELOW,
        "clean_median_tok_s": _median(clean, "no stream decoded without prefill beside it"),
        "beside_median_tok_s": _median(beside, "no stream decoded beside other streams' prefill"),
        "points": [[round(overlap, 4), round(speed, 4)] for overlap, speed in streams[::step]],
    }


def _median(values: Sequence[float], none: str) -> Any:
    return float(np.median(values)) if values else {"missing": none}


def _owners(work: Work, summary: Mapping[str, Any]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Of each arm and pair: its key, the receipt that its figures are in, and the arms that it is made of."""
    for arm in work.study.protocol.arm_keys:
        done = work.inputs.get(("summaries", str(arm)))
        if done is not None:
            yield str(arm), done.sha256, (str(arm),)
    done = work.inputs.get(("comparisons", None))
    if done is not None:
        for pair in summary["comparisons"]:
            of_gap = (pair["gap"]["baseline"],) if pair.get("gap") else ()
            yield pair["pair_id"], done.sha256, (pair["candidate"], pair["baseline"], *of_gap)


def _chain(work: Work, sha256: str, arms: tuple[str, ...], receipts: dict[str, Any]) -> list[dict[str, Any]]:
    """The receipts below one as hashes with their depth; what a page says of each is put into `receipts` once."""
    read: dict[str, Mapping[str, Any]] = {}

    def receipt_of(name: str) -> Mapping[str, Any]:
        if name not in read:
            read[name] = sound_receipt(work.store, name)
        return read[name]

    found = []
    for link in chain_below(sha256, arms, receipt_of):
        found.append({"depth": link.depth, "sha256": link.sha256})
        if link.sha256 not in receipts:
            outputs = [one for one in link.receipt["outputs"] if one["role"] == "data"]
            receipts[link.sha256] = {
                "artifact": link.receipt["artifact"],
                "arm": link.receipt["arm"],
                "content_id": link.receipt["content_id"],
                "finished_at": link.receipt["finished_at"],
                "files": len(outputs),
                "outputs": [{name: one[name] for name in ("name", "sha256", "bytes")} for one in outputs[:_OUTPUTS]],
            }
    return found
