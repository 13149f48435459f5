"""From a graph to thunks: a variant is chosen and built for each node, and its launches become thunks over buffers.

After graph/passes, before memory.py. Views and packed constants share their root's buffer and make no thunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from camshaft.dispatch.run import compile_launch
from camshaft.dispatch.select import Choice
from camshaft.extent import Extent
from camshaft.graph.graph import Graph, Node, Tensor, root
from camshaft.ops.launch import operand_part, signature
from camshaft.ops.op import Build, HostCall, Launch, NativeCall, Operand
from camshaft.ops.spec import TensorSpec
from camshaft.plan.schedule import Buffer, BufferSlice, BufferUse, Lifetime, Programs, Thunk

_LIFETIMES = {
    "input": Lifetime.IO,
    "constant": Lifetime.CONSTANT,
    "state": Lifetime.STATE,
    "value": Lifetime.TEMP,
}


@dataclass
class Lowered:
    """Thunks, the buffer of every root tensor, and the memory of constants that lowering itself made."""

    thunks: list[Thunk] = field(default_factory=list)
    buffers: dict[Tensor, Buffer] = field(default_factory=dict)
    made: dict[Buffer, np.ndarray[Any, Any]] = field(default_factory=dict)


def lower(graph: Graph, choices: Sequence[Choice]) -> Lowered:
    """Every node's thunks, in order, with the node's choice. Outputs of the graph are IO: a caller reads them after the run."""
    lowered = Lowered()
    results = {root(t) for t in graph.outputs.values()}
    for node, choice in zip(graph.nodes, choices, strict=True):
        for tensor in (*node.inputs, *node.outputs):
            base = root(tensor)
            if base not in lowered.buffers:
                lifetime = Lifetime.IO if base in results and base.kind == "value" else _LIFETIMES[base.kind]
                lowered.buffers[base] = Buffer(base.name, base.spec.nbytes, lifetime)
        _NodeLowering(node, choice, lowered).run()
    return lowered


@dataclass(frozen=True)
class _NodeLowering:
    """One node with what was chosen for it."""

    node: Node
    choice: Choice
    lowered: Lowered

    def run(self) -> None:
        node, build = self.node, self.choice.variant.build(self.node.spec, self.choice.device)
        if isinstance(build, HostCall):
            self.lowered.thunks.append(_host_thunk(node, self.choice, build, self.lowered))
            return
        scratch = tuple(
            Buffer(f"{node.name}.scratch{i}", spec.nbytes, Lifetime.TEMP) for i, spec in enumerate(build.scratch)
        )
        for index, launch in enumerate(build.launches):
            name = f"{node.name}/{index}" if len(build.launches) > 1 else node.name
            self.lowered.thunks.append(self.kernel_thunk(name, launch, build, scratch))

    def kernel_thunk(self, name: str, launch: Launch | NativeCall, build: Build, scratch: tuple[Buffer, ...]) -> Thunk:
        node, choice = self.node, self.choice
        made = signature(launch, node.spec, build)
        code = compile_launch(launch, made, choice.device)
        slices = [self.slice(operand, build, scratch) for operand in launch.arrays]
        uses = []
        for operand, piece in zip(launch.arrays, slices, strict=True):
            if operand.access in ("read", "update"):
                uses.append(BufferUse(piece, "read"))
            if operand.access in ("write", "update"):
                uses.append(BufferUse(piece, "write"))
        if isinstance(launch, NativeCall):
            words = Buffer(f"{name}.words", launch.words.nbytes, Lifetime.CONSTANT, alignment=8)
            self.lowered.made[words] = launch.words
            slices.append(words.slice())
            uses.append(BufferUse(words.slice(), "read"))
        args = (*slices, *made.scalars)
        variant = choice.variant.name
        return Thunk(name, node.op.name, variant, choice.reason, "kernel", code, args, tuple(uses), programs(launch))

    def slice(self, operand: Operand, build: Build, scratch: tuple[Buffer, ...]) -> BufferSlice:
        part = operand_part(operand, self.node.spec, build)
        if operand.kind == "scratch":
            buffer = scratch[operand.index]
        else:
            tensors = self.node.inputs if operand.kind == "input" else self.node.outputs
            buffer = self.lowered.buffers[root(tensors[operand.index])]
        return buffer.slice(part.offset_nbytes, part.nbytes)


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
