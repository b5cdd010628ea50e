"""Kind `vllm-process`: vLLM as a child process, in an environment of Python of its own on this machine, without a container.

vLLM reads no GGUF here: the checkpoint is written again as safetensors for the launch (`safetensors_checkpoint`), and the protocol pins
what must come out. The environment is data: where it is, is this machine's matter (`vllm_environment`), what is in it is in the receipt.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from engcmp_resources.canonical import sha256_file
from engcmp_resources.engines._child import check_file
from engcmp_resources.engines._ports import LOOPBACK, free_port
from engcmp_resources.engines._process_group import ProcessGroup, running_group
from engcmp_resources.engines._serving import Served, compared_settings, is_loading
from engcmp_resources.engines._vllm_capture import MOUNTED, capture_folder, wanted_of, with_plugin
from engcmp_resources.engines._vllm_http import VllmApi
from engcmp_resources.engines.base import child_environment
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
from engcmp_resources.safetensors_checkpoint import Dtype, write_checkpoint
from engcmp_resources.secrecy import hidden_secret
from engcmp_resources.start_caches import drop_page_cache
from engcmp_resources.vllm_environment import Environment, require

READY_LINE = "Application startup complete"
_POLL_S, _STOP_S = 0.1, 20.0
_STORED: Mapping[str, Dtype] = {"bfloat16": "BF16", "float32": "F32"}
_WEIGHTS = "model.safetensors"
# What the engine's own log says of the settings that its API does not state.
_LOGGED = {
    "batch_tokens": re.compile(r"max_num_batched_tokens[=:]\s*(\d+)"),
    "dtype": re.compile(r"dtype=torch\.(\w+)"),
}
# Offline, without telemetry; with the threads that are asked for, not bound to cores of which one would be left out. Threads that wait
# do not spin: on a busy machine spinning made a window of 170 tokens take 6 s in place of 0.5.
_VARIABLES = {
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
    "PYTHONDONTWRITEBYTECODE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_WAIT_POLICY": "passive",
}  # fmt: skip
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_OURS = ("ENGCMP_", "PYTHONPATH", "VLLM_API_KEY", "OMP_NUM_THREADS", "HOME", "TMPDIR", "VLLM_RPC_BASE_PATH")


class VllmProcessSettings(Settings):
    """The settings of kind `vllm-process`.

    `dtype` is that of weights and arithmetic. `safetensors` has for each GGUF, by its SHA-256, that of the `model.safetensors` which must
    be made of it in this dtype. `options` are further ones of vLLM's server, `env` further variables. `plugin`: scoring launches load the
    capture plugin, which full rows need; without it the server is as anyone starts it. `beside`: how many other requests run while a
    window is captured, so that its rows are computed in a batch. `capabilities` are what must be proved.
    """

    clears_caches: ClassVar[bool] = True
    dtype: Literal["bfloat16", "float32"]
    safetensors: dict[str, str]
    context_tokens: int = Field(ge=1)
    batch_tokens: int = Field(ge=1)
    threads: int = Field(ge=1)
    options: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    plugin: bool = True
    beside: int = Field(default=0, ge=0)
    capabilities: DeclaredCapabilities = Field(default_factory=dict)

    @field_validator("beside")
    @classmethod
    def _are_seen(cls, value: int, info: ValidationInfo) -> int:
        if value and not info.data.get("plugin"):
            raise ValueError("needs plugin = true, which says in whose company each window was read")
        return value

    @field_validator("env")
    @classmethod
    def _are_theirs(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if _VARIABLE.fullmatch(name) is None or name.startswith(_OURS):
                raise ValueError(f"{name!r} cannot be set")
        return value

    def check_place(self, label: str, identities: Mapping[str, str]) -> None:
        """An environment with vLLM must be here."""
        del identities  # what is in it is looked at when the files are there
        _environment(label)


@register_server("vllm-process", VllmProcessSettings)
@contextmanager
def start_vllm_process(
    spec: ServerSpec, place: LaunchPlace, *, mode: Mode, start_deadline_s: float, request_deadline_s: float
) -> Generator[RunningServer, None, None]:
    """Start vLLM's server in its environment; see `servers.start_server`. Both modes are the same launch, but for the capture plugin.

    `spec.identities` has `model` (a GGUF) and `library`: a file of the package vllm that the environment must hold, to be that build.
    """
    settings = launch_settings(spec, place, VllmProcessSettings)
    until = time.monotonic() + start_deadline_s
    environment = _environment(place.label)
    _refuse_other_build(environment, spec, place)
    checkpoint, weights = _checkpoint(spec, place, settings)
    files = {
        "the checkpoint's files": checkpoint,
        "the files of vLLM and the packages beside it": environment.vllm.parent,
    }
    caches = drop_page_cache(files) if place.cold else None
    captures = capture_folder(place.scratch) if settings.plugin and mode == "scoring" else None
    key, port, alias = secrets.token_urlsafe(32), free_port(), spec.identities["model"]
    options = _options(settings, alias)
    plain = settings.env | _VARIABLES | {"OMP_NUM_THREADS": str(settings.threads)}
    if place.gpus:
        plain["CUDA_VISIBLE_DEVICES"] = ",".join(str(index) for index in place.gpus)
    loaded = plain if captures is None else with_plugin(plain, plugin=str(MOUNTED), captures=str(captures))
    command = [
        str(environment.python), "-m", "vllm.entrypoints.openai.api_server",
        "--model", str(checkpoint), "--host", LOOPBACK, "--port", str(port), *options,
    ]  # fmt: skip
    variables = child_environment(place.labels) | loaded | {"HOME": str(place.scratch), "VLLM_API_KEY": key}
    with ExitStack() as stack:
        began = time.monotonic()
        group = stack.enter_context(running_group(command, variables, place, stop_s=_STOP_S))
        client = VllmApi(
            f"http://{LOOPBACK}:{port}",
            key=key,
            label=place.label,
            model=alias,
            vocab=spec.vocab,
            captures=captures,
            beside=settings.beside,
        )
        stack.callback(client.close)
        ready = _get_ready(group, client, place, began, until)
        with group.explaining("proving what it can do"):
            proved, stated = client.prove(until)
        proves_rows = captures is not None or not settings.plugin
        refuse_lacking(place.label, wanted_of(settings.capabilities, loaded=proves_rows), proved)
        _refuse_other_version(spec, place, stated)
        shown = plain if captures is None else with_plugin(plain, plugin="{plugin}", captures="{captures}")
        facts: dict[str, Any] = {
            "engine": spec.engine,
            "version": spec.version,
            "kind": spec.kind,
            "identities": dict(spec.identities),
            "command": ["{python}", *command[1:4], "{checkpoint}", "--host", LOOPBACK, "--port", "{port}", *options],
            "environment": shown | {"VLLM_API_KEY": hidden_secret(key)},
            "installed": _installed(environment, group),
            "weights": weights,
            **stated,
            "settings": compared_settings(place.label, _requested(settings), _resolved(stated, place.log)),
            "ready": ready,
            "load_ms": ready["first_token_ms"],
            "capabilities": proved.as_json(),
        }
        if caches is not None:  # a launch's home is its own, and empty: compiled kernels are made anew by every start
            facts["start_caches"] = caches
        group.refuse_changed()
        yield Served(
            client, group, url=f"http://{LOOPBACK}:{port}", facts=facts, capabilities=proved,
            request_deadline_s=request_deadline_s,
        )  # fmt: skip


def _environment(label: str) -> Environment:
    try:
        return require()
    except EngcmpError as error:
        raise EngcmpError(f"{label}: {error.what}", where=error.where, remedy=error.remedy) from error


def _options(settings: VllmProcessSettings, alias: str) -> list[str]:
    return [
        "--served-model-name", alias, "--dtype", settings.dtype, "--max-model-len", str(settings.context_tokens),
        "--max-num-batched-tokens", str(settings.batch_tokens), *settings.options,
    ]  # fmt: skip


def _refuse_other_build(environment: Environment, spec: ServerSpec, place: LaunchPlace) -> None:
    """The environment must hold the pinned file of the pinned wheel, wherever it came from."""
    found = {path.name: sha256_file(path) for path in sorted(environment.vllm.glob("*.so"))}
    if spec.identities["library"] not in found.values():
        raise EngcmpError(
            f"{place.label}: the environment holds another build of vLLM: none of {', '.join(found) or 'no libraries'} has the SHA-256 "
            f"{spec.identities['library'][:12]} of the protocol's wheel", where=str(environment.vllm),
            remedy="install the wheel that the protocol pins there, or name another environment in ENGCMP_VLLM_ENV",
        )  # fmt: skip


def _refuse_other_version(spec: ServerSpec, place: LaunchPlace, stated: Mapping[str, Any]) -> None:
    said = (stated["stated"]["/version"] or {}).get("version")
    if said != spec.version:
        raise EngcmpError(
            f"{place.label}: the server says that it is version {said!r}, the launch is of {spec.version!r}",
            remedy="name the environment of that version in ENGCMP_VLLM_ENV",
        )


def _checkpoint(spec: ServerSpec, place: LaunchPlace, settings: VllmProcessSettings) -> tuple[Path, dict[str, str]]:
    """The launch's model as a folder that vLLM reads, and what a receipt says of it. Raises EngcmpError for other bytes than are pinned."""
    model, folder = spec.identities["model"], place.scratch / "checkpoint"
    check_file(place.label, "model", place.files["model"], model)
    files = write_checkpoint(place.files["model"], folder, dtype=_STORED[settings.dtype])
    pinned = settings.safetensors.get(model)
    if files[_WEIGHTS] != pinned:
        raise EngcmpError(
            f"{place.label}: the {settings.dtype} safetensors of the model {model} came out as {files[_WEIGHTS]}, the protocol has "
            f"{pinned or 'none for it'}", where="engines.NAME.settings.safetensors",
            remedy="pin it there, if it is right; with the locked requirements it is the same bytes on every machine",
        )  # fmt: skip
    return folder, {"made_from": model, "dtype": _STORED[settings.dtype]} | files


def _get_ready(
    group: ProcessGroup, client: VllmApi, place: LaunchPlace, began: float, until: float
) -> dict[str, Any]:  # fmt: skip
    """Wait for the first token; both clocks of MEASURES section 8, milliseconds."""
    line_at, missing = 0.0, "no request was answered"
    while time.monotonic() <= until:
        group.refuse_changed()
        if not line_at and READY_LINE in place.log.read_text(encoding="utf-8", errors="replace"):
            line_at = time.monotonic()
        try:
            if line_at:
                with group.explaining("asking for a first token"):
                    client.first_token(until)
                return {
                    "first_token_ms": round((time.monotonic() - began) * 1000),
                    "ready_line_ms": round((line_at - began) * 1000),
                }
            missing = f"no line {READY_LINE!r} in its log"
        except EngcmpError as error:
            if not is_loading(error):
                raise
            missing = error.what
        time.sleep(_POLL_S)
    raise group.error(f"not ready within its deadline: {missing}")


def _requested(settings: VllmProcessSettings) -> dict[str, Any]:
    names = ("context_tokens", "batch_tokens", "threads", "dtype")
    return {name: getattr(settings, name) for name in names}


def _resolved(stated: Mapping[str, Any], log: Path) -> dict[str, Any]:
    text = log.read_text(encoding="utf-8", errors="replace")
    said = {name: match[1] for name, pattern in _LOGGED.items() if (match := pattern.search(text))}
    found: dict[str, Any] = {name: int(value) if value.isdigit() else value for name, value in said.items()}
    longest = stated["kv_pool"]["max_model_len"]
    return found | ({} if longest is None else {"context_tokens": longest})


def _installed(environment: Environment, group: ProcessGroup) -> dict[str, Any]:
    """What runs: the packages, and of vLLM's own libraries those that the processor has made it load."""
    mapped = sorted(path for path in group.mapped_files() if path.parent == environment.vllm.resolve())
    return {
        "python": environment.vllm.parents[1].name,
        "packages": list(environment.packages),
        "files_sha256": environment.files_sha256,
        "lock_sha256": environment.lock_sha256 or {"missing": "not made from the lock of engcmp"},
        "libraries": [f"{path.name} {sha256_file(path)}" for path in mapped],
    }
