"""Recurrent layers of a decoder, in place of attention: each has a state per slot, which a run updates in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from camshaft.graph import functions as F
from camshaft.graph.graph import Tensor
from camshaft.models.blocks.layer import Layer
from camshaft.models.blocks.recurrences import Recurrence, recurrence_of
from camshaft.models.blocks.transformer import LayerMemory, head_norm
from camshaft.models.checkpoint import Checkpoint, columns_of
from camshaft.models.config import ModelConfig
from camshaft.models.configs.recurrent import CONVOLUTIONS, Recurrent
from camshaft.models.families import FAMILIES

# What is added to the square of a length by which queries and keys are divided (fla).
LENGTH_EPS = 1e-6


@dataclass(frozen=True)
class RecurrentLayer:
    """A recurrent layer of a graph: the names of its tensors begin with `prefix`."""

    prefix: str
    sizes: Recurrent
    config: ModelConfig
    file: Checkpoint
    over: Recurrence


def recurrent(h: Tensor, layer: Layer, memory: LayerMemory) -> Tensor:
    """The layer's result f32 [T, dim] of its normed input; in the last layer, of the rows whose logits are computed."""
    config = layer.config
    assert config.recurrent is not None
    over = recurrence_of(memory, layer.batch)
    made = RecurrentLayer(layer.prefix, config.recurrent, config, layer.file, over)
    y, output = _KINDS[config.recurrent.kind](h, made)
    return layer.linear(layer.rows(y, "recurrent_rows"), output, config.dim)


def _short_conv(h: Tensor, layer: RecurrentLayer) -> tuple[Tensor, str]:
    """LFM2: c conv(b x) of three projections."""
    name = f"{layer.prefix}.shortconv"
    parts = layer.file.linear(h, f"{name}.in_proj", 3 * layer.sizes.channels)
    return layer.over.short_conv(parts, _taps(layer, f"{name}.conv.weight"), name=name), "shortconv.out_proj"


def _delta(h: Tensor, layer: RecurrentLayer) -> tuple[Tensor, str]:
    """Qwen3-Next and Qwen3.5: the gated delta rule of convolved queries, keys and values, then a gated norm of each head."""
    sizes, file, prefix = layer.sizes, layer.file, layer.prefix
    family = FAMILIES[layer.config.architecture]
    qkv, z = _projections(h, layer)
    taps = _taps(layer, f"{prefix}.ssm_conv1d.weight")
    qkv = layer.over.conv(qkv, taps, "conv", activation="silu", name=f"{prefix}.conv")
    alpha, beta = _gates(h, layer)
    a, dt = file.vector(f"{prefix}.ssm_a", sizes.heads), file.vector(f"{prefix}.ssm_dt.bias", sizes.heads)
    tiled = family.tiled_heads
    y = layer.over.gated_delta(qkv, alpha, beta, a, dt, groups=sizes.groups, tiled=tiled, name=f"{prefix}.delta")
    return _gated_norm(y, z, file.vector(f"{prefix}.ssm_norm.weight", sizes.value_size), layer), "ssm_out"


def _projections(h: Tensor, layer: RecurrentLayer) -> tuple[Tensor, Tensor]:
    """Queries, keys and values, and z; older files of Qwen3-Next have all as one tensor, by heads of keys."""
    sizes, file, prefix = layer.sizes, layer.file, layer.prefix
    if f"{prefix}.ssm_in.weight" not in file:
        qkv = file.linear(h, f"{prefix}.attn_qkv", sizes.channels)
        return qkv, file.linear(h, f"{prefix}.attn_gate", sizes.inner)
    values, tokens = sizes.inner // sizes.groups, h.shape[0]
    parts = (sizes.key_size, sizes.key_size, values, values)
    joined = file.linear(h, f"{prefix}.ssm_in", sizes.groups * sum(parts))
    split = F.split(file.graph.reshape(joined, (tokens, sizes.groups, sum(parts))), axis=2, sizes=parts)
    widths = (sizes.groups * part for part in parts)
    q, k, v, z = (file.graph.reshape(x, (tokens, n)) for x, n in zip(split, widths, strict=True))
    return F.concat(q, k, v, axis=1), z


def _gates(h: Tensor, layer: RecurrentLayer) -> tuple[Tensor, Tensor]:
    """alpha and beta [T, heads]; Qwen3-Next has both as one tensor, by heads of keys."""
    file, prefix, heads, groups = layer.file, layer.prefix, layer.sizes.heads, layer.sizes.groups
    if f"{prefix}.ssm_ba.weight" not in file:
        return file.linear(h, f"{prefix}.ssm_alpha", heads), file.linear(h, f"{prefix}.ssm_beta", heads)
    tokens, per = h.shape[0], heads // groups
    joined = file.graph.reshape(file.linear(h, f"{prefix}.ssm_ba", 2 * heads), (tokens, groups, 2 * per))
    beta, alpha = (file.graph.reshape(x, (tokens, heads)) for x in F.split(joined, axis=2, sizes=(per, per)))
    return alpha, beta


def _gated_norm(y: Tensor, z: Tensor, w: Tensor, layer: RecurrentLayer) -> Tensor:
    """rms_norm of each head of y, times silu(z)."""
    graph, heads = layer.file.graph, (y.shape[0], layer.sizes.heads, layer.sizes.value_size)
    split = (graph.reshape(x, heads) for x in (y, z))
    normed = F.norm_gate(next(split), w, next(split), eps=layer.config.norm_eps, name=f"{layer.prefix}.ssm_norm")
    return graph.reshape(normed, y.shape)


def _mamba(h: Tensor, layer: RecurrentLayer) -> tuple[Tensor, str]:
    """Mamba 1: a scan of convolved channels, whose steps depend on them; gated."""
    sizes, file, prefix, inner = layer.sizes, layer.file, layer.prefix, layer.sizes.inner
    x, z = F.split(file.linear(h, f"{prefix}.ssm_in", 2 * inner), axis=1, sizes=(inner, inner))
    x = _convolved(x, layer)
    parts = (sizes.rank, sizes.key_size, sizes.key_size)
    dt, b, c = F.split(file.linear(x, f"{prefix}.ssm_x", sum(parts)), axis=1, sizes=parts)
    if sizes.is_normed:
        dt, b, c = (_unweighted_norm(part, layer) for part in (dt, b, c))
    elif f"{prefix}.ssm_dt_norm.weight" in file:
        dt = _named_norm(dt, f"{prefix}.ssm_dt_norm", layer)
        b, c = _named_norm(b, f"{prefix}.ssm_b_norm", layer), _named_norm(c, f"{prefix}.ssm_c_norm", layer)
    dt = file.linear(dt, f"{prefix}.ssm_dt", inner)
    a = file.converted(f"{prefix}.ssm_a", (inner, sizes.key_size), lambda a: np.ascontiguousarray(a.T))
    d, bias = file.vector(f"{prefix}.ssm_d", inner), file.vector(f"{prefix}.ssm_dt.bias", inner)
    y = layer.over.selective_scan(x, dt, b, c, a, d, bias, name=f"{prefix}.scan")
    return F.silu_multiply(z, y, name=f"{prefix}.ssm_gate"), "ssm_out"


def _mamba2(h: Tensor, layer: RecurrentLayer) -> tuple[Tensor, str]:
    """Mamba 2: a scan with one decay per head, gated, then normed by groups, in most files of Falcon-H1 not."""
    sizes, file, prefix = layer.sizes, layer.file, layer.prefix
    parts = (sizes.inner, sizes.channels, sizes.heads)
    z, xbc, dt = F.split(file.linear(h, f"{prefix}.ssm_in", sum(parts)), axis=1, sizes=parts)
    a, d = (file.converted(f"{prefix}.{name}", (sizes.heads, 1), np.ravel) for name in ("ssm_a", "ssm_d"))
    given = (_convolved(xbc, layer), dt, a, d, file.vector(f"{prefix}.ssm_dt.bias", sizes.heads))
    y = layer.over.ssd(*given, groups=sizes.groups, name=f"{prefix}.scan")
    y = F.silu_multiply(z, y, name=f"{prefix}.ssm_gate")
    if FAMILIES[layer.config.architecture].side_by_side and f"{prefix}.ssm_norm.weight" not in file:
        return y, "ssm_out"
    shape = (sizes.groups, sizes.inner // sizes.groups)
    w = file.converted(f"{prefix}.ssm_norm.weight", shape, np.ravel)
    if sizes.groups == 1:
        return F.rms_norm(y, w, eps=layer.config.norm_eps, name=f"{prefix}.ssm_norm"), "ssm_out"
    split = file.graph.reshape(y, (y.shape[0], *shape))
    return F.multiply(file.graph.reshape(_unweighted_norm(split, layer), y.shape), w), "ssm_out"


def _plamo2(h: Tensor, layer: RecurrentLayer) -> tuple[Tensor, str]:
    """PLaMo 2: Mamba 2's scan, whose steps, inputs and outputs come from convolved channels, as in Mamba 1, normed."""
    sizes, file, prefix, tokens = layer.sizes, layer.file, layer.prefix, h.shape[0]
    joined = file.graph.reshape(
        file.linear(h, f"{prefix}.ssm_in", 2 * sizes.inner), (tokens, sizes.heads, 2 * sizes.value_size)
    )
    halves = F.split(joined, axis=2, sizes=(sizes.value_size, sizes.value_size))
    z, x = (file.graph.reshape(part, (tokens, sizes.inner)) for part in halves)
    taps = _taps(layer, f"{prefix}.ssm_conv1d.weight")
    x = layer.over.conv(x, taps, "conv", activation="silu", name=f"{prefix}.conv")
    parts = (sizes.key_size, sizes.key_size, file.rows(f"{prefix}.ssm_dt_norm"))
    found = F.split(file.linear(x, f"{prefix}.ssm_x", sum(parts)), axis=1, sizes=parts)
    b, c, dt = (
        _named_norm(y, f"{prefix}.ssm_{name}_norm", layer) for y, name in zip(found, ("b", "c", "dt"), strict=True)
    )
    a, d = (file.vector(f"{prefix}.{name}", sizes.heads) for name in ("ssm_a", "ssm_d"))
    bias = file.vector(f"{prefix}.ssm_dt.bias", sizes.heads)
    given = (F.concat(x, b, c, axis=1), file.linear(dt, f"{prefix}.ssm_dt", sizes.heads), a, d, bias)
    y = layer.over.ssd(*given, groups=1, name=f"{prefix}.scan")
    return F.silu_multiply(z, y, name=f"{prefix}.ssm_gate"), "ssm_out"


def _kda(h: Tensor, layer: RecurrentLayer) -> tuple[Tensor, str]:
    """Kimi Linear: the delta rule with a decay per channel of convolved q, k and v, then a gated norm of each head."""
    sizes, file, prefix = layer.sizes, layer.file, layer.prefix
    width, heads = sizes.channels, (h.shape[0], sizes.heads, sizes.key_size)
    q, k, v = (_convolved_part(h, layer, *part) for part in zip("qkv", CONVOLUTIONS, strict=True))
    q, k = (F.l2_norm(file.graph.reshape(x, heads), eps=LENGTH_EPS) for x in (q, k))
    a = file.converted(f"{prefix}.ssm_a", (sizes.heads, 1), lambda a: np.repeat(a.ravel(), sizes.key_size))
    step = F.softplus(F.add(_low_rank(h, "f", layer), file.vector(f"{prefix}.ssm_dt.bias", width)))
    log_decay = F.multiply(step, a)
    beta = F.sigmoid(file.linear(h, f"{prefix}.ssm_beta", sizes.heads)).reshape((*heads[:2], 1))
    rows = (h.shape[0], width)
    change, k = (file.graph.reshape(x, rows) for x in (F.multiply(k, beta), k))
    q = F.multiply(file.graph.reshape(q, rows), sizes.key_size**-0.5)
    into = F.negate(F.multiply(F.exp(log_decay), k))
    y = layer.over.dplr(q, log_decay, change, v, into, change, name=f"{prefix}.delta")
    w = file.vector(f"{prefix}.ssm_norm.weight", sizes.value_size)
    y = head_norm(y, w, sizes.heads, layer.config.norm_eps)
    return F.sigmoid_multiply(y, _low_rank(h, "g", layer), name=f"{prefix}.ssm_gate"), "attn_output"


def _convolved_part(h: Tensor, layer: RecurrentLayer, part: str, state: str) -> Tensor:
    """silu(conv) of a projection; each has its own convolution."""
    x = layer.file.linear(h, f"{layer.prefix}.attn_{part}", layer.sizes.channels)
    name = f"{layer.prefix}.ssm_conv1d_{part}"
    taps = _taps(layer, f"{name}.weight")
    return layer.over.conv(x, taps, state, activation="silu", name=name)


def _low_rank(h: Tensor, part: str, layer: RecurrentLayer) -> Tensor:
    """A low-rank projection by two matrices; the rank is the size of a head."""
    name, sizes = f"{layer.prefix}.ssm_{part}", layer.sizes
    return layer.file.linear(layer.file.linear(h, f"{name}_a", sizes.key_size), f"{name}_b", sizes.channels)


def _convolved(x: Tensor, layer: RecurrentLayer) -> Tensor:
    """silu(conv(x) + bias) of Mamba's channels."""
    taps = _taps(layer, f"{layer.prefix}.ssm_conv1d.weight")
    bias = layer.file.vector(f"{layer.prefix}.ssm_conv1d.bias", layer.sizes.channels)
    name = f"{layer.prefix}.conv"
    return layer.over.conv(x, taps, "conv", bias, activation="silu", name=name)


def _named_norm(x: Tensor, name: str, layer: RecurrentLayer) -> Tensor:
    """rms_norm of each row with the weights of that name; those of PLaMo 2 end without .weight."""
    w = layer.file.vector(name if name in layer.file else f"{name}.weight", columns_of(x))
    y: Tensor = F.rms_norm(x, w, eps=layer.config.norm_eps, name=name)
    return y


def _unweighted_norm(x: Tensor, layer: RecurrentLayer) -> Tensor:
    """rms_norm of each row with weights of 1."""
    y: Tensor = F.rms_norm(x, np.ones(columns_of(x), np.float32), eps=layer.config.norm_eps)
    return y


_KINDS: Mapping[str, Callable[[Tensor, RecurrentLayer], tuple[Tensor, str]]] = {
    "short_conv": _short_conv,
    "delta": _delta,
    "mamba": _mamba,
    "mamba2": _mamba2,
    "plamo2": _plamo2,
    "kda": _kda,
}


def _taps(layer: RecurrentLayer, name: str) -> Tensor:
    """The weights of a convolution, f32 [taps, channels]; the file has them by channel."""
    return layer.file.converted(name, (layer.sizes.channels, layer.sizes.taps), lambda w: np.ascontiguousarray(w.T))
