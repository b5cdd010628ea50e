"""A study with every fault that the simulator can be told to have in its rows and launches, planted in made row files and receipts.

The files are what a capture would have left: prompt set and reference are real, an arm's rows are the reference's with its own small
error, and its receipts are made by the steps themselves. Only what no engine was asked for is invented. No tests.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from homes import CHECKOUT, STUDY, quiet

from engcmp_assets.captured_rows.step import captured_made, kept_of, rows_step
from engcmp_assets.commands.main import main
from engcmp_assets.engine_launch.step import launch_made, launch_spec
from engcmp_assets.engine_launch.step import step as launch_step
from engcmp_assets.kernel import work as work_module
from engcmp_assets.kernel.records import ArmKey, Panel, Window
from engcmp_assets.kernel.study import Study, load_study
from engcmp_assets.kernel.window_files import read_full, write_full
from engcmp_assets.kernel.work import Session, materialize, output_blob, prepare, record
from engcmp_assets.reference_rows.step import output_name
from engcmp_assets.steps import step_named
from engcmp_resources.row_files import row_hashes
from engcmp_resources.store import Store

PLANTED = "smollm2-planted"
PANEL, CHUNK = "pa", 24
LAUNCHES = REPEATS = 2
LONG_AGO = "2026-01-01T00:00:00.000+00:00"
Rows = npt.NDArray[np.float32]

_HEAD = """schema = "engcmp.protocol/1"
study = "smollm2-planted"
title = "A study with planted faults"
question = "Which of them does an audit find?"
owners = ["team:engcmp"]
"""
_ENGINE = """[engines.{name}]
kind = "llamacpp"
label = "{name}"
threads = {threads}
context_tokens = {context}
batch_tokens = 512
micro_batch_tokens = 512
[engines.{name}.versions.b11549]
source = "llamacpp-b11549"
[[arms]]
arm = "q8_0/{name}@b11549"
"""
_BY = 'by = ["block", "bucket", "block at bucket"]'
_REST = """[prompt_set]
file = "prompt_set.json"
texts = "texts"
[panels.pa]
label = "P-A"
reference = "full"
rows = "even"
rows_per_window = 20
roles = ["context"]
measures = ["kl_full", "nll"]
primary = ["kl_full"]
pair_measures = ["kl_pair_full", "rows_bit_identical"]
{by}
[capture.prefill]
panels = ["pa"]
launches = 2
repeats = 2
[statistics]
preset = "panel"
replicates = 200
seed = 7
level = 0.95
cluster = "document"
[limits]
size = "As small as one can be."
[[reading_rules]]
id = "same-as-plain"
question = "Does the second engine stay further from the reference?"
level = 0.95
[reading_rules.statistic]
measure = "kl_full"
kind = "difference"
panel = "pa"
population = "all"
candidate = "q8_0/same@b11549"
[reading_rules.baseline]
arm = "q8_0/plain@b11549"
runs = "each run"
[[reading_rules.cases]]
part = "interval low"
relation = "above"
limit = 0.0
verdict = "resolved"
means = "the second engine is further away"
[reading_rules.otherwise]
verdict = "not resolved"
means = "it is not shown to be further away"
"""
_PAIR = """[[comparisons]]
pair_id = "{candidate}-vs-{baseline}"
label = "{candidate} beside {baseline}"
candidate = "q8_0/{candidate}@b11549"
baseline = "q8_0/{baseline}@b11549"
"""


@dataclass(frozen=True)
class Engine:
    """An arm's engine and what is wrong with it. `rows` gives a window's rows in a run of the arm's own rows; `notes` what is noted."""

    name: str
    rows: Callable[[Window, str, Rows], Rows] | None = None
    notes: Callable[[Window, str], Mapping[str, Any]] | None = None
    starts: Mapping[int, Sequence[int]] | None = None
    finished: str | None = None
    threads: int = 2
    context: int = 512


def plain_notes(window: Window, _run: str) -> dict[str, Any]:
    """A request that ran alone, in two chunks, with nothing from a cache."""
    chunks = [CHUNK, len(window.tokens) - CHUNK]
    return {"cached_tokens": 0, "chunk_lengths": chunks, "other_requests_in_step": [0, 0]}


def _noise(window: Window, run: str, scale: float = 0.01) -> Rows:
    seed = [*window.window_id.encode(), *run.encode()]
    return (np.random.default_rng(seed).standard_normal((len(window.positions), 1)) * scale).astype(np.float32)


def from_second_chunk(window: Window, run: str, own: Rows) -> Rows:
    """`noise_from_second_chunk`."""
    late = np.asarray(window.positions)[:, None] >= CHUNK
    return own + np.where(late, _noise(window, run), 0).astype(np.float32) * np.sign(own)


def noisy(window: Window, run: str, own: Rows) -> Rows:
    """`noise`: from the first row on, another in each run."""
    return own + _noise(window, run) * np.sign(own)


def warm_differs(window: Window, run: str, own: Rows) -> Rows:
    """`cache_hidden` with `cache_changes_rows`: the second pass of a start reads its cache, and no word of it."""
    return own if run.endswith(".1") else own + _noise(window, "warm") * np.sign(own)


def shifted(window: Window, _run: str, own: Rows) -> Rows:
    """`logprobs_shifted`: each row is that of the token after."""
    rows = own.copy()
    for index, position in enumerate(window.positions):
        following = window.tokens[min(position + 2, len(window.tokens) - 1)]
        rows[index, following] = rows[index].max() + 5
    return rows


class Stale:
    """`logprobs_stale`: one window is answered with the rows of the one before."""

    def __init__(self) -> None:
        self.last: Rows | None = None

    def __call__(self, window: Window, _run: str, own: Rows) -> Rows:
        if window.window_id == "prose-1" and self.last is not None:
            return self.last
        self.last = own
        return own


def with_others(window: Window, run: str) -> dict[str, Any]:
    """A request that shared its steps."""
    return plain_notes(window, run) | {"other_requests_in_step": [0, 1 if run == "2.1" else 0]}


def with_hits(window: Window, run: str) -> dict[str, Any]:
    """A request of which the engine says that it took tokens from its cache."""
    return plain_notes(window, run) | {"cached_tokens": 16 if run == "1.2" else 0}


ENGINES = (
    Engine("plain", notes=plain_notes),
    Engine("same", notes=plain_notes),
    Engine("chunked", rows=from_second_chunk, notes=plain_notes),
    Engine("noisy", rows=noisy, notes=plain_notes),
    Engine("warm", rows=warm_differs),
    Engine("shifted", rows=shifted),
    Engine("stale", rows=Stale()),
    Engine("batched", notes=with_others),
    Engine("hits", notes=with_hits),
    Engine("restarted", starts={1: (1, 2), 2: (3,)}),
    Engine("settings", threads=1, context=640),
    Engine("old", finished=LONG_AGO),
)
SOUND = ("plain", "same")
PAIRS = (("same", "plain"), ("chunked", "plain"), ("settings", "plain"), ("old", "plain"), ("shifted", "plain"))
PLANTS = {
    ("chunks", "q8_0/chunked@b11549, panel pa"), ("hidden cache", "q8_0/warm@b11549, panel pa"),
    ("repeats", "q8_0/noisy@b11549, panel pa"),
    ("alignment", "q8_0/shifted@b11549, panel pa"), ("another prompt", "q8_0/stale@b11549, panel pa"),
    ("alone", "q8_0/batched@b11549, panel pa"), ("cache", "q8_0/hits@b11549, panel pa"), ("restarts", "q8_0/restarted@b11549"),
    ("one change", "pair settings-vs-plain"), ("age", "pair old-vs-plain"), ("near-copies", "panel pa"), ("buckets", "panel pa"),
}  # fmt: skip
"""Every fault that is planted: the check that must find it, and in what."""


def texts(*, sound: bool) -> dict[str, str]:
    """The windows' texts, two of them long; where not `sound`, two hold one text, and one block alone has the long context."""
    folder = CHECKOUT / "protocol" / STUDY / "texts"

    def text(name: str, characters: int) -> str:
        return (folder / f"{name}.txt").read_text(encoding="utf-8")[:characters]

    found = {
        "code-1": text("code-1", 260),
        "prose-1": text("prose-1", 420),
        "chat-1": text("chat-1", 300),
        "json-1": text("json-1", 200),
    }
    if sound:
        return found | {"prose-2": text("prose-2", 900), "code-2": text("code-2", 700)}
    return found | {"prose-2": f"{found['prose-1']} And so on.", "reading-1": text("prose-3", 900)}


def write_study(root: Path, *, sound: bool) -> None:
    """The protocol and the texts, not frozen yet. The sound study looks at context lengths too: there each says something of length."""
    folder = root / "protocol" / PLANTED
    (folder / "texts").mkdir(parents=True)
    for name, text in texts(sound=sound).items():
        (folder / "texts" / f"{name}.txt").write_text(text, encoding="utf-8")
    real = (CHECKOUT / "protocol" / STUDY / "protocol.toml").read_text(encoding="utf-8")
    tables = "".join(
        _table(real, name) for name in ("sources.weights", "sources.llamacpp-b11549", "reference", "checkpoints.q8_0")
    )
    chosen = [one for one in ENGINES if not sound or one.name in SOUND]
    engines = "".join(_ENGINE.format(name=one.name, threads=one.threads, context=one.context) for one in chosen)
    names = {one.name for one in chosen}
    pairs = "".join(_PAIR.format(candidate=a, baseline=b) for a, b in PAIRS if {a, b} <= names)
    rest = _REST.replace("{by}\n", f"{_BY}\n" if sound else "")
    (folder / "protocol.toml").write_text(_HEAD + tables + engines + rest + pairs, encoding="utf-8")


def _table(text: str, name: str) -> str:
    """A table of a TOML file with those below it, as they stand there."""
    found = re.findall(rf"^\[{re.escape(name)}(?:\.[^\]]*)?\]\n(?:(?!\[).*\n)*", text, re.MULTILINE)
    assert found, name
    return "".join(found)


@contextmanager
def places(root: Path) -> Iterator[None]:
    """The study's own protocol folder, home and locks, and no package index."""
    (root / "locks").mkdir(mode=0o700, exist_ok=True)
    own = {"ENGCMP_HOME": "home", "ENGCMP_PROTOCOL": "protocol", "ENGCMP_LOCK_DIR": "locks"}
    with pytest.MonkeyPatch.context() as patch:
        for name, folder in own.items():
            patch.setenv(name, str(root / folder))
        patch.setenv("PIP_NO_INDEX", "1")
        yield


def plant_study(root: Path, store: Path, *, sound: bool) -> Path:
    """The home of a planted study below `root`; `store` is one that holds weights, checkpoint and library."""
    write_study(root, sound=sound)
    shutil.copytree(store, root / "home" / "store", copy_function=os.link)
    with places(root):
        with pytest.raises(SystemExit) as ended:
            main(["freeze", PLANTED])
        assert ended.value.code == 0
        study = load_study(PLANTED)
        session = Session(study, Store(root / "home"), "planted", quiet)
        materialize(session, step_named(study, "frozen_protocol"), None)
        for one in ENGINES:
            if not sound or one.name in SOUND:
                _plant_arm(session, study, one)
        for artifact in ("comparisons", "publication"):
            materialize(session, step_named(study, artifact), None)
    return root / "home"


def _plant_arm(session: Session, study: Study, engine: Engine) -> None:
    arm = ArmKey("q8_0", engine.name, "b11549")
    for artifact in ("sources", "prompt_set", "reference_rows"):
        materialize(session, step_named(study, artifact), arm)
    panel = study.panel(PANEL)
    starts = engine.starts or {launch: (launch,) for launch in range(1, LAUNCHES + 1)}
    with pytest.MonkeyPatch.context() as patch:
        if engine.finished:
            patch.setattr(work_module, "_finished_after", lambda _earlier: engine.finished)
        work = prepare(session, launch_step(study), arm)
        spec = launch_spec(work, panel)
        said = [_start(number, launch, spec.as_json()) for launch, own in starts.items() for number in own]
        record(work, launch_made(spec, said, len(panel.windows), telemetry={}, rules=None), started_at=LONG_AGO)
    entries = list(_entries(session, arm, panel, engine, starts))
    plan = study.protocol.panels[PANEL]
    work = prepare(session, rows_step(PANEL, kept_of(plan)), arm)
    record(work, captured_made(panel, entries), started_at=LONG_AGO)
    if engine.rows is not shifted:  # scoring refuses such rows, as it must
        for artifact in ("scores", "tails", "summaries"):
            materialize(session, step_named(study, artifact), arm)


def _start(number: int, launch: int, spec: Mapping[str, Any]) -> dict[str, Any]:
    facts = {
        "load_ms": 1,
        "n_ctx": spec["context_tokens"],
        "n_threads": spec["threads"],
        "n_batch": spec["batch_tokens"],
    }
    return {
        "kind": "start", "start": number, "launch": launch, "path": "prefill", "facts": facts, "gpus_before": {}, "gpus_after": {},
    }  # fmt: skip


def _entries(
    session: Session, arm: ArmKey, panel: Panel, engine: Engine, starts: Mapping[int, Sequence[int]]
) -> Iterator[dict[str, Any]]:
    done = session.current("reference_rows", arm)
    assert done is not None
    for launch, own in starts.items():
        for place, window in enumerate(panel.windows):
            reference = session.store.path(output_blob(done.receipt, output_name(PANEL, window.window_id)))
            exact = read_full(reference, window, vocab=panel.vocab)
            rows = (exact + 0.02 * np.cos(np.arange(exact.size, dtype=np.float32)).reshape(exact.shape)).astype(
                np.float32
            )
            start = own[min(place * len(own) // len(panel.windows), len(own) - 1)]
            taken = [_taken(session, window, engine, f"{launch}.{repeat}", rows) for repeat in range(1, REPEATS + 1)]
            yield {
                "path": "prefill", "launch": launch, "start": start, "window": window.window_id, "panels": [PANEL], "repeats": taken,
            }  # fmt: skip


def _taken(session: Session, window: Window, engine: Engine, run: str, own: Rows) -> dict[str, Any]:
    rows = own if engine.rows is None else engine.rows(window, run, own)
    path = session.store.home / "scratch" / "planted.safetensors"
    path.parent.mkdir(exist_ok=True)
    if rows.shape[0] != len(window.positions):
        rows = np.resize(rows, own.shape)
    write_full(path, window, rows)
    blob = session.store.put_file(path, "safetensors")
    hashes = {str(row): digest for row, digest in zip(window.positions, row_hashes(rows), strict=True)}
    notes = {} if engine.notes is None else {"notes": dict(engine.notes(window, run))}
    return {"files": {PANEL: {"sha256": blob.sha256, "bytes": blob.bytes}}, "row_sha256": hashes} | notes
