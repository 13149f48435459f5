"""The tokenizer's metadata of a GGUF file, from tokenizer.json or tokenizer.model and the files beside them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from camshaft.errors import FormatError, ModelError
from camshaft.formats.mapped import path_for_messages, shown, shown_value
from camshaft.formats.safetensors_folder import read_json
from camshaft.models.convert.families.encoder_tokens import (
    encoder_ids,
    post_processors,
    rows_of,
    unigrams,
    word_pieces,
)
from camshaft.models.convert.hub_config import HubConfig
from camshaft.models.convert.vocabularies.pretokenizer_id import pretokenizer_id
from camshaft.models.convert.vocabularies.sentencepiece_model import read_sentencepiece
from camshaft.text.vocabulary import MAX_TOKENS, TokenType

# tokenizer.ggml.NAME_token_id -> the name in tokenizer_config.json and config.json
_SPECIAL = {"bos": "bos", "eos": "eos", "unknown": "unk", "seperator": "sep", "padding": "pad", "mask": "mask"}
_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_ADDED_SCORE = -1000.0
_PLACEHOLDER_SCORE = -10000.0


def tokenizer_keys(folder: Path, config: HubConfig, *, encoder: bool = False) -> dict[str, Any]:
    """Values by key: model, pre, tokens, types, merges or scores, special ids, flags, chat template.

    Raises FormatError or ModelError for a folder without a tokenizer, or one of a kind that GGUF files of camshaft lack."""
    settings = _json_if_there(folder / "tokenizer_config.json")
    tokenizer = _json_if_there(folder / "tokenizer.json")
    if (folder / "tokenizer.model").is_file():
        keys = _from_sentencepiece(folder, tokenizer, settings, config)
    elif tokenizer:
        keys = _from_json(folder / "tokenizer.json", tokenizer, config)
    else:
        raise FormatError(f"{path_for_messages(folder)}: has no tokenizer.json or tokenizer.model")
    keys |= _special_ids(keys["tokens"], settings, config)
    if encoder:
        keys |= encoder_ids(keys, config, tokenizer)
    keys |= _flags(tokenizer, settings, keys)
    template = _template(folder, settings)
    prefixed = {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    return prefixed | ({"tokenizer.chat_template": template} if template is not None else {})


def _json_if_there(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _added(tokenizer: Mapping[str, Any], settings: Mapping[str, Any]) -> Iterable[tuple[int, str, bool]]:
    """(id, text, whether special) of tokens that were added to a vocabulary."""
    rows: list[tuple[Any, dict[str, Any]]] = [(row.get("id"), row) for row in rows_of(tokenizer, "added_tokens")]
    more = settings.get("added_tokens_decoder")
    rows += [(key, row) for key, row in (more.items() if isinstance(more, dict) else ()) if isinstance(row, dict)]
    for number, row in rows:
        text = row.get("content")
        if not isinstance(text, str) or not str(number).isdecimal() or int(number) >= MAX_TOKENS:
            raise FormatError(f"the added token {shown_value(row)} has no id below {MAX_TOKENS} and text")
        yield int(number), text, row.get("special") is True


def _table(
    config: HubConfig, given: Mapping[int, str], added: Iterable[tuple[int, str, bool]]
) -> tuple[list[str], np.ndarray[Any, Any]]:
    """Tokens by id with their types; ids without a token are unused ones, as many as the embedding has rows."""
    added = list(added)
    n = max(config.size("vocab_size", 1), *(i + 1 for i in given), *(i + 1 for i, _, _ in added))
    if n > MAX_TOKENS:
        raise ModelError(f"{config.path}: {n} tokens; wanted at most {MAX_TOKENS}")
    tokens = [given.get(i, f"[PAD{i}]") for i in range(n)]
    types = np.full(n, TokenType.UNUSED, np.int32)
    types[list(given)] = TokenType.NORMAL
    for i, text, special in added:
        tokens[i], types[i] = text, TokenType.CONTROL if special else TokenType.USER_DEFINED
    return tokens, types


def _from_json(path: Path, tokenizer: Mapping[str, Any], config: HubConfig) -> dict[str, Any]:
    model, kind = tokenizer.get("model"), kind_of(tokenizer)
    if not isinstance(model, dict) or kind not in ("BPE", "WordPiece", "Unigram"):
        raise ModelError(
            f"{path_for_messages(path)}: its model is {shown_value(kind)}; wanted BPE, WordPiece or Unigram"
        )
    if kind != "BPE":
        return _of_encoder(path, tokenizer, config)
    vocabulary, merges = model.get("vocab"), model.get("merges")
    if not isinstance(vocabulary, dict) or not isinstance(merges, list):
        raise FormatError(f"{path_for_messages(path)}: has no vocabulary and merges")
    numbers = {i: text for text, i in vocabulary.items() if isinstance(i, int) and 0 <= i < MAX_TOKENS}
    tokens, types = _table(config, numbers, _added(tokenizer, {}))
    pairs = [_pair(merge, path) for merge in merges]
    if model.get("byte_fallback"):
        return {"model": "llama", "pre": "default", "tokens": tokens, **_ranked(tokens, types, pairs)}
    try:
        pre = pretokenizer_id(Tokenizer.from_file(str(path)))
    except ModelError:
        raise
    except Exception as error:  # the library raises a bare Exception for a damaged file
        raise FormatError(f"{path_for_messages(path)}: {shown(str(error), 120)}") from None
    return {"model": "gpt2", "pre": pre, "tokens": tokens, "token_type": types, "merges": [" ".join(p) for p in pairs]}


def _of_encoder(path: Path, tokenizer: Mapping[str, Any], config: HubConfig) -> dict[str, Any]:
    """Keys of word pieces, {text: id}, or of unigrams, [[text, score]]."""
    model = tokenizer["model"]
    listed = model.get("vocab")
    rows = enumerate(listed) if isinstance(listed, list) else ()
    pairs = (
        listed.items()
        if isinstance(listed, dict)
        else ((row[0], i) for i, row in rows if isinstance(row, list) and row)
    )
    given = {i: str(text) for text, i in pairs if isinstance(i, int) and 0 <= i < MAX_TOKENS}
    if not given:
        raise FormatError(f"{path_for_messages(path)}: has no vocabulary")
    tokens, types = _table(config, given, _added(tokenizer, {}))
    return word_pieces(tokens, types) if model["type"] == "WordPiece" else unigrams(path, tokenizer, tokens, types)


def kind_of(tokenizer: Mapping[str, Any]) -> Any:
    """The kind of a tokenizer.json's model."""
    model = tokenizer.get("model")
    return model.get("type") if isinstance(model, dict) else None


def _pair(merge: Any, path: Path) -> tuple[str, str]:
    parts = merge.split(" ") if isinstance(merge, str) else merge
    if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) for part in parts):
        raise FormatError(f"{path_for_messages(path)}: has the merge {shown_value(merge)}; wanted two tokens")
    return parts[0], parts[1]


def _ranked(tokens: list[str], types: np.ndarray[Any, Any], pairs: list[tuple[str, str]]) -> dict[str, Any]:
    """Scores of a SentencePiece vocabulary that is given as merges: the earlier a token is merged, the higher its score."""
    ranks: dict[str, int] = {}
    for rank, (first, second) in enumerate(pairs):
        ranks.setdefault(first + second, rank)
    normal = types == TokenType.NORMAL
    scores = [-float(ranks.get(token, len(pairs))) if normal[i] else _ADDED_SCORE for i, token in enumerate(tokens)]
    types[[i for i, token in enumerate(tokens) if normal[i] and _BYTE.fullmatch(token)]] = TokenType.BYTE
    types[[i for i, token in enumerate(tokens) if token == "<unk>"]] = TokenType.UNKNOWN
    return {"scores": np.array(scores, np.float32), "token_type": types}


def _from_sentencepiece(
    folder: Path, tokenizer: Mapping[str, Any], settings: Mapping[str, Any], config: HubConfig
) -> dict[str, Any]:
    model = read_sentencepiece(folder / "tokenizer.model")
    given = {i: piece[0] for i, piece in enumerate(model.pieces)}
    listed = [
        (i, text, False) for text, i in _json_if_there(folder / "added_tokens.json").items() if isinstance(i, int)
    ]
    added = (*listed, *_added(tokenizer, settings))
    new = [row for row in added if row[0] >= len(given) or given[row[0]] != row[1]]
    tokens, types = _table(config, given, new)
    scores = np.full(len(tokens), _PLACEHOLDER_SCORE, np.float32)
    scores[: len(given)] = [score for _, score, _ in model.pieces]
    changed = {i for i, _, _ in new}
    for i, (_, _, kind) in enumerate(model.pieces):
        types[i] = types[i] if i in changed else kind
    scores[list(changed)] = _ADDED_SCORE
    keys = {"model": "llama", "pre": "default", "tokens": tokens, "scores": scores, "token_type": types}
    return keys | {"add_space_prefix": model.add_dummy_prefix}


def _special_ids(tokens: list[str], settings: Mapping[str, Any], config: HubConfig) -> dict[str, Any]:
    """Ids of special tokens: by their texts in tokenizer_config.json, or else by config.json."""
    keys: dict[str, Any] = {}
    for name, theirs in _SPECIAL.items():
        text = settings.get(f"{theirs}_token")
        text = text.get("content") if isinstance(text, dict) else text
        number = config.values.get(f"{theirs}_token_id")
        number = number[0] if isinstance(number, list) and number else number
        if isinstance(text, str) and text in tokens:
            number = tokens.index(text)
        if isinstance(number, int) and not isinstance(number, bool) and 0 <= number < len(tokens):
            keys[f"{name}_token_id"] = number
    return keys


def _flags(tokenizer: Mapping[str, Any], settings: Mapping[str, Any], keys: Mapping[str, Any]) -> dict[str, Any]:
    """Whether texts begin with BOS and end with EOS: as tokenizer_config.json says, or as tokenizer.json's template shows."""
    flags = {}
    first, last = _around(tokenizer)
    for name, around in (("bos", first), ("eos", last)):
        number = keys.get(f"{name}_token_id")
        flag = settings.get(f"add_{name}_token")
        if not isinstance(flag, bool) and around is not None and number is not None:
            flag = around == keys["tokens"][number]
        if isinstance(flag, bool) and (number is not None or not flag):
            flags[f"add_{name}_token"] = flag
    return flags


def _around(tokenizer: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The special tokens that a template puts before and after a text; '' where there is a template without them."""
    rows = post_processors(tokenizer)
    template = next((row for row in rows if row.get("type") == "TemplateProcessing"), None)
    if template is None:
        return None, None
    parts = (row.get("SpecialToken") for row in rows_of(template, "single"))
    names = [part.get("id", "") if isinstance(part, dict) else None for part in parts]
    text = next((i for i, name in enumerate(names) if name is None), 0)
    return (names[0] if text else "") or "", (names[-1] if text < len(names) - 1 else "") or ""


def _template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    template = path.read_text("utf-8") if path.is_file() else settings.get("chat_template")
    if isinstance(template, list):  # of several templates with names
        template = {row.get("name"): row.get("template") for row in template if isinstance(row, dict)}.get("default")
    return template if isinstance(template, str) else None
