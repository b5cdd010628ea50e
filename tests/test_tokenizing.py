"""Token ids from a GGUF's vocabulary: planted splits on a tiny one, llama.cpp's own ids on the real one."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from engcmp_resources.errors import EngcmpError
from engcmp_resources.gguf_files import open_gguf
from engcmp_resources.tokenizing import TOKENIZER_FILE, GgufTokenizer, load_tokenizer

# Ids that llama.cpp's llama_tokenize (xllamacpp 2026.10.11549, add_special false, parse_special true) gave on
# SmolLM2-135M-Instruct. The full comparison, 4,544 texts, was identical.
LLAMA_CPP_IDS = {
    "Old Marta hadn't slept; by 6:45 a.m. she'd counted 17 lights. WE'LL SEE...": (
        "17222 5863 81 18918 982 31633 43 411 216 38 42 36 37 253 30 93 30 1041 6737 17288 216 33 39 7751 30 "
        "26587 23 16421 334 8405 2026"
    ),
    "def f(x):\n    return x[1:]  # O(n)\n\n\n\t\tpass  \n": (
        "1604 275 24 104 727 472 1003 1792 75 33 13372 216 907 492 24 94 25 1116 3354 197 5467 32057"
    ),
    '{"id": 1042, "p": 39.90, "t": ["\\u00e9", null]}': (
        "39428 311 1799 216 33 32 36 34 28 476 96 1799 216 35 41 30 41 32 28 476 100 1799 9523 76 101 32 32 "
        "85 41 1002 10034 28852"
    ),
    "<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\n": "1 4093 198 26843 17 2 198 1 520 9531 198",
    "a   b\n\n\n  c\r\n\t d   ": "81 256 278 1116 3805 265 15290 287 333",
    "Żółć, Straße; Привет κόσμε مرحبا": (
        "144 136 7342 25954 27804 28 19144 34878 85 43 5470 249 46879 16464 32547 31953 36180 18751 16674 "
        "14240 36395 20602 44626 31462 10805"
    ),
    "今日は天気。我们去北京 안녕": (
        "15076 228 23274 115 7365 124 18614 119 177 125 241 19076 19805 235 15076 122 44652 136 30158 241 "
        "16736 122 18601 239 226 182 223 239"
    ),
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f389\U0001f3fd \U0001f1eb\U0001f1f7": (
        "10813 235 119 321 231 10813 235 119 321 231 10813 235 117 15107 232 227 10813 233 138 15107 225 121 "
        "10813 225 132"
    ),
    "½ ² Ⅷ ٣٤٥ ① 1,000,000": (
        "16738 216 19133 216 173 223 117 216 164 113 164 114 164 115 216 173 235 250 216 33 28 32 32 32 28 32 32 32"
    ),
    "<|im_start <|endoftext|><repo_name>x\xa0y\u3000z\u2028": (
        "44 108 306 79 3738 216 0 3 104 15442 105 12109 218 106 321 118"
    ),
    "x86_64::Vec<u8>->{}!!": "104 40 38 79 38 36 9533 48763 44 101 40 46 22690 6150 10095",
}

TOKENS = ["<|end|>", "a", "b", "Ġ", "1", "2", "Ċ", "ab", "Ġa", "12", "Ġab", "Ã", "©", "Ã©", "<tag>"]
TYPES = [3, *[1] * 13, 4]
MERGES = ["a b", "Ġ a", "1 2", "Ġ ab", "Ã ©"]


def tiny_tokenizer(
    path: Path, *, pre: str = "smollm", merges: list[str] = MERGES, types: list[int] = TYPES
) -> GgufTokenizer:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_gguf(path) as model:
        return GgufTokenizer.from_model(model)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("ab ab", ["ab", "Ġab"]),
        ("12", ["1", "2"]),  # digits stay single although the vocabulary has a merge for them
        ("a 1", ["a", "Ġ", "1"]),
        ("é", ["Ã©"]),
        ("a<|end|>b<tag>", ["a", "<|end|>", "b", "<tag>"]),
        ("  a", ["Ġ", "Ġa"]),
        ("", []),
    ],
)
def test_a_text_is_split_into_digits_and_words_and_then_merged(tmp_path: Path, text: str, tokens: list[str]) -> None:
    tokenizer = tiny_tokenizer(tmp_path / "tiny.gguf")
    ids = tokenizer.encode(text)
    assert [TOKENS[token] for token in ids] == tokens
    assert tokenizer.decode(ids) == text


def test_an_id_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngcmpError, match="token 15 is not in the vocabulary of 15"):
        tiny_tokenizer(tmp_path / "tiny.gguf").decode([1, 15])


def test_a_tokenizer_of_another_kind_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(EngcmpError, match=r"tokenizer\.ggml\.pre is 'llama-bpe', only 'smollm'.*tiny\.gguf"):
        tiny_tokenizer(tmp_path / "tiny.gguf", pre="llama-bpe")


def test_a_damaged_merge_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngcmpError, match="the merge 'ab' is not of two tokens"):
        tiny_tokenizer(tmp_path / "tiny.gguf", merges=["ab"])
    with pytest.raises(EngcmpError, match="the merge 'a z' is not of two tokens"):
        tiny_tokenizer(tmp_path / "tiny.gguf", merges=["a z"])


def test_token_types_must_cover_the_vocabulary(tmp_path: Path) -> None:
    with pytest.raises(EngcmpError, match="15 tokens, 15 of them distinct, and 14 token types"):
        tiny_tokenizer(tmp_path / "tiny.gguf", types=TYPES[:-1])


def test_a_tokenizer_is_made_once_and_anew_from_a_file_that_has_changed(tmp_path: Path) -> None:
    path = tmp_path / TOKENIZER_FILE
    path.write_text(Tokenizer(WordLevel({"a": 0, "b": 1}, "b")).to_str())
    first = load_tokenizer(path)
    assert load_tokenizer(path) is first and first.encode("a") == [0]
    path.unlink()
    path.write_text(Tokenizer(WordLevel({"a": 1, "b": 0}, "b")).to_str())
    assert load_tokenizer(path).encode("a") == [1]
    path.unlink()
    with pytest.raises(EngcmpError, match=r"not a tokenizer\.json"):
        load_tokenizer(path)


def test_ids_on_the_real_vocabulary_are_those_of_llama_cpp(smollm2_weights: Path) -> None:
    with open_gguf(smollm2_weights) as model:
        tokenizer = GgufTokenizer.from_model(model)
    assert tokenizer.vocab == 49152
    for text, ids in LLAMA_CPP_IDS.items():
        assert tokenizer.encode(text) == [int(token) for token in ids.split()], text
        assert tokenizer.decode(tokenizer.encode(text)) == text
