"""A freeze covers every file by its bytes and every measure by its version and its result; any difference is named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engcmp_assets.frozen_protocol.freezing import check_frozen, check_versions, frozen_differences, frozen_document
from engcmp_resources.canonical import sha256_of
from engcmp_resources.errors import EngcmpError

FILES = {"protocol.toml": b"a = 1\n", "texts/one.txt": b"one", "texts/two.txt": b"two"}
VERSIONS = {"measures": {"kl_full": 1, "nll": 2}, "drivers": {"llamacpp": 1}}
VALUES = {"mean kl_full": 0.25, "t high": 1.0 / 3.0}
MADE: dict[str, Any] = {"frozen_at": "2026-11-30T04:00:00.000+00:00", "tools": {"engcmp": "0.1.0"}}
FROZEN = frozen_document("study", FILES, VERSIONS, VALUES, **MADE)


def test_a_freeze_holds_against_what_was_frozen() -> None:
    check_frozen(FILES, FROZEN, where="folder")
    check_versions(FROZEN, VERSIONS, VALUES, where="folder")
    assert list(frozen_differences(FILES, FROZEN)) == []


def test_the_frozen_hash_is_of_all_the_rest() -> None:
    body = {name: value for name, value in FROZEN.items() if name != "frozen_sha256"}
    assert FROZEN["frozen_sha256"] == sha256_of(body)
    others = [
        frozen_document("other", FILES, VERSIONS, VALUES, **MADE),
        frozen_document("study", FILES | {"x": b""}, VERSIONS, VALUES, **MADE),
        frozen_document("study", FILES, VERSIONS | {"drivers": {"llamacpp": 2}}, VALUES, **MADE),
        frozen_document("study", FILES, VERSIONS, VALUES | {"t high": 0.3333}, **MADE),
        frozen_document("study", FILES, VERSIONS, VALUES, **MADE | {"frozen_at": "2026-11-30T04:00:00.001+00:00"}),
        frozen_document("study", FILES, VERSIONS, VALUES, **MADE | {"tools": {"engcmp": "0.1.1"}}),
    ]
    assert len({document["frozen_sha256"] for document in [FROZEN, *others]}) == 7


@given(st.sampled_from(sorted(FILES)), st.integers(0, 10_000))
def test_any_changed_bit_of_a_file_is_named(name: str, bit: int) -> None:
    data = bytearray(FILES[name])
    data[bit // 8 % len(data)] ^= 1 << bit % 8
    files = FILES | {name: bytes(data)}
    with pytest.raises(EngcmpError, match=rf"protocol file {name} was edited after the freeze \(folder/{name}\)"):
        check_frozen(files, FROZEN, where="folder")


def test_a_file_that_was_added_or_is_missing_is_named() -> None:
    with pytest.raises(EngcmpError, match=r"protocol file texts/new\.txt was added after the freeze"):
        check_frozen(FILES | {"texts/new.txt": b""}, FROZEN, where="folder")
    less = {name: data for name, data in FILES.items() if name != "texts/two.txt"}
    with pytest.raises(
        EngcmpError, match=r"protocol file texts/two\.txt is missing.*`engcmp amend study --because WHY`"
    ):
        check_frozen(less, FROZEN, where="folder")


def test_every_difference_is_told_not_the_first_alone() -> None:
    files = {"protocol.toml": b"a = 2\n", "texts/one.txt": b"one", "more": b""}
    assert dict(frozen_differences(files, FROZEN)) == {
        "more": "protocol file more was added after the freeze",
        "protocol.toml": "protocol file protocol.toml was edited after the freeze",
        "texts/two.txt": "protocol file texts/two.txt is missing after the freeze",
    }


@pytest.mark.parametrize(
    "change",
    [
        {"study": "other"}, {"schema": "engcmp.frozen/1"}, {"frozen_at": "2020-01-01T00:00:00+00:00"}, {"tools": {}},
        {"files": {}}, {"versions": {}}, {"conformance": {}},
        {"frozen_sha256": "0" * 64}, {"more": 1},
    ],
)  # fmt: skip
def test_a_changed_freeze_is_named(change: dict[str, Any]) -> None:
    with pytest.raises(EngcmpError, match=r"FROZEN\.json was changed after the freeze \(folder/FROZEN\.json\)"):
        check_frozen(FILES, FROZEN | change, where="folder")


@pytest.mark.parametrize(
    "change",
    [
        {"files": []}, {"files": None}, {"versions": {"measures": []}}, {"versions": 1}, {"conformance": {"x": "no number"}},
        {"conformance": {"x": 1.0}}, {"conformance": {"x": "nan"}}, {"conformance": []}, {"study": None, "more": 1},
        {"frozen_at": "yesterday"}, {"frozen_at": "2026-11-30T04:00:00"}, {"frozen_at": 1}, {"tools": []}, {"amendments": [1]},
    ],
)  # fmt: skip
def test_a_forged_freeze_of_the_wrong_shape_is_refused_though_its_hash_is_right(change: dict[str, Any]) -> None:
    body = {name: value for name, value in FROZEN.items() if name != "frozen_sha256"} | change
    with pytest.raises(EngcmpError, match="FROZEN"):
        check_frozen(FILES, body | {"frozen_sha256": sha256_of(body)}, where="folder")


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_no_document_at_all_passes_for_a_freeze_of_these_files(document: Any) -> None:
    frozen = document if isinstance(document, dict) else {"x": document}
    with pytest.raises(EngcmpError, match="FROZEN"):
        check_frozen(FILES, frozen, where="folder")


def test_a_freeze_of_the_first_form_which_has_no_time_still_holds() -> None:
    body = {name: value for name, value in FROZEN.items() if name not in ("frozen_sha256", "frozen_at", "tools")}
    body["schema"] = "engcmp.frozen/1"
    check_frozen(FILES, body | {"frozen_sha256": sha256_of(body)}, where="folder")
    with pytest.raises(EngcmpError, match="FROZEN"):
        mixed = body | {"tools": {}}
        check_frozen(FILES, mixed | {"frozen_sha256": sha256_of(mixed)}, where="folder")


# ---------------------------------------------------------------- versions and results


def test_a_measure_of_another_version_is_named() -> None:
    versions = {"measures": {"kl_full": 2, "nll": 2}, "drivers": {"llamacpp": 1}}
    with pytest.raises(EngcmpError, match="measures kl_full is version 2 in this code and was frozen as 1"):
        check_versions(FROZEN, versions, VALUES, where="folder")


def test_a_measure_that_this_code_no_longer_has_is_named() -> None:
    versions = {"measures": {"nll": 2}, "drivers": {"llamacpp": 1}}
    with pytest.raises(EngcmpError, match="measures kl_full is not in this code and was frozen as 1"):
        check_versions(FROZEN, versions, VALUES, where="folder")
    with pytest.raises(EngcmpError, match="drivers llamacpp is not in this code"):
        check_versions(FROZEN, {"measures": VERSIONS["measures"]}, VALUES, where="folder")


def test_a_measure_that_was_added_since_is_no_difference() -> None:
    versions = {"measures": {"kl_full": 1, "nll": 2, "new": 1}, "drivers": {"llamacpp": 1}, "checkers": {"x": 1}}
    check_versions(FROZEN, versions, VALUES | {"mean new": 1.0}, where="folder")


def test_a_changed_result_on_the_conformance_vector_is_named_and_the_last_bits_are_not() -> None:
    check_versions(FROZEN, VERSIONS, VALUES | {"t high": 1.0 / 3.0 * (1 + 1e-11)}, where="folder")
    with pytest.raises(EngcmpError, match=r"mean kl_full gives 0\.2500001 on the conformance vector and gave 0\.25"):
        check_versions(FROZEN, VERSIONS, VALUES | {"mean kl_full": 0.2500001}, where="folder")
    with pytest.raises(EngcmpError, match="mean kl_full is not computed on the conformance vector"):
        check_versions(FROZEN, VERSIONS, {"t high": 1.0 / 3.0}, where="folder")
    with pytest.raises(EngcmpError, match="mean kl_full gives nan"):
        check_versions(FROZEN, VERSIONS, VALUES | {"mean kl_full": float("nan")}, where="folder")


def test_the_checkout_s_own_study_is_frozen_as_it_stands() -> None:
    from engcmp_assets.frozen_protocol.conformance import conformance_values, current_versions
    from engcmp_assets.kernel.study import load_study

    study = load_study("smollm2-cpu")
    study.require_frozen()
    check_versions(json.loads(json.dumps(study.frozen)), current_versions(), conformance_values(), where="protocol")
