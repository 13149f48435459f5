"""quantize(source, out, type): convert a GGUF model to other block formats."""

from __future__ import annotations

import os
import re
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from camshaft.errors import FormatError, StoreError
from camshaft.formats.bits import Bytes
from camshaft.formats.blocks import BlockFormat
from camshaft.formats.gguf.file import GGUFTensor, open_gguf
from camshaft.formats.gguf.part_names import part_paths
from camshaft.formats.gguf.write import NewTensor, unsigned, values_of, write_gguf
from camshaft.formats.mapped import shown
from camshaft.models.files.quantization_mix import Mix, TensorPosition, format_for, is_quantized, mix_named, part_of
from camshaft.settings import thread_count
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
    force: bool = False,
    threads: int | None = None,
    progress: Progress = lambda done, total: None,
) -> QuantizationResult:
    """Write a copy of the model in the formats of `file_type` (a name of MIXES). Metadata, vocabulary and vectors are copied.

    Values are decoded to float32 and encoded again. `pure`: one format for every matrix, including the output; `force`:
    overwrite `out`; `progress(done, total)` counts elements. The file appears only once it is complete; what killed processes
    left unfinished in its folder is removed first. Raises FormatError for an unknown type, an unreadable source, or `out` equal
    to the source; StoreError if `out` cannot be written.
    """
    mix, target = mix_named(file_type), Path(out)
    with open_gguf(source) as file:
        check_target(Path(source), target, force)
        remove_unfinished(target.parent)
        formats = formats_of(file, mix, pure=pure)
        values = values_of(file.metadata) | {"general.file_type": unsigned(mix.file_type)}
        values["general.quantization_version"] = unsigned(_QUANTIZATION_VERSION)
        nbytes_before = file.nbytes
        total, done = sum(_elements(t) for t in file.tensors.values()), 0

        def count(n: int) -> None:
            nonlocal done
            done += n
            progress(done, total)

        with ThreadPoolExecutor(thread_count(threads)) as pool:
            tensors = [_tensor(t, formats[t.name], pool, count) for t in file.tensors.values()]
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
    if target.is_dir():
        raise StoreError(f"{target}: is a folder; wanted the path of an output file")
    if target.exists() and not force:
        raise StoreError(f"{target}: exists already; force=True replaces it")
    if not target.parent.is_dir():
        raise StoreError(f"{target}: the folder {target.parent} does not exist")


class Described(Protocol):
    """What says which formats a model's tensors get: a GGUF file, or what will be one."""

    @property
    def tensors(self) -> Mapping[str, Any]:
        """Tensors with a shape and a format, by name."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Values by key."""


def formats_of(file: Described, mix: Mix, *, pure: bool = False) -> dict[str, BlockFormat]:
    """The format of each tensor of a file in a mix."""
    position = _position(file)
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


def _position(file: Described) -> Callable[[int], TensorPosition]:
    def number(key: str, otherwise: int) -> int:
        value: Any = file.metadata.get(f"{file.metadata.get('general.architecture', '')}.{key}", otherwise)
        values = np.asarray(value if isinstance(value, (int, np.ndarray)) else otherwise)
        return int(values.max()) if values.size and values.dtype.kind in "iu" else otherwise

    heads = number("attention.head_count", 1)
    per_head = heads // max(1, number("attention.head_count_kv", heads))
    layers = {int(m[1]) for name in file.tensors if (m := re.match(r"blk\.([0-9]{1,9})\.", name))}
    n_layers, n_experts = number("block_count", len(layers)), number("expert_count", 0)
    return lambda layer: TensorPosition(layer, n_layers, per_head, n_experts)


def _elements(tensor: GGUFTensor) -> int:
    return int(np.prod(tensor.shape, dtype=np.int64))


def _tensor(
    tensor: GGUFTensor, wanted: BlockFormat, pool: ThreadPoolExecutor, count: Callable[[int], None]
) -> NewTensor:
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

    return NewTensor(tensor.name, tensor.shape, wanted, copied if wanted is tensor.format else encoded)


def in_order(pool: ThreadPoolExecutor, tasks: Iterable[Callable[[], Bytes]]) -> Iterator[Bytes]:
    """The tasks' results in order, with at most _TASKS_AHEAD tasks running."""
    waiting: deque[Future[Bytes]] = deque()
    for task in tasks:
        waiting.append(pool.submit(task))
        if len(waiting) >= _TASKS_AHEAD:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _encode(tensor: GGUFTensor, wanted: BlockFormat, blocks: Bytes) -> Bytes:
    values = tensor.format.dequantize(blocks)
    try:
        return wanted.quantize(values.reshape(-1, wanted.block_size))
    except FormatError as error:
        raise FormatError(f"{tensor.path}: tensor {shown(tensor.name)}: {error}") from None
