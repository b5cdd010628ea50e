"""Panels of a fetched data set in a study's graph: laid out at the freeze, by digest, with their own rows as the reference.

The set is a stand-in: one of the study's own texts, with rows that this project's reference gives. So what comes of the published rows
must be, number for number, what the reference computes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from homes import quiet
from safetensors.numpy import save_file
from tiny import BASE_ARM, TINY, TinyStudy, make_tiny

from engcmp_assets.commands.prompts import STAND_IN, from_outside
from engcmp_assets.frozen_protocol.step import STEP as FROZEN_PROTOCOL
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.study import Study, load_study
from engcmp_assets.kernel.work import Done, Session, materialize, output_blob
from engcmp_assets.prompt_set.outside import outside_panels
from engcmp_assets.prompt_set.step import STEP as PROMPT_SET
from engcmp_assets.reference_rows.step import STEP as REFERENCE_ROWS
from engcmp_assets.sources.step import STEP as SOURCES
from engcmp_assets.sources.step import fetched_weights
from engcmp_resources.canonical import sha256_file
from engcmp_resources.engines.reference import RowRequest, reference_rows
from engcmp_resources.errors import EngcmpError
from engcmp_resources.row_files import read_rows
from engcmp_resources.store import Store

VOCAB = 49_152
SET = """
[sources.px-set]
listed = "px"
"""
PANEL = """
[panels.px]
label = "rows of a published teacher"
reference = "full"
rows = "stated"
rows_per_window = 16
roles = ["context"]
measures = ["kl_full", "nll"]
primary = []
pair_measures = ["kl_pair_full", "rows_bit_identical"]
[panels.px.external]
source = "px-set"
layout = "teacher"
window = "final-([0-9]{4})"
rows_file = "teacher/window-{number}.safetensors"
tokens_file = "arrays/{window}.tokens.npy"
windows = 1
tokens_per_window = 17
rows = 16
clusters = 1
cluster = "window"
vocab = 49152
scored = "every row"
drawn_from = "a text of this project"
"""
LISTED = {
    "schema": "engcmp.study-sources/1",
    "sources": [
        {
            "id": "px", "kind": "mirror", "role": "panel", "what": "a stand-in", "where": "px", "revision": "1", "files": "unknown",
            "licence": "Apache-2.0", "bytes": 0, "unknown": [{"field": "files", "why": "made by the test"}],
        }
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, measured_home: Path) -> TinyStudy:
    """The tiny study with a published panel, its stand-in fetched, frozen."""
    made = make_tiny(tmp_path_factory.mktemp("outside"), measured_home)
    path = made.folder / "protocol.toml"
    text = path.read_text(encoding="utf-8")
    text = text.replace("[sources.weights]", f"{SET}[sources.weights]", 1)
    text = text.replace("\n[capture.prefill]\n", f"{PANEL}\n[capture.prefill]\n", 1).replace('"pa"', '"pa", "px"', 1)
    path.write_text(text, encoding="utf-8")
    (made.folder / "SOURCES.json").write_text(json.dumps(LISTED), encoding="utf-8")
    return made


@pytest.fixture
def here(tiny: TinyStudy, monkeypatch: pytest.MonkeyPatch) -> TinyStudy:
    for name, value in (tiny.variables | {"ENGCMP_HOME": str(tiny.home)}).items():
        monkeypatch.setenv(name, value)
    return tiny


def stand_in(study: Study, home: Path, tokens: list[int]) -> Path:
    """The fetched folder: tokens and float32 rows as the published set has them, computed by the project's own reference."""
    folder = home / "fetched" / TINY / "px"
    for part in ("arrays", "teacher"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    np.save(folder / "arrays" / "final-0003.tokens.npy", np.asarray(tokens, dtype=np.int32))
    store = Store(home)
    rows: dict[str, Any] = {}
    reference_rows(
        store.path(fetched_weights(study, store, quiet)), [RowRequest("w", tuple(tokens), tuple(range(len(tokens) - 1)))],
        on_rows=lambda _name, logits: rows.update(logits=np.array(logits)), progress=lambda *_: None,
    )  # fmt: skip
    save_file(rows, folder / "teacher" / "window-0003.safetensors")
    (folder / STAND_IN).write_text("a text of this project and its own reference\n", encoding="utf-8")
    return folder


def made(study: Study, home: Path, step: Any) -> Done:
    session = Session(study, Store(home), "test", quiet)
    return materialize(session, step, None if step is FROZEN_PROTOCOL else ArmKey.parse(BASE_ARM))


def test_published_windows_are_frozen_by_digest_and_their_rows_are_the_reference(here: TinyStudy) -> None:
    refused = here.run("freeze", TINY)
    assert refused.returncode == 1 and "panel px" in refused.stderr, "the set is not here yet"
    draft = load_study(TINY)
    assert outside_panels(draft.base, here.home / "fetched" / TINY) == {}
    tokens = json.loads((here.folder / "prompt_set.json").read_bytes())["windows"][0]["tokens"][:17]
    folder = stand_in(draft, here.home, tokens)
    done = here.run("freeze", TINY)
    assert done.returncode == 0, done.stderr
    frozen = json.loads((here.folder / "prompt_set.json").read_bytes())
    kept = frozen["panels"]["px"]["final-0003"]
    assert kept["positions"] == list(range(16)) and kept["roles"] == ["context"] * 16
    assert kept["rows_sha256"] == sha256_file(folder / "teacher" / "window-0003.safetensors")
    study = load_study(TINY)
    assert [one.window_id for one in study.panel("px").windows] == ["final-0003"]
    assert "final-0003" not in {one.window_id for one in study.panel("pa").windows}

    for step in (FROZEN_PROTOCOL, SOURCES, PROMPT_SET):
        last = made(study, here.home, step)
    assert last.receipt["details"]["windows_from_outside"] == ["final-0003"]
    done_rows = made(study, here.home, REFERENCE_ROWS)
    store, window = Store(here.home), study.panel("px").windows[0]
    stored = read_rows(
        store.path(output_blob(done_rows.receipt, "rows/px/final-0003")), window_id="final-0003",
        tokens_sha256=window.tokens_sha256, positions=window.positions, vocab=VOCAB,
    )  # fmt: skip
    # The tokens are the beginning of one of the study's texts: row r of both is the distribution after the same tokens.
    table = pl.read_parquet(store.path(output_blob(done_rows.receipt, "reference.parquet")))
    ours = table.filter(pl.col("window_id") == "final-0003").sort("position")
    assert ours["position"].to_list() == list(range(16)) and ours["next_token"].to_list() == tokens[1:]
    theirs = table.filter((pl.col("window_id") == "code-1") & (pl.col("position") < 16))
    assert len(theirs) >= 1
    for row in theirs.iter_rows(named=True):
        own = ours.row(row["position"], named=True)
        assert own["next_token"] == row["next_token"]
        assert own["reference_nll"] == pytest.approx(row["reference_nll"], abs=1e-4)
    assert stored.logits.shape == (16, VOCAB)
    told = from_outside(study, outside_panels(study.base, here.home / "fetched" / TINY))
    assert told["px"]["stand_in"] == "a text of this project and its own reference"


def test_rows_that_are_not_the_frozen_ones_are_refused(here: TinyStudy) -> None:
    """Runs after the test above, on its study: the file of rows is another one now."""
    study = load_study(TINY)
    path = here.home / "fetched" / TINY / "px" / "teacher" / "window-0003.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    session = Session(study, Store(here.home), "test", quiet)
    with pytest.raises(EngcmpError, match=r"panel px, window final-0003: the rows are not those that were frozen"):
        materialize(session, REFERENCE_ROWS, ArmKey.parse(BASE_ARM), remeasure=True)
