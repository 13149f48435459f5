"""Rewrites of a graph before it is lowered: the ops' rewrite rules, chains of elementwise ops, packed weights."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from camshaft import ops
from camshaft.dtypes import PARTS
from camshaft.errors import ShapeError
from camshaft.formats.blocks import BlockFormat
from camshaft.graph.graph import Graph, Tensor, root
from camshaft.graph.node import Node, readers
from camshaft.graph.passes.recompute import recompute
from camshaft.ops.op import Op
from camshaft.ops.quantized.packed.packing import INTERLEAVED, interleaved
from camshaft.ops.rule import Match, Rule, Stage
from camshaft.ops.spec import TensorSpec
from camshaft.settings import setting

Place = Callable[[Node, tuple[Tensor, ...]], tuple[Tensor, ...] | None]


def prepare(graph: Graph, activations: str) -> Graph:
    """Applies all rewrites before lowering. `activations`: as in `compile`. CAMSHAFT_CHAINS=0 disables elementwise chains."""
    passes: list[Callable[[Graph], Graph]] = [expanded]
    passes += [functools.partial(_apply_stage, stage=stage) for stage in Stage if stage.is_applied(activations)]
    if setting("chains"):
        from camshaft.graph.passes.chains import fuse_chains  # it replays graphs by the Rewriter below

        passes.append(fuse_chains)
    return _in_turn(graph, [*passes, pack_weights, *([recompute] if graph.blocks else [])])


def _in_turn(graph: Graph, passes: Sequence[Callable[[Graph], Graph]]) -> Graph:
    """The graph after all passes. What passes leave to each other is emptied: of a training step each has 4 MB."""
    found = graph
    for one in passes:
        before, found = found, one(found)
        if found is not before and before is not graph:
            before.clear()
    return found


def expanded(graph: Graph) -> Graph:
    """Returns the graph with ops that have no kernels replaced by their decompositions; the graph itself if it has none."""
    if not any(ops.is_composite(node.op) for node in graph.nodes):
        return graph
    from camshaft.graph.passes.decompose import expand_composites  # it replays graphs by the Rewriter below

    return expand_composites(graph)


@functools.cache
def rules_at(name: str, stage: Stage) -> tuple[Rule, ...]:
    """Returns a stage's rules that start at the op of that name, in op table order."""
    rules = (rule for op in ops.with_rules_at(name) for rule in op.rules)
    return tuple(rule for rule in rules if rule.stage == stage and name in rule.roots)


def apply_rules(graph: Graph, *stages: Stage) -> Graph:
    """Applies the rules of these stages, one stage after the other."""
    for stage in stages:
        graph = _apply_stage(graph, stage)
    return graph


def _apply_stage(graph: Graph, stage: Stage) -> Graph:
    """Matches all rules against the original graph; the first match of a node wins."""
    uses = _GraphUses(graph)
    matches: dict[Node, Match] = {}
    removed: set[Any] = set()
    for node in graph.nodes:
        match = next((m for rule in rules_at(node.op.name, stage) if (m := rule.find(node, uses)) is not None), None)
        if match is None or node in removed or any(use in removed or use in matches for use in match.removed):
            continue
        matches[node] = match
        removed.update(match.removed)
    return _Replaying(graph, matches, removed).run() if matches else graph


class _GraphUses:
    """The view of a graph that rules get (ops/rule.py)."""

    def __init__(self, graph: Graph) -> None:
        self._readers = readers(graph)
        self._makers = {tensor: node for node in graph.nodes for tensor in node.outputs}
        self._outputs = {root(tensor) for tensor in graph.outputs.values()}

    def readers(self, value: Tensor) -> Sequence[Node]:
        return self._readers.get(value, ())

    def maker(self, value: Tensor) -> Node | None:
        return self._makers.get(value)

    def is_output(self, value: Tensor) -> bool:
        return value in self._outputs


class Rewriter:
    """Replays a graph into a new one, node by node. `map` maps each visited old tensor to its new one."""

    def __init__(self, graph: Graph) -> None:
        self.old, self.new = graph, Graph()
        self.new._specs = graph._specs  # carry_node compares specs of both graphs by identity
        self.map: dict[Tensor, Tensor] = {}
        for name, tensor in graph.inputs.items():
            self.map[tensor] = self.new._once(self.new.inputs, name, replace(tensor, graph=self.new))
        for name, tensor in graph.states.items():
            self.map[tensor] = self.new.state(name, tensor.spec, tensor.device)

    def respec(self, tensor: Tensor) -> TensorSpec:
        """Returns a constant's spec in the new graph; packing overrides this."""
        return tensor.spec

    def get(self, tensor: Tensor) -> Tensor:
        """Returns the new graph's tensor for an old tensor."""
        found = self.map.get(tensor)
        if found is None:
            found = self.map[tensor] = self._carry(tensor)
        return found

    def _carry(self, tensor: Tensor) -> Tensor:
        if tensor.kind == "view":
            assert tensor.base is not None
            base = self.get(tensor.base)
            if tensor.spec.dtype in PARTS:
                base = base if tensor.base.spec.dtype in PARTS else self.new.as_complex(base)
            elif tensor.base.spec.dtype in PARTS:
                base = self.new.pairs(base)
            return self.new.reshape(base, tensor.shape)
        if tensor.kind == "constant":
            assert tensor.source is not None
            return self.new.constant(tensor.name, tensor.source, self.respec(tensor))
        raise ShapeError(f"graph: {tensor.name} ({tensor.kind}) is read before it is made")

    def carry_node(self, node: Node) -> None:
        """Adds an unchanged node."""
        inputs = tuple(self.get(t) for t in node.inputs)
        same = all(new.spec is old.spec for new, old in zip(inputs, node.inputs, strict=True))
        with self.new.on(node.device):
            if same:  # skips shape inference, half of a rewrite's time
                outputs = self.new._add(node.op, inputs, node.attrs, node.name, [t.spec for t in node.outputs])
            else:
                outputs = self.new.apply(node.op, inputs, node.attrs, node.name)
        self.map.update(zip(node.outputs, outputs, strict=True))

    def end(self) -> Graph:
        """Adds the old graph's outputs and returns the new graph."""
        for name, tensor in self.old.outputs.items():
            self.new.output(name, self.get(tensor))
        if self.old.blocks:
            self.new.blocks = [tuple(self.map[t] for t in block if t in self.map) for block in self.old.blocks]
            # a node that makes tensors of the forward pass too is of that: the nodes of gradients come after it
            others = (node for node in self.old.nodes if node not in self.old.derived)
            forward = {self.map[t] for node in others for t in node.outputs if t in self.map}
            derived = {self.map[t] for node in self.old.derived for t in node.outputs if t in self.map}
            self.new.derived = {
                node
                for node in self.new.nodes
                if forward.isdisjoint(node.outputs) and not derived.isdisjoint(node.outputs)
            }
        return self.new


class _Replaying(Rewriter):
    """Replays a graph, replacing matched nodes; also implements the Builder of ops/rule.py."""

    def __init__(self, graph: Graph, matches: Mapping[Node, Match], removed: set[Any]) -> None:
        super().__init__(graph)
        self._matches, self._removed = matches, removed
        self._made: dict[object, tuple[Tensor, ...]] = {}
        self._device: str | None = None

    def run(self) -> Graph:
        for node in self.old.nodes:
            if node in self._removed:
                continue
            match = self._matches.get(node)
            if match is None:
                self.carry_node(node)
            else:
                self._device = node.device
                self.map.update(match.build(self))
        return self.end()

    def apply(self, op: Op | str, inputs: Sequence[Tensor], attrs: Mapping[str, Any], name: str) -> tuple[Tensor, ...]:
        taken = tuple(t if t.graph is self.new else self.get(t) for t in inputs)
        with self.new.on(self._device):
            return self.new.apply(ops.get(op) if isinstance(op, str) else op, taken, attrs, name)

    def once(self, op: Op | str, inputs: Sequence[Tensor], attrs: Mapping[str, Any], name: str) -> tuple[Tensor, ...]:
        key = op if isinstance(op, str) else op.name, tuple(inputs), tuple(sorted(attrs.items())), self._device
        if key not in self._made:
            self._made[key] = self.apply(op, inputs, attrs, name)
        return self._made[key]


class _Packing(Rewriter):
    def respec(self, tensor: Tensor) -> TensorSpec:
        return packed_spec(tensor.spec)


def packed_spec(spec: TensorSpec) -> TensorSpec:
    """Returns the packed spec of a constant; `spec` itself if it needs no packing."""
    return interleaved(spec) if isinstance(spec.dtype, BlockFormat) and spec.layout is not INTERLEAVED else spec


def pack_weights(graph: Graph) -> Graph:
    """Gives block-format constants the interleaved layout; binding the plan packs their bytes."""
    packing = _Packing(graph)
    for node in graph.nodes:
        packing.carry_node(node)
    return packing.end()


def packed_constants(graph: Graph) -> list[Tensor]:
    """Returns the constants that nodes read, in order, with the specs that `pack_weights` gives them."""
    found = []
    for tensor in dict.fromkeys(root(t) for node in graph.nodes for t in node.inputs):
        if tensor.kind == "constant":
            assert tensor.source is not None
            found.append(Graph().constant(tensor.name, tensor.source, packed_spec(tensor.spec)))
    return found
