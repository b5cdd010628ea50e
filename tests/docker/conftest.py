"""A Docker engine, and what is launched in it: llama.cpp's server and the simulator, both on the image engcmp/host."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from docker_engine import docker_engine  # noqa: F401 - a fixture
from launching import LlamaLauncher, SimulatorLauncher

from engcmp_resources.canonical import sha256_file
from engcmp_resources.containers import DockerHost


@pytest.fixture(autouse=True)
def _needs_docker(request: pytest.FixtureRequest) -> None:
    if sys.platform != "linux":
        pytest.skip("the image engcmp/host runs this host's own programs: Linux only")
    request.getfixturevalue("docker_engine")


@pytest.fixture
def host(_needs_docker: None) -> DockerHost:
    return DockerHost()


@pytest.fixture
def llama(llamacpp_library: Path, q4_0_model: Path, tmp_path: Path) -> LlamaLauncher:
    files = {"library": llamacpp_library, "model": q4_0_model}
    return LlamaLauncher(tmp_path, files, {name: sha256_file(path) for name, path in files.items()})


@pytest.fixture
def simulator(tmp_path: Path) -> SimulatorLauncher:
    return SimulatorLauncher(tmp_path, {}, {})
