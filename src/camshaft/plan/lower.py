"""From a graph to thunks: a variant is chosen and built for each node, and its launches become thunks over buffers.

After graph/passes, before memory.py. Views and packed constants share their root's buffer and make no thunk. Where nodes run
on several devices, spaces.py adds the copies.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeAlias

import numpy as np

from camshaft.backends.device import HOST, CompiledKernel, Device
from camshaft.dispatch.run import compile_launch
from camshaft.dispatch.select import Choice
from camshaft.extent import Extent
from camshaft.graph.graph import Graph, Node, Tensor, root
from camshaft.ops.launch import operand_part, signature
from camshaft.ops.op import Build, HostCall, Launch, NativeCall
from camshaft.ops.spec import Part, TensorSpec
from camshaft.plan.schedule import Buffer, BufferSlice, BufferUse, Lifetime, Programs, Thunk
from camshaft.plan.spaces import Versions, is_unified


@dataclass(frozen=True)
class CompiledLaunch:
    """A launch with the parts of its arrays, its run-time scalars and its machine code."""

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


Built: TypeAlias = Compiled | HostCall


@dataclass
class Lowered:
    """Thunks, where every root tensor lies, the devices outside of the host's space, and the memory of constants that lowering
    itself made."""

    versions: Versions
    devices: Mapping[str, Device]
    made: dict[Buffer, np.ndarray[Any, Any]] = field(default_factory=dict)

    @property
    def thunks(self) -> list[Thunk]:
        return self.versions.thunks

    def home(self, tensor: Tensor) -> Buffer:
        """The buffer that a caller gives or reads: where the root's own memory lies."""
        base = root(tensor)
        return self.versions.buffer(base, self.versions.homes[base])


def lower(graph: Graph, choices: Sequence[Choice], given: Mapping[Tensor, str] | None = None) -> Lowered:
    """Every node's thunks, in order, with the node's choice, and the copies between spaces.

    Outputs of the graph are IO: a caller reads them after the run. `given` says in which space the memory of a root tensor
    is that the caller brings.
    """
    devices = {choice.device.space: choice.device for choice in choices if choice.device.space != HOST}
    results = frozenset(root(t) for t in graph.outputs.values())
    builds: dict[Hashable, Built] = {}
    built = [_built(node, choice, builds) for node, choice in zip(graph.nodes, choices, strict=True)]
    spaces = [HOST if isinstance(b, HostCall) else c.device.space for b, c in zip(built, choices, strict=True)]
    homes = _homes(graph, spaces, devices) | dict(given or {})
    lowered = Lowered(Versions(devices, homes, results, []), devices)
    for tensor in (*graph.inputs.values(), *graph.states.values(), *graph.outputs.values()):
        if root(tensor).kind != "constant" or root(tensor) in results:
            lowered.home(tensor)
    for node, choice, made in zip(graph.nodes, choices, built, strict=True):
        if isinstance(made, HostCall):
            lowered.thunks.append(_host_thunk(node, choice, made, lowered.versions))
        else:
            _NodeLowering(node, choice, made, lowered).run()
    lowered.versions.settle()
    return lowered


def _homes(graph: Graph, spaces: Sequence[str], devices: Mapping[str, Device]) -> dict[Tensor, str]:
    """Where each root tensor's own memory lies. What a caller gives or reads lies in the host's; a state where it is updated
    first, a value where it is made; whatever a device with unified memory touches, there."""
    homes = {root(t): HOST for t in (*graph.inputs.values(), *graph.states.values(), *graph.outputs.values())}
    states: dict[Tensor, str] = {}
    shared: dict[Tensor, str] = {}
    for node, space in zip(graph.nodes, spaces, strict=True):
        for tensor in (*node.inputs, *node.outputs):
            homes.setdefault(root(tensor), space if tensor in node.outputs else HOST)
            if space in devices and is_unified(devices[space]):
                shared.setdefault(root(tensor), space)
        for tensor in (root(node.inputs[i]) for i in node.op.updates):
            if tensor.kind == "state":
                states.setdefault(tensor, space)
    return homes | states | shared


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
    return CompiledLaunch(launch, parts, made.scalars, programs(launch), compile_launch(launch, made, choice.device))


@dataclass(frozen=True)
class _NodeLowering:
    """One node with what was made of its choice."""

    node: Node
    choice: Choice
    built: Compiled
    lowered: Lowered

    def run(self) -> None:
        node, launches = self.node, self.built.launches
        space = self.choice.device.space
        alignment = max(64, self.choice.device.limits.get("alignment", 1)) if space != HOST else 64
        scratch = tuple(
            Buffer(f"{node.name}.scratch{i}", spec.nbytes, Lifetime.TEMP, alignment, space)
            for i, spec in enumerate(self.built.scratch)
        )
        memory = _node_memory(node, space, self.lowered.versions)
        for index, launch in enumerate(launches):
            name = f"{node.name}/{index}" if len(launches) > 1 else node.name
            self.lowered.thunks.append(self.kernel_thunk(name, launch, {**memory, "scratch": scratch}))

    def kernel_thunk(self, name: str, made: CompiledLaunch, memory: Mapping[str, tuple[Buffer, ...]]) -> Thunk:
        node, choice, launch = self.node, self.choice, made.launch
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
            self.lowered.made[words] = launch.words
            slices.append(words.slice())
            uses.append(BufferUse(words.slice(), "read"))
        args: tuple[BufferSlice | Extent, ...] = (*slices, *made.scalars)
        variant, reason = choice.variant.name, choice.reason
        space, programs = choice.device.space, made.programs
        return Thunk(name, node.op.name, variant, reason, "kernel", made.code, args, tuple(uses), programs, space)


def _node_memory(node: Node, space: str, versions: Versions) -> dict[str, tuple[Buffer, ...]]:
    """The node's buffers in a space, its inputs brought there; what it updates or makes is newest there afterwards."""
    inputs = tuple(versions.read(root(t), space) for t in node.inputs)
    for index in node.op.updates:
        versions.write(root(node.inputs[index]), space)
    return {"input": inputs, "output": tuple(versions.write(root(t), space) for t in node.outputs)}


def programs(launch: Launch | NativeCall) -> Programs:
    """The launch's number of programs as a formula over its Extents."""
    fixed = prod(-(-c.dim // c.per) for c in launch.grid if isinstance(c.dim, int))
    return Programs(fixed, tuple((c.dim, c.per) for c in launch.grid if isinstance(c.dim, Extent)))


def _host_thunk(node: Node, choice: Choice, call: HostCall, versions: Versions) -> Thunk:
    memory = _node_memory(node, HOST, versions)
    tensors = (*node.inputs, *node.outputs)
    slices = tuple(
        b.slice(0, t.spec.nbytes) for b, t in zip((*memory["input"], *memory["output"]), tensors, strict=True)
    )
    n_inputs = len(node.inputs)
    uses = [BufferUse(s, "read") for s in slices[:n_inputs]]
    uses += [BufferUse(slices[i], "write") for i in (*node.op.updates, *range(n_inputs, len(slices)))]

    def run(*memories: memoryview) -> None:
        arrays = [_array(m, t.spec) for m, t in zip(memories, tensors, strict=True)]
        call.function(node.spec, arrays[:n_inputs], arrays[n_inputs:])

    return Thunk(node.name, node.op.name, choice.variant.name, choice.reason, "host", run, slices, tuple(uses))


def _array(memory: memoryview, spec: TensorSpec) -> np.ndarray[Any, Any]:
    raw = np.frombuffer(memory, np.uint8)
    return raw.view(spec.parts[0].dtype.numpy).reshape(spec.bounds) if spec.is_plain else raw
