"""What all dialects have in common: one model, its prefix cache and counters, and the generation and scoring of tokens."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import model as truth
from .exchange import Cut, Exchange, Refusal
from .faults import Entry, Faults
from .model import Row, Rows
from .options import Options

BLOCK = 16  # tokens that the prefix cache holds as one
CUDA_ERROR = "CUDA error: device-side assert triggered"


@dataclass(frozen=True, slots=True)
class Asked:
    """A generation, as any dialect asks for it."""

    prompt: Sequence[int]
    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    ignore_eos: bool = False
    min_tokens: int = 0
    bias: Mapping[int, float] = field(default_factory=dict)
    wants_rows: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """Tokens that came of one step, why the reply ended with them, and the log-probabilities of each if they were asked for."""

    tokens: list[int]
    finish: str | None
    rows: list[Row]


class PrefixCache:
    """Which prompts' blocks are held. A salt keeps requests apart."""

    def __init__(self) -> None:
        self._held: set[int] = set()
        self._lock = threading.Lock()

    def _blocks(self, tokens: Sequence[int], salt: str) -> list[int]:
        state, out = truth.State(truth.mix(hash(salt) & (2**64 - 1)), False), []
        for index, token in enumerate(tokens, 1):
            state = truth.advance(state, token)
            if index % BLOCK == 0:
                out.append(state.digest)
        return out

    def held(self, tokens: Sequence[int], salt: str) -> int:
        """How many first tokens are held, in whole blocks; the last token is always processed."""
        count = 0
        with self._lock:
            for digest in self._blocks(tokens[:-1], salt):
                if digest not in self._held:
                    break
                count += BLOCK
        return count

    def hold(self, tokens: Sequence[int], salt: str) -> None:
        with self._lock:
            self._held.update(self._blocks(tokens, salt))

    def clear(self) -> None:
        with self._lock:
            self._held.clear()


class Engine:
    """One engine that runs. Its methods may be called by any thread."""

    def __init__(self, options: Options, script: Any = None) -> None:
        self.options, self.faults = options, Faults(script)
        common = {"vocab": options.vocab, "seed": options.seed}
        self.model = truth.Model(**common, perturb=options.perturb)
        self._decoding = truth.Model(**common, perturb=options.perturb + options.decode_perturb)
        self.cache = PrefixCache()
        self.counts: Counter[str] = Counter()
        self.seconds: dict[str, list[float]] = {}
        self.records: list[dict[str, Any]] = []
        self.log: list[str] = []
        self.running = self.waiting = 0
        self.listening_ns = 0
        self._start_had: list[Entry] = []
        self._lock = threading.Lock()
        self._slots = threading.Semaphore(options.max_seqs)
        self._requests = 0
        known = options.known_texts
        self._known: dict[str, list[int]] = json.loads(known.read_text(encoding="utf-8")) if known else {}
        self._last_scored: list[int] = []
        random = int.from_bytes(os.urandom(8), "little")
        self._noise_key = random if options.noise_seed is None else options.noise_seed

    # life

    def say(self, line: str) -> None:
        """A line of the engine's log."""
        with self._lock:
            self.log.append(line)
            print(line, flush=True)

    def at_start(self, name: str) -> Mapping[str, Any] | None:
        """The parameters of a fault that belongs to the start, not to a request."""
        return self.faults.find(name, {}, self._start_had)

    def die(self, code: int, why: str) -> None:
        """The process ends here and now."""
        self.say(f"engine core died: {why}")
        os._exit(code)

    def since_listening_ms(self) -> float:
        return (time.monotonic_ns() - self.listening_ns) / 1e6

    def is_loading(self) -> bool:
        """Whether /health must still say 503."""
        fault = self.at_start("health_503_while_loading")
        return self.since_listening_ms() < max(self.options.load_ms, fault["ms"] if fault else 0.0)

    @property
    def _warm_ns(self) -> int:
        """When its warm-up ends, which /health does not tell."""
        fault = self.at_start("health_200_while_warming")
        own_ms = self.options.warmup_ms if self.options.fork else 0.0
        return self.listening_ns + round(max(own_ms, fault["ms"] if fault else 0.0) * 1e6)

    def batch_tokens(self, exchange: Exchange | None = None) -> int:
        """The batch that it resolved to."""
        cut = exchange.fault("settings_cut") if exchange else self.at_start("settings_cut")
        return int(cut["batch_tokens"]) if cut else self.options.batch_tokens

    def says_deterministic(self, exchange: Exchange) -> bool:
        """Whether its resolved settings promise the same result for the same request."""
        return self.options.deterministic and not exchange.fault("determinism_flag_ignored")

    def model_name(self, exchange: Exchange) -> str:
        wrong = exchange.fault("model_name_wrong")
        return str(wrong["name"]) if wrong else self.options.model

    def count(self, **numbers: int) -> None:
        with self._lock:
            self.counts.update(numbers)

    def observe(self, name: str, seconds: float) -> None:
        with self._lock:
            self.seconds.setdefault(name, []).append(seconds)

    def reset_counters(self) -> None:
        with self._lock:
            self.counts.clear()
            self.seconds.clear()

    # requests

    @contextmanager
    def admitted(
        self, exchange: Exchange, *, queue_depth: int | None = None, wait_s: float | None = None
    ) -> Iterator[None]:
        """A request that generates or scores, while it runs. Raises Refusal with 429 where `queue_depth` wait already or after `wait_s`."""
        with self._lock:
            exchange.record["request"] = self._requests
            self._requests += 1
            if queue_depth is not None and self.waiting >= queue_depth and self.running >= self.options.max_seqs:
                raise Refusal(429, "the queue is full", kind="rate_limit_error", Retry_After="1")
            self.waiting += 1
        has_slot = self._slots.acquire(timeout=wait_s)
        with self._lock:
            self.waiting, self.running = self.waiting - 1, self.running + has_slot
        if not has_slot:
            raise Refusal(429, "the queue did not move in time", kind="rate_limit_error", Retry_After="1")
        try:
            yield
        finally:
            self._slots.release()
            with self._lock:
                self.running -= 1

    def encode(self, exchange: Exchange, text: str, *, parse_special: bool = False, bos: bool = True) -> list[int]:
        """The ids of a text, with a BOS token where `bos`."""
        special = parse_special or exchange.fault("control_strings_parsed") is not None
        other = exchange.fault("tokenizer_other")
        ids = (
            truth.tokenize_otherwise(text)
            if other
            else self._known.get(text) or truth.tokenize(text, parse_special=special)
        )
        return [truth.BOS] * (self._bos(exchange) if bos else 0) + ids

    def encode_chat(self, exchange: Exchange, messages: Any, *, thinking: bool) -> list[int]:
        """The ids of a chat in the model's template. Raises Refusal for messages that are none."""
        if not isinstance(messages, list) or not messages:
            raise Refusal(400, "messages is no list of messages")
        pairs = [(str(message.get("role", "user")), _text_of(message.get("content"))) for message in messages]
        special = exchange.fault("control_strings_parsed") is not None
        if len(pairs) == 1 and (known := self._known.get(f"chat:{pairs[0][1]}")):
            return list(known)
        if not thinking and exchange.fault("thinking_switch_ignored"):
            thinking = True
        if exchange.fault("tokenizer_other"):
            return truth.tokenize_otherwise("".join(f"{role}\n{text}\n" for role, text in pairs))
        return truth.chat_prompt(pairs, thinking=thinking, parse_special=special, bos=self._bos(exchange))

    def _bos(self, exchange: Exchange) -> int:
        return 2 if exchange.fault("bos_double") else 0 if exchange.fault("bos_missing") else 1

    def take_prompt(self, exchange: Exchange, prompt: Sequence[int]) -> list[int]:
        """The prompt as the engine runs it. Raises Refusal for ids outside the vocabulary and for one that is too long."""
        if any(type(token) is not int or not 0 <= token < self.model.vocab for token in prompt):
            raise Refusal(400, f"a token id is outside the vocabulary of {self.model.vocab}")
        if len(prompt) >= self.options.context:
            raise Refusal(400, f"the prompt has {len(prompt)} tokens, the context {self.options.context}")
        taken = list(prompt)
        exchange.record["prompt_ids"] = taken
        if cut := exchange.fault("prompt_truncated"):
            taken = taken[-cut["tokens"] :]
        if exchange.fault("empty_prompt"):
            taken = []
        exchange.record["prompt_ids"] = taken
        return taken

    def read_cache(self, exchange: Exchange, prompt: Sequence[int], *, salt: str = "", use: bool = True) -> int:
        """How many prompt tokens come from the cache, in truth; the prompt is held from here on."""
        cached = self.cache.held(prompt, salt) if use else 0
        if use and exchange.fault("cache_always_hits"):
            cached = max(0, len(prompt) - 1)
        self.cache.hold(prompt, salt)
        exchange.record["cached_tokens"] = cached
        self.count(prompt_tokens=len(prompt), cache_queries=len(prompt) if use else 0, cache_hits=cached)
        return cached

    def told_cached(self, exchange: Exchange) -> int:
        """How many prompt tokens it says came from the cache."""
        return 0 if exchange.fault("cache_hidden") else int(exchange.record["cached_tokens"])

    # tokens

    def steps(self, exchange: Exchange, asked: Asked) -> Iterator[Step]:
        """The steps of a reply, each when its time has come.

        Raises Refusal where the GPU is lost, Cut where the connection is to be, Gone where the client has gone.
        """
        began_ns = time.monotonic_ns()
        if exchange.fault("stuck_but_healthy"):
            exchange.pause_until(None)
        due_ns, every_ns = self._first_due_ns(exchange, asked, began_ns), round(self.faults.timing.itl_ms * 1e6)
        reply, last_ns = _Reply(self, exchange, asked), began_ns
        while reply.finish is None:
            first = len(reply.tokens)
            step = reply.step(drafts=self.options.drafts)  # before its time comes, so that it is not late
            self._wait(exchange, due_ns, first)
            now_ns = time.monotonic_ns()
            self._count_step(len(step.tokens), is_first=first == 0, seconds=(now_ns - last_ns) / 1e9)
            last_ns, due_ns = now_ns, max(due_ns + every_ns, now_ns)
            yield step
        exchange.record["finish_reason"] = reply.finish
        self.count(**{f"finished_{reply.finish}": 1})
        self.observe("e2e", (time.monotonic_ns() - began_ns) / 1e9)

    def _first_due_ns(self, exchange: Exchange, asked: Asked, began_ns: int) -> int:
        timing = self.faults.timing
        fresh = len(asked.prompt) - exchange.record["cached_tokens"]
        own_ms: float = timing.ttft_ms + fresh * timing.prefill_ms_per_token
        return max(began_ns + round(own_ms * 1e6), self._warm_ns)

    def _count_step(self, tokens: int, *, is_first: bool, seconds: float) -> None:
        self.observe("ttft" if is_first else "itl", seconds)
        self.count(generation_tokens=tokens, steps=1)
        if self.options.drafts and not is_first:
            places = {f"accepted_{place}": 1 for place in range(tokens - 1)}
            self.count(drafts=1, drafted=self.options.drafts, accepted=tokens - 1, **places)

    def _wait(self, exchange: Exchange, due_ns: int, token: int) -> None:
        exchange.pause_until(due_ns)
        if stall := exchange.fault("stall", token=token):
            exchange.pause_until(None if stall["ms"] is None else time.monotonic_ns() + round(stall["ms"] * 1e6))
        if dies := exchange.fault("dies_at_token", token=token):
            self.die(dies["code"], f"no free block for token {token}")
        if exchange.fault("connection_cut", token=token):
            raise Cut
        if exchange.fault("connection_reset", token=token):
            exchange.reset()
            raise Cut
        if exchange.streaming and exchange.fault("stream_ends", token=token):
            raise StreamEnds
        if exchange.fault("gpu_lost", token=token):
            self.say(CUDA_ERROR)
            raise Refusal(500, CUDA_ERROR, kind="InternalServerError")
        if exchange.streaming and (broken := exchange.fault("error_in_stream", token=token)):
            raise StreamBroken(event=bool(broken["event"]), done=bool(broken["done"]))

    def next_logits(self, exchange: Exchange, state: truth.State, token: int) -> Row:
        """The logits that token `token` of a reply is taken from."""
        row = self._decoding.logits_of(state)
        for noise in (exchange.fault("noise", token=token), exchange.fault("noise_under_load", token=token)):
            if noise:
                row = row + self._noise(exchange, noise["scale"], 1 << 32 | token)
        if exchange.record["cached_tokens"] and (warm := exchange.fault("cache_changes_rows")):
            row = row + np.float32(warm["scale"]) * self.model.noise(token ^ 0x3B)
        return row

    def random_seed(self, exchange: Exchange) -> int:
        """A number that differs from request to request and, unless it was fixed, from run to run."""
        return truth.mix(self._noise_key ^ truth.mix(exchange.record["request"] or 0))

    def _noise(self, exchange: Exchange, scale: float, key: int) -> Row:
        return np.float32(scale) * self.model.noise(self.random_seed(exchange) ^ key)

    # rows

    def score(
        self,
        exchange: Exchange,
        tokens: Sequence[int],
        rows: Sequence[int],
        *,
        temperature: float = 1.0,
        decoded: bool = False,
    ) -> Rows:
        """Log-probabilities, float32 [n, vocab], of the rows of a prompt: row r is after tokens[0..r]."""
        by = exchange.fault("logprobs_shifted")
        wanted = [min(max(row + by["by"], 0), len(tokens) - 1) for row in rows] if by else list(rows)
        logits = (self._decoding if decoded else self.model).rows(tokens, wanted)
        cached = exchange.record["cached_tokens"]
        if cached and exchange.fault("logprobs_stale") and self._last_scored:
            stale = [index for index, row in enumerate(rows) if row < cached]
            old = self._last_scored
            logits[stale] = self.model.rows(old, [len(old) - 1 - rows[index] % len(old) for index in stale])
        self._last_scored = list(tokens)
        warm = exchange.fault("cache_changes_rows") if cached else None
        processed = exchange.fault("logprobs_processed")
        for index, row in enumerate(rows):
            if dies := exchange.fault("dies_in_row", row=row):
                self.die(dies["code"], f"no free block in row {row}")
            for noise in (exchange.fault("noise", row=row), exchange.fault("noise_under_load", row=row)):
                if noise:
                    logits[index] += self._noise(exchange, noise["scale"], row)
            if row >= self.options.chunk and (late := exchange.fault("noise_from_second_chunk")):
                logits[index] += self._noise(exchange, late["scale"], row)
            if warm:
                logits[index] += np.float32(warm["scale"]) * self.model.noise(row ^ 0x3A)
            if exchange.fault("nan_rows", row=row):
                logits[index] = np.nan
        if processed and temperature > 0:
            logits /= np.float32(temperature)
        exchange.record["scored_rows"] = list(rows)
        return truth.log_softmax(logits)


class StreamBroken(Exception):
    """An error that is sent inside a stream; `event`: as an event of the kind `error`; `done`: with [DONE] after it."""

    def __init__(self, *, event: bool, done: bool) -> None:
        super().__init__("the engine failed")
        self.event, self.done = event, done


class StreamEnds(Exception):
    """The stream ends here, as if it were whole."""


class _Reply:
    """A reply that grows token by token."""

    def __init__(self, engine: Engine, exchange: Exchange, asked: Asked) -> None:
        self._engine, self._exchange, self._asked = engine, exchange, asked
        self.state = engine.model.start(asked.prompt)
        self.tokens: list[int] = []
        self.finish: str | None = None
        sizes = exchange.fault("several_tokens_in_a_chunk")
        self._sizes: list[int] = sizes["tokens"] if sizes else []
        self._steps = 0
        self._seed = engine.random_seed(exchange) if asked.seed is None else asked.seed
        planned = exchange.fault("reply_text")
        self._planned = [*truth.tokenize(planned["text"], parse_special=True), truth.IM_END] if planned else None
        more = exchange.fault("max_tokens_ignored")
        self._most = asked.max_tokens + (more["more"] if more else 0)
        if self._most < 1:
            raise Refusal(400, "max_tokens must be at least 1")

    def step(self, *, drafts: int) -> Step:
        """The tokens of the next step: one, with drafts up to so many more, or as many as a fault says."""
        size = 1 + truth.mix(self.state.digest ^ 3) % (drafts + 1)
        if self._sizes:
            size = self._sizes[min(self._steps, len(self._sizes) - 1)]
        self._steps += 1
        tokens: list[int] = []
        rows: list[Row] = []
        while len(tokens) < size and self.finish is None:
            token, row = self._grow()
            tokens.append(token)
            rows += [truth.log_softmax(row)] if self._asked.wants_rows else []
        return Step(tokens, self.finish, rows)

    def _grow(self) -> tuple[int, Row]:
        """The next token and the logits it was taken from, before what the request adds to them."""
        index, asked = len(self.tokens), self._asked
        logits = self._engine.next_logits(self._exchange, self.state, index)
        row = logits.copy() if asked.wants_rows else logits
        if asked.ignore_eos or index < asked.min_tokens:
            logits[[truth.EOS, truth.IM_END]] = -np.inf
        for token, bias in asked.bias.items():
            logits[token] += np.float32(bias)
        token = truth.sample(
            logits, temperature=asked.temperature, top_p=asked.top_p, top_k=asked.top_k, seed=self._seed, position=index
        )
        if self._planned is not None:
            token = self._planned[index]
        if asked.ignore_eos and self._exchange.fault("ignore_eos_not_honoured", token=index):
            token = truth.IM_END
        self.tokens.append(token)
        self.state = truth.advance(self.state, token)
        ends = token in (truth.EOS, truth.IM_END)
        self.finish = "stop" if ends else "length" if len(self.tokens) >= self._most else None
        return token, row


def _text_of(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content)
    return "" if content is None else str(content)
