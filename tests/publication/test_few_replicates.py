"""Too few replicates for the interval of a family of looks: no bound, said with its reason; the publication is made, and verifies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from homes import CHECKOUT, STUDY
from served_pair import Servers, served_pair, write_known
from tiny import TINY

from engcmp_assets.kernel.claims.checking import check_claim
from engcmp_assets.kernel.uncertainty import BOOTSTRAP_CLUSTERS
from engcmp_assets.publication.stated import claim_of, facts_of


@pytest.fixture
def servers(tmp_path: Path, measured_home: Path) -> Iterator[Servers]:
    """Two servers on 12 texts, judged by 200 replicates: enough for one look at 95 %, not for a family of them."""
    made = served_pair(tmp_path, measured_home, 2)
    for source in (CHECKOUT / "protocol" / STUDY / "texts").glob("*.txt"):
        (made.tiny.folder / "texts" / source.name).write_text(source.read_text(encoding="utf-8")[:100], "utf-8")
    assert "replicates = 200\n" in (made.tiny.folder / "protocol.toml").read_text(encoding="utf-8")
    done = made.tiny.run("amend", TINY, "--because", "longer texts")
    assert done.returncode == 0, done.stderr
    write_known(made.tiny, made.known)
    yield made
    made.stop()


@pytest.mark.timeout(600)
def test_a_bound_that_cannot_be_given_is_missing_with_its_reason_and_the_page_is_made(servers: Servers) -> None:
    servers.start("ours")
    servers.start("rival", perturb=1.5)
    done = servers.tiny.run("run", TINY)
    assert done.returncode == 0, done.stderr[-3000:]
    pair = servers.pair()
    (look,) = (one for one in pair["figures"] if (one["measure"], one["population"]) == ("nll", "all"))
    why = "200 replicates leave less than one beyond a level of"
    assert look["clusters"] >= BOOTSTRAP_CLUSTERS and not look["primary"] and look["interval"]["low"] is not None
    assert look["interval_bonferroni"]["missing"].startswith(why) and look["bound"] == look["interval_bonferroni"]
    assert look["verdict"] == "not resolved"
    for name in ("SUMMARY.md", "SUMMARY.html"):
        page = servers.output(servers.receipt("publication"), name).read_text(encoding="utf-8")
        assert why in page and "documents: value only" not in page, name
    verified = servers.tiny.run("verify", TINY)
    assert verified.returncode == 0, verified.stdout

    # Nor does a verdict or a bound come from the look's own, narrower interval, whoever states it.
    said, facts = claim_of(pair, look), facts_of(pair, look)
    assert check_claim(said, facts) == []
    own = facts.look.interval if facts.look is not None else None
    assert own is not None
    bold = said.changed(verdict="resolved", interval=own, limits=())
    assert "interval-that-holds-zero" in {one.rule_id for one in check_claim(bold, facts)}
    bounded = said.changed(interval=own, bound=max(abs(own.low), abs(own.high)), limits=())
    assert "number-of-nothing-measured" in {one.rule_id for one in check_claim(bounded, facts)}
    assert facts.look is not None and facts.look.bounding is None
    assert replace(facts.look, primary=True).bounding == own
