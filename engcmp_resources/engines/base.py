"""What a measurement needs of an engine, and the registries of engine kinds, one for each score path, and one for a load.

A new kind is one new file in this folder, whose module registers a starter by name with `register_engine` (prefill) or
`register_decoder` (decode), `register_serving` (a load).
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

from engcmp_resources.engines.servers import Endpoint
from engcmp_resources.errors import EngcmpError

START_DEADLINE_S = 120.0
WINDOW_DEADLINE_S = 300.0
ROW_DEADLINE_S = 60.0
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


@dataclass(frozen=True, slots=True)
class DecodeResult:
    """One window's rows from the decode path: `rows` rows written in `seconds`, from the first one's request to the last
    one's parsed answer; peak resident memory of the engine; and how many prompt tokens it processed for each row (1).
    """

    rows: int
    seconds: float
    peak_rss_bytes: int
    prompt_tokens_processed: tuple[int, ...]


class DecodingEngine(Protocol):
    """An engine that has started as a server, whose settings were found as requested and that has answered a request."""

    @property
    def facts(self) -> dict[str, Any]:
        """What the engine says of itself, as plain JSON types: sizes, slots, vocabulary, model, build, `load_ms`."""

    def decode_rows(self, window_id: str, tokens: Sequence[int], positions: Sequence[int], out: Path) -> DecodeResult:
        """Write the rows `positions`, which must follow each other (r, r+1, ...), to `out`, each decoded as one token.

        Tokens 0..r-1 of the first row r are processed before, anew and unrecorded; each row then adds its own token to
        what is cached, as in generation. The file is raw little-endian float32 of shape [len(positions), vocab], in the
        order of token ids: log-probabilities as the engine gave them, -inf for a probability of 0 (MEASURES section 1
        normalises them). It appears whole or not at all.
        Raises EngcmpError for a request that the engine cannot serve, for a row that was not decoded on the decode path,
        for an incomplete answer, and for an engine that fails or dies.
        """

    def log_tail(self) -> str:
        """The last lines of the engine's log."""


class ServingEngine(Protocol):
    """An engine that has started as a server for a load, whose settings were found as requested and that has answered a request."""

    @property
    def endpoint(self) -> Endpoint:
        """Where the load is sent."""

    @property
    def facts(self) -> dict[str, Any]:
        """As DecodingEngine's; `n_ctx` is the context of one request, `slots` how many are served at a time."""

    def refuse_ended(self) -> None:
        """Raise EngcmpError where the engine has ended."""

    def log_tail(self) -> str:
        """The last lines of the engine's log."""


def label_of(spec: LaunchSpec, environment: Mapping[str, str]) -> str:
    """How errors name a launch: by its arm, where the environment tells one."""
    return f"arm {environment['ENGCMP_ARM']}" if "ENGCMP_ARM" in environment else f"{spec.engine}@{spec.version}"


def verified_settings(
    label: str, spec: LaunchSpec, requested: Mapping[str, int], resolved: Mapping[str, Any]
) -> dict[str, Any]:
    """Each setting as requested and as found. A setting that the engine does not state is no mismatch: it is found as
    `{"missing": reason}`. Raises EngcmpError for one that was found to differ.
    """
    settings = {name: {"requested": asked, "resolved": resolved[name]} for name, asked in requested.items()}
    differing = [
        f"{name} requested {pair['requested']}, found {pair['resolved']}"
        for name, pair in settings.items()
        if pair["requested"] != pair["resolved"] and not isinstance(pair["resolved"], Mapping)
    ]
    if differing:
        raise EngcmpError(
            f"{label}: {spec.engine}@{spec.version} resolved its settings differently: {'; '.join(differing)}",
            remedy="request what this version can do (it may round the context up to a multiple of 256), "
            "or use a version with the known layout",
        )
    return settings


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


class DecoderStarter(Protocol):
    """Starts one kind of engine as a server; leaving the context ends the engine, whatever happened inside."""

    def __call__(
        self,
        spec: LaunchSpec,
        *,
        library: Path,
        model: Path,
        log: Path,
        environment: Mapping[str, str],
        port: int | None = None,
        start_deadline_s: float = START_DEADLINE_S,
        row_deadline_s: float = ROW_DEADLINE_S,
    ) -> AbstractContextManager[DecodingEngine]: ...


class ServingStarter(Protocol):
    """Starts one kind of engine as a server for a load; leaving the context ends the engine, whatever happened inside."""

    def __call__(
        self,
        spec: LaunchSpec,
        *,
        slots: int,
        library: Path,
        model: Path,
        log: Path,
        environment: Mapping[str, str],
        cold: bool = False,
        start_deadline_s: float = START_DEADLINE_S,
    ) -> AbstractContextManager[ServingEngine]: ...


_STARTERS: dict[str, EngineStarter] = {}
_DECODERS: dict[str, DecoderStarter] = {}
_SERVING: dict[str, ServingStarter] = {}


def register_engine(kind: str) -> Callable[[EngineStarter], EngineStarter]:
    """Decorator: the function below starts engines of this kind."""

    def keep(starter: EngineStarter) -> EngineStarter:
        _STARTERS[kind] = starter
        return starter

    return keep


def register_decoder(kind: str) -> Callable[[DecoderStarter], DecoderStarter]:
    """Decorator: the function below starts engines of this kind for the decode path."""

    def keep(starter: DecoderStarter) -> DecoderStarter:
        _DECODERS[kind] = starter
        return starter

    return keep


def register_serving(kind: str) -> Callable[[ServingStarter], ServingStarter]:
    """Decorator: the function below starts engines of this kind for a load."""

    def keep(starter: ServingStarter) -> ServingStarter:
        _SERVING[kind] = starter
        return starter

    return keep


def engine_kinds() -> list[str]:
    """The kinds that can be started: what the modules of this folder register (all of them are imported)."""
    _import_all()
    return sorted(_STARTERS)


def decoder_kinds() -> list[str]:
    """The kinds that have a decode path."""
    _import_all()
    return sorted(_DECODERS)


def serving_kinds() -> list[str]:
    """The kinds that can be put under a load."""
    _import_all()
    return sorted(_SERVING)


def _import_all() -> None:
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if not module.name.endswith("_worker") and not module.name.endswith("_cli"):  # programs of their own
            importlib.import_module(f"{__package__}.{module.name}")


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


def start_decoder(
    kind: str,
    spec: LaunchSpec,
    *,
    library: Path,
    model: Path,
    log: Path,
    environment: Mapping[str, str],
    port: int | None = None,
    start_deadline_s: float = START_DEADLINE_S,
    row_deadline_s: float = ROW_DEADLINE_S,
) -> AbstractContextManager[DecodingEngine]:
    """Start an engine of `kind` as a server on 127.0.0.1 for the decode path; all else as with `start_engine`.

    It is ready when it has answered a request for one token of the right model. Without `port` it takes a free one.
    An engine that is not ready after `start_deadline_s` seconds, or not done with a request after `row_deadline_s`, is
    killed. Raises EngcmpError as `start_engine`, and for a port that is taken.
    """
    if kind not in _DECODERS and kind not in decoder_kinds():
        raise EngcmpError(
            f"no engine kind {kind!r} has a decode path", remedy=f"known kinds: {', '.join(decoder_kinds())}"
        )
    return _DECODERS[kind](
        spec,
        library=library,
        model=model,
        log=log,
        environment=environment,
        port=port,
        start_deadline_s=start_deadline_s,
        row_deadline_s=row_deadline_s,
    )


def start_serving(
    kind: str,
    spec: LaunchSpec,
    *,
    slots: int,
    library: Path,
    model: Path,
    log: Path,
    environment: Mapping[str, str],
    cold: bool = False,
    start_deadline_s: float = START_DEADLINE_S,
) -> AbstractContextManager[ServingEngine]:
    """Start an engine of `kind` as a server on 127.0.0.1 for a load; all else as with `start_engine`.

    It serves `slots` requests at a time, each with the context that `spec` asks for. It is ready when it has answered a request for one
    token of the right model. `cold`: the caches that the kind can clear are cleared before, and named in the facts' `start_caches`.
    Raises EngcmpError as `start_engine`.
    """
    if kind not in _SERVING and kind not in serving_kinds():
        raise EngcmpError(f"no engine kind {kind!r} takes a load", remedy=f"known kinds: {', '.join(serving_kinds())}")
    return _SERVING[kind](
        spec, slots=slots, library=library, model=model, log=log, environment=environment, cold=cold, start_deadline_s=start_deadline_s
    )  # fmt: skip
