"""The tokenizers of encoders: WordPiece (BERT) and unigrams (XLM-R, T5), out of tokenizer.json."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from camshaft.errors import FormatError
from camshaft.formats.mapped import path_for_messages, shown_value
from camshaft.models.convert.hub_config import HubConfig
from camshaft.text.vocabulary import TokenType

_INSIDE, _WORD = "##", "▁"
_MOST_TYPES = 1 << 16


def word_pieces(tokens: list[str], types: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Keys of a WordPiece vocabulary: pieces that begin a word have a mark, and no longer those inside."""
    control = types == TokenType.CONTROL
    spelled = [text if control[i] else _spelled(text) for i, text in enumerate(tokens)]
    return {"model": "bert", "tokens": spelled, "token_type": types}


def _spelled(text: str) -> str:
    return text[len(_INSIDE) :] if text.startswith(_INSIDE) else _WORD + text


def unigrams(
    path: Path, tokenizer: Mapping[str, Any], tokens: list[str], types: np.ndarray[Any, Any]
) -> dict[str, Any]:
    """Keys of a unigram vocabulary. Raises FormatError for one whose scores or character map are damaged."""
    rows = tokenizer["model"].get("vocab")
    try:
        scores = np.zeros(len(tokens), np.float32)
        scores[: len(rows)] = [float(row[1]) for row in rows]
    except (TypeError, ValueError, LookupError):
        raise FormatError(f"{path_for_messages(path)}: its vocabulary is not a list of texts with scores") from None
    unknown = tokenizer["model"].get("unk_id")
    if isinstance(unknown, int) and 0 <= unknown < len(tokens):
        types[unknown] = TokenType.UNKNOWN
    keys = {"model": "t5", "tokens": tokens, "token_type": types, "scores": scores, "add_space_prefix": True}
    found = next(
        (row.get("precompiled_charsmap") for row in _normalizers(tokenizer) if "precompiled_charsmap" in row), ""
    )
    try:
        charsmap = base64.b64decode(str(found or ""), validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise FormatError(f"{path_for_messages(path)}: its precompiled_charsmap is not base64") from None
    keys["remove_extra_whitespaces"] = True
    return keys | ({"precompiled_charsmap": np.frombuffer(charsmap, np.uint8)} if charsmap else {})


def _normalizers(tokenizer: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    given = tokenizer.get("normalizer")
    if isinstance(given, dict):
        yield given
        yield from rows_of(given, "normalizers")


def rows_of(given: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """The objects in a list of that name, none if it is missing. Raises FormatError for anything that is not a list."""
    value = given.get(name)
    if value is not None and not isinstance(value, list):
        raise FormatError(f"tokenizer.json: {name} is {shown_value(value)}; wanted a list")
    return [row for row in value or [] if isinstance(row, dict)]


def post_processors(tokenizer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the post-processors, which add special tokens."""
    post = tokenizer.get("post_processor")
    return [post, *rows_of(post, "processors")] if isinstance(post, dict) else []


def pair_separators(tokenizer: Mapping[str, Any]) -> bool | None:
    """Whether two separators stand between the texts of a pair, as tokenizer.json says; None where it does not."""
    for row in post_processors(tokenizer):
        kind = row.get("type")
        if kind in ("BertProcessing", "RobertaProcessing"):
            return bool(kind == "RobertaProcessing")
        if kind == "TemplateProcessing" and isinstance(row.get("pair"), list):
            names = ["Sequence" if "Sequence" in part else "" for part in row["pair"] if isinstance(part, dict)]
            places = [i for i, name in enumerate(names) if name]
            return len(places) > 1 and places[1] - places[0] > 2
    return None


def encoder_ids(keys: Mapping[str, Any], config: HubConfig, tokenizer: Mapping[str, Any]) -> dict[str, Any]:
    """A text begins with the class token and ends with the separator; how many kinds of tokens there are."""
    found: dict[str, Any] = {}
    for name, texts in (("bos", ("[CLS]", "<s>")), ("seperator", ("[SEP]", "</s>"))):
        number = next((keys["tokens"].index(text) for text in texts if text in keys["tokens"]), None)
        if number is not None:
            found[f"{name}_token_id"] = number
    if "seperator_token_id" in found and keys["model"] != "bert":
        found["eos_token_id"] = found["seperator_token_id"]
    separators = pair_separators(tokenizer)
    if separators is not None:
        found["add_sep_token"] = separators
    n_types = 0 if config.architecture.startswith("ModernBert") else int(config.number("type_vocab_size", 0))
    return found | ({"token_type_count": n_types} if 0 < n_types < _MOST_TYPES else {})
