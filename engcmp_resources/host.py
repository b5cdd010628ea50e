"""What a measurement ran on and with: the host without names, the packages, the code's own identity."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

from engcmp_resources.canonical import sha256_bytes, sha256_file
from engcmp_resources.gpus import NoValue, snapshot
from engcmp_resources.places import CHECKOUT

_PACKAGES = (
    "dagster",
    "numpy",
    "scipy",
    "polars",
    "pyarrow",
    "safetensors",
    "gguf",
    "tokenizers",
    "matplotlib",
    "llvmlite",
)
_GPU_FACTS = ("index", "name", "uuid", "memory_total_bytes", "power_limit_w", "default_power_limit_w")
_ROOMS = ("engcmp_assets", "engcmp_resources")


def usable_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def boot_clock() -> tuple[str, float]:
    """The id of this boot and the seconds since it, which no setting of the clock moves; "" where the system does not tell the id.

    A sleep of the machine counts. Of two processes with the same id the seconds can be compared.
    """
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        boot = ""
    return boot, time.clock_gettime(clock)


@functools.cache
def environment() -> dict[str, Any]:
    """Python, packages and host. No host name, user name or path is in it; the fingerprint is a hash of the machine id."""
    return {
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in _PACKAGES},
        "system": platform.system(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count() or 0,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "host_fingerprint": _host_fingerprint(),
        "gpus": _gpus(),
    }


@functools.cache
def code_identity() -> dict[str, Any]:
    """The package's version, the git commit (or why there is none), whether the tree is dirty, and a hash of each module."""
    commit, dirty = _git_state()
    modules = {
        path.relative_to(CHECKOUT).as_posix(): sha256_file(path)[:16]
        for room in _ROOMS
        for path in sorted((CHECKOUT / room).rglob("*.py"))
    }
    return {
        "package": "engcmp",
        "version": importlib.metadata.version("engcmp"),
        "git_commit": commit,
        "dirty": dirty,
        "modules": modules,
    }


def _git_state() -> tuple[str | dict[str, str], bool | None]:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(CHECKOUT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()

    try:
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return {"missing": "not a git checkout, or git is not installed"}, None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def processor_fingerprint() -> str:
    """What decides which builds run here: the processor's kind, model and instructions, as a SHA-256."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return sha256_bytes("\n".join((platform.machine(), _cpu_model(), flags)).encode())


def _host_fingerprint() -> str | dict[str, str]:
    for name in ("/etc/machine-id", "/var/lib/dbus/machine-id", "/proc/sys/kernel/random/boot_id"):
        try:
            return sha256_bytes(b"engcmp host " + Path(name).read_bytes())[:16]
        except OSError:
            continue
    return {"missing": "this system has no machine id"}


def _gpus() -> list[dict[str, Any]] | dict[str, str]:
    """What the host's GPUs are, as NVML says, or why there is none. What they do meanwhile is telemetry's matter."""
    shot = snapshot()
    if isinstance(shot, NoValue):
        return shot.as_json()
    if isinstance(shot.gpus, NoValue):
        return shot.gpus.as_json()
    document = shot.as_json()
    versions = {"driver": document["driver"], "cuda_driver": document["cuda_driver"]}
    return [{name: gpu[name] for name in _GPU_FACTS} | versions for gpu in document["gpus"]]
