"""Build a language model's graphs from token ids to logits.

Imported only when a plan is compiled: a warm start loads cached plans instead."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from camshaft.extent import Extent
from camshaft.formats.gguf.file import GGUFFile
from camshaft.generate.memory.cache_specs import KINDS
from camshaft.generate.memory.kv_cache import KVCache
from camshaft.generate.memory.resident_experts import ResidentExperts, name_of, require_layers
from camshaft.generate.vision.tokens import BLIND, Seeing
from camshaft.graph import functions as F
from camshaft.graph.graph import Graph, Tensor
from camshaft.models.adapters.adapted import AdaptedCheckpoint, checkpoint_of
from camshaft.models.adapters.adapter import Adapters
from camshaft.models.blocks.layer import TokenBatch
from camshaft.models.blocks.transformer import LayerCache, LayerMemory, Places, SideBySide, token_inputs
from camshaft.models.config import ModelConfig
from camshaft.models.configs.recurrent import ATTENTION, BOTH, STATES
from camshaft.models.decoder import decoder, hidden
from camshaft.models.families import FAMILIES
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
        seeing: Seeing = BLIND,
        experts: ResidentExperts | None = None,
    ) -> None:
        self._experts = experts
        self._config, self._cache, self._length, self._seeing = config, cache, length, seeing
        self._adapters = adapters or Adapters(file)
        names = dict.fromkeys(layer.rope for layer in config.layers if layer.rope)
        self._ropes = {name: Rotations(file.metadata, file.tensors, config, length.bound, name) for name in names}

    def graph(self, tokens: Dim, rows: Dim | None, *, together: bool = False) -> Graph:
        """The graph from token ids to `logits` of `rows` of the tokens. None: of all tokens, each of which is a sequence's next
        one, so that a token's logits have the same bits for any number of them. With an input `lengths`, tokens see each other
        `together` up to there."""
        graph = Graph()
        batch, caches = self._inputs(graph, tokens, rows, together=together)
        if self._seeing.width and rows is not None:
            mask = graph.input("is_image", (tokens,), "bool")
            batch = replace(batch, images=self._images(graph, tokens), is_image=mask)
        checkpoint = checkpoint_of(self._adapters, graph, invariant=rows is None)
        graph.output("logits", decoder(self._config, checkpoint, batch, caches))
        if isinstance(checkpoint, AdaptedCheckpoint):
            checkpoint.check_used()
        if self._experts is not None:
            routers = [node for node in graph.nodes if node.op.name == "moe_route"]
            require_layers(self._experts, len(routers))
            for layer, router in zip(self._experts.layers, routers, strict=True):
                graph.output(name_of(layer), router.outputs[1])
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

    def _inputs(
        self, graph: Graph, tokens: Dim, rows: Dim | None, *, together: bool = False
    ) -> tuple[TokenBatch, list[LayerMemory]]:
        table = graph.state("block_table", self._cache.specs["block_table"])
        ropes = {name: graph.constant(name, rope, rope.spec) for name, rope in self._ropes.items()}
        recurrent = self._config.recurrent is not None
        batch, places = token_inputs(graph, tokens, rows, table, ropes, self._length, recurrent=recurrent)
        whole = places
        if FAMILIES[self._config.architecture].encoder or together:
            places = replace(places, lengths=graph.input("lengths", table.spec.bounds[:1], "i32"))
        whole = whole if together and self._seeing.windows_only else places
        ring = places
        if self._cache.ring is not None:
            ring = replace(places, block_table=graph.state("ring_table", self._cache.specs["ring_table"]))
        if self._seeing.axes:
            axes = graph.input("axes", (tokens, self._seeing.axes), "i32")
            layout = FAMILIES[self._config.architecture].axes
            batch = replace(batch, axes=axes, sections=self._config.sections, layout=layout)
        caches: list[LayerMemory] = []
        for layer, options in enumerate(self._config.layers):
            shared, own = options.shares >= 0, ring if options.window else whole
            caches.append(caches[options.shares] if shared else self._layer_cache(graph, layer, own))
        return batch, caches

    def _images(self, graph: Graph, tokens: Dim) -> Sequence[Tensor]:
        """The embeddings of tokens of images, and what they add after the first layers."""
        width, dim = self._seeing.width, self._config.dim
        joined = graph.input("images", (tokens, width), "f32")
        return [joined] if width == dim else [*F.split(joined, axis=1, sizes=(dim,) * (width // dim))]

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
