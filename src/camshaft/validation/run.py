"""Runs one variant of one op directly, with guard bytes: what validation, eager calls and the table test use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from camshaft.backends.cpu.device import CpuKernel, native_function
from camshaft.backends.device import HOST, Command, CompiledKernel, Device, LaunchCommand, Memory, Place
from camshaft.errors import BackendError
from camshaft.extent import Extent
from camshaft.ops.kernels.launch import Signature, operand_part, program_factors, signature
from camshaft.ops.op import Build, HostCall, KernelVariant, Launch, NativeCall, NodeSpec, Operand
from camshaft.ops.spec import TensorSpec

GUARD_NBYTES = 64
GUARD_BYTE = 0xA5
Array = np.ndarray[Any, Any]
Key = tuple[str, int]


@dataclass(frozen=True)
class MemoryFill:
    """What a run finds: the byte that outputs and scratch are full of, and whether plain tensors begin one element past a
    multiple of 64 bytes, as the arrays of a caller may."""

    fill: int = GUARD_BYTE
    shifted: bool = False


# As f32, bytes of 0xA5 are -3e-16: what adds to an output that it never set is right on them, but not on these, which are NaN.
OTHER_GROUND = MemoryFill(0xFF, shifted=True)


def guarded(spec: TensorSpec, guard_nbytes: int = GUARD_NBYTES, ground: MemoryFill | None = None) -> Array:
    """Bytes for a tensor, 64-byte aligned, between guard bytes; the tensor's bytes too are set to the guard, or as the ground
    has it."""
    span = -(-spec.nbytes // 4) * 4 + 2 * guard_nbytes
    raw = np.full(span + 128, GUARD_BYTE, np.uint8)
    start = -raw.ctypes.data % 64
    if ground is not None:
        start += spec.parts[0].dtype.numpy.itemsize if ground.shifted and spec.is_plain else 0
        raw[start + guard_nbytes : start + guard_nbytes + spec.nbytes] = ground.fill
    return raw[start : start + span]


def check_guards(memory: Array, spec: TensorSpec, what: str, guard_nbytes: int = GUARD_NBYTES) -> None:
    """BackendError if a byte outside of the tensor changed."""
    after = memory[guard_nbytes + spec.nbytes :]
    if (memory[:guard_nbytes] != GUARD_BYTE).any() or (after != GUARD_BYTE).any():
        raise BackendError(f"{what} wrote outside of its tensor")


def view(memory: Array, spec: TensorSpec, guard_nbytes: int = GUARD_NBYTES) -> Array:
    """A plain tensor's elements inside guarded memory, at its bounds."""
    inner = memory[guard_nbytes : guard_nbytes + spec.nbytes]
    if spec.is_plain:
        return inner.view(spec.parts[0].dtype.numpy).reshape(spec.bounds)
    return inner


def refusal_of(variant: KernelVariant, node: NodeSpec, device: Device) -> str | None:
    """None, or why the device cannot have the kernels that the variant makes of a node. Nothing is compiled."""
    if device.backend in ("scalar", "simd", "blas"):
        return None
    build = variant.build(node, device)
    if isinstance(build, HostCall):
        return None
    for launch in build.launches:
        if isinstance(launch, NativeCall):
            return f"{launch.name} calls functions of this process, which only its own CPU can"
        made = signature(launch, node, build)
        args = made.arrays, made.scalar_names, launch.constants, made.grid, launch.lanes
        reason = device.refusal(launch.kernel, *args)
        if reason is not None:
            return reason
    return None


def run_variant(
    variant: KernelVariant,
    node: NodeSpec,
    device: Device,
    inputs: Sequence[Array],
    extents: Mapping[Extent, int] | None = None,
    ground: MemoryFill | None = None,
) -> tuple[Array, ...]:
    """Outputs of the variant (at their bounds), then the new values of the inputs that it updates in place.

    Inputs are given in the layout of their specs: elements for plain tensors, bytes for others.
    """
    build = variant.build(node, device)
    guard = max(GUARD_NBYTES, device.limits.get("alignment", 1))
    specs: dict[Key, TensorSpec] = {("input", i): s for i, s in enumerate(node.inputs)}
    specs |= {("output", i): s for i, s in enumerate(node.outputs)}
    specs |= {("scratch", i): s for i, s in enumerate(() if isinstance(build, HostCall) else build.scratch)}
    memories = {key: guarded(spec, guard, ground) for key, spec in specs.items()}
    for i, array in enumerate(inputs):
        raw = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
        memories["input", i][guard : guard + len(raw)] = raw
    views = {key: view(memories[key], spec, guard) for key, spec in specs.items()}
    outputs = [views["output", i] for i in range(len(node.outputs))]
    if isinstance(build, HostCall):
        build.function(node, [views["input", i] for i in range(len(node.inputs))], outputs)
    elif device.space == HOST:
        for launch in build.launches:
            _launch(launch, node, build, device, memories, dict(extents or {}))
    else:
        _run_on(device, node, build, memories, dict(extents or {}), guard)
    for key, spec in specs.items():
        check_guards(memories[key], spec, f"{variant.name} ({key[0]} {key[1]})", guard)
    return (*outputs, *(views["input", i] for i in updated(build)))


def updated(build: Build | HostCall) -> list[int]:
    """The inputs that a build writes in place."""
    if isinstance(build, HostCall):
        return []
    return sorted({o.index for la in build.launches for o in la.arrays if o.kind == "input" and o.access != "read"})


def compile_launch(launch: Launch | NativeCall, made: Signature, device: Device) -> CompiledKernel:
    """The code of a launch whose `signature` is `made`; on a HOST device with the entry ABI (args, first, last)."""
    if isinstance(launch, NativeCall):
        return native_function(launch.name, f"{launch.name}|{launch.digest}", launch.llvm_ir, vectorize=False)
    return device.compile(launch.kernel, made.arrays, made.scalar_names, launch.constants, made.grid, launch.lanes)


def _launch(
    launch: Launch | NativeCall,
    node: NodeSpec,
    build: Build,
    device: Device,
    memories: Mapping[Key, Array],
    active: dict[Extent, int],
) -> None:
    made = signature(launch, node, build)
    code = native_code(compile_launch(launch, made, device))
    run_block = np.array([active.get(e, e.bound) for e in made.scalars], np.int64)
    addresses = [_address(o, node, build, memories) for o in launch.arrays]
    addresses += [launch.words.ctypes.data] if isinstance(launch, NativeCall) else []
    addresses += [run_block.ctypes.data + 8 * i for i in range(len(made.scalars))]
    args = np.array(addresses, np.int64)
    constant, factors = program_factors(launch)
    for extent, divisor in factors:
        constant *= -(-active.get(extent, extent.bound) // divisor)
    code(args.ctypes.data, 0, constant)


def native_code(code: CompiledKernel) -> CpuKernel:
    """The code of a HOST device, to call. BackendError for that of another."""
    if not hasattr(code, "address"):
        raise BackendError(f"kernel {code.name} has no address in this process")
    return code  # type: ignore[return-value]


def _address(operand: Operand, node: NodeSpec, build: Build, memories: Mapping[Key, Array]) -> int:
    memory = memories[operand.kind, operand.index]
    return int(memory.ctypes.data) + GUARD_NBYTES + operand_part(operand, node, build).offset_nbytes


def commands_of(
    node: NodeSpec, build: Build, device: Device, memories: Mapping[Key, Memory], extents: Sequence[Extent], start: int
) -> list[Command]:
    """The launches of a build as commands. Each tensor lies `start` bytes into its memory; `extents` is the order of the active
    values that the run is given."""
    return [_command(launch, node, build, device, memories, extents, start) for launch in build.launches]


def _command(
    launch: Launch | NativeCall,
    node: NodeSpec,
    build: Build,
    device: Device,
    memories: Mapping[Key, Memory],
    extents: Sequence[Extent],
    start: int,
) -> LaunchCommand:
    made = signature(launch, node, build)
    places = []
    for operand in launch.arrays:
        part = operand_part(operand, node, build)
        places.append(Place(memories[operand.kind, operand.index], start + part.offset_nbytes, part.nbytes))
    constant, factors = program_factors(launch)
    scalars = tuple(extents.index(e) for e in made.scalars)
    indexed = tuple((extents.index(e), divisor) for e, divisor in factors)
    code = compile_launch(launch, made, device)
    return LaunchCommand(launch.name, code, tuple(places), scalars, constant, indexed)


def extents_of(build: Build, node: NodeSpec) -> list[Extent]:
    """Every Extent that the launches depend on."""
    return list(dict.fromkeys(e for launch in build.launches for e in signature(launch, node, build).scalars))


def _run_on(
    device: Device, node: NodeSpec, build: Build, memories: dict[Key, Array], active: dict[Extent, int], guard: int
) -> None:
    """Runs on memory of the device: everything in, the launches, everything out."""
    extents = extents_of(build, node)
    there = {key: device.allocate(memory.nbytes) for key, memory in memories.items()}
    try:
        for key, memory in memories.items():
            there[key].write(memory)
        run = device.bind(commands_of(node, build, device, there, extents, guard), len(extents))
        run.submit([active.get(e, e.bound) for e in extents])
        run.wait()
        for key, memory in memories.items():
            memory[:] = there[key].read()
        run.close()
    finally:
        for memory_there in there.values():
            memory_there.close()
