"""What tests of containers share: launches of llama.cpp's server and of the simulator in containers. No tests."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

import httpx
import numpy as np

from engcmp_resources import host_image
from engcmp_resources.engines.servers import LaunchPlace, RunningServer, ServerSpec, start_server

ROOT = Path(__file__).resolve().parents[1]
ARM = "q4_0/llamacpp-docker@b11549"
VOCAB = 49_152
SIM_VOCAB = 512
CODE = "/engcmp/code/engcmp_resources"
LLAMA: dict[str, Any] = {
    "api": "llama-server",
    "entrypoint": ["{python}", "-I", "-S", f"{CODE}/engines/llamacpp_server_cli.py"],
    "command": [
        "--library", "{library}", "-m", "{model}", "-a", "{alias}",
        "-c", "{context_tokens}", "-b", "{batch_tokens}", "-ub", "{micro_batch_tokens}",
        "-t", "{threads}", "-tb", "{threads}", "-np", "1",
        "--host", "{host}", "--port", "{port}", "--api-key-file", "{key_file}",
    ],
    "env": {"GGML_NO_BACKTRACE": "1", "OMP_WAIT_POLICY": "passive"},
    "mounts": [
        {"file": "model", "target": "/engcmp/model.gguf"},
        {"file": "library", "target": "/engcmp/library.so"},
        {"file": "engcmp", "target": CODE},
    ],
    "network": "host",
    "ready_line": "server is listening on",
    "context_tokens": 512,
    "batch_tokens": 512,
    "micro_batch_tokens": 512,
    "threads": 2,
    "capabilities": {"rows": ["decode"], "decode_logprobs": "full", "tokenizer": True, "token_ids": True},
}  # fmt: skip


class Launcher:
    """Starts a container of kind `docker`; a test changes single settings, files, identities or deadlines."""

    settings: Mapping[str, Any]
    vocab: int

    def __init__(self, folder: Path, files: Mapping[str, Path], identities: Mapping[str, str]) -> None:
        self.folder, self.files, self.identities = folder, dict(files), dict(identities)
        self.log, self.lock = folder / "engine.log", folder / "engine.lock"
        self.said: list[str] = []

    def __call__(
        self, *, kind: str = "docker", image: str = host_image.IMAGE_ID, start_deadline_s: float = 30,
        request_deadline_s: float = 30, labels: Mapping[str, str] | None = None, **settings: Any,
    ) -> AbstractContextManager[RunningServer]:  # fmt: skip
        spec = ServerSpec(
            kind, "llamacpp-docker", "b11549", {"image": image, **self.identities}, self.vocab,
            {name: value for name, value in (dict(self.settings) | settings).items() if value is not None},
        )  # fmt: skip
        return start_server(
            spec, self.place(labels), start_deadline_s=start_deadline_s, request_deadline_s=request_deadline_s
        )

    def place(self, labels: Mapping[str, str] | None = None) -> LaunchPlace:
        ours = {"ENGCMP_ARM": ARM, "ENGCMP_LOCK": str(self.lock), "ENGCMP_RUN": "run-1"}
        return LaunchPlace(self.folder, self.log, labels or ours, self.files, say=self.said.append)

    def containers(self) -> list[Any]:
        """The containers of this launcher's lock, running or not."""
        import docker

        found: list[Any] = docker.from_env().containers.list(
            all=True, filters={"label": f"ENGCMP_LOCK={self.lock}"}, ignore_removed=True
        )
        return found

    def processes(self) -> list[int]:
        """The processes that carry this launcher's lock."""
        label, found = f"ENGCMP_LOCK={self.lock}".encode(), []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if label in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:  # it has just ended
                continue
        return found

    def assert_nothing_is_left(self) -> None:
        """No container, no process, no key."""
        assert self.containers() == []
        assert until(lambda: not self.processes())
        assert not list(self.folder.glob("key-*"))


class LlamaLauncher(Launcher):
    """llama.cpp's own server, from the wheel's library."""

    settings, vocab = LLAMA, VOCAB


class SimulatorLauncher(Launcher):
    """The simulator, which speaks as any of the engines and misbehaves on demand."""

    vocab = SIM_VOCAB
    ready_lines: ClassVar = {
        "llama-server": "server is listening on",
        "vllm": "Application startup complete",
        "sglang": "The server is fired up and ready to roll!",
    }

    def __init__(
        self, folder: Path, files: Mapping[str, Path], identities: Mapping[str, str], *, api: str = "llama-server"
    ) -> None:
        super().__init__(folder, files, identities)
        script = folder / "script.json"
        script.write_text('{"faults": []}')
        places = {Path(sys.prefix), ROOT, folder}
        self.settings = {
            "api": api,
            "entrypoint": [sys.executable, "-m", "tests.simulator"],
            "command": [
                "--dialect", api, "--host", "{host}", "--port", "{port}", "--model", "{alias}",
                "--vocab", str(SIM_VOCAB), "--script", str(script),
            ],
            "env": {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
            "mounts": [{"path": str(path), "target": str(path)} for path in sorted(places)],
            "served_model": "sim/model",
            "network": "host",
            "ready_line": self.ready_lines[api],
        }  # fmt: skip

    def script(self, *faults: dict[str, Any] | str) -> None:
        """The faults of the next start."""
        named = [{"name": fault} if isinstance(fault, str) else fault for fault in faults]
        (self.folder / "script.json").write_text(json.dumps({"faults": named}))


def misbehave(running: RunningServer, *faults: dict[str, Any] | str) -> None:
    """Give a simulator that runs these faults."""
    named = [{"name": fault} if isinstance(fault, str) else fault for fault in faults]
    httpx.post(f"{running.url}/__sim__/script", json={"faults": named}, trust_env=False).raise_for_status()


def says_it_is_well(running: RunningServer) -> bool:
    return httpx.get(f"{running.url}/health", trust_env=False).status_code == httpx.codes.OK


def tokens(count: int, vocab: int = VOCAB, seed: int = 7) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(100, vocab, count)]


def until(condition: Callable[[], Any], seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return bool(condition())


def after(seconds: float, action: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(seconds, action)
    timer.start()
    return timer


def interrupt() -> None:
    """Ctrl-C."""
    os.kill(os.getpid(), 2)
