"""Decodes one window: greedily, then sampling at rising temperatures if the text is repetitive or unlikely."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from camshaft.errors import LogitsError
from camshaft.generate.speech.options import TranscribeOptions
from camshaft.generate.speech.plans import SpeechPlans
from camshaft.generate.speech.rules import Rules
from camshaft.generate.speech.tokens import SpeechTokens

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Decoded:
    """A window's tokens without the end token. `logprob`: their mean log probability, end token included; `compression`: the zlib
    compression ratio of the text; `no_speech`: the probability of silence."""

    ids: tuple[int, ...]
    text: str
    temperature: float
    logprob: float
    compression: float
    no_speech: float


@dataclass
class _Candidate:
    """A partial text; `total` is the sum of its log probabilities."""

    ids: list[int]
    total: float = 0.0
    ended: bool = False

    @property
    def mean(self) -> float:
        return self.total / (len(self.ids) + 1)


def decode_window(
    plans: SpeechPlans,
    prefix: Sequence[int],
    tokens: SpeechTokens,
    rules: Rules,
    options: TranscribeOptions,
    text_of: Callable[[Sequence[int]], str],
    rng: np.random.Generator,
) -> Decoded:
    """Decode the window that was encoded last: at each temperature in turn, until the text is neither repetitive nor unlikely,
    or the window is silent. `prefix` are the ids before the text."""
    begin = len(prefix) - 1 - prefix[::-1].index(tokens.start)
    rows = plans.prompt(prefix, (begin, len(prefix) - 1)).copy()
    no_speech = float(_probabilities(rows[0])[tokens.no_speech])
    decoded: Decoded | None = None
    for temperature in options.temperatures:
        best = _decode(plans, rows[1], len(prefix), rules, temperature, options, rng)
        text = text_of(best.ids)
        decoded = Decoded(tuple(best.ids), text, temperature, best.mean, compression_ratio(text), no_speech)
        if not _is_poor(decoded, options):
            break
    assert decoded is not None
    return decoded


def compression_ratio(text: str) -> float:
    """Returns the zlib compression ratio of a text, which is high if it repeats itself."""
    data = text.strip().encode()
    return len(data) / len(zlib.compress(data))


def is_silent(decoded: Decoded, options: TranscribeOptions) -> bool:
    """Whether the window is silent: the model says so, and its text is unlikely."""
    limit, likely = options.no_speech_threshold, options.logprob_threshold
    return limit is not None and decoded.no_speech > limit and (likely is None or decoded.logprob <= likely)


def _is_poor(decoded: Decoded, options: TranscribeOptions) -> bool:
    """Whether to try the next temperature."""
    repeats = options.compression_ratio_threshold is not None and (
        decoded.compression > options.compression_ratio_threshold
    )
    unlikely = options.logprob_threshold is not None and decoded.logprob < options.logprob_threshold
    limit = options.no_speech_threshold
    silent = unlikely and limit is not None and decoded.no_speech > limit
    return (repeats or unlikely) and not silent


def _decode(
    plans: SpeechPlans,
    logits: Array,
    n_prefix: int,
    rules: Rules,
    temperature: float,
    options: TranscribeOptions,
    rng: np.random.Generator,
) -> _Candidate:
    """Returns the likeliest of several sampled texts, or the greedy text at temperature 0. `logits` follow the prefix."""
    texts = {number: _Candidate([]) for number in range(options.best_of if temperature > 0 else 1)}
    plans.share(n_prefix, len(texts))
    context = plans.config.text_context
    most = min(options.max_tokens or context // 2, context - n_prefix)
    given = dict.fromkeys(texts, logits)
    for n in range(1, most + 1):
        for number, row in given.items():
            _choose(texts[number], row.copy(), rules, temperature, rng)
        growing = {number: text.ids[-1] for number, text in texts.items() if not text.ended}
        if not growing or n == most:
            break
        given = dict(zip(growing, plans.step(growing, n_prefix + n - 1), strict=True))
    return max(texts.values(), key=lambda text: text.mean)


def _choose(text: _Candidate, logits: Array, rules: Rules, temperature: float, rng: np.random.Generator) -> None:
    """Add the next token to a text: the likeliest at temperature 0, else a sampled one."""
    rules.apply(logits, text.ids)
    top = logits.max()
    if not np.isfinite(top):
        raise LogitsError("no token may follow; the file's rules exclude all")
    if temperature > 0:
        cumulated = np.cumsum(np.exp((logits - top).astype(np.float64) / temperature))
        chosen = min(int(np.searchsorted(cumulated, rng.random() * cumulated[-1], side="right")), len(logits) - 1)
    else:
        chosen = int(logits.argmax())
    text.total += float(logits[chosen] - top) - float(np.log(np.exp(logits - top).sum(dtype=np.float64)))
    if chosen == rules.tokens.end:
        text.ended = True
    else:
        text.ids.append(chosen)


def _probabilities(logits: Array) -> Array:
    powers = np.exp((logits - logits.max()).astype(np.float64))
    made: Array = powers / powers.sum()
    return made


def detect_language(plans: SpeechPlans, tokens: SpeechTokens) -> dict[str, float]:
    """Returns the probability of each language in the window that was encoded last, likeliest first."""
    logits = plans.prompt((tokens.start,), (0,))[0]
    found = _probabilities(logits[list(tokens.languages.values())])
    named = dict(zip(tokens.languages, found.tolist(), strict=True))
    return dict(sorted(named.items(), key=lambda pair: -pair[1]))
