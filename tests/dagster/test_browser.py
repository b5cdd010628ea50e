"""A newcomer in a real browser: materialize an arm by the buttons, then find its figure and the chain behind it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from homes import Q4, STUDY
from playwright.sync_api import Locator, Page, expect
from ui_process import Ui, forget, home_without_dagster, running_ui

PREFIX = "smollm2_cpu"
RUN_S = 150
Shoot = Callable[[str], None]


@pytest.fixture
def ui(measured_home: Path, tmp_path: Path) -> Iterator[Ui]:
    """The UI on results whose q4_0 arm lost everything from its scores on, and with no event log yet."""
    home = home_without_dagster(measured_home, tmp_path / "home")
    forget(home, Q4, ["scores", "tails", "summaries"])
    with running_ui(home) as running:
        yield running


@pytest.mark.timeout(300)
def test_an_arm_is_materialized_by_the_buttons_and_its_figure_leads_to_the_frozen_hash(
    ui: Ui, page: Page, shoot: Shoot, capsys: pytest.CaptureFixture[str]
) -> None:
    started = time.monotonic()
    outside: list[str] = []
    page.on(
        "request",
        lambda request: None if request.url.startswith((ui.url, "data:", "blob:")) else outside.append(request.url),
    )

    materialize_all(page, ui, shoot)
    open_partition(page, ui, "summaries")
    shoot("4_figures")
    assert shown(page, f"kl_full, pa ({Q4})").inner_text() == str(published_kl(ui.home))
    assert shown(page, "answered_from_store").inner_text() == "false"

    shown(page, "plot").get_by_text("[Show Markdown]").click()
    picture = page.get_by_role("dialog").locator("img")
    expect(picture).to_be_visible()
    assert picture.evaluate("image => image.naturalWidth") > 300
    shoot("5_plot")
    page.get_by_role("dialog").get_by_role("button", name="Close").click()
    expect(page.get_by_role("dialog")).to_have_count(0)

    follow_the_chain(page, shoot)
    assert outside == []
    with capsys.disabled():
        print(f"\n[browser: {time.monotonic() - started:.0f} s from the first page to the frozen protocol]")


def materialize_all(page: Page, ui: Ui, shoot: Shoot) -> None:
    """The graph's own button, one partition, no launch pad; then watch the run until it has succeeded."""
    page.goto(f"{ui.url}/asset-groups")
    page.locator(".CodeMirror").first.click()
    page.keyboard.type(f'key:"{PREFIX}/*"')  # the graph of one study: another study has other partitions
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Materialize all (18)")).to_be_visible()
    page.get_by_role("button", name="Materialize all").click()
    page.get_by_text("Select a partition or create one").click()
    page.get_by_text(Q4).filter(visible=True).last.click()
    page.keyboard.press("Escape")
    shoot("1_dialog")
    page.get_by_role("button", name="Launch 1 run").click()
    page.get_by_text("View", exact=True).click()
    page.wait_for_url("**/runs/*")
    ended = page.get_by_text(re.compile("^(Success|Failure|Canceled)$")).first
    expect(ended).to_be_visible(timeout=RUN_S * 1000)
    shoot("2_run")
    assert ended.inner_text() == "Success"
    page.get_by_placeholder("Filter…").fill("48/48 windows")
    expect(page.get_by_text(f"[{Q4}] scores: panel pa, run").first).to_be_visible()  # progress is in the run's own log
    shoot("3_progress")
    run_id = page.url.split("/runs/")[1][:36]
    run = ui.graphql("query($id: ID!) { runOrError(runId: $id) { ... on Run { tags { key value } } } }", id=run_id)
    assert {"key": "engcmp/checkpoint", "value": "q4_0"} in run["runOrError"]["tags"]


def open_partition(page: Page, ui: Ui, artifact: str) -> None:
    """From the catalog to the arm's page of an asset, by clicks."""
    seen = page.viewport_size or {"width": 1500, "height": 1000}
    page.set_viewport_size(seen | {"height": 9000})  # the list draws only what is in sight, and there are many studies
    page.goto(f"{ui.url}/assets")
    page.locator(f'a[href="/assets/{PREFIX}/{artifact}"]').first.click()
    page.set_viewport_size(seen)
    expect(page.get_by_role("button", name="Description")).to_be_visible()
    page.get_by_text("Partitions", exact=True).click()
    page.get_by_text(Q4).filter(visible=True).first.click()
    expect(shown(page, "receipt_sha256")).to_be_visible()


def shown(page: Page, label: str) -> Locator:
    """The value that the page shows beside a metadata label."""
    name = page.locator("td", has_text=re.compile(f"^{re.escape(label)}$"))
    return page.locator("tr", has=name).first.locator("td").nth(1)


def follow_the_chain(page: Page, shoot: Shoot) -> None:
    """Open the chain, and click its last link: it lands on the very receipt that the chain names."""
    frozen = json.loads((Path(__file__).parents[2] / "protocol" / STUDY / "FROZEN.json").read_bytes())["frozen_sha256"]
    assert shown(page, "frozen_sha256").inner_text() == frozen
    shown(page, "chain").get_by_text("[Show Markdown]").click()
    chain = page.get_by_role("dialog")
    expect(chain).to_contain_text(f"Frozen hash: {frozen}")
    shoot("6_chain")
    last = chain.locator("tbody tr").last
    receipt = last.locator("td").nth(2).inner_text()
    assert last.locator("td").first.inner_text() == "frozen_protocol"
    last.locator("a").click()
    page.wait_for_url(f"**/{PREFIX}/frozen_protocol?*")
    expect(shown(page, "receipt_sha256")).to_contain_text(receipt)
    assert shown(page, "data_version").inner_text() == frozen
    shoot("7_frozen_protocol")


def published_kl(home: Path) -> float:
    summary = json.loads((home / "views" / STUDY / "_study" / "publication" / "SUMMARY.json").read_bytes())
    figures = next(arm["figures"] for arm in summary["arms"] if arm["arm"] == Q4)
    return float(next(f["value"] for f in figures if f["figure_id"] == f"{STUDY}/{Q4}/pa/all/kl_full"))
