"""Nothing is unpickled: no part of the project imports what does, calls what may, or pins a file of that kind."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parent.parent.parent
SOURCES = [
    path for folder in ("engcmp_assets", "engcmp_resources") for path in sorted((CHECKOUT / folder).rglob("*.py"))
]
SOURCES.append(CHECKOUT / "definitions.py")
UNPICKLERS = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "pandas"}
LOADERS = {("torch", "load"), ("np", "load"), ("numpy", "load")}
PICKLED = re.compile(r"[\w.-]+\.(?:pt|pth|pkl|pickle|ckpt|joblib)\b|pytorch_model[\w.-]*\.bin")


def ways_to_unpickle(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and words of each import or call by which a pickle could be read."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [one.name.partition(".")[0] for one in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [(node.module or "").partition(".")[0]]
        else:
            names = []
        yield from ((node.lineno, f"imports {name}") for name in names if name in UNPICKLERS)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
            allowed = {one.arg: one.value for one in node.keywords}.get("allow_pickle")
            never = isinstance(allowed, ast.Constant) and allowed.value is False
            if (owner, node.func.attr) in LOADERS and not (owner != "torch" and never):
                yield node.lineno, f"calls {owner}.{node.func.attr} without allow_pickle=False"
            elif allowed is not None and not never:
                yield node.lineno, "allows pickles"
            elif node.func.attr == "read_pickle":
                yield node.lineno, "calls read_pickle"


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import pickle", 1),
        ("from dill import loads", 1),
        ("import torch\ntorch.load('x', weights_only=True)", 1),
        ("np.load(p)", 1),
        ("np.load(p, allow_pickle=flag)", 1),
        ("np.load(p, allow_pickle=False)", 0),
        ("np.savez(p, a, allow_pickle=True)", 1),
        ("pd.read_pickle(p)", 1),
        ("import json\njson.load(f)", 0),
    ],
)
def test_each_way_to_unpickle_is_seen(code: str, found: int) -> None:
    assert len(list(ways_to_unpickle(ast.parse(code)))) == found


def test_no_code_of_the_project_can_unpickle() -> None:
    assert len(SOURCES) > 400
    found = [
        f"{path.relative_to(CHECKOUT)}:{line}: {words}"
        for path in SOURCES
        for line, words in ways_to_unpickle(ast.parse(path.read_bytes()))
    ]
    assert found == []


def test_no_protocol_pins_a_pickled_file() -> None:
    found = [
        f"{path.relative_to(CHECKOUT)}: {name}"
        for path in sorted((CHECKOUT / "protocol").rglob("*.toml"))
        for name in PICKLED.findall(path.read_text(encoding="utf-8"))
    ]
    assert found == []
