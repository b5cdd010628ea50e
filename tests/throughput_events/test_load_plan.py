"""The plan of a speed block: prompts of exact length that share no beginning, the same for every engine, frozen by digest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from speedy import protocol_with, speed_table

from engcmp_assets.kernel.records import tokens_sha256
from engcmp_assets.kernel.throughput_tables import NONCE_TOKENS, ThroughputPlan
from engcmp_assets.throughput_events.plan import index_document, load_plan, parse_index, prompt_ids
from engcmp_resources.canonical import canonical_bytes
from engcmp_resources.errors import EngcmpError

TEXTS = {"code": list(range(1000, 1015)), "prose": list(range(2000, 2040))}


class Words:
    """A vocabulary of 600 words, with and without a space before them, and a line end."""

    def __init__(self, words: int = 600) -> None:
        names = [f"{chr(97 + n // 26 % 26)}{chr(97 + n % 26)}{'x' * (n // 676)}y" for n in range(words)]
        self._texts = ["\n", "12", *names, *(f" {name}" for name in names)]
        self._ids = {text: number for number, text in enumerate(self._texts)}
        self.vocab = len(self._texts)

    def encode(self, text: str) -> list[int]:
        words = text.removesuffix("\n").replace(" ", "\0 ").split("\0")
        return [self._ids[word] for word in words] + ([0] if text.endswith("\n") else [])

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self._texts[one] for one in ids)


def plan(**changes: Any) -> ThroughputPlan:
    found = protocol_with(speed_table(requests=5, repeats=3).replace('["code"]', '["code", "prose"]')).throughput
    assert found is not None
    return found.model_copy(update=changes)


def document(**changes: Any) -> dict[str, Any]:
    return index_document(plan(**changes), TEXTS, Words())


def test_every_prompt_has_exactly_its_length_and_begins_with_a_line_of_its_own() -> None:
    index = parse_index(canonical_bytes(document()), where="x")
    firsts, lines, seeds = [], [], []
    for repeat in (1, 2, 3):
        found = load_plan(index, repeat, TEXTS, model="m")
        assert [cell.cell_id for cell in found.cells] == ["code-24-c1", "prose-24-c1", "code-24-c2", "prose-24-c2"]
        for cell in found.cells:
            assert len(cell.requests) == 5 and cell.repeat == repeat
            assert [one.batch for one in cell.requests] == [number // cell.concurrency for number in range(5)]
            for one in (*cell.requests, *(cell.warmup or ())):
                assert one.token_ids is not None and len(one.token_ids) == 24 == one.expected_prompt_tokens
                assert one.max_tokens == 6
                assert (
                    Words().decode(one.token_ids[:NONCE_TOKENS]).count("\n") == 1
                    and one.token_ids[NONCE_TOKENS - 1] == 0
                )
                assert set(one.token_ids[NONCE_TOKENS:]) <= set(TEXTS[cell.kind])
                firsts.append(one.token_ids[0])
                lines.append(one.token_ids[:NONCE_TOKENS])
                seeds.append(one.seed)
        assert [bool(cell.warmup) for cell in found.cells] == [True, False, True, False], "each width is warmed up once"
    assert len(set(firsts)) == len(firsts), "no two prompts share even a first token"
    assert len(set(seeds)) == len(seeds) and len(set(lines)) == len(lines)


def test_a_repeat_sends_the_same_work_behind_another_line() -> None:
    index = parse_index(canonical_bytes(document()), where="x")
    one, two = (load_plan(index, repeat, TEXTS, model="m").cells[0].requests for repeat in (1, 2))
    for first, second in zip(one, two, strict=True):
        assert first.token_ids is not None and second.token_ids is not None
        assert first.token_ids[NONCE_TOKENS:] == second.token_ids[NONCE_TOKENS:]
        assert first.token_ids[:NONCE_TOKENS] != second.token_ids[:NONCE_TOKENS]


def test_the_same_seed_gives_the_same_plan_and_another_seed_another() -> None:
    assert document() == document() != document(seed=8)


def test_texts_that_are_too_short_begin_again() -> None:
    assert prompt_ids([1, 2], 3, [10, 11, 12, 13], 9) == [1, 2, 13, 10, 11, 12, 13, 10, 11]


def test_a_wrong_prompt_is_named_before_anything_is_sent() -> None:
    index = parse_index(canonical_bytes(document()), where="x")
    changed = TEXTS | {"prose": [9999, *TEXTS["prose"][1:]]}
    with pytest.raises(EngcmpError, match=r"prompt prose-24-c1/r1/.* is not the frozen one") as caught:
        load_plan(index, 1, changed, model="m")
    assert "nothing was measured" in str(caught.value.remedy)


def test_a_kind_without_texts_is_refused() -> None:
    with pytest.raises(EngcmpError, match="no text is of the kind 'json'"):
        index_document(plan(kinds=["json"]), TEXTS, Words())


def test_a_vocabulary_with_too_few_words_is_refused() -> None:
    with pytest.raises(EngcmpError, match="too few words"):
        index_document(plan(), TEXTS, Words(20))


@pytest.mark.parametrize("change", ["no cells", "a float", "another schema"])
def test_a_damaged_index_is_refused_by_its_field(change: str) -> None:
    found = json.loads(canonical_bytes(document()))
    if change == "no cells":
        del found["cells"]
    elif change == "a float":
        found["cells"][0]["requests"][0]["seed"] = 1.5
    else:
        found["schema"] = "engcmp.throughput-plan/0"
    with pytest.raises(EngcmpError, match="throughput plan field"):
        parse_index(canonical_bytes(found), where="throughput_plan.json")


def test_digests_are_of_the_ids_that_are_sent() -> None:
    index = parse_index(canonical_bytes(document()), where="x")
    planned = index.of_repeat(2)[1].requests[3]
    (sent,) = (
        one for one in load_plan(index, 2, TEXTS, model="m").cells[1].requests if one.request_id == planned.request_id
    )
    assert sent.token_ids is not None and tokens_sha256(sent.token_ids) == planned.tokens_sha256
