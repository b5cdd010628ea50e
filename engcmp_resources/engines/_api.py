"""What every API of a running engine is asked for, and the exchange over HTTP that the clients share.

One client is one file: `_vllm_http`, `_sglang_http`, `_cuteafd_http`, `_llamacpp_api`. A kind of server that starts an engine knows only
`make_client` and `ApiClient`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal, Protocol, TypeVar

import httpx
import msgspec
import numpy as np
import numpy.typing as npt

from engcmp_resources.disk import disk_errors
from engcmp_resources.engines._llamacpp_http import BrokenOff, Late, beginning
from engcmp_resources.engines.servers import LIGHT_K, Capabilities, Endpoint, LightRows, RowsTaken, ScorePath
from engcmp_resources.errors import EngcmpError
from engcmp_resources.secrecy import without_key, without_secrets

__all__ = ["ApiClient", "ApiName", "BrokenOff", "Http", "Late", "make_client"]

ApiName = Literal["vllm", "sglang", "cuteafd", "llama-server"]
Floats = npt.NDArray[np.float64]
READ_LOG = "read the log of the engine"
UNKNOWN_FORM = "use a version with the known answers, or teach the client of this API the new ones"
ANOTHER = "another program answers at this address: end it, or choose a free port"
OTHERS = "let nothing else use the server while it is measured"
NOT_STATED = "the API does not state it"
_SHOWN_CHARACTERS = 120
_ANSWER_BYTES = 64 << 20
# Small letters are a server's own words, where `eos_token` is none.
_NAN = re.compile(rb"([:,\[]\s*)-?NaN(?=\s*[,}\]])")
# Strings on which tokenizers differ: control tokens as text, runs of spaces, other scripts, digits, an empty one.
PROBE_TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "  two  spaces\n\n\ttab\n",
    "<think>a</think>",
    "<|im_start|>user\nhi<|im_end|>",
    "na\u00efve \u6570\u5b66 \U0001f642",
    "1234567890 3.14159",
    "",
)
PROBE_MESSAGES = ({"role": "user", "content": "Reply with one word: yes."},)


class ApiClient(Protocol):
    """An engine at one address. All methods raise EngcmpError: `Late`, `BrokenOff`, or for an answer that is not as it must be.

    `until` is a time of `time.monotonic()`. Nothing else may use the server meanwhile.
    """

    @property
    def endpoint(self) -> Endpoint:
        """Where it asks, for which model, with which key."""

    def first_token(self, until: float) -> None:
        """Complete an inference of one token of the right model, or raise."""

    def prove(self, until: float) -> tuple[Capabilities, dict[str, Any]]:
        """What the server can do, by probes, and what it states of itself: parts of `RunningServer.facts`, plain JSON.

        The facts are `stated` {source: raw answer}, and where they can be had `n_ctx`, `kv_pool`, `template`, `thinking`, `tokenizer`.
        Raises EngcmpError also for a server whose log-probabilities are not what they seem: shifted, processed or stale.
        """

    def tokenize(self, text: str) -> list[int] | None:
        """Token ids of `text` without added ones, or None where the server has no tokenizer route."""

    def full_rows(
        self,
        path: ScorePath,
        window_id: str,
        tokens: Sequence[int],
        positions: Sequence[int],
        out: Path,
        *,
        deadline_s: float,
    ) -> RowsTaken:
        """As `RunningServer.full_rows`, within `deadline_s` seconds."""

    def light_rows(
        self, path: ScorePath, window_id: str, tokens: Sequence[int], positions: Sequence[int], *, deadline_s: float
    ) -> LightRows:
        """As `RunningServer.light_rows`, within `deadline_s` seconds."""

    def close(self) -> None:
        """Close all connections."""


def make_client(
    api: ApiName, address: str, *, key: str | None, label: str, model: str, vocab: int, dump_root: Path | None = None
) -> ApiClient:
    """The client of the API that `address` speaks.

    `model` is the name under which the server must serve its model, `vocab` the width of a row, `label` the launch as errors name it,
    `dump_root` the folder in which a server of this machine dumps rows (CuteAFD). Raises EngcmpError for an API that is not known.
    """
    if api == "vllm":
        from engcmp_resources.engines._vllm_http import VllmApi  # noqa: PLC0415 - the clients import this module

        return VllmApi(address, key=key, label=label, model=model, vocab=vocab)
    if api == "sglang":
        from engcmp_resources.engines._sglang_http import SglangApi  # noqa: PLC0415 - as above

        return SglangApi(address, key=key, label=label, model=model, vocab=vocab)
    if api == "cuteafd":
        from engcmp_resources.engines._cuteafd_http import CuteafdApi  # noqa: PLC0415 - as above

        return CuteafdApi(address, key=key, label=label, model=model, vocab=vocab, dump_root=dump_root)
    if api == "llama-server":
        from engcmp_resources.engines._llamacpp_api import LlamaServerApi  # noqa: PLC0415 - as above

        return LlamaServerApi(address, key=key or "", label=label, model=model, vocab=vocab)
    raise EngcmpError(f"{label}: no API {api!r}", remedy="known: vllm, sglang, cuteafd, llama-server")


_Answer = TypeVar("_Answer")


class Http:
    """Requests to the server at `address`, each with a deadline and a limit on the answer's size; `key` is sent as a bearer token."""

    def __init__(self, address: str, *, key: str | None, label: str) -> None:
        self.address, self._label, self._key = address, label, key
        self._client = httpx.Client(
            base_url=address,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            trust_env=False,  # the user's proxy does not lead to this machine's loopback
            limits=httpx.Limits(max_keepalive_connections=0),  # servers drop idle ones, under a request
        )

    def close(self) -> None:
        self._client.close()

    def endpoint(self, model: str) -> Endpoint:
        """Where it asks, as who asks for `model` needs to know."""
        return Endpoint(self.address, model, self._key or None)

    def ask(
        self,
        kind: type[_Answer],
        path: str,
        body: Mapping[str, Any] | None,
        doing: str,
        until: float,
        *,
        most_bytes: int = _ANSWER_BYTES,
    ) -> _Answer:
        """The JSON answer as `kind`; GET without a body, else POST. Raises EngcmpError for any other answer, with its beginning."""
        status, headers, content = self.exchange(path, body, doing, until, most_bytes=most_bytes)
        self.refuse_status(status, headers, content, doing, path)
        return self.parsed(kind, content, doing, path)

    def found(self, path: str, body: Mapping[str, Any] | None, doing: str, until: float) -> Any | None:
        """A JSON answer of any form, without secrets; None where the server has no such route, refuses the request or answers no JSON."""
        status, headers, content = self.exchange(path, body, doing, until)
        if status == httpx.codes.TOO_MANY_REQUESTS or status >= httpx.codes.INTERNAL_SERVER_ERROR:
            self.refuse_status(status, headers, content, doing, path)
        try:
            answer = msgspec.json.decode(content) if status == httpx.codes.OK else None
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        return None if isinstance(answer, dict) and answer.get("error") else without_secrets(answer, self._key)

    def text(self, path: str, doing: str, until: float) -> str | None:
        """The text at `path`, or None where there is none."""
        status, _, content = self.exchange(path, None, doing, until)
        return content.decode(errors="replace") if status == httpx.codes.OK else None

    def exchange(
        self, path: str, body: Mapping[str, Any] | None, doing: str, until: float, *, most_bytes: int = _ANSWER_BYTES
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers and whole content of one answer. Raises Late, BrokenOff, and EngcmpError for one over `most_bytes`."""
        content = bytearray()
        try:
            timeout = max(1e-3, until - time.monotonic())
            with self._client.stream("GET" if body is None else "POST", path, json=body, timeout=timeout) as response:
                for block in response.iter_bytes():
                    content += block
                    if time.monotonic() > until:  # the timeout is for each block: a trickle never ends
                        raise httpx.ReadTimeout("the deadline has passed")
                    if len(content) > most_bytes:
                        raise self.error(f"{doing}: an answer of more than {most_bytes:,} bytes", ANOTHER, path)
        except httpx.TimeoutException as error:
            raise Late(
                f"{self._label}: no whole answer in time while {doing}",
                where=f"{self.address}{path}",
                remedy=f"{READ_LOG}: it may be stuck, busy or still starting",
            ) from error
        except httpx.RequestError as error:
            raise BrokenOff(
                f"{self._label}: the connection broke off while {doing}: {error}",
                where=f"{self.address}{path}",
                remedy=f"{READ_LOG}, and run again",
            ) from error
        return response.status_code, response.headers, bytes(content)

    def refuse_status(self, status: int, headers: Mapping[str, str], content: bytes, doing: str, path: str) -> None:
        """Raise EngcmpError for a status other than 200."""
        if status == httpx.codes.TOO_MANY_REQUESTS:
            wait = headers.get("retry-after", "a time that it does not state")
            raise self.error(f"{doing}: the server is too busy (429) and asks to wait {wait} s", OTHERS, path)
        if status != httpx.codes.OK:
            raise self.error(f"{doing}: HTTP status {status}: {beginning(content, self._key)}", READ_LOG, path)

    def parsed(self, kind: type[_Answer], content: bytes, doing: str, path: str) -> _Answer:
        """JSON as `kind`, with null for NaN. Raises EngcmpError for what is no JSON, an error inside an answer, and another form."""
        said = None
        if b"NaN" in content:  # what some servers write, and JSON cannot hold
            content = _NAN.sub(rb"\1null", content)
        try:
            if b'"error"' in content[:256]:
                said = msgspec.json.decode(content, type=_Said).error
            if not said:
                return msgspec.json.decode(content, type=kind)
        except msgspec.ValidationError as error:
            raise self.error(f"{doing}: {error}: {beginning(content, self._key)}", UNKNOWN_FORM, path) from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self.error(
                f"{doing}: the answer is no JSON: {beginning(content, self._key)}", ANOTHER, path
            ) from error
        raise self.error(
            f"{doing}: an error inside an answer with status 200: {without_key(str(said).encode(), self._key).decode()[:300]}",
            READ_LOG,
            path,
        )

    def error(self, what: str, remedy: str, path: str = "") -> EngcmpError:
        """An error of this launch at this address."""
        return EngcmpError(f"{self._label}: {what}", where=f"{self.address}{path}", remedy=remedy)


class _Said(msgspec.Struct):
    error: Any = None


def stream_data(content: bytes) -> list[str]:
    """The data of each event of a server-sent stream, in order; comments are no events."""
    events = content.decode(errors="replace").replace("\r\n", "\n").split("\n\n")
    data = ("\n".join(line[5:].lstrip() for line in event.split("\n") if line.startswith("data:")) for event in events)
    return [text for text in data if text]


def check_window(
    label: str, window_id: str, tokens: Sequence[int], positions: Sequence[int], vocab: int, *, rows: int
) -> None:
    """Raise EngcmpError for a window without tokens or rows, ids outside the vocabulary, and positions outside 0..`rows` - 1."""
    what = None
    if not tokens or not positions:
        what = f"{len(tokens)} tokens and {len(positions)} rows"
    elif min(positions) < 0 or max(positions) >= rows:
        what = f"a row outside 0..{rows - 1}: what the API gives of {len(tokens)} tokens"
    elif len(set(positions)) != len(positions):
        what = "a row is asked for twice"
    elif not all(0 <= token < vocab for token in tokens):
        what = f"a token id outside 0..{vocab - 1}"
    if what is not None:
        raise EngcmpError(
            f"{label}: window {window_id}: {what}", remedy="correct the window or its rows in the protocol"
        )


def sorted_top(ids: npt.NDArray[np.int64], log_probs: Floats, k: int = LIGHT_K) -> npt.NDArray[np.int64]:
    """Indices of the `k` most probable, in falling order, ties to the lower id."""
    last = np.partition(log_probs, -k)[-k] if log_probs.size > k else -np.inf
    kept = np.flatnonzero(log_probs >= last)  # all that share the last place too
    order: npt.NDArray[np.int64] = kept[np.lexsort((ids[kept], -log_probs[kept]))[:k]]
    return order


def light_of(
    rows: npt.NDArray[np.float32], following: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], Floats, Floats]:
    """Top ids [n, K], their log-probabilities [n, K] and that of the next token [n], of full rows [n, vocab]."""
    ids = np.arange(rows.shape[1])
    top, values, next_values = [], [], []
    for row, token in zip(
        rows, following, strict=True
    ):  # one by one: in float64 a block would take its size twice more
        wide = row.astype(np.float64)
        highest = wide.max()
        wide -= highest + np.log(np.exp(wide - highest).sum())
        top.append(sorted_top(ids, wide))
        values.append(wide[top[-1]])
        next_values.append(wide[token])
    return np.stack(top), np.stack(values), np.array(next_values)


def refuse_unusable(label: str, window_id: str, position: int, row: npt.NDArray[Any], where: str) -> None:
    """Raise EngcmpError for a row that holds NaN or plus infinity, or nothing but minus infinity (MEASURES section 1)."""
    nan = int(np.isnan(row).sum())
    if nan or not np.isfinite(row.max(initial=-np.inf)):
        found = f"{nan:,} values are NaN" if nan else "no finite maximum"
        raise EngcmpError(
            f"{label}: window {window_id}, row {position}: {found}", where=where,
            remedy="no such row is averaged: capture the window again; if it comes back, the engine cannot serve it",
        )  # fmt: skip


@contextmanager
def rows_file(out: Path) -> Generator[IO[bytes], None, None]:
    """A file that becomes `out` when the block ends well, else nothing. No fsync: it is scratch that the caller reads at once."""
    partial = out.with_name(f"{out.name}.partial")
    try:
        with disk_errors(out):
            with partial.open("wb") as file:
                yield file
            partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)


def tokenizer_differences(one: Mapping[str, Sequence[int]], other: Mapping[str, Sequence[int]]) -> list[str]:
    """A sentence for each probe text to which two tokenizers give different ids: a begin token on one side, or where they part."""
    said = []
    for text in one.keys() & other.keys():
        left, right = list(one[text]), list(other[text])
        if left == right:
            continue
        first = next((at for at, pair in enumerate(zip(left, right, strict=False)) if pair[0] != pair[1]), None)
        if left[1:] == right or right[1:] == left:
            longer = left if len(left) > len(right) else right
            how = f"one side puts token {longer[0]} in front"
        elif first is None:
            how = f"{len(left)} ids against {len(right)}"
        else:
            how = (
                f"they part at id {first}: {left[first]} against {right[first]} ({len(left)} ids against {len(right)})"
            )
        said.append(f"{text[:30]!r}: {how}")
    return sorted(said)
