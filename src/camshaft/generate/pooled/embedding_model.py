"""EmbeddingModel: vectors of texts, from encoders and from decoders whose file names a pooling."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from camshaft.errors import ModelError, SettingError
from camshaft.generate.pooled.pooled_model import Array, PooledModel
from camshaft.models.blocks.heads import HeadLayer, read_dense
from camshaft.models.config import POOLINGS


class EmbeddingModel(PooledModel):
    """A model that turns texts into vectors. Thread-safe: calls run one at a time. A context manager.

    path_or_name: a .gguf file, or a model name that `camshaft pull` accepts.
    threads: worker threads; None uses all available cores.
    context: maximum tokens per text; None: 512, or the most that the model knows positions of.
    activations: 'q8' quantizes the inputs of quantized matmuls to 8 bits, and 'auto', or rounds them to bf16 on a CPU with AMX;
        'f32' does not.
    pooling: 'mean', 'cls' (the first token) or 'last'; None: as the file says.

    Raises ModelError or FormatError for an unusable file, SettingError for an option that cannot be.
    """

    _layers: tuple[HeadLayer, ...]

    def __init__(
        self,
        path_or_name: str | Path,
        *,
        threads: int | None = None,
        context: int | None = None,
        activations: str = "auto",
        pooling: str | None = None,
    ) -> None:
        self._given_pooling = pooling
        super().__init__(path_or_name, threads=threads, context=context, activations=activations)

    def __repr__(self) -> str:
        return f"EmbeddingModel({self.name!r}: pooling {self.pooling}, context {self.context})"

    def _read_pooling(self) -> str:
        """Raises SettingError for an unknown one, ModelError where the file names none, or is a reranker's."""
        given, known = self._given_pooling, [p for p in POOLINGS if p not in ("", "rank")]
        if given is not None and given not in known:
            raise SettingError(f"pooling {given!r}; wanted one of {', '.join(known)}")
        found = given or self.config.pooling
        if found not in known:
            why = "is a reranker (camshaft rerank, Reranker)" if found else "names no pooling"
            raise ModelError(f"{self.name} {why}; give pooling= one of {', '.join(known)}")
        self._layers = read_dense(self._file.tensors, self.config)
        return found

    @property
    def dim(self) -> int:
        """The length of a vector."""
        return len(self._layers[-1].weight) if self._layers else self.config.dim

    def embed(self, texts: str | Iterable[str], *, normalize: bool = True) -> Array:
        """The vectors of the texts, f32 [n, dim], of length 1 unless `normalize` is False; of one text f32 [dim].

        Raises ContextError for a text of more tokens than the context, SettingError for anything but a string, LogitsError
        if the model computes NaN.
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
        vectors = self._pooled(list(texts))
        for layer in self._layers:
            vectors = layer(vectors)
        if normalize:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors

    def tokenize(self, text: str, *, truncate: bool = False) -> list[int]:
        """Token ids of a text, with those that the model wants around it; with `truncate`, those of the text past the context
        are left out. Raises SettingError for anything but a string."""
        if not isinstance(text, str):
            raise SettingError(f"a text came as {type(text).__name__}; wanted str")
        ids = self.tokenizer.encode(text, parse_special=False)
        if truncate and len(ids) > self.context:
            n_after = int(self.tokenizer.vocabulary.add_eos and ids[-1] == self.tokenizer.eos_id)
            ids[self.context - n_after : len(ids) - n_after] = []
        return ids
