"""Tuning of all that graphs use, each distinct shape once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from camshaft.errors import BackendError
from camshaft.graph.custom import CustomOp
from camshaft.graph.graph import Graph, Node, Tensor, root
from camshaft.ops.op import NodeSpec, Op
from camshaft.selection.measurements import measurements
from camshaft.selection.select import rivals
from camshaft.tune.cold import last_cache_nbytes
from camshaft.tune.nodes import Tuned, tune_node
from camshaft.tune.rounds import BenchmarkConfig
from camshaft.validation.cases import case_of

# Operations a byte under which a node that reads weights or a cache waits for memory, and bytes under which it does not matter.
STREAMS_UNDER, STREAMS_FROM_NBYTES = 64.0, 1 << 16

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Use:
    """A use to tune. `cold`: in its plan the operands come from memory."""

    op: Op
    node: NodeSpec
    override: str | None = None
    cold: bool = False

    @property
    def key(self) -> object:
        """Equal for uses that are tuned alike."""
        return self.op.name, self.node.key, self.override


def tune_graphs(graphs: Sequence[Graph], override: str | None, threads: int) -> list[Tuned]:
    """Tunes what the graphs use and nobody has measured yet at exactly these sizes."""
    uses = [use for use in uses_of(graphs, override) if not is_measured(use)]
    return tune_uses(uses, BenchmarkConfig(threads=threads))


def tune_uses(uses: Iterable[Use], config: BenchmarkConfig, progress: Progress | None = None) -> list[Tuned]:
    """Tunes each use; those without a choice are left out. `progress` is called with (done, total)."""
    every, found = list(uses), []
    for done, use in enumerate(every):
        if progress:
            progress(done, len(every))
        tuned = tune_node(use.op, use.node, use.override, replace(config, cold=use.cold))
        if tuned is not None:
            found.append(tuned)
    if progress and every:
        progress(len(every), len(every))
    return found


def uses_of(graphs: Sequence[Graph], override: str | None) -> list[Use]:
    """Each distinct use once, in order; callers' own functions and copies are none. Weights that graphs share count once."""
    kept = {base.name: nbytes for g in graphs for node in g.nodes for base, nbytes in _kept(node).items()}
    large = sum(kept.values()) > last_cache_nbytes()
    nodes = [node for g in graphs for node in g.nodes if node.op.variants and not isinstance(node.op, CustomOp)]
    made = [_use(node, override, large) for node in nodes]
    return list({use.key: use for use in made}.values())


def is_measured(use: Use) -> bool:
    """Whether every variant that may be chosen was measured at exactly these sizes, as its kernel is now."""
    there = {(m.variant, m.backend): m.key for m in measurements().at(use.op, use.node) if not m.values}
    try:
        wanted = rivals(use.op, use.node, use.override)
    except BackendError:
        return False
    keys = [(v, b, there.get((v.name, b))) for v, b in wanted]
    return all(key == case_of(use.op, v, b, use.node).key() for v, b, key in keys)


def _kept(node: Node) -> dict[Tensor, int]:
    """Bytes of the weights and states that the node reads."""
    bases = (root(tensor) for tensor in node.inputs)
    return {base: base.spec.nbytes for base in bases if base.kind in ("constant", "state")}


def _use(node: Node, override: str | None, large: bool) -> Use:
    kept = sum(_kept(node).values())
    intensity = node.op.flops(node.spec) / max(node.op.nbytes(node.spec), 1.0)
    cold = large and kept >= STREAMS_FROM_NBYTES and bool(intensity < STREAMS_UNDER)
    return Use(node.op, node.spec, node.device or override, cold)
