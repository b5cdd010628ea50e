"""Faults of servers that only a whole study shows (FAULTS, sections 3, 4, 9 and 10): what is measured, published, or refused.

The servers are simulators over HTTP that run already (kind `external`) and serve the tiny study's own texts, at top 20.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from served_pair import OURS, RIVAL, Servers, served_pair
from tiny import TINY

from engcmp_assets.kernel.tables import read_parquet


@pytest.fixture
def servers(tmp_path: Path, measured_home: Path) -> Iterator[Callable[[int], Servers]]:
    """Makes the study for a number of repeats."""
    made: list[Servers] = []

    def make(repeats: int) -> Servers:
        made.append(served_pair(tmp_path, measured_home, repeats))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def succeeded(servers: Servers, *arguments: str) -> str:
    done = servers.tiny.run(*arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_determinism_is_what_the_repeats_show_and_not_what_the_server_promises(
    servers: Callable[[int], Servers],
) -> None:
    """One server promises the same result for the same request and gives another each time; one promises nothing and keeps it.

    Of a third kind of repeats only the first differs, as after a cold start: it is told apart, run beside run.
    """
    study = servers(3)
    ours = study.start("ours", "noise", deterministic=True)
    stated = httpx.get(f"{ours.url}/server_info", trust_env=False).json()
    assert stated["vllm_env"] == {"VLLM_BATCH_INVARIANT": "1"}, "the promise"
    first = {"name": "noise", "scale": 0.5, "times": 1, "at": {"prompt_tokens": study.lengths()[0]}}
    study.start("rival", first, perturb=0.1, kv_tokens=8192, context=1024)
    succeeded(study, "run", TINY)
    noisy, steady = (study.receipt("captured_rows/pl", arm) for arm in (OURS, RIVAL))
    assert noisy["details"]["rows_bit_identical"] == {"1.1 and 1.2": 0.0, "1.2 and 1.3": 0.0}
    assert noisy["flags"] == ["runs differ"]
    assert [one["passed"] for one in noisy["checks"] if one["name"] == "repeats_agree"] == [False]
    shares = steady["details"]["rows_bit_identical"]
    assert 0 < shares["1.1 and 1.2"] < 1 and shares["1.2 and 1.3"] == 1.0, (
        "the cold repeat is not hidden in the warm ones"
    )
    table = read_parquet(study.output(steady, "capture.parquet"))
    keys = zip(table["run"], table["window_id"], table["position"], strict=True)
    hashes = dict(zip(keys, table["raw_row_sha256"], strict=True))
    differing = {key[1] for key, digest in hashes.items() if key[0] == "1.1" and hashes[("1.2", *key[1:])] != digest}
    assert len(differing) == 1, "only the window whose first request was disturbed"
    figure = next(one for one in study.pair()["figures"] if one["measure"] == "kl_top20" and one["population"] == "all")
    floors = {name: figure[f"{name}_floor"]["within_launch"] for name in ("candidate", "baseline")}
    assert all(one["value"] != 0 and one["rows_that_differ"] > 0 and one["pairs"] == 2 for one in floors.values())
    assert floors["candidate"]["rows_that_differ"] > floors["baseline"]["rows_that_differ"]
    # What neither protocol declares of the two launches, on either side, is a confound of the pair.
    differences = json.loads(succeeded(study, "launch", "diff", f"{TINY}/{OURS}", f"{TINY}/{RIVAL}", "--json"))[
        "differences"
    ]
    told = {one["name"]: (one["first"], one["second"]) for one in differences if not one["declared"]}
    values = {name.rpartition(".")[2]: pair for name, pair in told.items()}
    assert values["tokens"] == (65_536, 8192) and values["max_model_len"] == (8192, 1024)
    assert any("max_model_len" in text and "engcmp launch diff" in text for text in study.pair()["confounds"])


def test_without_a_repeat_a_comparison_says_that_it_has_no_floor(servers: Callable[[int], Servers]) -> None:
    study = servers(1)
    study.start("ours")
    study.start("rival", perturb=0.1)
    succeeded(study, "run", TINY)
    figures = study.pair()["figures"]
    assert figures and all("missing" in floor for one in figures for floor in one["floor"].values())
    for one in figures:
        words = one["verdict"] if one["measure"] != "kl_pair20" else one["sentence"]
        assert "no floor" in words
    for arm in (OURS, RIVAL):
        (check,) = (one for one in study.receipt("captured_rows/pl", arm)["checks"] if one["name"] == "repeats_agree")
        assert check["explanation"] == "Each score path has one run: nothing to compare"


def test_a_pair_that_cannot_be_compared_says_so_with_its_reason_and_the_other_arm_is_measured(
    servers: Callable[[int], Servers],
) -> None:
    """The rival reads texts as another model does (then: cannot score a prompt at all; then: takes fewer tokens than were sent)."""
    study = servers(1)
    study.start("ours")
    rival = study.start("rival")
    for fault, said in (
        ("tokenizer_other", "the engine reads the text as other token ids than the frozen ones"),
        ("prompt_logprobs_missing", "lacks what is declared of it: prompt_logprobs (declared 20, proved 0"),
        (
            {"name": "prompt_truncated", "at": {"prompt_tokens": study.lengths()}},
            "tokens were sent and the server took 8",
        ),
        ("model_name_wrong", "another/model"),
    ):
        rival.script(fault)
        done = study.tiny.run("run", TINY)
        assert done.returncode == 1 and said in done.stderr, done.stderr[-2000:]
        assert study.captured(RIVAL) == [], "nothing is kept of a server that is not what it must be"
    assert study.captured(OURS) != []
    pair = study.pair()
    assert (pair["state"], pair["figures"], pair["confounds"]) == ("not comparable", [], [])
    assert pair["reason"].startswith(f"{RIVAL} was refused: ") and "another/model" in pair["reason"]
    published = study.receipt("publication")
    (arm,) = (one for one in study.summary()["arms"] if one["arm"] == RIVAL)
    assert arm["state"] == "refused" and f"{RIVAL} was refused: {arm['reason']}" == pair["reason"]
    assert re.search(r"another/model.*, \d{4}-\d\d-\d\d \d\d:\d\d UTC$", arm["reason"])
    for name in ("SUMMARY.md", "SUMMARY.html"):
        page = study.output(published, name).read_text(encoding="utf-8")
        assert "refused: " in page and "another/model" in page and "not measured yet" not in page
    shown = " ".join(done.stdout.split())
    assert f"{RIVAL}: refused: " in shown and "another/model" in shown
    verified = study.tiny.run("verify", TINY)
    assert "problems" not in verified.stdout + verified.stderr and verified.returncode == 0, verified.stdout
    told = study.tiny.run("launch", "diff", f"{TINY}/{OURS}", f"{TINY}/{RIVAL}")
    assert told.returncode == 1 and "its last run was refused: " in told.stderr and "another/model" in told.stderr
    (check,) = (one for one in study.receipt("comparisons")["checks"] if one["name"] == "every_pair_compared")
    assert not check["passed"] and pair["reason"] in json.dumps(check["evidence"])
    assert "not comparable" in study.output(study.receipt("publication"), "SUMMARY.md").read_text(encoding="utf-8")
    rival.script()
    succeeded(study, "run", TINY)
    pair = study.pair()
    assert pair["state"] == "compared"
    assert not list((study.tiny.home / "refusals").rglob("*.json")), "an arm that succeeds leaves no refusal"
    # Both serve the same model: what their APIs return of every row is equal, and of the rest of a row nothing is known.
    for figure in (one for one in pair["figures"] if one["measure"] != "kl_pair20"):
        assert (figure["verdict"], figure["bound"]) == ("descriptive", 0.0)
        assert "same 20 most probable tokens" in figure["sentence"]


def test_a_server_that_dies_in_a_capture_costs_one_window_and_the_next_run_goes_on(
    servers: Callable[[int], Servers],
) -> None:
    study = servers(2)
    second = study.lengths()[1]
    assert second != study.lengths()[0]
    dying = study.start("ours", {"name": "dies_in_row", "at": {"row": 3, "prompt_tokens": second}})
    done = study.tiny.run("run", TINY, "--arm", OURS)
    assert done.returncode == 1 and "not started by us" in done.stderr, done.stderr[-2000:]
    assert dying.process.wait(10) == 3 and study.captured(OURS) == []
    again = study.start("ours")
    succeeded(study, "run", TINY, "--arm", OURS)
    table = read_parquet(study.output(study.receipt("captured_rows/pl", OURS), "capture.parquet"))
    starts = set(zip(table["window_id"], table["start"], strict=True))
    assert sorted(start for _, start in starts) == [1, 2], "each window was measured within one start"
    scored = [one["prompt_ids"] for one in again.truth(path="/v1/completions")]
    assert study.lengths()[0] not in map(len, scored), "a window that was whole is not asked for again"
