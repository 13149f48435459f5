"""Vocabularies small enough to work out by hand, as the metadata of a GGUF file."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
ALPHABET = [chr(b if b in _PRINTABLE else 256 + sum(c not in _PRINTABLE for c in range(b))) for b in range(256)]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "1 2", "12 3", "Ġ Ġ", "' s", "ð Ł"]


def byte_level(pre: str = "gpt-2", **changes: Any) -> dict[str, Any]:
    """Byte-level: ids 0 to 3 special (3 user-defined), then the bytes (byte b is token 4 + b), then the merges' results.

    `changes` replace keys by the last part of their name; None removes one.
    """
    special = ["<|end|>", "<|start|>", "<|long|><|end|>", "[tool]"]
    tokens = [*special, *ALPHABET, *(merge.replace(" ", "") for merge in MERGES)]
    types = [CONTROL, CONTROL, CONTROL, USER_DEFINED] + [NORMAL] * (len(tokens) - 4)
    keys = {"model": "gpt2", "pre": pre, "tokens": tokens, "token_type": types, "merges": MERGES}
    return _metadata(keys | {"bos_token_id": 1, "eos_token_id": 0} | changes)


PIECES = [
    "▁",
    "h",
    "e",
    "l",
    "o",
    "w",
    "r",
    "d",
    "▁h",
    "ll",
    "ell",
    "▁hell",
    "▁hello",
    "or",
    "▁wor",
    "▁w",
    "▁▁",
    "é",
    "'",
]


WORD_PIECES = [
    "▁h",
    "▁hello",
    "llo",
    "e",
    "▁wor",
    "ld",
    "▁é",
    "▁e",
    "▁中",
    "▁!",
    "▁'",
    "s",
    "t",
    "▁1",
    "2",
    "▁$",
    "▁w",
    "o",
    "r",
]


def wordpiece(**changes: Any) -> dict[str, Any]:
    """WordPiece: [PAD] [UNK] [CLS] [SEP] [MASK], WORD_PIECES, then letters and digits, at the start of a word or inside."""
    single = [start + c for start in ("▁", "") for c in "abcdefghijklmnopqrstuvwxyz0123456789.,:;?-()"]
    tokens = list(dict.fromkeys(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORD_PIECES, *single]))
    types = [CONTROL, UNKNOWN, CONTROL, CONTROL, CONTROL] + [NORMAL] * (len(tokens) - 5)
    keys = {"model": "bert", "tokens": tokens, "token_type": types, "bos_token_id": 2, "unknown_token_id": 1}
    return _metadata(keys | {"seperator_token_id": 3, "padding_token_id": 0, "mask_token_id": 4} | changes)


def sentencepiece(**changes: Any) -> dict[str, Any]:
    """SentencePiece: <unk> <s> </s>, the bytes (byte b is token 3 + b), then PIECES from token 259 on, best first."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *PIECES]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(PIECES)
    scores = [0.0] * 259 + [-float(i) for i in range(len(PIECES))]
    keys = {"model": "llama", "tokens": tokens, "token_type": types, "scores": scores}
    return _metadata(keys | {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0} | changes)


UNIGRAMS = {
    "▁": -2.0,
    "▁h": -4.0,
    "▁hello": -6.5,
    "hell": -7.0,
    "o": -3.0,
    "e": -2.5,
    "l": -3.0,
    "ll": -5.5,
    "▁wor": -5.0,
    "ld": -4.0,
    "or": -3.5,
    "é": -6.0,
    "中": -6.0,
    "1": -4.0,
    "12": -4.5,
    "123": -9.0,
    "..": -3.0,
    ".": -2.0,
    "fi": -5.0,
}
# Full width to plain, a ligature, spaces, a composed letter, marks that are left out, and one text that begins another.
REPLACED = {
    "１": "1",
    "２": "2",
    "ﬁ": "fi",
    "…": "...",
    "e\u0301": "é",
    "\u200b": "",
    **dict.fromkeys(("\u00a0", "\u3000", "\t", "\n"), " "),
}


def unigram(**changes: Any) -> dict[str, Any]:
    """Unigrams: <s> <pad> </s> <unk>, UNIGRAMS, an unused token and a user's own; spaces are merged, and REPLACED replaced."""
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *UNIGRAMS, "unused", "[tool]"]
    types = [CONTROL, CONTROL, CONTROL, UNKNOWN] + [NORMAL] * len(UNIGRAMS) + [UNUSED, USER_DEFINED]
    scores = [0.0] * 4 + list(UNIGRAMS.values()) + [-10000.0, -1.0]
    keys = {"model": "t5", "tokens": tokens, "token_type": types, "scores": scores, "add_space_prefix": True}
    keys |= {"bos_token_id": 0, "eos_token_id": 2, "unknown_token_id": 3, "padding_token_id": 1}
    keys |= {"seperator_token_id": 2, "add_bos_token": True, "add_eos_token": True, "remove_extra_whitespaces": True}
    return _metadata(keys | {"precompiled_charsmap": np.frombuffer(charsmap(REPLACED), np.uint8)} | changes)


RWKV_TOKENS = [
    "\n\n",
    "he",
    "hel",
    "hello",
    " wor",
    "world",
    " w",
    "12",
    "123",
    "é",
    "éa",
    "中",
    "中文",
    "\\",
    "'s",
    "  ",
    "\t\t",
]


def rwkv(**changes: Any) -> dict[str, Any]:
    """RWKV: <|rwkv|>, the bytes (byte b is token 1 + b), RWKV_TOKENS from 257 on, two bytes of a character, an unused token."""
    spelled = [repr(bytes([b]))[2:-1] for b in range(256)]
    spelled += [repr(text.encode())[2:-1] for text in RWKV_TOKENS if len(text.encode()) > 1] + [r"\xe4\xb8", "[PAD9]"]
    types = [CONTROL] + [NORMAL] * (len(spelled) - 1) + [UNUSED]
    keys = {"model": "rwkv", "tokens": ["<|rwkv|>", *spelled], "token_type": types}
    return _metadata(keys | {"bos_token_id": 0, "eos_token_id": 0, "eot_token_id": 257} | changes)


PLAMO = {
    **UNIGRAMS,
    " ": -1.0,
    " w": -2.5,
    " wor": -4.0,
    "\n": -1.5,
    "h": -3.0,
    "w": -3.5,
    "中文": -5.0,
    "r": -3.25,
    "d": -20000.0,
}


def plamo2(**changes: Any) -> dict[str, Any]:
    """PLaMo: unknown, BOS, EOS, PAD and OP, the bytes (byte b is token 5 + b), then PLAMO."""
    special = ["<|plamo:unk|>", "<|plamo:bos|>", "<|plamo:eos|>", "<|plamo:pad|>", "<|plamo:op|>"]
    tokens = [*special, *(f"<0x{b:02X}>" for b in range(256)), *PLAMO]
    types = [UNKNOWN] + [CONTROL] * 4 + [BYTE] * 256 + [NORMAL] * len(PLAMO)
    scores = [-20000.0] * 5 + [0.0] * 256 + list(PLAMO.values())
    keys = {"model": "plamo2", "tokens": tokens, "token_type": types, "scores": scores, "eot_token_id": 4}
    return _metadata(keys | {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0} | changes)


def charsmap(replaced: dict[str, str]) -> bytes:
    """A character map as SentencePiece stores it: its size, a compact double array of the texts, the replacements."""
    texts = b"".join(text.encode() + b"\0" for text in replaced.values())
    places, place = {}, 0
    for key, text in replaced.items():
        places[key.encode()] = place
        place += len(text.encode()) + 1
    units, taken, bases = [0] * 4096, {0}, {0}
    waiting = [(b"", 0)]
    while waiting:
        prefix, at = waiting.pop()
        labels = sorted({key[len(prefix)] for key in places if key.startswith(prefix) and len(key) > len(prefix)})
        ends = [0] * (prefix in places)
        base = next(b for b in range(1, 4096) if b not in bases and not taken & {b ^ c for c in (*ends, *labels)})
        bases.add(base)
        taken |= {base ^ c for c in (*ends, *labels)}
        units[at] |= (at ^ base) << 10 | len(ends) << 8
        if ends:
            units[base] = 1 << 31 | places[prefix]
        for c in labels:
            units[base ^ c] = c
            waiting.append((prefix + bytes([c]), base ^ c))
    return struct.pack(f"<I{len(units)}I", 4 * len(units), *units) + texts


def _metadata(keys: dict[str, Any]) -> dict[str, Any]:
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items() if value is not None}


_WRITERS = {
    str: gguf.GGUFWriter.add_string,
    list: gguf.GGUFWriter.add_array,
    bytes: gguf.GGUFWriter.add_array,
    bool: gguf.GGUFWriter.add_bool,
    int: gguf.GGUFWriter.add_uint32,
}


def write_gguf(metadata: dict[str, Any], path: Path) -> None:
    """A GGUF file of `metadata` without tensors, such as llama.cpp opens for its vocabulary."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_block_count(1)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(32)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    write_metadata(writer, metadata)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_metadata(writer: gguf.GGUFWriter, metadata: dict[str, Any]) -> None:
    """Add the keys of a vocabulary to a file."""
    for key, value in metadata.items():
        plain = value.tobytes() if isinstance(value, np.ndarray) else value
        _WRITERS[type(plain)](writer, key, plain)
