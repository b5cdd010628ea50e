"""What tests of API clients share: a simulator with its client, its truth, and a server that gives one planted answer. No tests."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engcmp_resources.engines._api import ApiClient, ApiName, make_client
from engcmp_resources.engines.servers import Capabilities
from tests.simulator.model import Model, log_softmax
from tests.simulator.running import Simulator, running_simulator

VOCAB, MODEL, ARM = 512, "sim/model", "k4/engine@v1"
DEADLINE_S = 30.0
Rows = npt.NDArray[np.float32]


@contextmanager
def simulated(api: ApiName, dump_root: Path | None = None, **options: Any) -> Iterator[tuple[ApiClient, Simulator]]:
    """A simulator and its client."""
    if dump_root is not None:
        options["dump_root"] = dump_root
    with running_simulator(api, model=MODEL, vocab=VOCAB, **options) as simulator:
        client = client_at(api, simulator.url, dump_root=dump_root)
        try:
            yield client, simulator
        finally:
            client.close()


def client_at(api: ApiName, url: str, dump_root: Path | None = None, vocab: int = VOCAB) -> ApiClient:
    return make_client(api, url, key=None, label=f"arm {ARM}", model=MODEL, vocab=vocab, dump_root=dump_root)


def soon(seconds: float = DEADLINE_S) -> float:
    return time.monotonic() + seconds


def prove(client: ApiClient) -> tuple[Capabilities, dict[str, Any]]:
    return client.prove(soon())


def tokens(count: int, seed: int = 3) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(10, VOCAB, count)]


def truth(ids: Sequence[int], positions: Sequence[int], **changed: Any) -> Rows:
    """The log-probabilities of rows, float32, as the simulator has them."""
    return log_softmax(Model(**{"vocab": VOCAB, "seed": 1} | changed).rows(ids, positions))


def top20(rows: Rows) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Ids and values of the 20 most probable, ties to the lower id."""
    ids = np.argsort(-rows, axis=1, kind="stable")[:, :20]
    return ids, np.take_along_axis(rows, ids, axis=1).astype(np.float64)


@contextmanager
def planted(answer: Callable[[str, dict[str, Any]], Any]) -> Iterator[str]:
    """The address of a server that answers each request with the JSON (or bytes) that `answer` gives for path and body."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            made = answer(self.path, json.loads(body) if body else {})
            content = made if isinstance(made, bytes) else json.dumps(made).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
