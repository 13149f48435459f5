"""Bytes and characters, first in text/: the byte-level alphabet of GPT-2, and UTF-8 that may be broken."""

from __future__ import annotations

import re

REPLACEMENT = "\ufffd"

_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_SHIFTED = tuple(b for b in range(256) if b not in _PRINTABLE)

# Byte -> the one character that stands for it in a byte-level vocabulary, and back.
BYTE_TO_CHAR: dict[int, str] = {
    **{b: chr(b) for b in _PRINTABLE},
    **{b: chr(256 + i) for i, b in enumerate(_SHIFTED)},
}
CHAR_TO_BYTE: dict[str, int] = {c: b for b, c in BYTE_TO_CHAR.items()}

# A lead byte with as many continuation bytes as it promises, overlong forms and surrogates included, or any one byte.
_CHARACTER = re.compile(
    rb"[\x00-\x7f]+|[\xc0-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf7][\x80-\xbf]{3}|.", re.DOTALL
)
_LEAD_BITS = {2: 0x1F, 3: 0x0F, 4: 0x07}


def to_byte_level(data: bytes) -> str:
    """The byte-level spelling of `data`: one character per byte, in the alphabet of GPT-2's vocabulary."""
    return "".join(map(BYTE_TO_CHAR.__getitem__, data))


def from_byte_level(text: str) -> bytes:
    """The bytes that a byte-level token spells; characters outside the alphabet stand for their own UTF-8."""
    try:
        return bytes(map(CHAR_TO_BYTE.__getitem__, text))
    except KeyError:
        return b"".join(bytes((CHAR_TO_BYTE[c],)) if c in CHAR_TO_BYTE else c.encode() for c in text)


def decode_leniently(data: bytes) -> str:
    """`data` as text, read as llama.cpp reads it: one U+FFFD per byte that belongs to no character.

    Overlong forms give the character they spell, and a surrogate stays a lone surrogate; what lies past U+10FFFF, where
    llama.cpp stops the process, is one U+FFFD per byte.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "".join(_lenient_character(m.group()) for m in _CHARACTER.finditer(data))


def _lenient_character(unit: bytes) -> str:
    if unit[0] < 0x80:
        return unit.decode("ascii")
    if len(unit) == 1:
        return REPLACEMENT
    code = unit[0] & _LEAD_BITS[len(unit)]
    for byte in unit[1:]:
        code = code << 6 | byte & 0x3F
    return chr(code) if code <= 0x10FFFF else REPLACEMENT * len(unit)
