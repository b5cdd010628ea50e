"""Alerts where they are seen and sent: checks on the comparisons' page, and a webhook on loopback that is told of each once."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from engcmp_assets import alerting
from engcmp_assets.graph import definitions
from engcmp_assets.kernel.study import load_study
from engcmp_assets.kernel.version_alerts import ALERTS, Alert
from engcmp_assets.kernel.work import Done, Session
from engcmp_resources import webhook
from engcmp_resources.store import Store
from engcmp_resources.webhook import ADDRESS, TOKEN, Webhook

STUDY, SECRET = "smollm2-cpu", "s3cret-of-the-hook"
FIRST, SECOND = (
    Alert("new_version_not_slower", f"pair-{number}", f"words of {number}", f"key-{number}") for number in (1, 2)
)


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """A webhook's other end: `status` is what it answers, `got` what it was sent."""
    kept: dict[str, Any] = {"status": 204, "got": []}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            kept["got"].append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(kept["status"])
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(webhook, "_FIRST_WAIT_S", 0.001)
    kept["address"] = f"http://127.0.0.1:{server.server_port}/{SECRET}"
    yield kept
    server.shutdown()
    server.server_close()


def hook(receiver: dict[str, Any]) -> Webhook:
    found = Webhook.of_environment({ADDRESS: receiver["address"], TOKEN: "b3arer"})
    assert found is not None
    return found


def test_each_alert_is_sent_once_and_one_that_was_not_taken_again(receiver: dict[str, Any]) -> None:
    study, said = load_study(STUDY), list[str]()
    receiver["status"] = 500
    assert alerting.tell([FIRST], [], hook(receiver), study, said.append) == []
    assert "was not sent" in said[-1] and SECRET not in said[-1]
    receiver |= {"status": 200, "got": []}
    told = alerting.tell([FIRST], [], hook(receiver), study, said.append)
    assert told == [FIRST.key]
    told = alerting.tell([FIRST, SECOND], told, hook(receiver), study, said.append)
    assert [one["pair"] for one in receiver["got"]] == [FIRST.pair_id, SECOND.pair_id]
    assert receiver["got"][0]["text"].endswith("/assets/smollm2_cpu/comparisons?view=events")
    assert {"study": STUDY, "check": FIRST.check, "explanation": FIRST.text}.items() <= receiver["got"][0].items()


def test_what_stands_no_more_is_forgotten_and_told_again_when_it_comes_back(receiver: dict[str, Any]) -> None:
    study = load_study(STUDY)
    assert alerting.tell([], [FIRST.key], hook(receiver), study, print) == []
    assert alerting.tell([replace(FIRST)], [], hook(receiver), study, print) == [FIRST.key]


def test_the_sensor_sends_nothing_without_a_webhook_and_then_what_stands(
    receiver: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ENGCMP_HOME", str(tmp_path))
    monkeypatch.delenv(ADDRESS, raising=False)
    sensor = alerting.alerts_sensor(load_study(STUDY))
    assert sensor.default_status == dg.DefaultSensorStatus.RUNNING
    with dg.DagsterInstance.ephemeral() as instance:
        skipped = sensor(dg.build_sensor_context(instance=instance))
        assert isinstance(skipped, dg.SkipReason) and ADDRESS in str(skipped.skip_message)
        monkeypatch.setenv(ADDRESS, receiver["address"])
        monkeypatch.setattr(alerting, "current_alerts", lambda _session: [FIRST, SECOND])
        first = sensor(dg.build_sensor_context(instance=instance))
        assert isinstance(first, dg.SensorResult) and not first.run_requests
        assert json.loads(str(first.cursor)) == [FIRST.key, SECOND.key]
        again = sensor(dg.build_sensor_context(instance=instance, cursor=first.cursor))
    assert isinstance(again, dg.SensorResult) and len(receiver["got"]) == len([FIRST, SECOND])
    out = capfd.readouterr()
    for text in (out.out, out.err, str(first.cursor), str(first.skip_reason), str(sensor.description)):
        assert SECRET not in text
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]


def test_each_of_the_four_reasons_fails_its_own_check_and_is_told_to_the_webhook_with_its_paragraph_and_link(
    receiver: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By the functions that the comparisons' step and the sensor call, on pairs of which the newest has all four faults."""

    def figure(measure: str, value: float, verdict: str) -> dict[str, Any]:
        ends = {"low": value - 0.01, "high": value + 0.01}
        return {"measure": measure, "panel": "pa", "population": "all", "value": value, "verdict": verdict, "unit": "nats", "rows": 384,
                "interval": ends, "primary": measure == "kl_full"}  # fmt: skip

    cell = {
        "population": "code",
        "measure": "decode_tok_s",
        "value": 0.7,
        "verdict": "slower",
        "floor": {"band": [0.9, 1.1]},
    }
    same = [figure("kl_full", 0.0, "bit-identical"), figure("rows_bit_identical", 1.0, "bit-identical")]
    other = [figure("kl_full", 0.02, "resolved"), figure("rows_bit_identical", 0.25, "descriptive")]
    pairs: list[dict[str, Any]] = [
        {"pair_id": "old", "candidate": "q8/e@v9", "baseline": "q8/e@v8", "state": "compared", "figures": same, "undeclared": []},
        {"pair_id": "new", "candidate": "q8/e@v10", "baseline": "q8/e@v9", "state": "compared", "figures": other,
         "undeclared": ["n_threads"], "speed": {"figures": [cell]}},
    ]  # fmt: skip
    monkeypatch.setenv("ENGCMP_HOME", str(tmp_path))
    monkeypatch.setenv(ADDRESS, receiver["address"])
    monkeypatch.setattr(alerting, "_pairs", lambda _session, _done: pairs)
    monkeypatch.setattr(alerting, "version_bars", lambda _session, _pairs: {})
    done = Done({}, "0" * 64, answered_from_store=False)
    monkeypatch.setattr(Session, "current", lambda _self, _artifact, _arm: done)
    study = load_study(STUDY)
    checks = {one.name: one for one in alerting.version_checks(Session(study, Store(tmp_path), "test", print), done)}
    with dg.DagsterInstance.ephemeral() as instance:
        alerting.alerts_sensor(study)(dg.build_sensor_context(instance=instance))
    sent = {one["check"]: one for one in receiver["got"]}
    assert set(sent) == set(checks) == set(ALERTS) and len(receiver["got"]) == len(ALERTS)
    words = ("reads worse by kl_full", "rows", "1 of 1 speeds are slower", "n_threads")
    for name, word in zip(ALERTS, words, strict=True):
        assert not checks[name].passed and word in checks[name].explanation and "\n" not in checks[name].explanation
        assert sent[name]["explanation"] == checks[name].explanation and sent[name]["pair"] == "new"
        assert sent[name]["link"] == checks[name].evidence["link"] == alerting.link_of(study)


def test_before_anything_was_compared_there_is_no_alert(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ENGCMP_HOME", str(tmp_path))
    assert alerting.current_alerts(Session(load_study(STUDY), Store(tmp_path), "test", print)) == []


def test_the_comparisons_of_each_study_have_the_four_checks() -> None:

    names = {
        spec.name
        for asset in definitions().assets or ()
        if isinstance(asset, dg.AssetsDefinition)
        for spec in asset.check_specs
        if spec.asset_key == dg.AssetKey(["smollm2_cpu", "comparisons"])
    }
    assert set(ALERTS) <= names
