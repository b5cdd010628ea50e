"""The words of the project: arm keys that read back, reasons in the place of values, digests of tokens."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engcmp_assets.kernel.records import ArmKey, Missing, Panel, Window, plain, tokens_sha256
from engcmp_resources.errors import EngcmpError

NAME = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,12}", fullmatch=True).filter(lambda text: ".." not in text)
ENGINE = st.from_regex(r"[a-z0-9][a-z0-9-]{0,12}", fullmatch=True)
ARMS = st.builds(ArmKey, NAME, ENGINE, NAME, st.none() | NAME)


@given(ARMS)
def test_an_arm_reads_back_from_its_text_and_from_its_folder(arm: ArmKey) -> None:
    assert ArmKey.parse(str(arm)) == arm
    assert ArmKey.parse(arm.folder.replace("~", "/")) == arm


@given(ARMS)
def test_the_folder_of_an_arm_is_one_plain_name(arm: ArmKey) -> None:
    assert "/" not in arm.folder
    assert arm.folder not in (".", "..")
    assert not arm.folder.startswith((".", "_"))  # `_study` can be no arm's


@given(ARMS, ARMS)
def test_two_arms_have_one_text_only_if_they_are_equal(one: ArmKey, other: ArmKey) -> None:
    assert (str(one) == str(other)) == (one == other)
    assert (one.folder == other.folder) == (one == other)


def test_the_parts_of_an_arm_are_checkpoint_engine_version_and_setting() -> None:
    arm = ArmKey.parse("K4/cuteafd@v3.0.1+w8a16-amax")
    assert (arm.checkpoint, arm.engine, arm.version, arm.setting) == ("K4", "cuteafd", "v3.0.1", "w8a16-amax")
    assert ArmKey.parse("q4_0/llamacpp@b11549").setting is None


@pytest.mark.parametrize(
    "text",
    [
        "", "q4_0", "q4_0/llamacpp", "llamacpp@b1", "/llamacpp@b1", "q4_0/@b1", "q4_0/llamacpp@", "q4_0/llamacpp@b1+", "a/b/c@d",
        "q4_0/llama cpp@b1", "q4_0/LlamaCpp@b1", "../llamacpp@b1", "q4_0/llamacpp@..", "q4_0/llamacpp@b1..2", "q4~0/llamacpp@b1",
        "q4_0/llamacpp@b1\n", "q4_0/llamacpp@b1+x+y", "é/llamacpp@b1", ".q/llamacpp@b1", "_study",
    ],
)  # fmt: skip
def test_any_other_text_is_no_arm(text: str) -> None:
    with pytest.raises(EngcmpError, match="is not an arm; write checkpoint/engine@version"):
        ArmKey.parse(text)


@given(st.text(max_size=40))
def test_a_text_is_either_an_arm_as_it_stands_or_refused(text: str) -> None:
    try:
        arm = ArmKey.parse(text)
    except EngcmpError:
        return
    assert str(arm) == text


def test_a_token_digest_is_of_little_endian_unsigned_32_bit_ids() -> None:
    assert tokens_sha256([1, 49151]) == hashlib.sha256(struct.pack("<II", 1, 49151)).hexdigest()
    assert tokens_sha256([2**32 - 1]) == hashlib.sha256(b"\xff" * 4).hexdigest()
    assert tokens_sha256((1, 2)) != tokens_sha256((2, 1))


def test_a_window_knows_the_token_that_each_kept_row_predicts() -> None:
    window = Window("w", (5, 6, 7, 8), (0, 2), ("context", "context"), "d", "prose", "upto128")
    assert window.next_tokens == (6, 8)
    assert Panel("pa", 9, "full", (window, window)).rows == 4


def test_records_become_plain_json_types() -> None:
    @dataclass(frozen=True)
    class Record:
        value: object
        arm: ArmKey

    arm = ArmKey("q4_0", "llamacpp", "b1")
    record = Record([np.float64(1.5), np.int64(2), Missing("none"), (np.bool_(True), None)], arm)
    assert plain(record) == {"value": [1.5, 2, {"missing": "none"}, [True, None]], "arm": "q4_0/llamacpp@b1"}
    assert type(plain(record)["value"][0]) is float
    assert type(plain(record)["value"][1]) is int
    assert plain({1: arm}) == {"1": "q4_0/llamacpp@b1"}
