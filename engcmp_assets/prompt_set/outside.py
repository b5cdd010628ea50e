"""Windows of panels that come with a fetched data set: laid out once, at the freeze, with the digest of every file of rows.

What is frozen is the token ids, which rows are kept, and the SHA-256 of each file of reference rows: so a set that was fetched again, or
a stand-in in its place, is told from the one that was frozen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from engcmp_assets.kernel.external_panels import ExternalPanel, WindowFiles, refuse_other_panel, windows_of
from engcmp_assets.kernel.panel_files import check_ids, check_roles, rows_of
from engcmp_assets.kernel.protocol import PanelPlan, Protocol
from engcmp_assets.kernel.records import Panel, Role, Window, tokens_sha256
from engcmp_assets.kernel.source_tables import ListedSource
from engcmp_assets.kernel.topk_measures import TopKRows
from engcmp_resources.canonical import sha256_file
from engcmp_resources.errors import EngcmpError
from engcmp_resources.fidelity_set import read_fidelity_set
from engcmp_resources.row_layouts.topk_rows import read_topk_window
from engcmp_resources.teacher_layout import check_teacher_rows, window_tokens

_LENGTH = re.compile(r"-[0-9]+k$")  # what ends the name of a window that is one of several lengths of a document
_REFERENCE = "reference"


def source_folder(protocol: Protocol, plan: ExternalPanel, fetched: Path) -> Path:
    """Where the files of a panel's source lie, below the folder of all that a study has fetched."""
    source = protocol.sources[plan.source]
    return fetched / (source.listed if isinstance(source, ListedSource) else plan.source)


def outside_panels(protocol: Protocol, fetched: Path) -> dict[str, ExternalPanel]:
    """The panels from outside that can be laid out: those whose tokens are known, and whose files are here."""
    waiting = waiting_panels(protocol, fetched)
    return {name: plan.external for name, plan in protocol.panels.items() if plan.external and name not in waiting}


def waiting_panels(protocol: Protocol, fetched: Path) -> dict[str, str]:
    """The panels from outside that cannot be laid out, each with the reason."""
    found = {}
    for name, panel in protocol.panels.items():
        plan = panel.external
        if plan is None:
            continue
        source = protocol.sources[plan.source]
        folder = source_folder(protocol, plan, fetched)
        if plan.tokens_file is None and plan.windows_file is None:
            found[name] = "the token ids of its windows are not published: its files hold rows alone"
        elif not folder.is_dir():
            why = source.why if isinstance(source, ListedSource) else None
            found[name] = (
                f"source {folder.name} is not here: {why or f'`engcmp fetch {protocol.study} --source {folder.name}`'}"
            )
    return found


def with_outside(document: Mapping[str, Any], protocol: Protocol, fetched: Path) -> dict[str, Any]:
    """A prompt set with the windows of the panels from outside that are here.

    Raises EngcmpError for files that are not what the protocol declares, another vocabulary than the other windows', and a name that two
    different windows have.
    """
    windows = {one["window_id"]: one for one in document["windows"]}
    panels = dict(document["panels"])
    for name, plan in outside_panels(protocol, fetched).items():
        if plan.vocab != document["vocab"]:
            raise EngcmpError(
                f"panel {name} is of a vocabulary of {plan.vocab:,}, the prompt set of one of {document['vocab']:,}",
                where=f"source {plan.source}", remedy="panels of one study share one tokenizer",
            )  # fmt: skip
        found = _laid_out(name, protocol.panels[name], plan, source_folder(protocol, plan, fetched))
        for entry, _ in found:
            other = windows.setdefault(entry["window_id"], entry)
            if other["tokens_sha256"] != entry["tokens_sha256"]:
                raise EngcmpError(
                    f"panel {name}: window {entry['window_id']} stands twice, with other tokens", where=f"source {plan.source}",
                    remedy="windows of one study have names of their own",
                )  # fmt: skip
        panels[name] = {entry["window_id"]: kept for entry, kept in found}
    return dict(document) | {"windows": list(windows.values()), "panels": panels}


def rows_files(protocol: Protocol, panel: str, fetched: Path) -> dict[str, Path]:
    """The file of reference rows of each window of a panel from outside. Raises EngcmpError where the source is not as declared."""
    plan = protocol.panels[panel].external
    if plan is None:
        return {}
    folder = source_folder(protocol, plan, fetched)
    if not folder.is_dir():
        raise EngcmpError(
            f"source {plan.source} of panel {panel} is not here", where=str(folder),
            remedy=f"`engcmp fetch {protocol.study} --source {folder.name}`",
        )  # fmt: skip
    return {one.window_id: folder / one.rows for one in _files(panel, plan, folder) if one.rows}


def published_topk(path: Path, window: Window, *, vocab: int, k: int) -> TopKRows:
    """The published top-K rows of a window, in the order of its positions.

    Raises EngcmpError for rows of another window, of other tokens or roles, of another K, or that are missing.
    """
    file = read_topk_window(path, window.window_id)
    found = rows_of(file, window, arm=_REFERENCE, next_token_ids=file.next_token_ids)
    check_roles(file, file.roles[found], window, arm=_REFERENCE)
    if file.top_ids.shape[1] != k:
        raise EngcmpError(
            f"window {window.window_id}: the {file.top_ids.shape[1]:,} most probable tokens, the protocol says {k:,}", where=str(path),
            remedy="fetch the source at its revision",
        )  # fmt: skip
    check_ids(file, file.top_ids[found], window.positions, vocab, arm=_REFERENCE)
    return TopKRows(
        file.top_ids[found], file.top_log_probs[found], file.tail_log_mass[found], file.next_token_log_prob[found]
    )


def _files(panel: str, plan: ExternalPanel, folder: Path) -> tuple[WindowFiles, ...]:
    paths = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]
    return windows_of(plan, paths, panel=panel)


def _laid_out(
    panel: str, kept: PanelPlan, plan: ExternalPanel, folder: Path
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Each window as an entry of the prompt set, and which of its rows the panel keeps."""
    found, windows = [], []
    for window, rows in _windows(panel, kept, plan, folder):
        entry = {
            "window_id": window.window_id, "tokens": list(window.tokens), "tokens_sha256": tokens_sha256(window.tokens),
            "cluster": window.cluster, "block": window.block, "bucket": window.bucket, "from": folder.name,
        }  # fmt: skip
        digest = {"rows_sha256": sha256_file(rows)} if rows is not None else {}
        found.append((entry, {"positions": list(window.positions), "roles": list(window.roles), **digest}))
        windows.append(window)
    refuse_other_panel(Panel(panel, plan.vocab, kept.reference, tuple(windows), kept.top_k, kept.keep), plan)
    return found


def _windows(panel: str, kept: PanelPlan, plan: ExternalPanel, folder: Path) -> Iterator[tuple[Window, Path | None]]:
    """Each window with its file of reference rows, checked; None where there are none."""
    files = _files(panel, plan, folder)
    if plan.windows_file is not None:
        stated = read_fidelity_set(folder / plan.windows_file, vocab=plan.vocab, rows=kept.rows_per_window)
        for one in files:
            if one.window_id not in stated or one.rows is None:
                raise EngcmpError(
                    f"panel {panel}: window {one.window_id} has rows and is not in {plan.windows_file}", where=f"source {plan.source}",
                    remedy="fetch the whole source at its revision",
                )  # fmt: skip
            told, path = stated[one.window_id], folder / one.rows
            window = Window(
                told.window_id, told.tokens, told.positions, told.roles, told.window_id, told.block, told.bucket
            )
            published_topk(path, window, vocab=plan.vocab, k=kept.top_k or 0)
            yield window, path
        return
    role: Role = kept.roles[0]
    for one in files:
        if one.tokens is None:
            raise EngcmpError(f"panel {panel} has no tokens_file", where=f"source {plan.source}", remedy="name one")
        ids = window_tokens(folder, one.window_id, one.tokens, plan.vocab)
        rows, first = None, 0
        if plan.layout == "teacher" and one.rows is not None:
            rows = folder / one.rows
            check_teacher_rows(folder, one.window_id, one.rows, (len(ids) - 1, plan.vocab))
        else:  # tokens alone: the last rows of each, which have the longest context
            first = max(0, len(ids) - 1 - kept.rows_per_window)
        positions = tuple(range(first, len(ids) - 1))
        document = _LENGTH.sub("", one.window_id) if plan.cluster == "document" else one.window_id
        block = next((name for name in plan.windows_by_block if name in one.window_id.split("-")), plan.layout)
        roles = (role,) * len(positions)
        yield Window(one.window_id, ids, positions, roles, document, block, f"upto{len(ids)}"), rows
