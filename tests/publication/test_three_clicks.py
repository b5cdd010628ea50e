"""From any number on a page to the frozen hash: by links of the pages, by links of the UI, and by one command."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from homes import STUDY, engcmp_here

from engcmp_assets import events
from engcmp_assets.audit.recompute import Evidence
from engcmp_assets.audit.trace import figures_of, trace
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.study import Study, load_study
from engcmp_assets.kernel.work import Session
from engcmp_assets.steps import step_named

MOST_CLICKS = 3
# One pattern for each kind of figure that the study publishes. Replies: test_checks_of_a_study.
KINDS = {
    "precision": rf"{STUDY}/q4_0/[^/]+/pa/all/kl_full",
    "precision by kind of content": rf"{STUDY}/q8_0/[^/]+/pa/block:code/top1",
    "another panel": rf"{STUDY}/q8_0/[^/]+/pb/all/kl_coarse",
    "difference of a pair": rf"{STUDY}/pair/q4_0-vs-q8_0/pa/all/nll",
    "distance of a pair": rf"{STUDY}/pair/.+/all/kl_pair_full",
    "score path": rf"{STUDY}/pair/decode-.+/pd/all/kl_full",
    "speed": rf"{STUDY}/q4_0/.+/throughput/code-64-c1/ttft_median_ms",
    "start-up": rf"{STUDY}/q8_0/.+/startup/.+/ready_s",
}


class Page(HTMLParser):
    """A page: its links, its words, and the figures that its numbers are links of."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.numbers: dict[str, list[str]] = {}
        self.ids: set[str] = set()
        self._text: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.text = " ".join(self._text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        self.ids |= {named["id"]} if "id" in named else set()
        if tag == "a" and "href" in named:
            self.links.append(named["href"])
            for figure_id in (named.get("data-figure") or named.get("title") or "").split():
                self.numbers.setdefault(figure_id, []).append(named["href"])

    def handle_data(self, data: str) -> None:
        self._text.append(data)


@pytest.fixture(scope="module")
def site(measured_home: Path) -> dict[Path, Page]:
    """Every page that was published, by its path."""
    folder = measured_home / "views" / STUDY / "_study" / "publication"
    return {path: Page(path) for path in sorted(folder.rglob("*.html"))}


@pytest.fixture(scope="module")
def published(measured_home: Path) -> Mapping[str, Any]:
    return figures_of(Evidence(measured_home), load_study(STUDY))


def of_kind(published: Mapping[str, Any], kind: str) -> list[str]:
    found = [name for name in published if re.fullmatch(KINDS[kind], name)]
    assert found, f"the study publishes no {kind}"
    return found


def target(path: Path, link: str) -> Path:
    """The page that a link leads to; it must be there, and have the place that the link names."""
    place = urlsplit(link)
    assert not place.scheme, f"{path}: {link} leads outside"
    return (path.parent / place.path).absolute() if place.path else path


@pytest.mark.parametrize("kind", KINDS)
def test_a_number_on_a_page_is_at_most_three_clicks_from_the_frozen_hash(
    site: dict[Path, Page], published: Mapping[str, Any], study: Study, kind: str
) -> None:
    shown = 0
    for figure_id in of_kind(published, kind):
        for path, page in site.items():
            for link in page.numbers.get(figure_id, []):
                shown += 1
                assert clicks_to_hash(site, path, link, figure_id, study.frozen_sha256) <= MOST_CLICKS, (
                    path,
                    figure_id,
                )
    assert shown, f"no page links a number of {kind} to its trace"


def clicks_to_hash(site: dict[Path, Page], start: Path, link: str, figure_id: str, frozen: str) -> int:
    """Clicks from a number to a page with the frozen hash: the first leads to the place that names the figure, others as links go."""
    reached = target(start, link).resolve()
    pages = {path.resolve(): page for path, page in site.items()}
    names = {path.resolve(): path for path in site}
    fragment = urlsplit(link).fragment
    assert fragment in pages[reached].ids and figure_id in pages[reached].text
    seen, edge = {reached}, [reached]
    for clicks in range(1, MOST_CLICKS + 1):
        if any(frozen in pages[one].text for one in edge):
            return clicks
        nearby = {
            target(names[one], other).resolve() for one in edge for other in pages[one].links if "://" not in other
        }
        edge = sorted((nearby & set(pages)) - seen)
        seen |= set(edge)
    return MOST_CLICKS + 1


@pytest.mark.parametrize("kind", KINDS)
def test_in_the_ui_a_published_figure_is_at_most_three_clicks_from_the_frozen_hash(
    measured_home: Path, published: Mapping[str, Any], study: Study, kind: str
) -> None:
    """Click 1 opens the publication's chain, click 2 the figure's own page with the hash, click 3 the frozen protocol by its chain."""
    session = Session(study, Evidence(measured_home), "shown", lambda _text: None)
    chain = shown_in_ui(session, "publication", None)["chain"]
    for figure_id in of_kind(published, kind):
        first, own, last = (page.path for page in trace(session.store, study, figure_id).pages)
        assert first.endswith("/publication?view=events")
        assert f"]({own})" in chain and f"]({last})" in chain
        place = urlsplit(own)
        arm = parse_qs(place.query).get("partition", [None])[0]
        artifact = place.path.removeprefix(f"/assets/{study.protocol.asset_prefix}/")
        shown = shown_in_ui(session, artifact, arm)
        assert f"`{figure_id}`" in shown["every_figure"]
        assert shown["frozen_sha256"] == study.frozen_sha256 and f"]({last})" in shown["chain"]
        assert shown["receipt_sha256"] == published[figure_id][1]


def shown_in_ui(session: Session, artifact: str, arm: str | None) -> dict[str, Any]:
    """What the page of an artifact shows: the metadata of its event."""
    key = ArmKey.parse(arm) if arm else None
    done = session.sound(artifact, key)
    assert done is not None
    result = events.materialize_result(session, step_named(session.study, artifact), key, done)
    return {name: getattr(value, "value", value) for name, value in (result.metadata or {}).items()}


@pytest.mark.parametrize("kind", KINDS)
def test_one_command_leads_from_a_figure_to_the_frozen_hash(
    measured_home: Path, published: Mapping[str, Any], study: Study, kind: str
) -> None:
    figure_id = of_kind(published, kind)[0]
    done = engcmp_here("trace", figure_id, ENGCMP_HOME=str(measured_home))
    lines = done.stdout.splitlines()
    assert (done.returncode, lines[0], lines[-1]) == (0, figure_id, f"frozen hash {study.frozen_sha256}")
    assert any(f"receipts/{published[figure_id][1]}.json" in line for line in lines)
