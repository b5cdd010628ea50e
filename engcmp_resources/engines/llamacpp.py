"""llama.cpp as an engine: the parent's side of the child process in `llamacpp_worker`."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engcmp_resources.engines._child import END_WAIT_S, OWN_ENVIRONMENT, Child, check_file
from engcmp_resources.engines.base import (
    START_DEADLINE_S,
    WINDOW_DEADLINE_S,
    LaunchSpec,
    PrefillResult,
    label_of,
    register_engine,
    verified_settings,
)
from engcmp_resources.errors import EngcmpError

_WORKER = Path(__file__).with_name("llamacpp_worker.py")


class _LlamaCpp:
    """A running llama.cpp; see RunningEngine."""

    def __init__(self, child: Child, facts: dict[str, Any], window_deadline_s: float) -> None:
        self._child = child
        self._facts = facts
        self._window_deadline_s = window_deadline_s

    @property
    def facts(self) -> dict[str, Any]:
        return self._facts

    def tokenize(self, text: str) -> list[int]:
        request = {"do": "tokenize", "text": text}
        answer = self._child.ask(request, doing="tokenizing a text", deadline_s=self._window_deadline_s)
        return [int(token) for token in answer["tokens"]]

    def prefill_rows(self, window_id: str, tokens: Sequence[int], positions: Sequence[int], out: Path) -> PrefillResult:
        self._check_window(window_id, tokens, positions)
        request = {
            "do": "prefill",
            "tokens": [int(token) for token in tokens],
            "positions": [int(position) for position in positions],
            "out": str(out.absolute()),
        }
        try:
            answer = self._child.ask(request, doing=f"decoding window {window_id}", deadline_s=self._window_deadline_s)
        except BaseException:
            # The worker removes it after an error, but a worker that was killed cannot.
            out.with_name(f"{out.name}.partial").unlink(missing_ok=True)
            raise
        return PrefillResult(answer["rows"], answer["seconds"], answer["peak_rss_bytes"])

    def _check_window(self, window_id: str, tokens: Sequence[int], positions: Sequence[int]) -> None:
        what = None
        limit, name = min((self._facts["n_ctx"], "context"), (self._facts["n_batch"], "batch"))
        if not tokens or not positions:
            what = f"{len(tokens)} tokens and {len(positions)} rows"
        elif len(tokens) > limit:
            what = f"{len(tokens)} tokens, the {name} holds {limit}"
        elif not all(0 <= token < self._facts["n_vocab"] for token in tokens):
            what = f"a token id outside 0..{self._facts['n_vocab'] - 1}"
        elif not all(0 <= position < len(tokens) for position in positions):
            what = f"a row outside 0..{len(tokens) - 1}"
        if what is not None:
            raise EngcmpError(
                f"{self._child.label}: window {window_id}: {what}",
                remedy="correct the window, or the context and batch sizes of the launch, in the protocol",
            )

    def log_tail(self) -> str:
        return self._child.log_tail()


def _requested(spec: LaunchSpec) -> dict[str, int]:
    return {
        "n_ctx": spec.context_tokens,
        "n_batch": spec.batch_tokens,
        "n_ubatch": spec.micro_batch_tokens,
        "n_threads": spec.threads,
        "n_threads_batch": spec.threads,
        "n_vocab": spec.vocab,
    }


def _with_settings(label: str, spec: LaunchSpec, facts: dict[str, Any]) -> dict[str, Any]:
    return {
        "engine": spec.engine,
        "version": spec.version,
        **facts,
        "settings": verified_settings(label, spec, _requested(spec), facts),
        "environment": dict(OWN_ENVIRONMENT),
    }


@register_engine("llamacpp")
@contextmanager
def start_llamacpp(
    spec: LaunchSpec,
    *,
    library: Path,
    model: Path,
    log: Path,
    environment: Mapping[str, str],
    start_deadline_s: float = START_DEADLINE_S,
    window_deadline_s: float = WINDOW_DEADLINE_S,
) -> Generator[_LlamaCpp, None, None]:
    """Start llama.cpp from the shared object `library` in a child process; see `base.start_engine`.

    Both files are hashed first: what is not as `spec` names it is not started.
    """
    label = label_of(spec, environment)
    check_file(label, "library", library, spec.library_sha256)
    check_file(label, "model", model, spec.model_sha256)
    child = Child(_WORKER, label=label, log=log, environment=environment)
    try:
        request = {"library": str(library.absolute()), "model": str(model.absolute()), **_requested(spec)}
        facts = child.ask(request, doing="loading", deadline_s=start_deadline_s)
        yield _LlamaCpp(child, _with_settings(label, spec, facts), window_deadline_s)
    finally:
        child.end(wait_s=END_WAIT_S)
