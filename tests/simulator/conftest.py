"""Running simulators that the tests of this folder share; each test begins without faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from .running import Simulator, running_simulator

pytest.register_assert_rewrite("simulator.cases_stream", "simulator.cases_life", "simulator.cases_rows")

OPTIONS: dict[str, dict[str, Any]] = {"vllm": {"max_logprobs": -1, "drafts": 0}, "llama-server": {"max_seqs": 2}}


@pytest.fixture(scope="session")
def dump_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dumps")


@pytest.fixture(scope="session")
def _shared(dump_root: Path) -> Iterator[Callable[[str], Simulator]]:
    with ExitStack() as stack:
        started: dict[str, Simulator] = {}

        def simulator(dialect: str) -> Simulator:
            if dialect not in started:
                options = OPTIONS.get(dialect, {}) | ({"dump_root": dump_root} if dialect == "cuteafd" else {})
                started[dialect] = stack.enter_context(running_simulator(dialect, **options))
            return started[dialect]

        yield simulator
        for one in started.values():
            assert not any("Traceback" in line for line in one.log), "\n".join(one.log)


@pytest.fixture
def of(_shared: Callable[[str], Simulator]) -> Callable[[str], Simulator]:
    """The shared simulator of a dialect, without faults."""

    def simulator(dialect: str) -> Simulator:
        found = _shared(dialect)
        found.script()
        return found

    return simulator


@pytest.fixture
def vllm(of: Callable[[str], Simulator]) -> Simulator:
    return of("vllm")


@pytest.fixture
def cuteafd(of: Callable[[str], Simulator]) -> Simulator:
    return of("cuteafd")


@pytest.fixture
def llama_server(of: Callable[[str], Simulator]) -> Simulator:
    return of("llama-server")


@pytest.fixture
def sglang(of: Callable[[str], Simulator]) -> Simulator:
    return of("sglang")
