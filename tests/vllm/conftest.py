"""Fixtures of the tests on the real vLLM: its environment, and the study's weights as a checkpoint that it reads.

Modules named test_vllm_* are a target of their own, `make test-vllm`: the environment takes 3.5 GB and a server a minute to start.
The others need no vLLM and run with all tests.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engcmp_assets.kernel.study import load_study
from engcmp_assets.sources.step import fetched_weights
from engcmp_resources import vllm_environment
from engcmp_resources.safetensors_checkpoint import write_checkpoint
from engcmp_resources.store import Store

collect_ignore_glob = [] if os.environ.get("ENGCMP_TEST_VLLM") else ["test_vllm_*.py"]


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    return vllm_environment.make()


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study's GGUF, from the kept home of the tests or fetched."""
    kept = os.environ.get("ENGCMP_TEST_HOME")
    store = Store(Path(kept) if kept else tmp_path_factory.mktemp("weights") / "home")
    return store.path(fetched_weights(load_study("smollm2-cpu"), store, print))


@pytest.fixture(scope="session")
def checkpoint(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint") / "bf16"
    write_checkpoint(weights, folder)
    return folder
