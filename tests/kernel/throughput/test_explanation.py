"""Whether decode differs, or only the order of prefill and decode."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from speed_cells import Stream, even, tables

from engcmp_assets.kernel.throughput.bands import Run
from engcmp_assets.kernel.throughput.cells import cell_figures
from engcmp_assets.kernel.throughput.explanation import scheduling_explanation
from engcmp_assets.kernel.throughput.streams import stream_table


def run(label: str, cells: dict[str, list[Stream]]) -> Run:
    made = {name: tables(one) for name, one in cells.items()}
    return Run(
        label,
        {name: cell_figures(*both, {"cell_id": name, "concurrency": 2}) for name, both in made.items()},
        {name: stream_table(*both) for name, both in made.items()},
    )


# The same decode of 10 ms a token where nothing lies beside it; `mixed` decodes at 20 ms while the other prompt is read.
MIXED = [even("a", 0, 100, 20, [1] * 20), even("b", 0, 480, 10, [1] * 20)]
ORDERED = [even("a", 0, 290, 10, [1] * 20), even("b", 0, 290, 10, [1] * 20)]


def test_streams_that_decode_alike_when_left_alone_differ_by_their_order() -> None:
    found = scheduling_explanation(run("ordered", {"k": ORDERED}), run("mixed", {"k": MIXED}))
    (cell,) = found["cells"]
    assert cell["decode_ratio"] == pytest.approx(100 / 75) and cell["clean_decode_ratio"] == 1
    assert cell["overlap_share"] == [0, 0.5]
    assert [one["streams"] for one in found["decode_by_overlap"]["baseline"]] == [1, 0, 0, 0, 1]
    assert found["decode_by_overlap"]["baseline"][-1]["decode_tok_s"] == 50
    # 480 ms against 670 ms for the same 40 tokens: all of it before the last first token.
    assert cell["aggregate"]["ratio"] == pytest.approx(670 / 480) and cell["aggregate"]["prefill_part"] == 1
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_cells_that_are_not_whole_on_both_arms_are_left_out() -> None:
    broken = [replace(one, extra={"status": "failed"}) for one in MIXED]
    found = scheduling_explanation(run("x", {"k": broken, "z": MIXED}), run("y", {"k": MIXED}))
    assert found["cells"] == []
    assert found["decode_by_overlap"]["candidate"] == {"missing": "no cell is complete on both arms"}


def test_an_arm_that_cannot_tell_its_first_update_sets_the_rule_for_both() -> None:
    text = [replace(one, extra={"counted_by": "text"}) for one in MIXED]
    found = scheduling_explanation(run("x", {"k": text}), run("y", {"k": MIXED}))
    assert found["cells"][0]["decode_ratio"] == 1 and found["cells"][0]["clean_decode_ratio"] == 1
    assert found["labels"] == ["the first update of a reply is taken as 1 token on both sides"]
