"""From a new version that gives worse rows to the message at the webhook: measured, compared, failed in Dagster, and told once."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from homes import CHECKOUT, STUDY
from served_pair import PAIR, Servers, served_pair
from served_tables import write_known
from tiny import TINY

from engcmp_assets.alerting import alerts_sensor
from engcmp_assets.commands.instance import open_instance
from engcmp_assets.kernel.study import load_study
from engcmp_assets.kernel.version_alerts import ALERTS, IN_BAR
from engcmp_resources.webhook import ADDRESS

OLD, NEW = "q4_0/ours@v1", "q4_0/ours@v2"
# Further noise in the logits, in nats: the surprise at the next token grows by about half its square.
WORSE = 1.5


@pytest.fixture
def servers(tmp_path: Path, measured_home: Path) -> Iterator[Servers]:
    """Two versions of one engine, the second beside the first, on 12 texts."""
    made = served_pair(tmp_path, measured_home, 2)
    path = made.tiny.folder / "protocol.toml"
    text = path.read_text(encoding="utf-8")
    rival = text.index("[engines.rival]")
    text = text[:rival] + text[text.index("# ------", rival) :]
    added = f'[engines.ours.versions.v2]\nsource = "host-image"\n[[arms]]\narm = "{OLD}"\n[[arms]]\narm = "{NEW}"\n'
    pair = PAIR.replace(OLD, NEW).replace("q4_0/rival@v1", OLD).replace("ours-vs-rival", "v2-vs-v1")
    judged = (("replicates = 200\n", "replicates = 20000\n"), ('primary = ["kl_top20"]', 'primary = ["nll"]'))
    for old, new in ((f'[[arms]]\narm = "{OLD}"\n', added), (PAIR, pair), *judged):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")
    for source in (CHECKOUT / "protocol" / STUDY / "texts").glob("*.txt"):
        (made.tiny.folder / "texts" / source.name).write_text(source.read_text(encoding="utf-8")[:100], "utf-8")
    done = made.tiny.run("amend", TINY, "--because", "two versions of one engine")
    assert done.returncode == 0, done.stderr
    write_known(made.tiny, made.known)
    yield made
    made.stop()


@pytest.fixture
def got() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A webhook: its address, and what it was sent."""
    kept: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            kept.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/hook", kept
    server.shutdown()
    server.server_close()


@pytest.mark.timeout(600)
def test_a_new_version_out_of_its_bar_fails_a_check_and_is_told_to_the_webhook_once(
    servers: Servers, got: tuple[str, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, sent = got
    for name, value in (servers.tiny.variables | {"ENGCMP_HOME": str(servers.tiny.home), ADDRESS: address}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    first = servers.start("ours")
    assert servers.tiny.run("run", TINY, "--arm", OLD).returncode == 0
    with open_instance() as instance:
        assert tick(instance, None) == [] and sent == [], "one version alone is told of nothing"
        first.stop()
        servers.start("ours", perturb=WORSE)
        done = servers.tiny.run("run", TINY)
        assert done.returncode == 0, done.stderr[-3000:]
        failed = {name for name in ALERTS if not passed(instance, name)}
        assert IN_BAR in failed
        event = check_event(instance, IN_BAR)
        assert event.description is not None and event.description.startswith(f"{NEW} against {OLD}: ")
        link = str(event.metadata["link"].value)
        assert "reads worse by nll" in event.description and link.endswith("/smollm2_tiny/comparisons?view=events")
        cursor = tick(instance, None)
        (told,) = (one for one in sent if one["check"] == IN_BAR)
        assert told["explanation"] == event.description and told["link"] == link and told["pair"] == "v2-vs-v1"
        assert {one["check"] for one in sent} == failed and len(cursor) == len(sent)
        assert tick(instance, cursor) == cursor and len(sent) == len(cursor), "each is told once"


def tick(instance: dg.DagsterInstance, cursor: list[str] | None) -> list[str]:
    """What the sensor remembers after it was called."""
    context = dg.build_sensor_context(instance=instance, cursor=None if cursor is None else json.dumps(cursor))
    found = alerts_sensor(load_study(TINY))(context)
    assert isinstance(found, dg.SensorResult)
    known: list[str] = json.loads(str(found.cursor))
    return known


def check_event(instance: dg.DagsterInstance, name: str) -> dg.AssetCheckEvaluation:
    key = dg.AssetCheckKey(dg.AssetKey(["smollm2_tiny", "comparisons"]), name)
    record = instance.event_log_storage.get_latest_asset_check_execution_by_key([key])[key]
    assert record.event is not None and record.event.dagster_event is not None
    found = record.event.dagster_event.event_specific_data
    assert isinstance(found, dg.AssetCheckEvaluation)
    return found


def passed(instance: dg.DagsterInstance, name: str) -> bool:
    return check_event(instance, name).passed
