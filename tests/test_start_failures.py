"""What keeps engines from starting, in the words of Docker and the engines, and the remedy that goes with them."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from engcmp_resources.containers import DockerHost
from engcmp_resources.errors import EngcmpError
from engcmp_resources.start_failures import KNOWN_CAUSES, remedy_for, why_no_docker

PRINTED = {
    'error gathering device information while adding custom device "/dev/infiniband": no such file': "no /dev/infiniband here",
    "Error: No such image: ghcr.io/somebody/engine@sha256:11": "docker pull it by its digest",
    "Unable to find image 'engine:1' locally": "docker pull it by its digest",
    "driver failed programming external connectivity: Bind for 127.0.0.1:8001 failed: port is already allocated": "the port is taken",
    "OSError: [Errno 98] Address already in use": "the port is taken",
    "error: port 8080 of 127.0.0.1 is taken; free it": "the port is taken",
    "ValueError: Free memory on device cuda:0 (1.2/139.8 GiB) on startup is less than desired GPU memory utilization": "out of memory",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB": "out of memory",
    "config line 3: unknown key MAX_SEQ_LENGHT": "does not know an option or config key",
    "vllm: error: unrecognized arguments: --no-such-option": "does not know an option or config key",
    "huggingface_hub.errors.GatedRepoError: 401 Client Error.": "the model is gated",
    'could not select device driver "" with capabilities: [[gpu]]': "Docker cannot give out a GPU",
    "CUDA driver version is insufficient for CUDA runtime version": "the driver is older",
    'exec: "llama-server": executable file not found in $PATH': "the image has no such program",
    'exec: "/no/program": stat /no/program: no such file or directory': "the image has no such program",
    "OSError: [Errno 28] No space left on device": "the disk is full",
    "./run.sh: line 12: 4711 Illegal instruction (core dumped) llama-server": "lacks an instruction",
    "the container ended with exit code 132 before it was ready": "lacks an instruction",
}


@pytest.mark.parametrize("text", PRINTED)
def test_a_known_cause_is_told_with_its_remedy(text: str) -> None:
    assert remedy_for(f"line before\n{text}\nline after").count(PRINTED[text]) == 1


def test_every_cause_is_tested() -> None:
    told = {remedy_for(text) for text in PRINTED}
    assert told == {remedy for _, remedy in KNOWN_CAUSES}


def test_what_is_not_known_is_to_be_read() -> None:
    assert remedy_for("INFO: Application startup complete.") == "read the log"


def test_two_causes_are_both_told() -> None:
    assert remedy_for("No space left on device\nCUDA out of memory").count(";") > 1


def refused(monkeypatch: pytest.MonkeyPatch, address: str) -> str:
    monkeypatch.setenv("DOCKER_HOST", address)
    with pytest.raises(EngcmpError) as caught:
        DockerHost()
    return str(caught.value)


def test_why_no_docker_engine_answers_is_told_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "there is no such socket" in refused(monkeypatch, f"unix://{tmp_path}/none.sock")
    dead = tmp_path / "dead.sock"
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(str(dead))  # a daemon that was killed leaves its socket
    said = refused(monkeypatch, f"unix://{dead}")
    assert "nothing listens on its socket" in said and "systemctl start docker" in said and str(dead) in said
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        assert "nothing listens" in refused(monkeypatch, f"tcp://127.0.0.1:{closed.getsockname()[1]}")
    assert "port is required" in refused(monkeypatch, "nonsense")


def test_a_user_who_may_not_use_the_socket_is_told_what_helps() -> None:
    said = "Error while fetching server API version: ('Connection aborted.', PermissionError(13, 'Permission denied'))"
    assert why_no_docker(said) == (
        "this user may not use its socket",
        "let an administrator add you to the group docker, or use a rootless engine and set DOCKER_HOST",
    )
