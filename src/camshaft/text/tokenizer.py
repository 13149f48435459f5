"""Tokenizer: convert text to token ids and back, compatible with llama.cpp, from a GGUF file's metadata."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from camshaft.errors import ModelError, SettingError
from camshaft.text.token_metadata import Metadata
from camshaft.text.tokenizers.byte_level import ByteLevel
from camshaft.text.tokenizers.plamo import Plamo
from camshaft.text.tokenizers.sentencepiece import PlainBPE, SentencePiece
from camshaft.text.tokenizers.trie import Trie
from camshaft.text.tokenizers.unigram import Unigram
from camshaft.text.tokenizers.wordpiece import WordPiece
from camshaft.text.vocabulary import TokenType, Vocabulary, read_vocabulary


@dataclass(frozen=True)
class SpecialTokens:
    """(text, id) pairs, longest first: `always` are recognised in any text, `parsed` only on request."""

    always: tuple[tuple[bytes, int], ...]
    parsed: tuple[tuple[bytes, int], ...]

    def split(self, data: bytes, parse_special: bool) -> list[bytes | int]:
        """Split `data` into texts and token ids. Without `parse_special` only user-defined tokens are recognised."""
        fragments: list[bytes | int] = [data] if data else []
        for spelling, token_id in self.parsed if parse_special else self.always:
            if spelling in data:
                fragments = list(_split_at(fragments, spelling, token_id))
        return fragments


def _split_at(fragments: list[bytes | int], spelling: bytes, token_id: int) -> Iterable[bytes | int]:
    for fragment in fragments:
        if isinstance(fragment, int):
            yield fragment
            continue
        for i, text in enumerate(fragment.split(spelling)):
            if i:
                yield token_id
            if text:
                yield text


def special_tokens(vocabulary: Vocabulary) -> SpecialTokens:
    """The control, unknown and user-defined tokens of a vocabulary."""
    return SpecialTokens(
        always=_longest_first(vocabulary, (TokenType.USER_DEFINED,)),
        parsed=_longest_first(vocabulary, (TokenType.USER_DEFINED, TokenType.CONTROL, TokenType.UNKNOWN)),
    )


def _longest_first(vocabulary: Vocabulary, types: tuple[TokenType, ...]) -> tuple[tuple[bytes, int], ...]:
    ids = np.flatnonzero(np.isin(vocabulary.types, types)).tolist()
    return tuple(sorted(((vocabulary.tokens[i].encode(), i) for i in ids), key=lambda pair: -len(pair[0])))


Encoder = ByteLevel | SentencePiece | PlainBPE | Unigram | WordPiece | Trie | Plamo
ENCODERS: dict[str, Callable[[Vocabulary], Encoder]] = {
    "gpt2": ByteLevel,
    "llama": SentencePiece,
    "gemma4": PlainBPE,
    "bert": WordPiece,
    "t5": Unigram,
    "rwkv": Trie,
    "plamo2": Plamo,
}

_HIDDEN = (TokenType.CONTROL, TokenType.UNKNOWN)
_AS_SPELLED = (*_HIDDEN, TokenType.USER_DEFINED)


class Tokenizer:
    """Converts text to tokens and back. Tables for encoding are built when the first text is encoded."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.n_vocab = len(vocabulary.tokens)
        self.bos_id = vocabulary.bos_id
        self.eos_id = vocabulary.eos_id
        self.eos_ids = vocabulary.end_ids
        self._special = special_tokens(vocabulary)
        self._hidden = frozenset(np.flatnonzero(np.isin(vocabulary.types, _HIDDEN)).tolist())
        self._encoder = ENCODERS[vocabulary.kind](vocabulary)
        self._pieces: dict[int, bytes] = {}

    @classmethod
    def from_gguf(cls, metadata: Metadata) -> Tokenizer:
        """The tokenizer in a GGUF file's metadata. Raises ModelError for missing, unknown or inconsistent entries."""
        return cls(read_vocabulary(metadata))

    def encode(
        self,
        text: str | bytes,
        *,
        add_special: bool = True,
        parse_special: bool = True,
        without: str = "",
        at_start: bool = True,
    ) -> list[int]:
        """Encode a text. Invalid UTF-8 becomes U+FFFD (byte-level) or byte tokens (SentencePiece).

        `add_special` adds BOS and EOS if the file asks for them; `parse_special` converts the text of control tokens to those
        tokens, which is safe only for trusted text. `without` is left out of the text between control tokens. A text that is
        not `at_start` gets no leading space from SentencePiece.
        """
        if not isinstance(text, (str, bytes, bytearray, memoryview)):
            raise SettingError(f"the text came as {type(text).__name__}; wanted str or bytes")
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else bytes(text)
        vocabulary = self.vocabulary
        tokens = [vocabulary.bos_id] if add_special and vocabulary.add_bos and vocabulary.bos_id is not None else []
        after_special, unwanted = at_start, without.encode()
        for fragment in self._special.split(data, parse_special):
            if unwanted and not isinstance(fragment, int):
                fragment = fragment.replace(unwanted, b"")
            after_special, was_after_special = isinstance(fragment, int), after_special
            tokens += [fragment] if isinstance(fragment, int) else self._encoder.encode(fragment, was_after_special)
        if add_special and vocabulary.add_eos and vocabulary.eos_id is not None:
            tokens.append(vocabulary.eos_id)
        return tokens

    def split_special(self, text: str) -> list[bytes | int]:
        """Split a text at the control tokens that it spells: texts and token ids."""
        return self._special.split(text.encode("utf-8", "surrogatepass"), True)

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """Decode token ids to text, with U+FFFD for invalid bytes; `special` includes control tokens."""
        return self.decode_bytes(ids, special=special).decode("utf-8", "replace")

    def decode_bytes(self, ids: Iterable[int], *, special: bool = False) -> bytes:
        """Decode token ids to bytes, without the leading space that SentencePiece adds."""
        if isinstance(ids, (str, bytes, bytearray)) or not isinstance(ids, Iterable):
            raise SettingError(f"token ids came as {type(ids).__name__}; wanted a list of whole numbers")
        data = b"".join(map(self._spelled if special else self._shown, ids))
        return data.removeprefix(b" ") if self.vocabulary.add_space_prefix else data

    def spelling(self, token_id: int) -> str:
        """The text of one token, also of a control token, with U+FFFD for bytes that are not whole characters."""
        return self._spelled(token_id).decode("utf-8", "replace")

    @property
    def hidden_ids(self) -> list[int]:
        """The ids of control tokens and of the unknown token, which `decode` leaves out."""
        return sorted(self._hidden)

    @property
    def control_texts(self) -> list[str]:
        """The texts that `parse_special` converts to tokens, longest first."""
        always = {token_id for _, token_id in self._special.always}
        return [spelling.decode() for spelling, token_id in self._special.parsed if token_id not in always]

    def control_ids(self, texts: Iterable[str]) -> dict[str, int]:
        """The ids of those texts that are control tokens."""
        ids = self.vocabulary.ids
        return {text: ids[text] for text in texts if text in ids and ids[text] in self._hidden}

    def spelled_bytes(self, token_id: int) -> bytes:
        """The bytes of one token, also of a control token."""
        return self._spelled(token_id)

    def shows_all(self, ids: Iterable[int]) -> bool:
        """Whether none of the tokens is a control token, which `decode` leaves out."""
        return self._hidden.isdisjoint(ids)

    def stream(self, *, special: bool = False, at_start: bool = False, shown: Iterable[str] = ()) -> Detokenizer:
        """A streaming detokenizer; `at_start` if the tokens start a text. The control tokens `shown` are spelled, or all of them
        if `special`."""
        spelled = {self.vocabulary.ids[text] for text in shown if text in self.vocabulary.ids}

        def piece(token_id: int) -> bytes:
            return self._spelled(token_id) if special or token_id in spelled else self._shown(token_id)

        return Detokenizer(piece, drop_space=at_start and self.vocabulary.add_space_prefix)

    def _type(self, token_id: int) -> int:
        if isinstance(token_id, bool) or not isinstance(token_id, (int, np.integer)):
            raise SettingError(f"token id {token_id!r:.80}; wanted a whole number")
        if not 0 <= token_id < self.n_vocab:
            raise ModelError(f"no token {token_id}: the vocabulary has {self.n_vocab}")
        return int(self.vocabulary.types[token_id])

    def _spelled(self, token_id: int) -> bytes:
        if token_id not in self._pieces:
            as_spelled = self._type(token_id) in _AS_SPELLED
            text = self.vocabulary.tokens[token_id]
            self._pieces[token_id] = text.encode() if as_spelled else self._encoder.piece(token_id)
        return self._pieces[token_id]

    def _shown(self, token_id: int) -> bytes:
        return b"" if token_id in self._hidden else self._spelled(token_id)


class Detokenizer:
    """Converts tokens to text one by one; a character that spans tokens is emitted once it is complete."""

    def __init__(self, piece: Callable[[int], bytes], *, drop_space: bool = False) -> None:
        """`piece` returns a token's bytes; `drop_space` removes one space at the very start."""
        self._piece = piece
        self._drop_space = drop_space
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """The text completed by `token_id`: empty inside a character, U+FFFD for invalid bytes."""
        return self._decoder.decode(self._bytes(token_id))

    @property
    def is_inside_character(self) -> bool:
        """Whether the last token ended inside a character."""
        return bool(self._decoder.getstate()[0])

    def flush(self) -> str:
        """The buffered bytes of an incomplete character, as U+FFFD. Resets the decoder."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text

    def _bytes(self, token_id: int) -> bytes:
        data = self._piece(token_id)
        if self._drop_space and data:
            self._drop_space = False
            return data.removeprefix(b" ")
        return data
