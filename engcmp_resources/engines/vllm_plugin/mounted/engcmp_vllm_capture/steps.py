"""Which rows of a step's logits belong to which window."""

import logging
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from .rows import Capture

ARGUMENT = "engcmp_window"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_log = logging.getLogger("vllm.engcmp_capture")


@dataclass(frozen=True)
class Piece:
    """Rows `first` to `last` (exclusive) of all that the head gives in a step are the next ones of `capture`."""

    first: int
    last: int
    capture: Capture


class Taking:
    """Keeps what the head gives in one step, for the captures that want part of it."""

    def __init__(self, pieces: list[Piece], done: Callable[[Capture], None]) -> None:
        self._pieces, self._done = pieces, done
        self._seen = 0

    def around(self, head: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """`head`, whose output passes unchanged and is kept on the way."""

        def passed_on(hidden: Any) -> Any:
            logits = head(hidden)
            self._keep(logits)
            return logits

        return passed_on

    def _keep(self, logits: Any) -> None:
        start, stop = self._seen, self._seen + len(logits)
        self._seen = stop
        for piece in self._pieces:
            first, last = max(piece.first, start), min(piece.last, stop)
            if first < last and piece.capture.fault is None:
                try:
                    piece.capture.add(logits[first - start : last - start])
                except Exception as error:  # noqa: BLE001 - the engine serves others too: a failed capture must not end it
                    piece.capture.fault = f"{type(error).__name__}: {error}"

    def finish(self) -> None:
        """The step is over: write what is complete."""
        for piece in self._pieces:
            if piece.capture.complete:
                self._done(piece.capture)


class Recorder:
    """The captures of one process. `steps` counts the calls of the hooked function, which is called in each step of the engine."""

    def __init__(self, folder: Path, vllm: str) -> None:
        self._folder, self._vllm = folder, vllm
        self._asked: dict[str, str] = {}
        self._captures: dict[str, Capture] = {}
        self._finished: set[str] = set()
        self._about: dict[str, Any] = {}
        self.steps = 0

    def ask(self, request_id: str, sampling_params: Any) -> None:
        """Note whether a request names a window. What is written already is not begun again: of it, only a fault could come."""
        if request_id in self._finished:
            return
        name = (getattr(sampling_params, "extra_args", None) or {}).get(ARGUMENT)
        if name is None or getattr(sampling_params, "prompt_logprobs", None) is None:
            return
        if isinstance(name, str) and _NAME.fullmatch(name):
            self._asked[request_id] = name
        else:
            _log.error("engcmp: request %s: %s %r cannot be a file name: not captured", request_id, ARGUMENT, name)

    def step_v1(self, runner: Any, scheduled: dict[str, int], hashes: dict[str, str]) -> Taking | None:
        """The V1 runner asks the head for each request's prompt rows in turn: the rows are counted over these calls."""
        self.steps += 1
        if not runner.num_prompt_logprobs or not _writes():
            return None
        for request_id in runner.num_prompt_logprobs:
            if request_id not in self._asked and request_id in runner.requests:
                self.ask(request_id, runner.requests[request_id].sampling_params)
        self._forget(runner.requests)
        pieces, end = [], 0
        for request_id in runner.num_prompt_logprobs:
            tokens = scheduled.get(request_id)
            if tokens is None or runner.requests[request_id].prompt_token_ids is None:
                continue
            request = runner.requests[request_id]
            start = request.num_computed_tokens
            rows = min(tokens, len(request.prompt_token_ids) - 1 - start)
            first, end = end, end + max(rows, 0)
            if request_id in self._asked and rows > 0:
                capture = self._chunk(
                    request_id, start, tokens, scheduled.values(), partial(list, request.prompt_token_ids)
                )
                pieces.append(Piece(first, end, capture))
        return self._taking(pieces, "v1", hashes)

    def step_v2(
        self, worker: Any, batch: Any, all_token_ids: Any, prompt_lens: Any, hashes: dict[str, str]
    ) -> Taking | None:
        """The V2 runner asks the head for all rows of the step, in pieces of 1,024."""
        self.steps += 1
        if not self._asked or not _writes():
            return None
        self._forget(worker.in_progress_prompt_logprobs)
        pieces = []
        for place, request_id in enumerate(batch.req_ids):
            if request_id not in self._asked:
                continue
            state = int(batch.idx_mapping_np[place])
            length, start = int(prompt_lens[state]), int(batch.num_computed_prefill_tokens_np[place])
            tokens = int(batch.num_scheduled_tokens[place])
            rows = min(tokens, length - 1 - start)
            if rows > 0 and length >= int(batch.prefill_len_np[place]):
                first = int(batch.query_start_loc_np[place])
                scheduled = [int(count) for count in batch.num_scheduled_tokens]
                capture = self._chunk(
                    request_id, start, tokens, scheduled, partial(_prompt, all_token_ids, state, length)
                )
                pieces.append(Piece(first, first + rows, capture))
        return self._taking(pieces, "v2", hashes)

    def _taking(self, pieces: list[Piece], runner: str, hashes: dict[str, str]) -> Taking | None:
        self._about = {"runner": runner, "vllm": self._vllm, "hooked": hashes}
        return Taking(pieces, self._write) if pieces else None

    def _chunk(
        self, request_id: str, start: int, tokens: int, scheduled: Iterable[int], prompt: Callable[[], list[int]]
    ) -> Capture:
        others = list(scheduled)
        capture = self._captures.get(request_id)
        if capture is None:
            capture = Capture(self._asked[request_id], request_id, prompt(), start, start)
            self._captures[request_id] = capture
        capture.begin_chunk(
            {
                "step": self.steps, "start": start, "tokens": tokens,
                "other_requests": len(others) - 1, "other_tokens": sum(others) - tokens,
            }
        )  # fmt: skip
        return capture

    def _write(self, capture: Capture) -> None:
        try:
            capture.write(self._folder, self._about)
        except Exception:  # noqa: BLE001 - a full disk must not end the engine: the reader finds no capture
            _log.exception("engcmp: window %s: its rows cannot be written", capture.window_id)
        self._captures.pop(capture.request_id, None)
        self._asked.pop(capture.request_id, None)
        self._finished.add(capture.request_id)

    def _forget(self, living: Iterable[str]) -> None:
        """Let go of requests that ended before their prompt was read."""
        self._finished &= set(living)
        for request_id in set(self._asked) - set(living):
            self._asked.pop(request_id)
            self._captures.pop(request_id, None)


def _prompt(all_token_ids: Any, state: int, length: int) -> list[int]:
    ids: list[int] = all_token_ids[state, :length].tolist()
    return ids


def _writes() -> bool:
    """Whether this process is the one of its tensor-parallel group that writes: all of them have the same rows."""
    state = sys.modules.get("vllm.distributed.parallel_state")
    group = getattr(state, "_TP", None)
    return group is None or bool(group.rank_in_group == 0)
