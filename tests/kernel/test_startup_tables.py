"""The table [startup] of a protocol, and what of it cannot be measured."""

from __future__ import annotations

import pytest
from speedy import STARTUP, protocol_with, speed_table

from engcmp_resources.errors import EngcmpError


def test_starts_are_cold_first_and_the_last_is_warm() -> None:
    plan = protocol_with(speed_table(startup=True).replace("warm_starts = 1", "warm_starts = 2")).startup
    assert plan is not None and plan.states == ("cold", "warm", "warm")
    assert plan.prefix is not None and plan.prefix.longest == 66


def test_a_study_without_the_table_measures_none() -> None:
    assert protocol_with(speed_table()).startup is None


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("warm_starts = 1", "warm_starts = 0", "startup.warm_starts"),
        ("prompt_tokens = [24, 64]", "prompt_tokens = [8]", "the first line of each prompt takes 8 tokens"),
        ("prompt_tokens = [24, 64]", "prompt_tokens = [511]", "over the context of engine llamacpp, 512"),
        ("prompt_tokens = [24, 64]", "prompt_tokens = [24, 24]", "stands twice"),
        ('prompts = ["What is 2 + 2?"]', "prompts = []", "startup.thinking.prompts"),
    ],
)
def test_what_cannot_be_measured_is_refused_by_its_field(old: str, new: str, said: str) -> None:
    table = speed_table() + STARTUP.replace(old, new)
    assert table != speed_table() + STARTUP
    with pytest.raises(EngcmpError, match=said):
        protocol_with(table)


def test_it_wants_the_client_of_the_speed_block() -> None:
    with pytest.raises(EngcmpError, match="startup has no table throughput beside it"):
        protocol_with(STARTUP)
