"""Memory of an engine's processes, found by the labels that they carry."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from engcmp_resources.engine_memory import engine_memory

LABELS = {"ENGCMP_ARM": "a/b@c", "ENGCMP_RUN": "test-of-engine-memory"}
_HOLD = "import sys; held = bytearray(b'x' * (64 << 20)); print('ready', flush=True); sys.stdin.read()"


@pytest.mark.skipif(sys.platform != "linux", reason="it needs /proc")
def test_the_processes_that_carry_all_labels_are_counted_and_no_other() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | LABELS
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        found = engine_memory(LABELS)
        other = engine_memory(LABELS | {"ENGCMP_ARM": "another"})
        process.communicate()
    assert found["processes"] == 1 and (64 << 20) < found["resident_bytes"] < (256 << 20)
    assert other == {"missing": "no process of the engine is found on this machine"}
    assert "missing" in engine_memory(LABELS), "it has ended"


def test_without_labels_and_container_nothing_is_counted() -> None:
    assert "missing" in engine_memory({})


@pytest.mark.skipif(sys.platform != "linux", reason="it needs /proc")
@pytest.mark.parametrize("lives_under", ["its parent", "init"])
def test_processes_whose_variables_cannot_be_read_are_counted_with_the_one_that_started_them(lives_under: str) -> None:
    """vLLM's engine core and workers write a title over theirs; most of an engine's memory is in them."""
    child = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {_HOLD!r}], env={{}}).wait()"
    left = f"import os; os.fork() and os._exit(0); {child}" if lives_under == "init" else child
    leader = (
        f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {left!r}], env={{}}).wait(); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", leader], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | LABELS, start_new_session=True
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        found = engine_memory(LABELS)
        process.communicate()
    assert found["processes"] == 3 and found["resident_bytes"] > (64 << 20)
