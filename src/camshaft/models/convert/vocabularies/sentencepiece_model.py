"""Read tokenizer.model files of SentencePiece: a protocol buffer of pieces with scores and types."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from camshaft.errors import FormatError
from camshaft.formats.mapped import path_for_messages, require_ordinary_file

_MAX_NBYTES = 64_000_000
_BPE = 2


@dataclass(frozen=True)
class SentencePieceModel:
    """Pieces by id as (text, score, type); the types are those of tokenizer.ggml.token_type. `add_dummy_prefix`: a space is
    put before texts."""

    pieces: tuple[tuple[str, float, int], ...]
    add_dummy_prefix: bool


def read_sentencepiece(path: Path) -> SentencePieceModel:
    """Read a model of the kind BPE. Raises FormatError for another kind and for a damaged file."""
    require_ordinary_file(path)
    if path.stat().st_size > _MAX_NBYTES:
        raise FormatError(f"{path_for_messages(path)}: has {path.stat().st_size} bytes; wanted at most {_MAX_NBYTES}")
    try:
        return _model(path.read_bytes(), path_for_messages(path))
    except (IndexError, struct.error, UnicodeDecodeError, TypeError, AttributeError):
        raise FormatError(f"{path_for_messages(path)}: is not a SentencePiece model, or damaged") from None


def _model(data: bytes, path: str) -> SentencePieceModel:
    pieces: list[tuple[str, float, int]] = []
    kind, dummy = 1, True  # protobuf's defaults: unigram, with a space before texts
    for number, value in _fields(data):
        if number == 1:
            pieces.append(_piece(value))
        elif number == 2:
            kind = next((v for n, v in _fields(value) if n == 3), kind)
        elif number == 3:
            dummy = bool(next((v for n, v in _fields(value) if n == 3), dummy))
    if kind != _BPE or not pieces:
        raise FormatError(f"{path}: has {len(pieces)} pieces of the model type {kind}; wanted pieces of BPE (2)")
    return SentencePieceModel(tuple(pieces), dummy)


def _piece(data: bytes) -> tuple[str, float, int]:
    values = dict(_fields(data))
    return values[1].decode("utf-8"), float(struct.unpack("<f", values[2])[0]) if 2 in values else 0.0, values.get(3, 1)


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """(field number, value) of a message: integers of varints, bytes of the rest. IndexError or struct.error if it is damaged."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        if key & 7 == 0:
            value, position = _varint(data, position)
            yield key >> 3, value
            continue
        size = {1: 8, 5: 4}.get(key & 7)
        if size is None:
            if key & 7 != 2:
                raise IndexError(f"wire type {key & 7}")
            size, position = _varint(data, position)
        if position + size > len(data):
            raise IndexError("a field past the end")
        yield key >> 3, data[position : position + size]
        position += size


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position
        if shift > 63:
            raise IndexError("a number of more than 64 bits")
