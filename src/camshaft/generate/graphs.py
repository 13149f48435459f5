"""Build a language model's graphs from token ids to logits.

Imported only when a plan is compiled: a warm start loads cached plans instead."""

from __future__ import annotations

from camshaft.extent import Extent
from camshaft.formats.gguf.file import GGUFFile
from camshaft.generate.kv_cache import KINDS, KVCache
from camshaft.graph.graph import Graph, Tensor
from camshaft.models.checkpoint import Checkpoint
from camshaft.models.config import ModelConfig
from camshaft.models.decoder import decoder
from camshaft.models.rope_scaling import Rotations
from camshaft.models.transformer import LayerCache, token_inputs
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
        states = [self._states(graph, layer) for layer in range(self._config.n_layers)]
        ropes = {name: graph.constant(name, rope, rope.spec) for name, rope in self._ropes.items()}
        batch, places = token_inputs(graph, tokens, rows, table, ropes, self._length)
        caches = [LayerCache(keys, values, places, tuple(scales)) for keys, values, *scales in states]
        checkpoint = Checkpoint(self._file.tensors, graph)
        graph.output("logits", decoder(self._config, checkpoint, batch, caches))
        return graph

    def _states(self, graph: Graph, layer: int) -> list[Tensor]:
        names = [f"{kind}.{layer}" for kind in KINDS if f"{kind}.{layer}" in self._cache.specs]
        return [graph.state(name, self._cache.specs[name]) for name in names]
