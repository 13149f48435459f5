"""Tune every distinct shape that graphs use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from camshaft.errors import BackendError
from camshaft.graph.custom import CustomOp
from camshaft.graph.graph import Graph, Node, Tensor, root
from camshaft.ops.op import NodeSpec, Op
from camshaft.selection.measurements import measurements
from camshaft.selection.select import alternatives
from camshaft.tune.cold import last_cache_nbytes
from camshaft.tune.nodes import Tuned, tune_node
from camshaft.tune.rounds import BenchmarkConfig
from camshaft.validation.cases import case_of

# Nodes with a lower arithmetic intensity (operations per byte) are bound by memory; smaller operands do not matter.
STREAMS_UNDER, STREAMS_FROM_NBYTES = 64.0, 1 << 16

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
    measured = {(m.variant, m.backend): m.key for m in measurements().at(use.op, use.node) if not m.values}
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
