"""A byte-level vocabulary that is looked up in its file: where its strings lie, and hash tables of them.

A prompt of 36 tokens asks for 300 of the 150k tokens and as many of the merges; to decode all of them and put them into dicts
took 0.15 s of every start.
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
from camshaft.formats.mapped import short_string_places
from camshaft.text.merges import read_ranks
from camshaft.text.vocabulary import NO_SCORES, TokenType, Vocabulary, token_types

TOKENS, MERGES = "tokenizer.ggml.tokens", "tokenizer.ggml.merges"
_BEFORE = 12  # bytes of an array's item type and count
_LENGTH = 8  # bytes of a string's length
Numbers = npt.NDArray[np.int32]


@dataclass(frozen=True)
class StringsIndex:
    """Of an array of n different strings: `starts` [n + 1], where each one's length lies, counted from the first's, and the end
    of all; `table` [a power of two, over 1.5 n], open addressing by CRC-32: numbers of strings, or -1."""

    starts: Numbers
    table: Numbers


@dataclass(frozen=True)
class VocabularyIndex:
    """`facts` are the fields of Vocabulary that are neither strings nor arrays; `controls` tokens count as control tokens."""

    facts: Mapping[str, Any]
    controls: Sequence[int]
    tokens: StringsIndex
    merges: StringsIndex


class Strings(Sequence[str]):
    """Strings in the file, decoded one by one. They hold its mapping, so they outlive its closing."""

    def __init__(self, data: memoryview, starts: Numbers) -> None:
        self._data, self._starts = data, starts.data

    def __len__(self) -> int:
        return len(self._starts) - 1

    def encoded(self, index: int) -> bytes:
        """The bytes of one, 0 to n - 1."""
        return bytes(self._data[self._starts[index] + _LENGTH : self._starts[index + 1]])

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        found = range(len(self))[index]
        return self.encoded(found).decode() if isinstance(found, int) else [self.encoded(i).decode() for i in found]

    def __iter__(self) -> Iterator[str]:
        starts, data = self._starts.tolist(), bytes(self._data)
        return iter([data[a + _LENGTH : b].decode() for a, b in pairwise(starts)])


class Places(Mapping[str, int]):
    """The number of each string: by the table, until somebody wants all of them."""

    def __init__(self, strings: Strings, table: Numbers) -> None:
        self._strings, self._table, self._mask = strings, table.data, len(table) - 1

    def _find(self, text: str) -> int:
        """-1 where there is no such string."""
        data = text.encode("utf-8", "surrogatepass")
        slot = zlib.crc32(data) & self._mask
        while (found := self._table[slot]) >= 0 and self._strings.encoded(found) != data:
            slot = (slot + 1) & self._mask
        return int(found)

    def __getitem__(self, text: str) -> int:
        if (found := self._find(text)) < 0:
            raise KeyError(text)
        return found

    def __contains__(self, text: object) -> bool:
        return isinstance(text, str) and self._find(text) >= 0

    def __len__(self) -> int:
        return len(self._strings)

    def __iter__(self) -> Iterator[str]:
        return iter(self.whole)

    @cached_property
    def whole(self) -> dict[str, int]:
        """All of them."""
        return {text: i for i, text in enumerate(self._strings)}


def make_index(vocabulary: Vocabulary, metadata: Metadata) -> VocabularyIndex | None:
    """The index of a vocabulary that was read from this metadata. None for one that is not byte-level, has a string that is
    empty or of 256 bytes and more, or merges that are there twice or do not fit it, which the first text says."""
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
    names = ("kind", "pre", "bos_id", "eos_id", "add_bos", "add_eos", "add_space_prefix")
    facts = {name: getattr(vocabulary, name) for name in names} | {"end_ids": sorted(vocabulary.end_ids)}
    changed = vocabulary.types != token_types(metadata, len(vocabulary.tokens))
    return VocabularyIndex(facts, np.flatnonzero(changed).tolist(), tokens, merges)


def indexed_vocabulary(index: VocabularyIndex, metadata: Metadata) -> Vocabulary:
    """What read_vocabulary gives of the metadata that the index was made of, with strings looked up in the file."""
    tokens, merges = _strings(index.tokens, metadata, TOKENS), _strings(index.merges, metadata, MERGES)
    types = token_types(metadata, len(tokens))
    types[list(index.controls)] = TokenType.CONTROL
    return Vocabulary(
        tokens=tokens,
        ids=Places(tokens, index.tokens.table),
        types=types,
        merges=merges,
        scores=NO_SCORES,
        ranks=Places(merges, index.merges.table),
        **{**index.facts, "end_ids": frozenset(index.facts["end_ids"])},
    )


def _data(metadata: Metadata, key: str) -> memoryview:
    """An array of strings as it lies in the file, from the first one's length on."""
    return metadata.view(key).data[_BEFORE:]


def _strings(index: StringsIndex, metadata: Metadata, key: str) -> Strings:
    return Strings(_data(metadata, key), index.starts)


def _strings_index(metadata: Metadata, key: str) -> StringsIndex | None:
    data, count = bytes(_data(metadata, key)), len(metadata[key])  # type: ignore[arg-type]  # vocabularies are arrays
    places = short_string_places(data, 0, count)
    if places is None or len(data) >= 1 << 31:
        return None
    starts = np.array(places, np.int32)
    return StringsIndex(starts, _table([data[a + _LENGTH : b] for a, b in pairwise(places)]))


def _table(strings: Sequence[bytes]) -> Numbers:
    size = 1 << (len(strings) * 3 // 2).bit_length()
    table, mask = [-1] * size, size - 1
    for i, data in enumerate(strings):
        slot = zlib.crc32(data) & mask
        while table[slot] >= 0:
            slot = (slot + 1) & mask
        table[slot] = i
    return np.array(table, np.int32)
