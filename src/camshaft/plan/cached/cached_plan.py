"""CachedPlan: a plan from the store, bound and ready to run without compilation.

A stored plan is the executor's table of addresses, each written as an offset into a memory region: an argument's buffer, an
extent's active value, a kernel. Loading adds the regions' addresses. So it needs no graph, choice or lowering, and imports none
of their modules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from camshaft.backends.cpu.loaded import ROWS, CpuKernel, Packing, stored
from camshaft.errors import PlanError
from camshaft.extent import Extent
from camshaft.formats.blocks import grid_number
from camshaft.plan.cached.cached_check import FIRST_KERNEL
from camshaft.plan.cached.stored_plan import Constant, SerializedPlan, View, tensor_place
from camshaft.plan.memory.allocate import aligned_bytes, host_memory
from camshaft.plan.memory.loading import LoadRequest
from camshaft.plan.runtime.native import layout
from camshaft.plan.runtime.native.library import memmove_address, native_executor, set_executor_key
from camshaft.plan.runtime.runnable import NativePlan, Runnable
from camshaft.plan.runtime.workers import Words
from camshaft.process import ForkLock

if TYPE_CHECKING:
    from camshaft.formats.tensor import FileTensor
    from camshaft.plan.memory.weights import Weights

Array = np.ndarray[Any, Any]
_ALIGNMENT = 64


class CachedPlan(NativePlan):
    """A stored plan, ready to run. `inputs` and `outputs` map names to views. Use it from one thread at a time."""

    def __init__(
        self,
        plan: SerializedPlan,
        kernels: Sequence[CpuKernel],
        memory: Mapping[str, Array],
        constants: Sequence[Array],
    ) -> None:
        header = plan.header
        set_executor_key(header.executor)
        super().__init__([Extent(name, bound) for name, bound in header.extents], len(plan.records[0]), header.threads)
        self._args: Words = np.empty(plan.args.shape[1:], np.int64)
        self._set_records(aligned_bytes(max(plan.records[0].nbytes, 128), 128).view(np.int64))
        arrays = self._regions(plan, memory, constants)
        self._memory = (kernels, arrays)
        fixed = [0, memmove_address(), native_executor().copy_address, self._block.ctypes.data, self._args.ctypes.data]
        first, rest = arrays[0].ctypes.data, [array.ctypes.data for array in arrays[1:]]
        bases = np.array([*fixed, first, *(kernel.address for kernel in kernels), *rest], np.int64)
        self._args[:] = plan.args[0] + bases[plan.args[1]]
        words = plan.records[0] + bases[plan.records[1]]
        self._records[: words.size] = words.reshape(-1)
        skip = FIRST_KERNEL - 1 + len(kernels)
        views = {**header.inputs, **header.outputs}
        named = {name: _view(arrays[max(0, view.region - skip)], view) for name, view in views.items()}
        self.inputs = {name: named[name] for name in header.inputs}
        self.outputs = {name: named[name] for name in header.outputs}

    def _regions(self, plan: SerializedPlan, memory: Mapping[str, Array], constants: Sequence[Array]) -> list[Array]:
        """Returns the arena, then every region after the kernels, as bytes. Raises PlanError for missing or too small memory."""
        header = plan.header
        for name, nbytes in header.memory:
            if name not in memory or memory[name].nbytes < nbytes:
                raise PlanError(f"a cached plan wants {nbytes} bytes of memory named {name!r}")
        given = [memory[name].reshape(-1).view(np.uint8) for name, _ in header.memory]
        computed = [aligned_bytes(array.nbytes, _ALIGNMENT) for array in plan.computed]
        for place, array in zip(computed, plan.computed, strict=True):
            place[:] = array
        for number in header.blas[1]:
            _set_function(computed[number].view(np.int64))
        allocated = [host_memory("a cached plan", nbytes, _ALIGNMENT) for nbytes in header.allocated]
        return [host_memory("the arena", *header.arena), *given, *constants, *computed, *allocated]

    @property
    def bound(self) -> Runnable:
        """Returns this plan: it is its own Runnable, unlike an ExecutionPlan."""
        return self

    def _waits(self) -> Sequence[bool]:
        rows = self._records[: self._n_thunks * layout.RECORD_WORDS].reshape(-1, layout.RECORD_WORDS)
        return [bool(wait) for wait in rows[:, layout.WAIT]]

    def _release(self) -> None:
        self._memory = ((), [])


def _is_installed(key: str) -> bool:
    """Tells whether the BLAS library of that key can be used."""
    from camshaft.backends.blas.library import absent, blas_library  # few plans call it

    return absent() is None and blas_library().key() == key


def _set_function(words: Words) -> None:
    from camshaft.backends.blas import trampoline
    from camshaft.backends.blas.library import blas_library

    words[trampoline.FUNCTION] = blas_library().sgemm


def _view(memory: Array, view: View) -> Array:
    dtype = np.dtype(view.dtype)
    nbytes = dtype.itemsize * int(np.prod(view.shape))
    return memory[view.offset : view.offset + nbytes].view(dtype).reshape(tuple(view.shape))


_lock = ForkLock()


def bind_cached(
    plan: SerializedPlan, memory: Mapping[str, Array], weights: Weights, tensors: Mapping[str, FileTensor]
) -> CachedPlan | None:
    """Binds the plan and starts loading its constants (`weights.finish` completes it); None if the store lacks a kernel, or
    the plan calls a BLAS library that is not this one.

    Raises PlanError if memory or tensors differ from those that it was stored with.
    """
    header = plan.header
    if header.blas[0] and not _is_installed(header.blas[0]):
        return None
    with _lock:
        kernels = [stored(name, key) for name, key in header.kernels]
        found = [kernel for kernel in kernels if kernel is not None]
        if len(found) < len(kernels):
            return None
        requests = [_load_request(constant, found, tensors) for constant in header.constants]
        weights.begin_requests(requests, header.threads)
        return CachedPlan(plan, found, memory, [weights.place(request) for request in requests])


def _load_request(constant: Constant, kernels: Sequence[CpuKernel], tensors: Mapping[str, FileTensor]) -> LoadRequest:
    tensor = tensors.get(constant.tensor)
    if tensor is None:
        raise PlanError(f"a cached plan wants the tensor {constant.tensor!r}, which the file lacks")
    if tensor_place(tensor) != constant.place:
        raise PlanError(
            f"a cached plan wants {constant.tensor!r} as {constant.place}; the file has {tensor_place(tensor)}"
        )
    packing = None if constant.packing is None else _packing(constant, constant.packing, kernels)
    read_nbytes = constant.nbytes if packing is None else packing.n_rows * packing.row_nbytes
    if read_nbytes > tensor.nbytes:
        raise PlanError(f"a cached plan reads {read_nbytes} bytes of {constant.tensor!r}; the file has {tensor.nbytes}")
    return LoadRequest(tensor, constant.layout, constant.nbytes, packing)


def _packing(constant: Constant, numbers: Sequence[int], kernels: Sequence[CpuKernel]) -> Packing:
    kernel, *sizes = numbers
    if not 0 <= kernel < len(kernels) or len(sizes) != len(fields(Packing)) - 1:
        raise PlanError(f"a cached plan packs {constant.tensor!r} with {len(sizes)} sizes and kernel {kernel}")
    packing = Packing(kernels[kernel], *sizes)
    offsets, n_tiles = (packing.codes, packing.scales, packing.extra), -(-packing.n_rows // ROWS)
    if min(numbers) < 0 or max(offsets) > constant.nbytes or packing.n_tiles != n_tiles:
        raise PlanError(f"a cached plan packs {constant.tensor!r} outside its memory")
    if packing.grid != grid_number(constant.place.format):
        raise PlanError(f"a cached plan packs {constant.tensor!r} with the grid of type {packing.grid}")
    return packing
