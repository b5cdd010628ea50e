"""Prompts of the speed block as chats: of exact length within their template, and sent where a launch takes no token ids."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from speedy import protocol_with, speed_table

from engcmp_assets.kernel.throughput_tables import ChatPrompts
from engcmp_assets.throughput_events.plan import AsChats, chat_text, index_document, load_plan, parse_index
from engcmp_resources.canonical import canonical_bytes
from engcmp_resources.errors import EngcmpError
from engcmp_resources.load.control import Control
from engcmp_resources.load.streams import Address
from tests.simulator.running import running_simulator

FORM = ChatPrompts(before="<user>\n", after="<bot>", template={"enable_thinking": True})


class Pairs:
    """A vocabulary of words, line ends and marks in which `ab` and `a<` are one token each, so that texts which meet may share one."""

    def __init__(self) -> None:
        words = [f"{first}{second}{third}" for first in "cdefghijkl" for second in "mnopq" for third in "rstuvwxyz"]
        self._texts = [
            "\n",
            "<user>",
            "<bot>",
            "a<",
            "ab",
            "a",
            "b",
            ".",
            " and",
            *words,
            *(f" {one}" for one in words),
        ]
        self._ids = {text: number for number, text in enumerate(self._texts)}
        self.vocab = len(self._texts)
        marks = "|".join(re.escape(one) for one in sorted(self._texts, key=len, reverse=True))
        self._split = re.compile(f"{marks}|.", re.DOTALL)

    def encode(self, text: str) -> list[int]:
        return [self._ids.get(one, self.vocab) for one in self._split.findall(text)]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self._texts[one] for one in ids)


VOCABULARY = Pairs()
TEXT = VOCABULARY.encode(" cmr dmr\n emr" * 3) + VOCABULARY.encode("a") * 3 + VOCABULARY.encode("b ims jms") * 4


def index(**changes: Any) -> Any:
    plan = protocol_with(speed_table(requests=4, repeats=1)).throughput
    assert plan is not None
    return parse_index(
        canonical_bytes(index_document(plan.model_copy(update={"chat": FORM} | changes), {"code": TEXT}, VOCABULARY)),
        where="x",
    )


def test_every_chat_with_its_template_has_exactly_the_planned_tokens_and_begins_with_its_own_line() -> None:
    found = load_plan(index(), 1, {"code": TEXT}, model="m", chats=AsChats(FORM, VOCABULARY))
    ids = load_plan(index(), 1, {"code": TEXT}, model="m")
    lines = set()
    for cell, other in zip(found.cells, ids.cells, strict=True):
        for one, same in zip(cell.requests, other.requests, strict=True):
            assert one.token_ids is None and one.messages is not None and same.token_ids is not None
            text = one.messages[0]["content"]
            assert len(VOCABULARY.encode(f"{FORM.before}{text}{FORM.after}")) == 24 == one.expected_prompt_tokens
            assert text.split("\n")[0] == VOCABULARY.decode(same.token_ids).split("\n")[0]
            assert (one.request_id, one.seed, one.max_tokens, one.batch) == (
                same.request_id, same.seed, same.max_tokens, same.batch,
            )  # fmt: skip
            lines.add(text.split("\n")[0])
    assert len(lines) == sum(len(cell.requests) for cell in found.cells)
    assert found.sampling["chat_template_kwargs"] == {"enable_thinking": True}
    assert "chat_template_kwargs" not in ids.sampling


@pytest.mark.parametrize("wanted", range(14, 60))
def test_a_length_that_no_cut_gives_is_reached_by_a_word_behind(wanted: int) -> None:
    ids = (VOCABULARY.encode(" cmr dmr emr fmr gmr hmr imr\n") + TEXT)[:wanted]
    made, text = chat_text(ids, FORM, VOCABULARY, name="p")
    assert len(VOCABULARY.encode(f"{FORM.before}{text}{FORM.after}")) == len(ids)
    assert text == VOCABULARY.decode(ids[: made["tokens"]]) + made["tail"]


def test_a_template_that_leaves_no_room_is_refused() -> None:
    with pytest.raises(EngcmpError, match="no message within the chat template has 10 tokens in all"):
        chat_text(TEXT[:10], FORM, VOCABULARY, name="p")


def test_a_chat_that_is_not_the_frozen_one_stops_everything() -> None:
    frozen = index()
    frozen.cells[0].requests[1].chat.text_sha256 = "0" * 64
    with pytest.raises(EngcmpError, match=r"prompt code-24-c1/r1/2 as a chat is not the frozen one"):
        load_plan(frozen, 1, {"code": TEXT}, model="m", chats=AsChats(FORM, VOCABULARY))


def test_a_plan_without_chats_is_frozen_as_it_was_before_there_were_any() -> None:
    plan = protocol_with(speed_table()).throughput
    assert plan is not None and "chat" not in plan.model_dump()
    found = json.loads(canonical_bytes(index_document(plan, {"code": TEXT}, VOCABULARY)))
    assert all("chat" not in one for cell in found["cells"] for one in (*cell["requests"], *cell["warmup"]))


@pytest.mark.parametrize(("dialect", "why"), [("vllm", None), ("cuteafd", "/v1/completions answers 404")])
def test_whether_a_server_takes_token_ids_is_asked_of_it(dialect: str, why: str | None) -> None:
    with running_simulator(dialect, model="m", vocab=512) as running:
        assert Control(Address.parse(running.url), None).no_token_ids("m") == why


def test_a_server_that_is_not_there_is_an_error_and_no_answer() -> None:
    with pytest.raises(EngcmpError, match="no answer to three token ids"):
        Control(Address.parse("http://127.0.0.1:9"), None).no_token_ids("m")
