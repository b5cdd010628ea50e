"""A real browser for the tests of the UI: Debian's Chromium, a page, and a way to keep what it shows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

CHROMIUM = Path(os.environ.get("ENGCMP_CHROMIUM", "/usr/bin/chromium"))
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
Shoot = Callable[[str], None]


@pytest.fixture
def browser() -> Iterator[Browser]:
    if not CHROMIUM.exists():
        pytest.skip(f"no Chromium at {CHROMIUM}; set ENGCMP_CHROMIUM to one to run the browser tests")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=str(CHROMIUM), args=list(FLAGS))
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Browser) -> Page:
    page = browser.new_page(viewport={"width": 1500, "height": 1000})
    page.set_default_timeout(30_000)
    expect.set_options(timeout=30_000)
    return page


@pytest.fixture
def shoot(page: Page, tmp_path: Path) -> Shoot:
    """Save what the page shows, for a reader: in ENGCMP_SCREENSHOTS, by default in the test's own folder."""
    folder = Path(os.environ.get("ENGCMP_SCREENSHOTS", tmp_path / "screenshots"))
    folder.mkdir(parents=True, exist_ok=True)
    return lambda name: (page.screenshot(path=folder / f"{name}.png", animations="disabled"), None)[1]
