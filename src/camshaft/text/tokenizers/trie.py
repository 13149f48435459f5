"""RWKV's encoder (tokenizer.ggml.model = rwkv): at each place the longest token that the bytes begin with."""

from __future__ import annotations

import re
from functools import cached_property

import numpy as np

from camshaft.errors import ModelError
from camshaft.text.vocabulary import TokenType, Vocabulary

# What follows a backslash: two hexadecimal digits after x, or one character; both may be cut off by the end.
_ESCAPE = re.compile(rb"\\(?:x(?P<high>.)(?P<low>.)|x.?$|(?P<one>.)|$)", re.DOTALL)
_NAMED = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


class Trie:
    """The encoder of a vocabulary whose tokens are spelled as Python spells bytes. Raises ModelError, when the first text is
    encoded, unless each byte has a token."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        types = np.asarray(self._vocabulary.types)
        texts = np.flatnonzero((types != TokenType.CONTROL) & (types != TokenType.UNKNOWN)).tolist()
        ids = {self.piece(token_id): token_id for token_id in texts}
        lacking = [b for b in range(256) if bytes([b]) not in ids]
        if lacking:
            raise ModelError(f"tokenizer.ggml.tokens: no token for the byte 0x{lacking[0]:02x}; wanted one for each")
        return ids

    @cached_property
    def _lengths(self) -> dict[bytes, list[int]]:
        """The lengths of longer tokens by their first two bytes, largest first."""
        found: dict[bytes, set[int]] = {}
        for token in self._ids:
            if len(token) > 1:
                found.setdefault(token[:2], set()).add(len(token))
        return {start: sorted(lengths, reverse=True) for start, lengths in found.items()}

    def encode(self, data: bytes, after_special: bool) -> list[int]:
        """Encode a text fragment."""
        tokens, at, ids, lengths = [], 0, self._ids, self._lengths
        while at < len(data):
            longer = (data[at : at + n] for n in lengths.get(data[at : at + 2], ()))
            token = next((token for token in longer if token in ids), data[at : at + 1])
            tokens.append(ids[token])
            at += len(token)
        return tokens

    def piece(self, token_id: int) -> bytes:
        """The bytes of a token."""
        return unescaped(self._vocabulary.tokens[token_id].encode("utf-8", "surrogatepass"))


def unescaped(text: bytes) -> bytes:
    r"""A token's bytes: \xff, \t, \n, \r, and any other character after a backslash, are one byte each."""
    return _ESCAPE.sub(_byte, text) if b"\\" in text else text


def _byte(match: re.Match[bytes]) -> bytes:
    if match["high"]:
        return bytes([(_digit(match["high"]) * 16 + _digit(match["low"])) & 0xFF])
    one = match["one"] or b""
    return _NAMED.get(one, one)


def _digit(c: bytes) -> int:
    """A lower-case hexadecimal digit; of other characters what llama.cpp makes of them."""
    return c[0] - ord("a") + 10 if c >= b"a" else c[0] - ord("0")
