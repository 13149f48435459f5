"""EmbeddingModel: vectors of texts, from encoders and from decoders whose file names a pooling."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from camshaft.dtypes import f32
from camshaft.errors import ContextError, LogitsError, ModelError, SettingError, count
from camshaft.extent import Extent
from camshaft.generate import options as model_options
from camshaft.generate.memory.kv_cache import KVCache
from camshaft.generate.stored.header_cache import open_model_file
from camshaft.models.config import POOLINGS, read_config
from camshaft.models.families import FAMILIES, family_name
from camshaft.models.files.pull import resolve_model
from camshaft.plan.execution_plan import ExecutionPlan
from camshaft.settings import thread_count
from camshaft.text.vocabulary import vocabulary_size

Array = np.ndarray[Any, Any]
# Texts that one run takes together, as far as their tokens fit it.
TEXTS = 16
RUN_TOKENS = 512


class EmbeddingModel:
    """A model that turns texts into vectors. Thread-safe: calls run one at a time. A context manager.

    path_or_name: a .gguf file, or a model name that `camshaft pull` accepts.
    threads: worker threads; None uses all available cores.
    context: maximum tokens per text; None: 512, or the most that the model knows positions of.
    activations: 'auto' and 'q8' quantize the inputs of quantized matmuls to 8 bits; 'f32' does not.
    pooling: 'mean', 'cls' (the first token) or 'last'; None: as the file says.

    Raises ModelError or FormatError for an unusable file, SettingError for an option that cannot be.
    """

    def __init__(
        self,
        path_or_name: str | Path,
        *,
        threads: int | None = None,
        context: int | None = None,
        activations: str = "auto",
        pooling: str | None = None,
    ) -> None:
        self.name, self.threads = str(path_or_name), thread_count(threads)
        self._activations = model_options.activations_of(activations)
        if context is not None:
            model_options.check_sizes(context, TEXTS)
        self._model_file = open_model_file(resolve_model(self.name))
        self._file, self._lock, self._closed = self._model_file.file, threading.RLock(), False
        try:
            architecture = family_name(self._file.metadata)
            self.config = read_config(self._file.metadata, architecture, vocabulary_size(self._file.metadata))
            self.context = min(self.config.context_length, RUN_TOKENS) if context is None else context
            if FAMILIES[architecture].learned_positions and self.context > self.config.context_length:
                most = count(self.config.context_length, "token")
                raise ContextError(
                    f"a context of {count(self.context, 'token')}; {architecture} knows the positions of {most} only"
                )
            if self.config.recurrent is not None:
                raise ModelError(
                    f"{self.name}: {architecture} has recurrent layers; wanted an encoder, or attention alone"
                )
            self.pooling = _pooling(pooling, self.config.pooling, self.name)
            self.tokenizer = self._model_file.tokenizer()
            self._tokens = Extent("tokens", max(RUN_TOKENS, self.context))
            self._length = Extent("length", self.context)
            self._cache = KVCache(self.config, self.context, f32, TEXTS)
            for _ in range(TEXTS):
                self._cache.reserve(self._cache.open_slot(), self.context)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"EmbeddingModel({self.name!r}: pooling {self.pooling}, context {self.context})"

    @property
    def dim(self) -> int:
        """The length of a vector."""
        return self.config.dim

    @cached_property
    def _plan(self) -> ExecutionPlan:
        from camshaft.generate.graphs import ModelGraphs
        from camshaft.plan.compile import compile

        graph = ModelGraphs(self._file, self.config, self._cache, self._length).hidden_graph(self._tokens)
        kind = "q8" if model_options.ACTIVATIONS[self._activations] else "f32"
        return compile(graph, threads=self.threads, activations=kind, memory=self._cache.states)

    def embed(self, texts: str | Iterable[str], *, normalize: bool = True) -> Array:
        """The vectors of the texts, f32 [n, dim], of length 1 unless `normalize` is False; of one text f32 [dim].

        Raises ContextError for a text of more tokens than the context, SettingError for what is no text, LogitsError if the
        model computes NaN.
        """
        if isinstance(texts, str):
            made: Array = self.embed([texts], normalize=normalize)[0]
            return made
        if isinstance(texts, (bytes, bytearray)) or not isinstance(texts, Iterable):
            raise SettingError(f"texts came as {type(texts).__name__}; wanted a text or several")
        return self.embed_ids([self.tokenize(text) for text in texts], normalize=normalize)

    def embed_ids(self, texts: Iterable[Sequence[int]], *, normalize: bool = True) -> Array:
        """The vectors of texts as token ids, f32 [n, dim]. Raises as `embed`, and ContextError for an id that no token has."""
        if isinstance(texts, (str, bytes, bytearray)) or not isinstance(texts, Iterable):
            raise SettingError(f"token ids came as {type(texts).__name__}; wanted a list of them for each text")
        texts = list(texts)
        for ids in texts:
            self._check(ids)
        vectors = np.zeros((len(texts), self.dim), np.float32)
        with self._lock:
            if self._closed:
                raise ModelError(f"the model {self.name} is closed")
            for first, last in _groups([len(i) for i in texts], self._tokens.bound):
                vectors[first:last] = self._run(texts[first:last])
        if not np.isfinite(vectors).all():
            raise LogitsError(f"{self.name} computed a vector that is not finite")
        if normalize:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors

    def tokenize(self, text: str, *, truncate: bool = False) -> list[int]:
        """Token ids of a text, with those that the model wants around it; with `truncate`, those of the text past the context
        are left out. Raises SettingError for what is no text."""
        if not isinstance(text, str):
            raise SettingError(f"a text came as {type(text).__name__}; wanted str")
        ids = self.tokenizer.encode(text, parse_special=False)
        if truncate and len(ids) > self.context:
            n_after = int(self.tokenizer.vocabulary.add_eos and ids[-1] == self.tokenizer.eos_id)
            ids[self.context - n_after : len(ids) - n_after] = []
        return ids

    def _check(self, ids: Sequence[int]) -> None:
        if isinstance(ids, (str, bytes, bytearray)) or not isinstance(ids, (Sequence, np.ndarray)):
            raise SettingError(f"the token ids of a text came as {type(ids).__name__}; wanted a list of whole numbers")
        if not len(ids):
            raise SettingError("a text has no tokens; wanted one or more")
        if len(ids) > self.context:
            raise ContextError(f"a text of {count(len(ids), 'token')}; wanted at most {self.context}, the context")
        for i in ids:
            whole = isinstance(i, (int, np.integer)) and not isinstance(i, bool)
            if not whole or not 0 <= i < self.config.vocab_size:
                raise ContextError(f"token id {i!r}; wanted a whole number from 0 to {self.config.vocab_size - 1}")

    def _run(self, ids: Sequence[Sequence[int]]) -> Array:
        """The vectors of up to TEXTS texts, whose tokens fit one run."""
        plan, lengths = self._plan, [len(i) for i in ids]
        n = sum(lengths)
        plan.inputs["ids"][:n] = np.concatenate(ids)
        plan.inputs["positions"][:n] = np.concatenate([np.arange(k) for k in lengths])
        plan.inputs["slots"][:n] = np.repeat(np.arange(len(ids)), lengths)
        if "lengths" in plan.inputs:
            plan.inputs["lengths"][:] = [*lengths, *[1] * (TEXTS - len(ids))]
        plan.set_extent(self._tokens, n)
        plan.set_extent(self._length, max(lengths))
        plan.bound.run()
        ends = np.cumsum(lengths)
        hidden = plan.outputs["hidden"]
        if self.pooling == "mean":
            parts = np.split(hidden[:n], ends[:-1])
            return np.stack([part.mean(axis=0, dtype=np.float64) for part in parts]).astype(np.float32)
        return np.array(hidden[ends - 1 if self.pooling == "last" else ends - lengths])

    def close(self) -> None:
        """Release the plan and the file; may be called twice."""
        with self._lock:
            if not self._closed and "_plan" in vars(self):
                self._plan.close()
            if not self._closed:
                self._cache.close()
            self._closed = True
            self._file.close()


def _groups(lengths: Sequence[int], most: int) -> Iterable[tuple[int, int]]:
    """Runs of texts [first, last), of at most TEXTS texts and `most` tokens each."""
    first = total = 0
    for i, n in enumerate(lengths):
        if i - first == TEXTS or total + n > most:
            yield first, i
            first = i
            total = 0
        total += n
    if first < len(lengths):
        yield first, len(lengths)


def _pooling(given: str | None, of_file: str, name: str) -> str:
    """The pooling to use. Raises SettingError for an unknown one, ModelError where the file names none, or a reranker's."""
    known = [p for p in POOLINGS if p not in ("", "rank")]
    if given is not None and given not in known:
        raise SettingError(f"pooling {given!r}; wanted one of {', '.join(known)}")
    found = given or of_file
    if found not in known:
        why = "is a reranker" if found else "names no pooling"
        raise ModelError(f"{name} {why}; give pooling= one of {', '.join(known)}")
    return found
