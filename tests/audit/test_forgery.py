"""Forgeries in which every hash is right: found because everything that follows from the row files is made again."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from forging import Forger, make_again
from homes import Q4, Q8, STUDY, engcmp, verified

from engcmp_assets.audit.verify import Verification

FIGURE = f"{STUDY}/{Q4}/pa/all/kl_full"


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verify does not compare pictures; drawing them is a third of its time."""
    monkeypatch.setattr("engcmp_assets.kernel.plots.png_of", lambda *_arguments, **_options: b"\x89PNG")


def found_in(result: Verification, name: str) -> list[str]:
    """What verify says of one receipt."""
    return [problem.what for problem in result.problems if problem.file == f"receipts/{name}.json"]


def edited_table(data: bytes, column: str, edit: Callable[[Any], Any]) -> bytes:
    """A Parquet file with one column changed."""
    table = pq.read_table(io.BytesIO(data))
    index = table.column_names.index(column)
    values = edit(table.column(column).to_pylist())
    buffer = io.BytesIO()
    pq.write_table(table.set_column(index, table.field(index), pa.array(values, type=table.field(index).type)), buffer)
    return buffer.getvalue()


def better(document: Any) -> None:
    """The figure of q4_0 made to look a third smaller, wherever it stands."""
    if isinstance(document, dict):
        if document.get("figure_id") == FIGURE:
            document["value"] *= 0.66
        for value in document.values():
            better(value)
    elif isinstance(document, list):
        for value in document:
            better(value)


def test_rehashing_what_was_not_changed_still_verifies(home_copy: Path) -> None:
    """The forger himself is sound: what is found below is found in what he changes."""
    Forger(home_copy).finish()
    assert verified(home_copy).problems == ()


def test_a_changed_figure_with_all_receipts_above_it_rehashed_is_found(home_copy: Path) -> None:
    forger = Forger(home_copy)
    for key in (("summaries", Q4), ("publication", None)):
        better(forger.receipts[key]["figures"])
    forger.edit_json("summaries", Q4, "summary.json", better)
    forger.edit_json("publication", None, "SUMMARY.json", better)
    names = forger.finish()
    done = engcmp("verify", STUDY, home=home_copy)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    name = f"receipts/{names[('summaries', Q4)]}.json"
    assert f"FAILED {name}: summaries of {Q4}: summary.json.figures[0].value: recomputed" in done.stdout
    assert f"FAILED {name}: summaries of {Q4}: the receipt's figures[0].value: recomputed" in done.stdout


def test_forged_scored_rows_are_found_though_all_that_follows_was_made_from_them(home_copy: Path) -> None:
    forger = Forger(home_copy)
    rows = forger.read("scores", Q4, "rows-pa.parquet")
    forger.put("scores", Q4, "rows-pa.parquet", edited_table(rows, "kl_full", lambda values: [v * 0.5 for v in values]))
    forger.finish()
    make_again(home_copy, ("tails", Q4), ("summaries", Q4), ("comparisons", None), ("publication", None))
    last = Forger(home_copy)  # with the traces of the true results removed
    names = last.finish()
    result = verified(home_copy)
    assert len(result.problems) == 1
    assert "rows-pa.parquet: column kl_full, line 0: recomputed" in found_in(result, names[("scores", Q4)])[0]


CHANGED_TABLES: list[tuple[str, str | None, str, str, Callable[[list[Any]], list[Any]]]] = [
    ("captured_rows/pa", Q4, "capture.parquet", "raw_row_sha256", lambda v: ["0" * 64, *v[1:]]),
    ("captured_rows/pa", Q8, "capture.parquet", "position", lambda v: [v[0] + 1, *v[1:]]),
    ("reference_rows", Q8, "reference.parquet", "reference_nll", lambda v: [v[0] + 0.1, *v[1:]]),
    ("prompt_set", Q4, "windows.parquet", "tokens", lambda v: [v[0] + 1, *v[1:]]),
    ("frozen_protocol", None, "files.parquet", "bytes", lambda v: [v[0] + 1, *v[1:]]),
    ("tails", Q4, "tails.parquet", "max_nats", lambda v: [v[0] / 2, *v[1:]]),
    ("summaries", Q8, "figures.parquet", "low", lambda v: [v[0] - 0.001, *v[1:]]),
    ("comparisons", None, "differences.parquet", "verdict", lambda v: ["bit-identical", *v[1:]]),
    ("engine_launch/scoring", Q4, "starts.parquet", "n_ctx", lambda v: [v[0] + 1, *v[1:]]),
    ("scores", Q8, "rows-pa.parquet", "raw_row_sha256", lambda v: ["0" * 64, *v[1:]]),
]


def test_a_changed_value_in_any_table_is_found(home_copy: Path) -> None:
    forger = Forger(home_copy)
    for artifact, arm, output, column, edit in CHANGED_TABLES:
        forger.put(artifact, arm, output, edited_table(forger.read(artifact, arm, output), column, edit))
    names = forger.finish()
    result = verified(home_copy)
    for artifact, arm, output, column, _ in CHANGED_TABLES:
        found = found_in(result, names[(artifact, arm)])
        told = any(output in what and f": column {column}, line 0" in what for what in found)
        # Comparisons read the forged capture table too, and cannot be made from it at all.
        assert told or any("cannot be made again" in what for what in found), found


def test_repeats_that_are_said_to_be_of_two_starts_are_found(home_copy: Path) -> None:
    """So no torn repeat can be planted in a study that verifies; the finder of them is tested on a made table."""
    forger, place = Forger(home_copy), ("captured_rows/pa", Q4)
    data = forger.read(*place, "capture.parquet")
    runs = pq.read_table(io.BytesIO(data)).column("run").to_pylist()

    def torn(starts: list[int]) -> list[int]:
        return [2 if run == "1.2" else start for run, start in zip(runs, starts, strict=True)]

    forger.put(*place, "capture.parquet", edited_table(data, "start", torn))
    names = forger.finish()
    found = found_in(verified(home_copy), names[place])
    assert any(
        "rows of start 2 (launch 1, prefill), which the launch of this capture does not have" in one for one in found
    )


def test_changed_documents_are_found(home_copy: Path) -> None:
    forger = Forger(home_copy)

    def worst(document: Any) -> None:
        document["panels"]["pa"]["overall"]["max_nats"] /= 2

    def verdict(document: Any) -> None:
        document["pairs"][0]["figures"][0]["verdict"] = "bit-identical"

    def limits(document: Any) -> None:
        document["limits"] = []

    def tokens(document: Any) -> None:
        document["windows"][0]["tokens"][0] += 1

    edits = {
        ("tails", Q4, "tails.json"): worst, ("comparisons", None, "comparisons.json"): verdict,
        ("publication", None, "SUMMARY.json"): limits, ("prompt_set", Q8, "pa.json"): tokens,
        ("engine_launch/scoring", Q8, "spec.json"): lambda document: document.update(threads=8),
        ("frozen_protocol", None, "FROZEN.json"): lambda document: document.update(study="other"),
    }  # fmt: skip
    for (artifact, arm, output), edit in edits.items():
        forger.edit_json(artifact, arm, output, edit)
    names = forger.finish()
    result = verified(home_copy)
    for artifact, arm, output in edits:
        assert any(output in what for what in found_in(result, names[(artifact, arm)])), output


def test_a_number_changed_in_a_page_alone_is_found(home_copy: Path) -> None:
    forger = Forger(home_copy)
    figure = next(f for f in forger.receipts[("publication", None)]["figures"] if f["figure_id"] == FIGURE)
    shown = f"{figure['value']:.4f}"
    for page in ("SUMMARY.md", "SUMMARY.html"):
        text = forger.read("publication", None, page).decode()
        assert shown in text
        forger.put("publication", None, page, text.replace(shown, "0.0001").encode())
    name = forger.finish()[("publication", None)]
    found = found_in(verified(home_copy), name)
    assert [what.split(": ")[1] for what in found] == ["SUMMARY.md", "SUMMARY.html"]


def test_a_repeat_that_was_left_out_is_found(home_copy: Path) -> None:
    """Fewer runs than the protocol plans, consistently: in the outputs and in the table of the capture."""
    forger = Forger(home_copy)
    receipt = forger.receipts[("captured_rows/pa", Q4)]
    receipt["outputs"] = [output for output in receipt["outputs"] if not output["name"].startswith("rows/2.2/")]
    table = pq.read_table(io.BytesIO(forger.read("captured_rows/pa", Q4, "capture.parquet")))
    kept = table.filter(pa.array(np.asarray(table.column("run").to_pylist()) != "2.2"))
    buffer = io.BytesIO()
    pq.write_table(kept, buffer)
    forger.put("captured_rows/pa", Q4, "capture.parquet", buffer.getvalue())
    name = forger.finish()[("captured_rows/pa", Q4)]
    assert found_in(verified(home_copy), name)


def test_another_checkpoint_or_library_than_the_pinned_one_is_found(home_copy: Path) -> None:
    forger = Forger(home_copy)
    outputs = {output["name"]: output for output in forger.receipts[("sources", Q4)]["outputs"]}
    for name in ("sha256", "bytes"):
        outputs["q4_0.gguf"][name] = outputs["q8_0.gguf"][name]
    name = forger.finish()[("sources", Q4)]
    found = found_in(verified(home_copy), name)
    assert any("has q4_0.gguf as fe19b98b2f2a, which the protocol does not pin" in what for what in found)


Claims = list[tuple[str, str | None, Callable[[dict[str, Any]], Any], str]]
AGAINST_THE_PROTOCOL: Claims = [
    ("summaries", Q4, lambda r: r["parameters"]["statistics"].update(replicates=201), "other parameters"),
    ("scores", Q8, lambda r: r["versions"]["measures"].update(kl_full=9), "other versions"),
    ("scores", Q4, lambda r: r["inputs"].pop(2), "does not take in reference_rows"),
    ("publication", None, lambda r: r["inputs"].pop(1), f"does not take in summaries of {Q8}"),
    ("captured_rows/pa", Q4, lambda r: r["inputs"][1].update(uses=[]), "does not take in prompt_set"),
    ("tails", Q4, lambda r: r["inputs"].pop(0), "does not take in frozen_protocol of the study"),
    (
        "tails",
        Q8,
        lambda r: r["inputs"].append({**r["inputs"][0], "artifact": "sources", "arm": Q4}),
        "does not take in sources",
    ),
]
AGAINST_THE_FREEZE: Claims = [
    ("reference_rows", Q4, lambda r: r.update(frozen_sha256="0" * 64), "another frozen hash"),
    (
        "captured_rows/pb",
        Q4,
        lambda r: None,
        "does not lead to the frozen protocol through inputs of the same frozen hash",
    ),
]
AGAINST_ITS_ROWS: Claims = [
    ("tails", Q4, lambda r: r["checks"][0].update(passed=False), "checks.row_counts"),
    ("scores", Q4, lambda r: r.update(flags=["alignment undetermined"]), "flags"),
    ("summaries", Q4, lambda r: r["figures"].pop(), "figures"),
    ("scores", Q8, lambda r: r["outputs"][0].update(rows=7), "rows-pa.parquet is another kind of output"),
    ("publication", None, lambda r: r["outputs"].pop(), "outputs site/version.html are missing or too many"),
]


@pytest.mark.parametrize(
    "claims", [AGAINST_THE_PROTOCOL, AGAINST_THE_FREEZE, AGAINST_ITS_ROWS], ids=["protocol", "freeze", "rows"]
)
def test_a_receipt_that_claims_something_else_than_its_evidence_is_found(home_copy: Path, claims: Claims) -> None:
    forger = Forger(home_copy)
    for artifact, arm, edit, _ in claims:
        edit(forger.receipts[(artifact, arm)])
    names = forger.finish()
    result = verified(home_copy)
    for artifact, arm, _, words in claims:
        found = found_in(result, names[(artifact, arm)])
        assert any(words in what for what in found), (words, found)


def test_a_size_that_is_not_the_file_s_is_found(home_copy: Path) -> None:
    forger = Forger(home_copy)
    output = forger.receipts[("scores", Q4)]["outputs"][0]
    output["bytes"] += 1
    forger.finish()
    assert f"store/{output['sha256'][:2]}/{output['sha256']}.{output['suffix']}" in {
        problem.file for problem in verified(home_copy).problems
    }


def test_an_arm_s_results_under_another_arm_s_name_are_found(home_copy: Path) -> None:
    """Every receipt of q8_0 renamed to be of q4_0, from its sources to its summary."""
    forger = Forger(home_copy)
    for (artifact, arm), receipt in list(forger.receipts.items()):
        if arm != Q8:
            continue
        other = json.loads(json.dumps(receipt).replace(Q8, Q4))
        for output in other["outputs"]:
            if output["suffix"] == "json":
                text = forger.read(artifact, arm, output["name"]).decode().replace(Q8, Q4)
                blob = forger.store.put_bytes(text.encode(), "json")
                output["sha256"], output["bytes"] = blob.sha256, blob.bytes
        forger.receipts[(artifact, Q4)] = other
    names = forger.finish()
    result = verified(home_copy)
    assert found_in(result, names[("engine_launch/scoring", Q4)])
    assert found_in(result, names[("summaries", Q4)])


def test_an_answer_that_differs_from_the_receipt_that_did_the_work_is_found(home_copy: Path) -> None:
    forger = Forger(home_copy)
    made, answered = forger.receipts[("tails", Q8)], forger.receipts[("tails", Q4)]
    names = forger.finish()
    answered["answered_by"] = names[("tails", Q8)]
    assert made["outputs"] != answered["outputs"]
    keep = (home_copy / "receipts" / f"{names[('tails', Q8)]}.json").read_bytes()
    names = forger.finish()
    (home_copy / "receipts" / f"{names[('tails', Q8)]}.json").write_bytes(keep)
    found = found_in(verified(home_copy), names[("tails", Q4)])
    assert any("was answered from another receipt, and differs from it" in what for what in found), found
