"""A study of many arms in Dagster: how long and how large the code location is, the sensors' ticks, and each page of the UI.

Every arm's artifacts are made for real (the captures of all but two arms are answered from the store), and reported to Dagster
as events of their own receipts; the study-wide results are a real run. Pages are timed in Chromium until they can be used.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
from growing import PREFIX, WIDE, GrowingStudy, home_argument, print_table, temporary_root
from homes import CHECKOUT
from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import Page, expect, sync_playwright
from ui_process import Ui, processes_of, running_ui

from engcmp_assets import events
from engcmp_assets.automation import sync_partitions
from engcmp_assets.commands.instance import open_instance
from engcmp_assets.kernel.work import Session
from engcmp_assets.steps import steps_of

CHROMIUM = os.environ.get("ENGCMP_CHROMIUM", "/usr/bin/chromium")
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
_LOAD_S, _LOAD_MB, _PAGE_MS = 3.0, 300.0, 60_000
# In a process of its own: what it costs to have every spec and job of the code location, then one tick of each sensor.
_LOAD = """
import json, sys, time
from pathlib import Path
from definitions import defs
specs = list(defs.resolve_all_asset_specs())
jobs = [job.name for job in defs.resolve_all_job_defs()]
loaded = time.time()
pss = next(line for line in Path("/proc/self/smaps_rollup").read_text().splitlines() if line.startswith("Pss:"))
import dagster as dg
instance = dg.DagsterInstance.get()
ticks = {}
for sensor in defs.sensors or []:
    if sensor.default_status is not dg.DefaultSensorStatus.RUNNING:
        continue  # it asks a place outside
    cursor, ticks[sensor.name] = None, []
    for _ in range(2):
        with dg.build_sensor_context(instance=instance, definitions=defs, cursor=cursor) as context:
            started = time.perf_counter()
            told = sensor(context)
            ticks[sensor.name].append(time.perf_counter() - started)
            cursor = getattr(told, "cursor", None) or cursor
print(json.dumps({"loaded": loaded, "pss_mb": int(pss.split()[1]) / 1024, "specs": len(specs), "jobs": jobs, "ticks": ticks}))
"""


def load_location(home: Path) -> dict[str, Any]:
    """Load the code location in a fresh process: seconds from its start, PSS after loading and peak RSS in MB, ticks in seconds."""
    started = time.time()
    environment = os.environ | {"DAGSTER_HOME": str(home / "dagster")}
    command = [sys.executable, "-W", "ignore", "-c", _LOAD]
    done = subprocess.run(command, env=environment, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return found | {"seconds": found["loaded"] - started, "peak_mb": peak}


def report_events(study: GrowingStudy, runs: int) -> int:
    """Each arm's receipts as Dagster events, and `runs` finished runs; the number of events."""
    session, count = study.session(), 0
    with open_instance() as instance:
        sync_partitions(instance, session.study)
        for arm in session.study.protocol.arm_keys:
            for step in steps_of(session.study):
                done = session.current(step.artifact, arm) if step.per_arm else None
                if done is not None:
                    instance.report_runless_asset_event(
                        _event(session, str(arm), events.materialize_result(session, step, arm, done))
                    )
                    count += 1
        for arm in session.study.protocol.arm_keys[:runs]:
            tags = {"dagster/partition": str(arm)}
            instance.add_run(dg.DagsterRun(job_name=f"{PREFIX}_arm", status=dg.DagsterRunStatus.SUCCESS, tags=tags))
    return count


def _event(session: Session, arm: str, result: Any) -> dg.AssetMaterialization:
    tags = {"dagster/data_version": result.data_version.value}
    return dg.AssetMaterialization(result.asset_key, partition=arm, metadata=result.metadata, tags=tags)


# ---------------------------------------------------------------- pages


def pages(ui: Ui, arm: str) -> dict[str, Callable[[Page], None]]:
    """Each page by name: goes there, and returns when it can be used."""

    def goes(path: str, *shown: str) -> Callable[[Page], None]:
        def visit(page: Page) -> None:
            page.goto(f"{ui.url}{path}", wait_until="commit")
            for selector in shown:
                expect(page.locator(selector).filter(visible=True).first).to_be_visible()

        return visit

    def dialog(page: Page) -> None:
        page.get_by_role("button", name="Materialize all").click()
        page.get_by_text("Select a partition or create one").click()
        expect(page.get_by_text(arm).filter(visible=True).last).to_be_visible()

    asset = f"/assets/{PREFIX}/summaries"
    receipt = 'td:has-text("receipt_sha256")'
    return {
        "catalog": goes("/assets", f'a[href="{asset}"]'),
        "asset page, summaries": goes(asset, 'button:has-text("Description")'),
        "its partitions": goes(f"{asset}?view=partitions", f'text="{arm}"'),
        "one partition": goes(f"{asset}?view=partitions&partition={arm.replace('/', '%2F')}", receipt),
        "publication, events": goes(f"/assets/{PREFIX}/publication?view=events", receipt),
        "comparisons, events": goes(f"/assets/{PREFIX}/comparisons?view=events", receipt),
        "lineage graph": goes(
            "/asset-groups", 'button:has-text("Materialize all"):not([disabled])', "text=/^results$/"
        ),
        "launch dialog (from the graph)": dialog,
        "runs": goes("/runs", f"text=/{PREFIX}_arm|{arm}/"),
    }


def time_pages(ui: Ui, arm: str, rounds: int, shots: Path | None) -> list[tuple[str, list[float]]]:
    """Seconds until each page can be used, in each round (infinity: not in time); the first round fills the browser's cache."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=list(_FLAGS))
        page = chromium.new_page(viewport={"width": 1500, "height": 1000})
        page.set_default_timeout(_PAGE_MS)
        expect.set_options(timeout=_PAGE_MS)
        seconds: dict[str, list[float]] = {}
        for _ in range(rounds):
            for name, visit in pages(ui, arm).items():
                started = time.monotonic()
                try:
                    visit(page)
                    seconds.setdefault(name, []).append(time.monotonic() - started)
                except (AssertionError, PlaywrightError):
                    seconds.setdefault(name, []).append(math.inf)
                if shots is not None:
                    page.screenshot(path=shots / f"{re.sub(r'[^a-z]+', '_', name)}.png", animations="disabled")
        chromium.close()
    return list(seconds.items())


def pss_of(home: Path) -> float:
    """PSS in MB of every process that serves `home` (Linux)."""
    total = 0
    for line in processes_of(home):
        text = Path("/proc", line.split()[0], "smaps_rollup").read_text(encoding="utf-8")
        total += int(re.findall(r"^Pss:\s+(\d+)", text, re.M)[0])
    return total / 1024


def run(root: Path, home: Path, arms: int, rounds: int, shots: Path | None) -> None:
    """Measure and print each table as soon as it is there."""
    study = GrowingStudy(root, home, engines=arms // 2)
    with study.in_place():
        with open_instance():
            pass
        loads = [load_location(study.tiny.home) for _ in range(rounds)]
        count = len(study.arms)
        print_table(
            (f"code location, {count} arms", "seconds", f"below {_LOAD_S:.0f}", "peak MB", f"below {_LOAD_MB:.0f}", "PSS MB"),
            [
                (f"load {place}", f"{one['seconds']:.2f}", _yes(one["seconds"] < _LOAD_S), f"{one['peak_mb']:.0f}",
                 _yes(one["peak_mb"] < _LOAD_MB), f"{one['pss_mb']:.0f}")
                for place, one in enumerate(loads, start=1)
            ],
        )  # fmt: skip
        started = time.monotonic()
        study.fill(count)
        made = time.monotonic()
        wide = study.results()
        told = time.monotonic()
        reported = report_events(study, count)
        ended = time.monotonic()
        size = sum(file.stat().st_size for file in (study.tiny.home / "dagster").rglob("*") if file.is_file())
        print_table(
            (f"results of {count} arms", "seconds"),
            [
                ("artifacts of the arms, without Dagster", f"{made - started:.1f}"),
                *((name, f"{sum(one.seconds for one in wide if one.step.endswith(name)):.1f}") for name in WIDE),
                (f"{reported} events reported ({size / 1e6:.0f} MB of event log)", f"{ended - told:.1f}"),
            ],
        )
        ticks = load_location(study.tiny.home)["ticks"]
        print_table(
            ("sensors that are always on", "first tick s", "next tick s"),
            [(name, *(f"{value:.3f}" for value in values)) for name, values in ticks.items()],
        )
        arm = str(study.arms[0])
        opened = time.monotonic()
        with running_ui(study.tiny.home) as ui:
            start_s = time.monotonic() - opened
            timed = time_pages(ui, arm, rounds, shots)
            memory = pss_of(study.tiny.home)
        print_table(
            (f"page, {count} partitions", *(f"round {place + 1} s" for place in range(rounds))),
            [
                ("start of engcmp ui", f"{start_s:.2f}", *[""] * (rounds - 1)),
                *((name, *(f"{value:.2f}" for value in values)) for name, values in timed),
            ],
        )
        print(f"memory of the UI's processes: {memory:.0f} MB PSS")


def _yes(holds: bool) -> str:
    return "yes" if holds else "NO"


def main() -> None:
    """Read the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, epilog="Example: bench_location.py --arms 20")
    parser.add_argument("--arms", type=int, default=200, help="Arms of the study, beside the tiny one's own.")
    parser.add_argument("--rounds", type=int, default=2, help="How often each page is opened.")
    parser.add_argument("--screenshots", type=Path, help="A folder that exists, for a picture of each page.")
    home_argument(parser)
    given = parser.parse_args()
    with temporary_root(given.home) as root:
        run(root, given.home, given.arms, given.rounds, given.screenshots)


if __name__ == "__main__":
    main()
