"""From a graph to thunks: a variant is chosen and built for each node, and its launches become thunks over buffers.

After graph/passes, before memory.py. Views and packed constants share their root's buffer and make no thunk.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeAlias

import numpy as np

from camshaft.backends.cpu.device import CpuKernel
from camshaft.dispatch.run import compile_launch, native_code
from camshaft.dispatch.select import Choice
from camshaft.extent import Extent
from camshaft.graph.graph import Graph, Node, Tensor, root
from camshaft.ops.launch import operand_part, signature
from camshaft.ops.op import Build, HostCall, Launch, NativeCall, Operand
from camshaft.ops.spec import Part, TensorSpec
from camshaft.plan.schedule import Buffer, BufferSlice, BufferUse, Lifetime, Programs, Thunk

_LIFETIMES = {
    "input": Lifetime.IO,
    "constant": Lifetime.CONSTANT,
    "state": Lifetime.STATE,
    "value": Lifetime.TEMP,
}


@dataclass(frozen=True)
class CompiledLaunch:
    """A launch with the parts of its arrays, its run-time scalars and its machine code."""

    launch: Launch | NativeCall
    parts: tuple[Part, ...]
    scalars: tuple[Extent, ...]
    programs: Programs
    code: CpuKernel


@dataclass(frozen=True)
class Compiled:
    """A Build whose launches are compiled."""

    scratch: tuple[TensorSpec, ...]
    launches: tuple[CompiledLaunch, ...]


Built: TypeAlias = Compiled | HostCall


@dataclass
class Lowered:
    """Thunks, the buffer of every root tensor, the memory of constants that lowering itself made, and the builds so far."""

    thunks: list[Thunk] = field(default_factory=list)
    buffers: dict[Tensor, Buffer] = field(default_factory=dict)
    made: dict[Buffer, np.ndarray[Any, Any]] = field(default_factory=dict)
    builds: dict[Hashable, Built] = field(default_factory=dict)


def lower(graph: Graph, choices: Sequence[Choice]) -> Lowered:
    """Every node's thunks, in order, with the node's choice. Outputs of the graph are IO: a caller reads them after the run."""
    lowered = Lowered()
    results = {root(t) for t in graph.outputs.values()}
    named = (*graph.inputs.values(), *graph.states.values(), *graph.outputs.values())
    for tensor in (*named, *(t for node in graph.nodes for t in (*node.inputs, *node.outputs))):
        base = root(tensor)
        if base not in lowered.buffers:
            lifetime = Lifetime.IO if base in results and base.kind == "value" else _LIFETIMES[base.kind]
            lowered.buffers[base] = Buffer(base.name, base.spec.nbytes, lifetime)
    for node, choice in zip(graph.nodes, choices, strict=True):
        built = _built(node, choice, lowered.builds)
        if isinstance(built, HostCall):
            lowered.thunks.append(_host_thunk(node, choice, built, lowered))
        else:
            _NodeLowering(node, choice, built, lowered).run()
    return lowered


def _built(node: Node, choice: Choice, builds: dict[Hashable, Built]) -> Built:
    """What the chosen variant makes of the node: built and compiled once for nodes that are alike."""
    key = (id(choice.variant), choice.device.name, node.spec.key)
    if key not in builds:
        builds[key] = _build(node, choice)
    return builds[key]


def _build(node: Node, choice: Choice) -> Built:
    build = choice.variant.build(node.spec, choice.device)
    if isinstance(build, HostCall):
        return build
    return Compiled(build.scratch, tuple(_compiled(launch, node, build, choice) for launch in build.launches))


def _compiled(launch: Launch | NativeCall, node: Node, build: Build, choice: Choice) -> CompiledLaunch:
    made = signature(launch, node.spec, build)
    parts = tuple(operand_part(operand, node.spec, build) for operand in launch.arrays)
    return CompiledLaunch(
        launch, parts, made.scalars, programs(launch), native_code(compile_launch(launch, made, choice.device))
    )


@dataclass(frozen=True)
class _NodeLowering:
    """One node with what was made of its choice."""

    node: Node
    choice: Choice
    built: Compiled
    lowered: Lowered

    def run(self) -> None:
        node, launches = self.node, self.built.launches
        scratch = tuple(
            Buffer(f"{node.name}.scratch{i}", spec.nbytes, Lifetime.TEMP) for i, spec in enumerate(self.built.scratch)
        )
        for index, launch in enumerate(launches):
            name = f"{node.name}/{index}" if len(launches) > 1 else node.name
            self.lowered.thunks.append(self.kernel_thunk(name, launch, scratch))

    def kernel_thunk(self, name: str, made: CompiledLaunch, scratch: tuple[Buffer, ...]) -> Thunk:
        node, choice, launch = self.node, self.choice, made.launch
        slices, uses = [], []
        for operand, part in zip(launch.arrays, made.parts, strict=True):
            piece = self.buffer(operand, scratch).slice(part.offset_nbytes, part.nbytes)
            slices.append(piece)
            if operand.access in ("read", "update"):
                uses.append(BufferUse(piece, "read"))
            if operand.access in ("write", "update"):
                uses.append(BufferUse(piece, "write"))
        if isinstance(launch, NativeCall):
            words = Buffer(f"{name}.words", launch.words.nbytes, Lifetime.CONSTANT, alignment=8)
            self.lowered.made[words] = launch.words
            slices.append(words.slice())
            uses.append(BufferUse(words.slice(), "read"))
        args: tuple[BufferSlice | Extent, ...] = (*slices, *made.scalars)
        variant, reason = choice.variant.name, choice.reason
        return Thunk(name, node.op.name, variant, reason, "kernel", made.code, args, tuple(uses), made.programs)

    def buffer(self, operand: Operand, scratch: tuple[Buffer, ...]) -> Buffer:
        if operand.kind == "scratch":
            return scratch[operand.index]
        tensors = self.node.inputs if operand.kind == "input" else self.node.outputs
        return self.lowered.buffers[root(tensors[operand.index])]


def programs(launch: Launch | NativeCall) -> Programs:
    """The launch's number of programs as a formula over its Extents."""
    fixed = prod(-(-c.dim // c.per) for c in launch.grid if isinstance(c.dim, int))
    return Programs(fixed, tuple((c.dim, c.per) for c in launch.grid if isinstance(c.dim, Extent)))


def _host_thunk(node: Node, choice: Choice, call: HostCall, lowered: Lowered) -> Thunk:
    tensors = (*node.inputs, *node.outputs)
    slices = tuple(lowered.buffers[root(t)].slice() for t in tensors)
    n_inputs = len(node.inputs)
    uses = tuple(BufferUse(s, "read" if i < n_inputs else "write") for i, s in enumerate(slices))

    def run(*memories: memoryview) -> None:
        arrays = [_array(m, t.spec) for m, t in zip(memories, tensors, strict=True)]
        call.function(node.spec, arrays[:n_inputs], arrays[n_inputs:])

    return Thunk(node.name, node.op.name, choice.variant.name, choice.reason, "host", run, slices, uses)


def _array(memory: memoryview, spec: TensorSpec) -> np.ndarray[Any, Any]:
    raw = np.frombuffer(memory, np.uint8)
    return raw.view(spec.parts[0].dtype.numpy).reshape(spec.bounds) if spec.is_plain else raw
