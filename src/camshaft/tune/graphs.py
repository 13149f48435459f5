"""Tune every distinct shape that graphs use, or a geometric ladder of shapes of common ops.

A shape that was not measured uses the nearest one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from camshaft import ops
from camshaft.dtypes import f32
from camshaft.errors import BackendError
from camshaft.graph.custom import CustomOp
from camshaft.graph.graph import Graph, Tensor, root
from camshaft.graph.node import Node
from camshaft.ops.op import Attrs, NodeSpec, Op
from camshaft.ops.spec import TensorSpec
from camshaft.selection.measurements import measurements
from camshaft.selection.select import alternatives
from camshaft.tune.inputs import last_cache_nbytes
from camshaft.tune.nodes import Tuned, tune_node
from camshaft.tune.rounds import BenchmarkConfig
from camshaft.validation.cases import case_of

# Nodes with a lower arithmetic intensity (operations per byte) are bound by memory; smaller operands do not matter.
STREAMS_UNDER, STREAMS_FROM_NBYTES = 64.0, 1 << 16

# Rows, depth and columns. Steps are at most a factor of 16, so every shape between has a neighbour (selection/sites.py).
SQUARES = (16, 64, 256, 1024)
FEW_ROWS = (1, 8, 32)
WIDTHS = (64, 256, 1024)
# Elements of elementwise ops; (rows, columns) of row-wise ops.
ELEMENTS = (256, 4096, 65536, 1 << 20)
BY_ROW = ((1, 1024), (16, 256), (256, 1024), (1024, 4096))

_ELEMENTWISE = {"add": 2, "multiply": 2, "silu": 1, "silu_multiply": 2}

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Use:
    """An op at a node to tune. `cold`: its operands come from memory rather than a cache."""

    op: Op
    node: NodeSpec
    override: str | None = None
    cold: bool = False

    @property
    def key(self) -> object:
        """Equal for uses that share one tuning."""
        return self.op.name, self.node.key, self.override


def tune_graphs(graphs: Sequence[Graph], override: str | None, threads: int) -> list[Tuned]:
    """Tune the uses of the graphs that have not been measured at exactly these sizes."""
    uses = [use for use in uses_of(graphs, override) if not is_measured(use)]
    return tune_uses(uses, BenchmarkConfig(threads=threads))


def tune_uses(uses: Iterable[Use], config: BenchmarkConfig, progress: Progress | None = None) -> list[Tuned]:
    """Tune each use; uses without alternatives are left out. `progress` is called with (done, total)."""
    every, tuned_uses = list(uses), []
    for done, use in enumerate(every):
        if progress:
            progress(done, len(every))
        tuned = tune_node(use.op, use.node, use.override, replace(config, cold=use.cold))
        if tuned is not None:
            tuned_uses.append(tuned)
    if progress and every:
        progress(len(every), len(every))
    return tuned_uses


def uses_of(graphs: Sequence[Graph], override: str | None) -> list[Use]:
    """Each distinct use, in order, except custom ops and copies. Weights shared by graphs count once."""
    stored = {base.name: nbytes for g in graphs for node in g.nodes for base, nbytes in _stored(node).items()}
    large = sum(stored.values()) > last_cache_nbytes()
    nodes = [node for g in graphs for node in g.nodes if node.op.variants and not isinstance(node.op, CustomOp)]
    uses = [_use(node, override, large) for node in nodes]
    return list({use.key: use for use in uses}.values())


def is_measured(use: Use) -> bool:
    """Whether every possible variant was measured at exactly these sizes with its present kernel."""
    rows = measurements().at(use.op, use.node)
    measured = {(m.variant, m.backend): m.key for m in rows if not (m.values or m.quick)}
    try:
        variants = alternatives(use.op, use.node, use.override)
    except BackendError:
        return False
    keys = [(v, b, measured.get((v.name, b))) for v, b in variants]
    return all(key == case_of(use.op, v, b, use.node).key() for v, b, key in keys)


def _stored(node: Node) -> dict[Tensor, int]:
    """Bytes of each weight and state that the node reads."""
    bases = (root(tensor) for tensor in node.inputs)
    return {base: base.spec.nbytes for base in bases if base.kind in ("constant", "state")}


def _use(node: Node, override: str | None, large: bool) -> Use:
    nbytes = sum(_stored(node).values())
    intensity = node.op.flops(node.spec) / max(node.op.nbytes(node.spec), 1.0)
    cold = large and nbytes >= STREAMS_FROM_NBYTES and bool(intensity < STREAMS_UNDER)
    return Use(node.op, node.spec, node.device or override, cold)


def ladder(override: str | None = None, only: str = "") -> list[Use]:
    """The uses of all ops with a ladder, or of those whose name contains `only`."""
    return [Use(ops.get(name), node, override) for name, node in _nodes() if only in name]


def _nodes() -> Iterator[tuple[str, NodeSpec]]:
    for m, k, n in _products():
        for transposed in (False, True):
            b = (n, k) if transposed else (k, n)
            yield "matmul", _node("matmul", [(m, k), b], {"transpose_b": True} if transposed else {})
    for name, n_inputs in _ELEMENTWISE.items():
        for size in ELEMENTS:
            yield name, _node(name, [(size,)] * n_inputs, {})
    for rows, columns in BY_ROW:
        x, w = (rows, columns), (columns,)
        yield "softmax", _node("softmax", [x], {})
        yield "rms_norm", _node("rms_norm", [x, w], {"eps": 1e-5})
        yield "residual_norm", _node("residual_norm", [x, x, w], {"eps": 1e-5})


def _products() -> Iterator[tuple[int, int, int]]:
    """Distinct (m, k, n) of matrix products."""
    yield from ((size, size, size) for size in SQUARES)
    yield from ((m, k, n) for m in FEW_ROWS for k in WIDTHS for n in WIDTHS)


def _node(op: str, shapes: list[tuple[int, ...]], attrs: Attrs) -> NodeSpec:
    specs = tuple(TensorSpec(shape, f32) for shape in shapes)
    return NodeSpec(specs, ops.get(op).infer(specs, attrs), attrs)
