"""Stands in for `python -m vllm.entrypoints.openai.api_server`: the simulator, which writes captures as the plugin does. No tests.

It takes the options that the kind gives, or the simulator's own, and says in its log what vLLM says. STAND_IN spoils one thing: `exits`,
`silent` (no ready line), `other-rows` (captures that are not what was answered), `no-capture`, `other-dtype`, `stubborn` (a child that
ignores SIGTERM), `one-by-one` (no step holds two requests). `slow`: each token takes 15 ms, so that requests meet.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engcmp_resources.canonical import sha256_file
from engcmp_resources.engines.vllm_plugin.reading import SCHEMA
from engcmp_resources.row_files import RowFile, write_rows
from tests.simulator import __main__ as simulator
from tests.simulator.dialect_vllm import Vllm
from tests.simulator.engine import Engine
from tests.simulator.faults import Timing
from tests.simulator.model import Model
from tests.simulator.options import Options, parse

VOCAB, VERSION = 512, "0.32.0"
SPOILED = os.environ.get("STAND_IN", "")


def write_capture(folder: Path, name: str, tokens: list[int], chunk: int, others: int) -> None:
    """What the plugin writes of a prompt that is read `chunk` tokens a step, beside `others` requests at one token a step."""
    positions = np.arange(len(tokens) - 1, dtype=np.int32)
    logits = Model(vocab=VOCAB, seed=1).rows(tokens, positions.tolist())
    if SPOILED == "other-rows":
        logits = np.roll(logits, 1, axis=0)
    digest = hashlib.sha256(np.asarray(tokens, dtype="<u4").tobytes()).hexdigest()
    path = folder / f"{name}.safetensors"
    write_rows(path, RowFile(name, digest, positions, logits))
    chunks = [
        {
            "step": 1 + start // chunk, "start": start, "tokens": min(chunk, len(tokens) - start),
            "other_requests": others, "other_tokens": others,
        }
        for start in range(0, len(tokens), chunk)
    ]  # fmt: skip
    manifest = {
        "schema": SCHEMA, "window_id": name, "request_id": "r", "tokens_sha256": digest, "prompt_tokens": len(tokens), "cached_tokens": 0,
        "rows": len(positions), "vocab": VOCAB, "dtype": "F32", "fault": None, "file_sha256": sha256_file(path), "chunks": chunks,
        "chunk_lengths": [one["tokens"] for one in chunks], "runner": "v1", "vllm": VERSION, "hooked": {},
    }  # fmt: skip
    (folder / f"{name}.json").write_text(json.dumps(manifest))


class Plugged(Vllm):
    """The simulator's vLLM with the plugin loaded."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        if SPOILED == "slow":
            engine.faults.timing = Timing(itl_ms=15.0)

    def _reply(self, exchange: Any, body: dict[str, Any], prompt: list[int], *, chat: bool) -> None:
        name = (body.get("vllm_xargs") or {}).get("engcmp_window")
        folder = os.environ.get("ENGCMP_CAPTURE_DIR")
        if name and folder and SPOILED != "no-capture":
            others = 0 if SPOILED == "one-by-one" else self.engine.running
            write_capture(Path(folder), name, prompt, self.options.batch_tokens, others)
        super()._reply(exchange, body, prompt, chat=chat)


def main(arguments: list[str]) -> int:
    """Serve as the options say."""
    if SPOILED == "exits":
        print("RuntimeError: Not enough memory", flush=True)
        return 3
    simulator.SPOKEN["vllm"] = Plugged
    if "--dialect" in arguments:  # in a container, as the simulator is started there
        return simulator.main(parse(arguments))
    named = dict(pairwise(arguments))
    dtype = "torch.float16" if SPOILED == "other-dtype" else f"torch.{named['--dtype']}"
    print(f"INFO Initializing engine with config: model={named['--model']!r}, dtype={dtype}", flush=True)
    if SPOILED == "stubborn":
        code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
        subprocess.Popen([sys.executable, "-c", code])
    if SPOILED == "silent":
        Plugged.say_ready = lambda *_: None
    key = Path(os.environ["TMPDIR"]) / "key"
    key.write_text(os.environ["VLLM_API_KEY"])
    return simulator.main(
        Options(
            host=named["--host"], port=int(named["--port"]), model=named["--served-model-name"], vocab=VOCAB, version=VERSION,
            context=int(named["--max-model-len"]), batch_tokens=int(named["--max-num-batched-tokens"]), api_key_file=key,
        )
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
