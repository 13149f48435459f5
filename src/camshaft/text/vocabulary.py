"""Vocabulary: read a GGUF file's tokens, token types, special ids and flags."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from camshaft.errors import ModelError
from camshaft.formats.mapped import shown
from camshaft.text.token_metadata import (
    Metadata,
    array_of,
    bytes_of,
    flag_of,
    numbers_of,
    text_of,
    texts_of,
    token_id_of,
    truth_of,
)
from camshaft.text.tokenizers.pretokenizers import pretokenizer


class TokenType(enum.IntEnum):
    """Values of tokenizer.ggml.token_type."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# Texts of tokens that end a turn or document. Files mark them inconsistently, so they are recognised by text.
END_TEXTS = (
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>"),
    *("<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>"),
    *("<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~["),
)
# With these tokens, <|end|> ends one message of an answer only, as in gpt-oss.
_OTHER_ENDS = (("<|return|>", "<|call|>"), ("<|calls|>", "<|flush|>"))
# Texts of fill-in-the-middle tokens, used if the key tokenizer.ggml.NAME_token_id is missing.
FILL_TEXTS = {
    "fim_pre": ("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>"),
    "fim_suf": ("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>"),
    "fim_mid": ("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>"),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
MAX_TOKENS, MAX_MERGES = 1 << 20, 1 << 22  # a token takes 0.3 kB of memory; vocabularies have up to 262,144
# Metadata names of tokens that end generation.
END_NAMES = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by id (`tokens`), ids by text (`ids`), a TokenType per token (`types`, int32), special ids and flags.

    `kind` is a key of KINDS: "gpt2" (byte-level BPE, uses `merges`), "llama" (SentencePiece, uses `scores`, float32), "gemma4"
    (BPE of characters, uses `merges`), "bert" (WordPiece, whose [CLS] is `bos_id` and whose [SEP] is `eos_id`), "t5" (unigrams,
    uses `scores`, `charsmap`, `unk_id` and `merges_spaces`), "plamo2" (unigrams and bytes, uses `scores`) or "rwkv" (the longest
    token at each place). `end_ids` are the tokens that end generation; `ranks` are the
    ranks of merges, if known already. `pair` are the tokens before, between and after two texts that a model reads as one.
    """

    kind: str
    pre: str
    tokens: Sequence[str]
    ids: Mapping[str, int]
    types: NDArray[np.int32]
    merges: Sequence[str]
    scores: NDArray[np.float32]
    bos_id: int | None
    eos_id: int | None
    end_ids: frozenset[int]
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool
    pair: Sequence[Sequence[int]] = ((), (), ())
    ranks: Mapping[str, int] | None = None
    unk_id: int | None = None
    charsmap: bytes = b""
    merges_spaces: bool = False


@dataclass(frozen=True)
class Kind:
    """Defaults by tokenizer.ggml.model: ids of BOS and EOS, and what is added to a text.

    add_bos None: as the pre-tokenizer has it. add_space_prefix None: there is no such thing. wraps: BOS and EOS stand around each
    text, whatever the file's flags say; always_bos: BOS does (some files of Gemma 4 say otherwise).
    """

    bos: int | None = None
    eos: int | None = None
    add_bos: bool | None = None
    add_eos: bool = False
    add_sep: bool = False
    has_scores: bool = False
    has_merges: bool = False
    add_space_prefix: bool | None = None
    wraps: bool = False
    unk: int | None = None
    always_bos: bool = False


KINDS = {
    "gpt2": Kind(has_merges=True),
    "llama": Kind(bos=1, eos=2, add_bos=True, has_scores=True, add_space_prefix=True),
    "gemma4": Kind(add_bos=True, has_merges=True, always_bos=True),
    "bert": Kind(add_bos=True, add_sep=True, wraps=True),
    "rwkv": Kind(add_bos=False),
    "plamo2": Kind(bos=1, eos=2, add_bos=False, has_scores=True),
    "t5": Kind(eos=1, add_bos=False, add_eos=True, has_scores=True, add_space_prefix=False, unk=2),
}


def read_vocabulary(metadata: Metadata) -> Vocabulary:
    """Read the vocabulary. Raises ModelError for a missing key, an unknown kind or pre-tokenizer, or a wrong length."""
    name = text_of(metadata, "tokenizer.ggml.model")
    if name not in KINDS:
        raise ModelError(f"unknown tokenizer model {shown(name)} (tokenizer.ggml.model); known: {', '.join(KINDS)}")
    kind, pre, tokens = KINDS[name], text_of(metadata, "tokenizer.ggml.pre", "default"), _tokens(metadata)
    n, ids = len(tokens), dict(zip(tokens, range(len(tokens)), strict=True))
    if len(ids) != n:
        raise ModelError(f"tokenizer.ggml.tokens: {n - len(ids)} tokens occur twice")
    is_bert = name == "bert"
    bos_id = token_id_of(metadata, "bos", n, ids.get("[CLS]") if is_bert else kind.bos)
    eos_id = token_id_of(metadata, "eos", n, kind.eos)
    sep_id = token_id_of(metadata, "seperator", n, ids.get("[SEP]") if is_bert else None)  # so GGUF spells it
    last_id = sep_id if is_bert else eos_id
    add_bos = pretokenizer(pre).add_bos if kind.add_bos is None else kind.add_bos
    flags: Metadata = {} if kind.wraps else metadata
    by_text = _fill_ids(metadata, ids)
    ends = _ends(ids)
    named_ends = (eos_id if e == "eos" else token_id_of(metadata, e, n, by_text.get(e)) for e in END_NAMES)
    return Vocabulary(
        kind=name,
        pre=pre,
        tokens=tokens,
        ids=ids,
        types=_as_control(token_types(metadata, n), (*ends, *by_text.values())),
        merges=texts_of(metadata, "tokenizer.ggml.merges", MAX_MERGES) if kind.has_merges else (),
        scores=numbers_of(metadata, "scores", np.dtype(np.float32), n, 0.0) if kind.has_scores else NO_SCORES,
        bos_id=bos_id,
        eos_id=last_id,
        end_ids=frozenset(ends).union(i for i in named_ends if i is not None),
        add_bos=flag_of({} if kind.always_bos else flags, "add_bos_token", add_bos, bos_id),
        add_eos=flag_of(flags, "add_eos_token", kind.add_eos or kind.wraps, last_id),
        add_space_prefix=kind.add_space_prefix is not None
        and truth_of(metadata, "add_space_prefix", kind.add_space_prefix),
        pair=_pair(metadata, kind, add_bos, bos_id, eos_id, sep_id),
        unk_id=None if kind.unk is None else token_id_of(metadata, "unknown", n, kind.unk if kind.unk < n else None),
        charsmap=bytes_of(metadata, "precompiled_charsmap"),
        merges_spaces=truth_of(metadata, "remove_extra_whitespaces", False),
    )


def _ends(ids: Mapping[str, int]) -> list[int]:
    """The tokens that end an answer by their texts."""
    texts = {text for text in END_TEXTS if text in ids}
    if any(all(text in ids for text in both) for both in _OTHER_ENDS):
        texts -= {"<|end|>"}
    if "<|tool_response>" in ids:  # of Gemma 4, which has a normal token of this text
        texts -= {"</s>"}
    return [ids[text] for text in END_TEXTS if text in texts]


def _pair(
    metadata: Metadata, kind: Kind, add_bos: bool, bos_id: int | None, eos_id: int | None, sep_id: int | None
) -> tuple[tuple[int, ...], ...]:
    """The tokens before, between and after two texts, as llama.cpp's server has them: BOS a EOS SEP b EOS, as added."""
    last_id = sep_id if eos_id is None else eos_id
    before = (bos_id,) if truth_of(metadata, "add_bos_token", add_bos) else ()
    after = (last_id,) if truth_of(metadata, "add_eos_token", kind.add_eos) else ()
    between = (sep_id,) if truth_of(metadata, "add_sep_token", kind.add_sep) else ()
    return tuple(tuple(i for i in part if i is not None) for part in (before, after + between, after))


def as_dict(ids: Mapping[str, int]) -> dict[str, int]:
    """The ids as a dict, as the tokenizers library requires."""
    items = getattr(ids, "as_dict", ids)  # a StringLookup has it
    return items if isinstance(items, dict) else dict(items)


def vocabulary_size(metadata: Metadata) -> int:
    """The number of tokens. Raises ModelError if there are none, or more than MAX_TOKENS."""
    n_tokens = len(array_of(metadata, "tokenizer.ggml.tokens"))
    if not 1 <= n_tokens <= MAX_TOKENS:
        raise ModelError(f"tokenizer.ggml.tokens has {n_tokens} tokens; wanted 1 to {MAX_TOKENS}")
    return n_tokens


NO_SCORES = np.zeros(0, np.float32)


def token_types(metadata: Metadata, n_tokens: int) -> NDArray[np.int32]:
    """The type of each token, a new int32 [n_tokens]. Raises ModelError for a wrong type or too few entries."""
    return numbers_of(metadata, "token_type", np.dtype(np.int32), n_tokens, TokenType.NORMAL)


def _tokens(metadata: Metadata) -> list[str]:
    tokens = texts_of(metadata, "tokenizer.ggml.tokens", MAX_TOKENS)
    if not tokens:
        raise ModelError("tokenizer.ggml.tokens: wanted at least one token")
    return tokens if all(tokens) else [t or f"[EMPTY_{i}]" for i, t in enumerate(tokens)]


def _fill_ids(metadata: Metadata, ids: Mapping[str, int]) -> dict[str, int]:
    """The ids of fill-in-the-middle tokens that are identified only by their text, by name."""
    unnamed = (name for name in FILL_TEXTS if f"tokenizer.ggml.{name}_token_id" not in metadata)
    pairs = ((name, next((ids[text] for text in FILL_TEXTS[name] if text in ids), None)) for name in unnamed)
    return {name: token_id for name, token_id in pairs if token_id is not None}


def fill_tokens(metadata: Metadata, ids: Mapping[str, int]) -> dict[str, int]:
    """The ids of the fill-in-the-middle tokens that a file has, by the names of FILL_TEXTS."""
    by_text = _fill_ids(metadata, ids)
    found = ((name, token_id_of(metadata, name, len(ids), by_text.get(name))) for name in FILL_TEXTS)
    return {name: token_id for name, token_id in found if token_id is not None}


def _as_control(types: NDArray[np.int32], token_ids: Iterable[int]) -> NDArray[np.int32]:
    types = types.copy()
    types[list(token_ids)] = TokenType.CONTROL
    return types
