"""Build a language model's graphs from token ids to logits.

Imported only when a plan is compiled: a warm start loads cached plans instead."""

from __future__ import annotations

from camshaft.extent import Extent
from camshaft.formats.gguf.file import GGUFFile
from camshaft.generate.kv_cache import KINDS, STATES, KVCache
from camshaft.graph.graph import Graph
from camshaft.models.checkpoint import Checkpoint
from camshaft.models.config import ModelConfig
from camshaft.models.decoder import decoder
from camshaft.models.rope_scaling import Rotations
from camshaft.models.transformer import LayerCache, LayerState, Places, token_inputs
from camshaft.ops.spec import Dim


class ModelGraphs:
    """Graphs over one file and KV cache. Raises ModelError for an unsupported architecture or a missing tensor."""

    def __init__(self, file: GGUFFile, config: ModelConfig, cache: KVCache, length: Extent) -> None:
        self._file, self._config, self._cache, self._length = file, config, cache, length
        names = dict.fromkeys(layer.rope for layer in config.layers if layer.rope)
        self._ropes = {name: Rotations(file.metadata, file.tensors, config, length.bound, name) for name in names}

    def graph(self, tokens: Dim, rows: Dim | None) -> Graph:
        """The graph from token ids to `logits` of `rows` of the tokens (None: of all tokens)."""
        graph = Graph()
        table = graph.state("block_table", self._cache.specs["block_table"])
        ropes = {name: graph.constant(name, rope, rope.spec) for name, rope in self._ropes.items()}
        recurrent = self._config.recurrent is not None
        batch, places = token_inputs(graph, tokens, rows, table, ropes, self._length, recurrent=recurrent)
        caches = [self._layer_cache(graph, layer, places) for layer in range(self._config.n_layers)]
        checkpoint = Checkpoint(self._file.tensors, graph)
        graph.output("logits", decoder(self._config, checkpoint, batch, caches))
        return graph

    def _layer_cache(self, graph: Graph, layer: int, places: Places) -> LayerCache | LayerState:
        specs, states = self._cache.specs, [f"{kind}.{layer}" for kind in STATES]
        if any(name in specs for name in states):
            return {n.partition(".")[0]: graph.state(n, specs[n]) for n in states if n in specs}
        names = [f"{kind}.{layer}" for kind in KINDS if f"{kind}.{layer}" in specs]
        keys, values, *scales = (graph.state(name, specs[name]) for name in names)
        return LayerCache(keys, values, places, tuple(scales))
