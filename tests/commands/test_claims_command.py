"""`engcmp claims`: the review's findings as a file of claims, each refused or rewritten by its rule; their sound twins are accepted."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from homes import Q4, STUDY, assert_one_clear_line, change, current_receipt, engcmp_here, output_file

from engcmp_assets.kernel.claims.claims_file import parse_claims
from engcmp_assets.kernel.claims.facts import Facts
from engcmp_assets.kernel.claims.records import Claim
from engcmp_assets.kernel.records import plain
from engcmp_resources.errors import EngcmpError

sys.path.append(str(Path(__file__).parent.parent / "kernel" / "claims"))
from claim_cases import CASES


def entry(one: Claim, number: int) -> dict[str, Any]:
    return one.model_dump(mode="json", exclude_defaults=True) | {"claim_id": f"c{number}"}


def facts_as_json(facts: Facts) -> dict[str, Any]:
    """The facts as a file states them: what is not known is left out."""

    def kept(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: kept(one) for name, one in value.items() if one is not None}
        return [kept(one) for one in value] if isinstance(value, (list, tuple)) else value

    known = None if facts.known is None else sorted(facts.known)
    raw: dict[str, Any] = kept(plain_facts(facts) | {"known": known})
    return raw


def plain_facts(facts: Facts) -> dict[str, Any]:
    parts = {name: getattr(facts, name) for name in Facts.__annotations__ if name != "known"}
    found: dict[str, Any] = {}
    for name, value in parts.items():
        found[name] = _look(value) if name == "look" and value is not None else plain(value)
    return found


def _look(look: Any) -> dict[str, Any]:
    ends = {
        name: None if (one := getattr(look, name)) is None else one.model_dump() for name in ("interval", "deciding")
    }
    rest = {name: plain(getattr(look, name)) for name in type(look).__annotations__ if name not in ends}
    return rest | ends


def write(path: Path, claims: list[Claim], facts: list[Facts]) -> Path:
    document = {
        "claims": [entry(one, number) for number, one in enumerate(claims)],
        "facts": {f"c{number}": facts_as_json(one) for number, one in enumerate(facts)},
    }
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def test_each_of_the_review_s_mistakes_is_refused_or_rewritten_by_its_rule(tmp_path: Path) -> None:
    file = write(tmp_path / "mistaken.json", [case.mistaken for case in CASES], [case.facts for case in CASES])
    done = engcmp_here("claims", str(file), "--json")
    assert done.returncode == 3, done.stderr
    judged = json.loads(done.stdout)["claims"]
    assert len(judged) == len(CASES)
    for one, case in zip(judged, CASES, strict=True):
        assert one["outcome"] in ("rewritten", "refused") and one["by"] == "facts of the file"
        assert case.rule_id in {found["rule"] for found in one["findings"]}, one
        assert all(found["what"] and found["remedy"] for found in one["findings"])
        assert (one["left"] is None) == (one["outcome"] == "refused")


def test_their_sound_twins_are_accepted(tmp_path: Path) -> None:
    file = write(tmp_path / "sound.json", [case.sound for case in CASES], [case.facts_of_twin for case in CASES])
    done = engcmp_here("claims", str(file))
    assert done.returncode == 0, done.stdout
    assert f"{len(CASES)} claims: {len(CASES)} accepted, 0 rewritten, 0 refused" in done.stdout
    assert "which nothing proves" in done.stdout


def test_what_a_rewritten_claim_leaves_is_a_file_that_is_accepted(tmp_path: Path) -> None:
    file = write(tmp_path / "mistaken.json", [case.mistaken for case in CASES], [case.facts for case in CASES])
    judged = json.loads(engcmp_here("claims", str(file), "--json").stdout)["claims"]
    left = [(one["left"]["claim"], CASES[number].facts) for number, one in enumerate(judged) if one["left"]]
    assert left
    again = write(tmp_path / "left.json", [Claim.model_validate(one) for one, _ in left], [facts for _, facts in left])
    assert engcmp_here("claims", str(again)).returncode == 0


def test_a_claim_says_what_it_says_and_what_is_left_of_it(tmp_path: Path) -> None:
    case = next(one for one in CASES if one.rule_id == "ratio-inside-the-band")
    done = engcmp_here("claims", str(write(tmp_path / "one.json", [case.mistaken], [case.facts])))
    said, left = (
        next(line for line in done.stdout.splitlines() if line.startswith(f"  {word}: ")) for word in ("said", "left")
    )
    assert f"`{case.mistaken.verdict}`" in said and "`level`" in left and "noise band" in left
    assert "ratio-inside-the-band (M1)" in done.stdout


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"facts": {"c0": {"lok": {}}}}, "facts.c0.lok"),
        ({"facts": {"c0": {"look": {"estimat": 1.0}}}}, "facts.c0.look.estimat"),
        ({"facts": {"c0": {"look": {"estimate": "much"}}}}, "facts.c0.look.estimate"),
        ({"facts": {"other": {}}}, "facts are stated of other"),
        ({"claims": []}, "claims"),
        ({"stdy": "x"}, "stdy"),
    ],
)
def test_a_bad_file_is_refused_by_its_field(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    file = write(tmp_path / "bad.json", [CASES[0].sound], [CASES[0].facts])
    file.write_text(json.dumps(json.loads(file.read_text()) | change), encoding="utf-8")
    done = engcmp_here("claims", str(file))
    assert done.returncode == 1 and words in done.stderr and "bad.json" in done.stderr


def test_no_file_and_no_results_are_told(tmp_path: Path) -> None:
    assert "no file of claims is named" in engcmp_here("claims").stderr
    file = write(tmp_path / "c.json", [CASES[0].sound], [])
    done = engcmp_here("claims", str(file), ENGCMP_HOME=str(tmp_path / "none"))
    assert done.returncode == 1 and "the claims name no study" in done.stderr
    assert "cannot be read" in engcmp_here("claims", str(tmp_path / "absent.json")).stderr


def test_an_estimate_that_is_no_number_is_refused() -> None:
    text = '[[claims]]\nclaim_id="a"\nstates="difference"\ncandidate="K/x@1"\nmeasure="nll"\nverdict="descriptive"\nestimate=nan\n'
    with pytest.raises(EngcmpError, match=r"claims\.0\.estimate"):
        parse_claims(text.encode(), where="c.toml")


def test_a_folder_or_nothing_in_place_of_the_file_is_told_as_such(tmp_path: Path) -> None:
    for place, words in (
        (tmp_path, "that is a folder, not a file of claims"),
        (tmp_path / "no", "cannot be read: No such file"),
    ):
        done = engcmp_here("claims", str(place))
        assert_one_clear_line(done, words, str(place), "engcmp claims --example")
        assert "protocol" not in done.stderr


@pytest.mark.parametrize(
    ("artifact", "arm", "name"),
    [("captured_rows/pa", Q4, "capture.parquet"), ("summaries", Q4, "summary.json"), ("comparisons", None, "comparisons.json")],
)  # fmt: skip
def test_claims_are_not_held_against_a_file_that_was_changed(
    home_copy: Path, tmp_path: Path, artifact: str, arm: str | None, name: str
) -> None:
    path = output_file(home_copy, current_receipt(home_copy, artifact, arm), name)
    change(path, lambda data: data.replace(b"0", b"1", 1))
    done = engcmp_here("claims", "--example", "--study", STUDY, ENGCMP_HOME=str(home_copy))
    assert_one_clear_line(done, f"{name} of {artifact} is missing or was changed after it was written", str(path))
