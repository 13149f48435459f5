"""Tokens of over 200 difficult strings equal llama.cpp's: frozen ones, and live if it is installed."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from camshaft.formats.gguf.file import open_gguf
from camshaft.text.tokenizer import Tokenizer
from tests.support.fixtures import (
    DATA,
    MODES,
    awkward_strings,
    default_model,
    frozen_digests,
    frozen_end_ids,
    frozen_tokens,
    token_digest,
    vocabulary_file,
)
from tests.support.models.vocabularies import byte_level, plamo2, rwkv, sentencepiece, unigram, wordpiece, write_gguf

MADE = {"unigram": unigram, "rwkv": rwkv, "plamo2": plamo2}
VOCABULARIES = sorted({p.stem for p in (DATA / "tokens").glob("*.npz")} - {"strings", "smollm2", *MADE})
# One of each group of pre-tokenizers, and all whose patterns are their own.
PRES = (
    "gpt-2",
    "smollm",
    "qwen2",
    "llama-bpe",
    "gpt-4o",
    "tekken",
    "seed-coder",
    "glm4",
    "qwen35",
    "deepseek-v3",
    "falcon",
)
PRES += (
    "deepseek-coder",
    "deepseek-llm",
    "bloom",
    "viking",
    "bailingmoe2",
    "exaone-moe",
    "minicpm5",
    "minimax-m2",
)
PRES += ("grok-2", "mellum2", "modern-bert", "roberta-bpe", "jina-v2-es", "kormo", "midm-2.0")
SYNTHETIC = {
    **{pre: byte_level(pre) for pre in PRES},
    "default": byte_level("default", add_bos_token=True, add_eos_token=True),
    "bert": wordpiece(),
    "t5": unigram(),
    "t5 of spaces kept": unigram(remove_extra_whitespaces=False),
    "t5 as it is": unigram(
        remove_extra_whitespaces=None, add_space_prefix=None, precompiled_charsmap=None, add_bos_token=None
    ),
    "rwkv": rwkv(),
    "plamo2": plamo2(),
    "llama": sentencepiece(),
    "llama without space": sentencepiece(add_space_prefix=False, add_eos_token=True),
}


@cache
def _tokenizer(path: Path) -> Tokenizer:
    with open_gguf(path) as file:
        return Tokenizer.from_gguf(file.metadata)


def _smollm2() -> Tokenizer:
    path = default_model()
    return _tokenizer(path) if path else pytest.skip("the default model is not there: camshaft pull")


def _assert_equal(tokenizer: Tokenizer, name: str) -> None:
    wanted = frozen_tokens(name)
    for add, parse in MODES:
        got = [tokenizer.encode(text, add_special=add, parse_special=parse) for text in awkward_strings()]
        assert got == wanted[add, parse]
    assert sorted(tokenizer.eos_ids) == frozen_end_ids(name)


def test_there_are_enough_strings() -> None:
    assert len(set(awkward_strings())) >= 200


def test_smollm2() -> None:
    _assert_equal(_smollm2(), "smollm2")


@pytest.mark.parametrize("name", MADE)
def test_vocabularies_made_for_tests(name: str) -> None:
    _assert_equal(Tokenizer.from_gguf(MADE[name]()), name)


def test_smollm2_text_comes_back() -> None:
    tokenizer = _smollm2()
    for text in awkward_strings():
        try:
            whole = text.decode()
        except UnicodeDecodeError:
            continue
        for parse in (False, True):
            assert tokenizer.decode(tokenizer.encode(text, parse_special=parse), special=True) == whole


def test_only_white_space_of_unicode_ends_a_word(tmp_path: Path) -> None:
    """As in llama.cpp and transformers; to Python the four separators of ASCII are spaces."""
    write_gguf(wordpiece(), tmp_path / "bert.gguf")
    tokenizer = _tokenizer(tmp_path / "bert.gguf")
    for character in "\x1c\x1d\x1e\x1f\x00\x7f\u200b\ufffd":
        assert tokenizer.encode(f"wor{character}ld") == tokenizer.encode("world")
    for character in "\t\n\v\f\r\x85\xa0\u2028\u3000":
        assert tokenizer.encode(f"wor{character}ld") == tokenizer.encode("wor ld") != tokenizer.encode("world")


@pytest.mark.oracle
@pytest.mark.parametrize("name", VOCABULARIES)
def test_vocabularies_of_llama_cpp(name: str) -> None:
    path = vocabulary_file(name)
    if path is None:
        pytest.skip(f"ggml-vocab-{name}.gguf is not there: scripts/freeze_oracles.py tokens")
    _assert_equal(_tokenizer(path), name)


@pytest.mark.oracle
@pytest.mark.parametrize("name", frozen_digests())
def test_other_vocabularies_of_llama_cpp(name: str) -> None:
    path = vocabulary_file(name)
    if path is None:
        pytest.skip(f"ggml-vocab-{name}.gguf is not there: scripts/freeze_oracles.py tokens")
    tokenizer = _tokenizer(path)
    tokens = {
        (add, parse): [tokenizer.encode(text, add_special=add, parse_special=parse) for text in awkward_strings()]
        for add, parse in MODES
    }
    assert token_digest(tokens, tokenizer.eos_ids) == frozen_digests()[name]


@pytest.mark.oracle
@pytest.mark.parametrize("name", SYNTHETIC)
def test_live_llama_cpp(name: str, tmp_path: Path) -> None:
    llama = pytest.importorskip("scripts.oracles.llama", reason="llama-cpp-python is not installed")
    path = tmp_path / "vocabulary.gguf"
    write_gguf(SYNTHETIC[name], path)
    oracle, tokenizer = llama.Vocabulary(path), Tokenizer.from_gguf(SYNTHETIC[name])
    for add, parse in MODES:
        for text in awkward_strings():
            wanted = oracle.tokenize(text, add_special=add, parse_special=parse)
            assert tokenizer.encode(text, add_special=add, parse_special=parse) == wanted, text
