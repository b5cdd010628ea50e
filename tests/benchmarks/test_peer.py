"""The benchmark beside llama-perplexity: its file is read as it is written, and what cannot be run is said."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import bench_peer
import numpy as np
import pytest

SCRIPT = Path(bench_peer.__file__)


def run(*arguments: str, path: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        capture_output=True, text=True, check=False, env={"PATH": path, "HOME": "/nonexistent"},
    )  # fmt: skip


def commands(folder: Path, *names: str) -> str:
    """A folder of commands that fail."""
    for name in names:
        (folder / name).write_text("#!/bin/sh\necho no such thing >&2\nexit 1\n", "utf-8")
        (folder / name).chmod(0o755)
    return str(folder)


def test_without_a_compiler_it_is_skipped_and_says_so(tmp_path: Path) -> None:
    done = run("--home", str(tmp_path), path=str(tmp_path))
    assert (done.returncode, done.stdout) == (
        0,
        "skipped: cmake, c++, tar not found, llama-perplexity cannot be built here\n",
    )


def test_without_the_demo_s_checkpoints_it_is_skipped_and_says_what_to_do(tmp_path: Path) -> None:
    done = run("--home", str(tmp_path / "home"), path=commands(tmp_path, "cmake", "c++", "tar"))
    assert done.returncode == 0 and "holds no checkpoints; run `make demo` first" in done.stdout


def test_a_build_that_fails_is_skipped_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "views" / "smollm2-cpu" / "q4_0~llamacpp@b1" / "sources").mkdir(parents=True)
    monkeypatch.setenv("PATH", commands(tmp_path, "cmake", "c++", "tar"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "argv", [SCRIPT.name, "--home", str(tmp_path)])
    monkeypatch.setattr(sys, "executable", str(tmp_path / "cmake"))
    assert bench_peer.main() == 0
    assert "skipped:" in (said := capsys.readouterr().out) and "failed: no such thing" in said


def test_the_tool_s_file_is_read_as_it_writes_it(tmp_path: Path) -> None:
    context, vocab, chunks = 6, 5, 2  # of each chunk rows 3 and 4
    stored = np.arange(4 * vocab, dtype="<u2").reshape(4, vocab)
    path = tmp_path / "base"
    with path.open("wb") as file:
        file.write(b"_logits_" + struct.pack("<3i", context, vocab, chunks))
        file.write(np.arange(context * chunks, dtype="<i4").tobytes())
        for row in range(4):  # a row's scale and least value, its values, and one more where the vocabulary is odd
            file.write(struct.pack("<2f", 0.5, -8.0 - row) + stored[row].tobytes() + b"\0\0")
    found = bench_peer.read_base(path)
    assert found.tokens.tolist() == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
    assert found.rows.shape == (2, 2, vocab) and found.rows.dtype == np.float32
    assert found.rows[1, 0].tolist() == [0.5 * value - 10.0 for value in range(10, 15)]
