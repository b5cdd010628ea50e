"""The files of several machines: they load, agree with each other, pin what they run, and hold no secret."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

DEPLOY = Path(__file__).resolve().parent.parent / "engcmp_resources" / "deploy"
PROJECT = (DEPLOY.parent.parent / "pyproject.toml").read_text(encoding="utf-8")
YAML_FILES = ("compose.yaml", "dagster.yaml", "values.yaml")
_SECRET = re.compile(r"(?i)\w*(?:password|access_key(?:_id)?)['\"]?\s*[:=]\s*(\S+)")
_ADDRESS_WITH_PASSWORD = re.compile(r"://[^\s$}{]*:[^\s$}{]+@")
_REMEDY = re.compile(r":\?[^}]*}")


def loaded(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", YAML_FILES)
def test_a_file_holds_no_secret(name: str) -> None:
    lines = [
        line for line in (DEPLOY / name).read_text(encoding="utf-8").splitlines() if not line.strip().startswith("#")
    ]
    text = _REMEDY.sub("}", "\n".join(lines))  # what compose says where a variable is missing
    assert not _ADDRESS_WITH_PASSWORD.search(text)
    found = [one[1] for one in _SECRET.finditer(text)]
    assert all(value.strip("\"'").startswith("${") for value in found), found
    assert found or name != "compose.yaml"


def test_every_image_is_pinned_and_published_on_loopback_by_default() -> None:
    compose = loaded("compose.yaml")
    for name, service in compose["services"].items():
        assert re.search(r":\d+\.\d+(\.\d+)?", service["image"]), name
        assert "latest" not in service["image"]
        assert "privileged" not in service
        for port in service.get("ports", []):
            assert port.startswith(("127.0.0.1:", "${ENGCMP_LISTEN:-127.0.0.1}:")), port
    assert compose["services"]["webserver"]["ports"] == ["127.0.0.1:3000:3000"]
    assert re.search(r"^FROM python:\d+\.\d+\.\d+-", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"), re.M)
    for service in ("webserver", "daemon", "worker"):
        assert compose["services"][service]["cap_drop"] == ["ALL"]


def test_the_services_of_compose_are_those_that_its_profiles_start() -> None:
    services = loaded("compose.yaml")["services"]
    profiles = {name: tuple(service["profiles"]) for name, service in services.items()}
    assert {name for name, one in profiles.items() if one == ("control",)} == {
        "postgres",
        "redis",
        "webserver",
        "daemon",
    }
    assert {name for name, one in profiles.items() if one == ("worker",)} == {"worker"}
    for service in services.values():  # what one waits for is in its profile
        assert set(service.get("depends_on", {})) <= set(services)


def test_the_instance_names_its_driver_limits_each_queue_and_no_pool() -> None:
    settings = loaded("dagster.yaml")
    assert settings["storage"]["postgres"]["postgres_url"] == {"env": "ENGCMP_PG_URL"}
    assert settings["run_launcher"]["module"] == "dagster_celery.launcher"
    (limit,) = settings["concurrency"]["runs"]["tag_concurrency_limits"]
    assert limit == {"key": "dagster-celery/queue", "limit": 1, "value": {"applyLimitPerUniqueValue": True}}
    assert "default_limit" not in settings["concurrency"]["pools"]  # one for all hosts would serialize the fleet
    for place in ("compose.yaml", "README.md"):
        assert "postgresql+psycopg2://" in (DEPLOY / place).read_text(encoding="utf-8")


def test_the_chart_s_version_is_that_of_dagster_and_both_ways_limit_alike() -> None:
    values, pinned = loaded("values.yaml"), re.search(r'"dagster==([\d.]+)"', PROJECT)
    assert pinned is not None
    assert f"--version {pinned[1]}" in (DEPLOY / "values.yaml").read_text(encoding="utf-8")
    assert f"--version {pinned[1]}" in (DEPLOY / "README.md").read_text(encoding="utf-8")
    queued = values["dagsterDaemon"]["runCoordinator"]["config"]["queuedRunCoordinator"]
    assert queued["tagConcurrencyLimits"] == loaded("dagster.yaml")["concurrency"]["runs"]["tag_concurrency_limits"]
    launcher = values["runLauncher"]["config"]["customRunLauncher"]
    assert launcher["config"] == loaded("dagster.yaml")["run_launcher"]["config"]
    (workers,) = values["extraManifests"]
    pod = workers["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert workers["kind"] == "DaemonSet" and pod["nodeSelector"] == {"engcmp.io/gpu": "true"}
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert {one["mountPath"] for one in container["volumeMounts"]} >= {"/run/lock", "/var/lib/engcmp"}
    assert values["dagsterWebserver"]["service"]["type"] == "ClusterIP"


def test_every_file_is_in_the_readme() -> None:
    text = (DEPLOY / "README.md").read_text(encoding="utf-8")
    for path in DEPLOY.iterdir():
        assert path.name == "README.md" or f"`{path.name}`" in text, path.name
