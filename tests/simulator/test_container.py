"""The simulator in a container, from an image that is made here."""

from __future__ import annotations

import io
import json
import os
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from docker_engine import docker_engine  # noqa: F401 - a fixture

from . import container
from .running import READY

docker = pytest.importorskip("docker")
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="the container runs this host's own programs")


def test_the_image_is_empty_folders_and_the_same_bytes_each_time() -> None:
    content = container.image_tar()
    assert content == container.image_tar()
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        members = tar.getmembers()
    assert {member.name for member in members} >= {"usr", "lib", "tmp", "etc"}
    assert all(member.isdir() for member in members)


def test_only_what_is_asked_for_can_be_written(tmp_path: Path) -> None:
    mounted = container.mounts(tmp_path)
    assert [path for path, how in mounted.items() if how["mode"] == "rw"] == [str(tmp_path)]
    assert str(Path(sys.base_prefix)) in mounted or sys.base_prefix.startswith("/usr")
    assert container.command("vllm", 8000, chunk=4)[1:] == [
        "-m",
        "tests.simulator",
        "--dialect",
        "vllm",
        "--port",
        "8000",
        "--chunk",
        "4",
    ]


@pytest.fixture
def engine(docker_engine: None) -> Any:
    client = docker.from_env(environment=os.environ)
    client.api.import_image_from_data(container.image_tar(), repository=container.IMAGE, tag="latest")
    yield client
    client.close()


def wait_for(running: Any, part: str) -> list[str]:
    """The lines of its log, once one holds this."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        lines: list[str] = running.logs().decode().splitlines()
        if any(part in line for line in lines):
            return lines
        time.sleep(0.05)
    raise AssertionError(running.logs().decode())


@linux_only
@pytest.mark.parametrize("dialect", READY)
def test_it_serves_from_a_container_and_ends_when_told(engine: Any, dialect: str) -> None:
    running = engine.containers.run(**container.run_arguments(dialect, 0))
    try:
        lines = wait_for(running, READY[dialect])
        address = json.loads(lines[0])["address"]
        assert httpx.get(f"{address}/health", trust_env=False).status_code == 200
        running.stop(timeout=10)
        running.reload()
        assert running.attrs["State"]["ExitCode"] == 0
    finally:
        running.remove(force=True)


@linux_only
def test_a_script_and_dumps_go_through_a_mounted_folder(engine: Any, tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"faults": [{"name": "dies_in_row", "code": 7, "at": {"row": 4, "request": 1}}]}))
    options: dict[str, Any] = {"script": script, "dump_root": tmp_path}
    running = engine.containers.run(**container.run_arguments("cuteafd", 0, tmp_path, **options))
    try:
        address = json.loads(wait_for(running, READY["cuteafd"])[0])["address"]
        body = {"spec": {"prompt_ids": [9] * 8, "score_from": 1, "dump_rows": "rows"}}
        assert httpx.post(f"{address}/v1/bench/probe", json=body, trust_env=False).status_code == 200
        assert len(list((tmp_path / "rows").glob("row-*.safetensors"))) == 7
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.post(
                f"{address}/v1/bench/probe", json={"spec": {"prompt_ids": [9] * 8, "score_from": 1}}, trust_env=False
            )
        assert running.wait(timeout=20)["StatusCode"] == 7
    finally:
        running.remove(force=True)
