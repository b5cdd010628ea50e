"""The audit finds every planted fault and nothing else, in a process that can reach no engine and write nothing."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from export.forging import Forger
from homes import STUDY, Here, change, everything, quiet
from planted import PLANTED, PLANTS, places, plant_study

from engcmp_assets.audit.battery import audit
from engcmp_assets.audit.confinement import BUBBLEWRAP, IN_FORCE, NETWORK, PROCESS, run_confined, ways
from engcmp_assets.audit.finders import FINDERS
from engcmp_assets.audit.found import Report
from engcmp_assets.audit.page import findings_page
from engcmp_assets.audit.recompute import Evidence
from engcmp_assets.commands.main import main
from engcmp_assets.export.verifier.faults import Fault
from engcmp_assets.export.verifier.main import verify as verify_bundle
from engcmp_assets.kernel.records import plain
from engcmp_assets.kernel.study import load_study
from engcmp_resources.errors import EngcmpError

# Of the planted study: what near-copies and an old baseline leave of its published figures.
NARROWED_BY = {"near-copies-counted-apart", "stale-baseline"}


@pytest.fixture(scope="module")
def planted(measured_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the study with every fault; read it."""
    root = tmp_path_factory.mktemp("planted")
    plant_study(root, measured_home / "store", sound=False)
    return root


@pytest.fixture(scope="module")
def sound(measured_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the same study without one."""
    root = tmp_path_factory.mktemp("sound")
    plant_study(root, measured_home / "store", sound=True)
    return root


@cache  # a report changes nothing and is changed by nobody; it takes some seconds
def audited(root: Path) -> Report:
    with places(root):
        return audit(load_study(PLANTED), Evidence(root / "home"), quiet, time.monotonic_ns)


def faults(report: Report) -> set[tuple[str, str]]:
    return {(one.check, one.about) for one in report.found}


def test_every_planted_fault_is_found_and_nothing_else(planted: Path) -> None:
    report = audited(planted)
    assert faults(report) == PLANTS
    assert len(report.found) == len(PLANTS)
    held = {one.check for one in report.checks if one.outcome == "holds"}
    assert held >= {"proof", "torn repeats"}
    assert {rule for one in report.claims for rule in one.rules} == NARROWED_BY


def test_a_sound_study_has_no_finding(sound: Path) -> None:
    report = audited(sound)
    assert report.found == ()
    assert report.claims and {one.outcome for one in report.claims} == {"holds"}
    assert {one.check for one in report.checks if one.outcome != "holds"} == {"inputs"}  # it measures no speed
    assert {one.outcome for one in report.checks} == {"holds", "not looked at"}


def test_figures_at_context_lengths_are_declared_looks_that_hold_and_are_traced_to_the_frozen_hash(
    sound: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = audited(sound)
    at = [one for one in report.claims if "/bucket:upto256/" in one.claim_id]
    assert at and {one.outcome for one in at} == {"holds"}
    assert any("/block:code,bucket:upto256/" in one.claim_id for one in report.claims)
    figure = f"{PLANTED}/q8_0/same@b11549/pa/bucket:upto256/kl_full"
    with places(sound):
        frozen = load_study(PLANTED).frozen_sha256
        with pytest.raises(SystemExit) as ended:
            main(["trace", figure])
    said = capsys.readouterr().out
    assert ended.value.code == 0 and figure in said and frozen in said


def test_a_bundle_with_figures_at_context_lengths_verifies_and_a_forged_one_is_named(
    sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with places(sound), pytest.raises(SystemExit) as ended:
        main(["export", PLANTED, "--out", str(tmp_path / "bundle")])
    assert ended.value.code == 0, capsys.readouterr().err
    own = Forger(tmp_path / "bundle")
    arm = "q8_0/same@b11549"
    place = next(
        place
        for place, one in enumerate(own.receipt("summaries", arm)["figures"])
        if (one["population"], one["measure"]) == ("bucket:upto256", "kl_full")
    )
    own.edit_receipt("summaries", lambda receipt: receipt["figures"][place].update(value=0.5), arm)
    own.rechain()
    with pytest.raises(Fault, match="bucket:upto256/kl_full"):
        verify_bundle(own.write(tmp_path / "bundle", tmp_path / "forged"))


def test_a_declared_reading_rule_is_applied_to_the_study_s_own_figures(sound: Path) -> None:
    (read,) = audited(sound).readings
    assert (read.rule_id, read.verdict) == ("same-as-plain", "not resolved")
    assert read.means == "it is not shown to be further away"


def test_each_fault_says_what_and_what_to_do(planted: Path) -> None:
    for one in audited(planted).found:
        assert one.what and one.remedy and not one.what.endswith("."), one


def test_the_page_says_what_holds_what_is_narrowed_and_what_is_corrected(planted: Path) -> None:
    report = plain(audited(planted)) | {
        "confined": {"in force": "this", "an engine": "not reached", "the store": "closed"}
    }
    page = findings_page(report)
    titles = [line for line in page.splitlines() if line.startswith("## ")]
    assert titles == ["## Corrected", "## Narrowed", "## What was checked, and how", "## Reading rules, applied"]
    corrected, narrowed = page.index("## Corrected"), page.index("## Narrowed")
    for one in report["found"]:
        place = page.index(f"**{one['about']}** ({one['check']})")
        assert (corrected < place < narrowed) == (one["outcome"] == "corrected")
    for finder in FINDERS:
        assert f"| {finder.check} |" in page
    assert "In force: this." in page and findings_page(report) == page


def test_damaged_evidence_is_said_and_nothing_is_judged_from_it(sound: Path, tmp_path: Path) -> None:
    root = tmp_path / "damaged"
    subprocess.run(["cp", "-al", str(sound), str(root)], check=True)
    largest = max((root / "home" / "store").rglob("*.safetensors"), key=lambda path: path.stat().st_size)
    change(largest, lambda data: data[:-1] + bytes([data[-1] ^ 1]))
    report = audited(root)
    assert {one.check for one in report.found} == {"proof"}
    assert [one.check for one in report.checks] == ["proof"] and report.claims == ()


# A user's own claims, held against the study.


def current(root: Path, folder: str, artifact: str) -> str:
    """The receipt that a head of the planted study names."""
    head = json.loads((root / "home" / "heads" / PLANTED / folder / f"{artifact}.json").read_bytes())
    return str(head["receipt_sha256"])


def claimed(root: Path, here: Here, monkeypatch: pytest.MonkeyPatch, *claims: dict[str, Any]) -> list[dict[str, Any]]:
    """What the command makes of these claims, each changed from a plain one of the pair `same` and `plain`."""
    monkeypatch.setenv("ENGCMP_PROTOCOL", str(root / "protocol"))
    receipt = current(root, "_study", "comparisons")
    base = {
        "states": "difference", "candidate": "q8_0/same@b11549", "baseline": "q8_0/plain@b11549", "measure": "kl_full",
        "population": {"panel": "pa", "role": "context"}, "score_path": "prefill", "verdict": "descriptive", "limits": ["no floor"],
        "evidence": {"receipts": [receipt]},
    }  # fmt: skip
    entries = [base | one | {"claim_id": f"c{number}"} for number, one in enumerate(claims)]
    file = root / f"claims-{len(claims)}.json"
    file.write_text(json.dumps({"study": PLANTED, "claims": entries}), encoding="utf-8")
    done = here("claims", str(file), "--json", home=root / "home")
    judged: list[dict[str, Any]] = json.loads(done.stdout)["claims"]
    assert done.returncode == (3 if any(one["outcome"] != "accepted" for one in judged) else 0)
    return judged


def of(candidate: str, **fields: Any) -> dict[str, Any]:
    return {"candidate": f"q8_0/{candidate}@b11549", **fields}


LONG = {"panel": "pa", "role": "context", "bucket": "upto256"}
FEW = {"low": 0.001, "high": 0.002, "level": 0.95, "method": "cluster bootstrap, 20,000 replicates, seed 7"}
MISTAKEN = {
    "batching-of-captures-that-ran-alone": of("chunked", states="cause", cause={"factor": "batching"}),
    "ablation-of-several-settings": of("settings", states="ablation", cause={"factor": "setting", "name": "threads"}),
    "differences-left-out": of("settings"),
    "bucket-of-one-block": of("same", population=LONG),
    "look-chosen-after-the-data": of("same", population=LONG, headline=True),
    "trend-within-no-block": of("same", states="trend"),
    "bootstrap-of-few-documents": of("same", interval=FEW, clusters=6),
    "near-copies-counted-apart": of("same", clusters=6),
    "another-number-than-measured": of("chunked", estimate=0.3),
    "interval-that-holds-zero": of("chunked", verdict="resolved"),
    "rows-that-are-not-identical": of("chunked", states="identical rows", measure="rows_bit_identical", verdict="bit-identical"),
    "stale-baseline": of("old"),
    "path-that-was-not-scored": of("same", score_path="decode"),
    "quality-from-kl-alone": of("same", states="quality"),
    "evidence-that-is-not-there": of("same", evidence={"row_files": ["ab" * 32]}),
}  # fmt: skip
UNMEASURED: tuple[tuple[dict[str, Any], str], ...] = (
    (of("nobody"), "declares no such pair"),
    ({"candidate": "q8_0/plain@b11549", "baseline": "q8_0/same@b11549"}, "the other way round"),
    (of("same", baseline=None), "no baseline is named"),
    (of("warm"), "declares no such pair"),
    (of("same", measure="top1"), "has no top1"),
    (of("same", population={"panel": "pa", "block": "poetry"}), "block:poetry"),
    (of("same", states="ratio", measure="decode_tok_s", population={"cell": "code-64-c1"}), "no such cell"),
    (of("same", states="loops", measure="reply_looped"), "was judged"),
    (of("same", states="bar", measure="any", bar="paired", verdict="within bar"), "no bar can be read"),
)  # fmt: skip


def test_mistaken_claims_of_a_study_are_each_found_by_their_rule(
    planted: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = claimed(planted, here, monkeypatch, *MISTAKEN.values())
    for rule, one in zip(MISTAKEN, judged, strict=True):
        assert rule in {found["rule"] for found in one["findings"]}, (rule, one)
        assert one["by"] == "what was measured"
    batching = judged[0]["left"]["claim"]["cause"]
    assert batching == {"factor": "prefill chunk", "name": "2"}


def test_evidence_of_other_arms_carries_no_claim(planted: Path, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = (current(planted, f"q8_0~{name}@b11549", "scores") for name in ("same", "chunked"))
    cited = [of("same", evidence={"receipts": names}) for names in ([own], [own, other])]
    found = [{one["rule"] for one in judged["findings"]} for judged in claimed(planted, here, monkeypatch, *cited)]
    assert ["evidence-of-other-arms" in rules for rules in found] == [False, True]


def test_a_claim_of_what_was_not_measured_is_refused(
    planted: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = claimed(planted, here, monkeypatch, *(one for one, _ in UNMEASURED))
    for one, (_, words) in zip(judged, UNMEASURED, strict=True):
        assert one["outcome"] == "refused" and any(words in found["what"] for found in one["findings"]), one


def test_the_study_s_own_headlines_are_a_file_that_is_accepted(
    sound: Path, here: Here, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ENGCMP_PROTOCOL", str(sound / "protocol"))
    printed = here("claims", "--example", home=sound / "home")
    assert printed.returncode == 0 and json.loads(printed.stdout)["study"] == PLANTED
    file = tmp_path / "claims.json"
    file.write_text(printed.stdout, encoding="utf-8")
    before = everything(sound / "home")
    done = here("claims", str(file), home=sound / "home")
    assert done.returncode == 0 and "1 claims: 1 accepted" in done.stdout, done.stdout
    assert everything(sound / "home") == before


# The process.


def test_the_strictest_way_is_taken_and_said(sound: Path) -> None:
    before = everything(sound / "home")
    with places(sound):
        report = run_confined(PLANTED, sound / "home", quiet)
    assert report["confined"]["in force"] == IN_FORCE[next(iter(ways()))]
    assert report["found"] == []
    assert everything(sound / "home") == before


@pytest.mark.parametrize("way", [BUBBLEWRAP, NETWORK, PROCESS])
def test_no_way_reaches_an_engine_or_writes(way: str, tmp_path: Path) -> None:
    if way not in ways():
        pytest.skip(f"this system has no {way}")
    told = attempt(way, tmp_path)
    assert told.pop("C code") or not (way == BUBBLEWRAP or keeps_files())
    assert told == {"socket": True, "program": True, "write": True, "remove": True, "proof": True}
    assert (tmp_path / "home" / "kept").read_bytes() == b"kept"


def attempt(way: str, root: Path) -> dict[str, bool]:
    """What a process that gave everything up is refused: each is tried in a way of its own."""
    home = root / "home"
    home.mkdir()
    (home / "kept").write_bytes(b"kept")
    (root / "scratch").mkdir()
    code = """
import json, os, socket, subprocess, sys
from pathlib import Path
from engcmp_assets.audit.inside import prove, writes_by_c_code
from engcmp_resources.write_filter import refuse_writes_outside
home, port = Path(sys.argv[2]), int(sys.argv[3])
closed = refuse_writes_outside(home.parent / "scratch")
told = {"proof": bool(prove(sys.argv[1], home, port, closed=closed))}
told["C code"] = not writes_by_c_code(home)
def refused(do):
    try:
        do()
    except OSError:
        return True
    return False
told["socket"] = refused(lambda: socket.create_connection(("127.0.0.1", port), timeout=2))
told["program"] = refused(lambda: subprocess.run(["true"]))
told["write"] = refused(lambda: (home / "new").write_text("x"))
told["remove"] = refused(lambda: (home / "kept").unlink())
print(json.dumps(told))
"""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        done = subprocess.run(
            [*ways()[way], sys.executable, "-c", code, way, str(home), port],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    told: dict[str, bool] = json.loads(done.stdout)
    return told


def keeps_files() -> bool:
    """Whether the kernel can keep files from a process, asked in one of its own."""
    ask = "from engcmp_resources.write_filter import refuse_writes_outside as r; print(r())"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    return done.stdout == "True\n"


def test_a_way_that_keeps_nothing_away_is_refused(tmp_path: Path) -> None:
    """A namespace that is said to be there and is not: the proof sees the listener."""
    code = (
        "import sys; from pathlib import Path; from engcmp_assets.audit.inside import prove; "
        "prove(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), closed=False)"
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-c", code, NETWORK, str(tmp_path), port], capture_output=True, text=True, check=False
        )
    assert done.returncode == 1 and "does not keep the network away" in done.stderr


def test_an_error_of_the_process_is_told_in_its_own_words(tmp_path: Path, sound: Path) -> None:
    with places(sound), pytest.raises(EngcmpError, match=f"no result of {PLANTED} in this store"):
        run_confined(PLANTED, tmp_path, quiet)
    with places(sound), pytest.raises(EngcmpError, match="no tunnel"):
        run_confined(PLANTED, tmp_path, quiet, way="tunnel")


# The command, on the small study that was measured for real.


def test_the_command_prints_the_page_and_ends_with_0_where_all_holds(here: Here, measured_home: Path) -> None:
    done = here("audit", STUDY, home=measured_home)
    assert done.stdout.startswith(f"# Audit of {STUDY}\n")
    assert "## Corrected\n\nNothing.\n" in done.stdout and done.returncode == 0
    report: dict[str, Any] = json.loads(here("audit", STUDY, "--json", home=measured_home).stdout)
    assert report["found"] == [] and {one["outcome"] for one in report["claims"]} == {"holds"}


def test_the_command_ends_with_1_where_something_was_found(
    planted: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGCMP_PROTOCOL", str(planted / "protocol"))
    done = here("audit", PLANTED, home=planted / "home")
    assert done.returncode == 1 and "off by one" in done.stdout
