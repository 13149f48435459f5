"""PromptFile: tokens with their keys and values, and recurrent states after some of them, as a file.

Bytes: MAGIC, the length of a JSON document and its CRC-32 with the tokens (u32 each), the document, then arrays: tokens i32 [n];
per array of keys and values the checksum of each GRANULE of blocks, u64; recurrent states, each followed by its CRC-32; from the
next multiple of ALIGNMENT on keys and values, array after array. A reader maps the file, takes the first blocks of each array and
checks these alone. Nothing of the file is run.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from camshaft.errors import StoreError
from camshaft.store.files import open_regular

MAGIC = b"camshaft prompt 2\n"
GRANULE = 4  # blocks with one checksum
ALIGNMENT = 64  # of keys and values in the file: words that lie across cache lines are slower to read
_FACTOR = 0x9E3779B97F4A7C15  # any odd number whose powers have many bits
_MOST_DOCUMENT = 1 << 20
_MOST_TOKENS, _MOST_ARRAYS, _MOST_POSITIONS = 1 << 24, 1 << 14, 16
Array = np.ndarray[Any, Any]
States = Mapping[int, Mapping[str, Array]]


class _DamagedError(Exception):
    """A file that is not a prompt of camshaft's, or damaged; the message says how."""


@dataclass(frozen=True)
class PromptHead:
    """The head of a file: the digest of its model, the tokens, (name, bytes of a block) of keys and values, (name, bytes) of
    recurrent states, and the numbers of tokens after which it has them."""

    model: str
    tokens: list[int]
    arrays: list[tuple[str, int]]
    states: list[tuple[str, int]]
    positions: list[int]

    def n_blocks(self, block_tokens: int) -> int:
        """Blocks of each array."""
        return -(-len(self.tokens) // block_tokens) if self.arrays else 0


def to_parts(
    head: PromptHead, blocks: Mapping[str, Array], states: States, start: int = 0
) -> Iterator[bytes | memoryview]:
    """The bytes of a file, before which `start` others come. `blocks` are uint8 [n, bytes of a block] by name."""
    document = {
        "model": head.model,
        "tokens": len(head.tokens),
        "arrays": head.arrays,
        "states": head.states,
        "positions": head.positions,
    }
    text = json.dumps(document).encode()
    tokens = np.array(head.tokens, np.int32).tobytes()
    first = [MAGIC, len(text).to_bytes(4, "little"), crc32(text + tokens).to_bytes(4, "little"), text, tokens]
    first += [_checksums(blocks[name]).tobytes() for name, _ in head.arrays]
    for position in head.positions:
        for name, _ in head.states:
            data = np.ascontiguousarray(states[position][name]).tobytes()
            first += [data, crc32(data).to_bytes(4, "little")]
    yield b"".join(first)
    yield bytes(-(start + sum(map(len, first))) % ALIGNMENT)
    for name, _ in head.arrays:
        yield np.ascontiguousarray(blocks[name]).reshape(-1).data


def _checksums(blocks: Array) -> Array:
    """The checksum of each GRANULE of blocks, uint8 [n, a multiple of 8]: the sum of its words of 64 bits, each times a power of
    _FACTOR. One word that is another is always found; the highest bits of two words that both turn are not. Faster than CRC-32,
    7 GB/s for 3."""
    words = np.ascontiguousarray(blocks).view(np.uint64)
    n_whole, n = len(words) // GRANULE, GRANULE * words.shape[1]
    powers, rest = _powers(n), words[n_whole * GRANULE :].reshape(-1)
    whole = np.einsum("ij,j->i", words[: n_whole * GRANULE].reshape(n_whole, n), powers)  # faster than @
    return np.append(whole, rest @ powers[: len(rest)]) if len(rest) else whole


@lru_cache(8)
def _powers(n: int) -> Array:
    return np.cumprod(np.full(n, _FACTOR, np.uint64))


class PromptFile:
    """An open file of which the head is read. Raises StoreError, naming the path, for what is no such file or is damaged."""

    def __init__(self, path: Path, block_tokens: int, start: int = 0) -> None:
        """`start` bytes come before it. Raises OSError if it cannot be opened."""
        self.path, self._at = path, start
        with open_regular(path) as file:
            self._map = _mapped(file.fileno())
        try:
            self.head = self._read_head()
            self._n_blocks = self.head.n_blocks(block_tokens)
            self._layout()
        except BaseException as error:
            self.close()
            raise self._damaged(error) from None

    def _damaged(self, error: BaseException) -> BaseException:
        if isinstance(error, _DamagedError):
            return StoreError(f"{self.path}: is not a kept prompt, or is damaged: {error}")
        return error

    def _read_head(self) -> PromptHead:
        if self._read(len(MAGIC)) != MAGIC:
            raise _DamagedError("its first bytes are others, or another version of camshaft wrote it")
        length, checksum = (int.from_bytes(self._read(4), "little") for _ in range(2))
        if length > _MOST_DOCUMENT:
            raise _DamagedError(f"a head of {length} bytes")
        text = self._read(length)
        try:
            head, n = _head_of(json.loads(text))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise _DamagedError(f"its head cannot be read ({type(error).__name__})") from None
        tokens = self._read(4 * n)
        if crc32(text + tokens) != checksum:
            raise _DamagedError("the checksum of its head is another")
        return replace(head, tokens=np.frombuffer(tokens, np.int32).tolist())

    def _layout(self) -> None:
        head = self.head
        n_sums = -(-self._n_blocks // GRANULE)
        self._sums = {name: np.frombuffer(self._read(8 * n_sums), np.uint64) for name, _ in head.arrays}
        self._places: dict[str | tuple[int, str], int] = {}
        at = self._at
        for position in head.positions:
            for name, nbytes in head.states:
                self._places[position, name] = at
                at += nbytes + 4
        at += -at % ALIGNMENT
        for name, nbytes in head.arrays:
            self._places[name] = at
            at += nbytes * self._n_blocks
        if at != len(self._map):
            raise _DamagedError(f"{len(self._map)} bytes; wanted {at}")

    def blocks(self, name: str, n: int) -> Array:
        """The first `n` blocks of an array, uint8 [n, bytes of a block], as they lie in the file. Several threads may call it.
        Raises StoreError."""
        whole, nbytes = min(-(-n // GRANULE) * GRANULE, self._n_blocks), dict(self.head.arrays)[name]
        data = np.frombuffer(self._map, np.uint8, whole * nbytes, self._places[name]).reshape(whole, nbytes)
        if not np.array_equal(_checksums(data), self._sums[name][: -(-whole // GRANULE)]):
            raise self._damaged(_DamagedError(f"the checksum of {name} is another"))
        return data[:n]

    def states_at(self, position: int) -> dict[str, Array]:
        """The recurrent states after `position` tokens, uint8. Raises StoreError."""
        found = {}
        for name, nbytes in self.head.states:
            at = self._places[position, name]
            data = self._map[at : at + nbytes]
            if crc32(data) != int.from_bytes(self._map[at + nbytes : at + nbytes + 4], "little"):
                raise self._damaged(_DamagedError(f"the checksum of {name} is another"))
            found[name] = np.frombuffer(data, np.uint8)
        return found

    def _read(self, n: int) -> bytes:
        data = self._map[self._at : self._at + n]
        self._at += n
        if len(data) != n:
            raise _DamagedError("it ends early")
        return data

    def __enter__(self) -> PromptFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; may be called twice. Blocks returned before stay valid; the last one ends the mapping."""
        self._map = b""


def _mapped(file: int) -> mmap.mmap | bytes:
    """The bytes of a file, which is empty or mapped."""
    return mmap.mmap(file, 0, access=mmap.ACCESS_READ) if os.fstat(file).st_size else b""


def _head_of(document: Any) -> tuple[PromptHead, int]:
    """The checked document, without tokens, and their number. Raises ValueError, TypeError or KeyError."""
    n, model = _whole(document["tokens"], _MOST_TOKENS), document["model"]
    arrays, states = (
        [(str(name), _whole(nbytes, 1 << 40)) for name, nbytes in document[key][:_MOST_ARRAYS]]
        for key in ("arrays", "states")
    )
    positions = [_whole(position, n) for position in document["positions"][:_MOST_POSITIONS]]
    if not isinstance(model, str) or not n:
        raise ValueError("no model or no tokens")
    return PromptHead(model, [], arrays, states, positions), n


def _whole(value: Any, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError("a number is out of range")
    return value
