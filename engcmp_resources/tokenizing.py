"""Token ids of texts: from a GGUF's own vocabulary and merges, the same ids that llama.cpp gives, or from a model's `tokenizer.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Self

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits
from tokenizers.pre_tokenizers import Sequence as Steps

from engcmp_resources.errors import EngcmpError
from engcmp_resources.gguf_files import GgufModel, open_gguf

# Token types of `tokenizer.ggml.token_type` that a text may name whole: control and user-defined.
_WHOLE_TYPES = (3, 4)
_REMEDY = "give the windows' token ids, or choose weights with the smollm tokenizer"
TOKENIZER_FILE = "tokenizer.json"


class TextTokenizer:
    """A model's tokenizer: special tokens in a text become their ids, and nothing is added at either end.

    `vocab` is one more than the highest id that it gives; a model's rows may be wider.
    """

    def __init__(self, tokenizer: Tokenizer, vocab: int) -> None:
        self._tokenizer = tokenizer
        self.vocab = vocab

    @classmethod
    def from_file(cls, path: Path) -> TextTokenizer:
        """The tokenizer of a `tokenizer.json`. Raises EngcmpError for a file that cannot be read or is none."""
        try:
            tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8"))
        except Exception as error:
            raise EngcmpError(
                f"not a {TOKENIZER_FILE}: {error}", where=str(path), remedy="fetch it again from the model's files"
            ) from error
        tokenizer.no_truncation()  # a file may ask for both, for training
        tokenizer.no_padding()
        ids = tokenizer.get_vocab(with_added_tokens=True).values()
        if not ids:
            raise EngcmpError("the tokenizer has no tokens", where=str(path), remedy="fetch it again")
        return cls(tokenizer, 1 + max(ids))

    def as_json(self) -> str:
        """The tokenizer as a `tokenizer.json`, which the tokenizers library and others read."""
        return str(self._tokenizer.to_str())

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens written out. Raises EngcmpError for an id outside the vocabulary."""
        for token in ids:
            if not 0 <= token < self.vocab:
                raise EngcmpError(
                    f"token {token} is not in the vocabulary of {self.vocab:,}",
                    remedy="decode with the tokenizer that made the ids",
                )
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))


class GgufTokenizer(TextTokenizer):
    """Byte-level BPE with the `smollm` split: each digit alone, then the GPT-2 word pattern.

    A byte that the vocabulary lacks gives no token, as in llama.cpp: SmolLM2 lacks six control characters and the lead bytes from
    U+40000 to U+BFFFF.
    """

    @classmethod
    def from_model(cls, model: GgufModel) -> Self:
        """The tokenizer that the GGUF holds.

        Raises EngcmpError for another kind of tokenizer or split, lists of unequal length, or a damaged merge.
        """
        for key, supported in (("tokenizer.ggml.model", "gpt2"), ("tokenizer.ggml.pre", "smollm")):
            if model.text(key) != supported:
                raise EngcmpError(
                    f"{key} is {model.text(key)!r}, only {supported!r} is supported",
                    where=str(model.path),
                    remedy=_REMEDY,
                )
        tokens = model.texts("tokenizer.ggml.tokens")
        types = model.integers("tokenizer.ggml.token_type")
        if len(tokens) != len(types) or len(set(tokens)) != len(tokens):
            raise EngcmpError(
                f"{len(tokens)} tokens, {len(set(tokens))} of them distinct, and {len(types)} token types",
                where=str(model.path),
                remedy="fetch or make the file again",
            )
        vocab = {token: number for number, token in enumerate(tokens)}
        tokenizer = Tokenizer(BPE(vocab=vocab, merges=_merges(model, vocab)))
        tokenizer.pre_tokenizer = Steps([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
        tokenizer.decoder = ByteLevelDecoder()
        tokenizer.add_special_tokens(
            [
                AddedToken(token, special=True, normalized=False)
                for token, kind in zip(tokens, types, strict=True)
                if kind in _WHOLE_TYPES
            ]
        )
        return cls(tokenizer, len(tokens))


def load_tokenizer(path: Path) -> TextTokenizer:
    """The tokenizer of a GGUF, or of a `tokenizer.json`. Raises EngcmpError as they do.

    That of the same unchanged file is made once a process: it takes a quarter of a second, and commands ask several times.
    """
    try:
        found = path.stat()
    except OSError:
        return _loaded(path)  # which says what is wrong
    return _loaded_once(path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


@lru_cache(maxsize=2)
def _loaded_once(path: Path, *_state: int) -> TextTokenizer:
    return _loaded(path)


def _loaded(path: Path) -> TextTokenizer:
    if path.suffix != ".gguf":
        return TextTokenizer.from_file(path)
    with open_gguf(path) as model:
        return GgufTokenizer.from_model(model)


def _merges(model: GgufModel, vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    merges: list[tuple[str, str]] = []
    for merge in model.texts("tokenizer.ggml.merges"):
        # The halves cannot hold a space (byte-level BPE writes it as another letter), so one space parts them.
        left, _, right = merge.partition(" ")
        if left not in vocab or right not in vocab or left + right not in vocab:
            raise EngcmpError(
                f"the merge {merge!r} is not of two tokens of the vocabulary into a third",
                where=str(model.path),
                remedy="fetch or make the file again",
            )
        merges.append((left, right))
    return merges
