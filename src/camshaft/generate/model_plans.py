"""The plans of a language model: one for prompts of any length up to its bound, one for single tokens, sharing all memory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from camshaft.dtypes import f16, f32
from camshaft.errors import ModelError
from camshaft.extent import Extent
from camshaft.formats.gguf import GGUFFile
from camshaft.generate.kv_cache import KVCache
from camshaft.graph.graph import Graph
from camshaft.models.architectures import Architecture
from camshaft.models.checkpoint import Checkpoint
from camshaft.models.config import ModelConfig
from camshaft.models.rope_scaling import Rotations
from camshaft.models.transformer import LayerCache, token_inputs
from camshaft.ops.spec import Dim
from camshaft.plan.compile import compile_all
from camshaft.plan.weights import Weights
from camshaft.plan.workers import aligned_bytes

PROMPT_TOKENS = 512  # the prompt plan's bound; longer prompts go through it in chunks
LOGIT_ROWS = 64  # the most positions whose logits one run gives
Array = np.ndarray[Any, Any]


class ModelPlans:
    """Runs tokens of any sequences through the model. `logits` [LOGIT_ROWS, vocab] is where both plans leave their result."""

    def __init__(
        self,
        file: GGUFFile,
        architecture: Architecture,
        config: ModelConfig,
        *,
        context: int,
        n_slots: int,
        quantized: bool,
        backend: str | None,
        threads: int,
    ) -> None:
        if config.n_layers > len(file.tensors):
            raise ModelError(
                f"the key '{config.architecture}.block_count' is {config.n_layers}; the file has {len(file.tensors)} tensors"
            )
        self.config, self.context, self.threads = config, context, threads
        self.cache = KVCache(config, context, f16 if quantized else f32, n_slots)
        self.weights = Weights()
        self.length = Extent("length", context)
        self.prompt_tokens = Extent("tokens", min(PROMPT_TOKENS, context))
        self.logit_rows = Extent("rows", min(LOGIT_ROWS, self.prompt_tokens.bound))
        self._file, self._architecture = file, architecture
        self._rope = Rotations(file.metadata, file.tensors, config, context)
        # Both graphs before any memory: a file whose tensors do not fit its metadata fails here.
        graphs = self._graph(self.prompt_tokens, self.logit_rows), self._graph(1, None)
        nbytes = self.logit_rows.bound * config.vocab_size * 4
        self.logits: Array = aligned_bytes(nbytes, 64).view(np.float32).reshape(-1, config.vocab_size)
        started = time.perf_counter()
        self.prompt, self.single = compile_all(
            graphs,
            backend=backend,
            threads=threads,
            activations="q8" if quantized else "f32",
            weights=self.weights,
            memory=self.cache.states | {"logits": self.logits},
        )
        self.compile_s = time.perf_counter() - started

    def _graph(self, tokens: Dim, rows: Dim | None) -> Graph:
        graph = Graph()
        table = graph.state("block_table", self.cache.specs["block_table"])
        caches = [
            LayerCache(*(graph.state(f"{kind}.{i}", self.cache.specs[f"{kind}.{i}"]) for kind in ("keys", "values")))
            for i in range(self.config.n_layers)
        ]
        rope = graph.constant("rope", self._rope, self._rope.spec)
        batch = token_inputs(graph, tokens, rows, table, rope, self.length)
        checkpoint = Checkpoint(self._file.tensors, graph)
        graph.output("logits", self._architecture.build(self.config, checkpoint, batch, caches))
        return graph

    def run(self, ids: Sequence[int], positions: Sequence[int], slots: Sequence[int], rows: Sequence[int]) -> Array:
        """One run over up to `prompt_tokens` tokens: f32 [len(rows), vocab], a view that holds until the next run.

        `rows` are indexes into the tokens. The caller has reserved room in the cache for every position.
        """
        single = len(ids) == 1 and len(rows) == 1
        plan = self.single if single else self.prompt
        n = len(ids)
        plan.inputs["ids"][:n], plan.inputs["positions"][:n], plan.inputs["slots"][:n] = ids, positions, slots
        if not single:
            plan.inputs["rows"][: len(rows)] = rows
            plan.set_extent(self.prompt_tokens, n)
            plan.set_extent(self.logit_rows, len(rows))
        plan.set_extent(self.length, max(positions) + 1)
        plan.bound.run()
        return self.logits[: len(rows)]

    def close(self) -> None:
        """Lets go of both plans, their weights and the cache's memory."""
        self.prompt.close()
        self.single.close()
        self.weights.clear()
        self.cache.close()
