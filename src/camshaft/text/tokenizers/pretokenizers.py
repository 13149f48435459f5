"""The pre-tokenizers of GGUF files (tokenizer.ggml.pre): regular expressions that split text into words."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from tokenizers import Regex, pre_tokenizers

from camshaft.errors import ModelError
from camshaft.formats.mapped import shown

# Letters with a case, as DeepSeek's first models have them.
CASED_LETTERS = (
    "A-Za-z\xb5\xc0-\xd6\xd8-\xf6\xf8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376"
    "\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481"
    "\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf"
    "\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d"
    "\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4"
    "\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107"
    "\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17"
    "\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb"
    "\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
# Scripts written without spaces: Han, kana, Thai, Lao, Khmer, Myanmar, Hangul.
UNSPACED = (
    "\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf"
    "\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af"
    "\u1100-\u11ff"
)


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
_HAN_AND_HANGUL = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK = Pretokenizer(
    (
        r"[\r\n]",
        rf"\s?[{CASED_LETTERS}]+",
        "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
        r"\s+$",
        _HAN_AND_HANGUL,
        r"\p{N}+",
    )
)
_BLOOM_WORDS = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_BLOOM = Pretokenizer((_BLOOM_WORDS,))
# Digits in threes from a number's end on, as the model's own tokenizer has them; llama.cpp leaves spaces before with the first.
_AFMOE = Pretokenizer((r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", f"[{UNSPACED}]+", _DEEPSEEK3.patterns[2]))
_EXAONE_MOE = Pretokenizer(
    (
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?"
        r"|\s*[\r\n]|\s+(?!\S)|\s+",
    )
)
_MINICPM5 = Pretokenizer((r"\p{N}{1,3}", _word_pattern(r"\p{N}+")), ignore_merges=True)
_DEEPSEEK_CODER = Pretokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_AND_HANGUL, r"\p{N}"))

PRETOKENIZERS: dict[str, Pretokenizer] = {
    "default": _DEFAULT,
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4"), _GPT2),
    **dict.fromkeys(("jina-v1-en", "jina-v2-code", "jina-v2-de", "jina-v2-es", "jina-de", "jina-es"), _GPT2),
    **dict.fromkeys(("roberta-bpe", "modern-bert", "gigachat", "a.x-4.0", "mellum"), _GPT2),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"), _SMOLLM
    ),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan", "solar-open", "kormo"), _QWEN2),
    # The last three write \s*[\r\n] for \s*[\r\n]+, which takes the same.
    **dict.fromkeys(("f2llmv2", "grok-2", "bailingmoe", "bailingmoe2", "llada-moe"), _QWEN2),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2"), _LLAMA3),
    **dict.fromkeys(("midm-2.0", "jina-v5-nano"), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe"), _DBRX),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), _GPT4O),
    "tekken": _TEKKEN,
    "chatglm-bpe": _CHATGLM,
    **dict.fromkeys(("glm4", "glm5"), _GLM4),
    "qwen35": _QWEN35,
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), _DEEPSEEK3),
    "deepseek-llm": _DEEPSEEK,
    **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), _BLOOM),
    "viking": Pretokenizer((_BLOOM_WORDS, r"\p{N}")),
    "afmoe": _AFMOE,
    "exaone-moe": _EXAONE_MOE,
    "minicpm5": _MINICPM5,
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
