"""Commands that compute wait while a cell is timed, and say so; beside each other they run at once."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest
from homes import STUDY, Here

sys.path.append(str(Path(__file__).parent.parent / "file_scores"))

from made import made

from engcmp_assets.commands.sharing import beside_no_timed_cell
from engcmp_assets.kernel.progress import stderr_line
from engcmp_resources.errors import EngcmpError
from engcmp_resources.locks import engine_lock_folder

_TIMED = """
import pathlib, sys
from engcmp_resources.locks import host_lock
with host_lock(alone=sys.argv[1] == "alone", who="arm a/b@c, timed", waiting=print, timeout_s=60):
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(kind: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", _TIMED, kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_a_command_waits_for_a_timed_cell_and_says_whose(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = holder("alone")

    def say_and_end_it(text: str) -> None:
        stderr_line(text)
        assert process.poll() is None
        process.communicate()

    monkeypatch.setattr("engcmp_assets.commands.sharing.stderr_line", say_and_end_it)
    with beside_no_timed_cell("verify"):
        assert process.returncode == 0  # not before its end
    said = capfd.readouterr().err
    assert "engcmp verify begins when no cell is timed any more" in said and "(arm a/b@c, timed) holds it" in said


def test_two_analyses_run_beside_each_other_without_a_word(capfd: pytest.CaptureFixture[str]) -> None:
    process = holder("shared")
    with beside_no_timed_cell("score"):
        pass
    process.communicate()
    assert capfd.readouterr().err == ""


def is_shared() -> bool:
    """Whether somebody holds the host's lock: who wants it alone does not get it."""
    with (engine_lock_folder() / "host.lock").open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.mark.parametrize(("command", "computes"), [("verify", "audit.verify_study"), ("score", "score.score_files")])
def test_verify_and_score_hold_it_while_they_compute(
    command: str, computes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def look(*_: object, **__: object) -> None:
        raise EngcmpError(f"the lock is shared: {is_shared()}")

    monkeypatch.setattr(f"engcmp_assets.commands.{computes}", look)
    (tmp_path / "home" / "heads").mkdir(parents=True)
    panel = made(tmp_path / "data", windows=2)
    for side in ("reference", "A"):
        panel.write(side)
    arguments = {
        "verify": [STUDY],
        "score": [
            "--panel", str(panel.panel), "--reference", str(panel.reference), "--arm", f"A={panel.folder / 'A'}",
            "--out", str(tmp_path / "out"),
        ],
    }  # fmt: skip
    done = Here(monkeypatch, capsys)(command, *arguments[command], home=tmp_path / "home")
    assert "the lock is shared: True" in done.stderr
    assert not is_shared()
