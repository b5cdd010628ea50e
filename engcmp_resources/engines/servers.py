"""What a measurement needs of an engine that is a server of its own, and the registry of such kinds.

A server kind is one new file in this folder, whose module registers a starter by name with `register_server`. A starter brings the
engine up (or finds it running), proves what it can do, and yields a `RunningServer`; leaving the context ends whatever it started.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from engcmp_resources.errors import EngcmpError, first_fault

Mode = Literal["scoring", "serving"]
ScorePath = Literal["prefill", "decode"]
LIGHT_K = 20
START_DEADLINE_S = 900.0
REQUEST_DEADLINE_S = 900.0


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """What is asked of a launch: the part that is hashed, so it holds no path of this machine, no arm name and no time.

    `identities` names the content that runs: `image` (a digest), `commit` (of a launcher), `model`, `library` (SHA-256), as the kind has
    them. `vocab` is the width of a row. `settings` is the engine's table in the protocol, without label and versions.
    """

    kind: str
    engine: str
    version: str
    identities: Mapping[str, str]
    vocab: int
    settings: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        """The specification as plain JSON types, for hashing."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class LaunchPlace:
    """Where and as whom a launch runs.

    `scratch` is a folder for this launch alone; the caller removes it. `log` receives what engine and launcher print. `labels` are
    ENGCMP_ARM, ENGCMP_LOCK and ENGCMP_RUN: every process and container carries them. `gpus` are the indices that are locked for it.
    `files` are the launch's files by name (`model`, `library`, `launcher` = a tar of the launcher's commit, or what the protocol names).
    `cold`: the caches that the kind can clear are cleared before the start, and named in the facts' `start_caches`.
    `study` is the study's folder: relative paths of the protocol (a patch file) are below it. `hub` is the folder that a launcher is to
    take as HF_HOME, where a file of the launch is a folder of published files: they lie there as the hub's own client keeps them.
    """

    scratch: Path
    log: Path
    labels: Mapping[str, str]
    files: Mapping[str, Path]
    study: Path | None = None
    gpus: tuple[int, ...] = ()
    cold: bool = False
    say: Callable[[str], None] = field(default=lambda _text: None)
    hub: Path | None = None

    @property
    def label(self) -> str:
        """How errors name the launch."""
        return f"arm {self.labels['ENGCMP_ARM']}" if "ENGCMP_ARM" in self.labels else "a launch"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a running engine serves: its address, the name under which it serves its model, and the key that it wants, written nowhere."""

    url: str
    model: str
    key: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a running server can do, as it was proved by a probe at this launch, never as its kind promises.

    `prompt_logprobs`: how many log-probabilities of a prompt's row the API gives, 0 for none, or "full". `decode_logprobs` the same for
    generated tokens. `rows`: score paths on which the server gives full rows. The others: whether the API has it. `evidence` says for
    each how it was found.
    """

    prompt_logprobs: int | Literal["full"] = 0
    decode_logprobs: int | Literal["full"] = 0
    rows: tuple[ScorePath, ...] = ()
    token_ids: bool = False
    continuous_usage: bool = False
    cached_tokens: bool = False
    metrics: bool = False
    tokenizer: bool = False
    thinking_switch: bool = False
    evidence: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """As plain JSON types, for the launch's receipt."""
        return asdict(self)

    def light(self, path: ScorePath) -> bool:
        """Whether light rows (top 20 and the actual token) can be had on a score path."""
        found = self.prompt_logprobs if path == "prefill" else self.decode_logprobs
        return found == "full" or found >= LIGHT_K or path in self.rows


_FLAGS = ("token_ids", "continuous_usage", "cached_tokens", "metrics", "tokenizer", "thinking_switch")


def _declared(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Capabilities as a protocol declares them. Raises ValueError that says what may stand there."""
    for name, wanted in value.items():
        counted = isinstance(wanted, int) and not isinstance(wanted, bool) and wanted > 0
        allowed = {
            **dict.fromkeys(
                ("prompt_logprobs", "decode_logprobs"), ('a number or "full"', counted or wanted == "full")
            ),
            "rows": (
                "a list of prefill and decode",
                isinstance(wanted, (list, tuple)) and set(wanted) <= {"prefill", "decode"},
            ),
            **dict.fromkeys(_FLAGS, ("true or false", isinstance(wanted, bool))),
        }
        if name not in allowed:
            raise ValueError(f"{name!r} is no capability; they are {', '.join(allowed)}")
        if not allowed[name][1]:
            raise ValueError(f"{name} is {wanted!r}; it can be {allowed[name][0]}")
    return value


DeclaredCapabilities = Annotated[dict[str, Any], AfterValidator(_declared)]
"""What a protocol declares that a server can do, by the names of `Capabilities`: the least that is wanted."""


def refuse_lacking(label: str, declared: Mapping[str, Any], proved: Capabilities) -> None:
    """Raise EngcmpError naming each capability that the kind or the protocol declares and the running server lacks.

    `declared` maps names of `Capabilities` to the least that is wanted: true, a number of log-probabilities, "full", or score paths.
    """
    lacking = []
    for name, wanted in declared.items():
        found = getattr(proved, name)
        if isinstance(wanted, bool):
            enough = not wanted or bool(found)
        elif isinstance(wanted, int):
            enough = found == "full" or (not isinstance(found, str) and found >= wanted)
        elif isinstance(wanted, str):
            enough = found == wanted
        else:
            enough = set(wanted) <= set(found)
        if not enough:
            how = proved.evidence.get(name, "the probe found none")
            told = [list(one) if isinstance(one, tuple) else one for one in (wanted, found)]
            lacking.append(f"{name} (declared {told[0]!r}, proved {told[1]!r}: {how})")
    if lacking:
        raise EngcmpError(
            f"{label}: the running server lacks what is declared of it: {'; '.join(lacking)}",
            remedy="start it with the option that gives it, choose another panel, or correct the declaration in the protocol; "
            "nothing was measured",
        )


@dataclass(frozen=True, slots=True)
class RowsTaken:
    """Full rows written: how many, in how many seconds, and what the engine said of each request.

    `notes` are plain JSON: chunk lengths, cached tokens (0 where the path demands it), other requests in the step; a value that the engine
    does not state is `{"missing": reason}`.
    """

    rows: int
    seconds: float
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class LightRows:
    """What an API returned of n rows, the top K = 20 and the actual token: natural logarithms over the whole vocabulary.

    `top_ids` int64 [n, K] and `top_log_probs` float64 [n, K] in falling probability, ties by the lower id; `next_log_prob` float64 [n] of
    the window's next token. A row's position is the caller's.
    """

    top_ids: npt.NDArray[np.int64]
    top_log_probs: npt.NDArray[np.float64]
    next_log_prob: npt.NDArray[np.float64]
    seconds: float
    notes: Mapping[str, Any] = field(default_factory=dict)


class RunningServer(Protocol):
    """A server that has started (or was found), has completed an inference of the right model, and has proved its capabilities."""

    @property
    def url(self) -> str:
        """Its address, on 127.0.0.1 for all that this project starts."""

    @property
    def endpoint(self) -> Endpoint:
        """Where a load is sent, as whom, and for which model."""

    @property
    def facts(self) -> dict[str, Any]:
        """The launch receipt, plain JSON without secrets or paths of this machine.

        Keys, where the kind has them, else absent:

        `engine`, `version`, `kind`, `identities`; `image` {digest, labels}; `launcher` {commit, config_sha256}; `command`; `environment`
        (secrets as `sha256:` and 12 characters); `mounts`; `container` {id, started_at, restart_count}; `stated` (the engine's own
        statements by source, raw) and `settings` {name: {requested, resolved}}; `ready` {first_token_ms, ready_line_ms}; `load_ms`;
        `n_ctx`; `kv_pool` {tokens, how, max_model_len}; `template`, `thinking`, `tokenizer` (probes); `capabilities`.
        """

    @property
    def capabilities(self) -> Capabilities:
        """What was proved."""

    def tokenize(self, text: str) -> list[int] | None:
        """Token ids of `text` without added ones, or None where the server has no tokenizer route."""

    def full_rows(
        self, path: ScorePath, window_id: str, tokens: Sequence[int], positions: Sequence[int], out: Path
    ) -> RowsTaken:
        """Write rows `positions` to `out`: raw little-endian float32 [n, vocab], whole or not at all (MEASURES section 1: row r is the
        distribution after tokens 0..r). Raises EngcmpError for what the server cannot serve, an incomplete answer, a dead engine.
        """

    def light_rows(self, path: ScorePath, window_id: str, tokens: Sequence[int], positions: Sequence[int]) -> LightRows:
        """The light rows `positions`. Raises EngcmpError as `full_rows`."""

    def refuse_changed(self) -> None:
        """Raise EngcmpError where the engine is not the one that was started: restarted, replaced, gone. Called around each window."""

    def log_tail(self) -> str:
        """The last 40 lines of the engine's log."""


class ServerStarter(Protocol):
    """Starts one kind of server; leaving the context ends all that it started, whatever happened inside."""

    def __call__(
        self, spec: ServerSpec, place: LaunchPlace, *, mode: Mode, start_deadline_s: float, request_deadline_s: float
    ) -> AbstractContextManager[RunningServer]: ...


class Settings(BaseModel):
    """The settings of a kind, as a protocol's `[engines.NAME.settings]` may have them: unknown ones are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    clears_caches: ClassVar[bool] = False  # whether the kind can start cold (`LaunchPlace.cold`)

    def check_place(self, label: str, identities: Mapping[str, str]) -> None:
        """Look at what a launch will need of this machine; asked before anything is computed for the arm, so it starts nothing.

        `identities` are those that the protocol pins (`image`, `commit`). By default a launch with an image needs a Docker engine that
        answers and has that image, and one without needs nothing. Raises EngcmpError for what lacks.
        """
        if "image" in identities:
            from engcmp_resources.host_image import require_engine_with  # noqa: PLC0415 - only who needs Docker loads its library

            require_engine_with(identities["image"])


_Own = TypeVar("_Own", bound=Settings)
_SERVERS: dict[str, ServerStarter] = {}
_SETTINGS: dict[str, type[Settings]] = {}


def register_server(kind: str, settings: type[Settings]) -> Callable[[ServerStarter], ServerStarter]:
    """Decorator: the function below starts servers of this kind, which takes these settings."""

    def keep(starter: ServerStarter) -> ServerStarter:
        _SERVERS[kind] = starter
        _SETTINGS[kind] = settings
        return starter

    return keep


def checked_settings(kind: str, settings: Mapping[str, Any], *, where: str) -> Settings:
    """The settings of a kind as its own record. Raises EngcmpError naming the first field that is unknown, missing or wrong."""
    if kind not in _SETTINGS and kind not in server_kinds():
        raise EngcmpError(f"no engine kind {kind!r}", where=where, remedy=f"known kinds: {', '.join(server_kinds())}")
    try:
        return _SETTINGS[kind].model_validate(settings)
    except ValidationError as error:
        known = tuple(_SETTINGS[kind].model_fields)
        place, words = first_fault(error.errors(), known)
        field_name = ".".join(str(part) for part in place) or "(the whole)"
        unknown = len(place) == 1 and field_name not in known
        raise EngcmpError(
            f"settings of an engine of kind {kind}: {field_name}: {words}", where=where,
            remedy=f"it takes {', '.join(known)}" if unknown else "mend that setting",
        ) from error  # fmt: skip


def launch_settings(spec: ServerSpec, place: LaunchPlace, own: type[_Own]) -> _Own:
    """The settings of a launch as the record of its kind. Raises EngcmpError as `checked_settings`."""
    settings = checked_settings(spec.kind, spec.settings, where=place.label)
    if not isinstance(settings, own):
        raise TypeError(f"kind {spec.kind} is registered with other settings")
    return settings


def server_kinds() -> list[str]:
    """The kinds that can be started: what the modules of this folder register (all of them are imported)."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if not module.name.endswith(("_worker", "_cli")):  # these are programs of their own
            importlib.import_module(f"{__package__}.{module.name}")
    return sorted(_SERVERS)


def start_server(
    spec: ServerSpec,
    place: LaunchPlace,
    *,
    mode: Mode = "scoring",
    start_deadline_s: float = START_DEADLINE_S,
    request_deadline_s: float = REQUEST_DEADLINE_S,
) -> AbstractContextManager[RunningServer]:
    """Start a server of `spec.kind` and end it on leaving the context, also by an exception or Ctrl-C.

    Ready means: its own ready line or health status where it has one AND a completed inference of one token of the right model, within
    `start_deadline_s` seconds. `request_deadline_s` limits each request. Raises EngcmpError for an unknown kind, a server that does not
    start (with the last 40 lines of its log and what is known to cause them), one that lacks a declared capability, and one that resolved
    a setting differently from what `spec` requests.
    """
    if spec.kind not in _SERVERS and spec.kind not in server_kinds():
        raise EngcmpError(f"no engine kind {spec.kind!r}", remedy=f"known kinds: {', '.join(server_kinds())}")
    return _SERVERS[spec.kind](
        spec, place, mode=mode, start_deadline_s=start_deadline_s, request_deadline_s=request_deadline_s
    )
