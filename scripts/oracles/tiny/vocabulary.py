"""The vocabulary of tiny models: bytes, a few merges, and the tokens of a chat."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count
from pathlib import Path

CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def make_tokens(n: int = 0, more: Sequence[str] = ()) -> tuple[list[str], list[int], list[str]]:
    """A byte-level vocabulary of odd size: (tokens, types, merges); of `n` tokens it lacks some bytes and all merges but one.
    `more` are further control tokens, at the end."""
    alphabet = [chr(c) for c in gguf_byte_alphabet()]
    merges = ["Ġ t", "h e", "i n", "Ġt he", "Ġ a", "a n", "e r", "o n", "r e", "Ġ w", "in g", "Ġa n", "an d", "Ċ Ċ"]
    merged = list(dict.fromkeys(m.replace(" ", "") for m in merges))
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = [*special, *alphabet, *merged]
    if 0 < n < len(tokens):
        tokens, merges = [*tokens[: n - 1], "!!"], ["! !"]
    types = [3] * len(special) + [1] * (len(tokens) - len(special))
    return [*tokens, *more], [*types, *[3] * len(more)], merges


def gguf_byte_alphabet() -> list[int]:
    """Code points that stand for bytes 0 to 255, as GPT-2 chose them."""
    printable, others = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}, count(256)
    return [b if b in printable else next(others) for b in range(256)]


def write_tokenizer(folder: Path, pre: str, n: int = 0, more: Sequence[str] = ()) -> None:
    """The vocabulary in Hugging Face's layout, with a pre-tokenizer by its GGUF name."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    from camshaft.text.tokenizers.pretokenizers import pretokenizer

    tokens, types, merges = make_tokens(n, more)
    ids = {token: i for i, token in enumerate(tokens)}
    made = Tokenizer(models.BPE(ids, [tuple(merge.split(" ")) for merge in merges]))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([pretokenizer(pre).splitter(), byte_level])
    made.add_special_tokens([token for token, kind in zip(tokens, types, strict=True) if kind == 3])
    made.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": tokens[1], "eos_token": tokens[2], "add_bos_token": False, "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


N_VOCAB = len(make_tokens()[0])
