"""BPE encoder of characters, with tokens for single bytes (tokenizer.ggml.model = gemma4): no words, only lines."""

from __future__ import annotations

import re
from functools import cached_property

from tokenizers import models

from camshaft.errors import ModelError
from camshaft.formats.mapped import shown
from camshaft.text.tokenizers.byte_level import decode_leniently
from camshaft.text.tokenizers.sentencepiece import SPACE, piece_of
from camshaft.text.vocabulary import Vocabulary, as_dict

# Lines, runs of their ends, and lone surrogates.
_PIECES = re.compile("[^\n\ud800-\udfff]+|\n+|[\ud800-\udfff]")


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
