"""The conformance vector: small fixed rows, and what every measure and every judgement gives on them.

A changed definition shows here as another value; together with the declared versions these values are part of every freeze.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from engcmp_assets.frozen_protocol.reply_conformance import reply_values
from engcmp_assets.frozen_protocol.speed_conformance import speed_values, startup_values
from engcmp_assets.kernel.differences import compare
from engcmp_assets.kernel.floors import RunValues
from engcmp_assets.kernel.light_measures import light_of, pair_kl20, score_light
from engcmp_assets.kernel.measures import ADDED, MEASURES, ROW_MEASURES
from engcmp_assets.kernel.protocol import Protocol
from engcmp_assets.kernel.records import Missing, Role, Window
from engcmp_assets.kernel.reply_measures import REPLY_IDS
from engcmp_assets.kernel.row_measures import pair_kl, score_rows
from engcmp_assets.kernel.throughput.speed_measures import SPEED_IDS
from engcmp_assets.kernel.throughput.startup_measures import STARTUP_IDS
from engcmp_assets.kernel.topk_measures import pair_coarse, reduce_rows, score_topk, topk_of
from engcmp_assets.kernel.uncertainty import PANEL, population_mean, wilson
from engcmp_assets.scores.alignment import check_alignment
from engcmp_assets.tails.tail_statistics import TailRows, tail_statistics
from engcmp_resources.errors import EngcmpError

_ROWS, _VOCAB, _CLUSTERS = 96, 64, 12
# Declared versions of what is neither a measure nor a step: raise one when its result changes.
DRIVERS = {"reference": 1, "llamacpp-prefill": 1, "llamacpp-decode": 1}
# Of the kinds that are servers, by their name in a protocol.
SERVER_DRIVERS = {
    "docker": 1, "llama-server": 1, "vllm": 1, "sglang": 1, "external": 1, "cuteafd": 1, "vllm-fork": 1,
}  # fmt: skip
# Of the client that measures speeds, in studies that do.
LOAD_DRIVERS = {"load-client": 1}
# Of the client that makes long replies, in studies that do.
REPLY_DRIVERS = {"reply-client": 1}
CHECKERS = {"alignment": 1, "uncertainty": 1, "tails": 1, "comparison": 1}


def current_versions() -> dict[str, dict[str, Any]]:
    """All that this code has, by id and version: what a freeze is held against."""
    return {
        "measures": {name: measure.version for name, measure in sorted(MEASURES.items())},
        "drivers": DRIVERS | SERVER_DRIVERS | LOAD_DRIVERS | REPLY_DRIVERS,
        "checkers": dict(CHECKERS),
    }


def frozen_versions(protocol: Protocol) -> dict[str, dict[str, Any]]:
    """What a freeze of this protocol covers by id and version.

    Of the measures and drivers that came after the first studies were frozen only those that it uses: a study that uses none of them can
    be frozen again to the same hash.
    """
    kinds = {engine.kind for engine in protocol.engines.values()}
    left_out = (ADDED - _declared(protocol)) | (set(SERVER_DRIVERS) - kinds)
    left_out |= set() if protocol.throughput else set(LOAD_DRIVERS)
    left_out |= set() if protocol.long_replies else set(REPLY_DRIVERS)
    return {
        table: {name: version for name, version in entries.items() if name not in left_out}
        for table, entries in current_versions().items()
    }


def frozen_values(protocol: Protocol) -> dict[str, float]:
    """The values on the conformance vector that a freeze of this protocol keeps."""
    left_out = {f"mean {name}" for name in ADDED - _declared(protocol)}
    left_out |= set() if protocol.throughput else set(speed_values())
    left_out |= set() if protocol.startup else set(startup_values())
    left_out |= set() if protocol.long_replies else set(reply_values())
    return {name: value for name, value in conformance_values().items() if name not in left_out}


def _declared(protocol: Protocol) -> set[str]:
    rows = {name for plan in protocol.panels.values() for name in (*plan.measures, *plan.pair_measures)}
    rows |= set(REPLY_IDS if protocol.long_replies else ())
    rows |= {"gap_closed"} if any(plan.closes for plan in protocol.comparisons) else set()
    return rows | set(SPEED_IDS if protocol.throughput else ()) | set(STARTUP_IDS if protocol.startup else ())


@functools.cache
def conformance_values() -> Mapping[str, float]:
    """Every value on the conformance vector, by name. Raises EngcmpError where one could not be computed."""
    reference, engine, tokens = _rows(0), _rows(1), _tokens()
    scores = score_rows(reference, engine, tokens[1:], where="conformance vector")
    clusters = [f"cluster-{row % _CLUSTERS:02d}" for row in range(_ROWS)]
    values: dict[str, float] = {f"mean {name}": float(np.mean(getattr(scores, name))) for name in ROW_MEASURES}
    values["mean kl_pair_full"] = float(np.mean(pair_kl(reference, engine, where="conformance vector")))
    values |= _topk(reference, engine, tokens)
    values |= _light(reference, engine, tokens)
    values |= _judgements(scores.kl_full, scores.nll, clusters)
    values |= speed_values() | startup_values() | reply_values()
    roles: tuple[Role, ...] = tuple("context" for _ in range(_ROWS))
    windows = Window("w", tuple(tokens), tuple(range(_ROWS)), roles, "c", "b", "k")
    for test in check_alignment([(windows, scores.engine_top_id)]).tests:
        values[f"alignment p at {test.shift:+d}"] = test.p_shift_better
    return values


def _topk(reference: npt.NDArray[np.float64], engine: npt.NDArray[np.float64], tokens: list[int]) -> dict[str, float]:
    where = "conformance vector"
    teacher = topk_of(reference, tokens[1:], 16, where=where)
    kept, own = (reduce_rows(rows, teacher.top_ids, tokens[1:], where=where) for rows in (engine, reference))
    scores = score_topk(teacher, kept, where=where)
    return {
        "mean kl_coarse": float(np.mean(scores.kl_coarse)),
        "mean kl_pb20": float(np.mean(scores.kl_pb20)),
        "mean kl_pair_coarse": float(np.mean(pair_coarse(kept, own, where=where))),
    }


def _light(reference: npt.NDArray[np.float64], engine: npt.NDArray[np.float64], tokens: list[int]) -> dict[str, float]:
    """Of rows as an API gives them: their rest is what the top 20 leave."""
    where = "conformance vector"
    own, other = (replace(light_of(rows, tokens[1:], where=where), rest_log_mass=None) for rows in (engine, reference))
    return {
        "mean kl_top20": float(np.mean(score_light(reference, own, tokens[1:], where=where).kl_top20)),
        "mean kl_pair20": float(np.mean(pair_kl20(own, other, where=where)[0])),
    }


def _judgements(kl: npt.NDArray[np.float64], nll: npt.NDArray[np.float64], clusters: list[str]) -> dict[str, float]:
    whole = population_mean(kl, clusters, preset=PANEL)
    few = [index for index, name in enumerate(clusters) if name < "cluster-05"]
    small = population_mean(kl[few], [clusters[i] for i in few], preset=PANEL, kind="difference")
    edge = wilson(0, _CLUSTERS)
    runs = RunValues(("1.1", "1.2"), np.stack([kl, kl]))
    pair = compare(
        runs, RunValues(("1.1", "1.2"), np.stack([nll, nll])), clusters, preset=PANEL, primary=False, family=10
    )
    same = {name: np.full(len(kl), name) for name in ("window_id", "block", "bucket")}
    rows = TailRows.of(same | {"position": np.arange(len(kl)), "next_token": np.zeros(len(kl), dtype=np.int64)})
    tails = tail_statistics(kl, rows, row_file_sha256="0" * 64).overall
    return {
        "bootstrap low": _known(whole.interval).low,
        "bootstrap high": _known(whole.interval).high,
        "clustered standard error": _known(whole.standard_error),
        "t low": _known(small.interval).low,
        "t high": _known(small.interval).high,
        "sign-flip p": _known(small.sign_flip_p),
        "wilson high": _known(edge).high,
        "difference": _known(pair.difference.value),
        "difference bonferroni low": _known(pair.interval_bonferroni).low,
        "tails p99": tails.p99_nats,
        "tails worst 1 %": tails.worst_1_percent_mean_nats,
    }


def _known(value: Any) -> Any:
    if isinstance(value, Missing):
        raise EngcmpError(f"conformance vector: {value.reason}", remedy="this is a fault of engcmp: report it")
    return value


def _rows(side: int) -> npt.NDArray[np.float64]:
    """Logits [rows, vocabulary] from an integer formula: the same on every machine and every numpy."""
    row, token = np.meshgrid(np.arange(_ROWS), np.arange(_VOCAB), indexing="ij")
    base = ((row * 7919 + token * 104729) % 1009) / 100.0
    return np.asarray(base + side * ((row * 31 + token * 17) % 101) / 40.0, dtype=np.float64)


def _tokens() -> list[int]:
    return [(index * 37 + 11) % _VOCAB for index in range(_ROWS + 1)]
