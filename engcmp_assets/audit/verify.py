"""`engcmp verify`: a whole run, offline, with no Dagster instance. Every hash, the chain to the frozen hash, every figure again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engcmp_assets.audit.reached import Problem, Reached, leads_to_frozen, orphaned_heads, reached_from_heads
from engcmp_assets.audit.recompute import recompute
from engcmp_assets.frozen_protocol.conformance import conformance_values, frozen_versions
from engcmp_assets.frozen_protocol.freezing import check_versions
from engcmp_assets.kernel.progress import Progress, Say
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.work import Session
from engcmp_resources.canonical import sha256_file
from engcmp_resources.errors import EngcmpError
from engcmp_resources.store import Blob, Store

_RECOMPUTED = ("scores", "tails", "summaries", "comparisons", "publication")


@dataclass(frozen=True, slots=True)
class Verification:
    """What was checked, and every problem found."""

    frozen_sha256: str
    receipts: int
    files: int
    bytes: int
    artifacts_recomputed: int
    figures: int
    problems: tuple[Problem, ...]
    not_made: tuple[str, ...]


def verify(study: Study, store: Store, say: Say, clock_ns: Callable[[], int]) -> Verification:
    """Check everything that the heads of `study` reach. Problems are collected and name their file; nothing is changed.

    Raises EngcmpError only where there is nothing to verify.
    """
    problems = _protocol_problems(study)
    reached = reached_from_heads(store, study.folder.name)
    if not reached.heads and not reached.problems:
        raise EngcmpError(
            f"no result of {study.folder.name} in this store",
            where=str(store.home),
            remedy=f"`engcmp run {study.folder.name}`",
        )
    problems += reached.problems + orphaned_heads(store, study.folder.name, reached)
    problems += _chain_problems(store, study, reached)
    files, size, bad_files = _file_problems(store, reached, say, clock_ns)
    problems += bad_files + _view_problems(store, study, reached)
    recomputed = 0
    if not problems:  # a figure from damaged evidence would only repeat the damage
        session = Session(study, store, "verify", say)
        for sha256, receipt in sorted(reached.current(), key=lambda item: _order(item[1])):
            if receipt["artifact"] not in _RECOMPUTED:
                continue
            recomputed += 1
            name = f"receipts/{sha256}.json"
            owner = f"{receipt['artifact']} of {receipt['arm'] or 'the study'}"
            problems += [Problem(name, f"{owner}: {text}") for text in recompute(session, reached, sha256)]
    figures = {figure["figure_id"] for _, receipt in reached.current() for figure in receipt["figures"]}
    return Verification(
        frozen_sha256=str((study.frozen or {}).get("frozen_sha256", "")),
        receipts=len(reached.receipts),
        files=files,
        bytes=size,
        artifacts_recomputed=recomputed,
        figures=len(figures),
        problems=tuple(problems),
        not_made=tuple(_not_made(study, reached)) if not problems else (),
    )


def _protocol_problems(study: Study) -> list[Problem]:
    try:
        study.require_frozen()
        check_versions(study.frozen or {}, frozen_versions(), conformance_values(), where=str(study.folder))
    except EngcmpError as error:
        return [Problem(f"protocol/{study.folder.name}", str(error))]
    return []


def _chain_problems(store: Store, study: Study, reached: Reached) -> list[Problem]:
    problems = []
    frozen = (study.frozen or {}).get("frozen_sha256")
    for sha256, receipt in reached.current():
        name = f"receipts/{sha256}.json"
        if receipt["frozen_sha256"] != frozen:
            problems.append(
                Problem(name, f"{receipt['artifact']} was made under another frozen hash; run the study again")
            )
        elif not leads_to_frozen(reached, receipt):
            problems.append(Problem(name, f"{receipt['artifact']} does not lead to the frozen protocol"))
        for item in receipt["inputs"]:
            head = reached.heads.get(
                ("_study" if item["arm"] is None else item["arm"].replace("/", "~"), item["artifact"])
            )
            current = reached.receipts.get(head or "")
            if current and current["content_id"] != item["content_id"]:
                problems.append(
                    Problem(
                        name, f"{receipt['artifact']} is older than its input {item['artifact']}; run the study again"
                    )
                )
    return problems


def _file_problems(
    store: Store, reached: Reached, say: Say, clock_ns: Callable[[], int]
) -> tuple[int, int, list[Problem]]:
    """Hash every file that a receipt names, once."""
    blobs = {
        Blob(output["sha256"], output["bytes"], output["suffix"])
        for receipt in reached.receipts.values()
        for output in receipt["outputs"]
    }
    problems, done = [], 0
    total = sum(blob.bytes for blob in blobs)
    progress = Progress(say, "verify", "bytes", total, clock_ns)
    for blob in sorted(blobs, key=lambda item: item.sha256):
        path = store.path(blob)
        name = str(path.relative_to(store.home))
        if not path.is_file():
            problems.append(Problem(name, "file is missing"))
        elif path.stat().st_size != blob.bytes or sha256_file(path) != blob.sha256:
            problems.append(Problem(name, "bytes do not have the hash of the file's name"))
        done += blob.bytes
        progress.update(done, "hashing files")
    return len(blobs), total, problems


def _view_problems(store: Store, study: Study, reached: Reached) -> list[Problem]:
    """A readable name must be a link to the file that the current receipt names."""
    problems = []
    for (folder, artifact), sha256 in reached.heads.items():
        for output in reached.receipts.get(sha256, {}).get("outputs", []):
            suffix, name = output["suffix"], output["name"]
            link = (
                store.home
                / "views"
                / study.folder.name
                / folder
                / artifact
                / (name if name.endswith(f".{suffix}") else f"{name}.{suffix}")
            )
            target = store.path(Blob(output["sha256"], output["bytes"], suffix))
            if not link.is_symlink() or link.resolve() != target.resolve():
                problems.append(
                    Problem(str(link.relative_to(store.home)), "is not a link to the file of the current receipt")
                )
    return problems


def _not_made(study: Study, reached: Reached) -> list[str]:
    """Arms of the protocol and results that this store does not hold."""
    arms = [str(arm) for arm in study.protocol.arm_keys if (arm.folder, "summaries") not in reached.heads]
    wide = [name for name in ("comparisons", "publication") if ("_study", name) not in reached.heads]
    return [*arms, *wide]


def _order(receipt: dict[str, object]) -> tuple[int, str]:
    return _RECOMPUTED.index(str(receipt["artifact"])) if receipt["artifact"] in _RECOMPUTED else -1, str(
        receipt["arm"]
    )
