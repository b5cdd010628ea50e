"""Runs the suite once against a server: in a folder of its own, for it writes beside itself, and with a clean environment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engcmp_resources.errors import EngcmpError
from engcmp_resources.tool_eval.installation import COMMAND, SCENARIO_IDS, SuiteTool, clean_environment

RESULT, LOG = "result.json", "events.jsonl"
_TAIL = 400


@dataclass(frozen=True, slots=True)
class SuiteSettings:
    """How the suite asks. `seed` goes unchanged into every request of a run, so each repeat needs one of its own.

    `concurrency` is scenarios at once; `max_tokens` is for each turn; `gap_s` bounds the pause between two tokens, not a reply.
    """

    seed: int
    concurrency: int = 1
    temperature: float = 0.0
    max_tokens: int = 16_384
    max_turns: int = 8
    thinking: bool = True
    gap_s: float = 120.0
    scenario_ids: tuple[str, ...] = SCENARIO_IDS


def run_suite(
    tool: SuiteTool,
    url: str,
    model: str,
    settings: SuiteSettings,
    folder: Path,
    *,
    timeout_s: float,
    api_key: str | None = None,
    heard: Callable[[Mapping[str, Any]], None] = lambda event: None,
) -> Path:
    """One run, with its result file (`result.json` of `folder`). `heard` is told each event, for example `scenario_result`.

    Raises EngcmpError for a folder that holds something, a run that fails, and one that takes longer than `timeout_s`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise EngcmpError("the folder is not empty", where=str(folder), remedy="give each run a folder of its own")
    (folder / ".env").touch()  # else the suite reads the .env of a folder above
    home = folder / "home"
    home.mkdir()
    secret = {} if api_key is None else {"TOOL_EVAL_API_KEY": api_key}
    process = subprocess.Popen(
        suite_command(tool, url, model, settings),
        cwd=folder,
        env=clean_environment(tool.command, HOME=str(home), **secret),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    late = threading.Event()

    def give_up() -> None:
        late.set()
        _end(process)

    timer = threading.Timer(timeout_s, give_up)
    timer.start()
    try:
        _listen(process, folder / LOG, heard)
        code = process.wait()
    finally:
        timer.cancel()
        _end(process)
        process.wait()
    said = (folder / LOG).read_text(encoding="utf-8")
    if late.is_set():
        raise EngcmpError(f"{COMMAND} took longer than {timeout_s:g} s", where=str(folder), remedy="allow more time")
    if code != 0 or not (folder / RESULT).is_file():
        raise EngcmpError(
            f"{COMMAND} ended with {code} and {'a' if (folder / RESULT).is_file() else 'no'} result: {said.strip()[-_TAIL:]}",
            where=str(folder / LOG),
            remedy="check that the server answers chats with tools, then run again in a new folder",
        )
    return folder / RESULT


def suite_command(tool: SuiteTool, url: str, model: str, settings: SuiteSettings) -> Sequence[str]:
    """The command line: explicit scenario ids, no probing of the server, one trial."""
    return [
        str(tool.command), "run", "--base-url", url, "--model", model, "--scenarios", *settings.scenario_ids,
        "--seed", str(settings.seed), "--parallel", str(settings.concurrency), "--temperature", repr(settings.temperature),
        "--max-turns", str(settings.max_turns), "--timeout", repr(settings.gap_s),
        "--backend-kwargs", json.dumps({"max_tokens": settings.max_tokens}), *([] if settings.thinking else ["--no-think"]),
        "--trials", "1", "--no-preflight", "--no-probe-engine", "--json", "--json-file", RESULT,
    ]  # fmt: skip


def _listen(process: subprocess.Popen[str], log: Path, heard: Callable[[Mapping[str, Any]], None]) -> None:
    """Keep what it says, and tell its events while they come."""
    assert process.stderr is not None  # noqa: S101 (a pipe was asked for)
    with process.stderr, log.open("w", encoding="utf-8") as kept:
        for line in process.stderr:
            kept.write(line)
            kept.flush()
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                heard(event)


def _end(process: subprocess.Popen[str]) -> None:
    """Kill what is left of it and of its children."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
