"""Code tasks as data: a prompt, hidden tests, a reference solution, and wrong solutions that the tests must refuse."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engcmp_assets.kernel.task_checks.code_worker import exact_form
from engcmp_resources.canonical import sha256_of
from engcmp_resources.errors import EngcmpError

_REMEDY = "correct the task's file"
_LEAST_TESTS, _LEAST_WRONG = 8, 3
INSTRUCTION = (
    "Write it in Python 3, with the standard library only, and do not change the arguments. Reply with one code block that holds the "
    "whole solution. Return plain lists, tuples, dicts, strings and numbers exactly as described: types are compared too."
)


@dataclass(frozen=True, slots=True)
class HiddenTest:
    """A call and what it must give: `arguments` is the literal of a tuple; either `returns`, a literal, or `raises`, a built-in's name."""

    arguments: str
    returns: str | None
    raises: str | None

    def expected(self) -> dict[str, Any]:
        """What the worker says where the call is right: the value with exact types, and arguments that are unchanged."""
        if self.raises is not None:
            return {"raised": self.raises}
        return {"returned": _form(str(self.returns)), "arguments": _form(self.arguments)}


@dataclass(frozen=True, slots=True)
class CodeTask:
    """`entry` is the function that a reply must define. `wrong` are solutions by the name of their fault."""

    name: str
    entry: str
    prompt: str
    tests: tuple[HiddenTest, ...]
    reference: str
    wrong: Mapping[str, str]
    sha256: str


def parse_code_task(name: str, text: str) -> CodeTask:
    """A task from its TOML. Raises EngcmpError that names the field for unknown or missing fields and tests that are no literals."""
    try:
        raw = tomllib.loads(text)
        tests = [HiddenTest(given, wanted, None) for given, wanted in raw.pop("returns")]
        tests += [HiddenTest(given, None, wanted) for given, wanted in raw.pop("raises", [])]
        task = CodeTask(
            name=name,
            entry=raw.pop("entry"),
            prompt=f"{raw.pop('prompt').strip()}\n\n{INSTRUCTION}",
            tests=tuple(tests),
            reference=raw.pop("reference"),
            wrong=raw.pop("wrong"),
            sha256=sha256_of(text),
        )
        for test in tests:
            test.expected()
            if not isinstance(ast.literal_eval(test.arguments), tuple):
                raise ValueError(f"the arguments {test.arguments} are no tuple")
    except (KeyError, ValueError, TypeError, SyntaxError) as error:
        raise EngcmpError(f"code task {name}: {error!r}", where=f"{name}.toml", remedy=_REMEDY) from error
    if raw:
        raise EngcmpError(f"code task {name}: unknown field {min(raw)}", where=f"{name}.toml", remedy=_REMEDY)
    if len(tests) < _LEAST_TESTS or len(task.wrong) < _LEAST_WRONG:
        raise EngcmpError(
            f"code task {name}: {len(tests)} tests and {len(task.wrong)} wrong solutions, fewer than {_LEAST_TESTS} and {_LEAST_WRONG}",
            where=f"{name}.toml",
            remedy="write more of them",
        )
    return task


def load_code_tasks(folder: Path) -> tuple[CodeTask, ...]:
    """The tasks of a folder, one TOML file each, by name. Raises EngcmpError for a folder without any and for a damaged file."""
    files = sorted(folder.glob("*.toml"))
    if not files:
        raise EngcmpError("no code tasks", where=str(folder), remedy="give the folder of the task files")
    return tuple(parse_code_task(path.stem, path.read_text(encoding="utf-8")) for path in files)


def _form(literal: str) -> list[object]:
    return exact_form(ast.literal_eval(literal))
