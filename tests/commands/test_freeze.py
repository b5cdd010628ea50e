"""`engcmp freeze` and `engcmp amend`: what was frozen does not change unnoticed, nor without a reason."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from homes import CHECKOUT, STUDY, engcmp_here

from engcmp_assets.commands.instance import open_instance
from engcmp_assets.commands.main import main
from engcmp_assets.commands.run import run_job
from engcmp_assets.frozen_protocol import conformance
from engcmp_assets.frozen_protocol.standing import require_standing
from engcmp_assets.graph import definitions
from engcmp_assets.kernel.study import load_study
from engcmp_resources.errors import EngcmpError
from engcmp_resources.old_files import keep_files
from engcmp_resources.places import home_folder


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
    checked = engcmp_here("verify", STUDY, ENGCMP_HOME=str(home_copy))
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


# ---------------------------------------------------------------- what an amendment records


def last(folder: Path) -> dict[str, Any]:
    entry: dict[str, Any] = frozen(folder)["amendments"][-1]
    return entry


def test_an_amendment_keeps_the_old_text_by_its_frozen_hash(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, before = frozen(folder)["files"], (folder / "protocol.toml").read_bytes()
    keep_files(home_folder() / "protocols", load_study(STUDY).files)
    add_limit(folder)
    (folder / "note.txt").write_text("a note", encoding="utf-8")
    assert exit_code("amend", STUDY, "--because", "a limit was missing") == 0
    number = len(frozen(folder)["amendments"])
    where = f"amendments/{number}/protocol.toml"
    assert last(folder)["kept"] == {"protocol.toml": {"sha256": first["protocol.toml"], "as": where}}
    assert (folder / where).read_bytes() == before and frozen(folder)["files"][where] == first["protocol.toml"]
    (folder / where).write_bytes(before + b"# edited")
    with pytest.raises(EngcmpError, match=f"protocol file {where} was edited after the freeze"):
        load_study(STUDY).require_frozen()
    (folder / where).write_bytes(before)
    (folder / "note.txt").unlink()
    assert exit_code("amend", STUDY, "--because", "no note after all") == 0
    kept = last(folder)["kept"]["note.txt"]
    assert (folder / kept["as"]).read_text(encoding="utf-8") == "a note", "a freeze keeps what it froze"


def test_an_old_text_is_found_in_the_history_of_git_or_its_loss_is_told(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_limit(folder)
    assert exit_code("amend", STUDY, "--because", "never committed") == 0
    assert last(folder)["kept"]["protocol.toml"]["missing"] == "the old text was found nowhere"
    assert last(folder)["reading"]["rule"] == "exploratory", "what is not known is not taken to be the same"
    assert "The old text of protocol.toml was found nowhere" in capsys.readouterr().out
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@t.invalid", "-C", str(folder.parent)]
    committed = (folder / "protocol.toml").read_bytes()
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "frozen"]):
        subprocess.run([*git, *arguments], check=True, capture_output=True)
    shutil.rmtree(home_folder() / "protocols")
    add_limit(folder, "one more")
    subprocess.run([*git, "commit", "-q", "-am", "edited"], check=True, capture_output=True)
    assert exit_code("amend", STUDY, "--because", "a limit more") == 0
    assert (folder / last(folder)["kept"]["protocol.toml"]["as"]).read_bytes() == committed


def test_an_amendment_lists_the_data_that_there_were_and_says_how_they_are_read(
    folder: Path, home_copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep_files(home_folder() / "protocols", load_study(STUDY).files)
    add_limit(folder)
    assert exit_code("amend", STUDY, "--because", "a limit", "--reading", "as before, it is a remark") == 0
    data = {(one["arm"], one["artifact"]): one for one in last(folder)["data"]}
    assert {artifact for arm, artifact in data if arm == "q4_0/llamacpp@b11549"} == {
        "captured_rows/pa", "captured_rows/pb", "captured_rows/pd", "throughput_events",
    }  # fmt: skip
    assert {("_study", "comparisons"), ("_study", "publication")} <= set(data)
    assert all((home_copy / "receipts" / f"{one['receipt_sha256']}.json").is_file() for one in data.values())
    reading = last(folder)["reading"]
    assert (reading["rule"], reading["own"]) == ("unchanged", "as before, it is a remark")
    text = (folder / "protocol.toml").read_text(encoding="utf-8")
    assert "replicates = 20000" in text
    (folder / "protocol.toml").write_text(text.replace("replicates = 20000", "replicates = 30000"), encoding="utf-8")
    assert exit_code("amend", STUDY, "--because", "more resamples") == 0
    assert last(folder)["reading"]["rule"] == "exploratory"
    assert "read as exploratory and never as a primary result" in capsys.readouterr().out


def test_a_freeze_says_when_it_was_made_and_by_what(folder: Path) -> None:
    add_limit(folder)
    assert exit_code("amend", STUDY, "--because", "a limit") == 0
    made = frozen(folder)
    assert made["frozen_at"] == last(folder)["amended_at"] and {"engcmp", "python", "numpy", "scipy"} <= set(
        made["tools"]
    )


# ---------------------------------------------------------------- no asset runs on anything else


@pytest.mark.parametrize(
    ("table", "name", "said"),
    [
        (conformance.CHECKERS, "tails", "checkers tails is version 2 in this code and was frozen as 1"),
        (conformance.DRIVERS, "llamacpp-prefill", "drivers llamacpp-prefill is version 2 in this code"),
    ],
)
def test_a_driver_or_checker_of_another_version_stops_every_asset_also_where_the_proof_is_in_the_store(
    folder: Path, monkeypatch: pytest.MonkeyPatch, table: dict[str, int], name: str, said: str
) -> None:
    require_standing(load_study(STUDY))
    monkeypatch.setitem(table, name, 2)
    definition = definitions()
    with open_instance() as instance, pytest.raises(EngcmpError, match=said):
        run_job(definition, "smollm2_cpu_analysis", instance, partition="q4_0/llamacpp@b11549")


@pytest.mark.parametrize("damaged", ["{", "[]", '{"frozen_sha256":5}', "{}"])
@pytest.mark.parametrize("command", [("freeze", STUDY), ("amend", STUDY, "--because", "a reason")])
def test_a_damaged_freeze_is_named_and_neither_stands_nor_is_amended(
    command: tuple[str, ...], damaged: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "FROZEN.json").write_text(damaged, encoding="utf-8")
    before = everything(folder)
    assert exit_code(*command) == 1
    said = capsys.readouterr().err
    assert "FROZEN.json was changed after the freeze" in said and "git checkout FROZEN.json" in said
    assert "amend" not in said and everything(folder) == before


def test_a_copy_never_lands_among_the_protocols(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place in (folder / "copy", folder.parent / "copied-study"):
        assert exit_code("freeze", STUDY, "--copy", str(place)) == 1
        assert "lies among the protocols" in capsys.readouterr().err and not place.exists()
    assert exit_code("freeze", STUDY, "--placeholder", "NAME=text") == 2
    assert "--placeholder goes with --copy" in capsys.readouterr().err
