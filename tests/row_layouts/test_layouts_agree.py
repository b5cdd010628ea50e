"""The same rows score the same from whatever layout they are read, and a panel's rows are found in each."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file
from writing import (
    DIGEST,
    METADATA,
    TOKENS,
    VOCAB,
    bf16_bits,
    light_columns,
    save_dump,
    save_full,
    save_light,
    save_raw,
    save_teacher,
    topk_tensors,
)

from engcmp_assets.kernel.panel_files import check_width, parse_panel_file, refuse_other_panels, rows_of
from engcmp_assets.kernel.row_measures import score_rows
from engcmp_resources.row_layouts.finding import find_rows, open_rows, read_light, read_top_k

ALL = len(TOKENS) - 1
REFERENCE, ENGINE = (np.random.default_rng(seed).normal(0, 3, (ALL, VOCAB)).astype(np.float32) for seed in (1, 2))
ENGINE = (ENGINE.view("<u4") & 0xFFFF0000).view("<f4")  # values that BF16 holds exactly
PANEL = parse_panel_file(
    json.dumps({
        "panel": "P-A", "vocab": VOCAB, "reference": "full",
        "windows": [{
            "window_id": "w1", "tokens": TOKENS, "tokens_sha256": DIGEST, "positions": [1, 2, 5], "roles": ["context"] + ["generated"] * 2,
            "cluster": "c", "block": "A", "bucket": "0-2K",
        }],
    }).encode(),
    where="panel.json",
)  # fmt: skip
WINDOW = PANEL.windows[0]
BACKWARDS = np.arange(ALL)[::-1]
WRITERS = {
    "full": lambda folder: save_full(folder, rows=ENGINE, positions=range(ALL)),
    "only the panel's": lambda folder: save_full(folder, rows=ENGINE[[1, 2, 5]], positions=(1, 2, 5)),
    "backwards": lambda folder: save_full(folder, rows=ENGINE[BACKWARDS], positions=BACKWARDS),
    "bf16": lambda folder: save_raw(
        folder / "w1.safetensors",
        {"positions": ("I32", np.arange(ALL, dtype="<i4")), "logits": ("BF16", bf16_bits(ENGINE))}, METADATA,
    ),
    "teacher": lambda folder: save_teacher(folder, rows=ENGINE),
    "dump": lambda folder: save_dump(folder / "run-w1-17", ENGINE, range(1, ALL + 1)),
}  # fmt: skip


@pytest.mark.parametrize("layout", WRITERS)
@pytest.mark.parametrize("block_rows", [1, 2, 32])
def test_scores_are_those_of_the_rows_themselves(tmp_path, layout, block_rows):
    save_teacher(tmp_path / "reference", rows=REFERENCE)
    WRITERS[layout](tmp_path / "arm")
    sources = [open_rows(find_rows(tmp_path / name), "w1") for name in ("reference", "arm")]
    sides = []
    for name, source in zip(("reference", "arm"), sources, strict=True):
        check_width(source, source.vocab, PANEL, arm=name)
        sides.append((source, rows_of(source, WINDOW, arm=name)))
    following = np.array(WINDOW.next_tokens)
    found = []
    for start in range(0, len(following), block_rows):
        part = slice(start, start + block_rows)
        reference, engine = (
            np.concatenate([source.block(row, row + 1) for row in places[part].tolist()]) for source, places in sides
        )
        found.append(score_rows(reference, engine, following[part], where="window w1").kl_full)
    kept = list(WINDOW.positions)
    expected = score_rows(REFERENCE[kept], ENGINE[kept], following, where="window w1").kl_full
    assert np.concatenate(found).tolist() == expected.tolist() and (expected > 0).all()


def test_two_captures_of_the_same_rows_in_different_layouts_are_of_one_panel(tmp_path):
    for name in ("full", "dump", "teacher"):
        WRITERS[name](tmp_path / name)
    refuse_other_panels({name: {"w1": open_rows(tmp_path / name, "w1")} for name in ("full", "dump", "teacher")})


@pytest.mark.parametrize("shift", [0, 1])
def test_top_k_rows_are_found_whichever_token_their_positions_count(tmp_path, shift):
    tensors = topk_tensors(np.array([1, 2, 5]) + 1 - shift, shift)
    save_file(tensors, tmp_path / "w1.safetensors")
    rows = read_top_k(tmp_path, "w1")
    assert rows_of(rows, WINDOW, arm="reference", next_token_ids=rows.next_token_ids).tolist() == [0, 1, 2]


def test_light_rows_are_found(tmp_path):
    save_light(tmp_path / "arm.parquet", light_columns(positions=(1, 2, 5)))
    rows = read_light(tmp_path, "w1")
    assert rows_of(rows, WINDOW, arm="V1", next_token_ids=rows.next_token_ids).tolist() == [0, 1, 2]
