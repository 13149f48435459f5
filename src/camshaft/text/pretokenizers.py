"""The pre-tokenizers that GGUF files name (tokenizer.ggml.pre): one row each, made of a few regular expressions."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

from camshaft.errors import ModelError


@dataclass(frozen=True)
class Pretokenizer:
    """How text is cut into words before merging: each pattern in turn cuts what is left into matches and gaps.

    `ignore_merges`: a word that is a token as it stands is taken whole. `add_bos`: unless the file says otherwise.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False

    def splitter(self) -> pre_tokenizers.PreTokenizer:
        """Cuts a string into words, in its own characters."""
        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(p), "isolated") for p in self.patterns])


# Letters, numbers and punctuation are those of the library's Unicode, 16 with tokenizers 0.23; llama.cpp's is 15, so
# scripts added since (Garay, Sunuwar, ...) may be cut otherwise there.
_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# Written out per letter: (?i:'s) would take U+017F too, which folds to s.
_CONTRACTIONS = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"


def _word_pattern(digits: str) -> str:
    letters = r"[^\r\n\p{L}\p{N}]?\p{L}+"
    return rf"{_CONTRACTIONS}|{letters}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


_LLAMA3_WORDS = _word_pattern(r"\p{N}{1,3}")

_DEFAULT = Pretokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2_WORDS, r"\p{N}+", r"[0-9][0-9][0-9]"))
_GPT2 = Pretokenizer((_GPT2_WORDS,))
_SMOLLM = Pretokenizer((r"\p{N}", _GPT2_WORDS))
_QWEN2 = Pretokenizer((_word_pattern(r"\p{N}"),))
_LLAMA3 = Pretokenizer((_LLAMA3_WORDS,), ignore_merges=True, add_bos=True)
_DBRX = Pretokenizer((_LLAMA3_WORDS,))

PRETOKENIZERS: dict[str, Pretokenizer] = {
    "default": _DEFAULT,
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4"), _GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _SMOLLM),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan", "solar-open"), _QWEN2),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2"), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe"), _DBRX),
}


def pretokenizer(name: str) -> Pretokenizer:
    """The pre-tokenizer called `name`. ModelError names one that is not in the table."""
    if name not in PRETOKENIZERS:
        known = ", ".join(sorted(PRETOKENIZERS))
        raise ModelError(f"unknown pre-tokenizer '{name}' (tokenizer.ggml.pre); known: {known}")
    return PRETOKENIZERS[name]
