"""Run one variant of one op on arrays, outside any plan, with guard bytes around every tensor; check a variant's answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from numbers import Real
from typing import Any

import numpy as np

from camshaft.backends.cpu.device import CpuKernel, native_function
from camshaft.backends.device import HOST, Command, CompiledKernel, Device, LaunchCommand, Memory, Place
from camshaft.errors import BackendError, CamshaftError
from camshaft.extent import Extent
from camshaft.ops.kernels.launch import Signature, operand_part, program_factors, signature
from camshaft.ops.kernels.run_time_sizes import RunTimeForm, run_time_form
from camshaft.ops.op import Build, HostCall, KernelVariant, Launch, NativeCall, NodeSpec, Op, Operand
from camshaft.ops.spec import TensorSpec
from camshaft.store.files import digest_of

GUARD_NBYTES = 64
GUARD_BYTE = 0xA5
Array = np.ndarray[Any, Any]
Key = tuple[str, int]


@dataclass(frozen=True)
class MemoryFill:
    """Initial memory of a run: the byte that fills outputs and scratch, and whether plain tensors start one element after a
    64-byte boundary, as a caller's arrays may."""

    fill: int = GUARD_BYTE
    shifted: bool = False


# Bytes 0xA5 as f32 are -3e-16, so a kernel that adds to an unset output passes by accident; bytes 0xFF are NaN.
UNALIGNED_NAN = MemoryFill(0xFF, shifted=True)


def guarded(spec: TensorSpec, guard_nbytes: int = GUARD_NBYTES, memory_fill: MemoryFill | None = None) -> Array:
    """Allocate memory for a tensor, 64-byte aligned, between guard bytes, filled with GUARD_BYTE or as `memory_fill` says."""
    span = -(-spec.nbytes // 4) * 4 + 2 * guard_nbytes
    raw = np.full(span + 128, GUARD_BYTE, np.uint8)
    start = -raw.ctypes.data % 64
    if memory_fill is not None:
        start += spec.parts[0].dtype.numpy.itemsize if memory_fill.shifted and spec.is_plain else 0
        raw[start + guard_nbytes : start + guard_nbytes + spec.nbytes] = memory_fill.fill
    return raw[start : start + span]


def check_guards(memory: Array, spec: TensorSpec, what: str, guard_nbytes: int = GUARD_NBYTES) -> None:
    """Raise BackendError if a guard byte changed."""
    after = memory[guard_nbytes + spec.nbytes :]
    if (memory[:guard_nbytes] != GUARD_BYTE).any() or (after != GUARD_BYTE).any():
        raise BackendError(f"{what} wrote outside of its tensor")


def view(memory: Array, spec: TensorSpec, guard_nbytes: int = GUARD_NBYTES) -> Array:
    """The tensor inside guarded memory: elements at its bounds for a plain tensor, bytes otherwise."""
    inner = memory[guard_nbytes : guard_nbytes + spec.nbytes]
    if spec.is_plain:
        return inner.view(spec.parts[0].dtype.numpy).reshape(spec.bounds)
    return inner


def refusal_of(variant: KernelVariant, node: NodeSpec, device: Device) -> str | None:
    """The reason why the device cannot compile the variant's kernels for a node, or None. Compiles nothing."""
    if device.backend in ("scalar", "simd", "blas"):
        return None
    build = variant.build(node, device)
    if isinstance(build, HostCall):
        return None
    for launch in build.launches:
        if isinstance(launch, NativeCall):
            return f"{launch.name} calls functions of this process, which only the CPU can"
        reason = device.refusal(signature(launch, node, build).request(launch))
        if reason is not None:
            return reason
    return None


def refusal_on(op: Op, variant: KernelVariant, node: NodeSpec, target: Device) -> str | None:
    """The reason why the variant cannot run the node on `target`, or None. Raises BackendError if the variant's functions
    raise, or return anything else."""
    refusal = _call(op, variant, "supports", lambda: variant.supports(node, target))
    if not isinstance(refusal, (str, type(None))):  # booleans would be misread: True would mean a refusal
        raise BackendError(
            f"{op.name}/{variant.name}: supports returned {refusal!r}; wanted None or the reason as text"
        )
    checked: str | None = refusal or _call(op, variant, "build", lambda: refusal_of(variant, node, target))
    return checked


def cost_on(op: Op, variant: KernelVariant, node: NodeSpec, target: Device) -> float:
    """The variant's cost estimate in nanoseconds. Raises BackendError unless it is a finite number of 0 or more."""
    cost = _call(op, variant, "cost", lambda: variant.cost(node, target))
    if not isinstance(cost, Real) or not isfinite(cost) or cost < 0:
        raise BackendError(f"{op.name}/{variant.name}: cost returned {cost!r}; wanted nanoseconds, 0 or more")
    return float(cost)


def _call(op: Op, variant: KernelVariant, what: str, function: Callable[[], Any]) -> Any:
    try:
        return function()
    except CamshaftError:
        raise
    except Exception as error:
        raise BackendError(f"{op.name}/{variant.name}: {what} raised {type(error).__name__}: {error}") from error


def run_variant(
    variant: KernelVariant,
    node: NodeSpec,
    device: Device,
    inputs: Sequence[Array],
    extents: Mapping[Extent, int] | None = None,
    memory_fill: MemoryFill | None = None,
    run_time_sizes: bool = False,
) -> tuple[Array, ...]:
    """Return the variant's outputs (at their bounds), then the new values of the inputs that it updates in place.

    `inputs` are elements for plain tensors and bytes for other layouts. `run_time_sizes`: in the form of eager calls, where a
    launch has one.
    """
    build = variant.build(node, device)
    guard = max(GUARD_NBYTES, device.limits.get("alignment", 1))
    specs: dict[Key, TensorSpec] = {("input", i): s for i, s in enumerate(node.inputs)}
    specs |= {("output", i): s for i, s in enumerate(node.outputs)}
    specs |= {("scratch", i): s for i, s in enumerate(() if isinstance(build, HostCall) else build.scratch)}
    memories = {key: guarded(spec, guard, memory_fill) for key, spec in specs.items()}
    for i, array in enumerate(inputs):
        raw = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
        memories["input", i][guard : guard + len(raw)] = raw
    views = {key: view(memories[key], spec, guard) for key, spec in specs.items()}
    outputs = [views["output", i] for i in range(len(node.outputs))]
    if isinstance(build, HostCall):
        build.function(node, [views["input", i] for i in range(len(node.inputs))], outputs)
    elif device.space == HOST:
        for launch in build.launches:
            form = run_time_form(launch, node, build, device) if run_time_sizes else None
            if form is None:
                _launch(launch, node, build, device, memories, dict(extents or {}))
            else:
                _launch_form(form, [_address(o, node, build, memories) for o in launch.arrays], device)
    else:
        _run_on(device, node, build, memories, dict(extents or {}), guard)
    for key, spec in specs.items():
        check_guards(memories[key], spec, f"{variant.name} ({key[0]} {key[1]})", guard)
    return (*outputs, *(views["input", i] for i in updated(build)))


def updated(build: Build | HostCall) -> list[int]:
    """The indices of the inputs that a build writes in place."""
    if isinstance(build, HostCall):
        return []
    return sorted({o.index for la in build.launches for o in la.arrays if o.kind == "input" and o.access != "read"})


def has_run_time_form(variant: KernelVariant, node: NodeSpec, device: Device) -> bool:
    """Whether `run_time_sizes` changes what runs."""
    build = variant.build(node, device)
    if isinstance(build, HostCall):
        return False
    return any(run_time_form(launch, node, build, device) is not None for launch in build.launches)


def compile_launch(launch: Launch | NativeCall, params: Signature, device: Device) -> CompiledKernel:
    """Compile a launch with this signature; on a HOST device the code has the entry ABI (args, first, last)."""
    if isinstance(launch, NativeCall):
        return native_function(launch.name, digest_of(launch.name, launch.digest), launch.llvm_ir, vectorize=False)
    return device.compile(params.request(launch))


def _launch(
    launch: Launch | NativeCall,
    node: NodeSpec,
    build: Build,
    device: Device,
    memories: Mapping[Key, Array],
    active: dict[Extent, int],
) -> None:
    params = signature(launch, node, build)
    code = native_code(compile_launch(launch, params, device))
    run_block = np.array([active.get(e, e.bound) for e in params.scalars], np.int64)
    addresses = [_address(o, node, build, memories) for o in launch.arrays]
    addresses += [launch.words.ctypes.data] if isinstance(launch, NativeCall) else []
    addresses += [run_block.ctypes.data + 8 * i for i in range(len(params.scalars))]
    args = np.array(addresses, np.int64)
    constant, factors = program_factors(launch)
    for extent, divisor in factors:
        constant *= -(-active.get(extent, extent.bound) // divisor)
    code(args.ctypes.data, 0, constant)


def _launch_form(form: RunTimeForm, addresses: Sequence[int], device: Device) -> None:
    values = np.array(form.values, np.int64)
    args = np.array([*addresses, *(values.ctypes.data + 8 * np.arange(len(values)))], np.int64)
    native_code(form.compile(device))(args.ctypes.data, 0, form.programs)


def native_code(code: CompiledKernel) -> CpuKernel:
    """Check that `code` is callable in this process. Raises BackendError for the code of another device."""
    if not hasattr(code, "address"):
        raise BackendError(f"kernel {code.name} has no address in this process; wanted a kernel of a CPU device")
    return code  # type: ignore[return-value]


def _address(operand: Operand, node: NodeSpec, build: Build, memories: Mapping[Key, Array]) -> int:
    memory = memories[operand.kind, operand.index]
    return int(memory.ctypes.data) + GUARD_NBYTES + operand_part(operand, node, build).offset_nbytes


def commands_of(
    node: NodeSpec, build: Build, device: Device, memories: Mapping[Key, Memory], extents: Sequence[Extent], start: int
) -> list[Command]:
    """The launches of a build as commands. Each tensor starts `start` bytes into its memory; `extents` gives the order of the
    run's active values."""
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
    params = signature(launch, node, build)
    places = []
    for operand in launch.arrays:
        part = operand_part(operand, node, build)
        places.append(Place(memories[operand.kind, operand.index], start + part.offset_nbytes, part.nbytes))
    constant, factors = program_factors(launch)
    scalars = tuple(extents.index(e) for e in params.scalars)
    indexed = tuple((extents.index(e), divisor) for e, divisor in factors)
    code = compile_launch(launch, params, device)
    return LaunchCommand(launch.name, code, tuple(places), scalars, constant, indexed)


def extents_of(build: Build, node: NodeSpec) -> list[Extent]:
    """Every Extent on which the launches depend."""
    return list(dict.fromkeys(e for launch in build.launches for e in signature(launch, node, build).scalars))


def _run_on(
    device: Device, node: NodeSpec, build: Build, memories: dict[Key, Array], active: dict[Extent, int], guard: int
) -> None:
    """Run on a device's own memory: copy everything in, launch, copy everything out."""
    extents = extents_of(build, node)
    device_memories = {key: device.allocate(memory.nbytes) for key, memory in memories.items()}
    try:
        for key, memory in memories.items():
            device_memories[key].write(memory)
        run = device.bind(commands_of(node, build, device, device_memories, extents, guard), len(extents))
        run.submit([active.get(e, e.bound) for e in extents])
        run.wait()
        for key, memory in memories.items():
            memory[:] = device_memories[key].read()
        run.close()
    finally:
        for device_memory in device_memories.values():
            device_memory.close()
