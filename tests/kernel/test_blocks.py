"""Blocks name parts of a study's graph: what each has, and what a command may ask for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from homes import quiet

from engcmp_assets.automation import selection
from engcmp_assets.comparisons.asked import compared_blocks, lacking_blocks
from engcmp_assets.kernel.blocks import (
    INPUTS,
    artifacts_of,
    blocks_of,
    blocks_of_arm,
    blocks_of_study,
    is_asked,
    not_asked,
    parse_blocks,
)
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.study import Study, load_study
from engcmp_assets.kernel.work import Session, Use, arms_of, prepare
from engcmp_assets.steps import steps_of
from engcmp_resources.errors import EngcmpError
from engcmp_resources.store import Store

Q = ("reference_rows", "engine_launch/scoring", "captured_rows/pa", "captured_rows/pb", "scores", "tails")
T = ("engine_launch/serving", "throughput_events", "throughput_cells")
L = ("long_replies", "long_output_checks")
ALL = (*INPUTS, *Q[:4], *T[:2], *L[:1], *Q[4:], T[2], L[1], "summaries", "comparisons", "publication")


def test_a_study_has_the_blocks_that_it_measures() -> None:
    assert blocks_of(ALL) == ("q", "t", "l")
    assert blocks_of([*INPUTS, *Q]) == ("q",)
    assert blocks_of([*INPUTS, *Q, T[0], *L]) == ("q", "l")


def test_each_block_has_its_own_artifacts_and_none_has_the_summary() -> None:
    assert set(artifacts_of("q", ALL)) == set(Q)
    assert set(artifacts_of("t", ALL)) == set(T)
    assert set(artifacts_of(["l"], ALL)) == {T[0], *L}
    every = artifacts_of(iter("qtl"), ALL)
    assert set(every) == {*Q, *T, *L} and [ALL.index(one) for one in every] == sorted(ALL.index(one) for one in every)


@pytest.mark.parametrize(
    ("texts", "found"),
    [([], "qt"), (["q"], "q"), (["t,q"], "qt"), (["T", " q "], "qt"), (["q,q"], "q")],
)
def test_blocks_are_named_in_any_way_and_order(texts: list[str], found: str) -> None:
    assert parse_blocks(texts, ("q", "t"), study="s") == tuple(found)


def test_a_block_that_is_none_or_not_the_study_s_is_named() -> None:
    with pytest.raises(EngcmpError, match=r"'x' is no block; the blocks of study s are q \(precision\)"):
        parse_blocks(["q,x"], ("q",), study="s")
    with pytest.raises(
        EngcmpError, match=r"study s has no block l \(long output\); its blocks are q \(precision\), t \(speed\)"
    ):
        parse_blocks(["l"], ("q", "t"), study="s")
    with pytest.raises(EngcmpError, match="'' is no block"):
        parse_blocks([""], ("q",), study="s")


# ---------------------------------------------------------------- arms that are not asked for every block


@pytest.fixture(scope="module")
def flash() -> Study:
    return load_study("glm53-flash")


CONTROL, FORK = ArmKey.parse("K3.25-v1/cuteafd@v3.0.1"), ArmKey.parse("K3.25-v1/vllm-fork@v0.9.2")
TIMED, LONG = ArmKey.parse(f"{FORK}+jit-caches"), ArmKey.parse("K4-Core-K6-BF16-core/cuteafd@v4.0.0")


def test_an_arm_has_the_blocks_of_its_entry_and_every_block_where_it_names_none(flash: Study, study: Study) -> None:
    assert blocks_of_study(flash.protocol) == ("q", "t", "l") and blocks_of_study(study.protocol) == ("q", "t")
    found = {arm: "".join(blocks_of_arm(flash.protocol, arm)) for arm in (CONTROL, FORK, TIMED, LONG)}
    assert found == {CONTROL: "q", FORK: "qtl", TIMED: "t", LONG: "l"}
    assert all(not not_asked(study.protocol, arm) for arm in study.protocol.arm_keys)
    assert not_asked(flash.protocol, TIMED) == dict.fromkeys("ql", "the protocol asks for speed only of this arm")


def test_what_belongs_to_no_block_is_asked_of_every_arm_and_serving_of_speed_and_of_replies(flash: Study) -> None:
    def asked(arm: ArmKey) -> set[str]:
        return {name for name in ALL if is_asked(flash.protocol, arm, name)}

    common = {*INPUTS, "summaries", "comparisons", "publication"}
    assert asked(CONTROL) == {*common, *Q} and asked(TIMED) == {*common, *T}
    assert asked(LONG) == {*common, T[0], *L} and asked(FORK) == set(ALL)


def test_a_step_takes_nothing_in_that_is_not_asked(flash: Study) -> None:
    assert arms_of(flash, Use("scores", "arm"), TIMED) == () and arms_of(flash, Use("scores", "arm"), FORK) == (FORK,)
    of_every = arms_of(flash, Use("scores", "every arm"), None)
    assert FORK in of_every and CONTROL in of_every and TIMED not in of_every and LONG not in of_every


def test_a_pair_is_compared_on_what_both_arms_have_and_the_rest_is_told(flash: Study) -> None:
    pairs = {one.pair_id: one for one in flash.protocol.comparisons}
    found = {
        name: "".join(compared_blocks(flash.protocol, pairs[name])) for name in ("C1-vs-V1", "C1-vs-C0", "jit-vs-V1")
    }
    assert found == {"C1-vs-V1": "qtl", "C1-vs-C0": "q", "jit-vs-V1": "t"}
    told = lacking_blocks(flash.protocol, pairs["jit-vs-V1"])
    assert told["q"] == f"precision is not compared: {TIMED}: the protocol asks for speed only of this arm"
    assert set(told) == {"q", "l"} and not lacking_blocks(flash.protocol, pairs["C1-vs-V1"])


def test_what_is_not_asked_of_an_arm_is_refused_before_anything_is_started(flash: Study, tmp_path: Path) -> None:
    step = next(one for one in steps_of(flash) if one.artifact == "scores")
    with pytest.raises(
        EngcmpError, match=rf"scores is not asked of {re.escape(str(TIMED))}: the protocol wants speed only"
    ):
        prepare(Session(flash, Store(tmp_path), "test", quiet), step, TIMED)


def test_the_runs_of_an_approved_arm_are_of_what_is_asked_of_it(flash: Study) -> None:
    def chosen(arm: ArmKey, *, captured: bool) -> set[str] | None:
        keys = selection(flash, arm, captured=captured)
        return None if keys is None else {"/".join(key.path[1:]) for key in keys}

    assert chosen(FORK, captured=False) is None and chosen(FORK, captured=True) is None
    assert chosen(TIMED, captured=False) == {*INPUTS, "engine_launch/serving", "throughput_events"}
    assert chosen(TIMED, captured=True) == {"throughput_cells", "summaries"}
    assert chosen(CONTROL, captured=True) == {"scores", "tails", "summaries"}
