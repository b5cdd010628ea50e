"""Who counts a reply's text again: the server's own tokenizer, the checkpoint's, or nobody, with the reason."""

from __future__ import annotations

import pytest

from engcmp_resources.load.control import Control
from engcmp_resources.load.null_server import null_server
from engcmp_resources.load.recounting import Recounter, recounter
from engcmp_resources.load.streams import Address
from tests.simulator.model import tokenize
from tests.simulator.running import running_simulator


@pytest.mark.parametrize("dialect", ["vllm", "sglang", "llama-server"])
def test_a_server_with_a_tokenizer_is_asked_in_its_own_form(dialect: str) -> None:
    with running_simulator(dialect) as simulator:
        found = recounter(Control(Address.parse(simulator.url), None), "sim/model", None)
        assert isinstance(found, Recounter) and found.by == "the server's /tokenize"
        for text in ("", "a", "Some text, and more of it."):
            assert found.count(text) == len(tokenize(text)), "no begin token is added"


def test_without_one_the_checkpoint_s_own_counts_or_the_reason_stands_there() -> None:
    with null_server(burst=True) as url:  # it answers everything with a stream
        control = Control(Address.parse(url), None)
        assert recounter(control, "m", None) == "the server has no /tokenize that gives ids"
        found = recounter(control, "m", lambda text: list(range(len(text))))
    assert isinstance(found, Recounter) and found.by == "the checkpoint's own tokenizer"
    assert found.count("abc") == 3
