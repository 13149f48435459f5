"""The passes in their order, from the graph as written to the graph that is lowered."""

from __future__ import annotations

from camshaft.graph.graph import Graph
from camshaft.graph.passes.chains import fuse_chains
from camshaft.graph.passes.fuse import fuse
from camshaft.graph.passes.fuse_gated import fuse_gated
from camshaft.graph.passes.fuse_quantized import fuse_quantized
from camshaft.graph.passes.layout import pack_weights
from camshaft.graph.passes.quantize import quantize_activations
from camshaft.graph.passes.round import round_activations
from camshaft.settings import setting


def prepare(graph: Graph, activations: str) -> Graph:
    """The passes in order: fuse, quantize activations (mode 'q8') by the ops that make them where they can, chain elementwise
    ops (CAMSHAFT_CHAINS), pack weights."""
    graph = fuse(graph)
    if activations == "q8":
        graph = round_activations(fuse_gated(fuse_quantized(quantize_activations(graph))))
    if setting("chains"):
        graph = fuse_chains(graph)
    return pack_weights(graph)
