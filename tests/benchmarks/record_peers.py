"""Write tests/kernel/throughput/recorded/: what other clients state of an exchange, with the exchange as they themselves stamped it.

So their definitions can be held against ours to within their clocks' resolution, without them. aiperf and guidellm run as they are on
`exchange_server.py`; aiperf's raw export has each event with its stamp, and guidellm's reader, in a copy, notes the stamp it takes of
each line. `vllm bench serve`'s own reader and metrics are run on aiperf's exchange, their clock set to its stamps
(tests/vllm/bench_metrics_driver.py). Times are moved so that the first request is sent at one second; ids are numbers; nothing is kept of
this machine. The clients' environments must be there: bench_load_peers.py makes them.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from peers import PEERS, Asked, Peer, furnish, offline

_TESTS = Path(__file__).resolve().parents[1]
OUT = _TESTS / "kernel" / "throughput" / "recorded"
_REPLIES, _TOKENS, _STREAMS = 6, 24, 2
_NS = 1_000_000_000
_AIPERF = (
    "time_to_first_token",
    "time_to_first_output_token",
    "inter_token_latency",
    "inter_chunk_latency",
    "request_latency",
)
_GUIDELLM = (
    "time_to_first_token_ms", "time_to_first_output_token_ms", "inter_token_latency_ms", "time_per_output_token_ms", "request_latency",
)  # fmt: skip
_STAMPED = "                    iter_time = time.time()\n"
_NOTE = (
    "                    with open({path!r}, 'a') as _noted:\n"
    "                        _noted.write(__import__('json').dumps([request_info.request_id, iter_time, chunk]) + '\\n')\n"
)


@contextmanager
def _server() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with subprocess.Popen([sys.executable, str(Path(__file__).with_name("exchange_server.py")), str(port)]) as process:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.05)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def _peer(name: str) -> tuple[Peer, Path]:
    peer = next(one for one in PEERS if one.spec.startswith(name))
    python = peer.installed()
    if python is None:
        raise SystemExit(f"{peer.spec} is not installed: bench_load_peers.py installs it")
    return peer, python


def _run(name: str, home: Path, snapshot: Path, *more: str) -> Path:
    """A client on a server of its own; gives the folder of its results."""
    peer, python = _peer(name)
    folder = home / name
    folder.mkdir()
    with _server() as url:
        command = peer.command(Asked(url, _REPLIES, _TOKENS, _STREAMS, folder, snapshot))
        subprocess.run(
            [str(python), *command, *more], cwd=folder, env=offline(home), check=True, capture_output=True, timeout=300
        )
    return folder


def _moved(requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """In the order of their sending, the first at one second, with numbers as ids."""
    ordered = sorted(requests, key=lambda one: one["t0_ns"])
    by = _NS - ordered[0]["t0_ns"]
    return [
        one
        | {"request_id": f"r{number}", "t0_ns": one["t0_ns"] + by, "end_ns": one["end_ns"] + by}
        | {"events": [[t_ns + by, text] for t_ns, text in one["events"]]}
        for number, one in enumerate(ordered)
    ]


def _aiperf(home: Path, snapshot: Path) -> dict[str, Any]:
    folder = _run("aiperf", home, snapshot, "--export-level", "raw") / "aiperf"
    stated = {}
    for line in (folder / "profile_export.jsonl").open():
        row = json.loads(line)
        stated[row["metadata"]["x_request_id"]] = {name: row["metrics"][name]["value"] for name in _AIPERF}
    requests = []
    for line in (folder / "profile_export_raw.jsonl").open():
        row = json.loads(line)
        events = [[one["perf_ns"], f"data: {packet['value']}"] for one in row["responses"] for packet in one["packets"]]
        own = stated[row["metadata"]["x_request_id"]]
        requests.append({"t0_ns": row["start_perf_ns"], "end_ns": events[-1][0], "events": events, "stated": own})
    return {"client": "aiperf 0.13.0", "requests": _moved(requests)}


def _guidellm(home: Path, snapshot: Path) -> dict[str, Any]:
    _, python = _peer("guidellm")
    (package,) = python.parents[1].glob("lib/python*/site-packages/guidellm")
    shutil.copytree(package, home / "names" / "guidellm")  # found before the installed one
    reader = home / "names" / "guidellm" / "backends" / "openai" / "http.py"
    text, path = reader.read_text(), home / "noted.jsonl"
    if text.count(_STAMPED) != 1:
        raise SystemExit("guidellm's reader is another one: see where it takes its stamps")
    reader.write_text(text.replace(_STAMPED, _STAMPED + _NOTE.format(path=str(path))))
    folder = _run("guidellm", home, snapshot)
    noted: dict[str, list[list[Any]]] = {}
    for line in path.open():
        name, at_s, text = json.loads(line)
        noted.setdefault(name, []).append([round(at_s * _NS), text])
    (found,) = json.loads((folder / "guidellm.json").read_text())["benchmarks"]
    requests = [
        {
            "t0_ns": round(row["request_start_time"] * _NS), "end_ns": round(row["request_end_time"] * _NS),
            "events": noted[row["request_id"]], "stated": {name: row[name] for name in _GUIDELLM},
        }
        for row in found["requests"]["successful"]
    ]  # fmt: skip
    return {"client": "guidellm 0.8.1", "requests": _moved(requests)}


def _vllm(home: Path, exchange: dict[str, Any]) -> dict[str, Any]:
    _, python = _peer("vllm")
    streams = home / "streams.json"
    streams.write_text(json.dumps(exchange["requests"]))
    driver = _TESTS / "vllm" / "bench_metrics_driver.py"
    done = subprocess.run([str(python), str(driver), str(streams)], check=True, capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    if found["failed"]:
        raise SystemExit(f"vllm's reader failed: {found['failed']}")
    return {"client": "vllm bench serve 0.32.0", "exchange_of": "aiperf", "stated": found["metrics"]}


def main() -> None:
    OUT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="record-peers-") as folder:
        home = Path(folder)
        snapshot = furnish(home)
        made = {"aiperf": _aiperf(home, snapshot), "guidellm": _guidellm(home, snapshot)}
        made["vllm"] = _vllm(home, made["aiperf"])
    for name, one in made.items():
        lines = [json.dumps(request, separators=(",", ":")) for request in one.pop("requests", ())]
        (OUT / f"{name}.jsonl").write_text("\n".join([json.dumps(one, separators=(",", ":")), *lines]) + "\n")


if __name__ == "__main__":
    main()
