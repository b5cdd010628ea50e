"""`engcmp freeze` and `engcmp amend`: what was frozen does not change unnoticed, nor without a reason."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from homes import CHECKOUT, STUDY, engcmp

from engcmp_assets.commands.main import main
from engcmp_assets.kernel.study import load_study


@pytest.fixture
def folder(tmp_path: Path, home_copy: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the frozen study, beside a copy of its results."""
    shutil.copytree(CHECKOUT / "protocol", tmp_path / "protocol")
    monkeypatch.setenv("ENGCMP_PROTOCOL", str(tmp_path / "protocol"))
    monkeypatch.setenv("ENGCMP_HOME", str(home_copy))
    return tmp_path / "protocol" / STUDY


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def exit_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return int(str(caught.value.code))


def frozen(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "FROZEN.json").read_bytes())
    return document


def add_limit(folder: Path, text: str = "another limit") -> None:
    with (folder / "protocol.toml").open("a", encoding="utf-8") as file:
        file.write(f'"{text}" = "{text}"\n')


def test_an_unchanged_study_is_frozen_already_and_stays_as_it_is(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = everything(folder)
    assert exit_code("freeze", STUDY) == 0
    said = capsys.readouterr().out
    assert said == f"{STUDY}: frozen already as {frozen(folder)['frozen_sha256']}, nothing has changed since\n"
    assert everything(folder) == before


@pytest.mark.parametrize("name", ["protocol.toml", "texts/code-1.txt", "prompt_set.json"])
def test_a_changed_study_is_not_frozen_again_the_file_and_the_way_are_named(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    with (folder / name).open("a", encoding="utf-8") as file:
        file.write("\n")
    before = everything(folder)
    assert exit_code("freeze", STUDY) == 1
    said = capsys.readouterr().err
    assert f"protocol file {name} was edited after the freeze" in said
    assert f"`engcmp amend {STUDY} --because WHY`" in said
    assert everything(folder) == before


def test_an_amendment_keeps_its_reason_the_changes_and_the_hash_before(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, earlier = frozen(folder)["frozen_sha256"], frozen(folder)["amendments"]
    add_limit(folder)
    text = folder / "texts" / "code-1.txt"
    text.write_text(text.read_text(encoding="utf-8") + "\nprint(1)\n", encoding="utf-8")
    assert exit_code("amend", STUDY, "--because", "a limit was missing") == 0
    new = frozen(folder)
    assert new["frozen_sha256"] != old
    assert new["frozen_sha256"] in capsys.readouterr().out
    *kept, amendment = new["amendments"]
    assert kept == earlier
    assert (amendment["from"], amendment["because"]) == (old, "a limit was missing")
    changed = ("prompt_set.json", "protocol.toml", "texts/code-1.txt", "throughput_plan.json")
    assert amendment["changed"] == [f"protocol file {name} was edited after the freeze" for name in changed]
    load_study(STUDY).require_frozen()
    add_limit(folder, "one more")
    assert exit_code("amend", STUDY, "--because", "one more") == 0
    assert [entry["from"] for entry in frozen(folder)["amendments"]][-2:] == [old, new["frozen_sha256"]]


def test_results_of_the_hash_before_are_told_apart(folder: Path, home_copy: Path) -> None:
    add_limit(folder)
    assert exit_code("amend", STUDY, "--because", "a limit was missing") == 0
    checked = engcmp("verify", STUDY, home=home_copy)
    assert checked.returncode == 1
    for artifact in ("captured_rows/pa", "summaries", "publication"):
        assert f"{artifact} was made under another frozen hash than that of the protocol" in checked.stdout


def test_an_amendment_without_a_reason_is_wrong_usage_and_changes_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = everything(folder)
    assert exit_code("amend", STUDY) == 2
    assert "Missing option '--because'" in capsys.readouterr().err
    assert exit_code("amend", STUDY, "--because", " ") == 2
    assert "--because needs a reason" in capsys.readouterr().err
    assert everything(folder) == before


def test_a_study_that_was_never_frozen_is_frozen_and_not_amended(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, was = everything(folder), frozen(folder)
    (folder / "FROZEN.json").unlink()
    assert exit_code("amend", STUDY, "--because", "why") == 1
    assert f"study {STUDY} was never frozen" in capsys.readouterr().err
    (folder / "prompt_set.json").unlink()
    assert exit_code("freeze", STUDY) == 0
    after, now = everything(folder), frozen(folder)
    for part in ("files", "versions", "conformance"):  # the same texts, the same ids; a first freeze has no amendments
        assert now[part] == was[part]
    assert {name: data for name, data in after.items() if name != "FROZEN.json"} == {
        name: data for name, data in before.items() if name != "FROZEN.json"
    }


def test_two_iterations_of_an_amended_study_are_frozen_anew_one_after_the_other(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "iterations").mkdir()
    for name in ("a", "b"):
        text = f'schema = "engcmp.iteration/1"\nbecause = "{name}"\n[versions.llamacpp.{name}1]\nsource = "llamacpp-b8672"\n'
        (folder / "iterations" / f"{name}.toml").write_text(text, encoding="utf-8")
        assert exit_code("freeze", STUDY, "--iteration", name) == 0
    for reason in ("once", "again"):
        add_limit(folder, reason)
        assert exit_code("amend", STUDY, "--because", reason) == 0
    assert exit_code("freeze", STUDY) == 0
    for name in ("b", "a"):
        assert exit_code("freeze", STUDY, "--iteration", name) == 0
    capsys.readouterr()
    assert [one.name for one in load_study(STUDY).iterations] == ["a", "b"]
    assert exit_code("freeze", STUDY, "--iteration", "a") == 0
    assert "iteration a: frozen already as" in capsys.readouterr().out


def test_an_iteration_that_does_not_fit_is_not_frozen(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "iterations").mkdir()
    text = 'schema = "engcmp.iteration/1"\nbecause = "x"\n[versions.llamacpp.b8672]\nsource = "llamacpp-b8672"\n'
    (folder / "iterations" / "x.toml").write_text(text, encoding="utf-8")
    assert exit_code("freeze", STUDY, "--iteration", "x") == 1
    said = capsys.readouterr().err
    assert "version of llamacpp 'b8672' exists already" in said
    assert str(folder / "iterations" / "x.toml") in said
    assert not (folder / "iterations" / "x.frozen.json").exists()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            'kind = "llamacpp"\n',
            'kind = "llamacp"\n',
            "no engine kind 'llamacp' runs as a process.*engines.llamacpp.kind.*llamacpp",
        ),
        (
            'kind = "llamacpp"\nlabel = "llama.cpp"\nthreads = 2\ncontext_tokens = 512\nbatch_tokens = 512\nmicro_batch_tokens = 512\n',
            'kind = "docker"\nlabel = "x"\nsettings = { api = "llama-server", comand = ["a"] }\n',
            "settings of an engine of kind docker: comand.*engines.llamacpp.settings.*command",
        ),
        (
            'kind = "llamacpp"\nlabel = "llama.cpp"\nthreads = 2\ncontext_tokens = 512\nbatch_tokens = 512\nmicro_batch_tokens = 512\n',
            'kind = "docker"\nlabel = "x"\nsettings = { api = "llama-server", capabilities = { flies = true } }\n',
            "capabilities: .*'flies' is no capability; they are prompt_logprobs, ",
        ),
        (
            'kind = "llamacpp"\nlabel = "llama.cpp"\nthreads = 2\ncontext_tokens = 512\nbatch_tokens = 512\nmicro_batch_tokens = 512\n',
            'kind = "docker"\nlabel = "x"\nsettings = { api = "llama-server", capabilities = { decode_logprobs = "ful" } }\n',
            "decode_logprobs is 'ful'; it can be a number or \"full\"",
        ),
    ],
)
def test_an_engine_that_no_kind_can_start_is_not_frozen(
    folder: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, said: str
) -> None:
    path = folder / "protocol.toml"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    before = everything(folder)
    assert exit_code("amend", STUDY, "--because", "another engine") == 1
    assert re.search(said, capsys.readouterr().err)
    assert everything(folder) == before
