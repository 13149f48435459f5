"""Vocabulary look-ups in the mapped file equal those of dicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from camshaft.formats.gguf.file import open_gguf
from camshaft.text.tokenizer import Tokenizer
from camshaft.text.tokenizers.byte_level import read_ranks
from camshaft.text.vocabulary import Vocabulary, as_dict, read_vocabulary
from camshaft.text.vocabulary_index import indexed_vocabulary, make_index
from tests.support.models.vocabularies import byte_level, sentencepiece, write_gguf


def both(folder: Path, keys: Any) -> tuple[Vocabulary, Vocabulary]:
    """As it is read, and as its index gives it once the file is closed."""
    write_gguf(keys, folder / "a.gguf")
    with open_gguf(folder / "a.gguf") as file:
        read = read_vocabulary(file.metadata)
        index = make_index(read, file.metadata)
        assert index is not None
        return read, indexed_vocabulary(index, file.metadata)


def refused(folder: Path, keys: Any) -> bool:
    write_gguf(keys, folder / "b.gguf")
    with open_gguf(folder / "b.gguf") as file:
        return make_index(read_vocabulary(file.metadata), file.metadata) is None


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2"])
def test_every_string_is_found_and_no_other(tmp_path: Path, pre: str) -> None:
    read, ours = both(tmp_path, byte_level(pre))
    assert ours.ranks is not None
    ranks = read_ranks(read.merges, read.ids)
    for mine, wanted in ((ours.ids, read.ids), (ours.ranks, ranks)):
        assert len(mine) == len(wanted)
        assert {text: mine[text] for text in wanted} == dict(wanted)
        absent = ["", "\ud800", "no such token", *(text + "\0" for text in wanted)]
        assert not any(text in mine for text in absent)
        assert 7 not in mine
        with pytest.raises(KeyError):
            mine["no such token"]
        assert "whole" not in vars(mine)
        assert as_dict(mine) == dict(wanted)


def test_all_else_is_as_it_is_read(tmp_path: Path) -> None:
    read, ours = both(tmp_path, byte_level("smollm"))
    assert list(ours.tokens) == list(read.tokens)
    assert [ours.tokens[i] for i in range(-3, 3)] == [read.tokens[i] for i in range(-3, 3)]
    assert (ours.tokens[3:9:2], ours.merges[:4]) == (read.tokens[3:9:2], list(read.merges[:4]))
    with pytest.raises(IndexError):
        ours.tokens[len(read.tokens)]
    assert (ours.types == read.types).all()
    names = ("kind", "pre", "bos_id", "eos_id", "end_ids", "add_bos", "add_eos", "add_space_prefix")
    assert [getattr(ours, name) for name in names] == [getattr(read, name) for name in names]


def test_long_texts_have_the_same_tokens(tmp_path: Path) -> None:
    """They go through the library's table, which is made of all strings."""
    read, ours = both(tmp_path, byte_level("qwen2"))
    text = "the sky is blue, and 12 words are said of it. " * 60
    assert Tokenizer(ours).encode(text) == Tokenizer(read).encode(text)


def test_what_cannot_be_indexed_is_not(tmp_path: Path) -> None:
    keys = byte_level("gpt-2")
    tokens, merges = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.merges"]
    assert not refused(tmp_path, keys)
    assert refused(tmp_path, sentencepiece())
    assert refused(tmp_path, keys | {"tokenizer.ggml.tokens": [*tokens[:-1], "x" * 256]})
    assert refused(tmp_path, keys | {"tokenizer.ggml.tokens": [*tokens[:-1], ""]})
    assert refused(tmp_path, keys | {"tokenizer.ggml.merges": [*merges, merges[0]]})
    assert refused(tmp_path, keys | {"tokenizer.ggml.merges": [*merges, "no token"]})
