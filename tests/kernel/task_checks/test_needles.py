"""Prompts of exactly n tokens with the model's real tokenizer, and what counts as found."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from engcmp_assets.kernel.task_checks import needles
from engcmp_assets.kernel.task_checks.needles import DIGITS, NeedlePrompt, check_needle, make_prompt
from engcmp_resources.errors import EngcmpError
from engcmp_resources.gguf_files import open_gguf
from engcmp_resources.tokenizing import GgufTokenizer

VALUE, DECOY = "4821937560", "9035127746"


def chat(message: str) -> str:
    return f"<|im_start|>user\n{message}<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def tokenizer(smollm2_weights: Path) -> Iterator[GgufTokenizer]:
    with open_gguf(smollm2_weights) as model:
        yield GgufTokenizer.from_model(model)


@pytest.mark.parametrize("tokens", [200, 201, 202, 1000, 4096, 8191])
@pytest.mark.parametrize("depth", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_a_prompt_has_exactly_its_tokens_and_its_needle_near_its_depth(
    tokenizer: GgufTokenizer, tokens: int, depth: float
) -> None:
    made = make_prompt(encode=tokenizer.encode, render=chat, tokens=tokens, depth=depth, seed=tokens)
    ids = tokenizer.encode(made.text)
    assert len(ids) == made.tokens == tokens
    assert tokenizer.decode(ids) == made.text
    before = tokenizer.decode(ids[: made.depth_tokens])
    rest = made.text[len(before) :]
    assert made.text.startswith(before)
    assert re.match(rf" The access code of the \w+ cabinet is {made.value}\.", rest)
    assert abs(made.depth_tokens - depth * tokens) <= 60  # a sentence or two; at depth 1 the question follows


def test_a_prompt_asks_for_one_of_its_cabinets_and_names_every_decoy(tokenizer: GgufTokenizer) -> None:
    made = make_prompt(encode=tokenizer.encode, render=chat, tokens=1000, depth=0.5, seed=3, decoys=4)
    codes = dict(re.findall(r"access code of the (\w+) cabinet is (\d+)\.", made.text))
    (asked,) = re.findall(r"What is the access code of the (\w+) cabinet\?", made.text)
    assert codes.pop(asked) == made.value
    assert sorted(codes.values()) == sorted(made.decoys)
    assert all(len(value) == DIGITS and value[0] != "0" for value in (made.value, *made.decoys))
    assert len({made.value, *made.decoys}) == 5
    assert "<|" not in made.text.removeprefix("<|im_start|>user\n").partition("<|im_end|>")[0]


def test_the_seed_alone_makes_the_prompt(tokenizer: GgufTokenizer) -> None:
    def made(seed: int) -> NeedlePrompt:
        return make_prompt(encode=tokenizer.encode, render=chat, tokens=500, depth=0.3, seed=seed)

    assert made(1) == made(1)
    assert made(1).value != made(2).value
    assert made(1).text != made(2).text


def test_a_template_that_cuts_white_space_still_gives_an_exact_prompt(tokenizer: GgufTokenizer) -> None:
    made = make_prompt(
        encode=tokenizer.encode, render=lambda message: f"<|im_start|>{message.strip()}", tokens=300, depth=0, seed=5
    )
    assert len(tokenizer.encode(made.text)) == 300
    assert made.text.index(made.value) < 80


def test_what_cannot_be_made_is_refused(tokenizer: GgufTokenizer) -> None:
    with pytest.raises(EngcmpError, match="20 tokens do not hold the template, the needle and the question; ask for"):
        make_prompt(encode=tokenizer.encode, render=chat, tokens=20, depth=0.5, seed=1)
    with pytest.raises(EngcmpError, match=r"depth 1\.5"):
        make_prompt(encode=tokenizer.encode, render=chat, tokens=500, depth=1.5, seed=1)
    with pytest.raises(EngcmpError, match="no sentence or word of the filler has stable tokens"):
        make_prompt(encode=lambda text: list(range(len(text) + 1)), render=chat, tokens=500, depth=0.5, seed=1)


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (VALUE, "found"),
        (f"The code is **{VALUE}**.", "found"),
        (f"{VALUE}, as line 12 of 2026 says: {VALUE}", "found"),
        (f"code={VALUE}", "found"),
        (f"It is {DECOY}.", "decoy"),
        (f"{DECOY}? No, {VALUE}.", "decoy"),
        (f"{VALUE} or 4821937561", "second_value"),
        ("4821937561", "second_value"),
        (f"1{VALUE}", "second_value"),
        (f"{VALUE}1", "second_value"),
        (f"a{VALUE}", "second_value"),
        (f"{VALUE}a and {VALUE}", "second_value"),
        (f"-{VALUE}", "second_value"),
        (f"{VALUE}.5", "second_value"),
        ("4,821,937,560", "second_value"),
        ("4821 937560", "absent"),
        ("\uff14\uff18\uff12\uff11\uff19\uff13\uff17\uff15\uff16\uff10", "second_value"),
        ("I do not know.", "absent"),
        ("\n", "empty"),
    ],
)
def test_only_the_value_alone_is_found(answer: str, outcome: str) -> None:
    assert check_needle(answer, "finished", VALUE, [DECOY]) == outcome


def test_a_cut_reply_is_not_judged_and_a_long_one_is() -> None:
    assert check_needle(VALUE, "capped", VALUE, [DECOY]) == "capped"
    assert check_needle(f"{'x ' * 1_000_000}{VALUE}", "finished", VALUE, [DECOY]) == "found"
    assert check_needle("1" * 2_000_000, "finished", VALUE, [DECOY]) == "second_value"


def test_the_self_test_passes_and_a_substring_match_fails_it(monkeypatch: pytest.MonkeyPatch) -> None:
    needles.self_test()
    monkeypatch.setattr(needles, "check_needle", lambda answer, *_: "found" if "4821937560" in answer else "absent")
    with pytest.raises(EngcmpError, match="the needle check fails its own test"):
        needles.self_test()
