"""Kind `vllm-fork`: a fork of vLLM by its own launcher, `start.sh` of its repository at a commit, with the environment of the protocol.

Its container is restarted silently when it ends (`--restart unless-stopped`); so it is looked at before and after each window.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from engcmp_resources.containers import DockerHost
from engcmp_resources.disk import disk_errors
from engcmp_resources.engines import _launch_receipt, _launchers
from engcmp_resources.engines._launcher_source import run_program
from engcmp_resources.engines._launchers import LOOPBACK, Launch
from engcmp_resources.engines._serving import Served
from engcmp_resources.engines._vllm_capture import MOUNTED, with_plugin
from engcmp_resources.engines._vllm_http import VllmApi
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
from engcmp_resources.secrecy import is_secret

READY_LINE = r"GLM release startup warmup complete; container is ready\."
_OURS = frozenset(
    {"IMAGE", "CONTAINER_NAME", "PORT", "SERVED_MODEL_NAME", "CACHE_DIR", "GPU_REQUEST", "MODEL_DIR_OVERRIDE"}
)
_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
_STOP_S, _STOP_WAIT_S, _INSPECT_S = 30, 90.0, 30.0
# A path within the container, where the launcher mounts CACHE_DIR: the one folder of ours that it can write.
_CACHE_TARGET, _PLUGIN, _CAPTURES = "/root/.cache", "engcmp-vllm-plugin", "engcmp-captures"
_KV_LINE = re.compile(
    r"KV cache size: ([\d,]+) tokens(?:, Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x)?"
)


class VllmForkSettings(Settings):
    """The settings of kind `vllm-fork`.

    `environment` are variables of `start.sh`, without those that the kind sets. `served_model` is the name of the model in requests.
    `cache_dir` keeps compiled kernels between launches (`~` is the home folder); without it every launch is cold. `expected` maps labels
    of the server's `cache_config_info` to what they must be. `plugin`: scoring launches with the capture plugin, by the cache folder and
    DEBUG_ENV, which the launcher has from v0.8.0 on. `capabilities` are what must be proved.
    """

    environment: dict[str, str] = Field(default_factory=dict)
    served_model: str
    patch: str | None = None
    patch_sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    container_name: str = Field(default="engcmp-vllm-fork", pattern=r"^[a-z0-9][a-z0-9_.-]*$")
    port: int | None = Field(default=None, ge=1, le=65535)
    cache_dir: str | None = None
    ready_line: str = READY_LINE
    expected: dict[str, str | int | float | bool] = Field(default_factory=dict)
    plugin: bool = False
    capabilities: DeclaredCapabilities = Field(default_factory=dict)

    @field_validator("environment")
    @classmethod
    def _are_theirs(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if _NAME.fullmatch(name) is None or name.startswith("ENGCMP_"):
                raise ValueError(f"{name!r} is no variable of the launcher")
            if name in _OURS:
                raise ValueError(f"{name}: the kind sets it")
        pairs = (pair.partition("=")[0] for pair in value.get("DEBUG_ENV", "").split())
        if secret := next((name for name in (*value, *pairs) if is_secret(name)), None):
            raise ValueError(f"{secret}: a secret does not belong into a protocol")
        return value

    @field_validator("ready_line")
    @classmethod
    def _is_pattern(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"no regular expression: {error}") from error
        return value


@register_server("vllm-fork", VllmForkSettings)
@contextmanager
def start_vllm_fork(
    spec: ServerSpec, place: LaunchPlace, *, mode: Mode, start_deadline_s: float, request_deadline_s: float
) -> Generator[RunningServer, None, None]:
    """Start the fork by `start.sh`; see `servers.start_server`. Both modes are the same launch, but for the capture plugin: a serving
    launch never loads it, so that nothing of ours is timed with the engine.

    `spec.identities` has `commit` (of the launcher) and `image`; `place.files["launcher"]` is the tar of `fetch_launcher`. It is ready
    at its own line, which comes after its warm-up, and a first token: its /health is good long before.
    """
    settings = launch_settings(spec, place, VllmForkSettings)
    until = time.monotonic() + start_deadline_s
    with ExitStack() as stack:
        host = DockerHost()
        stack.callback(host.close)
        image = _launchers.local_image(host, spec, place)
        folder = _launchers.prepare(spec, place, settings.patch, settings.patch_sha256)
        port = _launchers.free_port(settings.port, place)
        launch = Launch(
            spec, place, folder, settings.container_name, image, f"http://{LOOPBACK}:{port}", None, settings.ready_line
        )
        cache = _cache_folder(settings, place)
        warm = any(path for path in cache.iterdir() if path.name not in (_PLUGIN, _CAPTURES))
        ours = environment_of(settings, spec, place, port, cache)
        captures = None
        if settings.plugin and mode == "scoring":
            captures = stack.enter_context(_plugin_in(cache))
            ours["DEBUG_ENV"] = debug_env_with_plugin(ours.get("DEBUG_ENV", ""), _python_path(image.id, folder, place))
        environment = _launchers.launcher_environment(place, ours)
        began, command = time.monotonic(), ["bash", "start.sh"]
        launched = stack.enter_context(
            _launchers.started(host, launch, command, environment, until=until, stop=lambda: _stop(launch, environment))
        )
        client = VllmApi(
            launch.url, key=None, label=place.label, model=settings.served_model, vocab=spec.vocab, captures=captures
        )
        stack.callback(client.close)
        first_at = _launchers.first_token(launch, launched, client, until)
        proved, facts = _launchers.proved(launched, client, until)
        wanted = settings.capabilities
        if mode == "serving" and settings.plugin:
            wanted = {name: least for name, least in wanted.items() if name != "rows"}  # full rows are the plugin's
        refuse_lacking(place.label, wanted, proved)
        facts = _launch_receipt.common_facts(launch, launched, command, began, first_at) | facts
        facts["launcher"] = {"commit": spec.identities["commit"], "patch_sha256": settings.patch_sha256}
        facts["environment"] = {name: launch.hidden(value) for name, value in sorted(ours.items())}
        facts["environment"]["CACHE_DIR"] = "{cache}"
        facts["cache"] = "warm" if warm else "cold"
        facts |= _launch_receipt.inspected(launch)
        info = facts["stated"].get("/metrics cache_config_info") or {}
        facts["settings"] = _launch_receipt.refuse_differing(place.label, settings.expected, info)
        facts["kv_pool"] = _kv_pool(facts, place.log)
        facts["capabilities"] = proved.as_json()
        launched.refuse_changed()
        yield Served(
            client, launched, url=launch.url, facts=facts, capabilities=proved, request_deadline_s=request_deadline_s
        )


def environment_of(
    settings: VllmForkSettings, spec: ServerSpec, place: LaunchPlace, port: int, cache: Path
) -> dict[str, str]:
    """The variables of one launch: those of the protocol and ours."""
    ours = {
        "IMAGE": spec.identities["image"],
        "CONTAINER_NAME": settings.container_name,
        "PORT": f"{LOOPBACK}:{port}",  # it stands before the container's port in --publish
        "SERVED_MODEL_NAME": settings.served_model,
        "CACHE_DIR": str(cache),
    }
    if "model" in place.files and place.files["model"].is_dir():  # else it is found by MODEL_ID in the user's cache
        ours["MODEL_DIR_OVERRIDE"] = str(place.files["model"])
    if place.gpus:
        devices = ",".join(str(index) for index in place.gpus)
        ours["GPU_REQUEST"] = f'"device={devices}"'  # quoted for docker, which splits at commas
    return settings.environment | ours


def debug_env_with_plugin(value: str, python_path: str) -> str:
    """The launcher's DEBUG_ENV (KEY=VALUE, separated by spaces) with what loads the capture plugin; `python_path` is the image's own."""
    pairs = dict(pair.split("=", 1) for pair in value.split())
    if python_path:
        pairs.setdefault("PYTHONPATH", python_path)
    paths = {"plugin": f"{_CACHE_TARGET}/{_PLUGIN}", "captures": f"{_CACHE_TARGET}/{_CAPTURES}"}
    return " ".join(f"{name}={one}" for name, one in with_plugin(pairs, **paths).items())


@contextmanager
def _plugin_in(cache: Path) -> Generator[Path, None, None]:
    """The plugin and a folder for its files in the cache folder, for as long as the launch lasts."""
    folders = [cache / _PLUGIN, cache / _CAPTURES]
    with disk_errors(cache):
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(MOUNTED, folders[0], ignore=shutil.ignore_patterns("__pycache__"))
        folders[1].mkdir()
        folders[1].chmod(0o777)  # the container's user is another one
    try:
        yield folders[1]
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def _python_path(image: str, folder: Path, place: LaunchPlace) -> str:
    """PYTHONPATH as the image sets it, empty where it does not."""
    command = ["docker", "image", "inspect", "--format", "{{json .Config.Env}}", image]
    code, text = run_program(command, folder, _launchers.launcher_environment(place, {}), _INSPECT_S)
    pairs = dict(pair.split("=", 1) for pair in (json.loads(text) or [])) if code == 0 else {}
    return str(pairs.get("PYTHONPATH", ""))


def kv_pool_of_log(text: str) -> dict[str, Any] | None:
    """Tokens of the KV pool, the longest request and how many of these fit, as a line of the log says; None without one."""
    line = _KV_LINE.search(text)
    if line is None:
        return None
    pool: dict[str, Any] = {"tokens": int(line[1].replace(",", "")), "how": "KV cache size line of the log"}
    if line[2]:
        pool |= {"max_model_len": int(line[2].replace(",", "")), "max_concurrency": float(line[3])}
    return pool


def _cache_folder(settings: VllmForkSettings, place: LaunchPlace) -> Path:
    folder = place.scratch / "cache" if settings.cache_dir is None else Path(settings.cache_dir).expanduser()
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder.absolute()


def _stop(launch: Launch, environment: Mapping[str, str]) -> None:
    """Let the launcher stop its container, so that the engine can end in order; the container itself is removed after it."""
    command = ["bash", "stop.sh"]
    code, text = run_program(command, launch.folder, {**environment, "STOP_TIMEOUT": str(_STOP_S)}, _STOP_WAIT_S)
    if code != 0:
        launch.place.say(
            f"stop.sh ended with {code}: {launch.hidden(text)[-200:]}; the container is removed all the same"
        )


def _kv_pool(facts: Mapping[str, Any], log: Path) -> dict[str, Any]:
    """The pool as the metrics state it, else as the log does; what both say is kept."""
    stated: dict[str, Any] = dict(facts["kv_pool"])
    logged = kv_pool_of_log(log.read_text(encoding="utf-8", errors="replace"))
    if logged is None:
        return stated
    if not isinstance(stated.get("tokens"), Mapping):
        return stated | {"logged": logged}
    return logged | {"max_model_len": stated.get("max_model_len") or logged.get("max_model_len")}
