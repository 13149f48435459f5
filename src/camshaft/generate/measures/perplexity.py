"""Perplexity of a text: exp of the mean negative log probability of its tokens, measured as llama.cpp does."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from camshaft.errors import ContextError, LogitsError, SettingError, count

if TYPE_CHECKING:
    from camshaft.generate.language_model import LanguageModel

Array = np.ndarray[Any, Any]
# Called with the number of chunks that are done, and of all.
Progress = Callable[[int, int], None]
CHUNK = 512


@dataclass(frozen=True)
class Perplexity:
    """`value` and its standard error, the mean negative log probability in nats, and how many tokens of how many chunks were
    scored."""

    value: float
    error: float
    nll: float
    n_tokens: int
    n_chunks: int

    def __str__(self) -> str:
        chunks = count(self.n_chunks, "chunk")
        return f"perplexity {self.value:.4f} +- {self.error:.4f} ({count(self.n_tokens, 'token')} of {chunks})"


def perplexity(
    lm: LanguageModel,
    text: str,
    *,
    chunk: int = CHUNK,
    chunks: int | None = None,
    progress: Progress = lambda done, total: None,
) -> Perplexity:
    """The perplexity of a text, which is cut into chunks of `chunk` tokens, each with an empty context; the second half of each
    is scored. `chunks` limits their number; tokens after the last whole chunk are not used.

    Raises SettingError for sizes that cannot be, ContextError for a text shorter than a chunk and a chunk longer than the
    context, LogitsError if the model computes NaN.
    """
    if type(chunk) is not int or chunk < 4:
        raise SettingError(f"perplexity: chunk={chunk!r:.60}; wanted 4 tokens or more")
    if chunks is not None and (type(chunks) is not int or chunks < 1):
        raise SettingError(f"perplexity: chunks={chunks!r:.60}; wanted 1 or more")
    if chunk > lm.context:
        raise ContextError(f"perplexity: chunks of {chunk} tokens; the context is {lm.context}")
    ids = lm.tokenize(text, parse_special=False)
    n = min(len(ids) // chunk, chunks or len(ids))
    if not n:
        raise ContextError(f"perplexity: the text has {count(len(ids), 'token')}; wanted at least a chunk of {chunk}")
    found: list[Array] = []
    for i in range(n):
        progress(i, n)
        found.append(_scored(lm, ids[i * chunk : (i + 1) * chunk]))
    progress(n, n)
    nll = np.concatenate(found)
    mean = float(nll.mean())
    spread = float(nll.std(ddof=1)) / math.sqrt(len(nll)) if len(nll) > 1 else 0.0
    with np.errstate(over="ignore"):
        value = float(np.exp(mean))  # infinite above 709
    return Perplexity(value, value * spread, mean, len(nll), n)


def _scored(lm: LanguageModel, ids: list[int]) -> Array:
    """The negative log probabilities, float64, of the tokens after the first half of a chunk."""
    vocabulary, half = lm.tokenizer.vocabulary, len(ids) // 2
    if vocabulary.add_bos and vocabulary.bos_id is not None:
        ids = [vocabulary.bos_id, *ids[1:]]
    with lm.session() as session:
        session.process(ids[:half])
        logits = session.process(ids[half:-1], every_row=True)
    top = logits.max(axis=1, keepdims=True)
    sums = np.exp(logits - top).sum(axis=1, dtype=np.float64)
    own = (logits - top)[np.arange(len(logits)), ids[half + 1 :]]
    nll: Array = np.log(sums) - own
    if not np.isfinite(nll).all():
        raise LogitsError(f"perplexity: {lm.name} computed a probability that is not finite")
    return nll
