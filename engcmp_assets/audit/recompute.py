"""Make every artifact again that follows from others, by the same functions, and hold it against what is stored.

Taken as given are the engine's and the reference's row files and what an engine said of its starts; everything else follows.
"""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from engcmp_assets.audit.reached import Reached, Receipt
from engcmp_assets.captured_rows.journalled import launches_of
from engcmp_assets.captured_rows.step import NOTES_FILE, captured_made
from engcmp_assets.engine_launch.disturbances import samples_by_start
from engcmp_assets.engine_launch.serving import serving_made, serving_spec
from engcmp_assets.engine_launch.step import launch_made, launch_spec
from engcmp_assets.kernel.names import (
    AUDIT,
    ENGINE_VERSIONS,
    EVENTS,
    LAUNCH,
    REPLIES,
    REPLIES_PLAN,
    REPLY_CHECKS,
    SERVING,
    captured_rows,
)
from engcmp_assets.kernel.panels import passes
from engcmp_assets.kernel.plots import undrawn
from engcmp_assets.kernel.records import ArmKey, plain
from engcmp_assets.kernel.reply_plan import parse_asked
from engcmp_assets.kernel.reply_verdicts import verdicts_of
from engcmp_assets.kernel.row_measures import score_rows
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.tables import parquet_columns, read_parquet
from engcmp_assets.kernel.window_files import read_full
from engcmp_assets.kernel.work import Done, Made, Session, Work, output_blob
from engcmp_assets.long_output_checks.step import CHECKS_FILE, VERDICTS_FILE, make_again
from engcmp_assets.long_replies.step import REPLIES_FILE, STAGES_FILE, STARTS_FILE, TRACES_FILE, replies_made
from engcmp_assets.reference_rows.step import output_name
from engcmp_assets.steps import step_named, steps_of
from engcmp_assets.throughput_events.journalled import frozen_prompts
from engcmp_assets.throughput_events.plan import load_plan
from engcmp_assets.throughput_events.startup import DOCUMENT, TABLES, prefix_plan
from engcmp_assets.throughput_events.step import EVENTS_FILE, REQUESTS_FILE, SESSIONS_FILE, events_made, read_sessions
from engcmp_resources.canonical import sha256_bytes
from engcmp_resources.errors import EngcmpError
from engcmp_resources.host import usable_cores
from engcmp_resources.row_files import row_hashes
from engcmp_resources.store import Store

# Elementary functions differ between processors in the last bits; anything larger is another result.
_RELATIVE, _ABSOLUTE = 1e-9, 1e-12
# Such a number as pages and sentences print it: below _ABSOLUTE, so that its digits are rounding and nothing else.
_ROUNDING = re.compile(r"-?\d(?:\.\d+)?e-(?:1[3-9]|[2-9]\d|\d{3})\b")
_SHOWN = 3  # differences of one output that are told
_PICTURE = re.compile(r"data:image/[a-z+]+;base64,[A-Za-z0-9+/=]*|<svg.*?</svg>", re.DOTALL)
# What came from outside: held against its pins, or a look at the world as it was; neither can be made again. An audit is itself the
# making again of all the others.
_GIVEN = ("sources", ENGINE_VERSIONS, AUDIT)
# What a forged file can break in functions that were written for sound ones. Whatever it breaks is a finding.
_BROKEN = (ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, StopIteration, TypeError, ValueError)


def recomputed(study: Study) -> list[str]:
    """The artifacts that are made again, in the order of the graph: the first difference told is the one that others follow from."""
    return [step.artifact for step in steps_of(study) if step.artifact not in _GIVEN]


class Evidence(Store):
    """The store as an auditor uses it: it writes nothing, and takes no result from the index."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, read_only=True)

    def part(self, key: str, suffix: str = "json") -> bytes | None:
        """None: parts are made again."""
        del key, suffix
        return None

    def keep_part(self, key: str, data: bytes, suffix: str = "json") -> None:
        """Nothing is kept."""


def recompute(session: Session, reached: Reached, sha256: str) -> Iterator[str]:
    """Yield every way in which the receipt's results differ from what its inputs give.

    What several arms share (one task) is made once for each receipt that claims it: it costs little, and each is evidence.
    """
    receipt = reached.receipts[sha256]
    try:
        yield from _differences_of(_work(session, reached, receipt), receipt)
    except EngcmpError as error:
        yield f"cannot be made again: {error.what}" + (f" ({error.where})" if error.where else "")
    except _BROKEN as error:
        yield f"cannot be made again: {type(error).__name__}: {' '.join(str(error).split())}"


def _differences_of(work: Work, receipt: Receipt) -> Iterator[str]:
    if receipt["artifact"] == "reference_rows":
        yield from _reference_differences(work, receipt)
        return
    with undrawn():
        made = _made_again(work, receipt)
    yield from _product_differences(work, receipt, made)
    yield from differences(plain(list(made.figures)), receipt["figures"], "the receipt's figures")
    yield from differences(sorted(made.flags), receipt["flags"], "the receipt's flags")
    outcomes = {check.name: check.passed for check in made.checks}
    yield from differences(
        outcomes, {check["name"]: check["passed"] for check in receipt["checks"]}, "the receipt's checks"
    )


def _made_again(work: Work, receipt: Receipt) -> Made:
    artifact = receipt["artifact"]
    if artifact.startswith(captured_rows("")):
        return _captured(work, receipt)
    by_name = {LAUNCH: _launch, SERVING: _serving, EVENTS: _events, REPLIES: _replies, REPLY_CHECKS: _judged}
    return by_name[artifact](work, receipt) if artifact in by_name else work.step.make(work)


def _product_differences(work: Work, receipt: Receipt, made: Made) -> Iterator[str]:
    stored = {output["name"]: output for output in receipt["outputs"]}
    fresh = {product.name: product for product in made.products}
    if set(stored) != set(fresh):
        yield f"outputs {', '.join(sorted(set(stored) ^ set(fresh))[:_SHOWN])} are missing or too many"
        return
    for name, product in fresh.items():
        output = stored[name]
        if (product.suffix, product.role, product.rows) != (output["suffix"], output["role"], output["rows"]):
            yield f"{name} is another kind of output than its step makes"
        elif isinstance(product.content, bytes) and sha256_bytes(product.content) != output["sha256"]:
            found = list(_content_differences(product.suffix, product.content, _path(work, receipt, name), name))
            yield from found[:_SHOWN]
            if len(found) > _SHOWN:
                yield f"{name}: {len(found) - _SHOWN} more differences"


def _content_differences(suffix: str, fresh: bytes, path: Path, name: str) -> Iterator[str]:
    if suffix == "json":
        yield from differences(json.loads(fresh), json.loads(path.read_bytes()), name)
    elif suffix == "parquet":
        yield from _table_differences(parquet_columns(fresh), read_parquet(path), name)
    elif suffix in ("md", "html"):
        # Pictures are drawn by libraries whose bytes differ between machines; the numbers beside them do not.
        texts = [_words(_PICTURE.sub("", data.decode("utf-8"))).splitlines() for data in (fresh, path.read_bytes())]
        if texts[0] != texts[1]:
            pairs = zip(*texts, strict=False)
            line = next((index for index, pair in enumerate(pairs) if pair[0] != pair[1]), min(map(len, texts)))
            yield f"{name}: line {line + 1} differs from the page that SUMMARY.json gives"


def differences(fresh: Any, stored: Any, place: str) -> Iterator[str]:
    """Where two JSON values differ beyond the last bits of a float, as `place: fresh, stored`."""
    if isinstance(fresh, Mapping) and isinstance(stored, Mapping):
        for key in sorted(set(fresh) | set(stored)):
            yield from differences(fresh.get(key), stored.get(key), f"{place}.{key}")
    elif isinstance(fresh, (list, tuple)) and isinstance(stored, (list, tuple)) and len(fresh) == len(stored):
        for index, (one, other) in enumerate(zip(fresh, stored, strict=True)):
            yield from differences(one, other, f"{place}[{index}]")
    elif _number(fresh) and _number(stored):
        if not math.isclose(fresh, stored, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE):
            yield f"{place}: recomputed {fresh!r}, stored {stored!r}"
    elif isinstance(fresh, str) and isinstance(stored, str) and _words(fresh) == _words(stored):
        return
    elif type(fresh) is not type(stored) or fresh != stored:
        yield f"{place}: recomputed {str(fresh)[:60]!r}, stored {str(stored)[:60]!r}"


def _words(text: str) -> str:
    return _ROUNDING.sub("0", text)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _table_differences(fresh: Mapping[str, Any], stored: Mapping[str, Any], place: str) -> Iterator[str]:
    if list(fresh) != list(stored):
        yield f"{place}: columns {sorted(set(fresh) ^ set(stored)) or 'in another order'} differ"
        return
    for name, one in fresh.items():
        other = np.asarray(stored[name])
        if one.shape != other.shape or one.dtype != other.dtype:
            yield f"{place}: column {name}: recomputed {one.dtype} {one.shape}, stored {other.dtype} {other.shape}"
            continue
        if one.dtype.kind == "f":
            bad = ~np.isclose(one, other, rtol=_RELATIVE, atol=_ABSOLUTE, equal_nan=True)
        else:
            bad = np.asarray([a != b for a, b in zip(one.tolist(), other.tolist(), strict=True)], dtype=bool)
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            yield f"{place}: column {name}, line {row}: recomputed {one[row]!r}, stored {other[row]!r}"


def _launch(work: Work, receipt: Receipt) -> Made:
    panels = [work.study.panel(name) for name in work.study.protocol.panels]
    starts = json.loads(_path(work, receipt, "starts.json").read_bytes())
    telemetry = samples_by_start(read_parquet(_path(work, receipt, "telemetry.parquet")))
    rules = work.study.protocol.gpus
    return launch_made(launch_spec(work, panels[0]), starts, len(passes(panels)), telemetry=telemetry, rules=rules)


def _serving(work: Work, receipt: Receipt) -> Made:
    starts = json.loads(_path(work, receipt, "starts.json").read_bytes())
    telemetry = samples_by_start(read_parquet(_path(work, receipt, "telemetry.parquet")))
    return serving_made(serving_spec(work), starts, telemetry=telemetry, study=work.study)


def _events(work: Work, receipt: Receipt) -> Made:
    """The tables as they are, held against the frozen plan: when an event came is the client's word."""
    with tempfile.TemporaryDirectory() as folder:
        for name in (EVENTS_FILE, REQUESTS_FILE):
            (Path(folder) / name).symlink_to(_path(work, receipt, name))
        prompts = work.inputs[("prompt_set", receipt["arm"])]
        index, texts = frozen_prompts(work.session, prompts)
        for repeat in sorted({cell.repeat for cell in index.cells}):
            load_plan(index, repeat, texts, model="-")
        startup = None
        if work.study.protocol.startup:
            startup = Path(folder) / "startup"
            startup.mkdir()
            for name in (DOCUMENT, *TABLES):
                kept = name if name == DOCUMENT else f"startup-{name}"
                (startup / name).symlink_to(_path(work, receipt, kept))
            prefix_plan(index, texts, 1, model="-")
        sessions = read_sessions(_path(work, receipt, SESSIONS_FILE))
        return events_made(index, sessions, [Path(folder)], startup=startup)


def _captured(work: Work, receipt: Receipt) -> Made:
    """The capture as its row files have it: every launch, repeat and window of the plan, and the hash of each raw row.

    A top-K or light panel keeps no raw rows: there the hashes that were taken at capture are the engine's word.
    """
    panel = work.study.panel(receipt["artifact"].rpartition("/")[2])
    table = read_parquet(_path(work, receipt, "capture.parquet"))
    _refuse_other_starts(work, receipt, table)
    keys = zip(table["run"].tolist(), table["window_id"].tolist(), table["position"].tolist(), strict=True)
    told = dict(zip(keys, table["raw_row_sha256"].tolist(), strict=True))
    places = zip(table["launch"].tolist(), table["window_id"].tolist(), strict=True)
    starts = dict(zip(places, table["start"].tolist(), strict=True))
    noted = _noted(work, receipt)
    hashed: dict[str, list[str]] = {}
    entries = []
    for launch in launches_of(work.study.protocol):
        for window in panel.windows if panel.panel in launch.panels else ():
            repeats = []
            for repeat in range(1, launch.repeats + 1):
                run = f"{launch.number}.{repeat}"
                blob = output_blob(receipt, f"rows/{run}/{window.window_id}")
                if not panel.keeps_raw:
                    hashes = [told[(run, window.window_id, row)] for row in window.positions]
                elif blob.sha256 in hashed:
                    hashes = hashed[blob.sha256]
                else:
                    hashes = row_hashes(read_full(work.store.path(blob), window, vocab=panel.vocab))
                    hashed[blob.sha256] = hashes
                files = {panel.panel: {"sha256": blob.sha256, "bytes": blob.bytes}}
                by_row = {str(row): digest for row, digest in zip(window.positions, hashes, strict=True)}
                own = noted.get((run, window.window_id))
                repeats.append({"files": files, "row_sha256": by_row} | ({} if own is None else {"notes": own}))
            entries.append(
                {
                    "path": launch.path, "launch": launch.number, "start": starts[(launch.number, window.window_id)],
                    "window": window.window_id, "panels": [panel.panel], "repeats": repeats,
                }
            )  # fmt: skip
    return captured_made(panel, entries)


def _noted(work: Work, receipt: Receipt) -> dict[tuple[str, str], dict[str, Any]]:
    """What the engine noted of each request, by run and window: its word, of captures that have it."""
    if NOTES_FILE not in {output["name"] for output in receipt["outputs"]}:
        return {}
    said = json.loads(_path(work, receipt, NOTES_FILE).read_bytes())
    named = ("run", "start", "window_id")
    return {(one["run"], one["window_id"]): {name: one[name] for name in one if name not in named} for one in said}


def _refuse_other_starts(work: Work, receipt: Receipt, table: Mapping[str, Any]) -> None:
    """The starts that the rows name are those of the launch that the receipt names. Raises EngcmpError where one is not.

    A capture that was answered from the store keeps the starts of the one that it was answered by.
    """
    if receipt["answered_by"] is not None:
        return
    launch = work.inputs[(LAUNCH, receipt["arm"])].receipt
    starts = json.loads(work.store.path(output_blob(launch, "starts.json")).read_bytes())
    known = {(start["start"], start["launch"], start["path"]) for start in starts if "void" not in start}
    named = set(zip(table["start"].tolist(), table["launch"].tolist(), table["score_path"].tolist(), strict=True))
    if other := sorted(named - known):
        start, number, path = other[0]
        raise EngcmpError(
            f"rows of start {start} (launch {number}, {path}), which the launch of this capture does not have",
            where="capture.parquet", remedy="measure the arm again (--remeasure)",
        )  # fmt: skip


def _replies(work: Work, receipt: Receipt) -> Made:
    """The rows as they are, held against the frozen plan: what a reply says and when it came is the engine's and the client's word."""
    plan = work.file("prompt_set", REPLIES_PLAN)
    rows = pl.read_parquet(_path(work, receipt, REPLIES_FILE)).iter_rows(named=True)
    entries: dict[str, dict[str, Any]] = {row["reply_id"]: {"row": row} for row in rows}
    if TRACES_FILE in {output["name"] for output in receipt["outputs"]}:
        for one in json.loads(_path(work, receipt, TRACES_FILE).read_bytes())["traces"]:
            entries.get(one["reply_id"], {})["trace"] = one
    stages = json.loads(_path(work, receipt, STAGES_FILE).read_bytes())["stages"]
    starts = json.loads(_path(work, receipt, STARTS_FILE).read_bytes())
    disturbed = [flag for flag in receipt["flags"] if flag != "a reply failed"]
    visits = [visit for stage in stages for visit in stage["visits"]]
    return replies_made(parse_asked(plan.read_bytes(), where=str(plan)), entries, visits, starts, disturbed=disturbed)


def _judged(work: Work, receipt: Receipt) -> Made:
    """Replies judged again; what this copy cannot judge keeps its verdict, from which the figures are made again."""
    stored = verdicts_of(
        {name: column.tolist() for name, column in read_parquet(_path(work, receipt, VERDICTS_FILE)).items()}
    )
    return make_again(work, stored, json.loads(_path(work, receipt, CHECKS_FILE).read_bytes())["self_tests"])


def _reference_differences(work: Work, receipt: Receipt) -> Iterator[str]:
    """The table beside the reference's rows, at the rows that are kept in full; the rows themselves are the reference's word."""
    stored = read_parquet(_path(work, receipt, "reference.parquet"))
    keys = zip(stored["window_id"].tolist(), stored["position"].tolist(), strict=True)
    lines = {key: line for line, key in enumerate(keys)}
    names = ("reference_nll", "reference_entropy", "reference_top_id", "reference_top_probability")
    for name in work.study.protocol.panels:
        panel = work.study.panel(name)
        for window in panel.windows if panel.reference == "full" else ():
            logits = read_full(_path(work, receipt, output_name(name, window.window_id)), window, vocab=panel.vocab)
            scores = score_rows(
                logits, logits, window.next_tokens, where=f"window {window.window_id}", jobs=usable_cores()
            )
            own = [lines[(window.window_id, row)] for row in window.positions]
            fresh = {column: np.asarray(getattr(scores, column)) for column in names}
            place = f"reference.parquet, panel {name}, window {window.window_id}"
            yield from _table_differences(fresh, {column: stored[column][own] for column in names}, place)


def _work(session: Session, reached: Reached, receipt: Receipt) -> Work:
    """The work of a receipt as it was: its inputs are the receipts that it names, not today's heads."""
    inputs = {
        (item["artifact"], item["arm"]): Done(reached.receipts[item["receipt_sha256"]], item["receipt_sha256"], True)
        for item in receipt["inputs"]
    }
    arm = ArmKey.parse(receipt["arm"]) if receipt["arm"] else None
    step, said = step_named(session.study, receipt["artifact"]), receipt["parameters"]
    return Work(session, step, arm, inputs, receipt["task_key"], parameters=said)


def _path(work: Work, receipt: Receipt, name: str) -> Path:
    return work.store.path(output_blob(receipt, name))
