"""What is published elsewhere and taken by its pin: a checkpoint's files, a drafter, a tokenizer. They lie where `engcmp fetch` puts them.

The store keeps the list of a source's files with the digest of each, which is what a receipt and a launch's identity rest on; the files
themselves, hundreds of gigabytes, are kept once, and are held against that list before each launch.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engcmp_assets.kernel.names import engine_file
from engcmp_assets.kernel.progress import Say
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.source_outputs import TOKENIZER_FILES, checkpoint_output
from engcmp_assets.kernel.source_tables import ListedSource
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.study_sources import SOURCES_FILE, UNKNOWN, StudySource, parse_sources
from engcmp_assets.kernel.study_tables import PublishedCheckpoint
from engcmp_assets.kernel.work import Work, output_blob
from engcmp_resources.canonical import canonical_bytes, parse_canonical
from engcmp_resources.errors import EngcmpError
from engcmp_resources.fetching.base import Pinned, Wanted, place_within
from engcmp_resources.fetching.fetch import fetch_source, fetcher_of, whole_source
from engcmp_resources.fetching.http import Http
from engcmp_resources.fetching.mirror import STAND_IN, mirror_folder
from engcmp_resources.places import home_folder
from engcmp_resources.store import Blob, Store
from engcmp_resources.tokenizing import TOKENIZER_FILE

SCHEMA = "engcmp.source-files/1"
_SEARCHED_BY_LAUNCHERS = ("model", "drafter")


def fetched_folder(study: Study) -> Path:
    """Where what a study lists lies once it is fetched. It is laid out as HF_HOME for the models of the hub."""
    return home_folder() / "fetched" / study.folder.name


def listed_source(study: Study, name: str) -> StudySource:
    """The entry of SOURCES.json that a source of the protocol names. Raises EngcmpError for a source that is none."""
    entry = study.protocol.sources.get(name)
    if not isinstance(entry, ListedSource):
        raise EngcmpError(
            f"source {name} is no list of files", where=f"study {study.protocol.study}",
            remedy=f"name one of {SOURCES_FILE}, of kind hf or mirror",
        )  # fmt: skip
    return parse_sources(study.files[SOURCES_FILE], where=str(study.folder / SOURCES_FILE)).source(entry.listed)


def wanted_of(source: StudySource) -> Wanted:
    """An entry of SOURCES.json as a fetcher takes it. Raises EngcmpError for one whose place or revision is not known.

    A model of the hub lies as in the cache of the hub's own client, which is where launchers look for it.
    """
    source.require_pinned()
    files = source.files
    pinned = None if isinstance(files, str) else tuple(
        Pinned(one.path, None if one.sha256 == UNKNOWN else one.sha256, one.bytes if isinstance(one.bytes, int) else None)
        for one in files
    )  # fmt: skip
    place = None
    if source.kind == "hf" and source.repo_type == "model" and source.role in _SEARCHED_BY_LAUNCHERS:
        place = f"hub/models--{source.where.replace('/', '--')}/snapshots/{source.revision}"
    return Wanted(
        source.id, source.kind, source.where, source.revision, pinned or None, tuple(source.include), source.repo_type, place
    )  # fmt: skip


def file_sources(study: Study, arm: ArmKey) -> dict[str, str]:
    """The sources of which an arm takes the files as they are published, by the output that lists them."""
    protocol, found = study.protocol, dict[str, str]()
    checkpoint = protocol.checkpoint_of(arm)
    if isinstance(checkpoint, PublishedCheckpoint):
        found[checkpoint_output(protocol, arm)] = checkpoint.published
    for role, source in protocol.roles_of(arm).items():
        entry = protocol.sources[source]
        if isinstance(entry, ListedSource) and entry.kind in ("hf", "mirror"):
            found[engine_file(role)] = source
    if protocol.prompt_set.tokenizer is not None:
        found[TOKENIZER_FILES] = protocol.prompt_set.tokenizer
    return found


def pins_of(study: Study, sources: Sequence[str]) -> dict[str, Any]:
    """What the protocol pins of each: the part of an entry that its content follows from."""
    told = ("id", "kind", "where", "revision", "repo_type", "include", "files", "stand_in")
    return {name: {field: listed_source(study, name).model_dump()[field] for field in told} for name in sources}


def fetched_files(study: Study, name: str, say: Say) -> tuple[StudySource, list[dict[str, Any]]]:
    """A source of the protocol with the list of its files, once all of them are here; ENGCMP_MIRROR is asked in place of a network.

    Raises EngcmpError, naming the source, for one whose pin is not known, and for the first file that cannot be had; another call goes on.
    """
    entry = listed_source(study, name)
    try:
        wanted = wanted_of(entry)
        # Looked at before a place is chosen: what is whole needs neither a network nor a mirror.
        records = whole_source(wanted, fetched_folder(study))
        if records is None:
            fetcher = fetcher_of(wanted, mirror_folder(None), Http())
            records = fetch_source(wanted, fetched_folder(study), fetcher, say)
    except EngcmpError as error:
        raise EngcmpError(
            f"source {name} ({entry.id}) cannot be taken: {error.what}", where=error.where,
            remedy=f"{error.remedy}; `engcmp fetch {study.folder.name} --source {entry.id} --dry-run` says what it is and how big",
        ) from error  # fmt: skip
    return entry, records


def files_list(study: Study, entry: StudySource, records: Sequence[Mapping[str, Any]]) -> bytes:
    """What `sources` keeps of a source: where it is from, and path, SHA-256 and size of each file."""
    files = [{name: one[name] for name in ("path", "sha256", "bytes")} for one in records]
    return canonical_bytes(
        {
            "schema": SCHEMA, "source": entry.id, "kind": entry.kind, "where": entry.where, "revision": entry.revision,
            "licence": entry.licence, "stand_in": stand_in_of(study, entry) or False,
            "files": sorted(files, key=lambda one: str(one["path"])),
        }
    )  # fmt: skip


def stand_in_of(study: Study, entry: StudySource) -> str | None:
    """What a source's files stand in for: as its entry says, or a file STAND-IN beside them; None for the original."""
    told = fetched_folder(study) / (wanted_of(entry).folder if entry.pinned else entry.id) / STAND_IN
    return entry.stand_in or (told.read_text(encoding="utf-8").strip() if told.is_file() else None)


def tokenizer_path(study: Study, name: str, say: Say) -> Path:
    """The `tokenizer.json` of a source of the protocol, fetched where it is not here. Raises EngcmpError for a source without one."""
    entry, records = fetched_files(study, name, say)
    found = [one for one in records if str(one["path"]).rsplit("/", 1)[-1] == TOKENIZER_FILE]
    if len(found) != 1:
        raise EngcmpError(
            f"source {name} ({entry.id}) has {len(found)} files {TOKENIZER_FILE}, one is needed", where=entry.where,
            remedy="name the one in its `files` or `include`",
        )  # fmt: skip
    root = place_within(fetched_folder(study), wanted_of(entry).folder, f"source {entry.id}")
    return place_within(root, str(found[0]["path"]), f"source {entry.id}")


def stored_copy(store: Store, path: Path) -> Blob:
    """A small file in the store; the one that was fetched stays where it is."""
    copy = store.temporary()
    shutil.copyfile(path, copy)
    return store.put_file(copy, path.suffix.lstrip("."))


def listed_folder(work: Work, output: str) -> Path:
    """The folder of a source's files, each held against the list that `sources` kept. Raises EngcmpError that names the first other one."""
    name = file_sources(work.study, _arm(work))[output]
    document = parse_canonical(
        work.file("sources", output).read_bytes(), what=output, where=output, remedy="materialize sources again"
    )
    entry = listed_source(work.study, name)
    wanted, root = wanted_of(entry), fetched_folder(work.study)
    folder = place_within(root, wanted.folder, f"source {entry.id}")
    records = {str(one["path"]): str(one["sha256"]) for one in whole_source(wanted, root) or ()}
    for one in document["files"]:
        if records.get(one["path"]) != one["sha256"]:
            lacks = "is not as it was fetched" if (folder / one["path"]).is_file() else "is not here"
            lacks = lacks if records else "is not here whole, or was changed since it was fetched"
            raise EngcmpError(
                f"{work.arm}: source {entry.id}: {one['path'] if records else wanted.folder} {lacks}", where=str(folder),
                remedy=f"`engcmp fetch {work.study.folder.name} --source {entry.id}` brings it",
            )  # fmt: skip
    return folder


def sizes_of(store: Store, receipt: Mapping[str, Any], output: str) -> int:
    """Bytes of all files that a list of files has."""
    data = store.path(output_blob(receipt, output)).read_bytes()
    document = parse_canonical(data, what=output, where=output, remedy="materialize sources again")
    return sum(int(one["bytes"]) for one in document["files"])


def _arm(work: Work) -> ArmKey:
    if work.arm is None:
        raise EngcmpError("sources belong to an arm", remedy="choose a partition")
    return work.arm
