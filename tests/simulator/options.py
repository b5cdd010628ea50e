"""How one simulator is started: the settings of the engine that it plays."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from pathlib import Path

DIALECTS = ("vllm", "cuteafd", "llama-server", "sglang")


@dataclass(frozen=True, slots=True)
class Options:
    """Each field is the command's option of the same name."""

    dialect: str = "vllm"
    host: str = "127.0.0.1"
    port: int = 0
    script: Path | None = None
    model: str = "sim/model"
    vocab: int = 512
    seed: int = 1
    perturb: float = 0.0
    decode_perturb: float = 0.0
    chunk: int = 2048
    noise_seed: int | None = None
    version: str = ""
    context: int = 8192
    max_output: int = 4096
    max_logprobs: int = 20
    max_seqs: int = 16
    queue_depth: int = 16
    queue_wait_s: float = 25.0
    batch_tokens: int = 2048
    kv_tokens: int = 65_536
    drafts: int = 0
    deterministic: bool = False
    fork: bool = False
    dump_root: Path | None = None
    full_prefill_logits: bool = True
    api_key_file: Path | None = None
    load_ms: float = 0.0
    warmup_ms: float = 0.0
    known_texts: Path | None = None
    until_stdin_closes: bool = False


HELP = {
    "dialect": "whose HTTP interface it speaks",
    "host": "address to listen on",
    "port": "port to listen on, 0 for a free one",
    "script": "JSON file of faults and timing, see faults.py",
    "model": "the name under which the model is served",
    "vocab": "width of a row",
    "seed": "of the model's weights, so to speak",
    "perturb": "how far its logits are from those of another version, in logits",
    "decode_perturb": "how far decoded rows are from prefilled ones, in logits",
    "chunk": "tokens of a prefill chunk; matters to the faults that begin with the second one",
    "noise_seed": "makes run-to-run noise repeatable; without it each process has its own",
    "version": "what the engine says of its version",
    "context": "the longest prompt with its reply, in tokens",
    "max_output": "the most tokens of a reply (cuteafd)",
    "max_logprobs": "the most log-probabilities a row, -1 for all (vllm)",
    "max_seqs": "requests that run at once; the others wait",
    "queue_depth": "requests that may wait before 429 (cuteafd)",
    "queue_wait_s": "seconds that a request waits before 429 (cuteafd)",
    "batch_tokens": "the batch size that was asked for",
    "kv_tokens": "tokens in the KV cache, as it says",
    "drafts": "speculated tokens a step; a step then gives 1 to drafts + 1",
    "deterministic": "promise, in the settings, the same result for the same request",
    "fork": "warm up behind a good /health, then say so in the log (vllm)",
    "dump_root": "existing folder under which a probe writes its rows (cuteafd)",
    "full_prefill_logits": "whether score_path prefill is served (cuteafd)",
    "api_key_file": "file with the key that requests must bear",
    "load_ms": "milliseconds of 503 from /health after it listens",
    "warmup_ms": "milliseconds of warm-up behind a good /health (with --fork)",
    "known_texts": "JSON file of texts and their token ids, as the tokenizer of the model that it plays would give them; "
    "with chat: before a message the ids of the whole prompt that its template makes of it",
    "until_stdin_closes": "end when standard input does, so that it does not outlive a test that was killed",
}


def parse(arguments: list[str] | None = None) -> Options:
    """The options of a command line; ends the process with status 2 for one that is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulator", description="An engine that misbehaves on demand."
    )
    defaults = Options()
    for field in fields(Options):
        flag, default = f"--{field.name.replace('_', '-')}", getattr(defaults, field.name)
        text = HELP[field.name]
        if isinstance(default, bool):
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=default, help=text)
        elif field.name == "dialect":
            parser.add_argument(flag, choices=DIALECTS, default=default, help=text)
        else:
            kind = Path if "Path" in str(field.type) else int if "int" in str(field.type) else type(default)
            parser.add_argument(flag, type=kind, default=default, help=text)
    return Options(**vars(parser.parse_args(arguments)))
