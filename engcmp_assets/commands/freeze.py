"""`engcmp freeze` and `engcmp amend`: tokenize the texts, and write FROZEN.json."""

from __future__ import annotations

import datetime
import importlib.metadata
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from engcmp_assets.commands.paths import PathArgument
from engcmp_assets.frozen_protocol.amending import kept_text, reading_rule
from engcmp_assets.frozen_protocol.conformance import frozen_values, frozen_versions
from engcmp_assets.frozen_protocol.engine_settings import refuse_unknown_engines
from engcmp_assets.frozen_protocol.freezing import frozen_differences, frozen_document
from engcmp_assets.frozen_protocol.iteration_freeze import freeze_iteration, stranded
from engcmp_assets.frozen_protocol.published_copy import COPY_FILE, published_copy
from engcmp_assets.kernel.names import EVENTS, REPLIES
from engcmp_assets.kernel.progress import stderr_line
from engcmp_assets.kernel.prompt_files import is_laid_out
from engcmp_assets.kernel.protocol import PROTOCOL_FILE, parse_protocol
from engcmp_assets.kernel.study import Study, load_study
from engcmp_assets.prompt_set.making import (
    Maker,
    has_anything,
    maker_of,
    planned_files,
    prompt_set_bytes,
    tokenizer_file,
    waits,
)
from engcmp_resources.canonical import canonical_bytes, sha256_bytes
from engcmp_resources.disk import make_folder, replace_visible
from engcmp_resources.errors import EngcmpError
from engcmp_resources.host import environment
from engcmp_resources.old_files import keep_files, old_files
from engcmp_resources.places import FROZEN_FILE, ITERATIONS, home_folder
from engcmp_resources.store import Store

_KEPT = "protocols"
"""Where ENGCMP_HOME keeps the bytes of what was frozen, so that an amendment can show the old text."""
_DATA = ("captured_rows/", EVENTS, REPLIES, "comparisons", "publication")


@click.command(epilog="Example: engcmp freeze my-study")
@click.argument("study")
@click.option(
    "--iteration", help="Freeze only iterations/NAME.toml, which adds to a frozen study and changes nothing of it."
)
@click.option(
    "--copy",
    "copy",
    type=PathArgument(),
    help="Write a copy of the frozen STUDY for others there; freeze nothing.",
)
@click.option(
    "--placeholder",
    "placeholders",
    multiple=True,
    metavar="NAME=TEXT",
    help="In the copy <NAME> stands for this private text (may be given more than once).",
)
def freeze(study: str, iteration: str | None, copy: Path | None, placeholders: Sequence[str]) -> None:
    """Freeze STUDY for the first time: make its prompt set from the texts, and write the hash of every protocol file and measure."""
    if placeholders and copy is None:
        raise click.UsageError("--placeholder goes with --copy: it changes nothing but the copy")
    if copy is not None:
        _write_copy(load_study(study), copy, placeholders)
        return
    if iteration is not None:
        click.echo(freeze_iteration(load_study(study), iteration))
        return
    loaded = _frozen_part(study)
    if loaded.frozen is not None:
        _refuse_damaged(loaded)
        changed = [what for _, what in frozen_differences(loaded.files, loaded.frozen)]
        if not changed:
            click.echo(f"{study}: frozen already as {loaded.frozen_sha256}, nothing has changed since")
            return
        raise EngcmpError(
            f"study {study} was frozen before: {changed[0]}", where=str(loaded.folder / FROZEN_FILE),
            remedy=f"restore it, or `engcmp amend {study} --because WHY`; a new arm needs no amendment but an iteration",
        )  # fmt: skip
    _write_freeze(_with_prompts(loaded), amendments=[])


@click.command(epilog='Example: engcmp amend smollm2-cpu --because "a fourth block, asked for in review"')
@click.argument("study")
@click.option("--because", required=True, help="Why the frozen protocol changes; it is kept in FROZEN.json.")
@click.option(
    "--reading",
    help="In your own words, how results from before are to be read; kept beside the rule that applies to them.",
)
def amend(study: str, because: str, reading: str | None) -> None:
    """Freeze STUDY anew under another hash, with the reason, the old text, the data there were, and how those are read.

    Results made before belong to the old hash. They can be primary results of the new one only where the amendment changes nothing of
    what is captured and how it is judged.
    """
    loaded = _frozen_part(study)
    if loaded.frozen is None:
        raise EngcmpError(
            f"study {study} was never frozen", where=str(loaded.folder), remedy=f"`engcmp freeze {study}`"
        )
    if not because.strip():
        raise click.UsageError("--because needs a reason")
    _refuse_damaged(loaded)
    amended = _with_prompts(loaded)
    if _is_unchanged(amended, loaded.frozen):
        click.echo(f"{study}: nothing has changed since {loaded.frozen_sha256} was frozen; it stays")
        return
    number = len(loaded.frozen["amendments"]) + 1
    changed = [what for _, what in frozen_differences(amended.files, loaded.frozen)]
    old = old_files(home_folder() / _KEPT, loaded.folder, _other_than(loaded.frozen["files"], amended.files))
    kept = kept_text(number, loaded.frozen["files"], amended.files, old)
    for one in kept.values():
        if "as" in one:
            target = loaded.folder / one["as"]
            make_folder(target.parent)
            replace_visible(target, old[one["sha256"]])
    reading_of = _reading(loaded, amended, old, own=reading)
    entry: dict[str, Any] = {
        "from": loaded.frozen_sha256,
        "because": because,
        "changed": changed,
        "amended_at": _now(),
        "kept": kept,
        "data": _data_now(loaded, Store(home_folder())),
        "reading": reading_of,
    }
    _write_freeze(_frozen_part(study), amendments=[*loaded.frozen["amendments"], entry])
    click.echo(f"Before it was {loaded.frozen_sha256}. {reading_of['says']}")
    click.echo(f"To have results under the new hash: engcmp run {study} (what is the same is answered from the store)")
    lost = [name for name, one in kept.items() if "missing" in one]
    if lost:
        click.echo(
            f"The old text of {', '.join(lost)} was found nowhere and is not kept: commit a study before it is amended"
        )


def _refuse_damaged(loaded: Study) -> None:
    """A freeze that is not as it was written can neither stand nor be amended: what it froze is not known."""
    for name, what in frozen_differences({}, loaded.frozen or {}):
        if name == FROZEN_FILE:
            where = str(loaded.folder / FROZEN_FILE)
            raise EngcmpError(what, where=where, remedy="restore it from git: `git checkout FROZEN.json` in its folder")


def _write_copy(study: Study, to: Path, placeholders: Sequence[str]) -> None:
    """The frozen protocol with placeholders, and COPY.json with both hashes of each file."""
    study.require_frozen()
    texts = {name: text for name, _, text in (one.partition("=") for one in placeholders)}
    files, document = published_copy(study.files, texts, study=study.folder.name, frozen_sha256=study.frozen_sha256)
    if to.resolve().is_relative_to(study.folder.parent.resolve()):
        raise EngcmpError(
            "the folder lies among the protocols, where it would be taken for a part of one",
            where=str(to),
            remedy="name a place outside",
        )
    if to.exists() and any(to.iterdir()):
        raise EngcmpError("the folder is not empty", where=str(to), remedy="name another one")
    for name, data in (files | {COPY_FILE: canonical_bytes(document)}).items():
        make_folder((to / name).parent)
        replace_visible(to / name, data)
    replaced = sum(1 for one in document["files"].values() if one["placeholders"])
    click.echo(
        f"{study.folder.name}: {len(files)} files copied to {to}, {replaced} with placeholders; {COPY_FILE} has both hashes"
    )


def _other_than(was: Mapping[str, str], now: Mapping[str, bytes]) -> dict[str, str]:
    return {name: sha256 for name, sha256 in was.items() if name not in now or sha256_bytes(now[name]) != sha256}


def _reading(loaded: Study, amended: Study, old: Mapping[str, bytes], *, own: str | None) -> dict[str, str]:
    """How results from before are read, held against the old protocol as far as its text is known."""
    frozen = loaded.frozen or {}
    was: dict[str, str] = frozen["files"]
    files = {
        name: data for name, sha256 in was.items() if (data := old.get(sha256, amended.files.get(name))) is not None
    }
    try:
        whole = all(name in files and sha256_bytes(files[name]) == sha256 for name, sha256 in was.items())
        before = parse_protocol(files[PROTOCOL_FILE], where=PROTOCOL_FILE, files=files) if whole else None
    except EngcmpError:  # written in a form that this code no longer reads
        before = None
    prompts = amended.base.prompt_set.file
    versions, values = _covered(amended)
    now = frozen_document(loaded.folder.name, amended.files, versions, values, frozen_at=_now(), tools={})
    same = frozen["conformance"].items() <= now["conformance"].items()
    same = same and all(
        entries.items() <= now["versions"].get(kind, {}).items() for kind, entries in frozen["versions"].items()
    )
    return reading_rule(
        before, amended.base, same_prompts=was.get(prompts) == now["files"].get(prompts), same_versions=same, own=own
    )


def _data_now(study: Study, store: Store) -> list[dict[str, str]]:
    """What was measured and judged of the study up to now, whatever it was frozen as: each current result by its receipt."""
    found = []
    root = store.home / "heads" / study.folder.name
    for path in sorted(root.rglob("*.json")) if root.is_dir() else ():
        arm, _, artifact = path.relative_to(root).with_suffix("").as_posix().partition("/")
        if artifact.startswith(_DATA):
            sha256 = store.head(study.folder.name, arm, artifact)
            receipt = store.read_receipt(str(sha256))
            found.append({
                "arm": arm.replace("~", "/"), "artifact": artifact, "receipt_sha256": str(sha256),
                "frozen_sha256": receipt["frozen_sha256"], "finished_at": receipt["finished_at"],
            })  # fmt: skip
    return found


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def _is_unchanged(study: Study, frozen: Mapping[str, Any]) -> bool:
    """Whether a freeze made now would differ from `frozen` in nothing but its amendments."""
    now = frozen_document(study.folder.name, study.files, *_covered(study), frozen_at=_now(), tools={})
    return all(now[part] == frozen.get(part) for part in ("files", "versions", "conformance"))


def _frozen_part(study: str) -> Study:
    """The study without its iterations: they extend the freeze that is made here, or the one before it."""
    return replace(load_study(study), iteration_files={})


def _with_prompts(loaded: Study) -> Study:
    """The study with the prompt set of its texts and of the panels from outside that are here. What is to be frozen must be readable."""
    base, folder = loaded.base, loaded.folder
    refuse_unknown_engines(base, where=str(folder / PROTOCOL_FILE))
    maker = _maker(loaded, or_none=base.only_outside)
    if base.only_outside:
        # What is not here waits: it is frozen by the pins that name it, and an amendment brings it in.
        for line in waits(loaded, maker):
            click.echo(line)
        if not has_anything(loaded, maker):
            return loaded
    prompts = prompt_set_bytes(loaded, maker)
    files: dict[str, bytes | None] = {base.prompt_set.file: prompts}
    files |= planned_files(loaded, maker, prompts)
    for name, data in files.items():
        if data is None:
            (folder / name).unlink(missing_ok=True)
        else:
            replace_visible(folder / name, data)
    if maker is not None and maker.record is not None and maker.record["stand_in"]:
        click.echo(f"the prompt set is made with a stand-in for the tokenizer: {maker.record['stand_in']}")
    study = _frozen_part(folder.name)
    for name in study.base.panels:
        if not base.only_outside or is_laid_out(prompts, name):
            study.panel(name)
    return study


def _maker(loaded: Study, *, or_none: bool) -> Maker | None:
    """Whose tokenizer makes the prompt set. One that cannot be had is no error where panels from outside need none (`or_none`)."""
    try:
        path = tokenizer_file(loaded, Store(home_folder()), stderr_line)
    except EngcmpError as error:
        if not or_none:
            raise
        click.echo(f"no tokenizer: {error.what}")
        return None
    return None if path is None else maker_of(loaded, path)


def _covered(study: Study) -> tuple[dict[str, dict[str, Any]], dict[str, float]]:
    """What the freeze covers beside the files: versions, and values on the conformance vector."""
    return frozen_versions(study.base), frozen_values(study.base)


def _write_freeze(study: Study, *, amendments: list[dict[str, Any]]) -> None:
    name = study.folder.name
    tools = {"engcmp": importlib.metadata.version("engcmp"), "python": environment()["python"]} | environment()[
        "packages"
    ]
    at = str(amendments[-1]["amended_at"]) if amendments else _now()
    document = frozen_document(name, study.files, *_covered(study), amendments, frozen_at=at, tools=tools)
    keep_files(home_folder() / _KEPT, study.files)
    replace_visible(study.folder / FROZEN_FILE, canonical_bytes(document))
    click.echo(f"{name}: {len(document['files'])} files frozen as {document['frozen_sha256']}")
    for iteration in stranded(load_study(name)):
        click.echo(
            f"Iteration {iteration} extends another freeze and must be looked at: engcmp freeze {name} --iteration {iteration}, "
            f"or remove its files in {study.folder / ITERATIONS}"
        )
