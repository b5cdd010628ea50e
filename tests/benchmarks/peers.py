"""Other load clients, each in an environment of its own of a pinned version, with what it needs to run without the network."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engcmp_resources import vllm_environment

_MODEL = "bench"
_WORDS = 2000
_BOOK = "https://www.gutenberg.org/files/1661/1661-0.txt"
_REVISION = "0" * 40


@dataclass(frozen=True)
class Asked:
    """A workload for a client: `replies` of `tokens` tokens each from `url`, `streams` at a time; it may write into `folder`."""

    url: str
    replies: int
    tokens: int
    streams: int
    folder: Path
    tokenizer: Path


@dataclass(frozen=True)
class Reported:
    """What a client says: tokens of all replies, TTFT (ms) of each, and the mean of each metric by its own name and unit.

    `tokens` is None where it states no count.
    """

    tokens: int | None
    ttft_ms: Sequence[float]
    means: dict[str, float]


@dataclass(frozen=True)
class Peer:
    """A client: how it is started (with the Python of its environment), its last file of results, and how they are read."""

    spec: str
    result: str
    command: Callable[[Asked], list[str]]
    read: Callable[[Asked], Reported]

    @property
    def name(self) -> str:
        return self.spec.replace("==", " ")

    @property
    def folder(self) -> Path:
        """Where its environment is, or will be."""
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cache / "engcmp" / "peers" / self.spec.partition("==")[0]

    def installed(self) -> Path | None:
        """The Python of its environment, if it is there."""
        if self.spec == vllm_environment.VLLM:
            return vllm_environment.ready_python()
        ready = self.folder / "ready"
        whole = ready.is_file() and ready.read_text(encoding="utf-8").strip() == self.spec
        return self.folder / "bin" / "python" if whole else None

    def python(self) -> Path:
        """The Python of its environment, made first where need be. Raises CalledProcessError where that fails."""
        if found := self.installed():
            return found
        if self.spec == vllm_environment.VLLM:
            return vllm_environment.make()
        folder = self.folder
        python = folder / "bin" / "python"
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", self.spec]
        subprocess.run(install, check=True, capture_output=True, text=True)
        (folder / "ready").write_text(self.spec, encoding="utf-8")
        return python


def offline(home: Path) -> dict[str, str]:
    """The environment variables of all clients: a home of their own, and no network."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    own = {"HOME": home, "HF_HOME": home / "hf", "PYTHONPATH": home / "names"}
    return kept | {name: str(value) for name, value in own.items()} | dict.fromkeys(
        ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK"), "1"
    )  # fmt: skip


def furnish(home: Path) -> Path:
    """Fill the home: a tokenizer of words, a book of them, and the name under which vLLM's CPU build looks for itself. The tokenizer."""
    snapshot = home / "hf" / "hub" / "models--local--words" / "snapshots" / _REVISION
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text(_REVISION)
    words = ["<unk>", "<s>", "</s>", "a", *(f"w{number}" for number in range(_WORDS))]
    model = {"type": "WordLevel", "vocab": {word: number for number, word in enumerate(words)}, "unk_token": "<unk>"}
    added = [
        {"id": number, "content": words[number], "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for number in range(3)
    ]
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None, "model": model,
    }  # fmt: skip
    template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    known = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "eos_token": "</s>",
    }
    known |= {"chat_template": template, "model_max_length": 100_000}
    (snapshot / "tokenizer.json").write_text(json.dumps(tokenizer))
    (snapshot / "tokenizer_config.json").write_text(json.dumps(known))
    (snapshot / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": len(words)}))
    book = home / ".cache" / "llama-benchy" / f"{hashlib.md5(_BOOK.encode()).hexdigest()}.txt"  # noqa: S324 - how it names the file
    book.parent.mkdir(parents=True)
    book.write_text(" ".join(words[4 + number * 7 % _WORDS] for number in range(50_000)))
    # Its own version with "+cpu", by which it finds which of its kernels this processor has.
    named = home / "names" / "vllm-0.32.0+cpu.dist-info" / "METADATA"
    named.parent.mkdir(parents=True)
    named.write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n")
    return snapshot


def _vllm(asked: Asked) -> list[str]:
    options = {
        "backend": "openai-chat", "base-url": asked.url, "endpoint": "/v1/chat/completions", "model": _MODEL, "tokenizer": asked.tokenizer,
        "dataset-name": "random", "random-input-len": 128, "random-output-len": asked.tokens, "num-prompts": asked.replies,
        "max-concurrency": asked.streams, "num-warmups": 0, "ready-check-timeout-sec": 0, "percentile-metrics": "ttft,tpot,itl,e2el",
        "result-dir": asked.folder, "result-filename": "vllm.json",
    }  # fmt: skip
    command = [
        "-m",
        "vllm.entrypoints.cli.main",
        "bench",
        "serve",
        "--save-result",
        "--save-detailed",
        "--disable-tqdm",
    ]
    return [*command, *_flags(options)]


def _vllm_reported(asked: Asked) -> Reported:
    found = json.loads((asked.folder / "vllm.json").read_text())
    means = {name: found[f"mean_{name}_ms"] for name in ("ttft", "tpot", "itl", "e2el")}
    return Reported(found["total_output_tokens"], [1e3 * one for one in found["ttfts"]], means)


def _aiperf(asked: Asked) -> list[str]:
    options = {
        "model": _MODEL, "url": asked.url, "endpoint-type": "chat", "tokenizer": "local/words", "concurrency": asked.streams,
        "request-count": asked.replies, "synthetic-input-tokens-mean": 128, "output-tokens-mean": asked.tokens, "output-tokens-stddev": 0,
        "random-seed": 1, "ui-type": "none", "output-artifact-dir": asked.folder / "aiperf",
    }  # fmt: skip
    flags = ["--streaming", "--no-server-metrics", "--no-gpu-telemetry"]
    return ["-c", "import sys; from aiperf.cli import app; app()", "profile", *_flags(options), *flags]


def _aiperf_reported(asked: Asked) -> Reported:
    rows = [json.loads(line)["metrics"] for line in (asked.folder / "aiperf" / "profile_export.jsonl").open()]
    names = ("time_to_first_token", "inter_token_latency", "inter_chunk_latency", "request_latency")
    means = {name: _mean([value for row in rows for value in _listed(row[name]["value"])]) for name in names}
    tokens = sum(int(row["output_sequence_length"]["value"]) for row in rows)
    return Reported(tokens, [row["time_to_first_token"]["value"] for row in rows], means)


def _guidellm(asked: Asked) -> list[str]:
    options = {
        "backend": f"kind=openai_http,target={asked.url},model={_MODEL}", "profile": f"kind=concurrent,streams={asked.streams}",
        "constraint": f"kind=max_requests,count={asked.replies}",
        "data": f"kind=synthetic_text,prompt_tokens=128,output_tokens={asked.tokens}",
        "tokenizer": f"kind=huggingface_auto,model={asked.tokenizer}", "output": f"kind=json,path={asked.folder / 'guidellm.json'}",
    }  # fmt: skip
    return ["-m", "guidellm", "run", *_flags(options), "--disable-progress"]


def _guidellm_reported(asked: Asked) -> Reported:
    (found,) = json.loads((asked.folder / "guidellm.json").read_text())["benchmarks"]
    rows = found["requests"]["successful"]
    names = ("time_to_first_token_ms", "inter_token_latency_ms", "time_per_output_token_ms", "request_latency")
    means = {name: _mean([row[name] for row in rows]) for name in names}
    return Reported(sum(row["output_tokens"] for row in rows), [row["time_to_first_token_ms"] for row in rows], means)


def _benchy(asked: Asked) -> list[str]:
    options = {
        "base-url": f"{asked.url}/v1", "model": _MODEL, "tokenizer": asked.tokenizer, "pp": 128, "tg": asked.tokens,
        "runs": -(-asked.replies // asked.streams), "concurrency": asked.streams, "latency-mode": "none",
        "save-result": asked.folder / "benchy.json", "format": "json",
    }  # fmt: skip
    return ["-m", "llama_benchy", *_flags(options), "--no-warmup", "--no-adapt-prompt", "--skip-coherence"]


def _benchy_reported(asked: Asked) -> Reported:
    (found,) = json.loads((asked.folder / "benchy.json").read_text())["benchmarks"]
    return Reported(None, found["e2e_ttft"]["values"], {"e2e_ttft": found["e2e_ttft"]["mean"]})


def _flags(options: dict[str, Any]) -> list[str]:
    return [part for name, value in options.items() for part in (f"--{name}", str(value))]


def _listed(value: Any) -> list[float]:
    return value if isinstance(value, list) else [value]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


PEERS = (
    Peer(vllm_environment.VLLM, "vllm.json", _vllm, _vllm_reported),
    Peer("aiperf==0.13.0", "aiperf/profile_export_aiperf.json", _aiperf, _aiperf_reported),
    Peer("guidellm==0.8.1", "guidellm.json", _guidellm, _guidellm_reported),
    Peer("llama-benchy==0.4.0", "benchy.json", _benchy, _benchy_reported),
)
