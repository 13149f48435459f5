"""CachedPlan: a plan's stored schedule, bound and ready to run without compiling anything.

The cache stores the executor's words, each as an offset in a memory region: an argument's buffer, an extent's active value, a
kernel. Loading adds the regions' addresses; it needs no graph, pass, choice or lowering, and imports none of their modules.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from camshaft.backends.cpu.loaded import CpuKernel, Packing, stored
from camshaft.errors import PlanError
from camshaft.extent import Extent
from camshaft.plan.memory.loading import Wanted
from camshaft.plan.runtime.native import layout
from camshaft.plan.runtime.native.library import know_executor, memmove_address, native_executor
from camshaft.plan.runtime.native_plan import NativePlan
from camshaft.plan.runtime.runnable import Runnable
from camshaft.plan.runtime.workers import Words, aligned_bytes, host_memory

if TYPE_CHECKING:
    from camshaft.formats.tensor import FileTensor
    from camshaft.plan.memory.weights import Weights

Array = np.ndarray[Any, Any]
FORMAT = 1
# The first regions; behind them, in this order: kernels, memory that the caller names, constants, bytes kept along, own memory.
LITERAL, MEMMOVE, COPY, EXTENTS, ARGUMENTS, ARENA, FIRST_KERNEL = range(7)
_ALIGNMENT = 64


@dataclass(frozen=True)
class Constant:
    """A tensor of the model's file in a layout; `packing` is the number of a kernel and Packing's numbers, None: as it lies."""

    tensor: str
    layout: str
    nbytes: int
    packing: Sequence[int] | None


@dataclass(frozen=True)
class View:
    """A named tensor: its region, the first byte there, and what NumPy makes of it."""

    region: int
    offset: int
    dtype: str
    shape: Sequence[int]


@dataclass(frozen=True)
class Head:
    """A stored plan without its words. `kernels` are names with second keys; `own` the bytes of memory that the plan makes."""

    threads: int
    executor: str
    extents: Sequence[tuple[str, int]]
    kernels: Sequence[tuple[str, str]]
    arena: tuple[int, int]
    memory: Sequence[tuple[str, int]]
    constants: Sequence[Constant]
    along: Sequence[int]
    own: Sequence[int]
    inputs: Mapping[str, View]
    outputs: Mapping[str, View]
    shapes: tuple[Sequence[int], Sequence[int]]


@dataclass(frozen=True)
class Kept:
    """A head, then `records` and `args` as offsets beside the numbers of their regions, int64 [2, ...] each, then bytes kept
    along."""

    head: Head
    records: Words
    args: Words
    along: tuple[Array, ...]


def to_bytes(kept: Kept) -> bytes:
    """Serializes the plan: the length of a JSON text, the text, the arrays."""
    text = json.dumps({"format": FORMAT, "head": asdict(kept.head)}).encode()
    arrays = (kept.records, kept.args, *kept.along)
    return b"".join((len(text).to_bytes(8, "little"), text, *(array.tobytes() for array in arrays)))


def from_bytes(data: bytes) -> Kept:
    """Deserializes the output of `to_bytes`. Raises PlanError for other bytes."""
    try:
        end = 8 + int.from_bytes(data[:8], "little")
        document = json.loads(data[8:end])
        if document["format"] != FORMAT:
            raise PlanError(f"a kept plan of format {document['format']}; wanted {FORMAT}")
        head = _head(document["head"])
        arrays = []
        for shape, dtype in [*((s, np.int64) for s in head.shapes), *(((n,), np.uint8) for n in head.along)]:
            count = int(np.prod(shape))
            array = np.frombuffer(data, dtype, count, end)
            arrays.append(array.reshape(tuple(shape)))
            end += array.nbytes
    except (ValueError, KeyError, TypeError) as error:
        raise PlanError(f"a kept plan cannot be read: {error}") from error
    return Kept(head, arrays[0], arrays[1], tuple(arrays[2:]))


def _head(row: dict[str, Any]) -> Head:
    views = {name: {k: View(**view) for k, view in row[name].items()} for name in ("inputs", "outputs")}
    return Head(**row | views | {"constants": [Constant(**constant) for constant in row["constants"]]})


class CachedPlan(NativePlan):
    """A stored plan, ready to run. `inputs` and `outputs` map names to views. Use it from one thread at a time."""

    def __init__(
        self, kept: Kept, kernels: Sequence[CpuKernel], memory: Mapping[str, Array], held: Sequence[Array]
    ) -> None:
        head = kept.head
        know_executor(head.executor)
        super().__init__([Extent(name, bound) for name, bound in head.extents], len(kept.records[0]), head.threads)
        self._args: Words = np.empty(kept.args.shape[1:], np.int64)
        self._walk(aligned_bytes(max(kept.records[0].nbytes, 128), 128).view(np.int64))
        arrays = self._regions(kept, memory, held)
        self._memory = (kernels, arrays)
        fixed = [0, memmove_address(), native_executor().copy_address, self._block.ctypes.data, self._args.ctypes.data]
        first, rest = arrays[0].ctypes.data, [array.ctypes.data for array in arrays[1:]]
        bases = np.array([*fixed, first, *(kernel.address for kernel in kernels), *rest], np.int64)
        self._args[:] = kept.args[0] + bases[kept.args[1]]
        words = kept.records[0] + bases[kept.records[1]]
        self._records[: words.size] = words.reshape(-1)
        skip = FIRST_KERNEL - 1 + len(kernels)
        named = {name: _view(arrays[max(0, v.region - skip)], v) for name, v in {**head.inputs, **head.outputs}.items()}
        self.inputs = {name: named[name] for name in head.inputs}
        self.outputs = {name: named[name] for name in head.outputs}

    def _regions(self, kept: Kept, memory: Mapping[str, Array], held: Sequence[Array]) -> list[Array]:
        """The arena, then every region behind the kernels, as bytes. PlanError for memory that is missing or too small."""
        head = kept.head
        for name, nbytes in head.memory:
            if name not in memory or memory[name].nbytes < nbytes:
                raise PlanError(f"a kept plan wants {nbytes} bytes of memory named {name!r}")
        given = [memory[name].reshape(-1).view(np.uint8) for name, _ in head.memory]
        along = [aligned_bytes(array.nbytes, _ALIGNMENT) for array in kept.along]
        for place, array in zip(along, kept.along, strict=True):
            place[:] = array
        own = [host_memory("a kept plan", nbytes, _ALIGNMENT) for nbytes in head.own]
        return [host_memory("the arena", *head.arena), *given, *held, *along, *own]

    @property
    def bound(self) -> Runnable:
        """Itself: what runs."""
        return self

    def _waits(self) -> Sequence[bool]:
        rows = self._records[: self._n_thunks * layout.RECORD_WORDS].reshape(-1, layout.RECORD_WORDS)
        return [bool(wait) for wait in rows[:, layout.WAIT]]

    def _release(self) -> None:
        self._memory = ((), [])


def _view(memory: Array, view: View) -> Array:
    dtype = np.dtype(view.dtype)
    nbytes = dtype.itemsize * int(np.prod(view.shape))
    return memory[view.offset : view.offset + nbytes].view(dtype).reshape(tuple(view.shape))


_reviving = threading.Lock()


def revive(
    kept: Kept, memory: Mapping[str, Array], weights: Weights, tensors: Mapping[str, FileTensor]
) -> CachedPlan | None:
    """Binds the plan and starts loading its constants (`weights.finish` completes it); None if the store lacks a kernel.

    Raises PlanError if memory or tensors differ from those that it was stored with.
    """
    head = kept.head
    with _reviving:
        kernels = [stored(name, key) for name, key in head.kernels]
        found = [kernel for kernel in kernels if kernel is not None]
        if len(found) < len(kernels):
            return None
        wanted = [_wanted(constant, found, tensors) for constant in head.constants]
        weights.begin_wanted(wanted, head.threads)
        return CachedPlan(kept, found, memory, [weights.place(constant) for constant in wanted])


def _wanted(constant: Constant, kernels: Sequence[CpuKernel], tensors: Mapping[str, FileTensor]) -> Wanted:
    if constant.tensor not in tensors:
        raise PlanError(f"a kept plan wants the tensor {constant.tensor!r}, which the file lacks")
    packing = None
    if constant.packing is not None:
        kernel, *numbers = constant.packing
        packing = Packing(kernels[kernel], *numbers)
    return Wanted(tensors[constant.tensor], constant.layout, constant.nbytes, packing)
