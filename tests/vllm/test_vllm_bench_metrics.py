"""The metrics under `vllm bench serve`'s names are the ones that its own code gives on the same streams."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "kernel" / "throughput"))

from speed_cells import MS, Stream, tables

from engcmp_assets.kernel.throughput.peer_metrics import peer_metrics

DRIVER = Path(__file__).parent / "bench_metrics_driver.py"
DELTAS = {
    "role": {"role": "assistant", "content": ""},
    "reasoning": {"reasoning": "x"},
    "answer": {"content": "x"},
    "tool_call": {"tool_calls": [{"index": 0, "function": {"arguments": "x"}}]},
    "empty": {"content": ""},
}


def streams() -> list[Stream]:
    """40 chats: a role event, reasoning, answer and tool calls of several tokens, empty events, the finish, the usage, the end."""
    chance, found = random.Random(5), []
    for number in range(40):
        t = t0 = 10**9 + number * 7 * MS
        events = []
        kinds = ["role", *(chance.choice(["reasoning", "answer", "tool_call", "empty"]) for _ in range(30)), "answer"]
        for kind in kinds:
            t += chance.randint(0, 20 * MS)
            events.append((t, kind, 0 if kind in ("role", "empty") else chance.randint(1, 4)))
        t += chance.randint(1, 5 * MS)
        events += [(t, "finish", 0), (t, "usage", 0), (t + MS, "done", 0)]
        found.append(Stream(f"r{number}", t0, tuple(events)))
    return found


def sent(one: Stream, kind: str) -> str:
    if kind == "done":
        return "data: [DONE]"
    if kind == "usage":
        n = sum(count for _, _, count in one.tokens)
        return f"data: {json.dumps({'choices': [], 'usage': {'completion_tokens': n, 'prompt_tokens': 100}})}"
    choice = {"delta": DELTAS.get(kind, {})} | ({"finish_reason": "stop"} if kind == "finish" else {})
    return f"data: {json.dumps({'choices': [choice]})}"


def test_every_metric_agrees_with_its_own_code(vllm_python: Path, tmp_path: Path) -> None:
    made = streams()
    recorded = [{"t0_ns": one.t0, "events": [[t, sent(one, kind)] for t, kind, _ in one.events]} for one in made]
    (tmp_path / "streams.json").write_text(json.dumps(recorded))
    done = subprocess.run(
        [str(vllm_python), str(DRIVER), str(tmp_path / "streams.json")],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = json.loads(done.stdout.splitlines()[-1])
    assert theirs["failed"] == []
    ours = peer_metrics(*tables(made))["vllm bench serve 0.32.0"]
    assert set(theirs["metrics"]) == set(ours)
    for name, values in theirs["metrics"].items():
        for statistic, value in values.items():
            assert ours[name][statistic] == pytest.approx(value, rel=1e-9), (name, statistic)
