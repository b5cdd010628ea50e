"""Telemetry samples as one table, without loss: a row for each sample and GPU, or one for the sample where there is no GPU."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from engcmp_assets.kernel.receipts import Column

Record = Mapping[str, Any]
_HOST = {"host_cpu_percent": "cpu_percent", "host_load_1m": "load_1m", "host_memory_available_bytes": "memory_available_bytes",
         "host_cpu_mhz": "cpu_mhz"}  # fmt: skip
TELEMETRY_COLUMNS = (
    Column("sample", "int", "1", "number of the sample, from 0"),
    Column("at", "str", "1", "when it was taken, UTC"),
    Column("t_ns", "int", "ns", "when it was taken, by the monotonic clock that requests are timed with"),
    Column("phase", "str", "1", "starting, capturing or stopping"),
    Column("host_cpu_percent", "float", "%", "share of all cores' time that was busy since the sample before"),
    Column("host_load_1m", "float", "1", "load average over one minute"),
    Column("host_memory_available_bytes", "int", "B", "memory that programs could still take"),
    Column("host_cpu_mhz", "float", "MHz", "mean frequency of up to eight cores"),
    Column("index", "int", "1", "the GPU, by NVML's index; none in a row without a GPU"),
    Column("lost", "int", "1", "1 where the driver says that the GPU is gone or needs a reset, else 0"),
    Column("uuid", "str", "1", "hash of the GPU's identity, 12 digits"),
    Column("name", "str", "1", "the GPU's model"),
    Column("power_limit_w", "float", "W", "power limit in force"),
    Column("default_power_limit_w", "float", "W", "power limit of the GPU as delivered"),
    Column("memory_total_bytes", "int", "B", "the GPU's memory"),
    Column("memory_used_bytes", "int", "B", "of it in use, without what the driver reserves where it tells that apart"),
    Column("memory_reserved_bytes", "int", "B", "of it reserved by the driver"),
    Column("sm_clock_mhz", "int", "MHz", "clock of the processors"),
    Column("memory_clock_mhz", "int", "MHz", "clock of the memory"),
    Column("power_w", "float", "W", "power drawn"),
    Column("temperature_c", "int", "degC", "temperature of the GPU"),
    Column("throttle_reasons", "str", "1", "what held the clocks down, as a JSON list; [] for nothing"),
    Column("utilisation_percent", "int", "%", "share of the driver's last period in which a kernel ran"),
    Column("memory_utilisation_percent", "int", "%", "share of it in which memory was read or written"),
    Column("compute_processes", "str", "1", "processes that compute, as a JSON list of {pid, name, used_bytes, ours}"),
    Column("graphics_processes", "str", "1", "processes that draw, likewise"),
    Column("missing", "str", "1", "why a value is not there, as a JSON object by column; gpus and failed are of the sample"),
)  # fmt: skip
_SAMPLE = ("at", "t_ns", "phase")
_LISTS = ("throttle_reasons", "compute_processes", "graphics_processes")
_GPU = tuple(column.name for column in TELEMETRY_COLUMNS[8:-1])


def telemetry_table(samples: Sequence[Record]) -> dict[str, list[Any]]:
    """The samples of `engcmp_resources.telemetry.read_samples` as columns, in their order; None with a reason under `missing`."""
    rows = [row for number, sample in enumerate(samples) for row in _rows(number, sample)]
    return {column.name: [row.get(column.name) for row in rows] for column in TELEMETRY_COLUMNS}


def samples_of(table: Mapping[str, Iterable[Any]]) -> list[dict[str, Any]]:
    """The samples that a table was made of, so that a judgement can be made again from the stored file."""
    names = [column.name for column in TELEMETRY_COLUMNS]
    samples: dict[int, dict[str, Any]] = {}
    for values in zip(*(list(table[name]) for name in names), strict=True):
        row = dict(zip(names, values, strict=True))
        reasons = json.loads(row["missing"])
        sample = samples.setdefault(int(row["sample"]), {name: _back(row, name, {}) for name in _SAMPLE})
        if "failed" in reasons:
            sample["failed"] = reasons["failed"]
            continue
        sample["host"] = {name: _back(row, column, reasons) for column, name in _HOST.items()}
        if "gpus" in reasons:
            sample["gpus"] = {"missing": reasons["gpus"]}
        else:
            gpus = sample.setdefault("gpus", [])
            if "index" not in reasons:
                gpus.append({name: _back(row, name, reasons) for name in _GPU} | {"lost": bool(row["lost"])})
    return list(samples.values())


def _rows(number: int, sample: Record) -> list[dict[str, Any]]:
    base = {"sample": number} | {name: sample[name] for name in _SAMPLE}
    if "failed" in sample:
        return [base | {"missing": json.dumps({"failed": sample["failed"]})}]
    host = {column: sample["host"][name] for column, name in _HOST.items()}
    gpus = sample["gpus"]
    if isinstance(gpus, Mapping):
        return [_row(base | host, {"gpus": gpus["missing"]})]
    if not gpus:
        return [_row(base | host, {"index": "the driver lists no GPU"})]
    return [_row(base | host | dict(gpu), {}) for gpu in gpus]


def _row(values: Mapping[str, Any], reasons: Mapping[str, str]) -> dict[str, Any]:
    told = {name: value for name, value in values.items() if not isinstance(value, Mapping)}
    lacking = {name: value["missing"] for name, value in values.items() if isinstance(value, Mapping)}
    for name in _LISTS:
        if name in told:
            told[name] = json.dumps(told[name])
    if "lost" in told:
        told["lost"] = int(told["lost"])
    return told | {"missing": json.dumps({**lacking, **reasons}, sort_keys=True)}


def _back(row: Record, column: str, reasons: Mapping[str, str]) -> Any:
    if column in reasons:
        return {"missing": reasons[column]}
    value = row[column]
    if column in _LISTS:
        return json.loads(value)
    # A column that lacks some values comes back from Parquet as floats.
    kind = next(one.dtype for one in TELEMETRY_COLUMNS if one.name == column)
    return int(value) if kind == "int" else float(value) if kind == "float" else value
