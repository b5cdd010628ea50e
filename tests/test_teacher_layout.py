"""A published teacher laid out for scoring: links, and what is refused before one is made; then scored by the command as it is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner

from engcmp_assets.commands.score import score
from engcmp_assets.kernel.external_panels import ExternalPanel, teacher_panel, windows_of
from engcmp_assets.kernel.panel_files import parse_panel_file
from engcmp_resources.errors import EngcmpError
from engcmp_resources.teacher_layout import TeacherWindow, lay_out, sums_of
from engcmp_resources.tensor_files import write_tensors

VOCAB, TOKENS = 32, 24
PLAN = ExternalPanel.model_validate({
    "source": "set", "layout": "teacher", "window": "final-([0-9]{4})", "rows_file": "teacher/logits/window-{number}.safetensors",
    "tokens_file": "arrays/{window}.tokens.npy", "windows": 2, "tokens_per_window": TOKENS, "rows": 2 * (TOKENS - 1), "clusters": 2,
    "cluster": "window", "vocab": VOCAB, "scored": "every row", "drawn_from": "random numbers",
})  # fmt: skip
MASK = "arrays/mask.npy"


@pytest.fixture
def made(tmp_path: Path) -> Path:
    source, random = tmp_path / "set", np.random.default_rng(3)
    for name in ("teacher/logits", "arrays"):
        (source / name).mkdir(parents=True)
    for number in range(2):
        rows = random.normal(size=(TOKENS - 1, VOCAB)).astype(np.float32)
        write_tensors(source / f"teacher/logits/window-{number:04}.safetensors", {}, {"logits": rows})
        np.save(source / f"arrays/final-{number:04}.tokens.npy", random.integers(0, VOCAB, TOKENS, dtype=np.int32))
    np.save(source / MASK, np.ones(TOKENS, dtype=np.int32))
    return source


def windows(source: Path) -> list[TeacherWindow]:
    paths = [path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()]
    found = windows_of(PLAN, paths, panel="pa")
    return [TeacherWindow(one.window_id, str(one.rows), str(one.tokens)) for one in found]


def test_the_files_are_linked_and_score_as_their_own_engine(made: Path, tmp_path: Path) -> None:
    target = tmp_path / "rows"
    tokens = lay_out(made, target, windows(made), vocab=VOCAB, mask=MASK)
    assert sorted(path.name for path in target.iterdir()) == [
        "final-0000.safetensors", "final-0000.tokens.npy", "final-0001.safetensors", "final-0001.tokens.npy",
    ]  # fmt: skip
    assert (target / "final-0001.safetensors").resolve() == (made / "teacher/logits/window-0001.safetensors").resolve()
    document = json.dumps(teacher_panel(PLAN, tokens, panel="pa")).encode()
    assert parse_panel_file(document, where="here").rows == 2 * (TOKENS - 1)
    (tmp_path / "panel.json").write_bytes(document)
    arguments = [
        "--panel",
        str(tmp_path / "panel.json"),
        "--reference",
        str(target),
        "--arm",
        f"own={target}",
    ]
    done = CliRunner().invoke(score, [*arguments, "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    scored = pl.read_parquet(tmp_path / "out" / "own.rows.parquet")
    assert len(scored) == 2 * (TOKENS - 1) and (scored["kl_full"] == 0).all() and (scored["top1"] == 1).all()


def test_it_may_be_laid_out_again_and_never_over_something_else(made: Path, tmp_path: Path) -> None:
    target = tmp_path / "rows"
    lay_out(made, target, windows(made), vocab=VOCAB)
    lay_out(made, target, windows(made), vocab=VOCAB)
    (target / "final-0000.tokens.npy").unlink()
    (target / "final-0000.tokens.npy").write_bytes(b"")
    with pytest.raises(EngcmpError, match="is there already and leads elsewhere"):
        lay_out(made, target, windows(made), vocab=VOCAB)


def test_digests_of_the_set_are_held_against_its_files(made: Path, tmp_path: Path) -> None:
    name = "teacher/logits/window-0001.safetensors"
    digest = hashlib.sha256((made / name).read_bytes()).hexdigest()
    (made / "SHA256SUMS").write_text(f"{digest}  ./{name}\n", encoding="utf-8")
    sums = sums_of(made / "SHA256SUMS")
    assert sums == {name: digest}
    lay_out(made, tmp_path / "rows", windows(made), vocab=VOCAB, digests=sums)
    with pytest.raises(EngcmpError, match=f"window final-0001: file {name} has another SHA-256"):
        lay_out(made, tmp_path / "other", windows(made), vocab=VOCAB, digests={name: "0" * 64})
    assert not (tmp_path / "other").exists(), "nothing is linked before all was looked at"
    (made / "SHA256SUMS").write_text("what\n", encoding="utf-8")
    with pytest.raises(EngcmpError, match="line 1 is no digest"):
        sums_of(made / "SHA256SUMS")


def _other_rows(source: Path) -> None:
    write_tensors(
        source / "teacher/logits/window-0000.safetensors", {}, {"logits": np.zeros((TOKENS, VOCAB), np.float32)}
    )


def _other_type(source: Path) -> None:
    write_tensors(
        source / "teacher/logits/window-0000.safetensors", {}, {"logits": np.zeros((TOKENS - 1, VOCAB), np.float16)}
    )


def _long_tokens(source: Path) -> None:
    np.save(source / "arrays/final-0000.tokens.npy", np.zeros(TOKENS, np.int64))


def _foreign_token(source: Path) -> None:
    np.save(source / "arrays/final-0000.tokens.npy", np.full(TOKENS, VOCAB, np.int32))


def _masked(source: Path) -> None:
    np.save(source / MASK, np.array([0] + [1] * (TOKENS - 1), dtype=np.int32))


def _pickled(source: Path) -> None:
    np.save(source / "arrays/final-0000.tokens.npy", np.array([{}], dtype=object), allow_pickle=True)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (
            _other_rows,
            r"window final-0000: file .*window-0000.safetensors holds logits F32 \[24, 32\], not logits F32 \[23, 32\]",
        ),
        (_other_type, "holds logits F16"),
        (_long_tokens, r"final-0000.tokens.npy is int64 \[24\], not int32"),
        (_foreign_token, "has a token outside the vocabulary of 32"),
        (_masked, "is no array of ones as long as a window"),
        (_pickled, "is no array"),
    ],
)
def test_what_is_not_as_declared_is_refused(
    made: Path, tmp_path: Path, damage: Callable[[Path], Any], said: str
) -> None:
    damage(made)
    with pytest.raises(EngcmpError, match=said):
        lay_out(made, tmp_path / "rows", windows(made), vocab=VOCAB, mask=MASK)
