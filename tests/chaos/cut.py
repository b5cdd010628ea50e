"""A home that lost the captures of two arms, and what is looked at after a kill."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from homes import EVERY_ARM, STUDY, current_receipt, head_file, output_file

from engcmp_assets.audit.collect import remove, unreached
from engcmp_assets.kernel.study import load_study
from engcmp_assets.kernel.tables import read_parquet
from engcmp_resources.canonical import sha256_bytes, sha256_file
from engcmp_resources.journal import read_journal
from engcmp_resources.store import Store

# Arms whose rows no other arm shares, so that a capture has files to write; where they cannot run, those whose rows another shares.
A, B = (f"{checkpoint}/llamacpp@{'b8672' if EVERY_ARM else 'b11549'}" for checkpoint in ("q4_0", "q8_0"))
PANELS = tuple(load_study(STUDY).protocol.panels)
CAPTURED = ["engine_launch/scoring", *(f"captured_rows/{panel}" for panel in PANELS)]
SPEED = ["engine_launch/serving", "throughput_events"]
ANALYSIS = ["scores", "tails", "throughput_cells", "summaries"]
RESULTS = ["comparisons", "publication", "catalog"]


def copy_of(measured: Path, target: Path) -> Path:
    """The results by hard links, without Dagster's event log and unfinished work."""
    apart = shutil.ignore_patterns("dagster", "scratch")
    shutil.copytree(measured, target, symlinks=True, copy_function=os.link, ignore=apart)
    return target


def lose(home: Path, artifacts: list[str], *arms: str | None) -> None:
    """Take artifacts away from arms (None: the study): heads, receipts and index, as if they had never been made."""
    lost = set()
    for path in (home / "receipts").glob("*.json"):
        receipt = json.loads(path.read_bytes())
        if receipt["arm"] in arms and receipt["artifact"] in artifacts:
            lost.add(path.stem)
            path.unlink()
    for task in (home / "tasks").glob("*.json"):
        if json.loads(task.read_bytes()).get("receipt_sha256") in lost:
            task.unlink()
    for arm in arms:
        for artifact in artifacts:
            head_file(home, artifact, arm).unlink(missing_ok=True)


def lose_captures(home: Path) -> int:
    """Everything of A and B from the launch on, the results, and the files that only they named; how many those were."""
    lose(home, [*CAPTURED, *ANALYSIS], A, B)
    lose(home, RESULTS, None)
    store = Store(home)
    with store.alone():
        found = unreached(store)
        remove(store, found, removed_at="before the test")
    return len(found.files)


def lock_path() -> Path:
    return Path(os.environ["ENGCMP_LOCK_DIR"]).resolve() / "engine.lock"


def engines() -> list[int]:
    """Living processes that carry the label of this test's lock (Linux)."""
    label = f"ENGCMP_LOCK={lock_path()}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and label in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:  # another user's, or it has just ended
            continue
    return found


def engines_after(seconds: float) -> list[int]:
    """Engines that still live when that time is over; none as soon as none does."""
    deadline = time.monotonic() + seconds
    while (found := engines()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def lock_is_free() -> bool:
    if not lock_path().exists():
        return True
    with lock_path().open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def journals(home: Path) -> dict[str, list[dict[str, Any]]]:
    """The whole entries of every unfinished capture, by its folder's name."""
    return {path.parent.name: read_journal(path) for path in home.glob("scratch/capture-*/journal.jsonl")}


def windows_of(entries: list[dict[str, Any]]) -> list[tuple[int, str, int]]:
    """Launch, window and start of each captured window, in the order of the journal."""
    return [(one["launch"], one["window"], one["start"]) for one in entries if one["kind"] == "window"]


def captured(home: Path, arm: str) -> dict[tuple[int, str], set[int]]:
    """The starts that measured each launch's window, over all panels, as the captures say."""
    found: dict[tuple[int, str], set[int]] = {}
    for panel in PANELS:
        artifact = f"captured_rows/{panel}"
        table = read_parquet(output_file(home, current_receipt(home, artifact, arm), "capture.parquet"))
        rows = zip(*(table[name].tolist() for name in ("launch", "window_id", "start")), strict=True)
        for launch, window, start in rows:
            found.setdefault((launch, window), set()).add(start)
    return found


def row_files(home: Path, arm: str) -> dict[str, str]:
    """Hash of each captured row file by panel, run and window."""
    found = {}
    for panel in PANELS:
        for output in current_receipt(home, f"captured_rows/{panel}", arm)["outputs"]:
            if output["name"].startswith("rows/"):
                found[f"{panel}/{output['name']}"] = output["sha256"]
    return found


@dataclass
class Watch:
    """Finds half-written files: each new file of the home is looked at once."""

    home: Path
    seen: dict[str, tuple[int, int]] = field(default_factory=dict)

    def half_written(self) -> list[str]:
        """Names of stored files and receipts without the hash of their names, and of heads that are not whole."""
        found = []
        for folder in ("store", "receipts", "heads"):
            for path in sorted((self.home / folder).rglob("*")):
                name = str(path.relative_to(self.home))
                if path.is_dir():
                    continue
                status = path.stat()
                now = (status.st_mtime_ns, status.st_ino)
                if self.seen.get(name) != now:
                    self.seen[name] = now
                    if not _whole(path, folder):
                        found.append(name)
        return found

    def skip_what_is_there(self) -> None:
        """Trust the copied files; `verify` hashes them in the end."""
        for folder in ("store", "receipts", "heads"):
            for path in (self.home / folder).rglob("*"):
                status = path.stat()
                self.seen[str(path.relative_to(self.home))] = (status.st_mtime_ns, status.st_ino)


def _whole(path: Path, folder: str) -> bool:
    if folder == "heads":
        return path.read_bytes().endswith(b"}\n")
    digest = sha256_file(path) if folder == "store" else sha256_bytes(path.read_bytes())
    return digest == path.name.partition(".")[0]
