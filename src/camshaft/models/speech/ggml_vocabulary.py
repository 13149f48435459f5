"""The tokenizer's keys of whisper.cpp's files, which have the bytes of tokens alone; merges and special ones are found again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from camshaft.errors import FormatError
from camshaft.models.speech.config import LANGUAGES
from camshaft.text.tokenizers.byte_level import to_byte_level
from camshaft.text.vocabulary import TokenType

# Tokens of a vocabulary of English alone; larger ones are of many languages, with a special token for each.
N_ENGLISH, _N_BESIDES = 51864, 51765
_TASKS = ("translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps")


def tokenizer_keys(tokens: Sequence[bytes], n_vocab: int, name: str) -> dict[str, Any]:
    """Values by key. Raises FormatError for sizes that no Whisper has."""
    multilingual = n_vocab > N_ENGLISH
    n_languages, end = n_vocab - _N_BESIDES - multilingual, 50256 + multilingual
    if not 0 < n_languages <= len(LANGUAGES) or len(tokens) < end:
        raise FormatError(f"{name}: has {len(tokens)} tokens of {n_vocab}; wanted those of a Whisper, 51864 or more")
    special = ["endoftext", "startoftranscript", *list(LANGUAGES)[:n_languages], *_TASKS]
    texts = [to_byte_level(token) or f"[EMPTY_{i}]" for i, token in enumerate(tokens[:end])]
    texts += [f"<|{word}|>" for word in special]
    texts += [f"<|{i * 0.02:.2f}|>" for i in range(n_vocab - len(texts))]
    types = np.full(n_vocab, TokenType.NORMAL, np.int32)
    types[end:] = TokenType.CONTROL
    if len(set(texts)) != n_vocab:
        raise FormatError(f"{name}: has the same token twice")
    keys = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": texts,
        "token_type": types,
        "merges": merges_of(tokens[:end]),
        "bos_token_id": end,
        "eos_token_id": end,
        "add_bos_token": False,
        "add_eos_token": False,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


def merges_of(tokens: Sequence[bytes]) -> list[str]:
    """The merges of a byte-level vocabulary whose ids are in the order of merges: a token's two parts are what the merges
    before it make of its bytes."""
    ranks = {token: i for i, token in enumerate(tokens)}
    pairs = (_parts(token, ranks, i) for i, token in enumerate(tokens) if len(token) > 1)
    return [" ".join(map(to_byte_level, pair)) for pair in pairs if len(pair) == 2]


def _parts(token: bytes, ranks: dict[bytes, int], rank: int) -> list[bytes]:
    """Returns the parts of a token's bytes after all merges before `rank`, applied in order."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        found = [ranks.get(a + b, rank) for a, b in pairwise(parts)]
        best = min(found)
        if best >= rank:
            break
        at = found.index(best)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts
