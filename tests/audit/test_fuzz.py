"""Whatever bytes lie in receipts, heads and the index: an error that says so, never a traceback, never a pass."""

from __future__ import annotations

import json
import random
import shutil
import string
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from homes import Q4, STUDY, engcmp_here, quiet, replace_file, verified

from engcmp_assets.audit.recompute import Evidence
from engcmp_assets.audit.trace import figures_of, trace, trace_text
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.study import load_study
from engcmp_assets.kernel.work import Session, answer_from_store, prepare
from engcmp_assets.steps import steps_of
from engcmp_resources.canonical import canonical_bytes, sha256_bytes
from engcmp_resources.errors import EngcmpError
from engcmp_resources.store import Place, Store, head_bytes

ODD: list[Any] = [
    None, True, False, 0, -1, 10**30, 1.5, "", "x", "\ud800", "../../x", "\x00", "é" * 300, [], {}, [None], [[]], {"missing": 1},
    {"": ""}, {"missing": "\udfff"}, [1, "a"], "0" * 64, "q4_0/llamacpp@b11549", "_study", "a" * 5000,
]  # fmt: skip


@pytest.fixture
def bones(measured_home: Path, tmp_path: Path) -> Path:
    """A home of heads, receipts and index alone; that the stored files are missing is a problem by itself, and a cheap one."""
    home = tmp_path / "bones"
    for name in ("heads", "receipts", "tasks"):
        shutil.copytree(measured_home / name, home / name)
    (home / "store").mkdir()
    return home


def random_bytes(draw: random.Random) -> Iterator[bytes]:
    """Of every kind that a reader of JSON can stumble over."""
    yield b""
    yield b"\x00"
    yield b"\xff\xfe\x00"
    yield b"[" * 200_000
    yield b'{"a":' * 50_000
    yield b"-"
    yield b"1" * 10_000
    yield b'"\\ud800"\n'
    yield b'{"schema":"engcmp.receipt/1"}\n'
    for _ in range(10):
        yield draw.randbytes(draw.randrange(1, 400))
        yield "".join(draw.choice(string.printable) for _ in range(50)).encode()


def mutated(value: Any, draw: random.Random) -> Any:
    """The same document with one value somewhere replaced, a key dropped, or one added."""
    document = json.loads(json.dumps(value))
    places: list[tuple[Any, Any]] = []

    def collect(node: Any) -> None:
        for key in node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
            places.append((node, key))
            collect(node[key])

    shallow = {name: document[name] for name in document if name not in ("code", "environment", "figures")}
    collect(shallow if draw.random() < 0.7 else document)  # else most mutations would be deep in the figures
    holder, key = draw.choice(places)
    if draw.random() < 0.3 and isinstance(document, dict):
        holder, key = document, draw.choice(sorted(document))
    action = draw.randrange(4)
    if action == 0 and isinstance(holder, dict):
        holder.pop(key, None)
        document.pop(key, None)
    elif action == 1 and isinstance(holder, list):
        holder.append(draw.choice(ODD))
    else:
        holder[key] = draw.choice(ODD)
        if key in document:
            document[key] = holder[key]
    return document


def exercise(home: Path) -> int:
    """Everything that reads receipts and heads; the number of problems that verify finds."""
    study = load_study(STUDY)
    store, arm = Evidence(home), ArmKey.parse(Q4)
    session = Session(study, store, "fuzz", quiet)
    for step in steps_of(study):
        owner = arm if step.per_arm else None
        session.current(step.artifact, owner)
        try:
            answer_from_store(prepare(Session(study, Store(home), "fuzz", quiet), step, owner))
        except EngcmpError:
            continue
    try:
        figures = figures_of(store, study)
        for figure_id in sorted(figures)[:3]:
            trace_text(store, trace(store, study, figure_id)).encode("utf-8", "backslashreplace")
    except EngcmpError as error:
        assert str(error)
    return len(verified(home).problems)


def read(path: Path) -> Any:
    return json.loads(path.read_bytes())


def forge_head(home: Path, artifact: str, arm: str | None, data: bytes) -> Path:
    """A receipt of these bytes under their right hash, and the head pointing to it."""
    sha256 = sha256_bytes(data)
    (home / "receipts" / f"{sha256}.json").write_bytes(data)
    place = Place(STUDY, "_study" if arm is None else arm.replace("/", "~"), artifact)
    path = Store(home).head_path(place)
    replace_file(path, head_bytes(place, sha256))
    return path


@pytest.mark.parametrize("kind", ["receipts", "heads", "tasks"])
def test_random_bytes_in_any_of_them_raise_nothing(bones: Path, kind: str) -> None:
    draw = random.Random(f"bytes {kind}")
    paths = [path for path in (bones / kind).rglob("*.json") if path.is_file()]
    for data in random_bytes(draw):
        path = draw.choice(paths)
        original = path.read_bytes()
        replace_file(path, data)
        problems = verified(bones).problems
        assert kind == "tasks" or str(path.relative_to(bones)) in {problem.file for problem in problems}
        assert all(str(problem).isprintable() for problem in problems)
        replace_file(path, original)


@pytest.mark.parametrize("seed", range(3))
def test_receipts_of_the_wrong_shape_with_their_right_hash_raise_nothing(bones: Path, seed: int) -> None:
    draw = random.Random(seed)
    heads = sorted((bones / "heads" / STUDY).rglob("*.json"))
    originals = {path: path.read_bytes() for path in heads}
    for _ in range(12):
        path = draw.choice(heads)
        receipt = read(bones / "receipts" / f"{read(path)['receipt_sha256']}.json")
        try:
            data = canonical_bytes(mutated(receipt, draw))
        except EngcmpError:
            continue
        forge_head(bones, receipt["artifact"], receipt["arm"], data)
        assert exercise(bones)
        for head, original in originals.items():
            replace_file(head, original)


@pytest.mark.parametrize(
    "build", [lambda _: b"[" * 100_000, lambda draw: draw.randbytes(300), lambda _: b"{}\n", lambda _: b"null\n"]
)
def test_bytes_of_any_kind_with_their_right_hash_raise_nothing(
    bones: Path, build: Callable[[random.Random], bytes]
) -> None:
    forge_head(bones, "scores", Q4, build(random.Random(5)))
    assert exercise(bones)


def test_a_very_long_chain_of_receipts_raises_nothing(bones: Path) -> None:
    """Deeper than Python's stack: each receipt the answer of the one before."""
    receipt = read(next((bones / "receipts").glob("*.json")))
    place = (receipt["artifact"], receipt["arm"])
    for _ in range(3000):
        data = canonical_bytes(receipt)
        sha256 = sha256_bytes(data)
        (bones / "receipts" / f"{sha256}.json").write_bytes(data)
        receipt["answered_by"] = sha256
    forge_head(bones, *place, canonical_bytes(receipt))
    assert verified(bones).problems


def test_the_command_says_one_line_a_problem_for_any_of_it(bones: Path) -> None:
    draw = random.Random(3)
    for path in sorted((bones / "heads").rglob("*.json"))[::3]:
        replace_file(path, draw.randbytes(100))
    for path in sorted((bones / "receipts").iterdir())[::3]:
        replace_file(path, b"[" * 100_000)
    for path in (bones / "tasks").iterdir():
        replace_file(path, b"[]\n")
    done = engcmp_here("verify", STUDY, ENGCMP_HOME=str(bones))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    lines = done.stdout.splitlines()
    assert all(line.startswith("FAILED ") for line in lines[:-1])
    assert (
        lines[-1]
        == f"{STUDY}: {len(lines) - 1} problems; figures and Dagster's events, which rest on these, were not judged; nothing was changed"
    )
