"""BPE of characters with tokens for bytes, as Gemma 4 has it, on a small vocabulary."""

from __future__ import annotations

from typing import Any

import pytest

from camshaft.errors import ModelError
from camshaft.text.tokenizer import Tokenizer

TOKENS = ["<pad>", "<eos>", "<bos>", "</s>", "<|tool_response>", *(f"<0x{b:02X}>" for b in range(256))]
TOKENS += ["\n", "\n\n", "a", "b", "c", "\u2581", "ab", "\u2581a", "\u2581\u2581", "bc"]
MERGES = ["a b", "\u2581 a", "\u2581 \u2581", "b c"]


def tokenizer(**more: Any) -> Tokenizer:
    types = [3, 3, 3, 1, 3, *[6] * 256, *[1] * 10]
    keys = {"model": "gemma4", "tokens": TOKENS, "token_type": types, "merges": MERGES}
    keys |= {"bos_token_id": 2, "eos_token_id": 1, "add_bos_token": False, **more}
    return Tokenizer.from_gguf({f"tokenizer.ggml.{key}": value for key, value in keys.items()})


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("abc", ["ab", "c"]),
        (" ab  bc", ["\u2581", "ab", "\u2581\u2581", "bc"]),
        ("a\n\nb\n", ["a", "\n\n", "b", "\n"]),
        ("a\n\n\n", ["a", "\n", "\n", "\n"]),
        ("é", ["<0xC3>", "<0xA9>"]),
        ("a\ud800b", ["a", "<0xED>", "<0xA0>", "<0x80>", "b"]),
    ],
)
def test_tokens_and_back(text: str, pieces: list[str]) -> None:
    made = tokenizer()
    ids = made.encode(text)
    assert ids == [2, *(TOKENS.index(piece) for piece in pieces)]  # BOS, whatever the file says
    assert made.decode_bytes(ids) == text.encode("utf-8", "surrogatepass")


def test_the_end_of_other_models_is_a_normal_token() -> None:
    made = tokenizer()
    assert 3 not in made.eos_ids
    assert {1, 4} <= set(made.eos_ids)


def test_a_merge_of_unknown_tokens_is_named() -> None:
    with pytest.raises(ModelError, match=r"tokenizer.ggml.merges: .*xy"):
        tokenizer(merges=["xy z"]).encode("a")


def test_nothing_makes_nothing() -> None:
    assert tokenizer().encode("", add_special=False) == []
