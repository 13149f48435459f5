"""PromptFile: tokens with their keys and values, and recurrent states after some of them, as a file.

Bytes: MAGIC, the length of a JSON document and its CRC-32 with the tokens (u32 each), the document, then arrays: tokens i32 [n];
per array of keys and values the CRC-32 of each GRANULE of blocks, u32; recurrent states, each followed by its CRC-32; keys and
values, array after array. A reader takes the first blocks of each array and checks these alone. Nothing of the file is run.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from camshaft.errors import StoreError
from camshaft.store.files import open_regular, reason

MAGIC = b"camshaft prompt 1\n"
GRANULE = 4  # blocks with one checksum
_MOST_DOCUMENT = 1 << 20
_MOST_TOKENS, _MOST_ARRAYS, _MOST_POSITIONS = 1 << 24, 1 << 14, 16
Array = np.ndarray[Any, Any]
States = Mapping[int, Mapping[str, Array]]


class _DamagedError(Exception):
    """A file that is no prompt of camshaft's, or damaged; the message says how."""


@dataclass(frozen=True)
class PromptHead:
    """What a file has: the digest of its model, the tokens, (name, bytes of a block) of keys and values, (name, bytes) of
    recurrent states, and the numbers of tokens after which it has them."""

    model: str
    tokens: list[int]
    arrays: list[tuple[str, int]]
    states: list[tuple[str, int]]
    positions: list[int]

    def n_blocks(self, block_tokens: int) -> int:
        """Blocks of each array."""
        return -(-len(self.tokens) // block_tokens) if self.arrays else 0


def to_parts(head: PromptHead, blocks: Mapping[str, Array], states: States) -> Iterator[bytes | memoryview]:
    """The bytes of a file. `blocks` are uint8 [n, bytes of a block] by name."""
    document = {
        "model": head.model,
        "tokens": len(head.tokens),
        "arrays": head.arrays,
        "states": head.states,
        "positions": head.positions,
    }
    text = json.dumps(document).encode()
    tokens = np.array(head.tokens, np.int32).tobytes()
    yield MAGIC + len(text).to_bytes(4, "little") + crc32(text + tokens).to_bytes(4, "little") + text + tokens
    for name, _ in head.arrays:
        yield _checksums(blocks[name]).tobytes()
    for position in head.positions:
        for name, _ in head.states:
            data = np.ascontiguousarray(states[position][name]).reshape(-1).view(np.uint8)
            yield data.data
            yield crc32(data.data).to_bytes(4, "little")
    for name, _ in head.arrays:
        yield np.ascontiguousarray(blocks[name]).reshape(-1).data


def _checksums(blocks: Array) -> Array:
    return np.array([crc32(blocks[i : i + GRANULE].data) for i in range(0, len(blocks), GRANULE)], np.uint32)


class PromptFile:
    """An open file of which the head is read. Raises StoreError, naming the path, for what is no such file or is damaged."""

    def __init__(self, path: Path, block_tokens: int, start: int = 0) -> None:
        """`start` bytes come before it. Raises OSError if it cannot be opened."""
        self.path, self._file, self._reading = path, open_regular(path), threading.Lock()
        try:
            self.head = self._read_head(start, block_tokens)
            self._n_blocks = self.head.n_blocks(block_tokens)
            self._layout(os.fstat(self._file.fileno()).st_size)
        except BaseException as error:
            self.close()
            raise self._damaged(error) from None

    def _damaged(self, error: BaseException) -> BaseException:
        if isinstance(error, OSError):
            return StoreError(f"{self.path}: the kept prompt cannot be read: {reason(error)}")
        if isinstance(error, _DamagedError):
            return StoreError(f"{self.path}: is no kept prompt, or is damaged: {error}")
        return error

    def _read_head(self, start: int, block_tokens: int) -> PromptHead:
        self._file.seek(start)
        if self._read(len(MAGIC)) != MAGIC:
            raise _DamagedError("its first bytes are others")
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

    def _layout(self, size: int) -> None:
        head = self.head
        n_sums = -(-self._n_blocks // GRANULE)
        self._sums = {name: np.frombuffer(self._read(4 * n_sums), np.uint32) for name, _ in head.arrays}
        at = self._file.tell()
        self._places: dict[str | tuple[int, str], int] = {}
        for position in head.positions:
            for name, nbytes in head.states:
                self._places[position, name] = at
                at += nbytes + 4
        for name, nbytes in head.arrays:
            self._places[name] = at
            at += nbytes * self._n_blocks
        if at != size:
            raise _DamagedError(f"{size} bytes; wanted {at}")

    def blocks(self, name: str, n: int) -> Array:
        """The first `n` blocks of an array, uint8 [n, bytes of a block]. Several threads may call it. Raises StoreError."""
        whole, nbytes = min(-(-n // GRANULE) * GRANULE, self._n_blocks), dict(self.head.arrays)[name]
        data = np.empty((whole, nbytes), np.uint8)
        try:
            with self._reading:
                self._file.seek(self._places[name])
                n_read = self._file.readinto(data.reshape(-1).data)
            if n_read != data.nbytes:
                raise _DamagedError("it ends early")
            if not np.array_equal(_checksums(data), self._sums[name][: -(-whole // GRANULE)]):
                raise _DamagedError(f"the checksum of {name} is another")
        except (OSError, _DamagedError) as error:
            raise self._damaged(error) from None
        return data[:n]

    def states_at(self, position: int) -> dict[str, Array]:
        """The recurrent states after so many tokens, uint8. Raises StoreError."""
        found = {}
        try:
            for name, nbytes in self.head.states:
                self._file.seek(self._places[position, name])
                data = np.frombuffer(self._read(nbytes), np.uint8)
                if crc32(data.data) != int.from_bytes(self._read(4), "little"):
                    raise _DamagedError(f"the checksum of {name} is another")
                found[name] = data
        except (OSError, _DamagedError) as error:
            raise self._damaged(error) from None
        return found

    def _read(self, n: int) -> bytes:
        data = self._file.read(n)
        if len(data) != n:
            raise _DamagedError("it ends early")
        return data

    def __enter__(self) -> PromptFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._file.close()


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
