"""`engcmp verify` on a store of very many artifacts: its bytes a second against `sha256sum` on the same files.

A home is filled with receipts of one artifact, each with a file of its own of random bytes, as a year of re-runs would leave them; then
receipts are read and checked, and every file is hashed, as `verify` does. In each turn `sha256sum` hashes the same files, receipts
included, once in one process and once in as many as there are cores; ratios are medians of each turn's ratios. What verify does
besides (recomputing figures) grows with the study and not with the store. Wanted: 0.9 of sha256sum's bytes a second or more.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engcmp_assets.audit.reached import reached_from_heads
from engcmp_assets.audit.verify import file_problems
from engcmp_assets.kernel.receipts import SCHEMA, Output, content_id, task_key
from engcmp_resources.canonical import canonical_bytes, sha256_bytes
from engcmp_resources.host import usable_cores
from engcmp_resources.store import Blob, Store

STUDY = "bench"
_ENOUGH = 0.9
_TIME = "2026-01-01T00:00:00.000+00:00"


def fill(store: Store, artifacts: int, file_bytes: int) -> int:
    """Write `artifacts` receipts, each with a file of about `file_bytes` bytes; returns the bytes of both. Not fsynced: it is a scene."""
    written = 0
    for number in range(artifacts):
        data = os.urandom(file_bytes)
        blob = Blob(sha256_bytes(data), len(data), "bin")
        receipt = canonical_bytes(_receipt(number, blob))
        for path, content in ((store.path(blob), data), (store.receipt_path(sha256_bytes(receipt)), receipt)):
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
            written += len(content)
    return written


def _receipt(number: int, blob: Blob) -> dict[str, Any]:
    output = Output("rows", blob.sha256, blob.bytes, blob.suffix)
    outputs = [
        {"name": output.name, "sha256": output.sha256, "bytes": output.bytes, "suffix": output.suffix, "role": "data", "rows": None,
         "columns": []}
    ]  # fmt: skip
    parameters, versions = {"number": number, "note": "x" * 1000}, {"bench": 1}
    key = task_key("captured_rows", parameters, [], versions)
    return {
        "schema": SCHEMA, "study": STUDY, "frozen_sha256": "0" * 64, "iterations": [], "artifact": "captured_rows",
        "arm": f"q{number}/llamacpp@b1", "task_key": key, "content_id": content_id(key, outputs), "parameters": parameters,
        "versions": versions, "inputs": [], "outputs": outputs, "code": {}, "environment": {}, "run_id": "bench", "started_at": _TIME,
        "finished_at": _TIME, "figures": [], "checks": [], "flags": [], "details": {}, "answered_by": None, "measurement": 1,
    }  # fmt: skip


def verify_once(home: Path, artifacts: int) -> None:
    """The part of `verify` that grows with the store. Raises SystemExit unless every receipt and file was looked at and is sound."""
    store = Store(home, read_only=True)
    reached = reached_from_heads(store, STUDY)
    files, _, problems = file_problems(store, reached, lambda _: None, time.monotonic_ns)
    if problems or reached.problems or not files == len(reached.history) == artifacts:
        raise SystemExit(
            f"the scene does not verify: {files} files, {'; '.join(map(str, [*reached.problems, *problems][:3]))}"
        )


def sha256sum(home: Path, jobs: int) -> None:
    """`sha256sum` over every file of the home, in `jobs` processes."""
    found = subprocess.Popen(
        ["find", str(home / "store"), str(home / "receipts"), "-type", "f", "-print0"], stdout=subprocess.PIPE
    )
    command = ["xargs", "-0", "-n", "500", "-P", str(jobs), "sha256sum"]
    subprocess.run(command, stdin=found.stdout, stdout=subprocess.DEVNULL, check=True)
    found.wait()


def seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="Example: bench_verify.py --artifacts 10000 --bytes 1000000"
    )
    parser.add_argument("--artifacts", type=int, default=100_000)
    parser.add_argument(
        "--bytes", type=int, default=64 << 10, dest="file_bytes", help="of each artifact's file [default: 64 KiB]"
    )
    parser.add_argument("--turns", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="engcmp-bench-") as folder:
        home = Path(folder)
        size = fill(Store(home), given.artifacts, given.file_bytes)
        cores = usable_cores()
        print(f"{given.artifacts} artifacts, {size / 1e9:.2f} GB, {cores} cores, {given.turns} turns", flush=True)
        sha256sum(home, cores)  # all in the page cache, as far as it fits
        turns: list[tuple[float, float, float]] = []
        for _ in range(given.turns):
            ours, one, all_cores = (
                seconds(lambda: verify_once(home, given.artifacts)),
                seconds(lambda: sha256sum(home, 1)),
                seconds(lambda: sha256sum(home, cores)),
            )
            turns.append((ours, one, all_cores))
            print(
                f"verify {ours:.1f} s, sha256sum in one process {one:.1f} s, in {cores} {all_cores:.1f} s", flush=True
            )
        rate = statistics.median(size / ours for ours, _, _ in turns) / 1e6
        for name, ratio in (
            ("one process", statistics.median(one / ours for ours, one, _ in turns)),
            (f"{cores} processes", statistics.median(every / ours for ours, _, every in turns)),
        ):
            print(f"verify {rate:.0f} MB/s: {ratio:.2f} of sha256sum in {name} ({_ENOUGH} wanted)")


if __name__ == "__main__":
    main()
