"""One window through the engine into the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engcmp_assets.captured_rows.agreement import refuse_bad_values
from engcmp_assets.captured_rows.journalled import Capture, Launch
from engcmp_assets.captured_rows.running import Running
from engcmp_assets.kernel.light_measures import LightRows, light_of, light_rows
from engcmp_assets.kernel.names import LIGHT_HASH
from engcmp_assets.kernel.panels import Pass, window_of
from engcmp_assets.kernel.records import Panel, Window
from engcmp_assets.kernel.topk_measures import reduce_rows
from engcmp_assets.kernel.window_files import read_reference, write_full, write_kept, write_light
from engcmp_assets.kernel.work import output_blob
from engcmp_assets.reference_rows.step import output_name
from engcmp_resources.canonical import sha256_bytes
from engcmp_resources.engines.servers import LightRows as ApiRows
from engcmp_resources.engines.servers import RowsTaken
from engcmp_resources.errors import EngcmpError
from engcmp_resources.row_files import row_hashes
from engcmp_resources.store import Blob

Logits = npt.NDArray[np.float32]


Taken = Mapping[str, Any]


def take_window(
    capture: Capture, running: Running, launch: Launch, one: Pass, earlier: Sequence[Taken]
) -> dict[str, Any]:
    """One repeat of one window: the file that each panel keeps of it, the hash of each raw row by its position, and what the engine
    said of the request. `earlier` are the window's repeats that are not journalled yet.

    Raises EngcmpError for rows of another size or with values that no row may hold; nothing of the window is then kept.
    """
    if running.light is not None:
        taken = running.light(one.window_id, one.tokens, one.positions)
        rows: Logits | LightRows = _checked(capture, one, taken)
        digests, notes = _light_hashes(taken), taken.notes
    else:
        rows, notes = _full_rows(capture, running, one)
        digests = row_hashes(rows)
    hashes = {str(row): digest for row, digest in zip(one.positions, digests, strict=True)}
    known = _same_rows(capture, launch, one, hashes, earlier)
    files = known or {
        panel.panel: _kept(capture, panel, window, rows, one.indices(window))
        for panel in capture.panels_of(launch)
        if (window := window_of(panel, one.window_id)) is not None
    }
    return {"files": files, "row_sha256": hashes} | ({"notes": dict(notes)} if notes else {})


def _checked(capture: Capture, one: Pass, taken: ApiRows) -> LightRows:
    """What an API returned, once it is known to be rows of this window: a row's actual token is told twice."""
    where = f"{capture.work.arm}, window {one.window_id}"
    next_tokens = [one.tokens[position + 1] for position in one.positions]
    return light_rows(
        taken.top_ids, taken.top_log_probs, taken.next_log_prob, next_tokens, vocab=capture.spec.vocab, where=where
    )


def _light_hashes(taken: ApiRows) -> list[str]:
    """A hash of what the API returned of each row: it says that answers are the same, not that raw rows are."""
    columns = (taken.top_ids.astype("<i8"), taken.top_log_probs.astype("<f8"), taken.next_log_prob.astype("<f8"))
    return [
        LIGHT_HASH + sha256_bytes(b"".join(np.ascontiguousarray(column[row]).tobytes() for column in columns))
        for row in range(len(taken.next_log_prob))
    ]


def _full_rows(capture: Capture, running: Running, one: Pass) -> tuple[Logits, Mapping[str, Any]]:
    if running.full is None:
        raise EngcmpError(
            f"{capture.work.arm}: the engine gives no rows", remedy="this is a fault of engcmp: report it"
        )
    raw = capture.work.store.temporary()
    try:
        said = running.full(one.window_id, one.tokens, one.positions, raw)
        logits = _rows_of(capture, one, raw)
    finally:
        raw.unlink(missing_ok=True)
    refuse_bad_values(logits, window_id=one.window_id, positions=one.positions, where=str(capture.work.arm))
    return logits, said.notes if isinstance(said, RowsTaken) else {}


def _rows_of(capture: Capture, one: Pass, raw: Path) -> Logits:
    values = np.fromfile(raw, dtype="<f4")
    vocab = capture.spec.vocab
    if values.size != len(one.positions) * vocab:
        raise EngcmpError(
            f"window {one.window_id}: {values.size} values, {len(one.positions)} rows of {vocab} were asked for",
            where=str(capture.work.arm), remedy="the engine is at fault: nothing of this window was kept",
        )  # fmt: skip
    return values.reshape(len(one.positions), vocab)


def _same_rows(
    capture: Capture, launch: Launch, one: Pass, hashes: Mapping[str, str], earlier: Sequence[Taken]
) -> dict[str, Any] | None:
    """The files of an earlier run of this window whose raw rows are the same bit for bit: equal rows need no second reduction."""
    same = [entry for entry in capture.windows() if (entry["window"], entry["path"]) == (one.window_id, launch.path)]
    for taken in [*earlier, *(taken for entry in same for taken in entry["repeats"])]:
        files: dict[str, Any] = taken["files"]
        blobs = [Blob(file["sha256"], file["bytes"], "safetensors") for file in files.values()]
        if taken["row_sha256"] == hashes and all(capture.work.store.holds(blob) for blob in blobs):
            return files
    return None


def _rows_at(taken: LightRows, indices: Sequence[int]) -> LightRows:
    rows = list(indices)
    return LightRows(taken.top_ids[rows], taken.top_log_probs[rows], taken.next_token_log_prob[rows])


def _kept(
    capture: Capture, panel: Panel, window: Window, taken: Logits | LightRows, indices: Sequence[int]
) -> dict[str, Any]:
    """Store what a panel keeps of a window's rows, which are those of the pass at `indices`."""
    store = capture.work.store
    path = store.temporary()
    try:
        if isinstance(taken, LightRows):
            write_light(path, window, _rows_at(taken, indices))
        elif panel.keep == "light":
            where = f"{capture.work.arm}, window {window.window_id}"
            write_light(path, window, light_of(taken[indices], window.next_tokens, where=where))
        elif panel.reference != "topk":
            write_full(path, window, taken[indices])
        else:
            rows = taken[indices]
            file = store.path(output_blob(capture.reference.receipt, output_name(panel.panel, window.window_id)))
            reference = read_reference(file, window, vocab=panel.vocab, k=panel.top_k or 0)
            where = f"{capture.work.arm}, window {window.window_id}"
            write_kept(path, window, reduce_rows(rows, reference.top_ids, window.next_tokens, where=where))
        blob = store.put_file(path, "safetensors")
        return {"sha256": blob.sha256, "bytes": blob.bytes}
    finally:
        path.unlink(missing_ok=True)
