"""Chooses the block format of each tensor of a model: by file type, and by patterns of names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from camshaft.errors import FormatError
from camshaft.formats.blocks import BLOCK_FORMATS, BlockFormat
from camshaft.formats.gguf.file import GGUFFile
from camshaft.formats.mapped import shown
from camshaft.models.files.quantization_mix import Mix, TensorPosition, format_for, is_quantized, part_of


class ModelFile(Protocol):
    """A GGUF file, or the description of one that will be written."""

    @property
    def tensors(self) -> Mapping[str, Any]:
        """Tensors with a shape and a format, by name."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Values by key."""


def formats_of(
    file: ModelFile, mix: Mix, *, pure: bool = False, has_importance: bool = False
) -> dict[str, BlockFormat]:
    """Returns the format of each tensor of a file in a mix."""
    position = _position(file, has_importance)
    tied = "output.weight" not in file.tensors
    formats = {}
    for name, tensor in file.tensors.items():
        if not is_quantized(name, tensor.shape):
            formats[name] = tensor.format
            continue
        is_output = name == "output.weight" or (tied and name == "token_embd.weight")
        where = position(part_of(name)[1])
        formats[name] = format_for(mix, name, tensor.shape[-1], where, is_output=is_output, pure=pure)
    return formats


def given_formats(file: GGUFFile, given: Sequence[tuple[str, str]]) -> dict[str, BlockFormat]:
    """Returns the formats of matrices by name, for (pattern, format) pairs. FormatError for an invalid pattern or format."""
    made: dict[str, BlockFormat] = {}
    for pattern, name in given:
        row = BLOCK_FORMATS.get(name.upper())
        if row is None or row.encode is None:
            known = ", ".join(n for n, form in BLOCK_FORMATS.items() if form.encode)
            raise FormatError(f"no format {shown(name)} to write {shown(pattern)} in; wanted one of {known}")
        try:
            expression = re.compile(pattern)
        except re.error as error:
            raise FormatError(f"{shown(pattern)} is not a regular expression: {error}") from None
        found = [t for n, t in file.tensors.items() if is_quantized(n, t.shape) and expression.search(n)]
        if not found:
            raise FormatError(f"{file.path}: no matrix has a name like {shown(pattern)}")
        for tensor in found:
            if tensor.shape[-1] % row.block_size:
                what = f"{shown(tensor.name)} has rows of {tensor.shape[-1]}"
                raise FormatError(f"{file.path}: {what}; {row.name} wants a multiple of {row.block_size}")
            made.setdefault(tensor.name, row)
    return made


def _position(file: ModelFile, has_importance: bool) -> Callable[[int], TensorPosition]:
    def number(key: str, otherwise: int) -> int:
        value: Any = file.metadata.get(f"{file.metadata.get('general.architecture', '')}.{key}", otherwise)
        values = np.asarray(value if isinstance(value, (int, np.ndarray)) else otherwise)
        return int(values.max()) if values.size and values.dtype.kind in "iu" else otherwise

    heads = number("attention.head_count", 1)
    per_head = heads // max(1, number("attention.head_count_kv", heads))
    layers = {int(m[1]) for name in file.tensors if (m := re.match(r"blk\.([0-9]{1,9})\.", name))}
    n_layers, n_experts = number("block_count", len(layers)), number("expert_count", 0)
    return lambda layer: TensorPosition(layer, n_layers, per_head, n_experts, has_importance)
