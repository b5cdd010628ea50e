"""A new engine version in a real browser, on a tiny study: looked for, approved, measured by itself, and pushed again; then a backfill."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from tiny import BASE_ARM, TINY, TinyStudy
from ui_process import Ui, running_ui
from watched import FIRST, make_watched, release

PREFIX = TINY.replace("-", "_")
NEW_ARM = "q4_0/llamacpp@b1"
RUN_S, SENSORS_S = 90, 180
Shoot = Callable[[str], None]


@pytest.fixture
def tiny(measured_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TinyStudy:
    """The watched study, frozen, and nothing of it measured; a release lies in its folder already."""
    tiny = make_watched(tmp_path, measured_home)
    done = tiny.run("freeze", TINY)
    assert done.returncode == 0, done.stderr
    for name, value in tiny.variables.items():
        monkeypatch.setenv(name, value)
    return tiny


@pytest.fixture
def ui(tiny: TinyStudy, llamacpp_library: Path) -> Iterator[Ui]:
    release(tiny, FIRST, llamacpp_library)
    with running_ui(tiny.home) as running:
        yield running


@pytest.fixture
def push_again(tiny: TinyStudy, llamacpp_library: Path) -> Callable[[], None]:
    """Give the release's tag other bytes, as its makers might."""

    def push() -> None:
        release(tiny, FIRST, llamacpp_library, note="pushed again")

    return push


@pytest.mark.timeout(600)
def test_a_new_version_is_approved_by_the_buttons_and_its_arm_is_measured_by_itself(
    ui: Ui, page: Page, shoot: Shoot, push_again: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    started = time.monotonic()
    observe(page, ui)
    page.goto(f"{ui.url}/assets/{PREFIX}/engine_versions?view=events")
    expect(page.get_by_text(f"llamacpp-b1 adds {NEW_ARM}")).to_be_visible()
    shoot("v1_candidate")

    page.get_by_role("link", name="Approve one").click()
    page.wait_for_url("**/playground*")
    page.get_by_placeholder("Partition").click()
    page.get_by_text("llamacpp-b1", exact=True).click()
    page.get_by_role("button", name="Launch Run").click()
    page.wait_for_url("**/runs/*")
    assert ended(page) == "Success"
    shoot("v2_approved")

    page.goto(f"{ui.url}/assets/{PREFIX}/summaries?view=partitions")
    expect(page.get_by_text(NEW_ARM).filter(visible=True).first).to_be_visible()
    shoot("v3_its_arm")
    wait_until_measured(ui, NEW_ARM)
    approved_s = time.monotonic() - started
    page.goto(f"{ui.url}/runs")
    expect(page.get_by_text(f"{PREFIX}_analysis").first).to_be_visible()
    shoot("v4_measured_by_itself")

    push_again()
    observe(page, ui)
    page.goto(f"{ui.url}/assets/{PREFIX}/engine_versions?view=checks&checkDetail=no_tag_pushed_again")
    page.get_by_text("no_tag_pushed_again").first.click()
    expect(
        page.get_by_text(re.compile(rf"Pushed again with other content: llamacpp {re.escape(FIRST)}")).first
    ).to_be_visible()
    expect(page.get_by_text("Failed").filter(visible=True).first).to_be_visible()
    shoot("v5_failed_check")

    backfill_of_all_arms(page, ui, shoot)
    with capsys.disabled():
        total = time.monotonic() - started
        print(f"\n[browser: {approved_s:.0f} s from the look to a measured arm; {total:.0f} s with alarm and backfill]")


def observe(page: Page, ui: Ui) -> None:
    """Look for new versions by the asset's own button, and watch the run until it has succeeded."""
    page.goto(f"{ui.url}/assets/{PREFIX}/engine_versions")
    page.get_by_role("button", name="Observe").click()
    page.get_by_text("View", exact=True).click()
    page.wait_for_url("**/runs/*")
    assert ended(page) == "Success"


def ended(page: Page) -> str:
    status = page.get_by_text(re.compile("^(Success|Failure|Canceled)$")).first
    expect(status).to_be_visible(timeout=RUN_S * 1000)
    return status.inner_text()


def wait_until_measured(ui: Ui, arm: str) -> None:
    """Until the sensors have had the arm captured and scored: nobody clicks."""
    head = ui.home / "heads" / TINY / arm.replace("/", "~") / "summaries.json"
    until = time.monotonic() + SENSORS_S
    while not head.exists():
        assert time.monotonic() < until, ui.log.read_text()
        time.sleep(0.5)


def backfill_of_all_arms(page: Page, ui: Ui, shoot: Shoot) -> None:
    """Every arm by "All" in the dialog: one run each, through the queue, until all have succeeded."""
    page.goto(f"{ui.url}/asset-groups")
    page.get_by_role("button", name="Materialize all").click()
    page.get_by_role("button", name="All", exact=True).click()
    shoot("v6_backfill_dialog")
    page.get_by_role("button", name=re.compile(r"Launch (\d runs|backfill)")).click()
    query = """{ partitionBackfillsOrError(limit: 1) { ... on PartitionBackfills {
      results { status partitionNames partitionStatusCounts { runStatus count } } } } }"""
    until = time.monotonic() + SENSORS_S
    while True:
        results = ui.graphql(query)["partitionBackfillsOrError"]["results"]
        if results and results[0]["status"] in ("COMPLETED", "COMPLETED_SUCCESS", "COMPLETED_FAILED", "FAILED"):
            break
        assert time.monotonic() < until, (results, ui.log.read_text())
        time.sleep(0.5)
    page.goto(f"{ui.url}/runs?view=backfills")
    expect(page.get_by_text(re.compile("Completed|Success")).first).to_be_visible()
    shoot("v7_backfill")
    assert results[0]["status"] in ("COMPLETED", "COMPLETED_SUCCESS"), results
    for arm in (BASE_ARM, NEW_ARM):
        wait_until_measured(ui, arm)
