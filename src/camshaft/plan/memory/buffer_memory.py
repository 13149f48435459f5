"""The memory of a plan's named tensors and constants: the caller's, shared weights, or allocated by the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from camshaft.backends.device import HOST, Device, Memory
from camshaft.errors import PlanError
from camshaft.graph.graph import Graph, Tensor, root
from camshaft.ops.spec import TensorSpec
from camshaft.plan.buffers import Buffer, Lifetime
from camshaft.plan.lowering.lower import Lowered
from camshaft.plan.lowering.spaces import is_unified
from camshaft.plan.memory.allocate import host_memory
from camshaft.plan.memory.device_memory import DeviceArray
from camshaft.plan.memory.weights import Weights

Array = np.ndarray[Any, Any]


@dataclass
class BufferMemory:
    """The memory of all buffers but temporaries: `arrays` on the host, `memories` on devices, of which the plan owns `own`."""

    arrays: dict[Buffer, Array] = field(default_factory=dict)
    memories: dict[Buffer, Memory] = field(default_factory=dict)
    own: list[Memory] = field(default_factory=list)

    def view(self, buffer: Buffer, spec: TensorSpec, devices: Mapping[str, Device]) -> Array | DeviceArray:
        """Returns a tensor in the buffer as an array if the host can address it, else as a DeviceArray."""
        if buffer.space == HOST:
            return _elements(self.arrays[buffer], spec)
        device, memory = devices[buffer.space], self.memories[buffer]
        if is_unified(device):
            return _elements(memory.array(), spec)  # type: ignore[attr-defined]  # such a device's memory has it
        return DeviceArray(device, memory, spec)


def _elements(memory: Array, spec: TensorSpec) -> Array:
    if not spec.is_plain:
        return memory
    raw = memory.reshape(-1).view(np.uint8)[: spec.nbytes]
    return raw.view(spec.parts[0].dtype.numpy).reshape(spec.bounds)


def given_memory(graph: Graph, memory: Mapping[str, Array | DeviceArray]) -> dict[Tensor, Array | DeviceArray]:
    """Returns the caller's memory by root tensor, for names of this graph. Raises PlanError for memory that does not fit."""
    named = {**graph.inputs, **graph.states, **graph.outputs}
    return {root(named[name]): _checked(named[name], name, given) for name, given in memory.items() if name in named}


def _checked(tensor: Tensor, name: str, given: Array | DeviceArray) -> Array | DeviceArray:
    """Returns `given`, which may be larger than the tensor."""
    spec = tensor.spec
    if isinstance(given, DeviceArray):
        if given.spec.dtype != spec.dtype or given.nbytes < spec.nbytes:
            raise PlanError(f"compile: memory for {name!r} came as {given.spec} on {given.device.name}; wanted {spec}")
        return given
    if not isinstance(given, np.ndarray):
        raise PlanError(
            f"compile: memory for {name!r} came as {type(given).__name__}; wanted an array or a DeviceArray"
        )
    dtype = spec.parts[0].dtype.numpy if spec.is_plain else np.dtype(np.uint8)
    if given.dtype not in (dtype, np.uint8) or not given.flags.c_contiguous or given.nbytes < spec.nbytes:
        raise PlanError(
            f"compile: memory for {name!r} came as {given.dtype} {list(given.shape)}, {given.nbytes} bytes; wanted {spec}, "
            f"{spec.nbytes} contiguous bytes"
        )
    return given


def allocate_buffers(
    lowered: Lowered, weights: Weights, given: Mapping[Tensor, Array | DeviceArray], threads: int
) -> BufferMemory:
    """Returns memory for every buffer but temporaries, constants loaded. Raises BackendError if a device has too little."""
    _load_constants(lowered, weights, threads)
    made = BufferMemory(dict(lowered.made))
    for (tensor, space), buffer in lowered.residency.buffers.items():
        if buffer.lifetime is Lifetime.TEMP:
            continue
        memory: Array | Memory
        if tensor.kind == "constant":
            memory = weights.memory(tensor) if space == HOST else weights.uploaded(tensor, space)
        elif tensor in given:
            there = given[tensor]
            memory = (
                there.memory if isinstance(there, DeviceArray) else there.reshape(-1).view(np.uint8)[: buffer.nbytes]
            )
        elif space == HOST:
            memory = host_memory(buffer.name, buffer.nbytes, 64)
        else:
            memory = lowered.devices[space].allocate(buffer.nbytes)
            made.own.append(memory)
        if isinstance(memory, np.ndarray):
            made.arrays[buffer] = memory
        else:
            made.memories[buffer] = memory
    return made


def _load_constants(lowered: Lowered, weights: Weights, threads: int) -> None:
    constants: dict[str, list[Tensor]] = {HOST: []}
    for tensor, space in lowered.residency.buffers:
        if tensor.kind == "constant":
            constants.setdefault(space, []).append(tensor)
    weights.prepare(constants.pop(HOST), threads)
    for space, tensors in constants.items():
        weights.upload(tensors, lowered.devices[space], threads)
