"""quantize(source, out, type): convert a GGUF model to other block formats."""

from __future__ import annotations

import math
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from camshaft.errors import FormatError, StoreError
from camshaft.formats.bits import Bytes, Floats
from camshaft.formats.blocks import BlockFormat
from camshaft.formats.gguf.file import GGUFFile, GGUFTensor, open_gguf
from camshaft.formats.gguf.part_names import part_paths
from camshaft.formats.gguf.write import NewTensor, Raw, text, unsigned, values_of, write_gguf
from camshaft.formats.importance import quantize_rows, uses_importance
from camshaft.formats.mapped import shown
from camshaft.models.files.chosen_formats import formats_of, given_formats
from camshaft.models.files.imatrix import ImportanceMatrix
from camshaft.models.files.quantization_mix import mix_named
from camshaft.process import thread_count
from camshaft.store.files import remove_unfinished

_PART_ELEMENTS = 1 << 20  # per task: enough work to share among threads without gigabytes of floats at once
_TASKS_AHEAD = 16
_QUANTIZATION_VERSION = 2
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class QuantizationResult:
    """The file written, its size before and after in bytes, and the number of tensors per format."""

    path: Path
    nbytes_before: int
    nbytes: int
    n_tensors: Mapping[str, int]


def quantize(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    file_type: str,
    *,
    pure: bool = False,
    importance: ImportanceMatrix | None = None,
    tensor_types: Sequence[tuple[str, str]] = (),
    force: bool = False,
    threads: int | None = None,
    progress: Progress = lambda done, total: None,
) -> QuantizationResult:
    """Write a copy of the model in the formats of `file_type` (a name of MIXES). Metadata, vocabulary and vectors are copied.

    Values are decoded to float32 and encoded again. `pure`: one format for every matrix, including the output; `importance`:
    errors count more in the columns whose inputs are large; `tensor_types`: (regular expression, format) pairs, of which the
    first whose expression is found in a matrix's name says its format; `force`: overwrite `out`; `progress(done, total)` counts
    elements. The file appears only once it is complete; what killed processes
    left unfinished in its folder is removed first. Raises FormatError for an unknown type, an unreadable source, an importance
    matrix of another model, a pattern that no matrix has, or `out` equal to the source; StoreError if `out` cannot be written.
    """
    mix, target = mix_named(file_type), Path(out)
    with open_gguf(source) as file:
        check_target(Path(source), target, force)
        remove_unfinished(target.parent)
        formats = formats_of(file, mix, pure=pure, has_importance=importance is not None)
        formats |= given_formats(file, tensor_types)
        if importance is not None:
            _check_importance(file, importance)
        values = values_of(file.metadata) | {"general.file_type": unsigned(mix.file_type)}
        values["general.quantization_version"] = unsigned(_QUANTIZATION_VERSION)
        values |= _importance_keys(importance)
        nbytes_before = file.nbytes
        total, done = sum(_elements(t) for t in file.tensors.values()), 0

        def count(n: int) -> None:
            nonlocal done
            done += n
            progress(done, total)

        with ThreadPoolExecutor(thread_count(threads)) as pool:
            columns = importance.importance if importance is not None else lambda name: None
            tensors = [_tensor(t, formats[t.name], columns(t.name), pool, count) for t in file.tensors.values()]
            write_gguf(target, values, tensors)
    shutil.copymode(source, target)
    names = [row.name for row in formats.values()]
    return QuantizationResult(
        target, nbytes_before, target.stat().st_size, {n: names.count(n) for n in sorted({*names})}
    )


def check_target(source: Path, target: Path, force: bool) -> None:
    """Raises FormatError or StoreError for a target that is the source or a part of it, is there already, or cannot be made."""
    if target.exists() and any(part.exists() and target.samefile(part) for part in part_paths(source)):
        raise FormatError(f"{target}: is the source itself; wanted another output path")
    check_out(target, force)


def check_out(target: Path, force: bool) -> None:
    """Raises StoreError for an output file that is there already or cannot be made."""
    if target.is_dir():
        raise StoreError(f"{target}: is a folder; wanted the path of an output file")
    if target.exists() and not force:
        raise StoreError(f"{target}: exists already; force=True replaces it")
    if not target.parent.is_dir():
        raise StoreError(f"{target}: the folder {target.parent} does not exist")


def _check_importance(file: GGUFFile, matrix: ImportanceMatrix) -> None:
    """FormatError for an importance matrix that is of none of the file's matrices, or has other sizes."""
    if not any(name in file.tensors for name in matrix.sums):
        raise FormatError(f"{file.path}: the importance matrix has none of its tensors; wanted that of the same model")
    for name, sums in matrix.sums.items():
        tensor = file.tensors.get(name)
        if tensor is None:
            continue
        n_matrices = math.prod(tensor.shape[:-2])
        if len(tensor.shape) < 2 or sums.shape != (n_matrices, tensor.shape[-1]):
            what = f"{shown(name)} is {list(tensor.shape)}, its importance {list(sums.shape)}"
            raise FormatError(f"{file.path}: {what}; wanted [{n_matrices}, {tensor.shape[-1]}]")


def _importance_keys(matrix: ImportanceMatrix | None) -> dict[str, Raw]:
    """Returns the metadata that records the importance matrix, under llama.cpp's keys."""
    if matrix is None:
        return {}
    keys = {"quantize.imatrix.dataset": text(matrix.datasets[0])} if matrix.datasets else {}
    counts = {"entries": len(matrix.sums), "chunks": matrix.chunk_count}
    return keys | {f"quantize.imatrix.{name}_count": unsigned(n) for name, n in counts.items()}


def _elements(tensor: GGUFTensor) -> int:
    return int(np.prod(tensor.shape, dtype=np.int64))


def _tensor(
    tensor: GGUFTensor,
    wanted: BlockFormat,
    importance: Floats | None,
    pool: ThreadPoolExecutor,
    count: Callable[[int], None],
) -> NewTensor:
    weighted = importance is not None and uses_importance(wanted)

    def copied() -> Iterator[Bytes]:
        yield tensor.data()
        count(_elements(tensor))

    def encoded() -> Iterator[Bytes]:
        blocks = tensor.data().reshape(-1, tensor.format.block_nbytes)
        step = _PART_ELEMENTS // tensor.format.block_size
        tasks = [
            partial(_encode, tensor, wanted, blocks[first : first + step]) for first in range(0, len(blocks), step)
        ]
        for i, part in enumerate(in_order(pool, tasks)):
            yield part
            count(min(_PART_ELEMENTS, _elements(tensor) - i * _PART_ELEMENTS))

    def encoded_rows() -> Iterator[Bytes]:
        assert importance is not None
        columns, n_rows = tensor.shape[-1], tensor.shape[-2]
        rows = tensor.data().reshape(-1, tensor.format.row_nbytes(columns))
        step = max(1, min(n_rows, _PART_ELEMENTS // columns))
        spans = [
            (first + i, min(first + i + step, first + n_rows))
            for first in range(0, len(rows), n_rows)
            for i in range(0, n_rows, step)
        ]
        tasks = [partial(_encode_rows, tensor, wanted, rows[a:b], importance[a // n_rows]) for a, b in spans]
        for (first, last), part in zip(spans, in_order(pool, tasks), strict=True):
            yield part
            count((last - first) * columns)

    parts = encoded_rows if weighted else encoded
    return NewTensor(tensor.name, tensor.shape, wanted, copied if wanted is tensor.format else parts)


def in_order(pool: ThreadPoolExecutor, tasks: Iterable[Callable[[], Bytes]]) -> Iterator[Bytes]:
    """The tasks' results in order, with at most _TASKS_AHEAD tasks running."""
    waiting: deque[Future[Bytes]] = deque()
    for task in tasks:
        waiting.append(pool.submit(task))
        if len(waiting) >= _TASKS_AHEAD:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _encode_rows(tensor: GGUFTensor, wanted: BlockFormat, rows: Bytes, importance: Floats) -> Bytes:
    values = tensor.format.dequantize(rows.reshape(-1, tensor.format.block_nbytes))
    try:
        return quantize_rows(wanted, values.reshape(len(rows), -1), importance)
    except FormatError as error:
        raise FormatError(f"{tensor.path}: tensor {shown(tensor.name)}: {error}") from None


def _encode(tensor: GGUFTensor, wanted: BlockFormat, blocks: Bytes) -> Bytes:
    values = tensor.format.dequantize(blocks)
    try:
        return wanted.quantize(values.reshape(-1, wanted.block_size))
    except FormatError as error:
        raise FormatError(f"{tensor.path}: tensor {shown(tensor.name)}: {error}") from None
