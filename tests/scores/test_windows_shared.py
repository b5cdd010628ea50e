"""Windows scored in shares, by whoever and in any order, give the same bytes as one process."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from homes import Q4, STUDY, quiet

from engcmp_assets.audit.collect import unreached
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.study import load_study
from engcmp_assets.kernel.work import Made, Session, Work, prepare
from engcmp_assets.scores import windows
from engcmp_assets.scores.step import make
from engcmp_assets.scores.windows import score_share
from engcmp_assets.steps import step_named
from engcmp_resources.errors import EngcmpError
from engcmp_resources.store import Store

SHARES = 3


@pytest.fixture
def work(home_copy: Path) -> Work:
    study = load_study(STUDY)
    session = Session(study, Store(home_copy), "test", quiet)
    return prepare(session, step_named(study, "scores"), ArmKey.parse(Q4))


def tables(made: Made) -> dict[str, bytes]:
    return {one.name: bytes(one.content) for one in made.products if isinstance(one.content, bytes)}


def test_shares_in_any_order_give_the_bytes_of_one_process(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = make(work)
    shares = list(range(1, SHARES + 1))
    random.Random(13).shuffle(shares)
    first, *others = shares
    counts = {first: score_share(work, first, SHARES)}
    assert tables(make(work)) == tables(alone)  # what nobody kept is computed
    counts |= {share: score_share(work, share, SHARES) for share in others}
    assert all(made > 0 and before == 0 for made, before in counts.values())
    assert {share: score_share(work, share, SHARES) for share in shares} == {one: (0, counts[one][0]) for one in shares}

    def never(*_args: object) -> None:
        raise AssertionError("a window that was kept is scored again")

    monkeypatch.setattr(windows, "_scored", never)
    together = make(work)
    assert tables(together) == tables(alone)
    assert (together.figures, together.checks, together.flags) == (alone.figures, alone.checks, alone.flags)
    unneeded = {blob.sha256 for blob in unreached(work.store).files}
    kept = {path.stem for path in (work.store.home / "store").rglob("*.safetensors")}
    assert kept and kept & unneeded == set()  # what is kept is not collected


def test_scores_of_another_version_are_not_taken(work: Work) -> None:
    score_share(work, 1, 1)
    other = replace(work, step=replace(work.step, version="another"))
    panel = work.study.panel(next(iter(work.study.protocol.panels)))
    keys = {windows._part_key(one, panel, panel.windows[0], "1.1") for one in (work, other)}
    assert len(keys) == 2


def test_a_share_is_of_the_rows_that_are_there(work: Work, tmp_path: Path) -> None:
    empty = Session(work.study, Store(tmp_path / "empty"), "test", quiet)
    with pytest.raises(EngcmpError, match="needs frozen_protocol, which was not made yet"):
        prepare(empty, work.step, work.arm)
