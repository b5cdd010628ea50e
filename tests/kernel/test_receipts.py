"""The three identities of a result, and what counts as a receipt."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engcmp_assets.kernel.receipts import SCHEMA, Input, check_receipt, content_id, part_id, task_key
from engcmp_resources.canonical import sha256_of
from engcmp_resources.errors import EngcmpError

A, B, C = "a" * 64, "b" * 64, "c" * 64


def one_input(**changes: Any) -> Input:
    fields = {
        "artifact": "sources",
        "arm": "q4_0/llamacpp@b1",
        "receipt_sha256": A,
        "content_id": B,
        "uses": None,
        "part_id": B,
    }
    return Input(**(fields | changes))


def one_output(**changes: Any) -> dict[str, Any]:
    fields = {
        "name": "rows.parquet",
        "sha256": A,
        "bytes": 7,
        "suffix": "parquet",
        "role": "data",
        "rows": 3,
        "columns": [],
    }
    return fields | changes


def sound_receipt() -> dict[str, Any]:
    inputs = [one_input()]
    outputs = [one_output(), one_output(name="plot.png", suffix="png", role="view", rows=None)]
    key = task_key("scores", {"score_path": "prefill"}, inputs, {"step": "1"})
    return {
        "schema": SCHEMA, "study": "smollm2-cpu", "frozen_sha256": A, "iterations": [{"name": "b2", "frozen_sha256": B}],
        "artifact": "scores", "arm": "q4_0/llamacpp@b1", "task_key": key,
        "content_id": content_id(key, outputs), "parameters": {"score_path": "prefill"},
        "versions": {"step": "1"},
        "inputs": [
            {"artifact": "sources", "arm": "q4_0/llamacpp@b1", "receipt_sha256": A, "content_id": B, "uses": None, "part_id": B}
        ],
        "outputs": outputs, "code": {}, "environment": {}, "run_id": "r", "started_at": "2026-11-29T14:00:00.000+00:00",
        "finished_at": "2026-11-29T14:00:01.250+00:00",
        "figures": [
            {
                "figure_id": "f", "label": "l", "measure": "nll", "measure_version": 1, "unit": "nats", "panel": "pa",
                "population": "all", "value": 0, "interval": {"missing": "one document"}, "rows": 3, "clusters": 1, "details": {},
            }
        ],
        "checks": [{"name": "row_counts", "passed": True, "explanation": "", "evidence": {}}], "flags": [], "details": {},
        "answered_by": None, "measurement": 1,
    }  # fmt: skip


# ---------------------------------------------------------------- task key


def test_a_task_key_depends_on_artifact_parameters_used_inputs_and_versions() -> None:
    base = task_key("scores", {"p": 1}, [one_input()], {"step": "1"})
    assert base == task_key("scores", {"p": 1}, [one_input()], {"step": "1"})
    others = {
        task_key("tails", {"p": 1}, [one_input()], {"step": "1"}),
        task_key("scores", {"p": 2}, [one_input()], {"step": "1"}),
        task_key("scores", {"p": 1}, [one_input(part_id=C)], {"step": "1"}),
        task_key("scores", {"p": 1}, [], {"step": "1"}),
        task_key("scores", {"p": 1}, [one_input()], {"step": "2"}),
    }
    assert len(others) == 5
    assert base not in others


def test_a_task_key_does_not_depend_on_which_arm_or_receipt_the_same_content_comes_from() -> None:
    one = task_key("scores", {}, [one_input()], {})
    other = task_key("scores", {}, [one_input(arm="q8_0/llamacpp@b1", receipt_sha256=C)], {})
    assert one == other


def test_an_input_of_which_nothing_is_used_is_in_the_chain_but_not_in_the_key() -> None:
    assert task_key("scores", {}, [one_input(uses=())], {}) == task_key("scores", {}, [], {})


# ---------------------------------------------------------------- content id and part id


def test_a_content_id_is_of_the_data_by_name_and_hash_in_any_order_and_not_of_views() -> None:
    rows, spec = one_output(), one_output(name="spec.json", sha256=B)
    base = content_id(A, [rows, spec])
    assert base == content_id(A, [spec, rows, one_output(name="plot.png", role="view", sha256=C)])
    assert base == content_id(A, [rows | {"rows": 99, "bytes": 1}, spec])
    others = {
        content_id(B, [rows, spec]), content_id(A, [rows]), content_id(A, [rows | {"sha256": C}, spec]),
        content_id(A, [rows | {"name": "other"}, spec]),
    }  # fmt: skip
    assert len(others) == 4
    assert base not in others


def test_a_part_is_identified_by_the_outputs_that_are_used() -> None:
    receipt = {
        "artifact": "sources",
        "arm": None,
        "study": "s",
        "content_id": C,
        "outputs": [one_output(), one_output(name="x", sha256=B)],
    }
    assert part_id(receipt, None) == C
    assert part_id(receipt, ["x"]) == sha256_of({"x": B})
    assert part_id(receipt, ["x", "rows.parquet"]) == part_id(receipt, ["rows.parquet", "x"])
    assert part_id(receipt, ["x"]) != part_id(receipt, ["rows.parquet"])


def test_a_part_that_the_receipt_lacks_is_an_error_that_names_it() -> None:
    receipt = {"artifact": "sources", "arm": None, "study": "s", "content_id": C, "outputs": []}
    with pytest.raises(EngcmpError, match=r"artifact sources of s has no output 'q5.gguf'; materialize it again"):
        part_id(receipt, ["q5.gguf"])


# ---------------------------------------------------------------- what counts as a receipt


def test_a_sound_receipt_passes() -> None:
    check_receipt(sound_receipt(), where="here")


@pytest.mark.parametrize("field", sorted(sound_receipt()))
def test_each_field_is_needed_and_of_its_type(field: str) -> None:
    without = sound_receipt()
    del without[field]
    with pytest.raises(EngcmpError, match=rf"{field}: Field required \(here\)"):
        check_receipt(without, where="here")
    other_type = sound_receipt() | {field: object()}
    with pytest.raises(EngcmpError, match=f"not a receipt of {SCHEMA}: {field}"):
        check_receipt(other_type, where="here")


def test_a_field_that_the_schema_does_not_have_is_named() -> None:
    with pytest.raises(EngcmpError, match="note: Extra inputs are not permitted"):
        check_receipt(sound_receipt() | {"note": 1}, where="here")


Edit = Callable[[dict[str, Any]], Any]
WRONG: dict[str, tuple[Edit, str]] = {
    "another schema": (lambda r: r.update(schema="engcmp.receipt/2"), "schema"),
    "an arm that is none": (lambda r: r.update(arm="q4_0"), "arm: Value error, 'q4_0' is not an arm"),
    "a hash that is none": (lambda r: r.update(frozen_sha256="A" * 64), "frozen_sha256"),
    "a path as artifact": (lambda r: r.update(artifact="../x"), "artifact"),
    "a path as output": (lambda r: r["outputs"][0].update(name="rows/../../x"), "outputs.0.name"),
    "a dotted output": (lambda r: r["outputs"][0].update(name=".hidden"), "outputs.0.name"),
    "a path as suffix": (lambda r: r["outputs"][0].update(suffix="json/x"), "outputs.0.suffix"),
    "a negative size": (lambda r: r["outputs"][0].update(bytes=-1), "outputs.0.bytes"),
    "a size as text": (lambda r: r["outputs"][0].update(bytes="7"), "outputs.0.bytes"),
    "true as a number": (lambda r: r.update(measurement=True), "measurement"),
    "no measurement": (lambda r: r.update(measurement=0), "measurement"),
    "another time zone": (lambda r: r.update(finished_at="2026-11-29T14:00:01.250+02:00"), "finished_at"),
    "an iteration without its hash": (lambda r: r.update(iterations=[{"name": "b2"}]), "iterations.0.frozen_sha256"),
    "a figure of no panel": (lambda r: r["figures"][0].pop("panel"), "figures.0.panel"),
    "a value that is neither": (lambda r: r["figures"][0].update(value={"reason": "x"}), "figures.0.value"),
    "an output twice": (lambda r: r["outputs"].append(r["outputs"][0]), "an output stands twice"),
    "an input twice": (lambda r: r["inputs"].append(r["inputs"][0]), "an input stands twice"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_value_is_refused_by_its_field(wrong: str) -> None:
    edit, field = WRONG[wrong]
    receipt = copy.deepcopy(sound_receipt())
    edit(receipt)
    with pytest.raises(EngcmpError, match=field):
        check_receipt(receipt, where="here")


@pytest.mark.parametrize(
    "edit",
    [
        lambda r: r["parameters"].update(score_path="decode"),
        lambda r: r["versions"].update(step="2"),
        lambda r: r["inputs"][0].update(part_id=C),
        lambda r: r["outputs"][0].update(sha256=C),
        lambda r: r["outputs"][1].update(role="data"),
        lambda r: r.update(task_key=C),
        lambda r: r.update(content_id=C),
    ],
)  # fmt: skip
def test_identities_must_follow_from_the_contents(edit: Edit) -> None:
    receipt = copy.deepcopy(sound_receipt())
    edit(receipt)
    with pytest.raises(EngcmpError, match="identities do not follow from its contents"):
        check_receipt(receipt, where="here")


LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()


@settings(max_examples=40)
@given(st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_any_other_document_is_refused_without_any_other_error(document: Any) -> None:
    with pytest.raises(EngcmpError):
        check_receipt(document if isinstance(document, dict) else {"x": document}, where="here")
