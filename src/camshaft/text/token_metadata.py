"""Reads the keys tokenizer.ggml.* of a GGUF file's metadata: strings, arrays, numbers, flags and token ids, each checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from camshaft.errors import ModelError
from camshaft.formats.mapped import shown_value

Metadata = Mapping[str, Any]


def text_of(metadata: Metadata, key: str, default: str | None = None) -> str:
    """The text under `key`. Raises ModelError if it is not a string, or missing without a default."""
    value = metadata.get(key, default)
    if not isinstance(value, str):
        if value is None:
            raise ModelError(f"the file's metadata lacks the text '{key}'")
        raise ModelError(f"{key} is {shown_value(value)}; wanted a text")
    return value


def array_of(metadata: Metadata, key: str) -> Sequence[Any]:
    """The array under `key`. Raises ModelError if it is missing or not an array."""
    value = metadata.get(key)
    if value is None:
        raise ModelError(f"the file's metadata lacks the array '{key}'")
    if isinstance(value, str) or not hasattr(value, "__len__"):
        raise ModelError(f"{key} is {shown_value(value)}; wanted an array")
    return value  # type: ignore[no-any-return]


def texts_of(metadata: Metadata, key: str, limit: int) -> list[str]:
    """The array of at most `limit` texts under `key`. Raises ModelError for anything else."""
    values = array_of(metadata, key)
    if len(values) > limit:
        raise ModelError(f"{key} has {len(values)} entries; wanted at most {limit}")
    texts = list(values)
    if not set(map(type, texts)) <= {str}:
        raise ModelError(f"{key}: wanted an array of texts")
    return texts


def numbers_of(metadata: Metadata, name: str, dtype: np.dtype[Any], n_tokens: int, default: float) -> NDArray[Any]:
    """The array of `name` as `dtype`, int32 or float32, [n_tokens]; without one the default throughout. Raises ModelError."""
    key = f"tokenizer.ggml.{name}"
    if key not in metadata:
        return np.full(n_tokens, default, dtype)
    given = array_of(metadata, key)
    if len(given) < n_tokens:
        raise ModelError(f"{key}: {len(given)} entries for {n_tokens} tokens")
    try:
        values = np.asarray(given[:n_tokens])
    except (ValueError, OverflowError):  # a list of lists, or of huge integers
        values = np.zeros(0, object)
    whole = dtype.kind == "i"
    if values.ndim != 1 or values.dtype.kind not in ("iu" if whole else "iuf"):
        raise ModelError(f"{key} is {shown_value(given)}; wanted an array of {'integers' if whole else 'numbers'}")
    limits = np.iinfo(np.int32) if whole else np.finfo(np.float32)
    if not ((values >= limits.min) & (values <= limits.max)).all():  # false for NaN
        raise ModelError(f"{key} has a value that is not a finite number of 32 bits")
    return values.astype(dtype)


def token_id_of(metadata: Metadata, name: str, n_tokens: int, default: int | None) -> int | None:
    """The id of the token `name`, or the default. Raises ModelError if it is not an id below n_tokens."""
    key = f"tokenizer.ggml.{name}_token_id"
    value = metadata.get(key, default)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value < n_tokens:
        raise ModelError(f"{key} is {shown_value(value)}: wanted a token id below {n_tokens}")
    return int(value)


def flag_of(metadata: Metadata, name: str, default: bool, token_id: int | None) -> bool:
    """Whether the flag `name` asks to add its token. Raises ModelError if it does and the token has no id."""
    key = f"tokenizer.ggml.{name}"
    flag = truth_of(metadata, name, default)
    if flag and token_id is None:
        raise ModelError(f"{key} asks for a token, but {key[:-6].replace('add_', '')}_token_id is missing")
    return flag


def bytes_of(metadata: Metadata, name: str) -> bytes:
    """An array of 8-bit integers as bytes; empty if there is none."""
    key = f"tokenizer.ggml.{name}"
    if key not in metadata:
        return b""
    given = array_of(metadata, key)
    values = np.asarray(given) if len(given) else np.zeros(0, np.uint8)
    if values.ndim != 1 or values.dtype.kind not in "iu" or ((values < -128) | (values > 255)).any():
        raise ModelError(f"{key} is {shown_value(given)}; wanted an array of bytes")
    return values.astype(np.uint8).tobytes()


def truth_of(metadata: Metadata, name: str, default: bool) -> bool:
    """The flag `name`. Raises ModelError if it is neither true nor false."""
    value = metadata.get(f"tokenizer.ggml.{name}", default)
    if not isinstance(value, bool) and not (isinstance(value, int) and value in (0, 1)):
        raise ModelError(f"tokenizer.ggml.{name} is {shown_value(value)}; wanted true or false")
    return bool(value)
