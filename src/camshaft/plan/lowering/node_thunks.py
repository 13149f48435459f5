"""Build a node's chosen variant and make its thunks over given buffers."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np

from camshaft.backends.device import HOST, CompiledKernel, Device
from camshaft.extent import Extent
from camshaft.graph.custom import CustomOp, PointerCall
from camshaft.graph.node import Node
from camshaft.ops.kernels.launch import operand_part, signature
from camshaft.ops.op import Build, HostCall, Launch, NativeCall, NodeSpec
from camshaft.ops.spec import Part, TensorSpec
from camshaft.plan.buffers import Buffer, BufferSlice, BufferUse, Lifetime
from camshaft.plan.schedule import Programs, Thunk
from camshaft.selection.choice import Choice
from camshaft.validation.run import compile_launch

_ALIGNMENT = 64


@dataclass(frozen=True)
class CompiledLaunch:
    """A launch with its arrays' parts, its run-time scalars and its code."""

    launch: Launch | NativeCall
    parts: tuple[Part, ...]
    scalars: tuple[Extent, ...]
    programs: Programs
    code: CompiledKernel


@dataclass(frozen=True)
class Compiled:
    """A Build whose launches are compiled."""

    scratch: tuple[TensorSpec, ...]
    launches: tuple[CompiledLaunch, ...]


# A tensor's memory: a whole buffer or a slice.
Piece: TypeAlias = Buffer | BufferSlice
Built: TypeAlias = Compiled | HostCall | PointerCall


@dataclass(frozen=True, slots=True)
class NodeRange:
    """Thunks [first, last) compute the node with its choice; `inputs` and `outputs` are its tensors' memory.

    For profiles and debug output.
    """

    node: Node
    choice: Choice
    first: int
    last: int
    inputs: tuple[Piece, ...]
    outputs: tuple[Piece, ...]

    def __repr__(self) -> str:
        return f"NodeRange({self.node.name!r}: thunks {self.first} to {self.last - 1})"


def build_variant(spec: NodeSpec, choice: Choice, builds: dict[Hashable, Built]) -> Built:
    """Returns the chosen variant, built and compiled for the specs; `builds` caches those with equal specs."""
    key = (id(choice.variant), choice.device.name, spec.key)
    if key not in builds:
        builds[key] = _build(spec, choice)
    return builds[key]


def _build(spec: NodeSpec, choice: Choice) -> Built:
    if isinstance(choice.op, CustomOp):
        return choice.op.call
    build = choice.variant.build(spec, choice.device)
    if isinstance(build, HostCall):
        return build
    return Compiled(build.scratch, tuple(_compiled(launch, spec, choice.device, build) for launch in build.launches))


def _compiled(launch: Launch | NativeCall, spec: NodeSpec, device: Device, build: Build) -> CompiledLaunch:
    made = signature(launch, spec, build)
    parts = tuple(operand_part(operand, spec, build) for operand in launch.arrays)
    code = compile_launch(launch, made, device)
    return CompiledLaunch(launch, parts, made.scalars, programs(launch), code)


def programs(launch: Launch | NativeCall) -> Programs:
    """Returns the launch's number of programs as a formula over its Extents."""
    fixed = prod(-(-c.dim // c.per) for c in launch.grid if isinstance(c.dim, int))
    return Programs(fixed, tuple((c.dim, c.per) for c in launch.grid if isinstance(c.dim, Extent)))


def space_of(made: Built, choice: Choice) -> str:
    """Returns the space of the memory that the thunks access."""
    return choice.device.space if isinstance(made, Compiled) else HOST


def alignment_of(device: Device) -> int:
    """Returns the alignment of buffers on a device in bytes."""
    return max(_ALIGNMENT, device.limits.get("alignment", 1))


def thunks_of(
    node: Node,
    choice: Choice,
    made: Built,
    inputs: Sequence[Piece],
    outputs: Sequence[Piece],
    constants: dict[Buffer, np.ndarray[Any, Any]],
) -> list[Thunk]:
    """Returns the node's thunks in order, over its inputs and outputs. Adds the constants that they need to `constants`."""
    if isinstance(made, HostCall):
        return [_host_thunk(node, choice, made, inputs, outputs)]
    if isinstance(made, PointerCall):
        return [_pointer_thunk(node, choice, made, inputs, outputs)]
    memory: dict[str, Sequence[Piece]] = {
        "input": inputs,
        "output": outputs,
        "scratch": _scratch(node, choice.device, made),
    }
    names = [f"{node.name}/{i}" if len(made.launches) > 1 else node.name for i in range(len(made.launches))]
    return [_kernel_thunk(name, choice, m, memory, constants) for name, m in zip(names, made.launches, strict=True)]


def _scratch(node: Node, device: Device, made: Compiled) -> tuple[Buffer, ...]:
    return tuple(
        Buffer(f"{node.name}.scratch{i}", spec.nbytes, Lifetime.TEMP, alignment_of(device), device.space)
        for i, spec in enumerate(made.scratch)
    )


def _kernel_thunk(
    name: str,
    choice: Choice,
    made: CompiledLaunch,
    memory: Mapping[str, Sequence[Piece]],
    constants: dict[Buffer, np.ndarray[Any, Any]],
) -> Thunk:
    launch = made.launch
    slices, uses = [], []
    for operand, part in zip(launch.arrays, made.parts, strict=True):
        piece = memory[operand.kind][operand.index].slice(part.offset_nbytes, part.nbytes)
        slices.append(piece)
        if operand.access in ("read", "update"):
            uses.append(BufferUse(piece, "read"))
        if operand.access in ("write", "update"):
            uses.append(BufferUse(piece, "write"))
    if isinstance(launch, NativeCall):
        words = Buffer(f"{name}.words", launch.words.nbytes, Lifetime.CONSTANT, alignment=8)
        constants[words] = launch.words
        slices.append(words.slice())
        uses.append(BufferUse(words.slice(), "read"))
    args: tuple[BufferSlice | Extent, ...] = (*slices, *made.scalars)
    op, variant, device = choice.op.name, choice.variant.label, choice.device
    # `device` is a space; the reason names the CPU's other backends (cpu:c, ...), whose space is the host too.
    reason = choice.reason if device.space != HOST or device.name == "cpu" else f"on {device.name}: {choice.reason}"
    return Thunk(name, op, variant, reason, "kernel", made.code, args, tuple(uses), made.programs, device.space)


def _uses(
    node: Node, inputs: Sequence[Piece], outputs: Sequence[Piece]
) -> tuple[tuple[BufferSlice, ...], tuple[BufferUse, ...]]:
    """Returns slices of the whole inputs and outputs, and their accesses."""
    specs = (*node.spec.inputs, *node.spec.outputs)
    slices = tuple(b.slice(0, s.nbytes) for b, s in zip((*inputs, *outputs), specs, strict=True))
    uses = [BufferUse(s, "read") for s in slices[: len(inputs)]]
    uses += [BufferUse(slices[i], "write") for i in (*node.op.updates, *range(len(inputs), len(slices)))]
    return slices, tuple(uses)


def extents_in(specs: Sequence[TensorSpec]) -> tuple[Extent, ...]:
    """Returns the Extents of shapes in order of first appearance."""
    return tuple(dict.fromkeys(d for spec in specs for d in spec.shape if isinstance(d, Extent)))


def _host_thunk(node: Node, choice: Choice, call: HostCall, inputs: Sequence[Piece], outputs: Sequence[Piece]) -> Thunk:
    slices, uses = _uses(node, inputs, outputs)
    spec, n_inputs = node.spec, len(inputs)
    specs = (*spec.inputs, *spec.outputs)
    extents = extents_in(specs) if call.active else ()

    def run(*args: Any) -> None:
        active = dict(zip(extents, args[len(slices) :], strict=True))
        arrays = [_array(m, s, active) for m, s in zip(args[: len(slices)], specs, strict=True)]
        call.function(spec, arrays[:n_inputs], arrays[n_inputs:])

    op, variant = choice.op.name, choice.variant.name
    return Thunk(node.name, op, variant, choice.reason, "host", run, (*slices, *extents), uses)


def _array(memory: memoryview, spec: TensorSpec, active: Mapping[Extent, int]) -> np.ndarray[Any, Any]:
    """Returns a plain tensor's elements up to the given active extents, or all bytes of a blocked one."""
    raw = np.frombuffer(memory, np.uint8)
    if not spec.is_plain:
        return raw
    whole = raw.view(spec.parts[0].dtype.numpy).reshape(spec.bounds)
    return whole[tuple(slice(active.get(d, d.bound)) if isinstance(d, Extent) else slice(None) for d in spec.shape)]


def _pointer_thunk(
    node: Node, choice: Choice, call: PointerCall, inputs: Sequence[Piece], outputs: Sequence[Piece]
) -> Thunk:
    slices, uses = _uses(node, inputs, outputs)
    args: tuple[BufferSlice | Extent, ...] = (*slices, *extents_in((*node.spec.inputs, *node.spec.outputs)))
    count = Programs(1, ((call.programs, 1),)) if isinstance(call.programs, Extent) else Programs(call.programs)
    op, variant = choice.op.name, choice.variant.name
    return Thunk(node.name, op, variant, choice.reason, "kernel", call, args, uses, count)
