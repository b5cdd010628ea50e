"""`engcmp verify` on Dagster's event log: what a real run has written agrees, and whatever is changed in it afterwards is found."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from homes import Q4, Q8, STUDY, Here, current_receipt, engcmp_here, everything, quiet

from engcmp_assets.audit.collect import TOMBSTONE_SCHEMA
from engcmp_assets.audit.dagster_events import LOG, open_log
from engcmp_assets.audit.event_claims import EventCounts, event_problems
from engcmp_assets.audit.reached import reached_from_heads
from engcmp_assets.audit.recompute import Evidence
from engcmp_assets.kernel.study import load_study
from engcmp_resources.canonical import sha256_of
from engcmp_resources.store import Store

PREFIX = "smollm2_cpu"
UNKNOWN_RUN = "00000000-0000-4000-8000-000000000000"
KL = f"kl_full, pa ({Q4})"
Entry = dict[str, Any]
Edit = Callable[[Entry], None]


def judged(home: Path) -> tuple[EventCounts | None, list[str]]:
    store = Evidence(home)
    counts, problems = event_problems(
        load_study(STUDY), store, reached_from_heads(store, STUDY), quiet, time.monotonic_ns
    )
    assert all(problem.file == LOG for problem in problems)
    return counts, [problem.what for problem in problems]


def only_problem(home: Path) -> str:
    _, problems = judged(home)
    assert len(problems) == 1, problems
    return problems[0]


def made_of(entry: Entry) -> dict[str, Any]:
    found: dict[str, Any] = entry["dagster_event"]["event_specific_data"]["materialization"]
    return found


def shown(entry: Entry, label: str) -> dict[str, Any]:
    """What an event shows under a label: its class and its value."""
    return next(one["entry_data"] for one in made_of(entry)["metadata_entries"] if one["label"] == label)


def doctor(home: Path, edit: Edit, artifact: str = "summaries", *, own_log_too: bool = True) -> None:
    """Change the last event of an artifact of Q4 in Dagster's log, and, like a thorough forger, in the log of its run."""
    key = json.dumps([PREFIX, *artifact.split("/")])
    index = home / LOG
    with closing(sqlite3.connect(index)) as log, log:
        number, run_id, before = log.execute(
            "SELECT id, run_id, event FROM event_logs WHERE dagster_event_type = 'ASSET_MATERIALIZATION' AND asset_key = ? "
            "AND (partition IS NULL OR partition = ?) ORDER BY id DESC LIMIT 1", (key, Q4),
        ).fetchone()  # fmt: skip
        entry = json.loads(before)
        edit(entry)
        after, made = json.dumps(entry), made_of(entry)
        place = (entry["run_id"], json.dumps(made["asset_key"]["path"]), made["partition"])
        log.execute(
            "UPDATE event_logs SET event = ?, run_id = ?, asset_key = ?, partition = ? WHERE id = ?",
            (after, *place, number),
        )
    assert after != json.dumps(json.loads(before))
    if own_log_too:
        with closing(sqlite3.connect(index.with_name(f"{run_id}.db"))) as own, own:
            changed = own.execute("UPDATE event_logs SET event = ? WHERE event = ?", (after, before))
            assert changed.rowcount == 1


# ---------------------------------------------------------------- what is sound


def test_every_event_of_a_real_history_agrees_with_its_receipt(home_copy: Path) -> None:
    heads = len(list((home_copy / "heads").rglob("*.json")))
    with open_log(home_copy, PREFIX) as log:
        events = list(log.events())
    assert len(events) == heads + 1  # the frozen protocol is materialized with each of the two arms
    assert judged(home_copy) == (EventCounts(agree=len(events), collected=0, current_without=0), [])


def test_reading_writes_nothing_and_sees_what_a_writer_has_not_merged_yet(home_copy: Path) -> None:
    folder = home_copy / "dagster"
    with closing(sqlite3.connect(home_copy / LOG)) as writer:
        assert writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        with writer:
            writer.execute("UPDATE event_logs SET event = 'x' WHERE id = (SELECT max(id) FROM event_logs WHERE asset_key IS "
                           "NOT NULL AND dagster_event_type = 'ASSET_MATERIALIZATION')")  # fmt: skip
        assert (home_copy / f"{LOG}-wal").stat().st_size > 0
        before = everything(home_copy)
        data = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        assert "not an event as this version of Dagster writes it" in only_problem(home_copy)
        assert everything(home_copy) == before
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == data


def test_a_home_without_a_log_has_nothing_to_hold_against_receipts(home_copy: Path, here: Here) -> None:
    shutil.rmtree(home_copy / "dagster")
    assert judged(home_copy) == (None, [])
    done = here("verify", STUDY, home=home_copy)
    assert done.returncode == 0 and "Dagster" not in done.stdout
    assert not (home_copy / "dagster").exists()


def test_an_artifact_whose_events_were_wiped_is_counted_and_no_problem(home_copy: Path) -> None:
    key = json.dumps([PREFIX, "summaries"])
    with closing(sqlite3.connect(home_copy / LOG)) as log, log:  # as Dagster does it
        log.execute("DELETE FROM event_logs WHERE asset_key = ?", (key,))
        log.execute("UPDATE asset_keys SET wipe_timestamp = '2100-01-01 00:00:00' WHERE asset_key = ?", (key,))
    counts, problems = judged(home_copy)
    assert problems == []
    assert counts is not None and counts.current_without == 2


def test_a_receipt_that_was_collected_is_counted_by_its_tombstone(home_copy: Path) -> None:
    other: list[str] = []

    def edit(entry: Entry) -> None:
        other.append(another_receipt(entry))

    doctor(home_copy, edit)
    assert f"it names receipt {other[0][:12]}, which this store does not hold" in only_problem(home_copy)
    tombstone = {"schema": TOMBSTONE_SCHEMA, "removed_at": "2026-01-01T00:00:00+00:00", "files": [], "receipts": other}
    sha256 = Store(home_copy).bury(tombstone)
    counts, problems = judged(home_copy)
    assert problems == []
    assert counts is not None and (counts.collected, counts.current_without) == (1, 1)
    path = home_copy / "tombstones" / f"{sha256}.json"
    path.chmod(0o644)
    path.write_bytes(path.read_bytes() + b" ")  # a tombstone that was changed is believed by nobody
    assert "which this store does not hold" in only_problem(home_copy)


# ---------------------------------------------------------------- what was changed


def another_receipt(entry: Entry) -> str:
    """A receipt that was never written, and its hash, in the place of the event's own."""
    receipt = shown(entry, "receipt")["data"]
    receipt["started_at"] = "2000-01-01T00:00:00.000+00:00"
    shown(entry, "receipt_sha256")["text"] = sha256_of(receipt)
    return sha256_of(receipt)


def smaller_number(entry: Entry) -> None:
    shown(entry, KL)["value"] /= 2


def smaller_number_in_a_table(label: str) -> Edit:
    def edit(entry: Entry) -> None:
        table = shown(entry, label)
        line = next(line for line in table["md_str"].splitlines() if line.startswith("| kl_full | pa | "))
        table["md_str"] = table["md_str"].replace(line, re.sub(r"\d\.\d+", "0.0001", line, count=1))

    return edit


def figure_in_the_receipt(entry: Entry) -> None:
    shown(entry, "receipt")["data"]["figures"][0]["value"] = 0.0001


def other_partition(entry: Entry) -> None:
    made_of(entry)["partition"] = Q8


def other_asset(entry: Entry) -> None:
    made_of(entry)["asset_key"]["path"][1:] = ["results"]


def neighbour(entry: Entry) -> None:
    made_of(entry)["asset_key"]["path"][1:] = ["tails"]


def tag(name: str, value: str | None) -> Edit:
    def edit(entry: Entry) -> None:
        tags = made_of(entry)["tags"]
        del tags[name]
        tags.update({} if value is None else {name: value})

    return edit


def text(label: str, value: str) -> Edit:
    def edit(entry: Entry) -> None:
        shown(entry, label)["text"] = value

    return edit


def rows(entry: Entry) -> None:
    shown(entry, "dagster/row_count")["value"] += 1


def run(run_id: str) -> Edit:
    def edit(entry: Entry) -> None:
        entry["run_id"] = run_id

    return edit


def no_entries(entry: Entry) -> None:
    made_of(entry)["metadata_entries"] = []


INPUT = f"dagster/input_data_version/{PREFIX}"
DOCTORED: dict[str, tuple[Edit, str]] = {
    "number": (smaller_number, f"it shows {KL} as "),
    "number in the table": (smaller_number_in_a_table("figures"), "its table `figures` shows"),
    "number in the full table": (smaller_number_in_a_table("every_figure"), "its table `every_figure` shows"),
    "figure of the receipt": (figure_in_the_receipt, "does not have the hash that it names"),
    "rows": (rows, "rows, and its receipt does not"),
    "partition": (other_partition, f"its partition is {Q8}, that of its receipt {Q4}"),
    "asset": (neighbour, "its artifact is tails, that of its receipt summaries"),
    "asset that does not exist": (other_asset, "the study has no such artifact"),
    "data version": (tag("dagster/data_version", "0" * 64), "its data version is 000000"),
    "shown data version": (text("data_version", "0" * 64), "its shown data version is 000000"),
    "frozen hash": (text("frozen_sha256", "0" * 64), "its frozen hash is 000000"),
    "run": (run(UNKNOWN_RUN), "its run 00000000 is unknown to Dagster"),
    "no run": (run(""), "forged: reported by hand, no run has made it"),
    "receipt": (another_receipt, "which this store does not hold"),
    "name of the receipt": (text("receipt_sha256", "0" * 64), "does not have the hash that it names"),
    "no receipt": (no_entries, "does not have the hash that it names"),
    "input": (tag(f"{INPUT}/scores", "0" * 64), "it says that scores 000000000000 went into it"),
    "input never seen": (tag(f"{INPUT}/scores", "INITIAL"), "it says that scores INITIAL went into it"),
    "frozen input": (tag(f"{INPUT}/frozen_protocol", "0" * 64), "it says that frozen_protocol 000000000000 went"),
    "no input": (tag(f"{INPUT}/tails", None), "it does not say which tails went into it"),
}  # fmt: skip


@pytest.mark.parametrize("what", DOCTORED)
def test_a_changed_event_is_found_and_named(home_copy: Path, what: str) -> None:
    edit, expected = DOCTORED[what]
    doctor(home_copy, edit)
    found = only_problem(home_copy)
    assert expected in found
    assert re.match(rf"{PREFIX}/\S+, \S+, \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d UTC: ", found)
    assert "no result lies in it" in found


def test_a_change_in_the_common_log_alone_differs_from_the_log_of_the_run(home_copy: Path) -> None:
    def edit(entry: Entry) -> None:
        made_of(entry)["description"] = "a word that no other check reads"

    doctor(home_copy, edit, own_log_too=False)
    assert "does not hold it" in only_problem(home_copy)


def test_an_event_cannot_be_given_to_another_run_of_the_study(home_copy: Path) -> None:
    other = current_receipt(home_copy, "summaries", Q8)["run_id"]
    doctor(home_copy, run(other))
    assert f"the log of its run {other[:8]} does not hold it" in only_problem(home_copy)


def test_a_receipt_of_another_run_must_be_said_to_be_answered_from_the_store(home_copy: Path) -> None:
    done = engcmp_here("run", STUDY, "--arm", Q4, ENGCMP_HOME=str(home_copy))
    assert done.returncode == 0, done.stderr
    counts, problems = judged(home_copy)
    assert problems == [] and counts is not None and counts.current_without == 0

    def edit(entry: Entry) -> None:
        assert shown(entry, "answered_from_store")["value"] is True
        shown(entry, "answered_from_store")["value"] = False

    doctor(home_copy, edit)
    assert "it does not say that it was answered from the store" in only_problem(home_copy)


def test_a_copied_home_that_lacks_a_run_s_own_log_is_judged_by_the_run_s_plan(home_copy: Path) -> None:
    run_id = current_receipt(home_copy, "summaries", Q4)["run_id"]
    (home_copy / LOG).with_name(f"{run_id}.db").unlink()
    assert judged(home_copy)[1] == []
    with closing(sqlite3.connect(home_copy / LOG)) as log, log:
        log.execute(
            "DELETE FROM event_logs WHERE run_id = ? AND asset_key = ? AND dagster_event_type = 'ASSET_MATERIALIZATION_PLANNED'",
            (run_id, json.dumps([PREFIX, "summaries"])),
        )
    assert f"{PREFIX}/summaries, {Q4}" in only_problem(home_copy)


# ---------------------------------------------------------------- the command


def test_the_command_counts_events_and_fails_for_a_changed_one(home_copy: Path, here: Here) -> None:
    done = here("verify", STUDY, home=home_copy)
    assert done.returncode == 0, done.stdout + done.stderr
    events = json.loads(here("verify", STUDY, "--json", home=home_copy).stdout)["events"]
    assert events["agree"] > 20 and events["collected"] == events["current_without"] == 0
    line = f"  {events['agree']} Dagster events agree with their receipts; current artifacts without an event: 0"
    assert line in done.stdout.splitlines()

    doctor(home_copy, smaller_number)
    done = here("verify", STUDY, home=home_copy)
    assert done.returncode == 1
    assert f"FAILED {LOG}: {PREFIX}/summaries, {Q4}, " in done.stdout
    document = json.loads(here("verify", STUDY, "--json", home=home_copy).stdout)
    assert [problem["file"] for problem in document["problems"]] == [LOG]
    assert document["artifacts_recomputed"] > 0  # an event is no evidence: the figures are recomputed all the same
    assert here("verify", STUDY, "--no-events", home=home_copy).returncode == 0


def test_a_log_that_is_no_database_is_a_problem_that_says_what_to_do(home_copy: Path) -> None:
    (home_copy / LOG).write_bytes(b"x" * 5000)
    counts, problems = judged(home_copy)
    assert counts is None
    assert (
        len(problems) == 1 and "cannot be read as Dagster's event log" in problems[0] and "--no-events" in problems[0]
    )
