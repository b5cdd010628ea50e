"""What tests of the store, the audit and the commands share: running the command, changing a home, looking at all of it."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import platform
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from engcmp_assets.audit.recompute import Evidence
from engcmp_assets.audit.verify import Verification, verify
from engcmp_assets.commands.main import main
from engcmp_assets.kernel.study import load_study
from engcmp_resources.disk import files_below

CHECKOUT = Path(__file__).resolve().parent.parent
STUDY = "smollm2-cpu"
Q4, Q8 = "q4_0/llamacpp@b11549", "q8_0/llamacpp@b11549"


def _has_avx512() -> bool:
    """Whether the processor has what b8672's x86 build was compiled for; builds for others have no such needs."""
    if platform.machine() not in {"x86_64", "AMD64"} or not Path("/proc/cpuinfo").exists():
        return True
    return " avx512f " in Path("/proc/cpuinfo").read_text(encoding="utf-8")


EVERY_ARM = _has_avx512()
"""Whether the measured home has all arms of the study: without AVX-512 those of b8672 are told as not measured on this machine."""
ARMS = [str(arm) for arm in load_study(STUDY).protocol.arm_keys if EVERY_ARM or arm.version != "b8672"]
LONE = ARMS[1]
"""An arm of Q4_0 that is not the newest."""
every_arm = pytest.mark.skipif(
    not EVERY_ARM, reason="this processor lacks AVX-512, which b8672 is compiled for: its arms cannot be measured here"
)


def quiet(_text: str) -> None:
    """Says nothing."""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "engcmp_assets.commands", *arguments]


def engcmp(*arguments: str, home: Path, timeout_s: float = 300, **options: Any) -> subprocess.CompletedProcess[str]:
    """The command as a user runs it. Options in capitals are environment variables, others go to subprocess.run."""
    variables = {name: str(options.pop(name)) for name in list(options) if name.isupper()}
    return subprocess.run(
        options.pop("prefix", []) + command(*arguments), env=os.environ | {"ENGCMP_HOME": str(home)} | variables,
        capture_output=True, text=True, timeout=timeout_s, check=False, cwd=CHECKOUT, **options,
    )  # fmt: skip


def engcmp_here(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The command in this process, for tests of what it does and not of the process: without the 2 to 3 s of loading Dagster each time.

    What it raises beside its own exits is a traceback and exit 1, as of a process.
    """
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.chdir(CHECKOUT),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        for name, value in variables.items():
            patch.setenv(name, value)
        try:
            main(arguments)
        except SystemExit as ended:
            code = int(str(ended.code or 0))
        except Exception:  # noqa: BLE001 - whatever it is, the test that called sees it
            code = 1
            traceback.print_exc(file=err)
    gc.collect()  # what an error still holds of the home, a process would have let go
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def start_engcmp(*arguments: str, home: Path, **variables: str) -> subprocess.Popen[str]:
    """The command in the background, its standard error readable line by line."""
    return subprocess.Popen(
        command(*arguments), env=os.environ | {"ENGCMP_HOME": str(home)} | variables, cwd=CHECKOUT,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


class Here:
    """The command in this process: the same function, without the seconds that loading its modules takes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
        self._monkeypatch.setenv("ENGCMP_HOME", str(home))
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        captured = self._capsys.readouterr()
        return subprocess.CompletedProcess(arguments, int(str(caught.value.code)), captured.out, captured.err)


def assert_one_clear_line(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """Exit 1, no traceback, and one line of ours that holds all `words`."""
    assert done.returncode == 1, f"exit {done.returncode}: {done.stdout}{done.stderr}"
    assert "Traceback" not in done.stderr + done.stdout
    lines = [line for line in done.stderr.splitlines() if line.startswith("engcmp: ")]
    assert len(lines) == 1, done.stderr
    for word in words:
        assert word in lines[0], f"{word!r} is not in {lines[0]!r}"


def verified(home: Path) -> Verification:
    """What `engcmp verify` finds in `home`, in this process."""
    return verify(load_study(STUDY), Evidence(home), quiet, time.monotonic_ns)


def named_files(home: Path) -> set[str]:
    """The files that verify names."""
    return {problem.file for problem in verified(home).problems}


def unfinished(home: Path) -> list[str]:
    """What work in progress keeps in a home; its locks, which are never removed, are none of it."""
    scratch = home / "scratch"
    return [str(path.relative_to(scratch)) for path in files_below(scratch) if path.suffix != ".lock"]


def replace_file(path: Path, data: bytes) -> None:
    """Other bytes in the place of a file that other homes share by a hard link."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def change(path: Path, how: Callable[[bytes], bytes]) -> None:
    data = path.read_bytes()
    changed = how(data)
    assert changed != data
    replace_file(path, changed)


def flipped(position: int) -> Callable[[bytes], bytes]:
    """The lowest bit of one byte changed; a negative position counts from the end."""

    def flip(data: bytes) -> bytes:
        other = bytearray(data)
        other[position] ^= 1
        return bytes(other)

    return flip


def head_file(home: Path, artifact: str, arm: str | None = None) -> Path:
    return home / "heads" / STUDY / ("_study" if arm is None else arm.replace("/", "~")) / f"{artifact}.json"


def current_receipt(home: Path, artifact: str, arm: str | None = None) -> dict[str, Any]:
    sha256 = json.loads(head_file(home, artifact, arm).read_bytes())["receipt_sha256"]
    receipt: dict[str, Any] = json.loads((home / "receipts" / f"{sha256}.json").read_bytes())
    return receipt


def output_file(home: Path, receipt: Mapping[str, Any], name: str) -> Path:
    output = next(entry for entry in receipt["outputs"] if entry["name"] == name)
    return home / "store" / output["sha256"][:2] / f"{output['sha256']}.{output['suffix']}"


def everything(home: Path) -> dict[str, tuple[int, int, int, str]]:
    """Every entry below `home`: mode, size, time of change, and the target of a link. Reading changes none of it."""
    found = {}
    for path in sorted(home.rglob("*")):
        status = path.lstat()
        target = str(path.readlink()) if path.is_symlink() else ""
        found[str(path.relative_to(home))] = (status.st_mode, status.st_size, status.st_mtime_ns, target)
    return found


def engine_processes(arm: str) -> list[int]:
    """Engines of the arm under this test's own lock (Linux): those of other runs on the machine are none of ours."""
    lock = Path(os.environ["ENGCMP_LOCK_DIR"]).resolve() / "engine.lock"
    labels, found = {f"ENGCMP_ARM={arm}".encode(), f"ENGCMP_LOCK={lock}".encode()}, []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and labels <= set((folder / "environ").read_bytes().split(b"\0")):
                found.append(int(folder.name))
        except OSError:  # another user's, or it has just ended
            continue
    return found


def kill(process: subprocess.Popen[Any], signal_number: int = signal.SIGKILL) -> None:
    """Send the signal and wait for the end."""
    process.send_signal(signal_number)
    process.communicate(timeout=60)


def wait_until(holds: Callable[[], bool], *, timeout_s: float = 60) -> None:
    until = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.005)
