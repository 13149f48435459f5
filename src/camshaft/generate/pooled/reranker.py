"""Reranker: scores of documents for a query, by models that read both together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from camshaft.errors import ContextError, ModelError, SettingError, count
from camshaft.formats.mapped import shown_value
from camshaft.generate.pooled.pooled_model import Array, PooledModel
from camshaft.models.blocks.heads import HeadLayer, read_classifier
from camshaft.models.families import FAMILIES

TEMPLATE = "tokenizer.chat_template.rerank"
_PLACE = re.compile(rb"\{(query|document)\}")


@dataclass(frozen=True)
class Pair:
    """A query and a document as one sequence of token ids, of which the first `n_first` are the query's."""

    ids: Sequence[int]
    n_first: int


class Reranker(PooledModel):
    """A model that scores documents for a query. Thread-safe: calls run one at a time. A context manager.

    path_or_name: a .gguf file, or a model name that `camshaft pull` accepts.
    threads: worker threads; None uses all available cores.
    context: maximum tokens of a query and a document; None: 512, or the most that the model knows positions of.
    activations: 'q8' quantizes the inputs of quantized matmuls to 8 bits, and 'auto', or rounds them to bf16 on a CPU with AMX;
        'f32' does not.

    Raises ModelError or FormatError for an unusable file, SettingError for an option that cannot be.
    """

    has_pairs = True
    _layers: tuple[HeadLayer, ...]

    def __repr__(self) -> str:
        return f"Reranker({self.name!r}: context {self.context})"

    def _read_pooling(self) -> str:
        if self.config.pooling != "rank":
            raise ModelError(
                f"{self.name} is not a reranker: its pooling is {self.config.pooling or 'not given'}; wanted rank"
            )
        self._layers = read_classifier(self._file.tensors, self.config, self.name)
        if not FAMILIES[self.config.architecture].encoder:
            return "last"
        if self.config.classifier_pooling not in ("mean", "cls"):
            raise ModelError(f"{self.name}: its classifier.pooling_type is neither 1 (mean) nor 2 (cls)")
        return self.config.classifier_pooling

    def rank(self, query: str, documents: Iterable[str], *, normalize: bool = True, truncate: bool = False) -> Array:
        """The scores of the documents for the query, f32 [n], in their order: from 0 to 1 or, unless `normalize`, the logits.

        Raises ContextError for a pair of more tokens than the context; with `truncate` the document's last ones are left out.
        SettingError for anything but a string, LogitsError if the model computes NaN.
        """
        if isinstance(documents, (str, bytes, bytearray)) or not isinstance(documents, Iterable):
            raise SettingError(f"documents came as {type(documents).__name__}; wanted several texts")
        pairs = [self.pair(query, document, truncate=truncate) for document in documents]
        return self.rank_pairs(pairs, normalize=normalize)

    def rank_pairs(self, pairs: Sequence[Pair], *, normalize: bool = True) -> Array:
        """The scores of pairs, f32 [n], as `rank`."""
        scores = self._pooled([pair.ids for pair in pairs], [pair.n_first for pair in pairs])
        for layer in self._layers:
            scores = layer(scores)
        logits: Array = scores[:, 0]
        return np.exp(-np.logaddexp(0, -logits)) if normalize else logits

    def pair(self, query: str, document: str, *, truncate: bool = False) -> Pair:
        """A query and a document as the model reads them; with `truncate`, tokens of the document past the context are left out.

        Raises SettingError for anything but a string, ContextError where no token of the document would be left."""
        for text, what in ((query, "the query"), (document, "a document")):
            if not isinstance(text, str):
                raise SettingError(f"{what} came as {type(text).__name__}; wanted str")
        made = self._pair(query, document)
        while truncate and document and len(made.ids) > self.context:
            # By letters, as a token of a text that was cut is not always one of the whole text.
            n_tokens = max(1, len(self._encoded(document)))
            kept = max(0, n_tokens - (len(made.ids) - self.context))
            document = document[: len(document) * kept // n_tokens]
            made = self._pair(query, document)
        if truncate and not document and len(made.ids) > self.context:
            raise ContextError(
                f"a query of {count(len(made.ids), 'token')} with those around it; wanted less than {self.context}, the context"
            )
        return made

    def _pair(self, query: str, document: str) -> Pair:
        if self._template is not None:
            ids = [i for part in self._filled(query, document) for i in part]
            return Pair(ids, len(ids))
        before, between, after = self.tokenizer.vocabulary.pair
        first = [*before, *self._encoded(query), *between]
        return Pair([*first, *self._encoded(document), *after], len(first))

    def _encoded(self, text: str | bytes, *, at_start: bool = True) -> list[int]:
        return self.tokenizer.encode(text, add_special=False, parse_special=False, at_start=at_start)

    def _filled(self, query: str, document: str) -> Iterator[list[int]]:
        """The template's tokens with both texts in it. Control tokens that these spell are text."""
        assert self._template is not None
        texts = {b"query": query, b"document": document}
        at_start = True
        for part in self.tokenizer.split_special(self._template):
            if isinstance(part, int):
                yield [part]
            else:
                filled = _PLACE.sub(lambda found: texts[found[1]].encode("utf-8", "surrogatepass"), part)
                yield self._encoded(filled, at_start=at_start)
            at_start = isinstance(part, int)

    @cached_property
    def _template(self) -> str | None:
        """The file's text with places for the query and the document, if it has one."""
        found = self._file.metadata.get(TEMPLATE)
        if found is None:
            return None
        if not isinstance(found, str) or not all(place in found for place in ("{query}", "{document}")):
            raise ModelError(f"{TEMPLATE} is {shown_value(found)}; wanted a text with {{query}} and {{document}}")
        return found
