"""The command line of llama.cpp's server: a program of its own, with llama-server's options."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from decoding import VOCAB, tokens, until

from engcmp_resources.engines import llamacpp_server_cli
from engcmp_resources.engines._llamacpp_http import CompletionClient

CLI = Path(llamacpp_server_cli.__file__)
SIZES = ["-c", "512", "-b", "512", "-ub", "256", "-t", "2"]


def arguments(folder: Path, **changed: str) -> list[str]:
    key = folder / "key"
    key.write_text("planted-key\n")
    named = {"--library": "library.so", "-m": "model.gguf", "-a": "sha", "--port": "0", "--api-key-file": str(key)}
    return [word for pair in (named | changed).items() for word in pair] + SIZES


def run(words: list[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-S", str(CLI), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_the_request_is_what_the_options_say(tmp_path: Path) -> None:
    assert llamacpp_server_cli.parsed(arguments(tmp_path)) == {
        "library": "library.so", "model": "model.gguf", "alias": "sha", "key": "planted-key", "host": "127.0.0.1", "port": 0,
        "n_ctx": 512, "n_batch": 512, "n_ubatch": 256, "n_threads": 2, "n_threads_batch": 2, "n_parallel": 1, "endpoint_metrics": False,
    }  # fmt: skip
    served = llamacpp_server_cli.parsed([*arguments(tmp_path), "-np", "4", "--metrics"])
    assert (served["n_parallel"], served["endpoint_metrics"]) == (4, True)
    assert llamacpp_server_cli.parsed([*arguments(tmp_path), "-tb", "1"])["n_threads_batch"] == 1


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["-np", "0"], "--parallel: give 1 or more"),
        (["--warmup"], "unrecognized arguments: --warmup"),
        (["--api-key-file", "/no/such/file"], "--api-key-file: .*No such file"),
        (["--ctx-siz", "512"], "unrecognized arguments"),  # no abbreviation: it could mean another option one day
    ],
)
def test_what_it_does_not_know_ends_it(
    tmp_path: Path, words: list[str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        llamacpp_server_cli.parsed([*arguments(tmp_path), *words])
    assert re.search(what, capsys.readouterr().err)


def test_a_library_that_is_none_ends_it_with_the_remedy(tmp_path: Path) -> None:
    other = tmp_path / "other.so"
    other.write_bytes(b"no library")
    done = run(arguments(tmp_path, **{"--library": str(other)}))
    assert done.returncode == 1
    assert "error: the library does not load" in done.stderr
    assert "Traceback" not in done.stderr


def test_it_serves_with_the_standard_library_alone_and_ends_by_sigterm(
    llamacpp_library: Path, q4_0_model: Path, tmp_path: Path
) -> None:
    words = arguments(tmp_path, **{"--library": str(llamacpp_library), "-m": str(q4_0_model)})
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-I", "-S", str(CLI), *words], stdout=subprocess.PIPE, stderr=log, text=True, env={}
        )
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        assert line.startswith("server is listening on http://127.0.0.1:")
        client = CompletionClient(line.split()[-1], key="planted-key", label="a", model="sha", vocab=VOCAB)
        assert client.get_ready(30)["n_ctx"] == 512
        ids = tokens(4)
        client.process_prefix(ids[:3], doing="w", deadline_s=30)
        row, processed = client.decode_row(ids, doing="w", deadline_s=30)
        client.close()
        assert (row.shape, processed) == ((VOCAB,), 1)
        os.kill(server.pid, signal.SIGTERM)
        assert until(lambda: server.poll() is not None)
        assert server.returncode == 0
    finally:
        server.kill()
        server.communicate()
