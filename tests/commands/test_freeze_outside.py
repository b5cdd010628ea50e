"""A study of published things alone is frozen: what is here is laid out, what is not waits with its reason, a stand-in is named."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from outside_study import ARM, OUTSIDE, STAND_IN, TEXT, OutsideStudy, outside_study

from engcmp_assets.kernel.records import ArmKey, tokens_sha256
from engcmp_assets.kernel.study import Study, load_study
from engcmp_assets.kernel.work import Session, materialize, output_blob
from engcmp_assets.steps import step_named
from engcmp_assets.throughput_events.plan import texts_by_kind
from engcmp_resources.canonical import sha256_bytes
from engcmp_resources.errors import EngcmpError
from engcmp_resources.reply_files import ReplyTokenizer
from engcmp_resources.store import Store
from engcmp_resources.tokenizing import load_tokenizer
from engcmp_resources.topk_files import WindowRows, read_topk
from tests.fetching.places import Place, serving


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def place() -> Iterator[Place]:
    with serving() as found:
        yield found


@pytest.fixture
def outside(tmp_path: Path, place: Place, smollm2_weights: Path, monkeypatch: pytest.MonkeyPatch) -> OutsideStudy:
    made = outside_study(tmp_path, place, smollm2_weights)
    for name, value in (made.variables | {"ENGCMP_HOME": str(made.home), "HF_ENDPOINT": place.address}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("ENGCMP_MIRROR", raising=False)
    return made


def made(study: Study, home: Path, *artifacts: str) -> Session:
    session = Session(study, Store(home), "test", lambda _text: None)
    for artifact in artifacts:
        materialize(session, step_named(study, artifact), None if artifact == "frozen_protocol" else ArmKey.parse(ARM))
    return session


def test_what_is_here_is_laid_out_and_what_is_not_waits_with_its_reason(
    outside: OutsideStudy, smollm2_weights: Path
) -> None:
    fetched = outside.run("fetch", OUTSIDE, "--source", "pb", "--source", "q2")
    assert fetched.returncode == 0, fetched.stderr
    done = outside.run("freeze", OUTSIDE)
    assert done.returncode == 0, done.stderr
    assert "panel pa waits: source pa is not here: `engcmp fetch outside-tiny --source pa`" in done.stdout
    assert "panel q3 waits: source q3 is not here: its where is not known: no document names it" in done.stdout
    assert f"the prompt set is made with a stand-in for the tokenizer: {STAND_IN}" in done.stdout
    frozen = outside.prompt_set()
    assert set(frozen["panels"]) == {"pb", "q2"}
    assert frozen["tokenizer"] == {
        "source": "tokenizer", "stand_in": STAND_IN, "sha256": sha256_bytes(outside.served["tokenizer"]["tokenizer.json"]),
    }  # fmt: skip
    # The speed block is of the study's own text alone, by the tokenizer that is named; a document of Q2 is of the same kind and no prompt.
    own = load_tokenizer(smollm2_weights).encode(TEXT)
    assert texts_by_kind((outside.folder / "prompt_set.json").read_bytes()) == {"prose": own}
    for plan in ("throughput_plan.json", "replies_plan.json"):
        assert plan in json.loads(outside.frozen)["files"]

    study = load_study(OUTSIDE)
    assert list(study.protocol.panels) == ["pb", "q2"] and study.protocol.capture.prefill is not None
    assert study.protocol.capture.prefill.panels == ["pb", "q2"]
    told = {gap.what: gap.why for gap in study.protocol.gaps}
    assert told["rows of panel pa (a teacher's rows)"] == "source set-pa was not here when the study was frozen"
    assert told["rows of panel q3 (documents that nobody names)"].startswith("of source q3 its where is not known")
    session = made(study, outside.home, "frozen_protocol", "sources", "prompt_set", "reference_rows")
    receipt = session.sound("prompt_set", ArmKey.parse(ARM))
    assert receipt is not None and receipt.receipt["details"]["tokenizer"]["stand_in"] == STAND_IN
    _assert_the_published_top_k_is_the_reference(outside, study, session)
    _assert_tokens_alone_keep_their_last_rows(outside, study)
    planned = json.loads(outside.run("plan", OUTSIDE, "--json").stdout)
    assert planned["arms"][0]["launches"][0]["captures"][0] == {
        "panel": "pb",
        "rows": 12,
        "bytes": 12 * (24 * 4 + 160 + 36),
    }

    # What was here is brought in by an amendment, and is then a panel like the others.
    assert outside.run("fetch", OUTSIDE, "--source", "pa").returncode == 0
    amended = outside.run("amend", OUTSIDE, "--because", "the teacher's rows are here now")
    assert amended.returncode == 0, amended.stderr
    assert list(load_study(OUTSIDE).protocol.panels) == ["pa", "pb", "q2"]


def _assert_the_published_top_k_is_the_reference(outside: OutsideStudy, study: Study, session: Session) -> None:
    window = next(one for one in study.panel("pb").windows if one.window_id == "a00")
    # The set counts from the predicted token: tokens 5 to 10 are those of rows 4 to 9.
    assert window.positions == (4, 5, 6, 7, 8, 9) and window.block == "A"
    assert window.roles == ("generated",) * 4 + ("trailing",) * 2
    done = session.sound("reference_rows", ArmKey.parse(ARM))
    assert done is not None
    rows = WindowRows("a00", window.tokens_sha256, window.positions, window.next_tokens)
    stored = read_topk(session.store.path(output_blob(done.receipt, "rows/pb/a00")), expected=rows, vocab=49_200, k=24)
    published = outside.fetched / "pb" / "set" / "a00.safetensors"
    from safetensors.numpy import load_file

    theirs = load_file(published)
    for name, array in stored.arrays.items():
        np.testing.assert_array_equal(array, theirs[name])


def _assert_tokens_alone_keep_their_last_rows(outside: OutsideStudy, study: Study) -> None:
    panel = study.panel("q2")
    sizes = {window.window_id: len(window.tokens) for window in panel.windows}
    assert sizes == {"q2-prose-one-032k": 12, "q2-prose-one-064k": 20}
    assert {window.cluster for window in panel.windows} == {"q2-prose-one"} and panel.reference == "none"
    for window in panel.windows:
        file = outside.fetched / "q2" / "q2" / f"{window.window_id}.tokens.npy"
        assert tokens_sha256(np.load(file).tolist()) == window.tokens_sha256
        assert window.positions == tuple(range(sizes[window.window_id] - 6, sizes[window.window_id] - 1))


def test_blocks_of_requests_are_frozen_with_a_tokenizer_alone(outside: OutsideStudy) -> None:
    done = outside.run("freeze", OUTSIDE)
    assert done.returncode == 0, done.stderr
    frozen = json.loads(outside.frozen)["files"]
    assert {"prompt_set.json", "throughput_plan.json", "replies_plan.json"} <= set(frozen)
    study = load_study(OUTSIDE)
    assert list(study.protocol.panels) == ["pa", "pb", "q2", "q3"], (
        "nothing is laid out: the panels are as they are declared"
    )
    session = made(study, outside.home, "frozen_protocol", "sources", "prompt_set")
    receipt = session.sound("prompt_set", ArmKey.parse(ARM))
    assert receipt is not None
    assert {one["name"] for one in receipt.receipt["outputs"]} >= {"throughput.json", "replies.json"}
    taken = session.sound("sources", ArmKey.parse(ARM))
    assert taken is not None
    stored = session.store.path(output_blob(taken.receipt, "tokenizer.json"))
    assert ReplyTokenizer.load(stored).encode(TEXT) == load_tokenizer(stored).encode(TEXT), (
        "replies are read by the same tokenizer"
    )
    with pytest.raises(EngcmpError, match="panel pa is published with source set-pa"):
        made(study, outside.home, "reference_rows")


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="there is no bubblewrap to build apart from the network with")
def test_the_builder_says_which_stand_in_it_used_and_what_it_could_not_make(outside: OutsideStudy) -> None:
    assert outside.run("fetch", OUTSIDE, "--source", "pb", "--source", "q2").returncode == 0
    assert outside.run("freeze", OUTSIDE).returncode == 0
    done = outside.run("prompts", OUTSIDE, "--out", str(outside.root / "built"))
    assert done.returncode == 0, done.stderr
    review = json.loads((outside.root / "built" / "REVIEW.json").read_bytes())
    assert review["tokenizer"]["stand_in"] == STAND_IN
    assert [one.partition(" waits")[0] for one in review["waiting"]] == ["panel pa", "panel q3"]
    assert (outside.root / "built" / "prompt_set.json").read_bytes() == (
        outside.folder / "prompt_set.json"
    ).read_bytes()
    assert json.loads((outside.root / "built" / "throughput" / "prompts.json").read_bytes())
    # The panels from outside come out alike too, on another version of Python where one with the same packages is named.
    other = os.environ.get("ENGCMP_OTHER_PYTHON", sys.executable)
    assert outside.run("prompts", OUTSIDE, "--out", str(outside.root / "again"), "--python", other).returncode == 0
    built, again = (files_of(outside.root / name) for name in ("built", "again"))
    assert built == again and {"panels/pb.json", "panels/q2.json"} <= set(built)


def test_another_tokenizer_than_the_frozen_one_is_refused(outside: OutsideStudy, place: Place) -> None:
    assert outside.run("freeze", OUTSIDE).returncode == 0
    study = load_study(OUTSIDE)
    file = outside.fetched / "tokenizer" / "tokenizer.json"
    other = file.read_bytes() + b"\n"
    for path in (file, outside.fetched / "tokenizer" / "fetched.json"):
        path.unlink()
    name = "maker/tokenizer"
    from outside_study import COMMIT

    from tests.fetching.places import hub

    hub(
        place,
        name,
        COMMIT["tokenizer"],
        {"tokenizer.json": other, "chat_template.jinja": b""},
        large={"tokenizer.json"},
    )
    with pytest.raises(EngcmpError, match="the frozen prompt set was made with"):
        made(study, outside.home, "frozen_protocol", "sources")


def test_without_texts_the_blocks_wait_and_without_anything_only_pins_are_frozen(
    tmp_path: Path, place: Place, smollm2_weights: Path
) -> None:
    study = outside_study(tmp_path / "one", place, smollm2_weights, texts=False)
    done = study.run("freeze", OUTSIDE, HF_ENDPOINT=place.address)
    assert done.returncode == 0, done.stderr
    assert "the speed block waits: texts/ has no text of kind prose" in done.stdout
    assert "long replies wait: replies/ has no prompt" in done.stdout
    assert set(json.loads(study.frozen)["files"]) == {"SOURCES.json", "protocol.toml"}
