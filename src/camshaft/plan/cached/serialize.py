"""Serialize a plan: the executor's words with addresses replaced by offsets into memory regions.

A plan can be cached if it runs on this process's CPU, its kernels are objects in the store, and its constants are tensors of a
file or small. Calls of BLAS are stored with the library's key in place of its function's address.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ctypes import string_at
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from camshaft.backends.blas import trampoline
from camshaft.backends.blas.library import blas_library
from camshaft.backends.cpu.loaded import CpuKernel
from camshaft.errors import PlanError
from camshaft.extent import Extent
from camshaft.formats.tensor import FileTensor
from camshaft.plan.buffers import Buffer, BufferSlice, Lifetime
from camshaft.plan.cached.cached_check import ARENA, ARGUMENTS, COPY, EXTENTS, FIRST_KERNEL, LITERAL, MEMMOVE
from camshaft.plan.cached.stored_plan import NO_BLAS, Constant, PlanHeader, SerializedPlan, View, tensor_place
from camshaft.plan.execution_plan import ExecutionPlan
from camshaft.plan.memory.loading import LoadRequest
from camshaft.plan.memory.weights import Weights
from camshaft.plan.runtime.execute import BoundSchedule
from camshaft.plan.runtime.native import layout
from camshaft.plan.runtime.native.library import native_executor
from camshaft.plan.runtime.workers import Words
from camshaft.plan.schedule import Thunk

Array = np.ndarray[Any, Any]
# Size limit of each constant that is not in a file, such as rotations; a plan with a larger one is not cached.
MAX_COMPUTED_NBYTES = 4 << 20


class _NotCacheable(Exception):
    """The reason why a plan cannot be cached."""


@dataclass
class _Regions:
    """Memory regions by first address, numbered within their kind in the order of `add`."""

    named: Mapping[int, tuple[str, int]]
    sources: Mapping[int, LoadRequest | Array]
    kernels: dict[str, tuple[int, str]] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)
    constants: dict[int, Constant] = field(default_factory=dict)
    computed: dict[int, Array] = field(default_factory=dict)
    allocated: dict[int, int] = field(default_factory=dict)

    def add(self, buffer: Buffer, address: int) -> None:
        """Adds the memory of a buffer that is not a temporary."""
        if address in self.named:
            name, nbytes = self.named[address]
            self.memory[name] = nbytes
        elif isinstance(source := self.sources.get(address), LoadRequest):
            self.constants[address] = _constant(source, self)
        elif source is not None:
            self.computed[address] = source
        elif buffer.lifetime is Lifetime.IO:
            self.allocated[address] = buffer.nbytes
        else:
            raise _NotCacheable(f"the {buffer.lifetime.value} {buffer.name!r} is not in a file")

    def kernel(self, kernel: CpuKernel) -> int:
        """Returns the kernel's number, adding it if it is new."""
        return self.kernels.setdefault(kernel.key, (len(self.kernels), kernel.name))[0]

    def numbers(self) -> dict[int, int]:
        """Returns the region of each first address."""
        starts = {name: address for address, (name, _) in self.named.items()}
        order = [*(starts[name] for name in self.memory), *self.constants, *self.computed, *self.allocated]
        return {address: FIRST_KERNEL + len(self.kernels) + i for i, address in enumerate(order)}


def serialize_plan(plan: ExecutionPlan, memory: Mapping[str, Array], weights: Weights) -> SerializedPlan | str:
    """Serializes a plan that was compiled with this memory and these weights. Returns the reason if it cannot be cached."""
    try:
        return _serialized(plan, memory, weights)
    except _NotCacheable as why:
        return str(why)


def _serialized(plan: ExecutionPlan, memory: Mapping[str, Array], weights: Weights) -> SerializedPlan:
    bound = plan.bound.native
    if bound is None:
        raise _NotCacheable("it is instrumented, or on another device")
    named = {_start(array): (name, array.nbytes) for name, array in memory.items() if isinstance(array, np.ndarray)}
    calls = _blas_calls(bound)
    regions = _Regions(named, {**_sources(weights), **calls})
    for thunk in bound.schedule.thunks:
        _check(thunk)
        if isinstance(thunk.entry, CpuKernel):
            regions.kernel(thunk.entry)
    for buffer in bound.schedule.buffers:
        if buffer.lifetime is not Lifetime.TEMP:
            regions.add(buffer, bound.memory.addresses[buffer])
    for array in (*plan.inputs.values(), *plan.outputs.values()):
        if _start(array) not in {*regions.numbers(), *named}:
            raise _NotCacheable("an input or output is inside other memory")
        if _start(array) in named:
            name, nbytes = named[_start(array)]
            regions.memory[name] = nbytes
    numbers = regions.numbers()
    records, args = _record_words(bound, regions), _argument_words(bound, numbers)
    head = _head(plan, bound, regions, numbers, (list(records.shape), list(args.shape)))
    places = [number for number, address in enumerate(regions.computed) if address in calls]
    head = replace(head, blas=(blas_library().key(), places) if places else NO_BLAS)
    return SerializedPlan(head, records, args, tuple(regions.computed.values()))


def _blas_calls(bound: BoundSchedule) -> dict[int, Array]:
    """Returns, by first address, the words of each call of BLAS, without the function's address."""
    found: dict[int, Array] = {}
    for thunk in bound.schedule.thunks:
        if isinstance(thunk.entry, CpuKernel) and thunk.entry.name == trampoline.NAME:
            words = [arg.buffer for arg in thunk.args if isinstance(arg, BufferSlice)][-1]
            address = bound.memory.addresses[words]
            found[address] = np.frombuffer(string_at(address, words.nbytes), np.int64).copy()
            found[address][trampoline.FUNCTION] = 0
    return found


def _start(array: Array) -> int:
    return int(array.ctypes.data)


def _check(thunk: Thunk) -> None:
    if thunk.kind == "copy" and thunk.entry is None:
        return
    if thunk.kind != "kernel" or not isinstance(thunk.entry, CpuKernel) or not thunk.entry.key:
        raise _NotCacheable(f"thunk {thunk.name!r} runs no kernel of the store")


def _sources(weights: Weights) -> dict[int, LoadRequest | Array]:
    """Returns, by first address, each constant in a file, and the bytes of each small computed constant."""
    found: dict[int, LoadRequest | Array] = {}
    for constant, array in weights.loaded():
        if isinstance(constant.source, FileTensor):
            found[_start(array)] = constant
        elif array.nbytes <= MAX_COMPUTED_NBYTES:
            found[_start(array)] = array
    return found


def _constant(constant: LoadRequest, regions: _Regions) -> Constant:
    assert isinstance(constant.source, FileTensor)
    name, place, p = constant.source.name, tensor_place(constant.source), constant.packing
    if p is None:
        return Constant(name, place, constant.layout, constant.nbytes, None)
    numbers = (
        regions.kernel(p.kernel),
        p.n_rows,
        p.n_records,
        p.row_nbytes,
        p.n_tiles,
        p.codes,
        p.scales,
        p.extra,
        p.grid,
    )
    return Constant(name, place, constant.layout, constant.nbytes, numbers)


def _head(
    plan: ExecutionPlan,
    bound: BoundSchedule,
    regions: _Regions,
    numbers: Mapping[int, int],
    shapes: tuple[list[int], list[int]],
) -> PlanHeader:
    def views(arrays: Mapping[str, Array]) -> dict[str, View]:
        return {n: View(numbers[_start(a)], 0, a.dtype.str, list(a.shape)) for n, a in arrays.items()}

    memory_plan = bound.memory_plan
    return PlanHeader(
        threads=bound.threads,
        executor=native_executor().key,
        extents=[(extent.name, extent.bound) for extent in bound.schedule.extents],
        kernels=[(name, key) for key, (_, name) in regions.kernels.items()],
        arena=(memory_plan.arena_nbytes, memory_plan.alignment),
        memory=list(regions.memory.items()),
        constants=list(regions.constants.values()),
        computed=[array.nbytes for array in regions.computed.values()],
        allocated=list(regions.allocated.values()),
        inputs=views(plan.inputs),
        outputs=views(plan.outputs),
        shapes=shapes,
    )


def _record_words(bound: BoundSchedule, regions: _Regions) -> Words:
    """Returns the records as (offsets, region numbers), int64 [2, thunks, words]."""
    records, args, block = bound.words
    offsets, places = records.copy(), np.full(records.shape, LITERAL, np.int64)
    offsets[:, layout.ARGS] -= args.ctypes.data
    places[:, layout.ARGS] = ARGUMENTS
    for row, thunk in enumerate(bound.schedule.thunks):
        offsets[row, layout.ENTRY] = 0
        is_kernel = isinstance(thunk.entry, CpuKernel)
        places[row, layout.ENTRY] = FIRST_KERNEL + regions.kernel(thunk.entry) if is_kernel else COPY  # type: ignore[arg-type]
        for factor in range(len(thunk.programs.factors)):
            offsets[row, layout.FACTORS + 2 * factor] -= block
            places[row, layout.FACTORS + 2 * factor] = EXTENTS
    return np.stack([offsets, places])


def _argument_words(bound: BoundSchedule, numbers: Mapping[int, int]) -> Words:
    """Returns the argument blocks as (offsets, region numbers), int64 [2, 1 or workers, words]."""
    _, args, block = bound.words
    memory = bound.memory
    starts = {region: address for address, region in numbers.items()} | {
        LITERAL: 0,
        EXTENTS: block,
        ARENA: memory.arena.ctypes.data,
    }
    row = list(_argument_regions(bound, numbers))
    bases = np.array([starts.get(region, 0) for region in row] or [0], np.int64)
    places = np.array(row or [LITERAL], np.int64)
    offsets = np.where(places == MEMMOVE, 0, args - bases)
    if (offsets < 0).any():
        raise PlanError("an argument's address is below its region")
    return np.stack([offsets, np.broadcast_to(places, args.shape)])


def _argument_regions(bound: BoundSchedule, numbers: Mapping[int, int]) -> Iterable[int]:
    for thunk in bound.schedule.thunks:
        for arg in thunk.args:
            if isinstance(arg, Extent):
                yield EXTENTS
            elif arg.buffer.lifetime is Lifetime.TEMP:
                yield ARENA
            else:
                yield numbers[bound.memory.addresses[arg.buffer]]
        if thunk.kind == "copy":
            yield LITERAL
            yield MEMMOVE
