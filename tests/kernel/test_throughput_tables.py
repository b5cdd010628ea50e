"""The table [throughput] of a protocol: what it may say, and what is refused with a word on what to do."""

from __future__ import annotations

import pytest
from speedy import protocol_with, speed_table

from engcmp_resources.errors import EngcmpError


def test_a_study_without_the_table_measures_no_speed() -> None:
    assert protocol_with("").throughput is None


def test_cells_are_kind_by_length_by_width_and_a_width_is_measured_at_once() -> None:
    table = speed_table().replace('["code"]', '["code", "prose"]').replace("[24]", "[24, 48]")
    plan = protocol_with(table).throughput
    assert plan is not None
    assert [key.cell_id for key in plan.cells] == [
        f"{kind}-{tokens}-c{width}" for width in (1, 2) for tokens in (24, 48) for kind in ("code", "prose")
    ]
    assert plan.longest == 54


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("prompt_tokens = [24]", "prompt_tokens = [510]", "with 6 output tokens 516, over the context of engine llamacpp, 512"),
        ("prompt_tokens = [24]", "prompt_tokens = [8]", "the first line of each prompt takes 8 tokens"),
        ("prompt_tokens = [24]", "prompt_tokens = []", r"throughput\.prompt_tokens"),
        ("prompt_tokens = [24]", "prompt_tokens = [24, 24]", "a value stands twice"),
        ("requests = 2", "requests = 1", "a cell keeps 2 at a time"),
        ('kinds = ["code"]', 'kinds = ["Code!"]', "'Code!' is no content kind"),
        ("ignore_eos = true\n", "", r"throughput\.sampling\.ignore_eos: Field required"),
        ("top_p = 1.0", "top_p = 0.0", r"throughput\.sampling\.top_p"),
        ("share = 0.2", "share = 0.0", r"throughput\.band\.share"),
        ('order = "abba"', 'order = "random"', r"throughput\.order"),
        ("seed = 7", "seed = 7\nnonce = 3", r"throughput\.nonce"),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_is_refused_by_its_field(old: str, new: str, words: str) -> None:
    table = speed_table()
    assert old in table
    with pytest.raises(EngcmpError, match=words) as caught:
        protocol_with(table.replace(old, new, 1))
    assert caught.value.remedy


def test_a_server_s_context_is_not_known_before_it_runs() -> None:
    text = speed_table().replace("[24]", "[4096]")
    with pytest.raises(EngcmpError, match="over the context"):
        protocol_with(text)


def test_an_open_loop_adds_cells_at_each_rate_and_a_plan_without_one_is_written_as_before() -> None:
    opened = protocol_with(speed_table(rate=0.5)).throughput
    closed = protocol_with(speed_table()).throughput
    assert opened is not None and closed is not None
    assert [cell.cell_id for cell in opened.cells] == ["code-24-c1", "code-24-c2", "code-24-r0.5"]
    assert opened.cells[-1].rate_per_s == 0.5 and opened.cells[-1].concurrency == 2
    assert "open_loop" not in closed.model_dump(mode="json")
    assert opened.model_dump(mode="json") == closed.model_dump(mode="json") | {
        "open_loop": {"rates_per_s": [0.5], "arrival": "constant"}
    }
    with pytest.raises(EngcmpError, match=r"throughput\.open_loop\.rates_per_s"):
        protocol_with(speed_table(rate=-1))
