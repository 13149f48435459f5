"""Compile, cache and run the plans of a language model.

- prompt: up to PROMPT_TOKENS tokens, logits of the last one only
- rows: as prompt, with the logits of several tokens
- single: one token
- decode.N: one token of each of up to N sequences
- together: tokens of an image that see each other

Compiled on first use, or loaded from the plan cache; they share all memory. A device with memory of its own has the KV cache
and logits; token ids and the block table are copied there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from operator import ne
from typing import TYPE_CHECKING, Any

import numpy as np

from camshaft.dtypes import DType
from camshaft.errors import ModelError, SettingError
from camshaft.extent import Extent
from camshaft.formats.gguf.file import GGUFFile
from camshaft.generate.memory.kv_cache import KVCache
from camshaft.generate.memory.logits import device_with_memory, first_rows, logits_memory
from camshaft.generate.memory.packed_folder import weight_cache
from camshaft.generate.memory.resident_experts import open_residency
from camshaft.generate.speculation.draft_plans import DraftPlans
from camshaft.generate.speculation.pace import RunCosts
from camshaft.generate.stored.named_plans import NamedPlans
from camshaft.generate.stored.plan_cache import PlanCache
from camshaft.generate.vision.runs import ImageRuns
from camshaft.generate.vision.tokens import BLIND, Seeing, has_images
from camshaft.models.adapters.adapter import Adapters
from camshaft.models.config import ModelConfig
from camshaft.models.file_tensors import check_layers, is_multiplied
from camshaft.ops.spec import Dim
from camshaft.plan.cached.cached_plan import CachedPlan
from camshaft.plan.memory.weights import Weights

if TYPE_CHECKING:
    from camshaft.generate.graphs import ModelGraphs
    from camshaft.graph.graph import Graph
    from camshaft.plan.execution_plan import ExecutionPlan
    from camshaft.plan.memory.device_memory import DeviceArray, DeviceRows

PROMPT_TOKENS = 512  # longer prompts run in chunks
MAX_DECODE_SEQUENCES = 16  # more sequences run through the prompt plan
LOGIT_ROWS = 64  # maximum positions with logits per run
Array = np.ndarray[Any, Any]
Ints = Sequence[int]


class ModelPlans(NamedPlans, ImageRuns):
    """The plans of one model, all of which write to `logits` [LOGIT_ROWS, vocab]. `device` is None on the host."""

    def __init__(
        self,
        file: GGUFFile,
        config: ModelConfig,
        *,
        context: int,
        n_slots: int,
        activations: str,
        form: DType | str,
        backend: str | None,
        threads: int,
        adapters: Adapters | None = None,
        seeing: Seeing = BLIND,
        experts_resident: float | None = None,
        cache_tokens: int | None = None,
        mlock: bool = False,
    ) -> None:
        super().__init__()
        check_layers(config.architecture, config.n_layers, file.tensors)
        self.config, self.context, self.threads = config, context, threads
        self.device = device_with_memory(backend)
        self.residency = open_residency(file, config, experts_resident, on_device=self.device is not None)
        self._check_locking(mlock)
        mapped = self.residency.mapped if self.residency else None
        is_cached = self.residency is None and self.device is None and not mlock
        self.weights = Weights(mapped, locked=mlock, cache=weight_cache(file) if is_cached else None)
        self.experts = self.residency.experts if self.residency else None
        self.length = Extent("length", context)
        self.prompt_tokens = Extent("tokens", min(PROMPT_TOKENS, context))
        most = self.prompt_tokens.bound
        self.cache = KVCache(config, context, form, n_slots, self.device, run_tokens=most, tokens=cache_tokens)
        self.logit_rows = Extent("rows", min(LOGIT_ROWS, self.prompt_tokens.bound))
        self.file, self._backend, self._activations = file, backend, activations
        facts = f"{config}|{context}|{self.prompt_tokens}|{self.logit_rows}|{n_slots}|{activations}|{form}|{threads}"
        facts += "" if cache_tokens is None else f"|{self.cache.n_blocks} blocks"
        self._facts = facts + (f"|{seeing}" if seeing.width else "") + ("|routed" if self.experts else "")
        self.seeing = seeing
        self.n_runs, self.costs = 0, RunCosts()  # the logits are those of the last run
        self._decode_extents = {1 << i: Extent("decode", 1 << i) for i in range(1, MAX_DECODE_SEQUENCES.bit_length())}
        self._use_adapters(adapters or Adapters(file))

    def _check_locking(self, mlock: bool) -> None:
        if not isinstance(mlock, bool):
            raise SettingError(f"mlock {mlock!r:.40}; wanted True or False")
        if mlock and self.device is not None:
            raise SettingError("mlock is for the CPU; the model runs on a device with memory of its own")
        if mlock and self.residency is not None:
            raise SettingError(
                f"mlock keeps all weights in memory, and the {self.residency.what} of this model are in files"
            )

    def _use_adapters(self, adapters: Adapters) -> None:
        self.adapters = adapters
        # Products of 8-bit activations by few tokens round alike in a CPU's plans of all sizes; those of f32 and bf16 do not, nor
        # does a BLAS, nor a GPU, which adds up the products of few tokens in another order. (Prompts differ in attention, and
        # with AVX-512 VNNI in products of IQ1 to IQ3, IQ4_XS and Q3_K weights; each is read in the same parts everywhere.)
        is_multiplied_again = any(map(is_multiplied, adapters.tensors.values()))
        self.is_uneven = self._activations != "q8" or self.device is not None or is_multiplied_again
        self.draft_plans = DraftPlans(self.make)
        self._kernels = "simd" if self.is_uneven and self._backend is None else self._backend
        facts = f"{self._facts}|{adapters.digest}" if adapters.given else self._facts
        facts += f"|{self._kernels}" if self.is_uneven else ""
        self.plan_cache = PlanCache(self.file, facts, self.weights, adapters.tensors, use=self._backend is None)
        self._cached_plan("prompt")

    @property
    def checks_drafts(self) -> bool:
        """Whether a run of several tokens of one text has the bits of runs of one, without going back in recurrent states or
        reading more experts from files."""
        return not (self.is_uneven or self.cache.is_recurrent or self.residency is not None)

    def switch(self, adapters: Adapters) -> None:
        """Drops the plans, not the packed weights, and closes the adapters of before; later runs are with others, or with none
        if these cannot be used, which raises as the constructor."""
        try:
            self._switch(adapters)
        except BaseException:
            self._switch(Adapters(self.file))
            raise

    def _switch(self, adapters: Adapters) -> None:
        self.draft_plans.stop()
        with self._making:
            self.plan_cache.flush()
            self._close_plans()
            self.weights.keep_only(self.file.tensors.values())  # not what graphs made, such as rotations
            self.adapters.close()
            self.__dict__.pop("_graphs", None)
            self._use_adapters(adapters)
            self.prepare()

    def prepare(self) -> None:
        """Compile the prompt plan if it is not cached."""
        if self._cached_plan("prompt") is not None:
            return
        # Build the graph before allocating: a file whose tensors contradict its metadata fails here.
        graph = self._graph("prompt")
        if self.device is None:
            from camshaft.graph.passes.rewrite import packed_constants

            self._memory()  # fails early on an impossible size, before tables of that length are built
            self.weights.begin(packed_constants(graph), self.threads)
        self._compile("prompt", graph)
        self.plan_cache.flush()

    def _memory(self) -> dict[str, Any]:
        return self.cache.states | {"logits": self.logits}

    @cached_property
    def logits(self) -> Array | DeviceArray:
        """The output memory of all plans."""
        return logits_memory(max(self.logit_rows.bound, MAX_DECODE_SEQUENCES), self.config.vocab_size, self.device)

    @cached_property
    def _graphs(self) -> ModelGraphs:
        from camshaft.generate.graphs import ModelGraphs  # not needed if all plans are cached

        places = self.cache, self.length, self.adapters, self.seeing, self.experts
        return ModelGraphs(self.file, self.config, *places)

    def _graph(self, name: str) -> Graph:
        sizes: dict[str, tuple[Dim, Dim | None]] = {
            "prompt": (self.prompt_tokens, 1),
            "rows": (self.prompt_tokens, self.logit_rows),
            "together": (self.prompt_tokens, self.logit_rows),
            "single": (1, None),
            **{f"decode.{size}": (tokens, None) for size, tokens in self._decode_extents.items()},
        }
        return self._graphs.graph(*sizes[name], together=name == "together")

    def run(self, ids: Ints, positions: Ints, slots: Ints, rows: Ints, *, alike: bool = False) -> Array | DeviceRows:
        """Run up to `prompt_tokens` tokens; return logits f32 [len(rows), vocab], a view that is valid until the next run
        (`copy()` fetches it from a device).

        `rows` are indexes into the tokens. The caller has reserved KV cache blocks for every position. For recurrent layers the
        tokens of a slot lie side by side and in order, and images whose tokens see each other are whole. `alike`: round as in
        runs with other numbers of rows, if the model `is_uneven` by the same plan.
        """
        if self.cache.is_recurrent and 1 + sum(map(ne, slots, slots[1:])) != len(set(slots)):
            raise ModelError("the rows of a sequence are apart; recurrent layers need them side by side")
        seen = self.seeing.width and has_images(ids)
        run = self._run_stretches if seen and self.seeing.together else self._run_as
        return run("rows" if alike and self.is_uneven else "prompt" if seen else "", ids, positions, slots, rows)

    def _run_as(self, name: str, ids: Ints, positions: Ints, slots: Ints, rows: Ints) -> Array | DeviceRows:
        """Run the named plan, or the one for this number of tokens and rows."""
        n, n_rows = len(ids), len(rows)
        name = "rows" if n_rows > 1 and name != "together" else name or ("single" if n == n_rows else "prompt")
        plan = self._plan(name)
        self._place(plan, ids, positions, slots)
        if name != "single":
            plan.inputs["rows"][: max(n_rows, 1)] = rows or (0,)  # the plan computes at least one row
            plan.set_extent(self.prompt_tokens, n)
        if name in ("rows", "together"):
            plan.set_extent(self.logit_rows, max(n_rows, 1))
        if name == "together":
            plan.inputs["lengths"][:] = max(positions) + 1
        self._run(plan)
        return first_rows(self.logits, n_rows)

    def _run(self, plan: ExecutionPlan | CachedPlan) -> None:
        self.weights.finish()
        self.n_runs += 1
        if self.residency is None:
            plan.bound.run()
        else:
            self.residency.run(plan)

    def run_decode(self, ids: Ints, positions: Ints, slots: Ints) -> None:
        """Run one token of each of several sequences, or several of one; their logits are the first rows of `logits`, and up to
        MAX_DECODE_SEQUENCES have the bits of a run alone."""
        n = len(ids)
        if n == 1 or n > MAX_DECODE_SEQUENCES or (self.seeing.width and has_images(ids)):
            self.run(ids, positions, slots, range(n))
            return
        # One plan per power of two: the best kernel variants depend on the number of tokens.
        size = 1 << (n - 1).bit_length()
        plan = self._plan(f"decode.{size}")
        self._place(plan, ids, positions, slots)
        plan.set_extent(self._decode_extents[size], n)
        self._run(plan)

    def close(self) -> None:
        """Save new plans; release all plans, weights and the KV cache. Waits for a plan in the making."""
        self.draft_plans.stop()
        with self._making:
            self._is_closed = True
            self._close()

    def _close(self) -> None:
        self.plan_cache.flush()
        if self.device is None:
            self.plan_cache.measure_later(self._compiled, self._kernels, self.threads)
        self._close_plans()
        if self.residency is not None:
            self.residency.close()
        self.weights.clear()
        self.adapters.close()
        self.cache.close()
        if "logits" in vars(self) and not isinstance(self.logits, np.ndarray):
            self.logits.close()
