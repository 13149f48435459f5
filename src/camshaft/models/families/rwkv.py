"""RWKV-6 (Peng et al., 2024) and RWKV-7 (2025): no attention; each layer mixes the states of heads, then channels.

Both mix a token h with the one before it: h + lerp (before - h). From that, time mixing makes r, w, k and v of the recurrence,
whose result is normed by heads and gated; channel mixing is a feed-forward with squared relu. In RWKV-6 the lerps of time mixing
depend on the token; in RWKV-7 the values are blended with those of the first layer, and the state also decays along one
direction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np

from camshaft.graph import functions as F
from camshaft.graph.graph import Tensor
from camshaft.graph.tensor import graph_of
from camshaft.models.blocks.latent_attention import head_indexes, of_heads
from camshaft.models.blocks.layer import TokenBatch, logit_rows, norm
from camshaft.models.blocks.recurrences import Recurrence, recurrence_of
from camshaft.models.blocks.transformer import LayerMemory
from camshaft.models.checkpoint import Checkpoint
from camshaft.models.config import ModelConfig
from camshaft.models.configs.recurrent import Recurrent

# The norm of heads has an epsilon of its own.
HEAD_EPS = 64e-5
# A decay is exp(-DECAY sigmoid(..)) in RWKV-7, so at least exp(-exp(-1/2)).
DECAY = 0.606531
# Added to squares of lengths, so that a length of 0 is no division by 0.
LENGTH_EPS = 1e-24


def hidden(config: ModelConfig, file: Checkpoint, batch: TokenBatch, caches: Sequence[LayerMemory]) -> Tensor:
    """Adds embedding, layers and the final norm; returns f32 [R, dim]. ModelError as decoder.hidden."""
    x = F.embedding(batch.ids, file.tensor("token_embd.weight", config.vocab_size, config.dim), to="f32")
    x, first = norm(x, "token_embd_norm", config, file), None
    for number, cache in enumerate(caches):
        layer = RwkvLayer(f"blk.{number}", config, file, batch, recurrence_of(cache, batch))
        with graph_of(x).checkpoint() if number < batch.recomputed else nullcontext():
            x, first = _block(x, first, layer, is_last=number == len(caches) - 1)
            every = layer.sizes.rescaled_every
            x = F.multiply(x, 0.5) if every and (number + 1) % every == 0 else x
    return norm(x, "output_norm", config, file)


@dataclass(frozen=True)
class RwkvLayer:
    """A layer of a graph: the names of its tensors begin with `prefix`."""

    prefix: str
    config: ModelConfig
    file: Checkpoint
    batch: TokenBatch
    over: Recurrence

    @property
    def sizes(self) -> Recurrent:
        assert self.config.recurrent is not None
        return self.config.recurrent

    @property
    def heads(self) -> int:
        return self.sizes.heads

    def shifted(self, h: Tensor, state: str) -> tuple[Tensor, Tensor]:
        """h, and what the token before it adds: before - h."""
        taps = self.file.made("shift", lambda: np.array([[1.0], [-1.0]], np.float32).repeat(self.config.dim, axis=1))
        return h, self.over.conv(h, taps, state, name=f"{self.prefix}.{state}")

    def linear(self, x: Tensor, name: str, n: int = 0) -> Tensor:
        """A product with `name`.weight, of n rows (0: as many as the file has)."""
        name = f"{self.prefix}.{name}"
        return self.file.linear(x, name, n or self.file.rows(f"{name}.weight"))

    def low_rank(self, x: Tensor, first: str, second: str, between: str = "", bias: str = "") -> Tensor:
        """second (between (first x)), plus a bias."""
        y = self.linear(x, first)
        y = F.function(between)(y) if between else y
        y = self.linear(y, second, self.config.dim)
        return F.add(y, self.vector(bias)) if bias else y

    def vector(self, name: str, index: int = 0, of: int = 1) -> Tensor:
        """Row `index` of a tensor of `of` rows, f32 [dim]; axes of 1 in the file are ignored."""
        name, dim = f"{self.prefix}.{name}.weight", self.config.dim
        if of == 1 and name in self.file and len(self.file.tensors[name].shape) == 1:
            return self.file.vector(name, dim)
        shape = (of, dim) if of > 1 else (dim,)
        return self.file.converted(name, shape, lambda w: w.reshape(of, dim)[index], str(index))

    def by_head(self, x: Tensor) -> Tensor:
        """x [T, dim] as [T, heads, size]."""
        return self.file.graph.reshape(x, (x.shape[0], self.heads, self.config.dim // self.heads))

    def flat(self, x: Tensor) -> Tensor:
        return self.file.graph.reshape(x, (x.shape[0], self.config.dim))

    def head_norm(self, y: Tensor) -> Tensor:
        """layer_norm of each head of y [T, dim]; weight and bias have dim elements."""
        size, name = self.config.dim // self.heads, f"{self.prefix}.time_mix_ln"
        ones, zeros = self.file.ones(size), self.file.zeros(size)
        y = self.flat(F.layer_norm(self.by_head(y), ones, zeros, eps=HEAD_EPS, name=name))
        w, b = (self.file.vector(f"{name}.{part}", self.config.dim) for part in ("weight", "bias"))
        return F.add(F.multiply(y, w), b)


def _block(x: Tensor, first: Tensor | None, layer: RwkvLayer, *, is_last: bool) -> tuple[Tensor, Tensor | None]:
    """A layer: time mixing, then channel mixing of the sum; in the last one of the rows whose logits are computed."""
    time, channels = _MIXES[layer.config.architecture]
    y, first = time(norm(x, f"{layer.prefix}.attn_norm", layer.config, layer.file), first, layer)
    x = F.add(x, y, name=f"{layer.prefix}.attn_residual")
    h, before = layer.shifted(norm(x, f"{layer.prefix}.attn_norm_2", layer.config, layer.file), "conv_2")
    if is_last:
        x, h, before = (logit_rows(part, layer.batch, f"{layer.prefix}.rows") for part in (x, h, before))
    return F.add(x, channels(h, before, layer), name=f"{layer.prefix}.ffn_residual"), first


def _time_mix_6(h: Tensor, first: Tensor | None, layer: RwkvLayer) -> tuple[Tensor, Tensor | None]:
    h, before = layer.shifted(h, "conv")
    xw, xk, xv, xr, xg = _mixed_6(h, before, layer)
    r, k, v = (
        layer.linear(x, f"time_mix_{name}", layer.config.dim)
        for x, name in ((xr, "receptance"), (xk, "key"), (xv, "value"))
    )
    w = layer.low_rank(xw, "time_mix_decay_w1", "time_mix_decay_w2", "tanh", "time_mix_decay")
    w = F.negate(F.exp(w))
    shape = (layer.heads, layer.config.dim // layer.heads)
    u = layer.file.converted(f"{layer.prefix}.time_mix_first.weight", shape, np.ravel)
    y = layer.over.rwkv6(r, w, k, v, u, name=f"{layer.prefix}.time_mix")
    y = F.silu_multiply(layer.linear(xg, "time_mix_gate", layer.config.dim), layer.head_norm(y))
    return layer.linear(y, "time_mix_output", layer.config.dim), first


def _mixed_6(h: Tensor, before: Tensor, layer: RwkvLayer) -> tuple[Tensor, ...]:
    """Returns the inputs of decay, keys, values, receptances and gates: each has a lerp, and a low-rank term."""
    tokens, dim, n = h.shape[0], layer.config.dim, len(LERPS_6)
    x = F.add(h, F.multiply(before, layer.vector("time_mix_lerp_x")))
    x = F.tanh(layer.linear(x, "time_mix_w1"))
    rank = layer.file.rows(f"{layer.prefix}.time_mix_w1.weight") // n
    w2 = layer.file.tensor(f"{layer.prefix}.time_mix_w2.weight", n, dim, rank)
    lerps = of_heads(
        layer.file.graph.reshape(x, (tokens, n, rank)), w2, head_indexes(layer.batch, n), f"{layer.prefix}.time_mix_w2"
    )
    fused = f"{layer.prefix}.time_mix_lerp_fused.weight" in layer.file
    parts = []
    for i, name in enumerate(LERPS_6):  # older files have one tensor per lerp
        lerp = layer.vector("time_mix_lerp_fused", i, n) if fused else layer.vector(f"time_mix_lerp_{name}")
        parts.append(F.add(h, F.multiply(before, F.add(lerps[:, i], lerp))))
    return tuple(parts)


LERPS_6 = ("w", "k", "v", "r", "g")


def _channel_mix_6(h: Tensor, before: Tensor, layer: RwkvLayer) -> Tensor:
    k, r = (F.add(h, F.multiply(before, layer.vector(f"channel_mix_lerp_{part}"))) for part in "kr")
    y = _squared(k, layer)
    made: Tensor = F.sigmoid_multiply(y, layer.linear(r, "channel_mix_receptance", layer.config.dim))
    return made


def _time_mix_7(h: Tensor, first: Tensor | None, layer: RwkvLayer) -> tuple[Tensor, Tensor | None]:
    h, before = layer.shifted(h, "conv")
    dim, gated = layer.config.dim, f"{layer.prefix}.time_mix_g1.weight" in layer.file
    xr, xw, xk, xv, xa, *xg = (
        F.add(h, F.multiply(before, layer.vector("time_mix_lerp_fused", i, 5 + gated))) for i in range(5 + gated)
    )
    r, k, v = (layer.linear(x, f"time_mix_{name}", dim) for x, name in ((xr, "receptance"), (xk, "key"), (xv, "value")))
    w = layer.low_rank(xw, "time_mix_w1", "time_mix_w2", "tanh", "time_mix_w0")
    w = F.multiply(F.sigmoid(w), -DECAY)
    if first is None:
        first = v
    else:
        lean = layer.low_rank(xv, "time_mix_v1", "time_mix_v2", bias="time_mix_v0")
        v = F.add(v, F.sigmoid_multiply(F.subtract(first, v), lean))
    rate = F.sigmoid(layer.low_rank(xa, "time_mix_a1", "time_mix_a2", bias="time_mix_a0"))
    unit = layer.flat(F.l2_norm(layer.by_head(F.multiply(k, layer.vector("time_mix_k_k"))), eps=LENGTH_EPS))
    k = F.add(k, F.multiply(F.multiply(k, layer.vector("time_mix_k_a")), F.subtract(rate, 1.0)))
    y = layer.over.dplr(r, w, k, v, F.negate(unit), F.multiply(unit, rate), name=f"{layer.prefix}.time_mix")
    y = layer.head_norm(y)
    own = F.multiply(F.multiply(k, r), layer.vector("time_mix_r_k"))
    own = F.multiply(layer.by_head(v), F.sum(layer.by_head(own), axes=2, keepdims=True))
    y = F.add(y, layer.flat(own))
    if gated:
        y = F.multiply(y, layer.low_rank(xg[0], "time_mix_g1", "time_mix_g2", "sigmoid"))
    return layer.linear(y, "time_mix_output", dim), first


def _channel_mix_7(h: Tensor, before: Tensor, layer: RwkvLayer) -> Tensor:
    return _squared(F.add(h, F.multiply(before, layer.vector("channel_mix_lerp_k"))), layer)


def _squared(x: Tensor, layer: RwkvLayer) -> Tensor:
    """value(relu(key x)^2)."""
    y = F.square(F.relu(layer.linear(x, "channel_mix_key", layer.config.ffn_dim)))
    return layer.linear(y, "channel_mix_value", layer.config.dim)


TimeMix = Callable[[Tensor, Tensor | None, RwkvLayer], tuple[Tensor, Tensor | None]]
_MIXES: Mapping[str, tuple[TimeMix, Callable[[Tensor, Tensor, RwkvLayer], Tensor]]] = {
    "rwkv6": (_time_mix_6, _channel_mix_6),
    "rwkv7": (_time_mix_7, _channel_mix_7),
}
