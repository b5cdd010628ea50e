"""The ground truth of the simulator: a tokenizer, and the logits after any prefix as a function of the seed and the prefix alone.

Logits come from integer hashes, so that they are the same bits on every machine. No weights: a row of 512 takes some 50 microseconds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

CONTROL_TOKENS = (
    "<|pad|>",
    "<|bos|>",
    "<|eos|>",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
)
CONTROLS = len(CONTROL_TOKENS)
BOS, EOS, IM_START, IM_END, THINK, END_THINK = 1, 2, 3, 4, 5, 6
FIRST_WORD = CONTROLS + 256  # ids from here on are whole words; text is never tokenized into them
SMALLEST_VOCAB = FIRST_WORD + 8

Row = npt.NDArray[np.float32]
Rows = npt.NDArray[np.float32]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FNV_OFFSET, _FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3
# Four numbers below 65,536, added: nearly normal, with this mean and deviation.
_MEAN, _DEVIATION = 2 * 65_535, 65_536 / 3**0.5
_PEAKED, _MIXED = 0.6, 0.9  # of 1: the share of rows with few likely tokens, and that with some; the rest is flat
_END_OF_THOUGHT, _END_OF_ANSWER = 24, 96  # one row in so many makes the end the most likely token
_LETTERS = b"etaoinshrdlu etaoin \n,."


class State(NamedTuple):
    """What the model knows of a prefix: its digest, and whether it is inside a thought."""

    digest: int
    thinking: bool


def advance(state: State, token: int) -> State:
    """The state after one more token."""
    digest = ((state.digest ^ (token + 1)) * _FNV_PRIME) & _MASK
    thinking = token == THINK or (state.thinking and token != END_THINK)
    return State(digest, thinking)


def mix(value: int) -> int:
    """SplitMix64 of a number below 2^64."""
    value = (value + _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def unit(value: int) -> float:
    """A number in [0, 1) from a hash of `value`."""
    return (mix(value) >> 11) / (1 << 53)


class Model:
    """Logits, float32 [vocab], after any prefix. `perturb` times a normal number is added to each: another version of the engine.

    Raises ValueError for a vocabulary that is too small for the tokenizer.
    """

    def __init__(self, *, vocab: int = 512, seed: int = 1, perturb: float = 0.0) -> None:
        if vocab < SMALLEST_VOCAB:
            raise ValueError(f"a vocabulary of {vocab}: the tokenizer needs {SMALLEST_VOCAB} or more")
        self.vocab, self.seed, self.perturb = vocab, seed, perturb
        self._steps = np.arange(1, vocab + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
        self._bias = np.zeros(vocab, dtype=np.float32)
        self._bias[:CONTROLS] = -12.0
        self._bias[CONTROLS : CONTROLS + 32] = -6.0
        self._bias[CONTROLS + 127 : FIRST_WORD] = -3.0
        letters = [CONTROLS + byte for byte in _LETTERS]
        self._likely = letters + list(range(FIRST_WORD, min(vocab, FIRST_WORD + len(letters))))

    def start(self, tokens: Iterable[int] = ()) -> State:
        """The state after `tokens`."""
        state = State(mix(self.seed) ^ _FNV_OFFSET, False)
        for token in tokens:
            state = advance(state, token)
        return state

    def logits(self, prefix: Sequence[int]) -> Row:
        """What predicts the token after `prefix`, float32 [vocab]."""
        return self.logits_of(self.start(prefix))

    def logits_of(self, state: State) -> Row:
        """What predicts the token after a prefix in this state, float32 [vocab]."""
        digest = state.digest
        row = self._normal(digest) + self._bias
        shape = unit(digest ^ 1)
        count, boost = (3, 7.0) if shape < _PEAKED else (8, 4.0) if shape < _MIXED else (0, 0.0)
        for index in range(count):
            token = self._likely[mix(digest + index + 2) % len(self._likely)]
            row[token] += np.float32(boost + 2 * unit(digest ^ (index + 99)))
        every = _END_OF_THOUGHT if state.thinking else _END_OF_ANSWER
        if mix(digest ^ 7) % every == 0:
            row[END_THINK if state.thinking else IM_END] += np.float32(26.0)
        if self.perturb:
            row += np.float32(self.perturb) * self._normal(digest ^ mix(0xBEEF))
        return row

    def rows(self, tokens: Sequence[int], positions: Sequence[int]) -> Rows:
        """Logits [n, vocab] of the rows `positions`: row r is after tokens[0..r] and predicts token r + 1.

        Raises IndexError for a position that is no token's.
        """
        wanted: dict[int, list[int]] = {}
        for index, position in enumerate(positions):
            if not 0 <= position < len(tokens):
                raise IndexError(f"row {position} of {len(tokens)} tokens")
            wanted.setdefault(position, []).append(index)
        out = np.empty((len(positions), self.vocab), dtype=np.float32)
        state = self.start()
        for position, token in enumerate(tokens):
            state = advance(state, token)
            if position in wanted:
                out[wanted[position]] = self.logits_of(state)
        return out

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """The `count` tokens that follow, each the most likely one, the lowest id of equals; no token ends it."""
        state, out = self.start(prompt), []
        for _ in range(count):
            out.append(int(self.logits_of(state).argmax()))
            state = advance(state, out[-1])
        return out

    def noise(self, key: int) -> Row:
        """Normal numbers, float32 [vocab], that `key` alone decides."""
        return self._normal(mix(key))

    def _normal(self, key: int) -> Row:
        bits = self._steps + np.uint64(mix(key))
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        bits ^= bits >> np.uint64(31)
        first, second, third, fourth = bits.view(np.uint16).reshape(-1, 4).T.astype(np.int64)
        sums = first + second + third + fourth
        drawn: Row = ((sums - _MEAN) / _DEVIATION).astype(np.float32)
        return drawn


def log_softmax(logits: npt.NDArray[np.floating]) -> Rows:
    """Log-probabilities along the last axis, computed in float64, as float32."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    narrow: Rows = (wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))).astype(np.float32)
    return narrow


def likeliest(row: Row, count: int) -> npt.NDArray[np.int64]:
    """Ids of the `count` largest of a row, the first of equal ones first and NaN last, without sorting a whole vocabulary for twenty."""
    falling = -row
    last = np.partition(falling, count - 1)[count - 1] if 0 < count < len(row) else np.nan
    near = np.arange(len(row)) if np.isnan(last) else np.flatnonzero(falling <= last)
    found: npt.NDArray[np.int64] = near[np.argsort(falling[near], kind="stable")][:count]
    return found


def sample(logits: Row, *, temperature: float, top_p: float = 1.0, top_k: int = 0, seed: int, position: int) -> int:
    """A token: the most likely one at temperature 0, else one that seed and position alone decide."""
    if temperature <= 0:
        return int(logits.argmax())
    order = np.argsort(-logits, kind="stable")
    if top_k > 0:
        order = order[:top_k]
    mass = np.exp(log_softmax(logits[order] / temperature).astype(np.float64))
    kept = int(np.searchsorted(np.cumsum(mass), top_p * mass.sum())) + 1
    edges = np.cumsum(mass[:kept])
    drawn = unit(mix(seed & _MASK) ^ position) * edges[-1]
    return int(order[min(int(np.searchsorted(edges, drawn, side="right")), len(edges) - 1)])


def tokenize(text: str, *, parse_special: bool = False) -> list[int]:
    """One id for each UTF-8 byte; with `parse_special` the names of control tokens become those tokens."""
    if not parse_special:
        return [CONTROLS + byte for byte in text.encode()]
    ids: list[int] = []
    rest = text
    while rest:
        found = [(at, name) for name in CONTROL_TOKENS if (at := rest.find(name)) >= 0]
        at, name = min(found, default=(len(rest), ""))
        ids += tokenize(rest[:at])
        if name:
            ids.append(CONTROL_TOKENS.index(name))
        rest = rest[at + len(name) :]
    return ids


def tokenize_otherwise(text: str) -> list[int]:
    """As the tokenizer of another model would: two ids for each byte."""
    return [CONTROLS + digit for digit in text.encode().hex().encode()]


def piece(token: int, *, special: bool = True) -> bytes:
    """The bytes of one token: a control token's name (nothing without `special`), a byte, or a word."""
    if token < CONTROLS:
        return CONTROL_TOKENS[token].encode() if special else b""
    if token < FIRST_WORD:
        return bytes([token - CONTROLS])
    word, rest = b" ", token - FIRST_WORD
    while True:
        rest, digit = divmod(rest, 60)
        word += bytes([b"bdfgklmnprst"[digit // 5], b"aeiou"[digit % 5]])
        if not rest:
            return word
        rest -= 1


def detokenize(tokens: Sequence[int], *, special: bool = False) -> str:
    """The text of the tokens, with U+FFFD for bytes that are no UTF-8."""
    return b"".join(piece(token, special=special) for token in tokens).decode(errors="replace")


def chat_prompt(
    messages: Sequence[tuple[str, str]], *, thinking: bool = True, parse_special: bool = False, bos: int = 1
) -> list[int]:
    """The ids of a chat, (role, text) each, up to where the assistant speaks; the prompt opens the thought, or closes it at once."""
    ids = [BOS] * bos
    for role, text in messages:
        ids += [IM_START, *tokenize(f"{role}\n"), *tokenize(text, parse_special=parse_special), IM_END, *tokenize("\n")]
    ids += [IM_START, *tokenize("assistant\n"), THINK]
    return ids if thinking else [*ids, END_THINK]


def tokens_sha256(tokens: Sequence[int]) -> str:
    """SHA-256 of the ids as little-endian u32."""
    return hashlib.sha256(np.asarray(tokens, dtype="<u4").tobytes()).hexdigest()


def shared_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many first tokens both have."""
    count = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        count += 1
    return count
