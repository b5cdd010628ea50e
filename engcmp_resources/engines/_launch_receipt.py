"""What a launch through a launcher leaves in its receipt: what was asked for, what runs as the Docker engine has it, what was resolved."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from engcmp_resources.canonical import sha256_bytes
from engcmp_resources.engines._launcher_source import run_program
from engcmp_resources.engines._launchers import Launch, Launched, launcher_environment
from engcmp_resources.errors import EngcmpError
from engcmp_resources.secrecy import hidden_secret, is_secret

PLACEHOLDERS = "the launch's scratch folder and the address where it listens are shown as {scratch} and {address}"
_INSPECT_S = 30.0


def common_facts(
    launch: Launch, launched: Launched, command: Sequence[str], began: float, first_at: float
) -> dict[str, Any]:
    """The parts of `RunningServer.facts` that every launcher has; ready times are those of MEASURES section 8, milliseconds."""
    spec = launch.spec
    ready_line = launched.ready_line_at or first_at
    return {
        "engine": spec.engine,
        "version": spec.version,
        "kind": spec.kind,
        "identities": dict(spec.identities),
        "image": launch.image.as_json(),
        "command": [launch.hidden(word) for word in command],
        "container": launched.started_as.identity(),
        "ready": {
            "first_token_ms": round((first_at - began) * 1000),
            "ready_line_ms": round((ready_line - began) * 1000),
        },
        "load_ms": round((first_at - began) * 1000),
    }


def inspected(launch: Launch) -> dict[str, Any]:
    """What runs, as the Docker engine has it: `command`, `environment` (secrets by their hash) and `mounts` (targets alone)."""
    environment = launcher_environment(launch.place, {})
    code, text = run_program(["docker", "inspect", launch.name], launch.folder, environment, _INSPECT_S)
    try:
        (facts,) = json.loads(text) if code == 0 else ({},)
        config = facts["Config"]
        words = [*(config.get("Entrypoint") or []), *(config.get("Cmd") or [])]
        pairs = dict(pair.split("=", 1) for pair in config.get("Env") or [])
        mounts = [{"target": mount["Destination"], "read_only": not mount["RW"]} for mount in facts.get("Mounts") or []]
    except (ValueError, KeyError, TypeError) as error:
        raise launch.error(
            f"docker inspect says nothing that can be read: {text[:200]}", "check the docker command"
        ) from error
    hide = {name: hidden_secret(value) if is_secret(name) else launch.hidden(value) for name, value in pairs.items()}
    return {
        "container_command": [launch.hidden(word) for word in words],
        "container_environment": dict(sorted(hide.items())),
        "mounts": sorted(
            ({"target": launch.hidden(mount["target"]), "read_only": mount["read_only"]} for mount in mounts),
            key=lambda mount: str(mount["target"]),
        ),
    }


def refuse_differing(label: str, expected: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Each expected setting with what the engine states, `{"missing": reason}` where it does not. Values are compared as text.

    Raises EngcmpError naming every setting that the engine resolved differently.
    """
    unknown = {"missing": "the engine does not state it"}
    settings = {name: {"requested": asked, "resolved": found.get(name, unknown)} for name, asked in expected.items()}
    differing = [
        f"{name} requested {pair['requested']}, found {pair['resolved']}"
        for name, pair in settings.items()
        if name in found and str(pair["requested"]).lower() != str(pair["resolved"]).lower()
    ]
    if differing:
        raise EngcmpError(
            f"{label}: the engine resolved its settings differently: {'; '.join(differing)}",
            remedy="request what this version can do, or correct what the protocol expects of it; nothing was measured",
        )
    return settings


def shown_config(launch: Launch, text: str) -> dict[str, str]:
    """A config file as its receipt has it, and the SHA-256 of that: without this launch's paths and port it is the same every time."""
    shown = launch.hidden(text).replace(launch.url.removeprefix("http://"), "{address}")
    return {"config": shown, "config_sha256": sha256_bytes(shown.encode()), "config_note": PLACEHOLDERS}
