"""Why an arm's last run was refused is kept until the arm succeeds, and told where its launch is asked for."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from homes import STUDY, quiet

from engcmp_assets.captured_rows.refusals import refusal_kept, refusals_of, refuse_unfit
from engcmp_assets.engine_launch.sides import launch_side
from engcmp_assets.kernel.names import SERVING
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.study import load_study
from engcmp_assets.kernel.work import Session
from engcmp_resources.errors import EngcmpError, UnfitMachine
from engcmp_resources.refusals import last_refusal, refusal_file
from engcmp_resources.store import Store

ARM = ArmKey.parse("q4_0/llamacpp@b11549")


def test_the_last_refusal_is_told_and_gone_after_success(tmp_path: Path) -> None:
    store = Store(tmp_path)
    session = Session(load_study(STUDY), store, "run-1", quiet)
    with pytest.raises(EngcmpError, match="was not measured yet"):
        launch_side(store, STUDY, ARM)
    for words in ("the first reason", "the second reason"):
        with pytest.raises(EngcmpError, match=words), refusal_kept(session, ARM):
            raise EngcmpError(words, where="here", remedy="mend it")
        with pytest.raises(EngcmpError, match=f"was not measured: its last run was refused: {words}"):
            launch_side(store, STUDY, ARM)
    with refusal_kept(session, ARM, measured=False):
        pass  # a place that is ready again is no measured arm
    (told,) = refusals_of(session, session.study.protocol.arm_keys).items()
    assert told[0] == str(ARM) and re.fullmatch(r"the second reason, \d{4}-\d\d-\d\d \d\d:\d\d UTC", told[1])
    with refusal_kept(session, ARM):
        pass
    assert last_refusal(tmp_path, STUDY, ARM.folder) is None
    assert not list((tmp_path / "refusals").rglob("*.json"))


def test_what_names_the_study_and_the_arm_is_told_once(tmp_path: Path) -> None:
    session = Session(load_study(STUDY), Store(tmp_path), "run-1", quiet)
    for words in (f"study {STUDY}: arm {ARM} cannot be measured here", f"arm {ARM}: cannot be measured here"):
        with pytest.raises(EngcmpError), refusal_kept(session, ARM):
            raise EngcmpError(words)
        assert refusals_of(session, [ARM])[str(ARM)].startswith("cannot be measured here, 2")


def test_a_damaged_record_counts_as_none(tmp_path: Path) -> None:
    path = refusal_file(tmp_path, STUDY, ARM.folder)
    path.parent.mkdir(parents=True)
    for words in ("[]", "{}", '{"what": "x"}', '{"what": "x", "when": "soon"}', "{"):
        path.write_text(words)
        assert last_refusal(tmp_path, STUDY, ARM.folder) is None


def test_what_one_kind_of_launch_was_refused_for_outlives_the_success_of_the_other(tmp_path: Path) -> None:
    session = Session(load_study(STUDY), Store(tmp_path), "run-1", quiet)
    with pytest.raises(EngcmpError), refusal_kept(session, ARM, of=SERVING):
        raise EngcmpError("not under load")
    with refusal_kept(session, ARM):
        pass
    assert refusals_of(session, [ARM])[str(ARM)].startswith("not under load")
    with refusal_kept(session, ARM, of=SERVING):
        pass
    assert last_refusal(tmp_path, STUDY, ARM.folder) is None


def test_what_a_machine_cannot_run_is_not_started_again_until_machine_or_freeze_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(load_study(STUDY), Store(tmp_path), "run-1", quiet)
    with pytest.raises(EngcmpError), refusal_kept(session, ARM):
        raise EngcmpError("died", remedy="look")
    refuse_unfit(session, ARM)  # another start may end otherwise
    with pytest.raises(UnfitMachine), refusal_kept(session, ARM):
        raise UnfitMachine(f"arm {ARM}: no such instruction", where="log l", remedy="take another build")
    before = refusal_file(tmp_path, STUDY, ARM.folder).read_bytes()
    with pytest.raises(UnfitMachine, match=f"arm {ARM}: no such instruction .*--remeasure tries again"):
        refuse_unfit(session, ARM)
    assert refusal_file(tmp_path, STUDY, ARM.folder).read_bytes() == before
    with monkeypatch.context() as patch:
        patch.setattr("engcmp_assets.captured_rows.refusals.processor_fingerprint", lambda: "another")
        refuse_unfit(session, ARM)
    refuse_unfit(
        replace(session, study=replace(session.study, frozen=dict(session.study.frozen) | {"frozen_sha256": "0" * 64})),
        ARM,
    )
