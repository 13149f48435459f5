"""Students in GGUF's block formats: a block is linear in its f16 scale d and, where it has one, its minimum m."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from camshaft.errors import FormatError
from camshaft.formats.gguf.file import GGUFFile
from camshaft.formats.gguf.write import NewTensor, values_of, write_gguf
from camshaft.formats.mapped import path_for_messages
from camshaft.formats.tensor import FileTensor
from camshaft.graph import functions as f
from camshaft.graph.graph import Graph
from camshaft.graph.tensor import Tensor
from camshaft.models.checkpoint import Checkpoint
from camshaft.train.tuning.distilling.student import LEAST, MOST, Factors, Part, Student
from camshaft.train.tuning.methods.lora import TARGETS, LoraModel

Array = np.ndarray[Any, Any]
MATRIX = re.compile(rf"blk\.\d+\.({'|'.join(TARGETS)})\.weight")
_FIELDS = ("d", "m", "dmin")  # of a block's layout: the scale, and the minimum by its two names


class BlockStudent(Student):
    """The model of a GGUF file. FormatError where no matrix of layers has blocks with a scale."""

    def __init__(self, full: LoraModel, file: GGUFFile) -> None:
        self._file = file
        parts = {
            name: {field: _part(t) for field, t in parts_of(tensor).items()}
            for name, tensor in file.tensors.items()
            if MATRIX.fullmatch(name) and _fields(tensor)
        }
        if not parts:
            raise FormatError(
                f"{path_for_messages(file.path)}: has no matrix of layers in blocks with a scale; wanted a type such as Q4_0"
            )
        super().__init__(full, file.tensors, parts)

    def write(self, path: Path, factors: Factors) -> None:
        """Writes the file with its blocks' scales and minima multiplied."""
        tensors = [
            NewTensor(t.name, t.shape, t.format, _data_of(t, factors.get(t.name, {})))
            for t in self._file.tensors.values()
        ]
        write_gguf(path, values_of(self._file.metadata), tensors)


def _part(tensor: FileTensor) -> Part:
    n, size = tensor.shape[0], tensor.format.block_size
    shape = n, tensor.shape[1] // size

    def numbers(graph: Graph) -> Tensor:
        constant = Checkpoint({tensor.name: tensor}, graph).tensor(tensor.name, *tensor.shape)
        made: Tensor = f.dequantize(constant).reshape((*shape, size))
        return made

    return Part(shape, numbers)


def _fields(tensor: FileTensor) -> list[str]:
    """The names of a block's f16 scale and minimum; none for formats without an f16 scale."""
    layout = tensor.format.layout
    known: Mapping[str, Any] = {} if layout is None or tensor.format.is_plain else layout.fields or {}
    found = [name for name in _FIELDS if name in known and known[name][0] == np.dtype("<f2")]
    return found if "d" in found else []


def parts_of(tensor: FileTensor) -> dict[str, FileTensor]:
    """The tensor by fields: blocks in which the others are zero. Their decoded sum is the tensor."""
    fields = _fields(tensor)

    def part(field: str) -> FileTensor:
        def read() -> Array:
            blocks = np.array(tensor.data().reshape(-1, tensor.format.block_nbytes))
            records = tensor.format.records(blocks)
            for other in fields:
                if other != field:
                    records[other] = 0
            return records.view(np.uint8).reshape(-1)

        return FileTensor(f"{tensor.name}.{field}", tensor.shape, tensor.format, tensor.nbytes, read, tensor.path)

    return {field: part(field) for field in fields}


def _data_of(tensor: FileTensor, factors: Mapping[str, Array]) -> Callable[[], Iterator[Array]]:
    def parts() -> Iterator[Array]:
        if not factors:
            yield tensor.data()
            return
        records = tensor.format.records(np.array(tensor.data().reshape(-1, tensor.format.block_nbytes)))
        for field, factor in factors.items():
            scales = records[field].astype(np.float32) * np.clip(factor.reshape(-1), LEAST, MOST)
            records[field] = scales.astype(np.float16)
        yield records.view(np.uint8).reshape(-1)

    return parts
