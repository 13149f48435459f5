"""The pre-tokenizers of GGUF files (tokenizer.ggml.pre): regular expressions that split text into words."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from tokenizers import Regex, pre_tokenizers

from camshaft.errors import ModelError
from camshaft.formats.mapped import shown


@dataclass(frozen=True)
class Pretokenizer:
    """Splits text into words before merging: each pattern in turn splits the pieces into matches and the text between.

    `ignore_merges`: a word that is a token is not split by merges. `add_bos`: the default if the file does not say.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False

    def splitter(self) -> pre_tokenizers.PreTokenizer:
        """The pre-tokenizer object of the tokenizers library."""
        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(p), "isolated") for p in self.patterns])


# Character classes follow the library's Unicode version (16 in tokenizers 0.23); llama.cpp uses 15, so scripts
# added since (Garay, Sunuwar, ...) may be split differently.
_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# Written out per letter: (?i:'s) would also match U+017F, which case-folds to s.
_CONTRACTIONS = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"


def _word_pattern(digits: str) -> str:
    letters = r"[^\r\n\p{L}\p{N}]?\p{L}+"
    return rf"{_CONTRACTIONS}|{letters}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


_LLAMA3_WORDS = _word_pattern(r"\p{N}{1,3}")


def _cased_pattern(digits: str, ending: str) -> str:
    """Words end where a capital letter follows a small one; letters without case count as both."""
    # Only a to z and A to Z have a case here, as in llama.cpp.
    capital, small = r"(?:(?=[\p{L}])[^a-z])", r"(?:(?=[\p{L}])[^A-Z])"
    letters = rf"[^\r\n\p{{L}}\p{{N}}]?(?:{capital}*{small}+|{capital}+{small}*){ending}"
    return rf"{letters}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


_DEFAULT = Pretokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2_WORDS, r"\p{N}+", r"[0-9][0-9][0-9]"))
_GPT2 = Pretokenizer((_GPT2_WORDS,))
_SMOLLM = Pretokenizer((r"\p{N}", _GPT2_WORDS))
_QWEN2 = Pretokenizer((_word_pattern(r"\p{N}"),))
_LLAMA3 = Pretokenizer((_LLAMA3_WORDS,), ignore_merges=True, add_bos=True)
_DBRX = Pretokenizer((_LLAMA3_WORDS,))
_GPT4O = Pretokenizer((_cased_pattern(r"\p{N}{1,3}", f"(?:{_CONTRACTIONS})?"),))
_TEKKEN = Pretokenizer((_cased_pattern(r"\p{N}", ""),), ignore_merges=True, add_bos=True)
_SEED = Pretokenizer(
    (rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",)
)
# GLM-4 splits as Llama 3 does.
_CHATGLM = Pretokenizer((_LLAMA3_WORDS,))
_GLM4 = Pretokenizer((_LLAMA3_WORDS,), ignore_merges=True)
_MARKED_LETTERS = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
_QWEN35 = Pretokenizer(
    (rf"{_CONTRACTIONS}|{_MARKED_LETTERS}|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",)
)
_DEEPSEEK3 = Pretokenizer(
    (
        r"\p{N}{1,3}",
        "[一-龥\u3040-ゟ゠-ヿ]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    )
)
_FALCON = Pretokenizer(
    (
        r"[\p{P}\$\+<=>\^~\|`]+",
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
        r"[0-9][0-9][0-9]",
    )
)
_CAPITALS, _SMALLS = (rf"[\p{{{case}}}\p{{Lm}}\p{{Lo}}\p{{M}}&&[^\p{{Han}}]]" for case in (r"Lu}\p{Lt", "Ll"))
# As in the model's own tokenizer; llama.cpp takes xFF for one word.
_KIMI = Pretokenizer(
    (
        rf"\p{{Han}}+|[^\r\n\p{{L}}\p{{N}}]?(?:{_CAPITALS}*{_SMALLS}+|{_CAPITALS}+{_SMALLS}*)(?:{_CONTRACTIONS})?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    )
)
_DEEPSEEK_CODER = Pretokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}"))

PRETOKENIZERS: dict[str, Pretokenizer] = {
    "default": _DEFAULT,
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4"), _GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _SMOLLM),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan", "solar-open"), _QWEN2),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2"), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe"), _DBRX),
    **dict.fromkeys(("gpt-4o", "llama4"), _GPT4O),
    "tekken": _TEKKEN,
    "chatglm-bpe": _CHATGLM,
    **dict.fromkeys(("glm4", "glm5"), _GLM4),
    "qwen35": _QWEN35,
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm"), _DEEPSEEK3),
    "kimi-k2": _KIMI,
    "deepseek-coder": _DEEPSEEK_CODER,
    "falcon": _FALCON,
    "seed-coder": _SEED,
}


def pretokenizer(name: str) -> Pretokenizer:
    """The named pre-tokenizer. Raises ModelError, with the nearest known names, for an unknown one."""
    if name not in PRETOKENIZERS:
        near = get_close_matches(name, PRETOKENIZERS) or ("qwen2", "llama-bpe")
        known = f"{len(PRETOKENIZERS)} are known, such as {', '.join(near)}"
        raise ModelError(f"unknown pre-tokenizer {shown(name[:40])} (tokenizer.ggml.pre); {known}")
    return PRETOKENIZERS[name]
