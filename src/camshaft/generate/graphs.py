"""Build a language model's graphs from token ids to logits.

Imported only when a plan is compiled: a warm start loads cached plans instead."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from camshaft.extent import Extent
from camshaft.formats.gguf.file import GGUFFile
from camshaft.generate.memory.cache_specs import KINDS
from camshaft.generate.memory.kv_cache import KVCache
from camshaft.graph.graph import Graph, Tensor
from camshaft.models.adapters.adapted import AdaptedCheckpoint, checkpoint_of
from camshaft.models.adapters.adapter import Adapters
from camshaft.models.blocks.transformer import LayerCache, LayerMemory, Places, SideBySide, TokenBatch, token_inputs
from camshaft.models.config import ModelConfig
from camshaft.models.decoder import decoder, hidden
from camshaft.models.families import FAMILIES
from camshaft.models.recurrent_config import ATTENTION, BOTH, STATES
from camshaft.models.rope_scaling import Rotations
from camshaft.ops.spec import Dim


class ModelGraphs:
    """Graphs over one file and KV cache. Raises ModelError for an unsupported architecture or a missing tensor."""

    def __init__(
        self,
        file: GGUFFile,
        config: ModelConfig,
        cache: KVCache,
        length: Extent,
        adapters: Adapters | None = None,
        pictures: int = 0,
    ) -> None:
        """`pictures`: the width of the embeddings of tokens of pictures, an input of graphs for prompts; 0: there are none."""
        self._config, self._cache, self._length, self._pictures = config, cache, length, pictures
        self._adapters = adapters or Adapters(file)
        names = dict.fromkeys(layer.rope for layer in config.layers if layer.rope)
        self._ropes = {name: Rotations(file.metadata, file.tensors, config, length.bound, name) for name in names}

    def graph(self, tokens: Dim, rows: Dim | None) -> Graph:
        """The graph from token ids to `logits` of `rows` of the tokens (None: of all tokens)."""
        graph = Graph()
        batch, caches = self._inputs(graph, tokens, rows)
        if self._pictures and rows is not None:
            rows_of = graph.input("pictures", (tokens, self._pictures), "f32")
            batch = replace(batch, pictures=rows_of, is_picture=graph.input("is_picture", (tokens,), "bool"))
        checkpoint = checkpoint_of(self._adapters, graph)
        graph.output("logits", decoder(self._config, checkpoint, batch, caches))
        if isinstance(checkpoint, AdaptedCheckpoint):
            checkpoint.check_used()
        return graph

    def hidden_graph(self, tokens: Dim, *, pairs: bool = False) -> Graph:
        """The graph from token ids to `hidden` [tokens, dim], the last layer's results. Encoders have an input `lengths`, and for
        `pairs` one for the `types` of tokens, if they know several."""
        graph = Graph()
        batch, caches = self._inputs(graph, tokens, None)
        if pairs and self._config.n_types > 1:
            batch = replace(batch, types=graph.input("types", (tokens,), "i32"))
        graph.output("hidden", hidden(self._config, checkpoint_of(self._adapters, graph), batch, caches))
        return graph

    def _inputs(self, graph: Graph, tokens: Dim, rows: Dim | None) -> tuple[TokenBatch, list[LayerMemory]]:
        table = graph.state("block_table", self._cache.specs["block_table"])
        ropes = {name: graph.constant(name, rope, rope.spec) for name, rope in self._ropes.items()}
        recurrent = self._config.recurrent is not None
        batch, places = token_inputs(graph, tokens, rows, table, ropes, self._length, recurrent=recurrent)
        if FAMILIES[self._config.architecture].encoder:
            places = replace(places, lengths=graph.input("lengths", table.spec.bounds[:1], "i32"))
        ring = places
        if self._cache.ring is not None:
            ring = replace(places, block_table=graph.state("ring_table", self._cache.specs["ring_table"]))
        caches: list[LayerMemory] = []
        for layer, options in enumerate(self._config.layers):
            shared, own = options.shares >= 0, ring if options.window else places
            caches.append(caches[options.shares] if shared else self._layer_cache(graph, layer, own))
        return batch, caches

    def _layer_cache(self, graph: Graph, layer: int, places: Places) -> LayerMemory:
        specs, kind = self._cache.specs, self._config.layers[layer].kind

        def states(names: Iterable[str]) -> dict[str, Tensor]:
            found = {name: f"{name}.{layer}" for name in names if f"{name}.{layer}" in specs}
            return {name: graph.state(key, specs[key]) for name, key in found.items()}

        if kind not in (ATTENTION, BOTH):
            return states(STATES)
        keys, values, *scales = states(KINDS).values()
        cache = LayerCache(keys, values, places, tuple(scales))
        return SideBySide(cache, states(STATES)) if kind == BOTH else cache
