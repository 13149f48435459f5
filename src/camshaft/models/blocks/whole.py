"""Recurrences within whole sequences of equal length, by ops that have gradients: what recurrent layers do in training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from camshaft.errors import ModelError
from camshaft.graph import functions as F
from camshaft.graph.graph import Tensor
from camshaft.models.configs.recurrent import Recurrent

# The log decay with which the first token of a packed sequence forgets the one before: exp of it is 4e-18. A much lower one
# would cost the sums of log decays over a chunk their precision.
FORGETS = -40.0


@dataclass(frozen=True)
class WholeRecurrence:
    """Recurrences over tokens [T, ..] of T / `length` sequences, whose states start at zero. The methods are those of
    recurrences.Recurrence.

    Where rows hold several sequences, `positions` [rows, length] of each start at 0; ModelError for Mamba 1 then."""

    length: int
    sizes: Recurrent
    positions: Tensor | None = None

    def conv(
        self, x: Tensor, taps: Tensor, state: str, bias: Tensor | None = None, *, activation: str = "none", name: str
    ) -> Tensor:
        wide = self._sequences(x)
        if self.positions is None:
            y = F.conv1d_depthwise_causal(wide, F.transpose(taps, axes=(1, 0)), name=name)
        else:
            y = self._masked_conv(wide, taps, self.positions)
        y = y if bias is None else F.add(y, bias)
        made: Tensor = F.silu(y) if activation == "silu" else y
        return made.reshape(x.shape)

    def _masked_conv(self, x: Tensor, taps: Tensor, positions: Tensor) -> Tensor:
        """The convolution whose taps see the tokens of their own sequence alone."""
        (rows, length, channels), n = x.spec.bounds, taps.spec.bounds[0]
        place = positions.reshape((rows, length, 1))
        total = F.multiply(x, taps[n - 1])
        for back in range(1, min(n, length)):
            before = F.concat(np.zeros((rows, back, channels), np.float32), x[:, : length - back], axis=1)
            seen = F.where(F.greater_equal(place, np.int32(back)), before, 0.0)
            total = F.add(total, F.multiply(seen, taps[n - 1 - back]))
        return total

    def short_conv(self, x: Tensor, taps: Tensor, *, name: str) -> Tensor:
        n = taps.spec.bounds[1]
        b, c, own = F.split(x, axis=1, sizes=(n, n, n))
        y: Tensor = F.multiply(c, self.conv(F.multiply(b, own), taps, "conv", name=name))
        return y

    def gated_delta(self, *given: Tensor, groups: int, tiled: bool, name: str) -> Tensor:
        qkv, alpha, beta, a, dt = given
        heads, keys = self.sizes.heads, groups * self.sizes.key_size
        parts = F.split(qkv, axis=1, sizes=(keys, keys, self.sizes.inner))
        q, k, v = (self._heads(x, n) for x, n in zip(parts, (groups, groups, heads), strict=True))
        if tiled and heads > groups:  # head h has the keys of group h % groups
            q, k = (F.concat(*[x] * (heads // groups), axis=2) for x in (q, k))
        g = self._sequences(F.multiply(F.softplus(F.add(alpha, dt)), a))
        rates = self._sequences(F.sigmoid(beta))
        y, _ = F.gated_delta_rule(q, k, v, self._forgetting(g), rates, l2_norm=True, name=name)
        return self._flat(y)

    def selective_scan(self, *given: Tensor, name: str) -> Tensor:
        if self.positions is not None:
            raise ModelError("training: layers of Mamba 1 got packed rows; wanted a sequence in each row, without pack")
        x, dt, b, c, a, d, bias = given
        steps = F.softplus(F.add(dt, bias))
        x, steps, b, c = (self._sequences(part) for part in (x, steps, b, c))
        y, _ = F.selective_scan(x, steps, F.transpose(a, axes=(1, 0)), b, c, d, name=name)
        return self._flat(y)

    def ssd(self, *given: Tensor, groups: int, name: str) -> Tensor:
        xbc, dt, a, d, bias = given
        heads, keys = self.sizes.heads, groups * self.sizes.key_size
        parts = F.split(xbc, axis=1, sizes=(self.sizes.inner, keys, keys))
        x, b, c = (self._heads(part, n) for part, n in zip(parts, (heads, groups, groups), strict=True))
        steps = self._sequences(F.softplus(F.add(dt, bias)))
        into = F.multiply(x, steps.reshape((*steps.shape, 1)))
        g = self._forgetting(F.multiply(steps, a))
        y, _ = F.gated_linear_attention(c, b, into, g, scale=1.0, name=name)
        return self._flat(F.add(y, F.multiply(x, d.reshape((heads, 1)))))

    def dplr(self, *given: Tensor, name: str) -> Tensor:
        r, w, k, v, a, b = (self._heads(x, self.sizes.heads) for x in given)
        if self.positions is not None:
            a = F.where(self._is_first(2), 0.0, a)
        y, _ = F.rwkv7_time_mix(r, self._forgetting(w), k, v, a, b, name=name)
        return self._flat(y)

    def rwkv6(self, *given: Tensor, name: str) -> Tensor:
        *parts, u = given
        r, w, k, v = (self._heads(x, self.sizes.heads) for x in parts)
        u = u.reshape((self.sizes.heads, self.sizes.key_size))
        if self.positions is None:
            y, _ = F.rwkv6_time_mix(r, k, v, w, u, name=name)
            return self._flat(y)
        # what the last token of a sequence adds, and what it decays, is for the next sequence alone
        rows, length = self.positions.spec.bounds
        after = F.concat(self.positions[:, 1:], np.zeros((rows, 1), np.int32), axis=1).reshape((rows, length, 1, 1))
        is_last = F.equal(after, 0)
        own = F.multiply(F.sum(F.multiply(F.multiply(r, u), k), axes=3, keepdims=True), v)
        kept = F.where(is_last, 0.0, k), v, F.where(is_last, FORGETS, w), F.multiply(u, 0.0)
        y, _ = F.rwkv6_time_mix(r, *kept, name=name)
        return self._flat(F.add(y, own))

    def _forgetting(self, g: Tensor) -> Tensor:
        """Log decays g [rows, length, ..], very low where a packed sequence starts."""
        if self.positions is None:
            return g
        made: Tensor = F.where(self._is_first(g.ndim - 2), FORGETS, g)
        return made

    def _is_first(self, more: int) -> Tensor:
        """Which tokens start a sequence, [rows, length, 1, ..] with `more` axes of 1."""
        assert self.positions is not None
        made: Tensor = F.equal(self.positions, 0)
        return made.reshape((*self.positions.shape, *(1 for _ in range(more))))

    def _sequences(self, x: Tensor) -> Tensor:
        """[T, n] as [sequences, length, n]."""
        tokens, n = x.spec.bounds
        return x.reshape((tokens // self.length, self.length, n))

    def _heads(self, x: Tensor, heads: int) -> Tensor:
        """[T, n] as [sequences, length, heads, n / heads]."""
        tokens, n = x.spec.bounds
        return x.reshape((tokens // self.length, self.length, heads, n // heads))

    def _flat(self, y: Tensor) -> Tensor:
        """[sequences, length, ..] as [T, n]."""
        rows, length, *others = y.spec.bounds
        return y.reshape((rows * length, int(np.prod(others))))
