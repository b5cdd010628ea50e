"""CuteAFD's HTTP server: its scoring endpoint, whose rows come as a dump on this machine's disk, and the checks that they must pass.

The probe's position p is that of the token which a row predicts, so row r is its position r + 1. Asked for here, and read back by
`row_layouts.probe_dump`; no other place converts.
"""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import httpx
import msgspec
import numpy as np
import numpy.typing as npt

from engcmp_resources.disk import require_space
from engcmp_resources.engines import _proofs
from engcmp_resources.engines._api import (
    NOT_STATED,
    OTHERS,
    PROBE_MESSAGES,
    READ_LOG,
    UNKNOWN_FORM,
    Http,
    check_window,
    light_of,
    refuse_unusable,
    rows_file,
)
from engcmp_resources.engines.servers import LIGHT_K, Capabilities, Endpoint, LightRows, RowsTaken, ScorePath
from engcmp_resources.errors import EngcmpError
from engcmp_resources.row_layouts.probe_dump import DumpedRows, open_dump

_PROBE, _CHAT = "/v1/bench/probe", "/v1/chat/completions"
_VERIFY_ROWS = 64
_BUSY_S, _BUSY_POLL_S = 1.0, 0.05
_PROBING = b"benchmark_running"
_BLOCK_BYTES = 256 << 20
_ROW_HEAD_BYTES = 4096  # a row's file beside its values: header, name, the rest of a block
_MASS_TOLERANCE = 1e-4
_ALIGNED_AT = (4, 7, 10, 13, 16, 19, 22, 25)
_SHIFTS = (-2, -1, 0, 1, 2)
_FNV_OFFSET, _FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3
_FNV_BYTES = 4096
Rows = npt.NDArray[np.float32]


_Asked = TypeVar("_Asked")


class _Row(msgspec.Struct):
    position: int
    hash: str
    argmax: int
    top: list[tuple[int, float | None]] = []
    finite: bool = True


class _Probe(msgspec.Struct):
    prompt_ids: list[int]
    cached_tokens: int
    rows: list[_Row] = []
    generated: list[int] = []
    scored: int = 0
    score_path: str | None = None
    error: str | None = None


class _Answer(msgspec.Struct):
    probe: _Probe
    server: dict[str, Any] = {}
    timing: dict[str, Any] | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: dict[str, Any] | None = None


class _Chat(msgspec.Struct):
    usage: _Usage
    model: str | None = None


class CuteafdApi:
    """CuteAFD at `address`, which dumps rows below `dump_root` of this machine; see `ApiClient`.

    `remove_as_owner` removes a dump that belongs to another user, as those of a container that runs as root do.
    """

    def __init__(
        self, address: str, *, key: str | None, label: str, model: str, vocab: int, dump_root: Path | None,
        remove_as_owner: Callable[[Path], None] | None = None,
    ) -> None:  # fmt: skip
        self._http = Http(address, key=key, label=label)
        self._label, self._model, self._vocab, self._dump_root = label, model, vocab, dump_root
        self._remove_as_owner = remove_as_owner
        self._hash_of_dump: bool | None = None

    def close(self) -> None:
        self._http.close()

    @property
    def endpoint(self) -> Endpoint:
        return self._http.endpoint(self._model)

    def first_token(self, until: float) -> None:
        doing = "asking for a first token"
        models = self._http.ask(dict[str, Any], "/v1/models", None, doing, until).get("data") or []
        names = [str(model.get("id")) for model in models]
        if self._model not in names:
            raise self._http.error(
                f"{doing}: the server serves the model {', '.join(names)!r}, not {self._model!r}",
                f"write SERVED_MODEL_ID as the protocol names it, or end the other server; {OTHERS}",
            )
        answer = self._chat(doing, until)
        if answer.model not in (None, self._model) or answer.usage.completion_tokens < 1:
            raise self._http.error(
                f"{doing}: {answer.usage.completion_tokens} tokens of the model {answer.model!r} came",
                UNKNOWN_FORM,
                _CHAT,
            )

    def tokenize(self, text: str) -> list[int] | None:
        """None: the server has no tokenizer route."""
        return None

    def prove(self, until: float) -> tuple[Capabilities, dict[str, Any]]:
        doing, tokens = "proving what the server can do", _proofs.probe_tokens(None, self._vocab)
        stated = {
            path: self._http.found(path, None, doing, until) for path in ("/v1/models", "/v1/bench/status", "/v1/stats")
        }
        status = stated["/v1/bench/status"]
        paths, evidence = list[ScorePath](), dict[str, str]()
        if isinstance(status, dict) and self._dump_root is not None:
            wanted: list[ScorePath] = ["decode", "prefill"] if status.get("full_prefill_logits") else ["decode"]
            for path in wanted:
                rows, server = self._all_rows(path, tokens, until)
                stated["/v1/bench/probe server"] = server
                evidence[f"{path} rows"] = self._refuse_shifted(tokens, rows, path, doing, until)
                paths.append(path)
            evidence["rows"] = (
                f"a dump of {len(tokens) - 1} rows, each held against what the answer says of it: {', '.join(paths)}"
            )
        else:
            evidence["rows"] = (
                "no /v1/bench/status: ENABLE_BENCH is off" if self._dump_root else "no dump folder is known"
            )
        evidence["row hash"] = {
            True: "of the dumped values",
            False: "of the logits: it cannot be held against a dump",
        }.get(bool(self._hash_of_dump), "")
        usage = self._chat(doing, until).usage
        cached = (usage.prompt_tokens_details or {}).get("cached_tokens") is not None
        evidence["cached_tokens"] = "usage.prompt_tokens_details" if cached else "usage does not state it"
        prompts = {name: self._rendered(on, doing, until) for name, on in (("on", True), ("off", False))}
        switch = prompts["on"] != prompts["off"]
        evidence["thinking_switch"] = (
            f"prompts of a chat with the switch on and off are {'not ' if switch else ''}the same"
        )
        proved = Capabilities(
            prompt_logprobs="full" if "prefill" in paths else 0, decode_logprobs="full" if "decode" in paths else 0,
            rows=tuple(paths), cached_tokens=cached, thinking_switch=switch, evidence=evidence,
        )  # fmt: skip
        models = stated["/v1/models"]["data"] if isinstance(stated["/v1/models"], dict) else []
        facts: dict[str, Any] = {"stated": stated, "thinking": prompts, "kv_pool": self._kv_pool(stated)}
        prompt = self._template(doing, until) if paths else prompts["on"]
        facts["template"] = {"messages": list(PROBE_MESSAGES), "prompt": prompt}
        facts["n_ctx"] = next((m.get("max_context_tokens") for m in models if m.get("id") == self._model), None)
        return proved, facts

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
        require_space(out.parent, len(positions) * self._vocab * 4, f"window {window_id}")
        with rows_file(out) as file:
            answer, seconds = self._score(
                path, window_id, tokens, positions, until=time.monotonic() + deadline_s,
                take=lambda rows, _: file.write(rows.tobytes()),
            )  # fmt: skip
        return RowsTaken(len(positions), seconds, self._notes(answer))

    def light_rows(
        self, path: ScorePath, window_id: str, tokens: Sequence[int], positions: Sequence[int], *, deadline_s: float
    ) -> LightRows:
        if max(positions, default=0) >= len(tokens) - 1:
            check_window(self._label, window_id, tokens, positions, self._vocab, rows=len(tokens) - 1)
        taken = []

        def take(rows: Rows, of: Sequence[int]) -> None:
            taken.append(light_of(rows, np.array([tokens[position + 1] for position in of])))

        answer, seconds = self._score(
            path, window_id, tokens, positions, until=time.monotonic() + deadline_s, take=take
        )
        ids, log_probs, following = (np.concatenate(parts) for parts in zip(*taken, strict=True))
        return LightRows(ids, log_probs, following, seconds, self._notes(answer))

    def _score(
        self, path: ScorePath, window_id: str, tokens: Sequence[int], positions: Sequence[int], *, until: float,
        take: Callable[[Rows, Sequence[int]], object],
    ) -> tuple[_Answer, float]:  # fmt: skip
        """Have rows dumped, hold each against the answer, and give them to `take` in the order asked for, a block at a time."""
        check_window(self._label, window_id, tokens, positions, self._vocab, rows=len(tokens) - 1)
        doing = f"scoring window {window_id} by {path}"
        if self._dump_root is None:
            raise self._http.error(
                f"{doing}: no folder is known in which the server dumps rows", "start it by the kind cuteafd"
            )
        bytes_needed = len(positions) * (self._vocab * 4 + _ROW_HEAD_BYTES)
        require_space(self._dump_root, bytes_needed, f"window {window_id}'s dump")
        leaf = f"engcmp-{window_id}-{secrets.randbelow(10**9)}"
        spec: dict[str, Any] = {
            "cold": True, "no_speculation": True, "prompt_ids": [int(token) for token in tokens], "score_from": 1,
            "score_positions": [int(position) + 1 for position in positions], "score_path": path, "dump_rows": leaf,
            "top_k": LIGHT_K,
        }  # fmt: skip
        if path == "decode":
            spec["verify_rows"] = _VERIFY_ROWS
        folder, started = self._dump_root / leaf, time.perf_counter()
        try:
            answer = self._probe(spec, doing, until)
            seconds = time.perf_counter() - started
            rows = self._checked_answer(answer.probe, path, tokens, positions, doing)
            self._consume(folder, window_id, positions, rows, take)
        finally:
            self._remove(folder)
        return answer, seconds

    def _probe(self, spec: Mapping[str, Any], doing: str, until: float, **asked: Any) -> _Answer:
        chat = {"messages": list(PROBE_MESSAGES), "max_tokens": 1, "temperature": 0.0} | asked
        answer = self._ask_idle(_Answer, _PROBE, {"body": chat, "spec": spec}, doing, until)
        if answer.probe.error:
            raise self._http.error(f"{doing}: the engine says: {answer.probe.error[:300]}", READ_LOG, _PROBE)
        return answer

    def _checked_answer(
        self, probe: _Probe, path: str, tokens: Sequence[int], positions: Sequence[int], doing: str
    ) -> dict[int, _Row]:
        """The answer's rows by their position in the window. Raises EngcmpError where it is not of what was asked for."""
        found = {row.position - 1: row for row in probe.rows}
        what = None
        if probe.prompt_ids != list(tokens):
            what = f"{len(tokens)} tokens were sent and the engine ran {len(probe.prompt_ids)}, beginning {probe.prompt_ids[:3]}"
        elif probe.cached_tokens:
            what = f"{probe.cached_tokens} tokens came from the prefix cache: such rows may be another request's"
        elif probe.score_path != path:
            what = f"the engine scored by {probe.score_path!r}, not by {path!r}"
        elif len(probe.rows) != len(positions) or found.keys() != set(positions):
            lost = sorted(set(positions) - found.keys())[:3]
            what = f"the answer has {len(probe.rows)} rows of {len(positions)}" + (
                f"; row {lost[0]} is missing" if lost else ""
            )
        if what is not None:
            raise self._http.error(
                f"{doing}: {what}", f"capture this window again; if it comes back, {UNKNOWN_FORM}", _PROBE
            )
        return found

    def _consume(
        self, folder: Path, window_id: str, positions: Sequence[int], said: Mapping[int, _Row],
        take: Callable[[Rows, Sequence[int]], object],
    ) -> None:  # fmt: skip
        source = cast(DumpedRows, open_dump(folder, window_id))
        at = {int(position): index for index, position in enumerate(source.positions)}
        if source.vocab != self._vocab or at.keys() != set(positions):
            lost = sorted(set(positions) - at.keys())[:3]
            raise self._http.error(
                f"window {window_id}: the dump has {source.rows} rows of {source.vocab:,} values, {len(positions)} of "
                f"{self._vocab:,} were asked for" + (f"; row {lost[0]} is missing" if lost else ""),
                "capture this window again",
            )
        size = max(1, _BLOCK_BYTES // (self._vocab * 4))
        for start in range(0, len(positions), size):
            of = positions[start : start + size]
            rows = np.empty((len(of), self._vocab), dtype="<f4")
            for index, position in enumerate(of):
                rows[index] = source.block(at[position], at[position] + 1)[0]
            self._hold_against(rows, of, said, window_id)
            take(rows, of)
            with suppress(PermissionError):  # another user's: they go with the folder
                for position in of:
                    source.files[at[position]].unlink(missing_ok=True)

    def _hold_against(self, rows: Rows, positions: Sequence[int], said: Mapping[int, _Row], window_id: str) -> None:
        """Raise EngcmpError for the first row that is unusable or not the one of which the answer speaks."""
        for row, position in zip(rows, positions, strict=True):
            refuse_unusable(self._label, window_id, position, row, self._http.address)
            about = said[position]
            mass = float(np.exp(row.astype(np.float64)).sum())
            ids = [token for token, _ in about.top]
            # The logarithm of 0 is null in JSON.
            values = np.array([-np.inf if value is None else value for _, value in about.top], dtype=np.float32)
            what = None
            if int(row.argmax()) != about.argmax:
                what = f"its most probable token is {int(row.argmax())}, the answer says {about.argmax}"
            elif ids and (max(ids) >= self._vocab or not np.array_equal(row[ids], values)):
                what = "its top values are not those of the answer"
            elif not about.finite and np.isfinite(row).all():
                what = "the answer says that it is not finite, and the dump that it is"
            elif abs(mass - 1) > _MASS_TOLERANCE:
                what = f"its probabilities sum to {mass:.6g}"
            if what is not None:
                raise self._bad_row(window_id, position, what)
        if self._hash_of_dump is False:
            return
        hashes = fnv1a_rows(rows)
        equal = [hashes[index] == said[position].hash for index, position in enumerate(positions)]
        if self._hash_of_dump is None:
            # The engine may hash its logits, of which the dump holds the log-softmax: then no hash is equal, now or later.
            self._hash_of_dump = sum(equal) * 2 > len(equal)
        if self._hash_of_dump and not all(equal):
            index = equal.index(False)
            raise self._bad_row(
                window_id,
                positions[index],
                f"its hash is {hashes[index]}, the answer says {said[positions[index]].hash}",
            )

    def _all_rows(self, path: ScorePath, tokens: list[int], until: float) -> tuple[Rows, dict[str, Any]]:
        blocks: list[Rows] = []
        answer, _ = self._score(
            path, "probe", tokens, range(len(tokens) - 1), until=until, take=lambda rows, _: blocks.append(rows)
        )
        return np.concatenate(blocks), answer.server

    def _refuse_shifted(self, tokens: list[int], rows: Rows, path: str, doing: str, until: float) -> str:
        """Hold rows against the token that the engine generates after the first r + 1 tokens: the most probable one of row r."""
        best = rows.argmax(axis=1)
        matches = dict.fromkeys(_SHIFTS, 0)
        for row in _ALIGNED_AT:
            spec = {"cold": True, "no_speculation": True, "prompt_ids": tokens[: row + 1]}
            generated = self._probe(spec, doing, until).probe.generated
            if not generated:
                return "alignment not proved: the engine does not say which token it generated"
            for shift in _SHIFTS:
                matches[shift] += int(best[row + shift] == generated[0])
        shift = max(_SHIFTS, key=lambda one: (matches[one], one == 0))
        if shift:
            raise self._http.error(
                f"{doing}: rows of the path {path} are shifted by {shift:+d}: there {matches[shift]} of {len(_ALIGNED_AT)} "
                f"greedy tokens are the most probable ones, at their own row {matches[0]}",
                "use a version whose position p predicts token p, or teach the client its order", _PROBE,
            )  # fmt: skip
        if not matches[0]:
            return "alignment not proved: no greedy token is the most probable one of a row near its own"
        return f"{matches[0]} of {len(_ALIGNED_AT)} greedy tokens are the most probable ones of their row, of its neighbours fewer"

    def _chat(self, doing: str, until: float, **asked: Any) -> _Chat:
        body = {"model": self._model, "messages": list(PROBE_MESSAGES), "max_tokens": 1, "temperature": 0.0} | asked
        return self._ask_idle(_Chat, _CHAT, body, doing, until)

    def _ask_idle(self, kind: type[_Asked], path: str, body: Mapping[str, Any], doing: str, until: float) -> _Asked:
        """As `Http.ask`; the probe before was answered a moment before the engine is free for another request."""
        patience = time.monotonic() + _BUSY_S
        while True:
            status, headers, content = self._http.exchange(path, body, doing, until)
            probing = status == httpx.codes.CONFLICT or (
                status == httpx.codes.SERVICE_UNAVAILABLE and _PROBING in content
            )
            if not probing or time.monotonic() > patience:
                break
            time.sleep(_BUSY_POLL_S)
        self._http.refuse_status(status, headers, content, doing, path)
        return self._http.parsed(kind, content, doing, path)

    def _rendered(self, thinking: bool, doing: str, until: float) -> dict[str, Any]:
        """The number of tokens of a chat's prompt with thinking switched on or off."""
        switch = {"thinking": {"type": "enabled" if thinking else "disabled"}}
        return {"prompt_tokens": self._chat(doing, until, **switch).usage.prompt_tokens, "how": _CHAT}

    def _template(self, doing: str, until: float) -> dict[str, Any]:
        """The ids of a chat's prompt, as the engine ran them."""
        ids = self._probe({"cold": True, "no_speculation": True}, doing, until).probe.prompt_ids
        return {"prompt_tokens": len(ids), "token_ids": ids, "how": _PROBE}

    def _kv_pool(self, stated: Mapping[str, Any]) -> dict[str, Any]:
        server = cast(Mapping[str, Any], stated.get("/v1/bench/probe server") or {})
        settings = server.get("settings") or []
        pool = next((s.get("value") for s in settings if str(s.get("name")).replace("-", "_") == "pool_tokens"), None)
        if isinstance(pool, int | str) and str(pool).isdigit() and int(pool):
            return {"tokens": int(pool), "how": "pool_tokens of the server's settings"}
        return {"tokens": {"missing": "the server's settings do not state it; see the plan"}}

    def _notes(self, answer: _Answer) -> dict[str, Any]:
        stated = {"missing": NOT_STATED}
        return {
            "prompt_tokens": len(answer.probe.prompt_ids),
            "cached_tokens": answer.probe.cached_tokens,
            "score_path": answer.probe.score_path,
            "verify_rows": _VERIFY_ROWS
            if answer.probe.score_path == "decode"
            else {"missing": "of the decode path alone"},
            "row_hashes": "held against the dump" if self._hash_of_dump else "of the logits, not of the dump",
            "chunk_lengths": stated,
            "other_requests_in_step": 0,  # a probe is exclusive: the engine refuses all else meanwhile
            "engine_timing": answer.timing or stated,
        }

    def _remove(self, folder: Path) -> None:
        try:
            with suppress(FileNotFoundError):  # nothing was dumped
                shutil.rmtree(folder)
        except PermissionError as error:
            if self._remove_as_owner is None:
                raise self._http.error(
                    f"the dump {folder.name} cannot be removed: {error.strerror}",
                    "it is another user's: run as one who may delete there, and remove the folder",
                ) from error
            self._remove_as_owner(folder)

    def _bad_row(self, window_id: str, position: int, what: str) -> EngcmpError:
        return self._http.error(f"window {window_id}, row {position}: {what}", "capture this window again", _PROBE)


def fnv1a_rows(rows: Rows) -> list[str]:
    """FNV-1a 64 of each row's float32 bytes, as 16 hexadecimal digits; rows [n, vocab]. All rows go on together, byte by byte."""
    data = np.ascontiguousarray(rows, dtype="<f4").view(np.uint8)
    hashes = np.full(len(data), _FNV_OFFSET, dtype=np.uint64)
    prime = np.uint64(_FNV_PRIME)
    for start in range(0, data.shape[1], _FNV_BYTES):
        for column in np.ascontiguousarray(data[:, start : start + _FNV_BYTES].T).astype(np.uint64):
            hashes ^= column
            hashes *= prime
    return [f"{int(value):016x}" for value in hashes]
