"""What NVML says of this host's GPUs: one snapshot, in which each value is there or the reason why it is not.

`NvmlLike` is the seam: the driver's own NVML, and a recording of it, answer the same questions and are decoded by the same code.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, Protocol, TypeVar

from engcmp_resources.errors import EngcmpError

NO_DEVICE = "no NVIDIA device"
_GONE = ("GPU_IS_LOST", "GPU_NOT_FOUND", "RESET_REQUIRED")
# Bits of nvmlDeviceGetCurrentClocksEventReasons, by their names in nvml.h.
_REASON_WORDS = {
    0x001: "gpu_idle",
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
    0x200: "board_limit",
    0x400: "reliability",
}
_CLOCK_SM, _CLOCK_MEMORY = 1, 2
_TEMPERATURE_OF_GPU = 0
_UUID_DIGITS = 12
_FUNCTION_NOT_FOUND, _UNKNOWN = 13, 999
_Value = TypeVar("_Value")
IsOurs = Callable[[int], bool]


@dataclass(frozen=True, slots=True)
class NoValue:
    """The value of what the driver does not tell: the reason, never 0."""

    reason: str

    def as_json(self) -> dict[str, str]:
        return {"missing": self.reason}


class NvmlRefusal(EngcmpError):
    """A call that NVML did not answer; `code` is one of NVML_ERROR_*, `word` its name without that prefix."""

    def __init__(self, function: str, code: int) -> None:
        self.code = code
        self.word = _error_words().get(code, f"error {code}")
        super().__init__(f"{function}: {self.word}")


class NvmlLike(Protocol):
    """A source of NVML's answers."""

    def read(self, function: str, *arguments: int) -> Any:
        """What NVML's `function` returns, as plain values: structures as objects of their fields.

        Functions of a device take its index where NVML takes a handle. Raises NvmlRefusal for what NVML does not answer.
        """


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds a context on a GPU. `ours`: the engine that is measured, or a process below it."""

    pid: int
    name: str | NoValue
    used_bytes: int | NoValue
    ours: bool


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU at one moment. `uuid` is a hash; `memory_used_bytes` is without what the driver reserves, where it tells them apart.

    A process that computes and draws is in both lists. `lost`: the driver says that the GPU is gone or needs a reset.
    """

    index: int
    lost: bool
    uuid: str | NoValue
    name: str | NoValue
    power_limit_w: float | NoValue
    default_power_limit_w: float | NoValue
    memory_total_bytes: int | NoValue
    memory_used_bytes: int | NoValue
    memory_reserved_bytes: int | NoValue
    sm_clock_mhz: int | NoValue
    memory_clock_mhz: int | NoValue
    power_w: float | NoValue
    temperature_c: int | NoValue
    throttle_reasons: tuple[str, ...] | NoValue
    utilisation_percent: int | NoValue
    memory_utilisation_percent: int | NoValue
    compute_processes: tuple[GpuProcess, ...] | NoValue
    graphics_processes: tuple[GpuProcess, ...] | NoValue


@dataclass(frozen=True, slots=True)
class GpuSnapshot:
    """All GPUs of the host at one moment, in NVML's order (that of the PCI bus)."""

    driver: str | NoValue
    cuda_driver: str | NoValue
    gpus: tuple[Gpu, ...] | NoValue

    def as_json(self) -> dict[str, Any]:
        """The snapshot as receipts hold it and the rules read it: a missing value is `{"missing": reason}`."""
        document: dict[str, Any] = _plain(self)
        return document


@dataclass(slots=True)
class Owned:
    """Which processes are the engine's: those of `roots`, those below one of them, and those in one of `containers` (full ids).

    Both sets may grow while a sampler asks. It needs /proc; a process that was ours once stays ours, also while it ends.
    """

    roots: set[int] = field(default_factory=set)
    containers: set[str] = field(default_factory=set)
    _known: set[int] = field(default_factory=set)

    def __call__(self, pid: int) -> bool:
        if pid not in self._known and (self._is_below_a_root(pid) or self._is_in_a_container(pid)):
            self._known.add(pid)
        return pid in self._known

    def _is_below_a_root(self, pid: int) -> bool:
        seen: set[int] = set()
        while pid > 0 and pid not in seen:
            if pid in self.roots:
                return True
            seen.add(pid)
            pid = parent_of(pid)
        return False

    def _is_in_a_container(self, pid: int) -> bool:
        try:
            group = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8")
        except OSError:
            return False
        return any(container in group for container in list(self.containers))


def parent_of(pid: int) -> int:
    """The parent of a process; 0 where there is none, or no /proc."""
    try:
        # The command name in parentheses may hold anything, so the fields are counted from the last one.
        return int(
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1]
        )
    except OSError:
        return 0


class DriverNvml:
    """NVML of this host's driver. Open it once (some milliseconds to seconds), read often, `close` it.

    Raises NvmlRefusal where there is no driver or no device.
    """

    def __init__(self) -> None:
        import pynvml  # noqa: PLC0415 - loads a driver library, and only where GPUs are asked for

        self._library = pynvml
        self._handles: dict[int, Any] = {}
        self._guarded("nvmlInit", pynvml.nvmlInit)

    def read(self, function: str, *arguments: int) -> Any:
        given: list[Any] = list(arguments)
        if given and function.startswith("nvmlDevice"):
            given[0] = self._handle(arguments[0])
        name = function
        if function == "nvmlDeviceGetMemoryInfo_v2":  # the library has it as an argument of the first form
            name, given = "nvmlDeviceGetMemoryInfo", [*given, self._library.nvmlMemory_v2]
        call = getattr(self._library, name, None)
        if call is None:
            raise NvmlRefusal(function, _FUNCTION_NOT_FOUND)
        return _fields(self._guarded(function, lambda: call(*given)))

    def close(self) -> None:
        self._guarded("nvmlShutdown", self._library.nvmlShutdown)

    def _handle(self, index: int) -> Any:
        if index not in self._handles:
            name = "nvmlDeviceGetHandleByIndex"
            self._handles[index] = self._guarded(name, lambda: self._library.nvmlDeviceGetHandleByIndex(index))
        return self._handles[index]

    def _guarded(self, function: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except self._library.NVMLError as error:
            raise NvmlRefusal(function, error.value) from error
        except ValueError as error:  # a name that is no UTF-8
            raise NvmlRefusal(function, _UNKNOWN) from error


def open_nvml() -> DriverNvml | NoValue:
    """NVML of this host, or "no NVIDIA device" with the driver's reason."""
    try:
        nvml = DriverNvml()
    except NvmlRefusal as refusal:
        return NoValue(f"{NO_DEVICE} ({refusal})")
    try:
        count = nvml.read("nvmlDeviceGetCount")
    except NvmlRefusal as refusal:
        nvml.close()
        return NoValue(f"{NO_DEVICE} ({refusal})")
    if count == 0:
        nvml.close()
        return NoValue(f"{NO_DEVICE} (the driver lists none)")
    return nvml


def snapshot(ours: IsOurs = lambda _pid: False) -> GpuSnapshot | NoValue:
    """The GPUs of this host now, or why there are none. `ours` tells which processes are the engine's."""
    nvml = open_nvml()
    if isinstance(nvml, NoValue):
        return nvml
    try:
        return read_snapshot(nvml, ours)
    finally:
        nvml.close()


def read_snapshot(nvml: NvmlLike, ours: IsOurs = lambda _pid: False) -> GpuSnapshot:
    """The GPUs as `nvml` tells them; what it refuses is a reason in its place."""
    count = _value(nvml, int, "nvmlDeviceGetCount")
    return GpuSnapshot(
        driver=_value(nvml, str, "nvmlSystemGetDriverVersion"),
        cuda_driver=_value(nvml, _cuda_version, "nvmlSystemGetCudaDriverVersion"),
        gpus=count if isinstance(count, NoValue) else tuple(_Reader(nvml, index, ours).gpu() for index in range(count)),
    )


class _Reader:
    """The questions about one GPU; keeps whether the driver called it lost."""

    def __init__(self, nvml: NvmlLike, index: int, ours: IsOurs) -> None:
        self._nvml, self._index, self._ours = nvml, index, ours
        self._lost = False

    def gpu(self) -> Gpu:
        memory = self._memory()
        use = self._ask(dict, "nvmlDeviceGetUtilizationRates")
        facts: dict[str, Any] = {
            "uuid": self._ask(_hashed, "nvmlDeviceGetUUID"),
            "name": self._ask(str, "nvmlDeviceGetName"),
            "power_limit_w": self._ask(_watts, "nvmlDeviceGetEnforcedPowerLimit"),
            "default_power_limit_w": self._ask(_watts, "nvmlDeviceGetPowerManagementDefaultLimit"),
            "memory_total_bytes": _field(memory, "total"),
            "memory_used_bytes": _field(memory, "used"),
            "memory_reserved_bytes": _field(memory, "reserved"),
            "sm_clock_mhz": self._ask(int, "nvmlDeviceGetClockInfo", _CLOCK_SM),
            "memory_clock_mhz": self._ask(int, "nvmlDeviceGetClockInfo", _CLOCK_MEMORY),
            "power_w": self._ask(_watts, "nvmlDeviceGetPowerUsage"),
            "temperature_c": self._ask(int, "nvmlDeviceGetTemperature", _TEMPERATURE_OF_GPU),
            "throttle_reasons": self._throttle_reasons(),
            "utilisation_percent": _field(use, "gpu"),
            "memory_utilisation_percent": _field(use, "memory"),
            "compute_processes": self._ask(self._processes, "nvmlDeviceGetComputeRunningProcesses"),
            "graphics_processes": self._ask(self._processes, "nvmlDeviceGetGraphicsRunningProcesses"),
        }
        return Gpu(index=self._index, lost=self._lost, **facts)

    def _ask(self, decode: Callable[[Any], _Value], function: str, *arguments: int) -> _Value | NoValue:
        try:
            return decode(self._nvml.read(function, self._index, *arguments))
        except NvmlRefusal as refusal:
            self._lost = self._lost or refusal.word in _GONE
            return NoValue(refusal.what)

    def _memory(self) -> dict[str, Any] | NoValue:
        memory = self._ask(dict, "nvmlDeviceGetMemoryInfo_v2")
        # Drivers before 510 count what they reserve as used.
        return self._ask(dict, "nvmlDeviceGetMemoryInfo") if isinstance(memory, NoValue) else memory

    def _throttle_reasons(self) -> tuple[str, ...] | NoValue:
        reasons = self._ask(reason_words, "nvmlDeviceGetCurrentClocksEventReasons")
        if isinstance(reasons, NoValue):  # the name before driver 535
            return self._ask(reason_words, "nvmlDeviceGetCurrentClocksThrottleReasons")
        return reasons

    def _processes(self, entries: Iterable[Mapping[str, Any]]) -> tuple[GpuProcess, ...]:
        return tuple(self._process(entry) for entry in entries)

    def _process(self, entry: Mapping[str, Any]) -> GpuProcess:
        pid, used = int(entry["pid"]), entry["usedGpuMemory"]
        name = _value(self._nvml, _program, "nvmlSystemGetProcessName", pid)
        held = NoValue("the driver does not tell the memory of this process") if used is None else int(used)
        return GpuProcess(pid, name, held, self._ours(pid))


def reason_words(bits: int) -> tuple[str, ...]:
    """The words of a set of clock event (throttle) reasons, lowest bit first; none where nothing holds the clocks down."""
    singles = (1 << place for place in range(int(bits).bit_length()))
    return tuple(_REASON_WORDS.get(bit, f"unknown_{bit:#x}") for bit in singles if bits & bit)


def _value(nvml: NvmlLike, decode: Callable[[Any], _Value], function: str, *arguments: int) -> _Value | NoValue:
    try:
        return decode(nvml.read(function, *arguments))
    except NvmlRefusal as refusal:
        return NoValue(refusal.what)


def _field(structure: dict[str, Any] | NoValue, name: str) -> int | NoValue:
    if isinstance(structure, NoValue):
        return structure
    return int(structure[name]) if name in structure else NoValue(f"this driver does not tell {name}")


def _watts(milliwatts: int) -> float:
    return milliwatts / 1000


def _hashed(uuid: str) -> str:
    return hashlib.sha256(b"engcmp gpu " + uuid.encode()).hexdigest()[:_UUID_DIGITS]


def _cuda_version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _program(command: str) -> str:
    """The program's name alone: arguments and folders may hold what is nobody's business."""
    words = command.split()
    return PurePath(words[0]).name if words else ""


def _fields(value: Any) -> Any:
    """Structures of ctypes and objects of pynvml as plain objects, bytes as text."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, list | tuple):
        return [_fields(item) for item in value]
    if isinstance(value, ctypes.Structure):
        return {name: _fields(getattr(value, name)) for name, *_ in value._fields_}
    if hasattr(value, "__dict__"):
        return {name: _fields(item) for name, item in vars(value).items()}
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, NoValue):
        return value.as_json()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    return value


def _error_words() -> dict[int, str]:
    import pynvml  # noqa: PLC0415 - a large module, for an error's name

    prefix = "NVML_ERROR_"
    return {code: name.removeprefix(prefix) for name, code in vars(pynvml).items() if name.startswith(prefix)}
