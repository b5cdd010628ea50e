"""llama.cpp's own HTTP server in a child process: the decode path, one token after the other; and for a load."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engcmp_resources.engines._child import END_WAIT_S, OWN_ENVIRONMENT, Child, check_file
from engcmp_resources.engines._llamacpp_http import BrokenOff, CompletionClient, Late, logged_settings
from engcmp_resources.engines.base import (
    ROW_DEADLINE_S,
    START_DEADLINE_S,
    DecodeResult,
    LaunchSpec,
    label_of,
    register_decoder,
    register_serving,
    verified_settings,
)
from engcmp_resources.engines.servers import Endpoint
from engcmp_resources.errors import EngcmpError
from engcmp_resources.start_caches import drop_page_cache

_WORKER = Path(__file__).with_name("llamacpp_server_worker.py")
_ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+")
_DEATH_WAIT_S = 1.0


class _Decoder:
    """A running server; see DecodingEngine."""

    def __init__(self, child: Child, client: CompletionClient, facts: dict[str, Any], row_deadline_s: float) -> None:
        self._child = child
        self._client = client
        self._facts = facts
        self._row_deadline_s = row_deadline_s

    @property
    def facts(self) -> dict[str, Any]:
        return self._facts

    def decode_rows(self, window_id: str, tokens: Sequence[int], positions: Sequence[int], out: Path) -> DecodeResult:
        self._check_window(window_id, tokens, positions)
        ids = [int(token) for token in tokens]
        doing, deadline_s = f"processing what precedes row {positions[0]} of window {window_id}", self._row_deadline_s
        with _engine_errors(self._child, doing, deadline_s):
            self._client.process_prefix(ids[: positions[0]], doing=doing, deadline_s=deadline_s)
        rows, processed = [], []
        started = time.perf_counter()
        for position in positions:
            doing = f"decoding row {position} of window {window_id}"
            with _engine_errors(self._child, doing, deadline_s):
                row, count = self._client.decode_row(ids[: position + 1], doing=doing, deadline_s=deadline_s)
            rows.append(row)
            processed.append(count)
        seconds = time.perf_counter() - started
        memory = self._child.ask({}, doing="asking for the memory used", deadline_s=deadline_s)
        self._write(rows, out)
        return DecodeResult(len(rows), seconds, memory["peak_rss_bytes"], tuple(processed))

    def _check_window(self, window_id: str, tokens: Sequence[int], positions: Sequence[int]) -> None:
        what = None
        if not tokens or not positions:
            what = f"{len(tokens)} tokens and {len(positions)} rows"
        elif list(positions) != list(range(positions[0], positions[0] + len(positions))):
            what = f"rows {list(positions)} do not follow each other"
        elif positions[0] < 1:
            what = f"row {positions[0]}, which has no token before it that could be cached"
        elif positions[-1] >= len(tokens):
            what = f"a row outside 0..{len(tokens) - 1}"
        elif positions[-1] + 1 >= self._facts["n_ctx"]:  # the server wants room for the token that it samples
            what = f"row {positions[-1]} takes {positions[-1] + 2} tokens, the context holds {self._facts['n_ctx']}"
        elif not all(0 <= token < self._facts["n_vocab"] for token in tokens):
            what = f"a token id outside 0..{self._facts['n_vocab'] - 1}"
        if what is not None:
            raise EngcmpError(
                f"{self._child.label}: window {window_id}: {what}",
                remedy="correct the window or its decoded rows, or the context of the launch, in the protocol",
            )

    def _write(self, rows: Sequence[npt.NDArray[np.float32]], out: Path) -> None:
        # No fsync: this is scratch that the caller reads at once; the store makes the final file durable.
        partial = out.with_name(f"{out.name}.partial")
        try:
            with partial.open("wb") as file:
                for row in rows:
                    file.write(row.tobytes())
            partial.replace(out)
        except OSError as error:
            raise EngcmpError(
                f"{self._child.label}: rows could not be written: {error.strerror}",
                where=str(out),
                remedy="free disk space",
            ) from error
        finally:
            partial.unlink(missing_ok=True)

    def log_tail(self) -> str:
        return self._child.log_tail()


class _Serving:
    """A running server that takes a load; see ServingEngine."""

    def __init__(self, child: Child, client: CompletionClient, facts: dict[str, Any]) -> None:
        self._child, self._client, self._facts = child, client, facts

    @property
    def endpoint(self) -> Endpoint:
        return self._client.endpoint

    @property
    def facts(self) -> dict[str, Any]:
        return self._facts

    def refuse_ended(self) -> None:
        if self._child.process.poll() is not None:
            raise self._child.death("under its load")

    def log_tail(self) -> str:
        return self._child.log_tail()


@contextmanager
def _engine_errors(child: Child, doing: str, deadline_s: float) -> Generator[None, None, None]:
    """What the client sees of a dead or stuck engine, told as what happened to the engine."""
    if child.process.poll() is not None:  # its port may be another program's by now
        raise child.death(f"before {doing}")
    try:
        yield
    except Late as error:
        child.end(wait_s=0.0)
        raise child.error(
            f"no answer within {deadline_s:g} s while {doing}; the engine was killed",
            "run again on a machine that is less busy, or raise the deadline",
        ) from error
    except BrokenOff as error:
        if child.has_ended(within_s=_DEATH_WAIT_S):
            raise child.death(f"while {doing}") from error
        raise


def _requested(spec: LaunchSpec) -> dict[str, int]:
    return {
        "n_ctx": spec.context_tokens,
        "n_batch": spec.batch_tokens,
        "n_ubatch": spec.micro_batch_tokens,
        "n_threads": spec.threads,
        "n_threads_batch": spec.threads,
    }


def _facts(label: str, spec: LaunchSpec, stated: dict[str, Any], slots: int) -> dict[str, Any]:
    requested = _requested(spec) | {"slots": slots, "n_vocab": spec.vocab}
    return {
        "engine": spec.engine,
        "version": spec.version,
        **stated,
        "settings": verified_settings(label, spec, requested, stated),
        "environment": dict(OWN_ENVIRONMENT),
    }


@register_decoder("llamacpp")
@contextmanager
def start_llamacpp_server(
    spec: LaunchSpec,
    *,
    library: Path,
    model: Path,
    log: Path,
    environment: Mapping[str, str],
    port: int | None = None,
    start_deadline_s: float = START_DEADLINE_S,
    row_deadline_s: float = ROW_DEADLINE_S,
) -> Generator[_Decoder, None, None]:
    """Start llama.cpp's server from the extension module `library` in a child process; see `base.start_decoder`.

    Both files are hashed first: what is not as `spec` names it is not started. The server itself takes the free port.
    """
    files = _Files(library, model, log)
    with _running(spec, files, environment, {"port": port or 0}, start_deadline_s) as (child, client, facts):
        yield _Decoder(child, client, facts | {"score_path": "decode"}, row_deadline_s)


@register_serving("llamacpp")
@contextmanager
def serve_llamacpp(
    spec: LaunchSpec,
    *,
    slots: int,
    library: Path,
    model: Path,
    log: Path,
    environment: Mapping[str, str],
    cold: bool = False,
    start_deadline_s: float = START_DEADLINE_S,
) -> Generator[_Serving, None, None]:
    """The same server for a load of `slots` requests at a time, each with a context of its own; see `base.start_serving`."""
    asked = {"n_parallel": slots, "n_ctx": slots * spec.context_tokens, "endpoint_metrics": True}
    files = _Files(library, model, log, cold)
    with _running(spec, files, environment, asked, start_deadline_s) as (child, client, facts):
        pool = {"tokens": facts["n_ctx"] * facts["slots"], "how": "context of a slot times slots, GET /props"}
        yield _Serving(child, client, facts | {"kv_pool": pool | {"max_model_len": facts["n_ctx"]}})


@dataclass(frozen=True, slots=True)
class _Files:
    library: Path
    model: Path
    log: Path
    cold: bool = False  # whether their pages are dropped from memory before the start


@contextmanager
def _running(
    spec: LaunchSpec, files: _Files, environment: Mapping[str, str], asked: Mapping[str, Any], start_deadline_s: float
) -> Generator[tuple[Child, CompletionClient, dict[str, Any]], None, None]:
    label, until = label_of(spec, environment), time.monotonic() + start_deadline_s
    check_file(label, "library", files.library, spec.library_sha256)
    check_file(label, "model", files.model, spec.model_sha256)
    # After they were hashed, which has read them into memory.
    caches = drop_page_cache({"the model file": files.model, "the library": files.library}) if files.cold else None
    began = time.monotonic()
    child = Child(_WORKER, label=label, log=files.log, environment=environment)
    end_wait_s = 0.0  # a worker that is still loading does not see that its input has ended
    try:
        # The key keeps other users of this machine and pages in a browser away from its slots and their cache.
        key = secrets.token_urlsafe(32)
        paths = {"library": str(files.library.absolute()), "model": str(files.model.absolute())}
        request = paths | _requested(spec) | {"key": key, "alias": spec.model_sha256, "port": 0} | dict(asked)
        stated = child.ask(request, doing="loading", deadline_s=until - time.monotonic())
        end_wait_s = END_WAIT_S
        address = stated.pop("address")
        if not _ADDRESS.fullmatch(address):
            raise child.error(f"the server listens at {address!r}, not at 127.0.0.1", "use a version that obeys")
        client = CompletionClient(address, key=key, label=label, model=spec.model_sha256, vocab=spec.vocab)
        try:
            with _engine_errors(child, "getting ready", start_deadline_s):
                stated |= client.get_ready(until - time.monotonic())
            stated |= {"ready": {"first_token_ms": round((time.monotonic() - began) * 1000)}}
            stated |= {} if caches is None else {"start_caches": caches}
            facts = _facts(label, spec, stated | logged_settings(files.log), int(asked.get("n_parallel", 1)))
            yield child, client, facts
        finally:
            client.close()
    finally:
        child.end(wait_s=end_wait_s)
