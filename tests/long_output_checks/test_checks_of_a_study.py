"""The asset on what the driver leaves: a study whose server is simulated, from its replies to judged ones and their proof."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from replying import ARM, Here, replying_study
from served_tables import MODEL, VOCAB
from tiny import TinyStudy, copy_of

from engcmp_assets import events
from engcmp_assets.audit.inside import ConfinedError
from engcmp_assets.audit.reached import reached_from_heads
from engcmp_assets.audit.recompute import Evidence, recompute
from engcmp_assets.audit.trace import trace
from engcmp_assets.kernel.names import REPLIES, REPLY_CHECKS
from engcmp_assets.kernel.work import Done, Session, materialize
from engcmp_assets.long_output_checks import step as checks_step
from engcmp_assets.long_output_checks.fitness import PASSED
from engcmp_assets.steps import step_named
from engcmp_resources.errors import EngcmpError
from tests.simulator.running import running_simulator


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, measured_home: Path) -> tuple[TinyStudy, int]:
    made = replying_study(tmp_path_factory.mktemp("judged") / "whole", measured_home, tasks=True, concurrency=2)
    with pytest.MonkeyPatch.context() as patch:
        Here(made[0], patch).inputs()
    return made


@pytest.fixture
def here(prepared: tuple[TinyStudy, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Here:
    return Here(copy_of(prepared[0], tmp_path / "copy"), monkeypatch)


def measured(here: Here, port: int, *faults: str) -> Done:
    with running_simulator(
        "vllm", faults=list(faults), port=port, model=MODEL, vocab=VOCAB, context=16_384, max_output=8192
    ):
        return here.measure()[-1]


def refuse_programs(_hidden: object) -> None:
    raise ConfinedError("an audit does not use subprocess.Popen")


def judged(here: Here, *, remeasure: bool = False) -> Done:
    return materialize(here.session, step_named(here.session.study, REPLY_CHECKS), ARM, remeasure=remeasure)


def test_every_reply_of_the_driver_is_judged_answered_from_the_store_and_proved(
    here: Here, prepared: tuple[TinyStudy, int]
) -> None:
    replies = measured(here, prepared[1], "token_ids_missing")
    done = judged(here)
    document = json.loads(here.output(done, "checks.json").read_bytes())
    rows = here.rows(replies)
    single = [group for group in document["groups"] if group["kind"] != "all"]
    assert sum(group["replies"] for group in single) == len(rows) == sum(done.receipt["details"]["endings"].values())
    assert set(document["self_tests"]) == {"code", "json", "math", "needle", "tools"}
    measures = {figure["measure"] for figure in done.receipt["figures"]}
    assert {"reply_looped", "json_valid", "math_right", "needle_found", "tool_points", "code_passed"} <= measures
    texts = [here.text(row) for row in rows.values() if row["private_sha256"]]
    said = max((one["reasoning"] + one["answer"] for one in texts), key=len)
    kept = [here.output(done, output["name"]).read_bytes() for output in done.receipt["outputs"]]
    assert said[:40].encode() not in b"".join(kept) + json.dumps(done.receipt).encode()
    assert judged(here).answered_from_store
    again = judged(here, remeasure=True)
    names = ("verdicts.parquet", "checks.json")
    assert [here.output(again, name).read_bytes() for name in names] == [
        here.output(done, name).read_bytes() for name in names
    ]
    leads_to_the_frozen_hash(here, again)

    session = Session(here.session.study, Evidence(here.tiny.home), "audit", here.said.append)
    reached = reached_from_heads(session.store, session.study.folder.name)
    for sha256 in (again.sha256, replies.sha256):
        assert list(recompute(session, reached, sha256)) == []
    with pytest.MonkeyPatch.context() as confined:  # as an audit is: it may start no program
        confined.setattr(checks_step, "find_sandbox", refuse_programs)
        assert list(recompute(session, reached, again.sha256)) == []
    if document["self_tests"]["code"] == PASSED:  # here code was run in a sandbox
        assert any("verdicts on code are taken as they are" in line for line in here.said)
    shutil.rmtree(here.tiny.home / "private")
    assert list(recompute(session, reached, again.sha256)) == []
    assert any("private texts are not here" in line for line in here.said)


def leads_to_the_frozen_hash(here: Here, done: Done) -> None:
    """One figure of each measure, by the command and by the asset's page: its receipt, and below it the frozen protocol."""
    session = here.session
    shown = events.materialize_result(session, step_named(session.study, REPLY_CHECKS), ARM, done).metadata or {}
    assert shown["frozen_sha256"] == session.study.frozen_sha256
    for figure_id in {figure["measure"]: figure["figure_id"] for figure in done.receipt["figures"]}.values():
        found = trace(session.store, session.study, figure_id)
        assert (found.links[0].receipt_sha256, found.frozen_sha256) == (done.sha256, session.study.frozen_sha256)
        assert "frozen_protocol" in {link.artifact for link in found.links}
        assert f"`{figure_id}`" in shown["every_figure"].value and found.pages[1].path in shown["chain"].value


def test_ids_of_another_tokenizer_than_the_checkpoint_s_are_refused(
    here: Here, prepared: tuple[TinyStudy, int]
) -> None:
    measured(here, prepared[1])  # the simulator's ids are its own
    with pytest.raises(EngcmpError, match="token ids are another text by this tokenizer"):
        judged(here)


def test_without_replies_it_says_what_is_needed(here: Here) -> None:
    with pytest.raises(EngcmpError, match=f"needs {REPLIES}, which was not made yet"):
        judged(here)
