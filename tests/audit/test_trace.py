"""`engcmp trace`: every published figure leads, receipt by receipt, to the frozen hash."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from homes import (
    Q4,
    Q8,
    STUDY,
    Here,
    assert_one_clear_line,
    change,
    current_receipt,
    everything,
    flipped,
    output_file,
    replace_file,
)

from engcmp_assets.audit.recompute import Evidence
from engcmp_assets.audit.trace import figures_of, trace, trace_text
from engcmp_assets.kernel.study import Study
from engcmp_resources.errors import EngcmpError


def published_ids(home: Path) -> set[str]:
    """Ids of all figures in SUMMARY.json (arms, comparisons, and their speeds), and of every other speed of a cell."""
    summary = json.loads(output_file(home, current_receipt(home, "publication"), "SUMMARY.json").read_bytes())
    owners = [*summary["arms"], *summary["comparisons"]]
    speeds = [pair["speed"] for pair in summary["comparisons"] if "speed" in pair]
    speeds += [cell for arm in summary["arms"] for cell in arm["speed"]]
    speeds += [current_receipt(home, "throughput_cells", arm["arm"]) for arm in summary["arms"]]
    return {figure["figure_id"] for owner in (*owners, *speeds) for figure in owner["figures"]}


def test_every_published_figure_can_be_traced_and_ends_in_the_frozen_hash(measured_home: Path, study: Study) -> None:
    store = Evidence(measured_home)
    ids = published_ids(measured_home)
    assert len(ids) > 100
    assert set(figures_of(store, study)) == ids
    for figure_id in sorted(ids):
        found = trace(store, study, figure_id)
        assert found.figure["figure_id"] == figure_id
        assert found.frozen_sha256 == study.frozen_sha256
        assert found.links[-1].artifact == "frozen_protocol" or "frozen_protocol" in {x.artifact for x in found.links}
        assert trace_text(store, found).endswith(f"frozen hash {study.frozen_sha256}")


def test_an_arm_s_figure_passes_through_its_own_rows_launch_and_sources(measured_home: Path, study: Study) -> None:
    found = trace(Evidence(measured_home), study, f"{STUDY}/{Q4}/pa/all/kl_full")
    artifacts = [link.artifact for link in found.links]
    assert artifacts[0] == "summaries"
    assert set(artifacts) == {
        "summaries", "tails", "scores", "captured_rows/pa", "captured_rows/pb", "captured_rows/pd",
        "engine_launch/scoring", "throughput_cells", "throughput_events", "engine_launch/serving",
        "reference_rows", "prompt_set", "sources",
        "frozen_protocol",
    }  # fmt: skip
    assert len(artifacts) == len(set(artifacts))
    assert {link.arm for link in found.links} == {Q4, None}


def test_a_difference_passes_through_both_arms(measured_home: Path, study: Study) -> None:
    found = trace(Evidence(measured_home), study, f"{STUDY}/pair/q4_0-vs-q8_0/pa/all/kl_full")
    assert found.links[0].artifact == "comparisons"
    assert {link.arm for link in found.links if link.artifact == "scores"} >= {Q4, Q8}


def test_the_trace_names_the_value_its_measure_and_every_file(home_copy: Path, here: Here, study: Study) -> None:
    shutil.rmtree(home_copy / "dagster")
    before = everything(home_copy)
    figure_id = f"{STUDY}/{Q8}/pa/all/nll"
    done = here("trace", figure_id, home=home_copy)
    assert done.returncode == 0
    figure = next(f for f in current_receipt(home_copy, "summaries", Q8)["figures"] if f["figure_id"] == figure_id)
    lines = done.stdout.splitlines()
    assert lines[0] == figure_id
    assert f"{figure['value']:.4g}"[:4] in lines[1]
    assert "95% interval" in lines[1]
    assert "24 rows, 4 documents; nll version 1: " in lines[2]
    assert lines[-1] == f"frozen hash {study.frozen_sha256}"
    for name in ("receipts/", "store/"):
        for line in lines:
            if name in line:
                assert (home_copy / line[line.index(name) :].split(",")[0].strip()).is_file(), line
    assert everything(home_copy) == before


def test_json_holds_the_figure_and_its_links(measured_home: Path, here: Here, study: Study) -> None:
    done = here("trace", f"{STUDY}/{Q4}/pa/all/top1", "--json", home=measured_home)
    document = json.loads(done.stdout)
    assert document["frozen_sha256"] == study.frozen_sha256
    assert document["figure"]["measure"] == "top1"
    assert document["links"][0]["artifact"] == "summaries"
    assert {"depth", "artifact", "arm", "receipt_sha256", "content_id", "outputs"} == set(document["links"][0])
    paths = [page["path"].removeprefix("/assets/smollm2_cpu/").split("?")[0] for page in document["pages"]]
    assert paths == ["publication", "summaries", "frozen_protocol"]  # one click shows the chain, one more opens either


def test_a_pair_s_figure_whose_arms_cannot_be_read_is_an_error_that_names_the_file(
    home_copy: Path, study: Study
) -> None:
    path = output_file(home_copy, current_receipt(home_copy, "comparisons"), "comparisons.json")
    replace_file(path, path.read_bytes() + b" ")
    with pytest.raises(EngcmpError, match=str(path)):
        trace(Evidence(home_copy), study, f"{STUDY}/pair/q4_0-vs-q8_0/pa/all/kl_full")


def test_a_file_of_the_chain_whose_bytes_do_not_fit_its_name_is_named_and_no_trace_is_printed(
    home_copy: Path, here: Here
) -> None:
    path = output_file(home_copy, current_receipt(home_copy, "scores", Q4), "rows-pa.parquet")
    change(path, flipped(1000))
    done = here("trace", f"{STUDY}/{Q4}/pa/all/kl_full", home=home_copy)
    assert_one_clear_line(
        done, "rows-pa.parquet of scores is missing or was changed", str(path), f"`engcmp verify {STUDY}`"
    )
    assert done.stdout == ""
    assert here("trace", f"{STUDY}/{Q8}/pa/all/kl_full", home=home_copy).returncode == 0, "another arm's chain is whole"


def test_list_gives_every_id_and_nothing_else(measured_home: Path, here: Here) -> None:
    done = here("trace", "--list", STUDY, home=measured_home)
    assert set(done.stdout.splitlines()) == published_ids(measured_home)
    assert set(json.loads(here("trace", "--list", STUDY, "--json", home=measured_home).stdout)) == published_ids(
        measured_home
    )


def test_a_list_of_nothing_is_an_error_that_says_what_to_do(measured_home: Path, tmp_path: Path, here: Here) -> None:
    begun = f"{STUDY}/{Q4}"
    done = here("trace", "--list", begun, home=measured_home)
    assert done.stdout and all(line.startswith(f"{begun}/") for line in done.stdout.splitlines())
    for words in (f"{STUDY}/q4", f"{begun}/nothing"):
        refused = here("trace", "--list", words, home=measured_home)
        assert_one_clear_line(refused, f"no figure whose id begins with {words}", f"`engcmp trace --list {STUDY}`")
    (tmp_path / "heads").mkdir()
    assert_one_clear_line(
        here("trace", "--list", STUDY, home=tmp_path), f"no figure of {STUDY}", f"`engcmp run {STUDY}`"
    )
    assert_one_clear_line(here("trace", "--list", "nope", home=measured_home), "no study 'nope'", "the studies are")


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        (f"{STUDY}/{Q4}/pa/all/kl_ful", f"{STUDY}/{Q4}/pa/all/kl_full"),
        (f"{STUDY}/{Q4}/pa/all", f"{STUDY}/{Q4}/pa/all/nll"),
        (f"{STUDY}/q8_0/pa/block:code/top1", f"{STUDY}/{Q8}/pa/block:code/top1"),
        (f"{STUDY}/pair/q4_0-q8_0/pa/all/nll", f"{STUDY}/pair/q4_0-vs-q8_0/pa/all/nll"),
    ],
)  # fmt: skip
def test_an_unknown_figure_gets_the_closest_ids(measured_home: Path, study: Study, asked: str, meant: str) -> None:
    with pytest.raises(EngcmpError) as caught:
        trace(Evidence(measured_home), study, asked)
    assert re.search(rf"no figure {re.escape(repr(asked))} among \d+ ", str(caught.value))
    assert meant in str(caught.value)
    assert f"`engcmp trace --list {STUDY}` lists all" in str(caught.value)


def test_an_unknown_study_and_an_empty_home_are_one_clear_line(measured_home: Path, tmp_path: Path, here: Here) -> None:
    done = here("trace", "kl_full", home=measured_home)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("engcmp: no study 'kl_full'")
    assert STUDY in done.stderr
    done = here("trace", f"{STUDY}/{Q4}/pa/all/kl_full", home=tmp_path / "nothing")
    assert done.returncode == 1
    assert done.stderr.startswith("engcmp: no results here")
    assert not (tmp_path / "nothing").exists()


def test_a_damaged_receipt_in_the_chain_is_named(home_copy: Path, study: Study) -> None:
    sha256 = next(item["receipt_sha256"] for item in current_receipt(home_copy, "scores", Q4)["inputs"])
    path = home_copy / "receipts" / f"{sha256}.json"
    replace_file(path, path.read_bytes()[:-1])
    with pytest.raises(EngcmpError, match=str(path)):
        trace(Evidence(home_copy), study, f"{STUDY}/{Q4}/pa/all/kl_full")
