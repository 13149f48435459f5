"""Served: the model behind the HTTP interface, its name and its limits."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from camshaft.generate.engine.engine import Engine
from camshaft.serve.errors import HttpError

if TYPE_CHECKING:
    from starlette.requests import Request

    from camshaft.generate.embedding_model import EmbeddingModel
    from camshaft.generate.language_model import LanguageModel
    from camshaft.generate.reranker import Reranker

MOST_BODY_NBYTES = 8 << 20


@dataclass(frozen=True)
class Embedder:
    """A model that makes vectors of texts, and its name."""

    name: str
    model: EmbeddingModel


@dataclass(frozen=True)
class Ranker:
    """A model that scores documents for a query, and its name."""

    name: str
    model: Reranker


@dataclass(frozen=True)
class Served:
    """A model, the engine that runs it, and what the server needs to know of it. `created` is in seconds of Unix time."""

    name: str
    engine: Engine
    most_body_nbytes: int = MOST_BODY_NBYTES
    created: int = field(default_factory=lambda: int(time.time()))
    embedder: Embedder | None = None
    ranker: Ranker | None = None

    @property
    def lm(self) -> LanguageModel:
        """The model."""
        return self.engine.lm

    def check_model(self, name: Any) -> None:
        """Raise HttpError if a request names another model."""
        if name is not None and name != self.name:
            message = f"there is no model {str(name)[:100]!r}; this server has {self.name!r}"
            raise HttpError(404, message, code="model_not_found", param="model")

    @cached_property
    def most_text_nbytes(self) -> int:
        """Bytes of a text that cannot fit the context: it would need more tokens of the longest kind."""
        return self.lm.context * max(len(token.encode()) for token in self.lm.tokenizer.vocabulary.tokens)

    def check_text(self, text: str, param: str) -> None:
        """Raise HttpError for a text that cannot fit the context, before it is tokenized."""
        n = len(text.encode("utf-8", "surrogatepass"))
        if n > self.most_text_nbytes:
            message = f"'{param}' has {n:,} bytes, which cannot fit the context of {self.lm.context} tokens"
            raise HttpError(400, message, code="context_length_exceeded", param=param)

    async def body(self, request: Request) -> bytes:
        """The body of a request. Raises HttpError if it is larger than the limit."""
        parts, n = [], 0
        async for part in request.stream():
            n += len(part)
            if n > self.most_body_nbytes:
                message = f"the body has more than {self.most_body_nbytes:,} bytes"
                raise HttpError(413, message, code="request_too_large")
            parts.append(part)
        return b"".join(parts)


def served_name(model: str) -> str:
    """The name under which a model is served: that of its file without the suffix, or its name in the catalogue."""
    name = PurePath(model.replace("\\", "/")).name
    return name.removesuffix(".gguf") or model
