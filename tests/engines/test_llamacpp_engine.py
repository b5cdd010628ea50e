"""The llama.cpp engine, with a real library and a real model in a real child process."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decoding import until_it_computes

from engcmp_resources.canonical import sha256_file
from engcmp_resources.engines.base import LaunchSpec, RunningEngine, start_engine
from engcmp_resources.errors import EngcmpError, UnfitMachine

ARM = "q4_0/llamacpp@b11549"
VOCAB = 49_152
ROOT = Path(__file__).parents[2]
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")


@pytest.fixture(scope="session")
def spec(llamacpp_library: Path, q4_0_model: Path) -> LaunchSpec:
    return LaunchSpec(
        engine="llamacpp",
        version="b11549",
        library_sha256=sha256_file(llamacpp_library),
        model_sha256=sha256_file(q4_0_model),
        threads=2,
        context_tokens=512,
        batch_tokens=512,
        micro_batch_tokens=512,
        vocab=VOCAB,
    )


def workers_of(parent: int) -> set[int]:
    """The engine processes of the process `parent`."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            above = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            command = (entry / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if above == parent and b"llamacpp_worker" in command:
            found.add(int(entry.name))
    return found


class Launcher:
    """Starts the engine with the real files, unless a test names others."""

    def __init__(self, spec: LaunchSpec, library: Path, model: Path, log: Path) -> None:
        self.spec, self.library, self.model, self.log = spec, library, model, log
        self.running_before = workers_of(os.getpid())

    def __call__(self, **changed: Any) -> AbstractContextManager[RunningEngine]:
        settings: dict[str, Any] = {"library": self.library, "model": self.model, "log": self.log}
        settings |= {"environment": {"ENGCMP_ARM": ARM, "ENGCMP_LOCK": "/lock", "ENGCMP_RUN": "run-1"}}
        return start_engine("llamacpp", changed.pop("spec", self.spec), **(settings | changed))

    def workers(self) -> list[int]:
        """The engine processes that were started since; empty without /proc."""
        return sorted(workers_of(os.getpid()) - self.running_before)


@pytest.fixture
def start(spec: LaunchSpec, llamacpp_library: Path, q4_0_model: Path, tmp_path: Path) -> Launcher:
    return Launcher(spec, llamacpp_library, q4_0_model, tmp_path / "engine.log")


@pytest.fixture(scope="module")
def engine(
    spec: LaunchSpec, llamacpp_library: Path, q4_0_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningEngine]:
    """One running engine for the tests that leave it as it was."""
    log = tmp_path_factory.mktemp("shared") / "engine.log"
    with Launcher(spec, llamacpp_library, q4_0_model, log)() as running:
        yield running


def tokens(count: int, seed: int = 7) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(100, VOCAB, count)]


def until(condition: Any, seconds: float = 30.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return bool(condition())


def in_mid_decode(running: RunningEngine, pid: int, action: Callable[[], object]) -> None:
    """`action` once the engine has computed for a hundredth of a second on its next request, which takes it a hundred times as long."""
    child = running._child  # type: ignore[attr-defined] # what is within is for tests
    receive = child._receive

    def act_and_receive(deadline: float) -> bytes:
        until_it_computes(pid)
        action()
        answer: bytes = receive(deadline)
        return answer

    child._receive = act_and_receive


def rows(engine: RunningEngine, ids: list[int], positions: list[int], out: Path) -> bytes:
    engine.prefill_rows("w", ids, positions, out)
    return out.read_bytes()


def test_facts_state_each_setting_as_requested_and_as_found(engine: RunningEngine, spec: LaunchSpec) -> None:
    settings = engine.facts["settings"]
    assert set(settings) == {"n_ctx", "n_batch", "n_ubatch", "n_threads", "n_threads_batch", "n_vocab"}
    assert settings["n_ctx"] == {"requested": 512, "resolved": 512}
    assert settings["n_threads_batch"] == {"requested": spec.threads, "resolved": spec.threads}
    assert "Q4_0" in engine.facts["model_description"]
    assert engine.facts["system_info"].startswith("CPU")
    assert engine.facts["load_ms"] > 0
    assert "pid" not in engine.facts


def test_a_row_predicts_the_token_after_it(engine: RunningEngine, tmp_path: Path) -> None:
    song = engine.tokenize("The cat sat on the mat. " * 8)
    positions = list(range(len(song) // 2, len(song) - 2))
    result = engine.prefill_rows("w", song, positions, tmp_path / "rows")
    top1 = np.fromfile(tmp_path / "rows", dtype="<f4").reshape(len(positions), VOCAB).argmax(axis=1)
    agreement = {
        shift: np.mean([song[position + 1 + shift] == top for position, top in zip(positions, top1, strict=True)])
        for shift in (-1, 0, 1)
    }
    assert result.rows == len(positions)
    assert result.seconds > 0
    assert agreement[0] > 0.8
    assert max(agreement[-1], agreement[1]) < 0.2


def test_special_tokens_are_read_as_such_and_none_is_added(engine: RunningEngine) -> None:
    assert len(engine.tokenize("<|im_start|>")) == 1
    assert engine.tokenize("") == []


def test_a_window_is_not_affected_by_the_one_before_it(engine: RunningEngine, tmp_path: Path) -> None:
    first = rows(engine, tokens(64), list(range(64)), tmp_path / "first")
    rows(engine, tokens(96, seed=8), [95], tmp_path / "between")
    assert rows(engine, tokens(64), list(range(64)), tmp_path / "again") == first


def test_a_second_start_gives_the_same_bits(engine: RunningEngine, start: Launcher, tmp_path: Path) -> None:
    positions = list(range(0, 128, 5))
    first = rows(engine, tokens(128), positions, tmp_path / "first")
    assert len(first) == len(positions) * VOCAB * 4
    with start() as second:
        assert rows(second, tokens(128), positions, tmp_path / "second") == first


@pytest.mark.parametrize(
    ("ids", "positions", "words"),
    [
        (tokens(513), [0], "513 tokens, the batch holds 512"),
        ([1, VOCAB], [0], "a token id outside 0..49151"),
        ([1, 2], [2], "a row outside 0..1"),
        ([], [], "0 tokens"),
    ],
)
def test_a_window_that_cannot_be_served_is_refused_before_the_decode(
    engine: RunningEngine, tmp_path: Path, ids: list[int], positions: list[int], words: str
) -> None:
    with pytest.raises(EngcmpError, match=words) as refused:
        engine.prefill_rows("w9", ids, positions, tmp_path / "rows")
    assert ARM in str(refused.value)
    assert "w9" in str(refused.value)
    assert list(tmp_path.iterdir()) == []
    assert rows(engine, tokens(4), [3], tmp_path / "rows")


def test_rows_that_cannot_be_written_are_an_error_and_the_engine_goes_on(engine: RunningEngine, tmp_path: Path) -> None:
    with pytest.raises(EngcmpError, match="could not be written"):
        engine.prefill_rows("w", tokens(4), [3], tmp_path / "no such folder" / "rows")
    assert rows(engine, tokens(4), [3], tmp_path / "rows")


def test_a_context_that_the_library_rounds_is_refused(start: Launcher, spec: LaunchSpec) -> None:
    asked = replace(spec, context_tokens=500, batch_tokens=500, micro_batch_tokens=500)
    with pytest.raises(EngcmpError, match="n_ctx requested 500, found 512"), start(spec=asked):
        pytest.fail("the engine started")
    assert start.workers() == []


def test_a_vocabulary_of_another_size_is_refused(start: Launcher, spec: LaunchSpec) -> None:
    with (
        pytest.raises(EngcmpError, match="n_vocab requested 32000, found 49152"),
        start(spec=replace(spec, vocab=32_000)),
    ):
        pytest.fail("the engine started")


def test_a_micro_batch_larger_than_the_batch_is_no_launch(spec: LaunchSpec) -> None:
    with pytest.raises(EngcmpError, match="micro batch 512, batch 256"):
        replace(spec, batch_tokens=256)


def test_a_truncated_model_names_the_file_and_says_what_the_library_said(
    start: Launcher, spec: LaunchSpec, q4_0_model: Path, tmp_path: Path
) -> None:
    model = tmp_path / "short.gguf"
    model.write_bytes(q4_0_model.read_bytes()[:40_000_000])
    with (
        pytest.raises(EngcmpError, match=r"short\.gguf does not load.*its last words: .*not within the file bounds"),
        start(model=model, spec=replace(spec, model_sha256=sha256_file(model))),
    ):
        pytest.fail("the engine started")


def test_a_model_that_is_not_the_one_of_the_launch_is_not_started(
    start: Launcher, spec: LaunchSpec, tmp_path: Path
) -> None:
    with pytest.raises(EngcmpError, match="there is no model"), start(model=tmp_path / "none.gguf"):
        pytest.fail("the engine started")
    with pytest.raises(EngcmpError, match="model has sha256"), start(spec=replace(spec, model_sha256="0" * 64)):
        pytest.fail("the engine started")


@linux_only
def test_a_library_without_the_functions_is_refused_and_they_are_named(start: Launcher, spec: LaunchSpec) -> None:
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    foreign = Path(next(path for path in sorted(mapped) if "/libm" in path or "/libc" in path))
    asked = replace(spec, library_sha256=sha256_file(foreign))
    with pytest.raises(EngcmpError) as refused, start(library=foreign, spec=asked):
        pytest.fail("the engine started")
    for name in ("llama_decode", "llama_model_load_from_file", "llama_memory_clear", "llama_n_threads_batch"):
        assert name in str(refused.value)


@linux_only
def test_a_missing_shared_library_is_named_with_its_package(
    start: Launcher, spec: LaunchSpec, llamacpp_library: Path, tmp_path: Path
) -> None:
    library = tmp_path / "needs_another.so"
    library.write_bytes(llamacpp_library.read_bytes().replace(b"libgomp.so.1\0", b"libgomp.so.9\0"))
    asked = replace(spec, library_sha256=sha256_file(library))
    with pytest.raises(EngcmpError, match=r"libgomp\.so\.9.*libgomp1"), start(library=library, spec=asked):
        pytest.fail("the engine started")
    library.unlink()


def test_a_file_that_is_no_library_is_refused(start: Launcher, spec: LaunchSpec, tmp_path: Path) -> None:
    library = tmp_path / "text.so"
    library.write_text("not a library")
    with (
        pytest.raises(EngcmpError, match="the library does not load"),
        start(library=library, spec=replace(spec, library_sha256=sha256_file(library))),
    ):
        pytest.fail("the engine started")


@linux_only
def test_an_engine_killed_in_mid_decode_gives_its_signal_and_leaves_nothing(start: Launcher, tmp_path: Path) -> None:
    with start() as running:
        (pid,) = start.workers()
        in_mid_decode(running, pid, lambda: os.kill(pid, signal.SIGKILL))
        with pytest.raises(EngcmpError, match="died of SIGKILL while decoding window w7") as died:
            running.prefill_rows("w7", tokens(512), [0, 511], tmp_path / "rows")
        with pytest.raises(EngcmpError, match="died of SIGKILL before decoding window w8"):
            running.prefill_rows("w8", tokens(4), [0], tmp_path / "rows")
    assert "memory" in str(died.value)
    assert "its last words" in str(died.value)
    assert start.workers() == []
    assert {path.name for path in tmp_path.iterdir()} == {"engine.log"}


@linux_only
@pytest.mark.parametrize(
    ("by", "kind", "words"),
    [
        (signal.SIGKILL, EngcmpError, "ran out of memory"),
        (signal.SIGILL, UnfitMachine, "while loading: this processor lacks an instruction that this build needs"),
    ],
)
def test_an_engine_killed_while_loading_gives_its_signal(
    start: Launcher, by: signal.Signals, kind: type[EngcmpError], words: str
) -> None:
    def kill_the_first() -> None:
        assert until(start.workers)
        os.kill(start.workers()[0], by)

    killer = threading.Thread(target=kill_the_first)
    killer.start()
    with pytest.raises(EngcmpError, match=f"died of {by.name} while loading") as died, start():
        pytest.fail("the engine started")
    killer.join()
    assert start.workers() == []
    assert type(died.value) is kind
    assert words in str(died.value)


@linux_only
def test_a_late_answer_is_an_error_and_the_engine_is_killed(start: Launcher, tmp_path: Path) -> None:
    with (
        start(window_deadline_s=0.05) as running,
        pytest.raises(EngcmpError, match=r"no answer within 0\.05 s while decoding window w7"),
    ):
        running.prefill_rows("w7", tokens(512), [0], tmp_path / "rows")
    with pytest.raises(EngcmpError, match="no answer within 0 s while loading"), start(start_deadline_s=0.0):
        pytest.fail("the engine started")
    assert start.workers() == []


@linux_only
def test_ctrl_c_in_mid_decode_ends_the_engine_at_once(start: Launcher, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), start() as running:
        (pid,) = start.workers()
        in_mid_decode(running, pid, lambda: signal.raise_signal(signal.SIGINT))
        running.prefill_rows("w7", tokens(512), list(range(512)), tmp_path / "rows")
    assert running._child.process.returncode == 0  # type: ignore[attr-defined]  # it did not have to be waited for and killed
    assert start.workers() == []
    assert not (tmp_path / "rows").exists()


@linux_only
def test_an_error_of_the_caller_ends_the_engine(start: Launcher) -> None:
    with pytest.raises(ZeroDivisionError), start():
        assert len(start.workers()) == 1
        raise ZeroDivisionError
    assert start.workers() == []


PARENT = """
import sys
from pathlib import Path
from engcmp_resources.engines.base import LaunchSpec, start_engine
library, model, folder, *hashes = sys.argv[1:]
spec = LaunchSpec("llamacpp", "b11549", *hashes, 1, 512, 512, 512, 49152)
files = {"library": Path(library), "model": Path(model), "log": Path(folder, "log")}
with start_engine("llamacpp", spec, **files, environment={}) as engine:
    print("ready", flush=True)
    while True:
        engine.prefill_rows("w", list(range(100, 612)), [0], Path(folder, "rows"))
"""


@linux_only
def test_no_engine_outlives_a_killed_parent(
    spec: LaunchSpec, llamacpp_library: Path, q4_0_model: Path, tmp_path: Path
) -> None:
    arguments = [str(llamacpp_library), str(q4_0_model), str(tmp_path), spec.library_sha256, spec.model_sha256]
    parent = subprocess.Popen([sys.executable, "-c", PARENT, *arguments], stdout=subprocess.PIPE, cwd=ROOT)
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        (pid,) = workers_of(parent.pid)
        until_it_computes(pid)
    finally:
        parent.kill()
        parent.communicate()
    assert until(lambda: not Path(f"/proc/{pid}").exists())


@linux_only
def test_the_engine_sees_its_labels_and_no_secret_of_the_user(start: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("PIP_INDEX_URL", "https://user:password@index.invalid/simple")
    monkeypatch.setenv("TMPDIR", "/var/tmp")
    with start():
        (pid,) = start.workers()
        pairs = Path(f"/proc/{pid}/environ").read_bytes().decode().strip("\0").split("\0")
    environment = dict(pair.split("=", 1) for pair in pairs)
    assert environment["ENGCMP_ARM"] == ARM
    assert environment["ENGCMP_LOCK"] == "/lock"
    assert environment["ENGCMP_RUN"] == "run-1"
    assert environment["TMPDIR"] == "/var/tmp"
    assert not {"HF_TOKEN", "PIP_INDEX_URL", "HOME"} & set(environment)


def test_only_labels_are_passed_on_to_an_engine(start: Launcher) -> None:
    with pytest.raises(EngcmpError, match="HF_TOKEN"), start(environment={"HF_TOKEN": "hf_secret"}):
        pytest.fail("the engine started")


def test_an_unknown_kind_of_engine_names_the_known_ones(spec: LaunchSpec, tmp_path: Path) -> None:
    with pytest.raises(EngcmpError, match=r"no engine kind 'abacus'; known kinds: .*llamacpp"):
        start_engine("abacus", spec, library=tmp_path, model=tmp_path, log=tmp_path, environment={})


def test_a_copy_of_the_library_elsewhere_serves_as_well(
    start: Launcher, llamacpp_library: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "a folder with spaces"
    folder.mkdir()
    library = Path(shutil.copy(llamacpp_library, folder))
    with start(library=library, log=folder / "logs" / "engine.log") as running:
        assert "load" in running.log_tail()
