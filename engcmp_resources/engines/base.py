"""What a measurement needs of an engine, and the registry of engine kinds.

A new kind is one new file in this folder, whose module registers a starter by name with `register_engine`.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from engcmp_resources.errors import EngcmpError

START_DEADLINE_S = 120.0
WINDOW_DEADLINE_S = 300.0
LABELS = ("ENGCMP_ARM", "ENGCMP_LOCK", "ENGCMP_RUN")
# What a library needs to be found and to write text. No more: an engine must see no token or key of its user.
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TMPDIR", "TZ")


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """What is asked of a launch: the part that is hashed, so it holds no path, no arm name and no time.

    `vocab` is the width of a row. Raises EngcmpError for sizes that no engine can serve.
    """

    engine: str
    version: str
    library_sha256: str
    model_sha256: str
    threads: int
    context_tokens: int
    batch_tokens: int
    micro_batch_tokens: int
    vocab: int

    def __post_init__(self) -> None:
        for name in ("threads", "context_tokens", "batch_tokens", "micro_batch_tokens", "vocab"):
            if getattr(self, name) < 1:
                raise EngcmpError(
                    f"launch of {self.engine}@{self.version}: {name} is {getattr(self, name)}",
                    remedy="write 1 or more in the protocol",
                )
        if not self.micro_batch_tokens <= self.batch_tokens <= self.context_tokens:
            raise EngcmpError(
                f"launch of {self.engine}@{self.version}: micro batch {self.micro_batch_tokens}, batch "
                f"{self.batch_tokens}, context {self.context_tokens} tokens",
                remedy="write micro batch <= batch <= context in the protocol",
            )

    def as_json(self) -> dict[str, Any]:
        """The specification as plain JSON types, for hashing."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class PrefillResult:
    """One window decoded: `rows` rows written, `seconds` in the decode alone, peak resident memory of the engine."""

    rows: int
    seconds: float
    peak_rss_bytes: int


class RunningEngine(Protocol):
    """An engine that has started and whose settings were found as requested."""

    @property
    def facts(self) -> dict[str, Any]:
        """What the engine says of itself, as plain JSON types: sizes, threads, vocabulary, model, system, `load_ms`."""

    def tokenize(self, text: str) -> list[int]:
        """Token ids of `text`: markers of special tokens are read as such, no token is added at either end."""

    def prefill_rows(self, window_id: str, tokens: Sequence[int], positions: Sequence[int], out: Path) -> PrefillResult:
        """Decode the whole window as one batch and write the rows `positions` to `out`.

        Row r is the distribution after tokens 0..r (MEASURES section 1). The file is raw little-endian float32 of shape
        [len(positions), vocab], as the engine gave it, and appears whole or not at all.
        Raises EngcmpError for a request that the engine cannot serve and for an engine that fails or dies.
        """

    def log_tail(self) -> str:
        """The last lines of the engine's log."""


def child_environment(labels: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of an engine's process: an allow-list of this process's own, and the labels.

    Raises EngcmpError for a variable that is not a label.
    """
    unknown = sorted(set(labels) - set(LABELS))
    if unknown:
        raise EngcmpError(
            f"environment of an engine: {', '.join(unknown)}", remedy=f"pass only the labels {', '.join(LABELS)}"
        )
    return {name: os.environ[name] for name in _PASSED_ON if name in os.environ} | dict(labels)


class EngineStarter(Protocol):
    """Starts one kind of engine; leaving the context ends the engine, whatever happened inside."""

    def __call__(
        self,
        spec: LaunchSpec,
        *,
        library: Path,
        model: Path,
        log: Path,
        environment: Mapping[str, str],
        start_deadline_s: float = START_DEADLINE_S,
        window_deadline_s: float = WINDOW_DEADLINE_S,
    ) -> AbstractContextManager[RunningEngine]: ...


_STARTERS: dict[str, EngineStarter] = {}


def register_engine(kind: str) -> Callable[[EngineStarter], EngineStarter]:
    """Decorator: the function below starts engines of this kind."""

    def keep(starter: EngineStarter) -> EngineStarter:
        _STARTERS[kind] = starter
        return starter

    return keep


def engine_kinds() -> list[str]:
    """The kinds that can be started: what the modules of this folder register (all of them are imported)."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if not module.name.endswith("_worker"):  # a worker is a program of its own
            importlib.import_module(f"{__package__}.{module.name}")
    return sorted(_STARTERS)


def start_engine(
    kind: str,
    spec: LaunchSpec,
    *,
    library: Path,
    model: Path,
    log: Path,
    environment: Mapping[str, str],
    start_deadline_s: float = START_DEADLINE_S,
    window_deadline_s: float = WINDOW_DEADLINE_S,
) -> AbstractContextManager[RunningEngine]:
    """Start an engine of `kind` and end it on leaving the context, also by an exception or Ctrl-C.

    `environment` holds the labels ENGCMP_ARM, ENGCMP_LOCK and ENGCMP_RUN that mark the engine's processes; of this
    process's own environment an engine gets a short allow-list only. `log` receives what the engine prints.
    An engine that is not ready after `start_deadline_s` seconds, or not done with a window after `window_deadline_s`,
    is killed. Use the engine from the thread that started it: on Linux it also dies with that thread.
    Raises EngcmpError for an unknown kind, an engine that does not start, and one that resolved a setting
    differently from what `spec` requests.
    """
    if kind not in _STARTERS and kind not in engine_kinds():
        raise EngcmpError(f"no engine kind {kind!r}", remedy=f"known kinds: {', '.join(engine_kinds())}")
    return _STARTERS[kind](
        spec,
        library=library,
        model=model,
        log=log,
        environment=environment,
        start_deadline_s=start_deadline_s,
        window_deadline_s=window_deadline_s,
    )
