"""The plans of a language model: for prompts of any length up to a bound, single tokens, a token of each of a few sequences.

A prompt's plan gives the logits of one row, so that the last layer past its attention and the output's product are a single
token's; another, made when it is first wanted, those of several.

They share all memory. On a device with memory of its own, the KV cache and the logits lie there; token ids and the block table
are copied in.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from camshaft.dtypes import DType, f32
from camshaft.errors import ModelError
from camshaft.extent import Extent
from camshaft.formats.gguf.file import GGUFFile
from camshaft.generate.kv_cache import KVCache
from camshaft.generate.plan_cache import PlanCache
from camshaft.generate.sampler import kind_of, sampling_graph
from camshaft.generate.sampling import Sampling
from camshaft.models.config import ModelConfig
from camshaft.ops.spec import Dim, TensorSpec
from camshaft.plan.cached.cached_plan import CachedPlan
from camshaft.plan.memory.weights import Weights
from camshaft.plan.runtime.workers import aligned_bytes

if TYPE_CHECKING:
    from camshaft.backends.device import Device
    from camshaft.generate.model_graphs import ModelGraphs
    from camshaft.graph.graph import Graph
    from camshaft.plan.execution_plan import ExecutionPlan
    from camshaft.plan.memory.device_memory import DeviceArray, DeviceRows

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
        self._file = file
        self._backend, self._activations = backend, "q8" if quantized else "f32"
        facts = f"{config}|{context}|{self.prompt_tokens}|{self.logit_rows}|{n_slots}|{quantized}|{form}|{threads}"
        self.kept = PlanCache(file, facts, self.weights, use=backend is None)
        self._revived: dict[str, CachedPlan | None] = {}
        self._together: dict[int, Extent] = {}
        self._ground: dict[str, ExecutionPlan] = {}
        self._kept("prompt")

    def prepare(self) -> None:
        """Grinds the plan of prompts where none was kept."""
        if self._kept("prompt") is not None:
            return
        # The graph before any memory: a file whose tensors do not fit its metadata fails here.
        graph = self._graph("prompt")
        if self.device is None:
            from camshaft.graph.rewrite import packed_constants

            self._memory()  # more than the system ever gives is refused here, not after a table of rotations of its length
            self.weights.begin(packed_constants(graph), self.threads)
        self._grind("prompt", graph)
        self.kept.flush()

    @property
    def prompt(self) -> ExecutionPlan:
        """The plan for prompts, ground when it is asked for where a kept one runs."""
        return self._ground_plan("prompt")

    @property
    def single(self) -> ExecutionPlan:
        """The plan for single tokens, ground when it is first wanted: the first token of a prompt needs none."""
        return self._ground_plan("single")

    def _ground_plan(self, name: str) -> ExecutionPlan:
        return self._ground[name] if name in self._ground else self._grind(name, self._graph(name))

    def _grind(self, name: str, graph: Graph) -> ExecutionPlan:
        from camshaft.plan.compile import compile_all

        memory = self._memory()
        (plan,) = compile_all(
            [graph],
            backend=self._backend,
            threads=self.threads,
            activations=self._activations,
            weights=self.weights,
            memory=memory,
            foreseen=lambda: [sampling_graph(kind_of(Sampling()), 1, self.config.vocab_size)],
        )
        self._ground[name] = plan
        self.kept.add(name, plan, memory)
        return plan

    def _kept(self, name: str) -> CachedPlan | None:
        if name not in self._revived:
            self._revived[name] = self.kept.get(name, self._memory)
        return self._revived[name]

    def _plan(self, name: str) -> ExecutionPlan | CachedPlan:
        """The plan that runs: one that was ground here, else the kept one, else one ground now."""
        return self._ground.get(name) or self._kept(name) or self._ground_plan(name)

    @property
    def origins(self) -> dict[str, str]:
        """Where the plans that ran or were asked for came from, by name: 'kept' is out of the store, 'ground' made here, with the
        reason where it cannot be kept."""
        kept = dict.fromkeys((name for name, plan in self._revived.items() if plan is not None), "kept")
        why = {name: f"ground; cannot be kept: {reason}" for name, reason in self.kept.refused.items()}
        return kept | dict.fromkeys(self._ground, "ground") | why

    def _memory(self) -> dict[str, Any]:
        return self.cache.states | {"logits": self.logits}

    @cached_property
    def logits(self) -> Array | DeviceArray:
        """Where all plans leave their result."""
        spec = TensorSpec((self.logit_rows.bound, self.config.vocab_size), f32)
        if self.device is not None:
            from camshaft.plan.memory.device_memory import DeviceArray

            return DeviceArray.zeros(self.device, spec)
        return aligned_bytes(spec.nbytes, 64).view(np.float32).reshape(spec.bounds)

    @cached_property
    def _graphs(self) -> ModelGraphs:
        from camshaft.generate.model_graphs import ModelGraphs  # here: a start that finds its plans makes no graph

        return ModelGraphs(self._file, self.config, self.cache, self.length)

    def _graph(self, name: str) -> Graph:
        sizes: dict[str, tuple[Dim, Dim | None]] = {
            "prompt": (self.prompt_tokens, 1),
            "rows": (self.prompt_tokens, self.logit_rows),
            "single": (1, None),
            **{_together(most): (tokens, None) for most, tokens in self._together.items()},
        }
        return self._graphs.graph(*sizes[name])

    def run(
        self, ids: Sequence[int], positions: Sequence[int], slots: Sequence[int], rows: Sequence[int]
    ) -> Array | DeviceRows:
        """One run over up to `prompt_tokens` tokens: f32 [len(rows), vocab], a view that holds until the next run; `copy()`
        fetches it where it is a device's.

        `rows` are indexes into the tokens. The caller has reserved room in the cache for every position.
        """
        n, n_rows = len(ids), len(rows)
        name = "rows" if n_rows > 1 else "single" if n == n_rows else "prompt"
        plan = self._plan(name)
        plan.inputs["ids"][:n], plan.inputs["positions"][:n], plan.inputs["slots"][:n] = ids, positions, slots
        if name != "single":
            plan.inputs["rows"][: max(n_rows, 1)] = rows or (0,)  # a part of a prompt asks for none, and one is made
            plan.set_extent(self.prompt_tokens, n)
        if name == "rows":
            plan.set_extent(self.logit_rows, n_rows)
        plan.set_extent(self.length, max(positions) + 1)
        self.weights.finish()
        plan.bound.run()
        if isinstance(self.logits, np.ndarray):
            return self.logits[:n_rows]
        from camshaft.plan.memory.device_memory import DeviceRows

        return DeviceRows(self.logits, n_rows)

    def run_together(self, ids: Sequence[int], positions: Sequence[int], slots: Sequence[int]) -> None:
        """One run over one token of each of several sequences; their logits are the first rows of `logits`."""
        n = len(ids)
        if n == 1 or n > MOST_TOGETHER:
            self.run(ids, positions, slots, range(n))
            return
        most = 1 << (n - 1).bit_length()
        tokens = self._together.setdefault(most, Extent("together", most))
        # The plan of the next power of two of tokens, made when it is first wanted: its variants are those of few tokens.
        plan = self._plan(_together(most))
        plan.inputs["ids"][:n], plan.inputs["positions"][:n], plan.inputs["slots"][:n] = ids, positions, slots
        plan.set_extent(tokens, n)
        plan.set_extent(self.length, max(positions) + 1)
        self.weights.finish()
        plan.bound.run()

    def close(self) -> None:
        """Keeps what was made, and lets go of all plans, their weights and the cache's memory."""
        self.kept.flush()
        for plan in self._ground.values():
            plan.close()
        for revived in self._revived.values():
            if revived is not None:
                revived.close()
        self._ground.clear()
        self._revived.clear()
        self.weights.clear()
        self.cache.close()
        logits: Any = self.__dict__.get("logits")
        if self.device is not None and logits is not None:
            logits.close()


def _together(most: int) -> str:
    return f"together.{most}"


def _away(backend: str | None) -> Device | None:
    """The device of that name if it has memory of its own."""
    if backend is None:
        return None
    from camshaft.backends.device import HOST
    from camshaft.backends.registry import device

    found = device(backend)
    return None if found.space == HOST else found
