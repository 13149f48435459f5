"""Describes a model file: metadata, tensors, totals by format, tokenizer, chat template, family."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from camshaft.errors import FormatError
from camshaft.formats.gguf.file import GGUFFile, open_gguf
from camshaft.formats.gguf.values import ARRAY, NUMBERS, STRING, StringArray
from camshaft.formats.mapped import path_for_messages
from camshaft.formats.safetensors import open_safetensors
from camshaft.formats.safetensors_folder import SafetensorsFolder, read_json
from camshaft.formats.tensor import FileTensor
from camshaft.models.families import FAMILIES, OTHERS

N_SHOWN = 8  # items of a long array
TEMPLATE_KEY = "tokenizer.chat_template"


@dataclass(frozen=True)
class Row:
    """A metadata value: its type, the number of items of an array (else None), and the value, or an array's first items."""

    key: str
    type: str
    n_items: int | None
    value: Any


@dataclass(frozen=True)
class TensorRow:
    """A tensor: its shape is row-major, its format one of files."""

    name: str
    shape: tuple[int, ...]
    format: str
    nbytes: int


@dataclass(frozen=True)
class FormatTotal:
    """All tensors of one format."""

    format: str
    n_tensors: int
    n_elements: int
    nbytes: int


@dataclass(frozen=True)
class TokenizerFacts:
    """A tokenizer's kind, its number of tokens, and its special tokens as (name, id, text)."""

    kind: str
    pre: str | None
    n_tokens: int | None
    special: tuple[tuple[str, int, str | None], ...]


@dataclass(frozen=True)
class Contents:
    """A file or folder. `kind`: model, adapter, imatrix, mmproj, ... as the file says. `family` is its architecture, and
    `runs`: whether camshaft runs it."""

    path: str
    kind: str
    container: str
    nbytes: int
    family: str | None
    runs: bool
    n_elements: int
    metadata: tuple[Row, ...]
    tensors: tuple[TensorRow, ...]
    totals: tuple[FormatTotal, ...]
    tokenizer: TokenizerFacts | None
    chat_template: str | None


def contents(path: str | os.PathLike[str]) -> Contents:
    """Read what is in a GGUF file, a safetensors file, or a folder of the hub's layout.

    Raises FormatError for another kind of file or a damaged one, MissingExtraError for safetensors without its library."""
    where = Path(path)
    if where.is_dir():
        return _of_folder(where)
    if where.suffix == ".safetensors":
        with open_safetensors(where) as file:
            rows = tuple(Row(key, "string", None, value) for key, value in file.metadata.items())
            return _contents(
                file.path, "tensors", "safetensors", where.stat().st_size, None, rows, file.tensors.values()
            )
    with open_gguf(where) as gguf:
        return _of_gguf(gguf)


def _contents(
    path: str,
    kind: str,
    container: str,
    nbytes: int,
    family: str | None,
    metadata: Iterable[Row],
    tensors: Iterable[FileTensor],
    tokenizer: TokenizerFacts | None = None,
    chat_template: str | None = None,
) -> Contents:
    rows = tuple(TensorRow(t.name, tuple(t.shape), t.format.name, t.nbytes) for t in tensors)
    totals = tuple(_total(name, [r for r in rows if r.format == name]) for name in sorted({r.format for r in rows}))
    n_elements = sum(total.n_elements for total in totals)
    runs = kind == "model" and (family in FAMILIES or family in OTHERS)
    return Contents(
        path, kind, container, nbytes, family, runs, n_elements, tuple(metadata), rows, totals, tokenizer, chat_template
    )


def _total(name: str, rows: list[TensorRow]) -> FormatTotal:
    return FormatTotal(name, len(rows), sum(math.prod(r.shape) for r in rows), sum(r.nbytes for r in rows))


def _of_gguf(file: GGUFFile) -> Contents:
    get = file.metadata.get
    kind, family, template = get("general.type"), get("general.architecture"), get(TEMPLATE_KEY)
    if kind is None and family == "clip":
        kind = "mmproj"
    return _contents(
        file.path,
        kind if isinstance(kind, str) else "model",
        f"GGUF version {file.version}" + (f", {len(file.parts)} parts" if file.parts else ""),
        file.nbytes,
        family if isinstance(family, str) else None,
        (_row(file, key) for key in file.metadata if key != TEMPLATE_KEY),
        file.tensors.values(),
        _tokenizer(file.metadata),
        template if isinstance(template, str) else None,
    )


def _row(file: GGUFFile, key: str) -> Row:
    value, type_id = file.metadata[key], file.metadata.type_id(key)
    if type_id != ARRAY:
        return Row(key, "string" if type_id == STRING else _number_name(NUMBERS[type_id]), None, _plain(value))
    assert isinstance(value, (StringArray, np.ndarray))
    of = "string" if isinstance(value, StringArray) else _number_name(value.dtype)
    return Row(key, f"array of {of}", len(value), [_plain(item) for item in value[:N_SHOWN]])


def _number_name(dtype: np.dtype[Any]) -> str:
    return "bool" if dtype.kind == "b" else dtype.name


def _plain(value: Any) -> Any:
    """A value as JSON has it: numbers that are not finite become texts."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    value = value.item() if isinstance(value, np.generic) else value
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _tokenizer(metadata: Mapping[str, Any]) -> TokenizerFacts | None:
    kind, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if not isinstance(kind, str):
        return None
    tokens = metadata.get("tokenizer.ggml.tokens")
    texts = tokens if isinstance(tokens, StringArray) else None
    special = []
    for key in metadata:
        name = key.removeprefix("tokenizer.ggml.").removesuffix("_token_id")
        number = metadata[key]
        if key == f"tokenizer.ggml.{name}_token_id" and isinstance(number, int):
            special.append((name, number, texts[number] if texts and 0 <= number < len(texts) else None))
    n_tokens = len(texts) if texts is not None else None
    return TokenizerFacts(kind, pre if isinstance(pre, str) else None, n_tokens, tuple(special))


def _of_folder(folder: Path) -> Contents:
    config = next((name for name in ("config.json", "adapter_config.json") if (folder / name).is_file()), None)
    if config is None:
        raise FormatError(f"{path_for_messages(folder)}: has no config.json or adapter_config.json")
    values = read_json(folder / config)
    rows = [Row(key, type(value).__name__, None, _plain(value)) for key, value in values.items()]
    kind, family = ("adapter" if config.startswith("adapter") else "model"), values.get("model_type")
    tokenizer, template = _hub_tokenizer(folder)
    with SafetensorsFolder(folder) as file:
        n_files = len(file.files)
        container = f"safetensors, {n_files} {'file' if n_files == 1 else 'files'}"
        family = family if isinstance(family, str) else None
        return _contents(
            file.path, kind, container, file.nbytes, family, rows, file.tensors.values(), tokenizer, template
        )


def _hub_tokenizer(folder: Path) -> tuple[TokenizerFacts | None, str | None]:
    """Returns the tokenizer's description and chat template from tokenizer.json and the files beside it."""
    settings = read_json(folder / "tokenizer_config.json") if (folder / "tokenizer_config.json").is_file() else {}
    template = settings.get("chat_template")
    if isinstance(template, list):  # of several templates with names
        named = {row.get("name"): row.get("template") for row in template if isinstance(row, dict)}
        template = named.get("default")
    with suppress(FileNotFoundError):
        template = (folder / "chat_template.jinja").read_text("utf-8", "replace")
    facts = None
    if (folder / "tokenizer.json").is_file():
        model = read_json(folder / "tokenizer.json").get("model")
        model = model if isinstance(model, dict) else {}
        vocabulary = model.get("vocab")
        n_tokens = len(vocabulary) if isinstance(vocabulary, (dict, list)) else None
        facts = TokenizerFacts(str(model.get("type", "unknown")), None, n_tokens, ())
    elif (folder / "tokenizer.model").is_file():
        facts = TokenizerFacts("SentencePiece", None, None, ())
    return facts, template if isinstance(template, str) else None
