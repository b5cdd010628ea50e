"""Alerts in Dagster: checks on the comparisons' page, and the sensor that tells a webhook of each once."""

# No postponed annotations here: Dagster reads the functions' annotations as types.

import json
import os
from typing import Any

import dagster as dg

from engcmp_assets import events
from engcmp_assets.comparisons.version_bars import version_bars
from engcmp_assets.kernel.progress import Say
from engcmp_assets.kernel.records import Check
from engcmp_assets.kernel.study import Study, load_study
from engcmp_assets.kernel.version_alerts import Alert, alert_checks, alerts_of
from engcmp_assets.kernel.work import Done, Session, output_blob
from engcmp_resources.errors import EngcmpError
from engcmp_resources.places import home_folder
from engcmp_resources.store import Store
from engcmp_resources.webhook import ADDRESS, TOKEN, Webhook

UI_ADDRESS = "ENGCMP_UI_URL"
_DEFAULT_UI = "http://127.0.0.1:3000"
_INTERVAL_S = 60


def version_checks(session: Session, done: Done) -> list[Check]:
    """The alerts of the newest versions as checks on the comparisons that were just made."""
    pairs = _pairs(session, done)
    return alert_checks(pairs, version_bars(session, pairs), link_of(session.study))


def link_of(study: Study) -> str:
    """The comparisons' page of the UI, at ENGCMP_UI_URL or on this machine."""
    return os.environ.get(UI_ADDRESS, _DEFAULT_UI).rstrip("/") + events.asset_url(study, "comparisons", None)


def current_alerts(session: Session) -> list[Alert]:
    """The alerts of the comparisons as they stand; none before any were made."""
    done = session.current("comparisons", None)
    if done is None:
        return []
    pairs = _pairs(session, done)
    return alerts_of(pairs, version_bars(session, pairs))


def _pairs(session: Session, done: Done) -> list[dict[str, Any]]:
    document = json.loads(session.store.path(output_blob(done.receipt, "comparisons.json")).read_bytes())
    pairs: list[dict[str, Any]] = document["pairs"]
    return pairs


def tell(alerts: list[Alert], told: list[str], webhook: Webhook, study: Study, say: Say) -> list[str]:
    """Send what was not told yet; returns the keys of all alerts that were told and still stand. What is not taken is sent again later."""
    standing = [one.key for one in alerts]
    known = [key for key in told if key in standing]
    link = link_of(study)
    for one in alerts:
        if one.key in known:
            continue
        message = {
            "text": f"{study.protocol.title}: {one.text} {link}", "study": study.folder.name, "check": one.check, "pair": one.pair_id,
            "explanation": one.text, "link": link, "key": one.key,
        }  # fmt: skip
        try:
            webhook.send(message, key=one.key)
        except EngcmpError as error:
            say(f"alert {one.check} of {one.pair_id} was not sent: {error}")
            continue
        say(f"alert {one.check} of {one.pair_id} was sent")
        known.append(one.key)
    return known


def alerts_sensor(study: Study) -> dg.SensorDefinition:
    """Always on: does nothing unless the environment names a webhook. It starts no run."""
    name, prefix = study.folder.name, study.protocol.asset_prefix

    @dg.sensor(
        name=f"{prefix}_alerts",
        job_name=f"{prefix}_results",
        minimum_interval_seconds=_INTERVAL_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=(
            f"Tells the webhook that {ADDRESS} names ({TOKEN}: its bearer token) when a new version left its bar, gives other rows, is "
            "slower, or was launched otherwise than declared: each once, and again until it is taken. It starts no run."
        ),
    )
    def watch(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        webhook = Webhook.of_environment()
        if webhook is None:
            return dg.SkipReason(f"{ADDRESS} names no webhook")
        now = load_study(name)
        alerts = current_alerts(Session(now, Store(home_folder(), read_only=True), "alerts", context.log.info))
        told = json.loads(context.cursor or "[]")
        known = tell(alerts, told, webhook, now, context.log.info)
        left = len(alerts) - len(known)
        reason = (
            f"{len(alerts)} alerts stand, {left} of them could not be sent"
            if left
            else f"{len(alerts)} alerts stand, all are told"
        )
        return dg.SensorResult(skip_reason=reason, cursor=json.dumps(known))

    return watch
