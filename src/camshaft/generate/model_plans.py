"""The plans of a language model: for prompts of any length up to a bound, single tokens, a token of each of a few sequences.

They share all memory. On a device with memory of its own, the KV cache and the logits lie there; token ids and the block table
are copied in.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from camshaft.backends.device import HOST, Device
from camshaft.backends.registry import device
from camshaft.dtypes import DType, f32
from camshaft.errors import ModelError
from camshaft.extent import Extent
from camshaft.formats.gguf import GGUFFile
from camshaft.generate.kv_cache import KINDS, KVCache
from camshaft.generate.sampler import kind_of, sampling_graph
from camshaft.generate.sampling import Sampling
from camshaft.graph.graph import Graph
from camshaft.graph.passes.layout import packed_constants
from camshaft.models.architectures import Architecture
from camshaft.models.checkpoint import Checkpoint
from camshaft.models.config import ModelConfig
from camshaft.models.rope_scaling import Rotations
from camshaft.models.transformer import LayerCache, token_inputs
from camshaft.ops.spec import Dim, TensorSpec
from camshaft.plan.compile import compile_all
from camshaft.plan.device_memory import DeviceArray, DeviceRows
from camshaft.plan.execution_plan import ExecutionPlan
from camshaft.plan.weights import Weights
from camshaft.plan.workers import aligned_bytes

PROMPT_TOKENS = 512  # the prompt plan's bound; longer prompts go through it in chunks
MOST_TOGETHER = 16  # sequences with a plan of their own; more go through the prompt plan
LOGIT_ROWS = 64  # the most positions whose logits one run gives
Array = np.ndarray[Any, Any]


class ModelPlans:
    """Runs tokens of any sequences through the model. `logits` [LOGIT_ROWS, vocab] is where both plans leave their result;
    `device` is None where that is the host's memory."""

    def __init__(
        self,
        file: GGUFFile,
        architecture: Architecture,
        config: ModelConfig,
        *,
        context: int,
        n_slots: int,
        quantized: bool,
        form: DType | str,
        backend: str | None,
        threads: int,
    ) -> None:
        if config.n_layers > len(file.tensors):
            raise ModelError(
                f"the key '{config.architecture}.block_count' is {config.n_layers}; the file has {len(file.tensors)} tensors"
            )
        self.config, self.context, self.threads = config, context, threads
        self.device = _away(backend)
        self.cache = KVCache(config, context, form, n_slots, self.device)
        self.weights = Weights()
        self.length = Extent("length", context)
        self.prompt_tokens = Extent("tokens", min(PROMPT_TOKENS, context))
        self.logit_rows = Extent("rows", min(LOGIT_ROWS, self.prompt_tokens.bound))
        self._file, self._architecture = file, architecture
        self._rope = Rotations(file.metadata, file.tensors, config, context)
        # The graph before any memory: a file whose tensors do not fit its metadata fails here.
        graph = self._graph(self.prompt_tokens, self.logit_rows)
        if self.device is None:
            self.weights.begin(packed_constants(graph), threads)
        self.logits = self._make_logits(TensorSpec((self.logit_rows.bound, config.vocab_size), f32))
        self._backend, self._activations = backend, "q8" if quantized else "f32"
        started = time.perf_counter()
        self.prompt = self._compile([graph])[0]
        self.compile_s = time.perf_counter() - started
        self._together: dict[int, tuple[ExecutionPlan, Extent]] = {}

    @cached_property
    def single(self) -> ExecutionPlan:
        """The plan for single tokens, ground when it is first wanted: the first token of a prompt needs none."""
        return self._compile([self._graph(1, None)])[0]

    def _compile(self, graphs: Sequence[Graph]) -> list[ExecutionPlan]:
        return compile_all(
            graphs,
            backend=self._backend,
            threads=self.threads,
            activations=self._activations,
            weights=self.weights,
            memory=self.cache.states | {"logits": self.logits},
            foreseen=lambda: [sampling_graph(kind_of(Sampling()), 1, self.config.vocab_size)],
        )

    def _make_logits(self, spec: TensorSpec) -> Array | DeviceArray:
        if self.device is not None:
            return DeviceArray.zeros(self.device, spec)
        return aligned_bytes(spec.nbytes, 64).view(np.float32).reshape(spec.bounds)

    def _graph(self, tokens: Dim, rows: Dim | None) -> Graph:
        graph = Graph()
        table = graph.state("block_table", self.cache.specs["block_table"])
        caches = [self._layer_cache(graph, layer) for layer in range(self.config.n_layers)]
        rope = graph.constant("rope", self._rope, self._rope.spec)
        batch = token_inputs(graph, tokens, rows, table, rope, self.length)
        checkpoint = Checkpoint(self._file.tensors, graph)
        graph.output("logits", self._architecture.build(self.config, checkpoint, batch, caches))
        return graph

    def _layer_cache(self, graph: Graph, layer: int) -> LayerCache:
        names = [f"{kind}.{layer}" for kind in KINDS if f"{kind}.{layer}" in self.cache.specs]
        keys, values, *scales = (graph.state(name, self.cache.specs[name]) for name in names)
        return LayerCache(keys, values, tuple(scales))

    def run(
        self, ids: Sequence[int], positions: Sequence[int], slots: Sequence[int], rows: Sequence[int]
    ) -> Array | DeviceRows:
        """One run over up to `prompt_tokens` tokens: f32 [len(rows), vocab], a view that holds until the next run; `copy()`
        fetches it where it is a device's.

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
        n_rows = len(rows)
        return DeviceRows(self.logits, n_rows) if isinstance(self.logits, DeviceArray) else self.logits[:n_rows]

    def run_together(self, ids: Sequence[int], positions: Sequence[int], slots: Sequence[int]) -> None:
        """One run over one token of each of several sequences; their logits are the first rows of `logits`."""
        n = len(ids)
        if n == 1 or n > MOST_TOGETHER:
            self.run(ids, positions, slots, range(n))
            return
        plan, tokens = self._plan_for(n)
        plan.inputs["ids"][:n], plan.inputs["positions"][:n], plan.inputs["slots"][:n] = ids, positions, slots
        plan.set_extent(tokens, n)
        plan.set_extent(self.length, max(positions) + 1)
        plan.bound.run()

    def _plan_for(self, n: int) -> tuple[ExecutionPlan, Extent]:
        """The plan of the next power of two of tokens, ground when it is first wanted: its variants are those of few tokens."""
        most = 1 << (n - 1).bit_length()
        if most not in self._together:
            tokens = Extent("together", most)
            self._together[most] = self._compile([self._graph(tokens, None)])[0], tokens
        return self._together[most]

    def close(self) -> None:
        """Lets go of all plans, their weights and the cache's memory."""
        ground = [self.__dict__[name] for name in ("prompt", "single") if name in self.__dict__]
        for plan in (*ground, *(plan for plan, _ in self._together.values())):
            plan.close()
        self.weights.clear()
        self.cache.close()
        if isinstance(self.logits, DeviceArray):
            self.logits.close()


def _away(backend: str | None) -> Device | None:
    """The device of that name if it has memory of its own."""
    found = None if backend is None else device(backend)
    return None if found is None or found.space == HOST else found
