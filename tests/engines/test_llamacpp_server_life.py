"""The life of llama.cpp's server: its port, its deaths, its deadlines, its environment, and that nothing is left of it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from decoding import ARM, ROOT, VOCAB, AtRequest, DecoderLauncher, rows, servers_of, tokens, until, until_it_computes
from ports import LOOPBACK, listening

from engcmp_resources.engines import llamacpp_server
from engcmp_resources.engines._child import Child
from engcmp_resources.engines._llamacpp_http import CompletionClient
from engcmp_resources.engines.base import LaunchSpec
from engcmp_resources.errors import EngcmpError

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")


def test_a_taken_port_is_named_and_a_free_one_serves(start_server: DecoderLauncher, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(EngcmpError, match=f"port {port} of 127.0.0.1 is taken") as refused, start_server(port=port):
            pytest.fail("the engine started")
    assert "name none for a free one" in str(refused.value)
    assert start_server.servers() == []
    with start_server(port=port) as running:
        assert rows(running, tokens(4), [3], tmp_path / "rows")
        with pytest.raises(EngcmpError, match=f"port {port}"), start_server(port=port, log=tmp_path / "second.log"):
            pytest.fail("a second engine started on the port of the first")


@linux_only
def test_it_listens_on_the_loopback_address_alone(start_server: DecoderLauncher) -> None:
    with start_server():
        (pid,) = start_server.servers()
        assert {address for address, _ in listening(pid)} == {LOOPBACK}


@linux_only
def test_a_server_killed_in_mid_row_gives_its_signal_and_leaves_nothing(
    start_server: DecoderLauncher, tmp_path: Path
) -> None:
    with start_server() as running:
        (pid,) = start_server.servers()
        AtRequest(running, pid, 5, lambda: os.kill(pid, signal.SIGKILL))  # the first is what precedes row 1
        with pytest.raises(EngcmpError, match=r"died of SIGKILL while decoding row 4 of window w7") as died:
            running.decode_rows("w7", tokens(200), range(1, 200), tmp_path / "rows")
        with pytest.raises(EngcmpError, match="died of SIGKILL before processing what precedes row 3 of window w8"):
            running.decode_rows("w8", tokens(4), [3], tmp_path / "rows")
    assert "its last words" in str(died.value)
    assert start_server.servers() == []
    assert {path.name for path in tmp_path.iterdir()} == {"engine.log"}


@linux_only
def test_a_server_killed_while_loading_gives_its_signal(start_server: DecoderLauncher) -> None:
    def kill_the_first() -> None:
        assert until(start_server.servers)
        os.kill(start_server.servers()[0], signal.SIGKILL)

    killer = threading.Thread(target=kill_the_first)
    killer.start()
    with pytest.raises(EngcmpError, match="died of SIGKILL while loading"), start_server():
        pytest.fail("the engine started")
    killer.join()
    assert start_server.servers() == []


@linux_only
def test_a_late_row_is_an_error_and_the_server_is_killed(start_server: DecoderLauncher, tmp_path: Path) -> None:
    with start_server(row_deadline_s=0.05) as running:
        with pytest.raises(EngcmpError, match=r"no answer within 0\.05 s while .* of window w7; the engine was killed"):
            running.decode_rows("w7", tokens(300), [299], tmp_path / "rows")
        assert start_server.servers() == []
    with pytest.raises(EngcmpError, match=r"no answer within .* while loading"), start_server(start_deadline_s=0.0):
        pytest.fail("the engine started")
    assert start_server.servers() == []
    assert not (tmp_path / "rows").exists()


@linux_only
def test_ctrl_c_in_mid_row_ends_the_server_at_once(start_server: DecoderLauncher, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), start_server() as running:
        (pid,) = start_server.servers()
        requests = AtRequest(running, pid, 5, lambda: signal.raise_signal(signal.SIGINT))
        running.decode_rows("w7", tokens(200), range(1, 200), tmp_path / "rows")
    assert requests.sent == 5  # none after the interrupt
    assert running._child.process.returncode == 0  # type: ignore[attr-defined]  # it did not have to be waited for and killed
    assert start_server.servers() == []
    assert {path.name for path in tmp_path.iterdir()} == {"engine.log"}


@linux_only
def test_an_error_of_the_caller_ends_the_server(start_server: DecoderLauncher) -> None:
    with pytest.raises(ZeroDivisionError), start_server():
        assert len(start_server.servers()) == 1
        raise ZeroDivisionError
    assert start_server.servers() == []


PARENT = """
import sys
from pathlib import Path
from engcmp_resources.engines.base import LaunchSpec, start_decoder
library, model, folder, *hashes = sys.argv[1:]
spec = LaunchSpec("llamacpp", "b11549", *hashes, 1, 512, 512, 512, 49152)
files = {"library": Path(library), "model": Path(model), "log": Path(folder, "log")}
with start_decoder("llamacpp", spec, **files, environment={}) as engine:
    print("ready", flush=True)
    while True:
        engine.decode_rows("w", list(range(100, 400)), range(1, 300), Path(folder, "rows"))
"""


@linux_only
def test_no_server_outlives_a_killed_parent(
    decoder_spec: LaunchSpec, llamacpp_library: Path, q4_0_model: Path, tmp_path: Path
) -> None:
    arguments = [
        str(llamacpp_library),
        str(q4_0_model),
        str(tmp_path),
        decoder_spec.library_sha256,
        decoder_spec.model_sha256,
    ]
    parent = subprocess.Popen([sys.executable, "-c", PARENT, *arguments], stdout=subprocess.PIPE, cwd=ROOT)
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        (pid,) = servers_of(parent.pid)
        until_it_computes(pid)
    finally:
        parent.kill()
        parent.communicate()
    assert until(lambda: not Path(f"/proc/{pid}").exists())


@linux_only
def test_the_server_sees_its_labels_and_no_secret_of_the_user(
    start_server: DecoderLauncher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("LLAMA_API_KEY", "another")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with start_server() as running:
        (pid,) = start_server.servers()
        pairs = Path(f"/proc/{pid}/environ").read_bytes().decode().strip("\0").split("\0")
        assert rows(running, tokens(4), [3], tmp_path / "rows")  # not through the user's proxy
    environment = dict(pair.split("=", 1) for pair in pairs)
    assert {environment[name] for name in ("ENGCMP_ARM", "ENGCMP_LOCK", "ENGCMP_RUN")} == {ARM, "/lock", "run-1"}
    assert not {"HF_TOKEN", "LLAMA_API_KEY", "HTTP_PROXY", "HOME"} & set(environment)


def test_a_real_server_of_another_model_or_another_key_is_not_taken_for_ours(
    decoder_spec: LaunchSpec, llamacpp_library: Path, q4_0_model: Path, tmp_path: Path
) -> None:
    sizes = dict.fromkeys(("n_ctx", "n_batch", "n_ubatch"), 512) | dict.fromkeys(("n_threads", "n_threads_batch"), 1)
    request = sizes | {"library": str(llamacpp_library), "model": str(q4_0_model)}
    request |= {"key": "theirs", "alias": "their model", "port": 0}
    child = Child(llamacpp_server._WORKER, label="theirs", log=tmp_path / "log", environment={})
    try:
        address = child.ask(request, doing="loading", deadline_s=60)["address"]

        def ready(key: str, model: str) -> dict[str, Any]:
            return CompletionClient(address, key=key, label=ARM, model=model, vocab=VOCAB).get_ready(30)

        with pytest.raises(EngcmpError, match=f"serves the model 'their model', not '{decoder_spec.model_sha256}'"):
            ready("theirs", decoder_spec.model_sha256)
        with pytest.raises(EngcmpError, match=r"HTTP status 401: .*Invalid API Key"):
            ready("ours", "their model")
        assert ready("theirs", "their model")["n_vocab"] == VOCAB
    finally:
        child.end(wait_s=5)
