"""What a study asks of its GPUs before a launch, during a capture and after the stop, judged on what NVML told.

Pure: snapshots and samples come in as the JSON that receipts and telemetry hold, so that a judgement can be made again from them.
A value that the driver did not tell is `{"missing": reason}`; what cannot be known is said, and never passes as good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from engcmp_assets.kernel.fields import Strict
from engcmp_resources.errors import EngcmpError

_Index = Annotated[int, Field(ge=0)]
_Bytes = Annotated[int, Field(ge=0)]
ThrottleWord = Literal[
    "gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal_slowdown",
    "hw_thermal_slowdown", "hw_power_brake_slowdown", "display_clock_setting", "board_limit", "reliability",
]  # fmt: skip
"""What telemetry calls the reasons for which a GPU's clocks are held down."""
CAPTURING = "capturing"
"""The phase of the samples that are taken from the engine's readiness to its stop."""
_GB = 1e9
_SAME_LIMIT_W = 0.5  # limits are set in whole watts and told in milliwatts
Record = Mapping[str, Any]


class GpuRules(Strict):
    """The table `[gpus]` of a protocol. Indices are NVML's (PCI order); keys of tables are indices of `use`."""

    use: Annotated[tuple[_Index, ...], Field(min_length=1)]
    """The GPUs that the engines of this study take; the lock is for exactly these."""
    driver: str | None = None
    """The driver's version, as NVML tells it; None: any, recorded."""
    power_limit_w: dict[_Index, Annotated[float, Field(gt=0)]] | None = None
    """The enforced power limit that each GPU must have."""
    allowance_bytes: dict[_Index, _Bytes] = Field(default_factory=dict)
    """What programs that draw (a desktop session) may hold of a GPU; 0 where it is not named. Foreign computing has no allowance."""
    idle_bytes: _Bytes = 64 * 2**20
    """Memory in use that no process is told to hold, up to which a GPU counts as free."""
    free_bytes_at_least: dict[_Index, _Bytes] | None = None
    """Free memory that each GPU must have before a launch."""
    returned_within_bytes: _Bytes = 256 * 2**20
    """How much more may be in use after the stop than before the launch."""
    throttled_share_at_most: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Share of a capture's samples in which one of `throttle_words` held."""
    throttle_words: tuple[ThrottleWord, ...] = (
        "hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown",
    )  # fmt: skip
    """Which reasons count. `sw_power_cap` does not by default: a declared power limit is a condition, not a disturbance."""
    unwatched_share_at_most: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Share of a capture's samples that may lack what the rules need."""

    @model_validator(mode="after")
    def _is_consistent(self) -> GpuRules:
        if len(set(self.use)) != len(self.use):
            raise ValueError("use names a GPU twice")
        for name in ("power_limit_w", "allowance_bytes", "free_bytes_at_least"):
            others = set(getattr(self, name) or {}) - set(self.use)
            if others:
                raise ValueError(f"{name} names GPU {min(others)}, which is not in use")
        return self


@dataclass(frozen=True, slots=True)
class GpuFinding:
    """Something that the rules do not allow. `voids`: what was captured meanwhile is no measurement of the engine."""

    name: str
    explanation: str
    evidence: dict[str, Any] = field(default_factory=dict)
    voids: bool = False


def foreign_processes(gpu: Record) -> list[Record]:
    """The processes on a GPU that are not the engine's, by pid: `{pid, name, kinds, used_bytes}`; the two lists are merged."""
    found: dict[int, dict[str, Any]] = {}
    for kind in ("compute", "graphics"):
        for process in _listed(gpu, kind):
            if not process["ours"]:
                entry = found.setdefault(
                    process["pid"], {name: process[name] for name in ("pid", "name", "used_bytes")}
                )
                entry.setdefault("kinds", []).append(kind)
    return [found[pid] for pid in sorted(found)]


def foreign_bytes(gpu: Record) -> int | None:
    """What foreign processes hold of a GPU; where the driver does not tell one of them, at most all that is not the engine's.

    None where even that is not told.
    """
    held = [process["used_bytes"] for process in foreign_processes(gpu)]
    if all(map(_is_told, held)):
        return sum(int(one) for one in held)
    used, ours = gpu["memory_used_bytes"], _own_bytes(gpu)
    return int(used) - ours if _is_told(used) else None


def check_before_launch(snapshot: Record, rules: GpuRules) -> list[GpuFinding]:
    """What keeps an engine from being started on the GPUs of `rules`; empty where nothing does.

    `snapshot` is `GpuSnapshot.as_json()`, or `{"missing": reason}` on a host without a driver.
    """
    if not _is_told(snapshot) or not _is_told(snapshot["gpus"]):
        reason = (snapshot if not _is_told(snapshot) else snapshot["gpus"])["missing"]
        return [GpuFinding("no_device", f"the study uses GPU {_names(rules.use)}, and there is {reason}")]
    found = []
    if rules.driver is not None and snapshot["driver"] != rules.driver:
        told = snapshot["driver"]
        found.append(
            GpuFinding("driver", f"the driver is {_told(told)}, the protocol declares {rules.driver}", {"driver": told})
        )
    gpus = {gpu["index"]: gpu for gpu in snapshot["gpus"]}
    for index in rules.use:
        gpu = gpus.get(index)
        if gpu is None or gpu["lost"]:
            why = "is not there" if gpu is None else "is lost, as the driver says"
            found.append(GpuFinding("gpu_absent", f"GPU {index} {why}", {"gpu": index}))
        else:
            found += [one for check in _BEFORE for one in check(gpu, rules)]
    return found


def refuse(findings: Sequence[GpuFinding], *, where: str) -> None:
    """Raise EngcmpError with all findings in one line, if there are any."""
    if findings:
        raise EngcmpError(
            "the GPUs are not as the protocol asks: " + "; ".join(finding.explanation for finding in findings),
            where=where, remedy="end what uses them, or set them as declared under [gpus], and start again",
        )  # fmt: skip


def check_after_stop(before: Record, after: Record, rules: GpuRules) -> list[GpuFinding]:
    """What an engine left on the GPUs: its processes, or memory that is neither given back nor another process's.

    Both are `GpuSnapshot.as_json()`. What foreign processes took or freed meanwhile is in the evidence.
    """
    if not (_is_told(before) and _is_told(after) and _is_told(before["gpus"]) and _is_told(after["gpus"])):
        return [GpuFinding("memory_not_known", "whether the memory was given back is not known: a snapshot is missing")]
    was, now = ({gpu["index"]: gpu for gpu in shot["gpus"]} for shot in (before, after))
    return [one for index in rules.use for one in _left_on(was.get(index), now.get(index), index, rules)]


def judge(samples: Sequence[Record], rules: GpuRules) -> list[GpuFinding]:
    """What a reader must know of a capture's GPUs, from its telemetry samples (`engcmp_resources.telemetry`).

    Only samples of the phase `capturing` count. A GPU that was lost, or that the engine left and did not take again, voids the
    capture; throttling beyond the share, another process that joined, and samples that lack what is needed, are flagged.
    """
    samples = [sample for sample in samples if sample["phase"] == CAPTURING]
    if not samples:
        return [GpuFinding("not_watched", "no telemetry was taken while the engine captured")]
    findings: list[GpuFinding] = []
    for index in rules.use:
        seen = [_gpu_in(sample, index) for sample in samples]
        for rule in (_lost, _left_by_the_engine, _throttled, _joined, _unwatched):
            findings += rule(index, seen, rules)
    return findings


def _wrong_power_limit(gpu: Record, rules: GpuRules) -> Iterable[GpuFinding]:
    declared, told = (rules.power_limit_w or {}).get(gpu["index"]), gpu["power_limit_w"]
    if declared is not None and not (_is_told(told) and abs(told - declared) <= _SAME_LIMIT_W):
        text = f"the power limit of GPU {gpu['index']} is {_told(told)} W, the protocol declares {declared:g} W"
        yield GpuFinding("power_limit", text, {"gpu": gpu["index"], "power_limit_w": told})


def _foreign(gpu: Record, rules: GpuRules) -> Iterable[GpuFinding]:
    index, foreign = gpu["index"], foreign_processes(gpu)
    for kind in ("compute", "graphics"):
        listed = gpu[f"{kind}_processes"]
        if not _is_told(listed):
            text = f"which {kind} processes use GPU {index} is not known: {listed['missing']}"
            yield GpuFinding("processes_not_known", text, {"gpu": index})
    computing = [process for process in foreign if process["kinds"] == ["compute"]]
    if computing:
        text = f"GPU {index} is used by {_named(computing)}"
        yield GpuFinding("foreign_compute", text, {"gpu": index, "processes": computing})
    drawing = [process for process in foreign if process not in computing]
    allowed, held = rules.allowance_bytes.get(index, 0), foreign_bytes(gpu)
    if drawing and (held is None or held > allowed):
        much = "an amount that is not told" if held is None else f"{held / _GB:.2f} GB"
        text = f"{_named(drawing)} hold {much} of GPU {index}, allowed are {allowed / _GB:.2f} GB"
        yield GpuFinding("foreign_graphics", text, {"gpu": index, "processes": drawing, "held_bytes": held})


def _unseen_memory(gpu: Record, rules: GpuRules) -> Iterable[GpuFinding]:
    """Processes of another container or virtual machine hold memory and are in no list."""
    index, used = gpu["index"], gpu["memory_used_bytes"]
    if not _is_told(used):
        yield GpuFinding(
            "memory_not_known", f"the memory in use of GPU {index} is not known: {used['missing']}", {"gpu": index}
        )
        return
    foreign = foreign_bytes(gpu) or 0
    unseen, allowed = used - _own_bytes(gpu) - foreign, max(0, rules.allowance_bytes.get(index, 0) - foreign)
    if unseen > rules.idle_bytes + allowed:
        text = f"{unseen / _GB:.2f} GB of GPU {index} are in use by no process that can be seen here"
        yield GpuFinding("unseen_memory", text, {"gpu": index, "unseen_bytes": unseen})


def _too_little_free(gpu: Record, rules: GpuRules) -> Iterable[GpuFinding]:
    index = gpu["index"]
    needed = (rules.free_bytes_at_least or {}).get(index)
    if needed is None:
        return
    total, used, reserved = (gpu[f"memory_{name}_bytes"] for name in ("total", "used", "reserved"))
    free = total - used - (reserved if _is_told(reserved) else 0) if _is_told(total) and _is_told(used) else None
    if free is None or free < needed:
        much = "unknown" if free is None else f"{free / _GB:.2f} GB"
        text = f"the free memory of GPU {index} is {much}, the study needs {needed / _GB:.2f} GB"
        yield GpuFinding("too_little_free", text, {"gpu": index, "free_bytes": free})


_BEFORE: tuple[Callable[[Record, GpuRules], Iterable[GpuFinding]], ...] = (
    _wrong_power_limit, _foreign, _unseen_memory, _too_little_free,
)  # fmt: skip


def _left_on(was: Record | None, now: Record | None, index: int, rules: GpuRules) -> Iterable[GpuFinding]:
    if was is None or now is None or now["lost"]:
        yield GpuFinding("gpu_absent", f"GPU {index} is not there after the stop", {"gpu": index}, voids=True)
        return
    ours = sorted(
        {process["pid"] for kind in ("compute", "graphics") for process in _listed(now, kind) if process["ours"]}
    )
    if ours:
        yield GpuFinding(
            "engine_still_there", f"the engine still has {len(ours)} processes on GPU {index}", {"gpu": index}
        )
    used = [shot["memory_used_bytes"] for shot in (was, now)]
    foreign = [foreign_bytes(shot) for shot in (was, now)]
    if not all(map(_is_told, used)) or None in foreign:
        yield GpuFinding("memory_not_known", f"whether GPU {index} has its memory back is not known", {"gpu": index})
        return
    co_tenants = (foreign[1] or 0) - (foreign[0] or 0)
    kept = used[1] - used[0] - co_tenants
    if kept > rules.returned_within_bytes:
        text = f"{kept / _GB:.2f} GB of GPU {index} were not given back after the stop"
        evidence = {
            "gpu": index,
            "kept_bytes": kept,
            "foreign_bytes_before": foreign[0],
            "foreign_bytes_after": foreign[1],
        }
        yield GpuFinding("memory_not_returned", text, evidence)


def _lost(index: int, seen: Sequence[Record | None], _rules: GpuRules) -> Iterable[GpuFinding]:
    lost = [at for at, gpu in enumerate(seen) if gpu is not None and gpu["lost"]]
    if lost:
        text = f"GPU {index} was lost during the capture"
        yield GpuFinding("gpu_lost", text, {"gpu": index, "first_sample": lost[0]}, voids=True)


def _left_by_the_engine(index: int, seen: Sequence[Record | None], _rules: GpuRules) -> Iterable[GpuFinding]:
    """A container that lost its GPU computes elsewhere, or waits: its process is no longer on the GPU that is there."""
    told = [
        any(process["ours"] for process in gpu["compute_processes"])
        for gpu in seen
        if gpu is not None and not gpu["lost"] and _is_told(gpu["compute_processes"])
    ]
    if True in told and not told[-1]:
        text = f"the engine left GPU {index} before the capture's end"
        yield GpuFinding("engine_left", text, {"gpu": index, "samples_without": told[::-1].index(True)}, voids=True)


def _throttled(index: int, seen: Sequence[Record | None], rules: GpuRules) -> Iterable[GpuFinding]:
    told = [gpu["throttle_reasons"] for gpu in seen if gpu is not None and _is_told(gpu["throttle_reasons"])]
    if not told:
        yield GpuFinding("throttling_not_known", f"whether GPU {index} throttled is not known", {"gpu": index})
        return
    held = [reasons for reasons in told if set(reasons) & set(rules.throttle_words)]
    share = len(held) / len(told)
    if share > rules.throttled_share_at_most:
        counts = {word: sum(word in reasons for reasons in told) for word in sorted({w for r in told for w in r})}
        text = f"GPU {index} throttled in {share:.1%} of the samples, allowed are {rules.throttled_share_at_most:.1%}"
        yield GpuFinding("throttled", text, {"gpu": index, "share": share, "samples": len(told), "reasons": counts})


def _joined(index: int, seen: Sequence[Record | None], rules: GpuRules) -> Iterable[GpuFinding]:
    """Foreign computing in any sample; a program that draws only where it came later and the allowance was passed."""
    shots = [gpu for gpu in seen if gpu is not None]
    before = {process["pid"] for process in (foreign_processes(shots[0]) if shots else [])}
    joined: dict[int, Record] = {}
    for gpu in shots:
        held = foreign_bytes(gpu)
        within = held is not None and held <= rules.allowance_bytes.get(index, 0)
        for process in foreign_processes(gpu):
            if process["kinds"] == ["compute"] or (process["pid"] not in before and not within):
                joined[process["pid"]] = process
    if joined:
        text = f"GPU {index} was also used by {_named(list(joined.values()))} during the capture"
        yield GpuFinding("joined", text, {"gpu": index, "processes": list(joined.values())})


def _unwatched(index: int, seen: Sequence[Record | None], rules: GpuRules) -> Iterable[GpuFinding]:
    needed = ("throttle_reasons", "compute_processes", "graphics_processes")
    lacking = sum(gpu is None or not all(_is_told(gpu[name]) for name in needed) for gpu in seen)
    if lacking / len(seen) > rules.unwatched_share_at_most:
        text = f"GPU {index}: {lacking} of {len(seen)} samples lack processes or throttle reasons"
        yield GpuFinding("not_watched", text, {"gpu": index, "samples": len(seen), "lacking": lacking})


def _gpu_in(sample: Record, index: int) -> Record | None:
    """A sample's GPU; None where the sample failed; a lost one where the driver no longer lists it."""
    gpus = sample.get("gpus", {"missing": "this sample failed"})
    if not _is_told(gpus):
        return None
    absent = {"missing": "the driver does not list this GPU"}
    facts = dict.fromkeys(("throttle_reasons", "memory_used_bytes", "compute_processes", "graphics_processes"), absent)
    return next((gpu for gpu in gpus if gpu["index"] == index), {"index": index, "lost": True, **facts})


def _listed(gpu: Record, kind: str) -> Sequence[Record]:
    processes: Sequence[Record] = gpu[f"{kind}_processes"]
    return processes if _is_told(processes) else ()


def _own_bytes(gpu: Record) -> int:
    ours = {p["pid"]: p["used_bytes"] for kind in ("compute", "graphics") for p in _listed(gpu, kind) if p["ours"]}
    return sum(held for held in ours.values() if _is_told(held))


def _is_told(value: Any) -> bool:
    return not (isinstance(value, Mapping) and set(value) == {"missing"})


def _told(value: Any) -> str:
    return (
        f"{value:g}" if isinstance(value, float) else str(value) if _is_told(value) else f"unknown ({value['missing']})"
    )


def _named(processes: Sequence[Record]) -> str:
    return ", ".join(f"process {process['pid']} ({_told(process['name'])})" for process in processes)


def _names(indices: Iterable[int]) -> str:
    return ", ".join(map(str, indices))
