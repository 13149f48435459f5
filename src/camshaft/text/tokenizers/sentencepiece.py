"""BPE encoders of text in which U+2581 stands for spaces, with byte fallback.

SentencePiece (tokenizer.ggml.model = llama) merges by score; PlainBPE (gemma4) by a list of merges, line by line, without words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property

import numpy as np
from tokenizers import Tokenizer as Merger
from tokenizers import models

from camshaft.errors import ModelError
from camshaft.formats.mapped import shown
from camshaft.text.tokenizers.byte_level import decode_leniently
from camshaft.text.vocabulary import TokenType, Vocabulary, as_dict

# Lines, runs of their ends, and lone surrogates.
_PIECES = re.compile("[^\n\ud800-\udfff]+|\n+|[\ud800-\udfff]")

SPACE = "▁"
_ESCAPED_SPACE = SPACE.encode()
# A character as llama.cpp splits invalid UTF-8: as many bytes as the first one announces, whatever they are.
_UNIT = re.compile(rb"[\x00-\xbf]|[\xc0-\xdf].?|[\xe0-\xef].{0,2}|[\xf0-\xff].{0,3}", re.DOTALL)
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


def piece_of(vocabulary: Vocabulary, token_id: int) -> bytes:
    """The bytes of a normal or byte token of a vocabulary that spells spaces as U+2581."""
    token = vocabulary.tokens[token_id]
    if vocabulary.types[token_id] == TokenType.BYTE and (match := _BYTE_TOKEN.fullmatch(token)):
        return bytes.fromhex(match[1])
    return token.replace(SPACE, " ").encode()


class SentencePiece:
    """The encoder of a SentencePiece vocabulary. Its merges are all ways to join two tokens into a third."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        names = [f"<0x{b:02X}>" for b in range(256)]
        if missing := [name for name in names if name not in vocabulary.ids]:
            raise ModelError(f"tokenizer.ggml.tokens: {len(missing)} byte tokens missing, {missing[0]} first")
        self._byte_ids = [vocabulary.ids[name] for name in names]

    @cached_property
    def _merger(self) -> Merger:
        return Merger(models.BPE(as_dict(self._vocabulary.ids), list(self._merges()), byte_fallback=True))

    def _merges(self) -> Iterator[tuple[str, str]]:
        tokens, ids = self._vocabulary.tokens, self._vocabulary.ids
        for token_id in np.argsort(-self._vocabulary.scores, kind="stable").tolist():
            token = tokens[token_id]
            for cut in range(1, len(token)):
                if token[:cut] in ids and token[cut:] in ids:
                    yield token[:cut], token[cut:]

    def encode(self, data: bytes, after_special: bool) -> list[int]:
        """Encode a text fragment, with a leading space if the file asks for it and the fragment starts a text."""
        if after_special and self._vocabulary.add_space_prefix:
            data = b" " + data
        data = data.replace(b" ", _ESCAPED_SPACE)
        try:
            return self._encode_text(data.decode())
        except UnicodeDecodeError:
            return self._encode_invalid(data)

    def _encode_text(self, text: str) -> list[int]:
        return self._merger.encode(text, add_special_tokens=False).ids

    def _encode_invalid(self, data: bytes) -> list[int]:
        """Encode runs of valid characters normally, and other bytes as byte tokens, which do not merge."""
        tokens, run = [], ""
        for unit in map(re.Match.group, _UNIT.finditer(data)):
            try:
                run += unit.decode()
            except UnicodeDecodeError:
                tokens += self._encode_text(run) + [self._byte_ids[b] for b in unit]
                run = ""
        return tokens + self._encode_text(run)

    def piece(self, token_id: int) -> bytes:
        """The bytes of a normal or byte token."""
        return piece_of(self._vocabulary, token_id)


class PlainBPE:
    """The encoder of a vocabulary whose tokens are spelled as text, with U+2581 for spaces. Its table is built for the first
    text."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    @cached_property
    def _model(self) -> models.BPE:
        # The first half of a merge may begin with a space, as the token of one does.
        merges = [(merge[:at], merge[at + 1 :]) for merge in self._vocabulary.merges for at in (merge.find(" ", 1),)]
        try:
            return models.BPE(as_dict(self._vocabulary.ids), merges, byte_fallback=True)
        except Exception as error:  # the library raises bare Exception
            raise ModelError(f"tokenizer.ggml.merges: {shown(str(error), 200)}") from error

    def encode(self, data: bytes, after_special: bool) -> list[int]:
        """Encode a text fragment, line by line; a run of line ends may be one token. `after_special` is not used here."""
        text = decode_leniently(data).replace(" ", SPACE)
        return [token for piece in _PIECES.findall(text) for token in self._tokens(piece)]

    def _tokens(self, piece: str) -> list[int]:
        ids = self._vocabulary.ids
        if piece[0] == "\n" and piece in ids:
            return [ids[piece]]
        if "\ud800" <= piece <= "\udfff":  # the library's strings cannot hold it
            names = [f"<0x{byte:02X}>" for byte in piece.encode("utf-8", "surrogatepass")]
            return [ids[name] for name in names if name in ids]
        return [token.id for token in self._model.tokenize(piece)]

    def piece(self, token_id: int) -> bytes:
        """The bytes of a normal or byte token."""
        return piece_of(self._vocabulary, token_id)
