"""Importance matrices: the sums of squares of each weight's inputs, in llama.cpp's GGUF files (general.type = imatrix)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from camshaft.errors import FormatError
from camshaft.formats.bits import Floats
from camshaft.formats.blocks import BLOCK_FORMATS
from camshaft.formats.gguf.file import open_gguf
from camshaft.formats.gguf.values import StringArray
from camshaft.formats.gguf.write import NewTensor, encoded_value, write_gguf
from camshaft.formats.mapped import shown, shown_value
from camshaft.formats.tensor import FileTensor

_SUMS, _COUNTS = ".in_sum2", ".counts"
_KEYS = ("imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size")


@dataclass(frozen=True)
class ImportanceMatrix:
    """By name of a weight: `sums` of squares of its inputs, float32 [matrices, k], and `counts` of the tokens that each of the
    matrices saw, float32 [matrices]. There is one matrix, or one for each expert."""

    sums: Mapping[str, Floats]
    counts: Mapping[str, Floats]
    datasets: tuple[str, ...] = ()
    chunk_count: int = 0
    chunk_size: int = 0

    def importance(self, name: str) -> Floats | None:
        """The means of squares, float32 [matrices, k]; 1 for an expert that saw no token. None for a weight that is not here."""
        if name not in self.sums:
            return None
        counts = self.counts[name][:, None]
        seen = counts > 0
        means: Floats = np.where(seen, self.sums[name] / np.where(seen, counts, 1), 1).astype(np.float32)
        return means


def write_imatrix(path: str | os.PathLike[str], matrix: ImportanceMatrix) -> None:
    """Write the file; it appears once it is complete. Raises StoreError if it cannot be written."""
    values = {
        "general.type": "imatrix",
        "imatrix.datasets": list(matrix.datasets),
        "imatrix.chunk_count": matrix.chunk_count,
        "imatrix.chunk_size": matrix.chunk_size,
    }
    tensors = []
    for name in sorted(matrix.sums):
        for end, array in ((_SUMS, matrix.sums[name]), (_COUNTS, matrix.counts[name][:, None])):
            data = np.ascontiguousarray(array, np.float32).reshape(-1).view(np.uint8)
            tensors.append(NewTensor(name + end, array.shape, BLOCK_FORMATS["F32"], lambda data=data: [data]))  # type: ignore[misc]
    write_gguf(Path(path), {key: encoded_value(value) for key, value in values.items()}, tensors)


def read_imatrix(path: str | os.PathLike[str]) -> ImportanceMatrix:
    """Read such a file. Raises FormatError for another kind of file, and for sums or counts that cannot be."""
    with open_gguf(path) as file:
        if file.metadata.get("general.type") != "imatrix":
            kind = file.metadata.get("general.type", "a model")
            raise FormatError(f"{file.path}: is of the type {shown_value(kind)}; wanted an importance matrix (imatrix)")
        sums, counts = {}, {}
        for name, tensor in file.tensors.items():
            if name.endswith(_SUMS):
                weight = name.removesuffix(_SUMS)
                pair = tensor, file.tensors.get(weight + _COUNTS)
                sums[weight], counts[weight] = _checked(file.path, weight, *pair)
        if not sums:
            raise FormatError(f"{file.path}: has no tensor NAME{_SUMS}; wanted sums of squares")
        datasets, *numbers = (file.metadata.get(key) for key in _KEYS)
        texts = tuple(datasets) if isinstance(datasets, StringArray) else ()
        return ImportanceMatrix(sums, counts, texts, *(n if isinstance(n, int) else 0 for n in numbers))


def _checked(path: str, name: str, sums: FileTensor, counts: FileTensor | None) -> tuple[Floats, Floats]:
    if counts is None or {sums.format.name, counts.format.name} != {"F32"}:
        raise FormatError(f"{path}: {shown(name)} lacks F32 tensors of sums and counts")
    n = counts.dequantize().reshape(-1)
    values = sums.dequantize().reshape(-1)
    if values.size % n.size:
        raise FormatError(f"{path}: {shown(name)} has {values.size} sums and {n.size} counts")
    if not (np.isfinite(values).all() and np.isfinite(n).all() and (values >= 0).all() and (n >= 0).all()):
        raise FormatError(f"{path}: {shown(name)} has a sum or count that is not a finite number of 0 or more")
    return values.reshape(n.size, -1), n
