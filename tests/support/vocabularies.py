"""Two vocabularies small enough to work out by hand, as the metadata of a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6

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


def _metadata(keys: dict[str, Any]) -> dict[str, Any]:
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items() if value is not None}


def write_gguf(metadata: dict[str, Any], path: Path) -> None:
    """A GGUF file of `metadata` without tensors, such as llama.cpp opens for its vocabulary."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_block_count(1)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(32)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    for key, value in metadata.items():
        {str: writer.add_string, list: writer.add_array, bool: writer.add_bool, int: writer.add_uint32}[type(value)](
            key, value
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
