"""vLLM as a process: started with the capture plugin mounted, asked over HTTP, ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

CHECKOUT = Path(__file__).resolve().parents[2]
MOUNTED = CHECKOUT / "engcmp_resources" / "engines" / "vllm_plugin" / "mounted"
MODEL = "smollm2"
START_S = 240.0


@dataclass(frozen=True)
class Server:
    """A server that answers; `captures` is the folder of the plugin's files."""

    url: str
    captures: Path
    log: Path

    def ask(self, path: str, body: Mapping[str, Any]) -> Any:
        answer = httpx.post(self.url + path, json=dict(body), timeout=400)
        assert answer.status_code == 200, answer.text[:2000]
        return answer.json()

    @contextmanager
    def generating(self, tokens: list[int], max_tokens: int) -> Iterator[None]:
        """Another request that has sent its first token, and goes on until the block ends: leaving a stream ends its request."""
        asked: dict[str, Any] = {"model": MODEL, "prompt": tokens, "max_tokens": max_tokens}
        body = asked | {"ignore_eos": True, "temperature": 0, "stream": True}
        with httpx.stream("POST", self.url + "/v1/completions", json=body, timeout=400) as answer:
            lines = answer.iter_lines()
            assert answer.status_code == 200 and next(lines).startswith("data: {")
            yield

    def score(self, tokens: list[int], **more: Any) -> Any:
        """The completion of one token after `tokens`, with the log-probabilities of the prompt."""
        body = {"model": MODEL, "prompt": tokens, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 1}
        return self.ask("/v1/completions", body | more)

    def capture(self, window: str, tokens: list[int], **more: Any) -> Any:
        return self.score(tokens, vllm_xargs={"engcmp_window": window}, **more)


def environment(captures: Path | None, **more: str) -> dict[str, str]:
    """Variables of a server on two shared cores, offline; with a folder for captures the plugin is mounted."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    settings = {
        "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "2", "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_USE_V2_MODEL_RUNNER": "0", "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_WAIT_POLICY": "passive",
    }  # fmt: skip
    if captures is not None:
        settings |= {"PYTHONPATH": str(MOUNTED), "ENGCMP_CAPTURE_DIR": str(captures)}
    return kept | settings | more


def command(python: Path, checkpoint: Path, port: int, *options: str) -> list[str]:
    """The program is started by its module: the command `vllm` looks for a distribution of another name than this build's."""
    return [
        str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(checkpoint), "--served-model-name", MODEL,
        "--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16", "--enforce-eager", "--max-model-len", "2048",
        "--max-logprobs", "-1", "--enable-prompt-tokens-details", *options,
    ]  # fmt: skip


@contextmanager
def serving(python: Path, checkpoint: Path, folder: Path, *options: str, **variables: str) -> Iterator[Server]:
    """A server of its own, in a process group of its own, that has answered once: its first answer takes long."""
    captures, log = folder / "captures", folder / "log"
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with log.open("wb") as file:
        process = subprocess.Popen(
            command(python, checkpoint, port, *options), stdout=file, stderr=subprocess.STDOUT, cwd=folder,
            env=environment(captures, **variables), start_new_session=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    try:
        server = Server(f"http://127.0.0.1:{port}", captures, log)
        _wait(server, process)
        server.score(list(range(100, 140)))
        yield server
    finally:
        # All of the group: the engine's core is a process of its own.
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
                process.wait(20)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


def _wait(server: Server, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        assert process.poll() is None, server.log.read_text()[-4000:]
        try:
            if httpx.get(server.url + "/health", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.5)
    raise AssertionError(f"no answer after {START_S:.0f} s: {server.log.read_text()[-4000:]}")
