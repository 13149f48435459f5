"""PooledModel: a model file opened to turn texts into pooled hidden states; what EmbeddingModel and Reranker share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from camshaft.dtypes import f32
from camshaft.errors import ContextError, LogitsError, ModelError, SettingError, count
from camshaft.extent import Extent
from camshaft.generate import options as model_options
from camshaft.generate.checks import check_token_id
from camshaft.generate.memory.kv_cache import KVCache
from camshaft.generate.memory.packed_folder import weight_cache
from camshaft.generate.stored.header_cache import open_model_file
from camshaft.generate.stored.plan_cache import PlanCache
from camshaft.models.config import ModelConfig, read_config
from camshaft.models.families import FAMILIES
from camshaft.models.file_tensors import check_layers
from camshaft.models.files.pull import resolve_model
from camshaft.ops.spec import TensorSpec
from camshaft.plan.cached.cached_plan import CachedPlan
from camshaft.plan.memory.allocate import aligned_bytes
from camshaft.plan.memory.weights import Weights
from camshaft.process import ForkLock, thread_count

if TYPE_CHECKING:
    from camshaft.plan.execution_plan import ExecutionPlan

Array = np.ndarray[Any, Any]
# Texts that one run takes together, as far as their tokens fit it.
TEXTS = 16
_PLAN = "hidden"
RUN_TOKENS = 512


class PooledModel(ABC):
    """A model that makes one vector of each text. Thread-safe: calls run one at a time. A context manager."""

    # Whether texts are pairs, the second of which has a type of its own in models with types of tokens.
    has_pairs = False

    def __init__(
        self,
        path_or_name: str | Path,
        *,
        threads: int | None = None,
        context: int | None = None,
        activations: str = "auto",
    ) -> None:
        self.name, self.threads = model_options.name_of(path_or_name), thread_count(threads)
        self._activations = model_options.activations_of(activations)
        if context is not None:
            model_options.check_sizes(context, TEXTS)
        self._model_file = open_model_file(resolve_model(self.name))
        self._file, self._lock, self._closed = self._model_file.file, ForkLock(), False
        try:
            self.config = self._read_config()
            self._texts = 1 if FAMILIES[self.config.architecture].one_text else TEXTS
            self.context = self._context(context)
            self.pooling = self._read_pooling()
            self.tokenizer = self._model_file.tokenizer()
            self._tokens = Extent("tokens", max(RUN_TOKENS, self.context))
            self._length = Extent("length", self.context)
            self._cache = KVCache(self.config, self.context, f32, TEXTS)
            self._weights = Weights(cache=weight_cache(self._file))
            self._kind = model_options.compiled_activations(self._activations, self._file.tensors.values())
            sizes = f"{self.context}|{self._tokens}|{TEXTS}|{self.has_pairs}"
            facts = f"pooled|{self.config}|{sizes}|{self._kind}|{self.threads}"
            self._plan_cache = PlanCache(self._file, facts, self._weights, self._file.tensors, use=True)
            for _ in range(TEXTS):
                self._cache.reserve(self._cache.open_slot(), self.context)
        except BaseException:
            self._file.close()
            raise

    def _read_config(self) -> ModelConfig:
        config = read_config(self._file.metadata)
        if config.recurrent is not None:
            raise ModelError(
                f"{self.name}: {config.architecture} has recurrent layers; wanted an encoder, or attention alone"
            )
        check_layers(config.architecture, config.n_layers, self._file.tensors)
        return config

    def _context(self, wanted: int | None) -> int:
        """The most tokens of a text: those wanted, else the model's, at most RUN_TOKENS."""
        known = self.config.context_length
        if wanted is None:
            return min(known, RUN_TOKENS)
        if self.config.is_bounded and wanted > known:
            came, name = count(wanted, "token"), self.config.architecture
            raise ContextError(f"a context of {came}; {name} knows the positions of {count(known, 'token')} only")
        return wanted

    @abstractmethod
    def _read_pooling(self) -> str:
        """How a text's vector comes from its tokens': 'mean', 'cls' or 'last'. Raises ModelError, SettingError."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @cached_property
    def _plan(self) -> ExecutionPlan | CachedPlan:
        """The plan: a cached one, or one that is compiled now, and kept for the next start."""
        return self._plan_cache.get(_PLAN, self._memory) or self._compiled

    @cached_property
    def _compiled(self) -> ExecutionPlan:
        from camshaft.generate.graphs import ModelGraphs
        from camshaft.plan.compile import compile

        graphs, memory = ModelGraphs(self._file, self.config, self._cache, self._length), self._memory()
        graph = graphs.hidden_graph(self._tokens, pairs=self.has_pairs)
        plan = compile(graph, threads=self.threads, activations=self._kind, weights=self._weights, memory=memory)
        self._plan_cache.add(_PLAN, plan, memory)
        self._plan_cache.flush()
        self._model_file.save(self.tokenizer)
        return plan

    def _memory(self) -> dict[str, Any]:
        return self._cache.states | {"hidden": self._hidden}

    @cached_property
    def _hidden(self) -> Array:
        """The output of the plan, f32 [tokens, dim]."""
        spec = TensorSpec((self._tokens.bound, self.config.dim), f32)
        return aligned_bytes(spec.nbytes, 64).view(np.float32).reshape(spec.bounds)

    def _pooled(self, texts: Sequence[Sequence[int]], firsts: Sequence[int] = ()) -> Array:
        """The pooled vectors of texts, f32 [n, dim]; of pairs, `firsts` are the numbers of tokens before the second text.

        Raises ContextError for a text of more tokens than the context and an id that no token has, LogitsError if the model
        computes NaN."""
        for ids in texts:
            self._check(ids)
        vectors = np.zeros((len(texts), self.config.dim), np.float32)
        with self._lock:
            if self._closed:
                raise ModelError(f"the model {self.name} is closed")
            for first, last in _groups([len(i) for i in texts], self._tokens.bound, self._texts):
                vectors[first:last] = self._run(texts[first:last], firsts[first:last])
        if not np.isfinite(vectors).all():
            raise LogitsError(f"{self.name} computed a vector that is not finite")
        return vectors

    def _check(self, ids: Sequence[int]) -> None:
        if isinstance(ids, (str, bytes, bytearray)) or not isinstance(ids, (Sequence, np.ndarray)):
            raise SettingError(f"the token ids of a text came as {type(ids).__name__}; wanted a list of whole numbers")
        if not len(ids):
            raise SettingError("a text has no tokens; wanted one or more")
        if len(ids) > self.context:
            raise ContextError(f"a text of {count(len(ids), 'token')}; wanted at most {self.context}, the context")
        for i in ids:
            check_token_id(i, self.config.vocab_size)

    def _run(self, ids: Sequence[Sequence[int]], firsts: Sequence[int]) -> Array:
        """The vectors of up to TEXTS texts, whose tokens fit one run."""
        plan, lengths = self._plan, [len(i) for i in ids]
        n = sum(lengths)
        plan.inputs["ids"][:n] = np.concatenate(ids)
        plan.inputs["positions"][:n] = np.concatenate([np.arange(k) for k in lengths])
        plan.inputs["slots"][:n] = np.repeat(np.arange(len(ids)), lengths)
        if "lengths" in plan.inputs:
            plan.inputs["lengths"][:] = [*lengths, *[1] * (TEXTS - len(ids))]
        if "types" in plan.inputs:
            each = zip(lengths, firsts, strict=True)
            plan.inputs["types"][:n] = np.concatenate([np.arange(k) >= first for k, first in each])
        plan.set_extent(self._tokens, n)
        plan.set_extent(self._length, max(lengths))
        self._weights.finish()
        plan.bound.run()
        ends = np.cumsum(lengths)
        hidden = self._hidden
        if self.pooling == "mean":
            parts = np.split(hidden[:n], ends[:-1])
            return np.stack([part.mean(axis=0, dtype=np.float64) for part in parts]).astype(np.float32)
        return np.array(hidden[ends - 1 if self.pooling == "last" else ends - lengths])

    def close(self) -> None:
        """Release the plan and the file; may be called twice."""
        with self._lock:
            if not self._closed:
                compiled = {_PLAN: self._compiled} if "_compiled" in vars(self) else {}
                self._plan_cache.measure_later(compiled, None, self.threads)
                for name in ("_plan", "_compiled"):
                    if name in vars(self):
                        vars(self)[name].close()
                self._weights.clear()
                self._cache.close()
            self._closed = True
            self._file.close()


def _groups(lengths: Sequence[int], most: int, texts: int) -> Iterable[tuple[int, int]]:
    """Runs of texts [first, last), of at most `texts` texts and `most` tokens each."""
    first = total = 0
    for i, n in enumerate(lengths):
        if i - first == texts or total + n > most:
            yield first, i
            first = i
            total = 0
        total += n
    if first < len(lengths):
        yield first, len(lengths)
