"""VocabularyIndex: look up tokens and merges directly in the mapped file, through hash tables stored in the header cache.

A prompt of 36 tokens looks up some 300 of 150k tokens and as many merges; decoding all of them into dicts would add 0.15 s to
every start.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from camshaft.errors import ModelError
from camshaft.formats.gguf.values import Metadata
from camshaft.formats.mapped import short_string_offsets
from camshaft.text.tokenizers.byte_level import read_ranks
from camshaft.text.vocabulary import NO_SCORES, TokenType, Vocabulary, token_types

TOKENS, MERGES = "tokenizer.ggml.tokens", "tokenizer.ggml.merges"
_BEFORE = 12  # bytes of an array's item type and count, before its first string
_LENGTH = 8  # bytes of a string's length
Numbers = npt.NDArray[np.int32]


@dataclass(frozen=True)
class StringsIndex:
    """The index of an array of n distinct strings. `starts` [n + 1]: offsets of the length fields, relative to the first, and
    the end. `table` [a power of two above 1.5 n]: open-addressing hash table by CRC-32 with string numbers, or -1."""

    starts: Numbers
    table: Numbers


@dataclass(frozen=True)
class VocabularyIndex:
    """`facts` are the scalar fields of Vocabulary; `controls` are tokens whose type is changed to control; two string indexes."""

    facts: Mapping[str, Any]
    controls: Sequence[int]
    tokens: StringsIndex
    merges: StringsIndex


class Strings(Sequence[str]):
    """Strings in the mapped file, decoded on demand. They keep the mapping alive after the file is closed."""

    def __init__(self, data: memoryview, starts: Numbers) -> None:
        self._data, self._starts = data, starts.data

    def __len__(self) -> int:
        return len(self._starts) - 1

    def encoded(self, index: int) -> bytes:
        """The bytes of string `index` (0 to n - 1)."""
        return bytes(self._data[self._starts[index] + _LENGTH : self._starts[index + 1]])

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        selected = range(len(self))[index]
        if isinstance(selected, int):
            return self.encoded(selected).decode()
        return [self.encoded(i).decode() for i in selected]

    def __iter__(self) -> Iterator[str]:
        starts, data = self._starts.tolist(), bytes(self._data)
        return iter([data[a + _LENGTH : b].decode() for a, b in pairwise(starts)])


class StringLookup(Mapping[str, int]):
    """Maps each string to its number through the hash table; iterating builds a dict of all."""

    def __init__(self, strings: Strings, table: Numbers) -> None:
        self._strings, self._table, self._mask = strings, table.data, len(table) - 1

    def _find(self, text: str) -> int:
        """The string's number, or -1."""
        data = text.encode("utf-8", "surrogatepass")
        slot = zlib.crc32(data) & self._mask
        while (number := self._table[slot]) >= 0 and self._strings.encoded(number) != data:
            slot = (slot + 1) & self._mask
        return int(number)

    def __getitem__(self, text: str) -> int:
        if (number := self._find(text)) < 0:
            raise KeyError(text)
        return number

    def __contains__(self, text: object) -> bool:
        return isinstance(text, str) and self._find(text) >= 0

    def __len__(self) -> int:
        return len(self._strings)

    def __iter__(self) -> Iterator[str]:
        return iter(self.as_dict)

    @cached_property
    def as_dict(self) -> dict[str, int]:
        """All strings with their numbers."""
        return {text: i for i, text in enumerate(self._strings)}


def make_index(vocabulary: Vocabulary, metadata: Metadata) -> VocabularyIndex | None:
    """Index a vocabulary read from this metadata. None if it is not byte-level, a string is empty or longer than 255 bytes, or
    merges are duplicated or invalid."""
    if vocabulary.kind != "gpt2":
        return None
    try:
        ranks = read_ranks(vocabulary.merges, vocabulary.ids)
    except ModelError:
        return None
    tokens, merges = _strings_index(metadata, TOKENS), _strings_index(metadata, MERGES)
    if tokens is None or merges is None or (np.diff(tokens.starts) == _LENGTH).any():
        return None
    if len(ranks) < len(vocabulary.merges):
        return None
    names = ("kind", "pre", "bos_id", "eos_id", "add_bos", "add_eos", "add_space_prefix", "pair")
    facts = {name: getattr(vocabulary, name) for name in names} | {"end_ids": sorted(vocabulary.end_ids)}
    changed = vocabulary.types != token_types(metadata, len(vocabulary.tokens))
    return VocabularyIndex(facts, np.flatnonzero(changed).tolist(), tokens, merges)


def indexed_vocabulary(index: VocabularyIndex, metadata: Metadata) -> Vocabulary:
    """The vocabulary as read_vocabulary returns it, with strings looked up in the mapped file."""
    tokens, merges = _strings(index.tokens, metadata, TOKENS), _strings(index.merges, metadata, MERGES)
    types = token_types(metadata, len(tokens))
    types[list(index.controls)] = TokenType.CONTROL
    return Vocabulary(
        tokens=tokens,
        ids=StringLookup(tokens, index.tokens.table),
        types=types,
        merges=merges,
        scores=NO_SCORES,
        ranks=StringLookup(merges, index.merges.table),
        **{**index.facts, "end_ids": frozenset(index.facts["end_ids"])},
    )


def _data(metadata: Metadata, key: str) -> memoryview:
    """The raw bytes of a string array, from the first string's length field on."""
    return metadata.view(key).data[_BEFORE:]


def _strings(index: StringsIndex, metadata: Metadata, key: str) -> Strings:
    return Strings(_data(metadata, key), index.starts)


def _strings_index(metadata: Metadata, key: str) -> StringsIndex | None:
    data, count = bytes(_data(metadata, key)), len(metadata[key])  # type: ignore[arg-type]  # vocabularies are arrays
    offsets = short_string_offsets(data, 0, count)
    if offsets is None or len(data) >= 1 << 31:
        return None
    starts = np.array(offsets, np.int32)
    return StringsIndex(starts, _table([data[a + _LENGTH : b] for a, b in pairwise(offsets)]))


def _table(strings: Sequence[bytes]) -> Numbers:
    size = 1 << (len(strings) * 3 // 2).bit_length()
    table, mask = [-1] * size, size - 1
    for i, data in enumerate(strings):
        slot = zlib.crc32(data) & mask
        while table[slot] >= 0:
            slot = (slot + 1) & mask
        table[slot] = i
    return np.array(table, np.int32)
