"""llama.cpp's samplers in float64 NumPy, written from their definitions: the probabilities from which a token is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from camshaft import Sampling

Array = NDArray[np.float64]
# A breaker's first token, and those that follow.
Breaker = tuple[int, ...]

OPTIONS: dict[str, Callable[[np.random.Generator], Any]] = {
    "temperature": lambda rng: float(rng.choice([0, 0.5, 1.7])),
    "top_k": lambda rng: int(rng.integers(0, 60)),
    "top_p": lambda rng: float(rng.uniform(0.1, 1)),
    "min_p": lambda rng: float(rng.uniform(0, 0.3)),
    "typical_p": lambda rng: float(rng.uniform(0.1, 1)),
    "top_n_sigma": lambda rng: float(rng.uniform(0.3, 3)),
    "xtc_probability": lambda rng: float(rng.choice([0.5, 1])),
    "xtc_threshold": lambda rng: float(rng.choice([0, 0.01, 0.3, 0.6])),
    "repeat_penalty": lambda rng: float(rng.uniform(0.5, 2)),
    "repeat_last_n": lambda rng: int(rng.integers(-1, 40)),
    "presence_penalty": lambda rng: float(rng.uniform(-1, 3)),
    "frequency_penalty": lambda rng: float(rng.uniform(-1, 3)),
    "dry_multiplier": lambda rng: float(rng.uniform(0.5, 4)),
    "dry_base": lambda rng: float(rng.uniform(1, 2)),
    "dry_allowed_length": lambda rng: int(rng.integers(1, 4)),
    "dry_penalty_last_n": lambda rng: int(rng.integers(-1, 40)),
    "logit_bias": lambda rng: {int(i): float(b) for i, b in zip(rng.integers(0, 60, 3), (2, -np.inf, 4), strict=True)},
}


def random_sampling(rng: np.random.Generator, **given: Any) -> Sampling:
    """`given` and some other options, at random, for a vocabulary of at least 60 tokens."""
    return Sampling(**{name: draw(rng) for name, draw in OPTIONS.items() if rng.random() < 0.4} | given)


def random_history(rng: np.random.Generator, most: int, breakers: Sequence[Breaker]) -> list[int]:
    """Up to `most` tokens of a few kinds that repeat themselves, with breakers among them."""
    parts = ((1, 2, 3), (1, 2, 5), (2, 2), *breakers)
    history: list[int] = []
    n = rng.integers(1, most)
    while len(history) < n:
        history += parts[rng.integers(0, len(parts))]
    return history[:most]


def probabilities(
    logits: NDArray[np.float32],
    sampling: Sampling,
    history: Sequence[int],
    *,
    breakers: Sequence[Breaker] = (),
    chance: float = 0.0,
    mu: float | None = None,
    temperature_first: bool = False,
) -> Array:
    """What the chain leaves, float64 [vocab]. `chance` is the random number of xtc, `mu` mirostat's state.

    `temperature_first`: camshaft's order where no filter but top_k, top_p and min_p is on."""
    s, x = sampling, logits.astype(np.float64)
    for token, bias in s.logit_bias.items():
        x[token] += bias
    if s.mirostat:
        p = softmax(x / s.temperature)
        with np.errstate(divide="ignore"):
            keep = -np.log2(p) <= (2 * s.mirostat_ent if mu is None else mu)
        keep[p.argmax()] = True
        return softmax(np.where(keep, x / s.temperature, -np.inf))
    x = dry(penalties(x, s, history), s, history, breakers)
    if temperature_first and s.temperature > 0:
        x = x / s.temperature
    if s.top_n_sigma > 0:
        x[x < x.max() - s.top_n_sigma * x[x > -np.inf].std()] = -np.inf
    if 0 < s.top_k < len(x):
        x[np.argsort(-x, kind="stable")[s.top_k :]] = -np.inf
    for cut in (typical, top_p, min_p):
        x = cut(x, s)
    if s.xtc_probability > 0 and s.xtc_threshold <= 0.5 and chance <= s.xtc_probability:
        above = np.flatnonzero(softmax(x) >= max(s.xtc_threshold, 1e-300))
        x[above[np.argsort(-x[above], kind="stable")][:-1]] = -np.inf
    if s.temperature == 0:
        return np.eye(len(x))[x.argmax()]
    return softmax(x if temperature_first else x / s.temperature)


def softmax(x: Array) -> Array:
    """Probabilities of logits."""
    e: Array = np.exp(x - x.max())
    return e / e.sum()


def penalties(x: Array, s: Sampling, history: Sequence[int]) -> Array:
    """repeat_penalty, then presence_penalty and frequency_penalty, of the last repeat_last_n tokens."""
    tokens = list(history) if s.repeat_last_n < 0 else list(history)[max(0, len(history) - s.repeat_last_n) :]
    x = x.copy()
    for token in set(tokens) if s.repeat_last_n else ():
        x[token] = x[token] * s.repeat_penalty if x[token] <= 0 else x[token] / s.repeat_penalty
        x[token] -= tokens.count(token) * s.frequency_penalty + s.presence_penalty
    return x


def dry(x: Array, s: Sampling, history: Sequence[int], breakers: Sequence[Breaker]) -> Array:
    """Penalizes each token that would go on with the longest repetition before it."""
    text = list(history) if s.dry_penalty_last_n < 0 else list(history)[max(0, len(history) - s.dry_penalty_last_n) :]
    if not s.dry_multiplier or not s.dry_penalty_last_n:
        return x
    limit, singles = len(text), {b[0] for b in breakers if len(b) == 1}
    for start in range(len(text) - 1, -1, -1):
        found = [len(b) for b in breakers if tuple(text[start : start + len(b)]) == b]
        if found:
            limit = len(text) - start - max(found)
            break
    lengths: dict[int, int] = {}
    for end in range(1, len(text)):  # the token after text[:end]
        n = 0
        while n < min(limit, end) and text[end - 1 - n] == text[-1 - n]:
            n += 1
        if n >= s.dry_allowed_length and text[end] not in singles:
            lengths[text[end]] = max(lengths.get(text[end], 0), n)
    x = x.copy()
    for token, n in lengths.items():
        x[token] -= s.dry_multiplier * s.dry_base ** (n - s.dry_allowed_length)
    return x


def typical(x: Array, s: Sampling) -> Array:
    """Keeps the tokens nearest to the entropy until they have more than typical_p."""
    if s.typical_p >= 1:
        return x
    p = softmax(x)
    logs = np.log(np.where(p > 0, p, 1))
    distance = np.where(p > 0, np.abs(-logs + (p * logs).sum()), np.inf)
    order = np.argsort(distance, kind="stable")
    n = int((np.cumsum(p[order]) <= s.typical_p).sum()) + 1
    return _only(x, order[:n])


def top_p(x: Array, s: Sampling) -> Array:
    """Keeps the most probable tokens until they have top_p."""
    order = np.argsort(-x, kind="stable")
    n = int((np.cumsum(softmax(x)[order]) < s.top_p).sum()) + 1
    return x if s.top_p >= 1 else _only(x, order[:n])


def min_p(x: Array, s: Sampling) -> Array:
    """Keeps the tokens with min_p times the greatest probability."""
    return x if s.min_p <= 0 else np.where(x >= x.max() + np.log(s.min_p), x, -np.inf)


def _only(x: Array, kept: NDArray[np.intp]) -> Array:
    out = np.full(len(x), -np.inf)
    out[kept] = x[kept]
    return out
