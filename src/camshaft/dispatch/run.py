"""Runs one variant of one op directly, on this thread, with guard bytes: what validation, eager calls and the table test use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from camshaft.backends.cpu.device import CpuDevice, CpuKernel, native_function
from camshaft.errors import BackendError
from camshaft.extent import Extent
from camshaft.ops.launch import Signature, operand_part, program_count, signature
from camshaft.ops.op import Build, HostCall, KernelVariant, Launch, NativeCall, NodeSpec, Operand
from camshaft.ops.spec import TensorSpec

GUARD_NBYTES = 64
GUARD_BYTE = 0xA5
Array = np.ndarray[Any, Any]


def guarded(spec: TensorSpec) -> Array:
    """Bytes for a tensor, 64-byte aligned, between guard bytes; the tensor's bytes too are set to the guard."""
    span = spec.nbytes + 2 * GUARD_NBYTES
    raw = np.full(span + 64, GUARD_BYTE, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + span]


def check_guards(memory: Array, what: str) -> None:
    """BackendError if a byte outside of the tensor changed."""
    if (memory[:GUARD_NBYTES] != GUARD_BYTE).any() or (memory[-GUARD_NBYTES:] != GUARD_BYTE).any():
        raise BackendError(f"{what} wrote outside of its tensor")


def view(memory: Array, spec: TensorSpec) -> Array:
    """A plain tensor's elements inside guarded memory, at its bounds."""
    inner = memory[GUARD_NBYTES : len(memory) - GUARD_NBYTES]
    if spec.is_plain:
        return inner.view(spec.parts[0].dtype.numpy).reshape(spec.bounds)
    return inner


def run_variant(
    variant: KernelVariant,
    node: NodeSpec,
    device: CpuDevice,
    inputs: Sequence[Array],
    extents: Mapping[Extent, int] | None = None,
) -> tuple[Array, ...]:
    """Outputs of the variant (at their bounds), then the new values of the inputs that it updates in place.

    Inputs are given in the layout of their specs: elements for plain tensors, bytes for others.
    """
    build = variant.build(node, device)
    memories = {("input", i): _filled(s, a) for i, (s, a) in enumerate(zip(node.inputs, inputs, strict=True))}
    memories |= {("output", i): guarded(s) for i, s in enumerate(node.outputs)}
    outputs = [view(memories["output", i], s) for i, s in enumerate(node.outputs)]
    if isinstance(build, HostCall):
        build.function(node, [view(memories["input", i], s) for i, s in enumerate(node.inputs)], outputs)
    else:
        memories |= {("scratch", i): guarded(s) for i, s in enumerate(build.scratch)}
        for launch in build.launches:
            _launch(launch, node, build, device, memories, dict(extents or {}))
    for (kind, index), memory in memories.items():
        check_guards(memory, f"{variant.name} ({kind} {index})")
    updated = [view(memories["input", i], node.inputs[i]) for i in _updated(build)]
    return (*outputs, *updated)


def _updated(build: Build | HostCall) -> list[int]:
    if isinstance(build, HostCall):
        return []
    return sorted({o.index for la in build.launches for o in la.arrays if o.kind == "input" and o.access != "read"})


def _filled(spec: TensorSpec, array: Array) -> Array:
    memory = guarded(spec)
    raw = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
    memory[GUARD_NBYTES : GUARD_NBYTES + len(raw)] = raw
    return memory


def compile_launch(launch: Launch | NativeCall, made: Signature, device: CpuDevice) -> CpuKernel:
    """The machine code of a launch whose `signature` is `made`; both kinds have the entry ABI (args, first, last)."""
    if isinstance(launch, NativeCall):
        return native_function(launch.name, f"{launch.name}|{launch.digest}", launch.llvm_ir, vectorize=False)
    return device.compile(launch.kernel, made.arrays, made.scalar_names, launch.constants, made.grid, launch.lanes)


def _launch(
    launch: Launch | NativeCall,
    node: NodeSpec,
    build: Build,
    device: CpuDevice,
    memories: Mapping[tuple[str, int], Array],
    active: dict[Extent, int],
) -> None:
    made = signature(launch, node, build)
    code = compile_launch(launch, made, device)
    run_block = np.array([active.get(e, e.bound) for e in made.scalars], np.int64)
    addresses = [_address(o, node, build, memories) for o in launch.arrays]
    addresses += [launch.words.ctypes.data] if isinstance(launch, NativeCall) else []
    addresses += [run_block.ctypes.data + 8 * i for i in range(len(made.scalars))]
    args = np.array(addresses, np.int64)
    code(args.ctypes.data, 0, program_count(launch, {e: active.get(e, e.bound) for e in _extents(launch)}))


def _extents(launch: Launch | NativeCall) -> list[Extent]:
    return [c.dim for c in launch.grid if isinstance(c.dim, Extent)]


def _address(operand: Operand, node: NodeSpec, build: Build, memories: Mapping[tuple[str, int], Array]) -> int:
    memory = memories[operand.kind, operand.index]
    return int(memory.ctypes.data) + GUARD_NBYTES + operand_part(operand, node, build).offset_nbytes
