"""SerializedPlan: what the store has of a plan, and its bytes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from camshaft.errors import PlanError
from camshaft.plan.cached.cached_check import check_plan
from camshaft.plan.runtime.workers import Words

if TYPE_CHECKING:
    from camshaft.formats.tensor import FileTensor

Array = np.ndarray[Any, Any]
FORMAT = 5
NO_BLAS: tuple[str, Sequence[int]] = ("", ())


@dataclass(frozen=True)
class TensorPlace:
    """A tensor's shape, block format, and bytes in its file; `offset` is None if they are not mapped."""

    shape: tuple[int, ...]
    format: str
    offset: int | None
    nbytes: int


def tensor_place(tensor: FileTensor) -> TensorPlace:
    """Returns the place of an open file's tensor."""
    offset = None if tensor.mapped is None else tensor.mapped[1]
    return TensorPlace(tensor.shape, tensor.format.name, offset, tensor.nbytes)


@dataclass(frozen=True)
class Constant:
    """A tensor of the model's file in a layout. `place` is where its bytes were when the plan was stored; `packing` is a
    kernel's number and Packing's numbers; None: not packed."""

    tensor: str
    place: TensorPlace
    layout: str
    nbytes: int
    packing: Sequence[int] | None


@dataclass(frozen=True)
class View:
    """A named tensor: its region, the offset of its first byte there, its NumPy dtype and its shape."""

    region: int
    offset: int
    dtype: str
    shape: Sequence[int]


@dataclass(frozen=True)
class PlanHeader:
    """A serialized plan without its words.

    `kernels` are (name, second key in the store); `arena` is (nbytes, alignment); `memory` is (name, nbytes) of the caller's
    memory; `computed` and `allocated` are sizes in bytes of computed constants and of other memory that the plan allocates;
    `blas` is the key of the BLAS library, and which computed constants are the words of its calls.
    """

    threads: int
    executor: str
    extents: Sequence[tuple[str, int]]
    kernels: Sequence[tuple[str, str]]
    arena: tuple[int, int]
    memory: Sequence[tuple[str, int]]
    constants: Sequence[Constant]
    computed: Sequence[int]
    allocated: Sequence[int]
    inputs: Mapping[str, View]
    outputs: Mapping[str, View]
    shapes: tuple[Sequence[int], Sequence[int]]
    blas: tuple[str, Sequence[int]] = NO_BLAS


@dataclass(frozen=True)
class SerializedPlan:
    """A plan as it is stored: `records` and `args` are (offsets, region numbers), int64 [2, ...]; `computed` are constants."""

    header: PlanHeader
    records: Words
    args: Words
    computed: tuple[Array, ...]


def to_bytes(plan: SerializedPlan) -> bytes:
    """Returns the length of a JSON text, the text, and the arrays."""
    text = json.dumps({"format": FORMAT, "head": asdict(plan.header)}).encode()
    arrays = (plan.records, plan.args, *plan.computed)
    return b"".join((len(text).to_bytes(8, "little"), text, *(array.tobytes() for array in arrays)))


def from_bytes(data: bytes) -> SerializedPlan:
    """Reads the output of `to_bytes`. Raises PlanError for other bytes."""
    try:
        end = 8 + int.from_bytes(data[:8], "little")
        document = json.loads(data[8:end])
        if document["format"] != FORMAT:
            raise PlanError(f"a cached plan of format {document['format']}; wanted {FORMAT}")
        header = _header(document["head"])
        arrays = []
        for shape, dtype in [*((s, np.int64) for s in header.shapes), *(((n,), np.uint8) for n in header.computed)]:
            array = np.frombuffer(data, dtype, math.prod(shape), end)
            arrays.append(array.reshape(tuple(shape)))
            end += array.nbytes
        plan = SerializedPlan(header, arrays[0], arrays[1], tuple(arrays[2:]))
        check_plan(plan)
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise PlanError(f"a cached plan cannot be read: {error}") from error
    return plan


def _header(row: dict[str, Any]) -> PlanHeader:
    views = {name: {k: View(**view) for k, view in row[name].items()} for name in ("inputs", "outputs")}
    return PlanHeader(**row | views | {"constants": [_constant(constant) for constant in row["constants"]]})


def _constant(row: dict[str, Any]) -> Constant:
    place = TensorPlace(**row["place"])
    return Constant(**row | {"place": replace(place, shape=tuple(place.shape))})
