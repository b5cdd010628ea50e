"""Kind `cuteafd`: CuteAFD by its own launcher, `run.sh` of its repository at a commit, with a config file that is written here.

A scoring launch is the serving one with the keys of the scoring endpoint added; its rows come as dumps in the launch's scratch folder.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from engcmp_resources.containers import DockerHost
from engcmp_resources.disk import disk_errors
from engcmp_resources.engines import _launch_receipt, _launchers
from engcmp_resources.engines._cuteafd_http import CuteafdApi
from engcmp_resources.engines._launcher_source import run_program
from engcmp_resources.engines._launchers import LOOPBACK, Launch
from engcmp_resources.engines._serving import Served
from engcmp_resources.engines.servers import (
    DeclaredCapabilities,
    LaunchPlace,
    Mode,
    RunningServer,
    ServerSpec,
    Settings,
    launch_settings,
    refuse_lacking,
    register_server,
)
from engcmp_resources.errors import EngcmpError
from engcmp_resources.start_failures import remedy_for

READY_LINE = r"API is ready|is ready listen="
_CONTAINER = "cuteafd-coordinator"
# Keys that the kind writes itself: where it listens, whose key, what runs.
_OURS = frozenset(
    {"ADDR", "API_KEY_FILE", "ENABLE_BENCH", "PROBE_DUMP_ROOT", "INSTANCE", "COORDINATOR_DOCKER_INFERENCE"}
)
_DRY_RUN_S, _REMOVE_S = 300.0, 60.0
_SHOWN_CHARACTERS = 200_000
_POOL = re.compile(r"KV pool\D{0,40}?([\d,]{3,})\s*tokens|pool[_ -]tokens\W{1,4}([\d,]{3,})", re.IGNORECASE)
_WEIGHTS = re.compile(r"^\s*(rtx\d+) weights:\s*([\d.,]+)\s*(GiB|GB)", re.IGNORECASE | re.MULTILINE)
_NO_PLAN = {"missing": "the plan does not state it in a form that is known"}


class CuteafdSettings(Settings):
    """The settings of kind `cuteafd`.

    `config` are keys and values of the launcher's config file, without those that the kind writes. `patch` is a file below the study's
    folder. `expected` maps settings as the server states them to what they must be. `capabilities` are what a scoring launch must prove.
    `dry_run` false is for versions whose launcher refuses it for this model. `served_model` is SERVED_MODEL_ID or MODEL_ID of `config`
    unless given.
    """

    config: dict[str, str | int]
    patch: str | None = None
    patch_sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    instance: str = Field(default="engcmp", pattern=r"^[a-z0-9][a-z0-9-]*$")
    port: int | None = Field(default=None, ge=1, le=65535)
    served_model: str | None = None
    dry_run: bool = True
    expected: dict[str, str | int | float | bool] = Field(default_factory=dict)
    capabilities: DeclaredCapabilities = Field(default_factory=dict)

    @model_validator(mode="after")
    def _complete(self) -> CuteafdSettings:
        if (self.patch is None) != (self.patch_sha256 is None):
            raise ValueError("a patch has both `patch` and `patch_sha256`")
        if taken := sorted(_OURS & self.config.keys()):
            raise ValueError(f"{', '.join(taken)}: the kind writes it")
        if self.model is None:
            raise ValueError("config has no MODEL_ID")
        return self

    def check_place(self, label: str, identities: Mapping[str, str]) -> None:
        """A Docker engine with the image, and the programs that the launcher calls; see `Settings.check_place`."""
        super().check_place(label, identities)
        for program in ("bash", "docker"):
            if shutil.which(program) is None:
                raise EngcmpError(
                    f"{label}: there is no program {program}", remedy=f"install {program}: run.sh calls it"
                )

    @property
    def model(self) -> str | None:
        """The name under which the model is served."""
        found = self.served_model or self.config.get("SERVED_MODEL_ID") or self.config.get("MODEL_ID")
        return None if found is None else str(found)


@dataclass(frozen=True, slots=True)
class _Files:
    config: Path
    dumps: Path | None
    text: str


@register_server("cuteafd", CuteafdSettings)
@contextmanager
def start_cuteafd(
    spec: ServerSpec, place: LaunchPlace, *, mode: Mode, start_deadline_s: float, request_deadline_s: float
) -> Generator[RunningServer, None, None]:
    """Start CuteAFD by `run.sh --restart`, after a dry run; see `servers.start_server`.

    `spec.identities` has `commit` (of the launcher) and `image`; `place.files["launcher"]` is the tar of `fetch_launcher`.
    """
    settings = launch_settings(spec, place, CuteafdSettings)
    until = time.monotonic() + start_deadline_s
    with ExitStack() as stack:
        host = DockerHost()
        stack.callback(host.close)
        image = _launchers.local_image(host, spec, place)
        folder = _launchers.prepare(spec, place, settings.patch, settings.patch_sha256)
        port = _launchers.free_port(settings.port, place)
        key = _launchers.new_key()
        key_path = stack.enter_context(_launchers.key_file(place, key))
        launch = Launch(
            spec,
            place,
            folder,
            f"{_CONTAINER}-{settings.instance}",
            image,
            f"http://{LOOPBACK}:{port}",
            key,
            READY_LINE,
        )
        files = _write_config(launch, settings, mode, key_path, port)
        environment = _launchers.launcher_environment(place, {})
        run = ["bash", "run.sh", "--config", str(files.config)]
        plan = _dry_run(launch, run, environment, until) if settings.dry_run else {"missing": "dry_run is false"}
        began = time.monotonic()
        command = [*run, "--restart"]
        launched = stack.enter_context(_launchers.started(host, launch, command, environment, until=until))
        client = CuteafdApi(
            launch.url, key=key, label=place.label, model=str(settings.model), vocab=spec.vocab, dump_root=files.dumps,
            remove_as_owner=lambda dump: _remove_inside(launch, environment, dump),
        )  # fmt: skip
        stack.callback(client.close)
        first_at = _launchers.first_token(launch, launched, client, until)
        proved, facts = _launchers.proved(launched, client, until)
        if mode == "scoring":
            refuse_lacking(place.label, settings.capabilities, proved)
        facts = _launch_receipt.common_facts(launch, launched, command, began, first_at) | facts
        facts["launcher"] = {"commit": spec.identities["commit"], "patch_sha256": settings.patch_sha256}
        facts["launcher"] |= _launch_receipt.shown_config(launch, files.text)
        facts |= _launch_receipt.inspected(launch)
        facts["stated"]["dry run"] = plan
        facts["settings"] = _launch_receipt.refuse_differing(
            place.label, settings.expected, stated_settings(facts["stated"])
        )
        facts["kv_pool"] = _kv_pool(facts, plan)
        facts["capabilities"] = proved.as_json()
        launched.refuse_changed()
        yield Served(
            client, launched, url=launch.url, facts=facts, capabilities=proved, request_deadline_s=request_deadline_s
        )


def config_of(settings: CuteafdSettings, mode: Mode, ours: Mapping[str, str]) -> dict[str, str | int]:
    """The keys of one launch: those of the protocol, `ours`, and in scoring mode those of the scoring endpoint."""
    scoring = {"ENABLE_BENCH": "on", "FULL_PREFILL_LOGITS": "on"} if mode == "scoring" else {}
    left_out = () if mode == "scoring" else ("PROBE_DUMP_ROOT",)
    return scoring | settings.config | {key: value for key, value in ours.items() if key not in left_out}


def parse_plan(text: str) -> dict[str, Any]:
    """KV pool tokens and weights of each GPU (GiB) in the text of a dry run, `{"missing": reason}` where they are not found."""
    pool = _POOL.search(text)
    weights = {name: float(amount.replace(",", "")) for name, amount, _ in _WEIGHTS.findall(text)}
    return {
        "pool_tokens": int((pool[1] or pool[2]).replace(",", "")) if pool else _NO_PLAN,
        "weights_gib": weights or _NO_PLAN,
    }


def stated_settings(stated: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a probe's answer states, by name; none without a probe."""
    server = stated.get("/v1/bench/probe server") or {}
    return {str(one.get("name")): one.get("value") for one in server.get("settings") or [] if isinstance(one, Mapping)}


def _write_config(launch: Launch, settings: CuteafdSettings, mode: Mode, key_path: Path, port: int) -> _Files:
    place = launch.place
    dumps = place.scratch / "dumps"
    ours = {
        "ADDR": f"{LOOPBACK}:{port}",
        "API_KEY_FILE": str(key_path),
        "PROBE_DUMP_ROOT": str(dumps),
        "INSTANCE": settings.instance,
        "COORDINATOR_DOCKER_INFERENCE": launch.spec.identities["image"],
    }
    if place.gpus:
        several = len(place.gpus) > 1
        ours["COORDINATOR_GPUS" if several else "COORDINATOR_GPU"] = ",".join(str(index) for index in place.gpus)
    with _launchers.named(place):
        text = _launchers.config_text(config_of(settings, mode, ours))
    path = place.scratch / "cuteafd.config"
    with disk_errors(place.scratch):
        if mode == "scoring":
            dumps.mkdir(mode=0o700)
        path.write_text(text, encoding="ascii")
    return _Files(path, dumps if mode == "scoring" else None, text)


def _dry_run(launch: Launch, run: list[str], environment: Mapping[str, str], until: float) -> dict[str, Any]:
    """What the launcher says that it would do: raw, and what is known of its form. A launch that it refuses is not begun."""
    deadline_s = min(_DRY_RUN_S, max(1.0, until - time.monotonic()))
    code, text = run_program([*run, "--dry-run"], launch.folder, environment, deadline_s)
    shown = launch.hidden(text)
    with launch.place.log.open("ab") as log:
        log.write(shown.encode())
    if code is None:
        raise launch.error(f"the dry run did not end within {deadline_s:g} s")
    if code != 0:
        last = " | ".join(line.strip() for line in shown.splitlines()[-4:] if line.strip())
        raise launch.error(
            f"the dry run failed with exit code {code}: {last}",
            f"{remedy_for(shown)}; where this version has no dry run for this model, set dry_run = false",
        )
    return {"text": shown[:_SHOWN_CHARACTERS], **parse_plan(shown)}


def _remove_inside(launch: Launch, environment: Mapping[str, str], dump: Path) -> None:
    """Remove a dump as the container's own user, who wrote it."""
    command = ["docker", "exec", launch.name, "rm", "-rf", "--", str(dump)]
    code, text = run_program(command, launch.folder, environment, _REMOVE_S)
    if code != 0 or dump.exists():
        raise launch.error(
            f"the dump {dump.name} cannot be removed: {launch.hidden(text)[:200]}", "remove the folder as root"
        )


def _kv_pool(facts: Mapping[str, Any], plan: Mapping[str, Any]) -> dict[str, Any]:
    pool: dict[str, Any] = dict(facts["kv_pool"])
    if isinstance(pool.get("tokens"), Mapping) and isinstance(plan.get("pool_tokens"), int):
        pool |= {"tokens": plan["pool_tokens"], "how": "KV pool line of the dry run"}
    return pool | {"max_model_len": facts.get("n_ctx")}
