"""Long replies of a server that runs already, end to end: what is kept of each, and what a fault or a kill costs. A simulator serves."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from homes import CHECKOUT
from replying import ARM, Here, checks_of, replying_study
from served_tables import MODEL, VOCAB
from speedy import speed_table
from tiny import TinyStudy, copy_of

from engcmp_assets.audit.captures import dead_captures
from engcmp_assets.audit.collect import unreached
from engcmp_assets.long_replies.session import measure_serving
from engcmp_resources.errors import EngcmpError
from engcmp_resources.journal import read_journal
from tests.simulator.running import Simulator, running_simulator

Start = Callable[..., Simulator]
LOOP = "and so we go round and round again, one more time, "


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, measured_home: Path) -> tuple[TinyStudy, int]:
    return _prepared(replying_study(tmp_path_factory.mktemp("replies") / "plain", measured_home))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, measured_home: Path) -> tuple[TinyStudy, int]:
    root = tmp_path_factory.mktemp("replies") / "whole"
    return _prepared(replying_study(root, measured_home, tasks=True, concurrency=2))


@pytest.fixture(scope="module")
def early(tmp_path_factory: pytest.TempPathFactory, measured_home: Path) -> tuple[TinyStudy, int]:
    root = tmp_path_factory.mktemp("replies") / "early"
    return _prepared(replying_study(root, measured_home, early=True, cap=6000))


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, measured_home: Path) -> tuple[TinyStudy, int]:
    root = tmp_path_factory.mktemp("replies") / "both"
    return _prepared(replying_study(root, measured_home, further=speed_table(requests=2, repeats=2)))


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory, measured_home: Path) -> tuple[TinyStudy, int]:
    root = tmp_path_factory.mktemp("replies") / "twice"
    return _prepared(replying_study(root, measured_home, again=1, further=speed_table(requests=2, repeats=1)))


def _prepared(made: tuple[TinyStudy, int]) -> tuple[TinyStudy, int]:
    with pytest.MonkeyPatch.context() as patch:
        Here(made[0], patch).inputs()
    return made


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[Here, Start]]]:
    with ExitStack() as stack:

        def open_copy(made: tuple[TinyStudy, int]) -> tuple[Here, Start]:
            here = Here(copy_of(made[0], tmp_path / "copy"), monkeypatch)

            def start(*faults: dict[str, Any] | str, **options: Any) -> Simulator:
                asked: dict[str, Any] = {
                    "port": made[1],
                    "model": MODEL,
                    "vocab": VOCAB,
                    "context": 16_384,
                    "max_output": 8192,
                } | options
                return stack.enter_context(running_simulator("vllm", faults=list(faults), **asked))

            return here, start

        yield open_copy


Open = Callable[[tuple[TinyStudy, int]], tuple[Here, Start]]


def test_every_stage_and_check_is_made_and_no_text_leaves_the_private_store(
    whole: tuple[TinyStudy, int], served: Open
) -> None:
    here, start = served(whole)
    simulator = start()
    launch, made = here.measure()
    assert (launch.receipt["artifact"], made.receipt["artifact"]) == ("engine_launch/serving", "long_replies")
    rows = here.rows(made)
    blocks = Counter(row["block"] for row in rows.values())
    assert blocks == {"long": 6, "code": 1, "json": 1, "math": 2, "needle": 1, "thinking": 4, "trace": 3, "tools": 2}
    assert set(here.stages(made)) == {
        "L1",
        "L2",
        "code",
        "json",
        "math",
        "needle",
        "thinking",
        "trace",
        "tools-c1",
        "tools-c2",
    }
    assert checks_of(made)["plan_followed"] and checks_of(made)["replies_came"]
    texts = {name: here.text(row) for name, row in rows.items()}
    said = {record["request"]: record for record in simulator.truth(path="/v1/chat/completions") if record["tokens"]}
    assert len({row["seed"] for row in rows.values()}) == len(rows)
    for name, row in rows.items():
        assert texts[name]["reply_id"] == name and texts[name]["messages_sha256"] == row["prompt_sha256"]
        if row["block"] != "tools":
            assert row["n_tokens"] <= row["cap_tokens"] and row["n_tokens"] == len(texts[name]["token_ids"])
    ids = [[token["id"] for token in record["tokens"]] for record in said.values()]
    assert texts["L1/prose-1/1"]["token_ids"] in ids, "the engine's own ids are kept"
    reasoned = rows["L1/prose-1/1"]
    assert reasoned["n_reasoning_tokens"] + reasoned["n_answer_tokens"] == reasoned["n_tokens"]
    longest = max((text["reasoning"] + text["answer"] for text in texts.values()), key=len)
    hidden = longest[:40].encode()
    for path in [*here.tiny.home.rglob("*")]:
        if path.is_file() and "private" not in path.parts:
            assert hidden not in path.read_bytes(), f"{path} holds a reply's text"
    assert not any(longest[:40] in line for line in here.said)


def test_private_texts_are_the_owner_s_alone_and_reached_by_the_receipt(
    plain: tuple[TinyStudy, int], served: Open
) -> None:
    here, start = served(plain)
    start()
    (_, made) = here.measure()
    kept = sorted((here.tiny.home / "private").rglob("*.json.gz"))
    assert {path.name.split(".")[0] for path in kept} == set(made.receipt["details"]["private_sha256"])
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept} == {0o600}
    assert {stat.S_IMODE(path.parent.stat().st_mode) for path in kept} == {0o700}
    assert stat.S_IMODE((here.tiny.home / "private").stat().st_mode) == 0o700
    stray = kept[0].with_name("f" * 64 + ".json.gz")
    stray.write_bytes(b"of a run that was killed")
    assert unreached(here.session.store).private == ()
    stray = here.tiny.home / "private" / "ff" / ("f" * 64 + ".json.gz")
    stray.parent.mkdir(exist_ok=True)
    stray.write_bytes(b"of a run that was killed")
    assert unreached(here.session.store).private == ("f" * 64,)


def test_a_second_call_is_answered_from_the_store_and_remeasuring_makes_all_again(
    plain: tuple[TinyStudy, int], served: Open
) -> None:
    here, start = served(plain)
    simulator = start()
    here.measure()
    asked = len(simulator.truth())
    again = here.measure()
    assert all(done.answered_from_store for done in again) and len(simulator.truth()) == asked
    (_, made) = here.measure(remeasure=True)
    assert made.receipt["measurement"] == 2 and len(simulator.truth()) > asked


def test_a_failed_reply_is_a_row_with_its_cause_and_the_others_are_made(
    plain: tuple[TinyStudy, int], served: Open
) -> None:
    here, start = served(plain)
    simulator = start()
    # The page of HTML goes to the question what the server takes, and to the first reply.
    faults = (
        {"name": "html", "times": 2, "at": {"path": "/v1/chat/completions"}},
        {"name": "connection_cut", "times": 1},
        {"name": "error_in_stream", "times": 1},
    )
    (_, made) = here.measure(ready=lambda _facts: simulator.script(*faults))
    rows = here.rows(made)
    causes = Counter(row["cause"] for row in rows.values())
    assert causes == {None: 3, "html": 1, "cut_in_body": 1, "error_event": 1}, rows
    failed = rows["L1/code-1/1"]
    assert (failed["status"], failed["cause"]) == ("failed", "html")
    assert failed["private_sha256"] is None and failed["n_tokens"] is None and failed["text_sha256"] is None
    cut = next(row for row in rows.values() if row["cause"] == "cut_in_body")
    assert cut["status"] == "incomplete" and here.text(cut)["reasoning"] + here.text(cut)["answer"]
    assert not checks_of(made)["replies_came"] and checks_of(made)["plan_followed"]
    assert sum(stage["failed"] for stage in here.stages(made).values()) == 3
    assert here.measure()[1].answered_from_store, "what failed is not asked for again in silence"


def test_a_reply_that_goes_round_in_circles_is_ended_by_the_declared_rule(
    early: tuple[TinyStudy, int], served: Open
) -> None:
    here, start = served(early)
    start({"name": "reply_text", "text": LOOP * 110, "at": {"path": "/v1/chat/completions"}}, timing={"itl_ms": 1.0})
    (_, made) = here.measure()
    rows = here.rows(made)
    long = [row for row in rows.values() if row["stage"] == "L2"]
    assert {row["finish_reason"] for row in long} == {"stopped_early"}
    for row in long:
        assert row["status"] == "ok" and row["cause"] is None
        assert any(flag.startswith("stopped by ") for flag in row["flags"])
        assert 3 * 400 <= row["answer_chars"] + row["reasoning_chars"] < len(LOOP) * 110
    stage = here.stages(made)["L2"]
    assert stage["stopped_early"] == 2 and stage["stopped_by"]
    assert {row["finish_reason"] for row in rows.values() if row["stage"] == "L1"} == {"length"}, "too short to judge"


def test_caps_empty_replies_and_names_of_control_tokens_are_kept_as_they_come(
    plain: tuple[TinyStudy, int], served: Open
) -> None:
    here, start = served(plain)
    start({"name": "reply_text", "text": "", "at": {"path": "/v1/chat/completions"}})
    (_, made) = here.measure()
    for row in here.rows(made).values():
        assert (row["status"], row["finish_reason"]) == ("ok", "stop"), row
        assert (row["reasoning_chars"], row["answer_chars"]) == (0, 0)
        assert "empty" in row["flags"]


def test_the_name_of_a_control_token_in_a_text_is_flagged(plain: tuple[TinyStudy, int], served: Open) -> None:
    here, start = served(plain)
    start({"name": "reply_text", "text": "a <|endoftext|>", "at": {"path": "/v1/chat/completions"}})
    (_, made) = here.measure()
    row = here.rows(made)["L2/prose-1/1"]
    assert "control tokens in the text" in row["flags"] and "<|endoftext|>" in "".join(
        here.text(row)[name] for name in ("reasoning", "answer")
    )


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_is_kept_apart_under_either_name(plain: tuple[TinyStudy, int], served: Open, name: str) -> None:
    here, start = served(plain)
    start({"name": "reasoning_field", "field": name})
    (_, made) = here.measure()
    rows = here.rows(made)
    assert all(row["n_reasoning_tokens"] > 0 and here.text(row)["reasoning"] for row in rows.values())


def test_an_engine_that_dies_voids_its_running_replies_and_the_rest_follows_later(
    plain: tuple[TinyStudy, int], served: Open
) -> None:
    here, start = served(plain)
    simulator = start()

    def die_at_the_next(text: str) -> None:
        if " ended: " in text:
            simulator.script("dies_at_token")

    here.on_say = die_at_the_next
    with pytest.raises(EngcmpError):
        here.measure()
    (scratch,) = (here.tiny.home / "scratch").glob("replies-*")
    entries = read_journal(scratch / "journal.jsonl")
    kept = [entry["row"]["reply_id"] for entry in entries if entry["kind"] == "reply"]
    assert 0 < len(kept) < 6 and all(entry["row"]["status"] == "ok" for entry in entries if entry["kind"] == "reply")
    here.on_say = str
    start()
    (_, made) = here.measure()
    rows = here.rows(made)
    assert len(rows) == 6 and {rows[name]["start"] for name in kept} == {1}
    assert {row["start"] for name, row in rows.items() if name not in kept} == {2}
    starts = json.loads(here.output(made, "starts.json").read_bytes())
    assert [one["start"] for one in starts] == [1, 2]
    assert not list((here.tiny.home / "scratch").glob("replies-*"))


def test_a_killed_run_goes_on_with_the_replies_that_are_missing(plain: tuple[TinyStudy, int], served: Open) -> None:
    here, start = served(plain)
    simulator = start(timing={"itl_ms": 30.0})
    code = (
        "from engcmp_assets.kernel.records import ArmKey; from engcmp_assets.kernel.study import load_study\n"
        "from engcmp_assets.kernel.work import Session; from engcmp_resources.store import Store\n"
        "from engcmp_assets.long_replies.session import measure_serving; from pathlib import Path\n"
        f"session = Session(load_study({here.session.study.folder.name!r}), Store(Path({str(here.tiny.home)!r})), 'killed', print)\n"
        f"list(measure_serving(session, ArmKey.parse({str(ARM)!r})))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], env=os.environ, cwd=CHECKOUT, stdout=subprocess.DEVNULL)
    journal = None
    until = time.monotonic() + 60
    kept: list[str] = []
    while len(kept) < 2 and time.monotonic() < until:
        time.sleep(0.02)
        journal = next(iter((here.tiny.home / "scratch").glob("replies-*/journal.jsonl")), None)
        kept = [one["row"]["reply_id"] for one in read_journal(journal) if one["kind"] == "reply"] if journal else []
    process.send_signal(signal.SIGKILL)
    process.wait(20)
    assert journal is not None and len(kept) >= 2, "it never got so far"
    before = {
        one["row"]["reply_id"]: one["row"]["started_at_ns"] for one in read_journal(journal) if one["kind"] == "reply"
    }
    assert len(before) < 6
    assert unreached(here.session.store).private == (), "what the journal names is still needed"
    assert dead_captures(here.session.store) == [], "the next run goes on there"
    other = journal.parent.with_name("replies-other")
    shutil.copytree(journal.parent, other)
    (dead,) = dead_captures(here.session.store)
    assert (dead.name, dead.windows, dead.unit) == (
        "replies-other",
        len(before),
        "reply",
    ) and "another capture" in dead.why
    shutil.rmtree(other)
    simulator.script()
    (_, made) = here.measure()
    rows = here.rows(made)
    assert len(rows) == 6 and {row["status"] for row in rows.values()} == {"ok"}
    for name, started in before.items():
        assert rows[name]["started_at_ns"] == started, "a reply that is there is not made again"
    assert {row["start"] for row in rows.values()} == {1, 2}


def test_a_trace_is_continued_and_says_why_it_has_no_log_probability(
    whole: tuple[TinyStudy, int], served: Open
) -> None:
    here, start = served(whole)
    simulator = start()
    refused = {"name": "refuses_fields", "fields": ["logprobs"], "at": {"path": "/v1/completions"}}
    (_, made) = here.measure(ready=lambda _facts: simulator.script(refused))
    traces = json.loads(here.output(made, "traces.json").read_bytes())["traces"]
    assert len(traces) == 3 and {one["kind"] for one in traces} <= {"sentence_end", "random", "true_end"}
    assert all("http_400" in one["end"]["missing"] for one in traces)
    assert {row["cause"] for row in here.rows(made).values() if row["block"] == "trace"} == {"http_400"}


def test_speed_and_replies_share_one_start_and_speed_survives_a_failure_of_the_replies(
    both: tuple[TinyStudy, int], served: Open
) -> None:
    here, start = served(both)
    simulator = start()

    def die_at_the_next(text: str) -> None:
        if "long_replies, stage L1" in text:
            simulator.script("dies_at_token")

    here.on_say = die_at_the_next
    made = []
    with pytest.raises(EngcmpError):
        for done in measure_serving(here.session, ARM):
            made.append(done)
    assert [done.receipt["artifact"] for done in made] == ["engine_launch/serving", "throughput_events"]
    here.on_say = str
    start()
    launch, events, replies = here.measure()
    assert launch.answered_from_store and events.answered_from_store and not replies.answered_from_store
    assert [one["launch"] for one in json.loads(here.output(launch, "starts.json").read_bytes())] == [1, 2]
    starts = json.loads(here.output(replies, "starts.json").read_bytes())
    assert [one["launch"] for one in starts] == [0, 0], "of the first, which served the speed too, one reply is there"
    assert {row["start"] for row in here.rows(replies).values()} == {1, 2}
    (shared, _) = starts
    assert shared["gpus_after"] == json.loads(here.output(launch, "starts.json").read_bytes())[1]["gpus_after"]
    again = here.measure(remeasure=True)
    assert [done.receipt["artifact"] for done in again] == [
        "engine_launch/serving",
        "throughput_events",
        "long_replies",
    ]
    assert len(json.loads(here.output(again[0], "starts.json").read_bytes())) == 2
    assert len(json.loads(here.output(again[2], "starts.json").read_bytes())) == 1, "that of the last repeat"


def test_what_is_made_a_second_time_has_a_launch_of_its_own_and_is_the_same_request(
    twice: tuple[TinyStudy, int], served: Open
) -> None:
    here, start = served(twice)
    start()
    killed = False

    def stop_before_the_second(text: str) -> None:
        nonlocal killed
        if "to make a second time" in text and not killed:
            killed = True
            raise KeyboardInterrupt

    here.on_say = stop_before_the_second
    with pytest.raises(KeyboardInterrupt):
        here.measure()
    (journal,) = (here.tiny.home / "scratch").glob("replies-*/journal.jsonl")
    kept = [one["row"] for one in read_journal(journal) if one["kind"] == "reply"]
    assert {row["block"] for row in kept} == {"long"} and len(kept) == 6
    made = here.measure()[-1]
    rows = here.rows(made)
    assert all(rows[row["reply_id"]]["started_at_ns"] == row["started_at_ns"] for row in kept), "none is made again"
    again = {name: row for name, row in rows.items() if row["block"] == "again"}
    assert set(again) == {"again-L1/code-1/1", "again-L1/prose-1/1"}
    for name, row in again.items():
        first = rows[name.removeprefix("again-")]
        assert row["start"] > first["start"], "two launches of one build"
        for same in ("prompt_sha256", "seed", "cap_tokens", "item"):
            assert row[same] == first[same]
    starts = json.loads(here.output(made, "starts.json").read_bytes())
    assert {row["start"] for row in rows.values()} == {one["start"] for one in starts} and len(starts) == 2
    assert checks_of(made)["plan_followed"]


def test_with_turns_the_replies_wait_for_the_last_one(both: tuple[TinyStudy, int], served: Open) -> None:
    here, start = served(both)
    start()
    assert here.measure(until_repeat=1) == []
    assert not here.tiny.home.joinpath("private").exists()
    made = here.measure(until_repeat=2)
    assert [done.receipt["artifact"] for done in made] == ["engine_launch/serving", "throughput_events", "long_replies"]
