"""Scored rows as arrays: run beside run in one order, the rows of a role, the rows of a block."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engcmp_assets.kernel.row_table import row_table
from engcmp_resources.errors import EngcmpError

KEYS = (
    "run",
    "window_id",
    "position",
    "next_token",
    "cluster",
    "block",
    "bucket",
    "role",
    "score_path",
    "raw_row_sha256",
)


def columns(*lines: tuple[str, str, int, float], **changes: list[Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Lines of run, window, position and nll; block and cluster follow from the window's name."""
    data: dict[str, list[Any]] = {
        "run": [line[0] for line in lines],
        "window_id": [line[1] for line in lines],
        "position": [line[2] for line in lines],
        "nll": [line[3] for line in lines],
        "next_token": [line[2] + 100 for line in lines],
        "cluster": [line[1] for line in lines],
        "block": [line[1].split("-")[0] for line in lines],
        "bucket": ["upto128"] * len(lines),
        "role": ["context"] * len(lines),
        "score_path": ["prefill"] * len(lines),
        "raw_row_sha256": [f"{line[0]}/{line[1]}/{line[2]}" for line in lines],
    }
    return {name: np.asarray(values) for name, values in (data | changes).items()}


LINES = [
    ("1.2", "code-1", 3, 40.0), ("1.1", "code-1", 3, 4.0), ("1.1", "chat-1", 7, 2.0), ("1.2", "chat-1", 0, 10.0),
    ("1.1", "chat-1", 0, 1.0), ("1.2", "chat-1", 7, 20.0),
]  # fmt: skip


def test_runs_stand_side_by_side_in_one_order_of_rows() -> None:
    table = row_table(columns(*LINES), ["nll"], roles=["context"], path="prefill", where="here")
    assert table.runs == ("1.1", "1.2")
    assert table.keys["window_id"].tolist() == ["chat-1", "chat-1", "code-1"]
    assert table.keys["position"].tolist() == [0, 7, 3]
    assert table.values["nll"].tolist() == [[1.0, 2.0, 4.0], [10.0, 20.0, 40.0]]
    assert table.rows == 3


def test_the_value_of_a_row_is_the_mean_over_its_runs() -> None:
    table = row_table(columns(*LINES), ["nll"], roles=["context"], path="prefill", where="here")
    assert table.per_row("nll").tolist() == [5.5, 11.0, 22.0]


def test_populations_are_all_rows_and_each_block() -> None:
    table = row_table(columns(*LINES), ["nll"], roles=["context"], path="prefill", where="here")
    assert table.populations() == ("all", "block:chat", "block:code")
    assert table.rows_of("all").tolist() == [True, True, True]
    assert table.rows_of("block:chat").tolist() == [True, True, False]
    assert table.clusters_of(table.rows_of("block:code")) == ["code-1"]
    with pytest.raises(
        EngcmpError, match="no population 'chat'; use all, block:NAME, bucket:NAME or block:NAME,bucket:NAME"
    ):
        table.rows_of("chat")


def test_context_lengths_are_populations_where_they_are_asked_for_shortest_first() -> None:
    buckets = ["0-2K", "0-2K", "16-32K", "8-16K", "8-16K", "16-32K"]  # by name the last would stand in the middle
    found = columns(*[(run, window, 1_000 * row, value) for run, window, row, value in LINES], bucket=buckets)
    found["position"] = np.asarray([500, 500, 20_000, 9_000, 9_000, 20_000])
    table = row_table(found, ["nll"], roles=["context"], path="prefill", where="here")
    assert table.populations(["bucket"]) == ("all", "bucket:0-2K", "bucket:8-16K", "bucket:16-32K")
    assert table.populations(["block", "block at bucket"]) == (
        "all",
        "block:chat",
        "block:code",
        "block:chat,bucket:8-16K",
        "block:chat,bucket:16-32K",
        "block:code,bucket:0-2K",
    )
    assert table.keys["position"][table.rows_of("block:chat,bucket:16-32K")].tolist() == [20_000]
    assert table.keys["position"][table.rows_of("bucket:0-2K")].tolist() == [500]
    assert not table.rows_of("block:code,bucket:8-16K").any()


def test_only_rows_in_a_role_of_the_panel_count() -> None:
    roles = ["context", "context", "trailing", "context", "context", "trailing"]
    table = row_table(columns(*LINES, role=roles), ["nll"], roles=["context"], path="prefill", where="here")
    assert table.keys["position"].tolist() == [0, 3]
    with pytest.raises(EngcmpError, match=r"no prefill row has a role of generated \(here\)"):
        row_table(columns(*LINES), ["nll"], roles=["generated"], path="prefill", where="here")


@pytest.mark.parametrize("name", [*KEYS, "nll"])
def test_a_missing_column_is_named(name: str) -> None:
    data = columns(*LINES)
    del data[name]
    with pytest.raises(EngcmpError, match=rf"column {name} is missing \(here\); score the arm again"):
        row_table(data, ["nll"], roles=["context"], path="prefill", where="here")


@pytest.mark.parametrize(
    "lines",
    [LINES[1:], [*LINES, LINES[0]], [("1.2", "code-2", 3, 0.0), *LINES[1:]], [("1.2", "code-1", 4, 0.0), *LINES[1:]]],
    ids=["a row less", "a row twice", "another window", "another position"],
)
def test_runs_of_different_rows_are_refused(lines: list[tuple[str, str, int, float]]) -> None:
    with pytest.raises(EngcmpError, match=r"runs 1\.1 and 1\.2 hold different rows"):
        row_table(columns(*lines), ["nll"], roles=["context"], path="prefill", where="here")


def test_runs_that_differ_in_the_next_token_are_refused() -> None:
    data = columns(*LINES)
    data["next_token"][0] += 1
    with pytest.raises(EngcmpError, match="hold different rows"):
        row_table(data, ["nll"], roles=["context"], path="prefill", where="here")


def test_the_runs_of_one_score_path_are_taken_and_no_others() -> None:
    decoded = [("3.1", "code-1", 3, 5.0), ("3.1", "chat-1", 0, 6.0)]
    both = columns(*LINES, *decoded, score_path=["prefill"] * len(LINES) + ["decode"] * len(decoded))
    prefill = row_table(both, ["nll"], roles=["context"], path="prefill", where="here")
    decode = row_table(both, ["nll"], roles=["context"], path="decode", where="here")
    assert (prefill.runs, prefill.rows) == (("1.1", "1.2"), 3)
    assert (decode.runs, decode.keys["position"].tolist(), decode.values["nll"].tolist()) == (
        ("3.1",),
        [0, 3],
        [[6, 5]],
    )
    with pytest.raises(EngcmpError, match="no decode row has a role of context"):
        row_table(columns(*LINES), ["nll"], roles=["context"], path="decode", where="here")


def test_runs_may_differ_bit_for_bit_and_the_first_run_s_hashes_are_kept() -> None:
    table = row_table(columns(*LINES), ["nll"], roles=["context"], path="prefill", where="here")
    assert table.keys["raw_row_sha256"].tolist() == ["1.1/chat-1/0", "1.1/chat-1/7", "1.1/code-1/3"]
