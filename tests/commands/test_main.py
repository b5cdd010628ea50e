"""The command line: help with examples, errors as one line, and nothing but our own words for what users can mend."""

from __future__ import annotations

import errno
import re
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import click
import pytest
from homes import CHECKOUT, Q4, STUDY

from engcmp_assets.commands.main import cli, main
from engcmp_resources.errors import EngcmpError

COMMANDS = (
    "export",
    "prompts",
    "fetch",
    "plan",
    "launch",
    "panel",
    "relate",
    "teacher",
    "demo",
    "run",
    "ui",
    "verify",
    "trace",
    "audit",
    "claims",
    "catalog",
    "versions",
    "freeze",
    "amend",
    "reference",
    "score",
    "tails",
    "bar",
    "replies",
    "tools",
    "throughput",
    "gc",
    "push",
    "pull",
    "reap",
)


def exit_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return int(str(caught.value.code))


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_s_help_says_what_it_does_and_shows_an_example(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(command, "--help") == 0
    text = capsys.readouterr().out
    assert f"Example: engcmp {command}" in text
    assert text.index("Usage: ") < text.index("Options:") < text.index("Example:")
    assert "..." not in text.partition("Commands:")[2], "a list of commands says each in full"


@pytest.mark.parametrize("command", COMMANDS)
def test_an_example_is_not_wrapped_however_narrow_the_terminal_is(command: str) -> None:
    found = cli.get_command(click.Context(cli), command)
    assert found is not None and found.epilog is not None
    inner = list(found.commands.values()) if isinstance(found, click.Group) else []
    for one in (found, *inner):
        lines = [line.strip() for line in one.get_help(click.Context(one, terminal_width=40)).splitlines()]
        examples = [line.strip() for line in str(one.epilog).splitlines() if line.strip(" \b")]
        assert examples and set(examples) <= set(lines)


def test_the_help_lists_every_command_and_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--help") == 0
    text = capsys.readouterr().out
    assert "Example: engcmp demo" in text
    context = click.Context(cli)
    assert set(cli.list_commands(context)) == set(COMMANDS)
    for command in COMMANDS:
        (line,) = re.findall(rf"^  {command} +(\S.*)$", text, re.MULTILINE)
        assert line.endswith(".") and "..." not in line  # said in full, on one line of a terminal
    assert max(map(len, text.splitlines())) <= 80


def test_the_help_waits_for_no_command_s_module() -> None:
    code = "import sys; from engcmp_assets.commands.main import main\ntry: main(['--help'])\nfinally: print('dagster' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=CHECKOUT)
    assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["verfy"], "No such command 'verfy'"),
        (["verify"], "Missing argument 'STUDY'"),
        (["run", STUDY, "--arms", Q4], "--arms"),
        (["amend", STUDY], "Missing option '--because'"),
        (["amend", STUDY, "--because", " "], "--because needs a reason"),
        (["reference", STUDY, "--out", "x"], "Missing option '--tokens'"),
        (["export", "--check", "x", "--out", "y"], "--check FOLDER goes alone"),
        (["export", STUDY], "an export needs a study and --out FOLDER"),
    ],
)  # fmt: skip
def test_wrong_usage_exits_with_2_and_says_what_is_wrong(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*arguments) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["verify", "other"], "no study 'other'"),
        (["trace", "other/x"], "no study 'other'"),
        (["freeze", STUDY, "--iteration", "b1"], "no iteration 'b1'"),
        (["freeze", "../smollm2-cpu"], "no study '../smollm2-cpu'"),
        (["run", STUDY, "--arm", "q5_0/llamacpp@b11549"], "study smollm2-cpu has no checkpoint 'q5_0'; it has q4_0, q8_0"),
        (["run", STUDY, "--arm", "q4_0/llamacpp@b1"], "study smollm2-cpu has no version of engine llamacpp 'b1'"),
        (["run", STUDY, "--arm", "q4_0"], "'q4_0' is not an arm"),
        (["run", STUDY, "--arm", Q4, "--arm", "q4_0/x@y"], "study smollm2-cpu has no engine 'x'"),
        (["export", "--check", "nope"], "no such folder (nope); name a folder that `engcmp export STUDY --out FOLDER` wrote"),
        (["export", "--check", str(CHECKOUT)], "not an export: it has no BUNDLE.json"),
    ],
)  # fmt: skip
def test_an_unknown_study_checkpoint_or_arm_is_one_line_before_anything_starts(
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ENGCMP_HOME", str(tmp_path / "home"))
    assert exit_code(*arguments) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith(f"engcmp: {words}")
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert not (tmp_path / "home").exists()


# ---------------------------------------------------------------- errors of others


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException, cause: BaseException | None = None) -> None:
    """`engcmp verify` that ends in `error`."""

    def fail(*_arguments: Any, **_options: Any) -> NoReturn:
        raise error from cause

    monkeypatch.setattr("engcmp_assets.commands.audit.load_study", fail)


@pytest.mark.parametrize(
    ("error", "cause", "words"),
    [
        (EngcmpError("first\nsecond", where="here", remedy="mend it"), None, "first second (here); mend it"),
        (sqlite3.OperationalError("database or disk is full"), None, "the disk is full ("),
        (RuntimeError("sqlalchemy"), sqlite3.OperationalError("database or disk is full"), "the disk is full ("),
        (OSError(errno.ENOSPC, "No space left"), None, "the disk is full ("),
        (RuntimeError("sqlalchemy"), EngcmpError("window a: bad", remedy="capture it again"), "window a: bad; capture it again"),
        (sqlite3.DatabaseError("file is not a database"), None, "Dagster's event log cannot be used: file is not a database"),
    ],
)  # fmt: skip
def test_what_stands_behind_another_library_s_error_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    error: BaseException, cause: BaseException | None, words: str,
) -> None:  # fmt: skip
    raising(monkeypatch, error, cause)
    assert exit_code("verify", STUDY) == 1
    text = capsys.readouterr().err
    assert text.startswith(f"engcmp: {words}")
    assert text.count("\n") == 1


def test_a_fault_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    raising(monkeypatch, KeyError("a fault"))
    with pytest.raises(KeyError, match="a fault"):
        main(["verify", STUDY])


def test_ctrl_c_exits_with_130_and_a_word(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import dagster as dg

    for error in (KeyboardInterrupt(), click.Abort(), dg.DagsterExecutionInterruptedError()):
        raising(monkeypatch, error)
        assert exit_code("verify", STUDY) == 130
        assert capsys.readouterr().err.strip() == "engcmp: stopped; what is complete is kept, start again to continue"


def test_the_module_and_the_script_are_the_same_command() -> None:
    script = Path(sys.executable).with_name("engcmp")
    command = [str(script)] if script.exists() else [sys.executable, "-m", "engcmp_assets.commands"]
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True, cwd=CHECKOUT)
    assert "engcmp" in done.stdout or "version" in done.stdout
