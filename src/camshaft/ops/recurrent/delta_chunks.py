"""The steps of the gated delta rule in chunks, as ops of their own, and delta_gates, which makes its gates.

Layouts: M sequences and heads of N chunks of C tokens, so k is [M, N, C, K], v [M, N, C, V]. g is the sum of the log decays
from the start of the chunk up to the token, [M, N, C]. In order: kkt makes A; triangular_inverse makes T; wu makes u and w;
state makes v' and the states at chunk starts; output makes o. By Yang et al., Gated Delta Networks (2024), section 3.3.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from camshaft.ops.parameters import Attribute
from camshaft.ops.recurrent.frame import SequenceOp, decays, rates, sequence_op, small

CHUNK = 64
# exp of it is 0, and it is finite: a mask that gives no NaN.
_LOWEST = -1e30


def pairs(f: Any, g: Any, diagonal: int) -> Any:
    """exp(g_i - g_j) of pairs with i - j >= -diagonal, else 0; the mask comes first, where exp would overflow."""
    size, shape = g.shape[-1], tuple(g.shape)
    mask = np.tril(np.ones((size, size), bool), diagonal)
    return f.exp(f.where(mask, g.reshape((*shape, 1)) - g.reshape((*shape[:-1], 1, size)), _LOWEST))


def decays_between(f: Any, g: Any) -> Any:
    """exp of the sum of the log decays g [..., C] after token j up to token i, 0 where i < j. Sums from the start of a chunk
    would lose the digits in which near tokens after far decays differ."""
    size, shape = g.shape[-1], tuple(g.shape)
    upto, ones = np.tril(np.ones((size, size), bool)), np.ones((size, size), np.float32)
    between = f.matmul(f.where(upto, g.reshape((*shape[:-1], 1, size)), 0.0), np.tril(ones, -1))
    return f.exp(f.where(upto, between, _LOWEST))


def from_start(f: Any, g: Any) -> Any:
    """The sum of the log decays g [..., C] up to each token."""
    size = g.shape[-1]
    return f.matmul(g, np.tril(np.ones((size, size), np.float32)), transpose_b=True)


def column(x: Any) -> Any:
    """x [...] as [..., 1]."""
    return x.reshape((*x.shape, 1))


def _kkt(f: Any, k: Any, decay: Any, beta: Any) -> Any:
    found = f.matmul(k, k, transpose_b=True) * decay * column(beta)
    return f.where(np.tril(np.ones((k.shape[-2],) * 2, bool), -1), found, 0.0)


def _wu(f: Any, t: Any, k: Any, v: Any, grown: Any, beta: Any) -> Any:
    return f.matmul(t, v * column(beta)), f.matmul(t, k * column(beta * grown))


def _state(f: Any, k: Any, u: Any, w: Any, kept: Any, whole: Any, h: Any) -> Any:
    """Chunk by chunk, of kept = exp(g_last - g) and whole = exp(g_last); without w, v' is u."""
    m, n, size, key_size = k.shape
    snapshots, changes = [], []
    for i in range(n):
        change = u[:, i] if w is None else u[:, i] - f.matmul(w[:, i], h)
        snapshots.append(h)
        changes.append(change)
        keys = f.transpose(k[:, i], axes=(0, 2, 1))
        h = whole[:, i].reshape((m, 1, 1)) * h + f.matmul(keys, change * column(kept[:, i]))
    shapes = (m, 1, size, u.shape[3]), (m, 1, key_size, u.shape[3])
    first = _joined(f, [c.reshape(shapes[0]) for c in changes])
    # Of one chunk the snapshot is the given state, of which the result must be a copy.
    starts = [s.reshape(shapes[1]) for s in snapshots]
    return first, _joined(f, starts) if len(starts) > 1 else f.copy(starts[0]), h


def _joined(f: Any, parts: list[Any]) -> Any:
    """The parts along the axis of chunks; the initial zeros are not tensors, which one part alone must be."""
    if len(parts) > 1:
        return f.concat(*parts, axis=1)
    return parts[0]


def _output(f: Any, q: Any, k: Any, v: Any, h: Any, decay: Any, grown: Any) -> Any:
    inside = f.matmul(f.matmul(q, k, transpose_b=True) * decay, v)
    return f.matmul(q, h) * column(grown) + inside


def _kkt_of_sums(f: Any, k: Any, g: Any, beta: Any) -> Any:
    return _kkt(f, k, pairs(f, g, -1), beta)


def _wu_of_sums(f: Any, t: Any, k: Any, v: Any, g: Any, beta: Any) -> Any:
    return _wu(f, t, k, v, f.exp(g), beta)


def _state_of_sums(f: Any, k: Any, u: Any, w: Any, g: Any, state: Any) -> Any:
    last = g[:, :, g.shape[2] - 1 :]
    return _state(f, k, u, w, f.exp(last - g), f.exp(last), state)


def _output_of_sums(f: Any, q: Any, k: Any, v: Any, h: Any, g: Any, *, scale: float = 1.0) -> Any:
    return _output(f, q, k, v, h, pairs(f, g, 0), f.exp(g)) * scale


def chunked(f: Any, x: Any, heads: int) -> Any:
    """x [B, T, heads, ...] as [B heads, N, 64, ...], with zeros after the last token; fewer heads serve a run of them each."""
    batch, tokens, groups, *tail = x.shape
    padded = -(-tokens // CHUNK) * CHUNK
    if padded > tokens:
        x = f.concat(x, np.zeros((batch, padded - tokens, groups, *tail), np.float32), axis=1)
    x = f.transpose(x, axes=(0, 2, 1, *range(3, 3 + len(tail))))
    if groups != heads:
        ones = np.ones((1, 1, heads // groups, 1, *(1 for _ in tail)), np.float32)
        x = x.reshape((batch, groups, 1, padded, *tail)) * ones
    return x.reshape((batch * heads, padded // CHUNK, CHUNK, *tail))


def by_token(f: Any, x: Any, batch: int, tokens: int) -> Any:
    """x [B heads, N, 64, ...] as [B, T, heads, ...]."""
    rows, chunks, _, *tail = x.shape
    x = x.reshape((batch, rows // batch, chunks * CHUNK, *tail))
    return f.transpose(x, axes=(0, 2, 1, *range(3, 3 + len(tail))))[:, :tokens]


def by_chunks(f: Any, q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any) -> Any:
    """The whole rule, of q scaled: q and k [B, T, G, K], v [B, T, H, V], g and beta [B, T, H]; without beta, linear attention."""
    batch, tokens, _, key_size = q.shape
    heads, value_size = v.shape[2:]
    q, k, v, g = (chunked(f, x, heads) for x in (q, k, v, g))
    decay, grown = decays_between(f, g), f.exp(from_start(f, g))
    u, w = v, None
    if beta is not None:
        beta = chunked(f, beta, heads)
        u, w = _wu(f, f.triangular_inverse(_kkt(f, k, decay, beta)), k, v, grown, beta)
    if state is not None:
        state = state.reshape((batch * heads, key_size, value_size))
    else:  # a tensor also where there is one chunk
        state = f.multiply(u[:, 0, :1], 0.0) * np.zeros((1, key_size, 1), np.float32)
    changes, h, last = _state(f, k, u, w, decay[:, :, CHUNK - 1], grown[:, :, CHUNK - 1 :], state)
    out = by_token(f, _output(f, q, k, changes, h, decay, grown), batch, tokens)
    return out, last.reshape((batch, heads, key_size, value_size))


def _np_pairs(g: Any, diagonal: int) -> Any:
    mask = np.tril(np.ones((g.shape[-1],) * 2, bool), diagonal)
    return np.exp(np.where(mask, g[..., :, None] - g[..., None, :], -np.inf))


def _np_state(k: Any, u: Any, w: Any, g: Any, state: Any) -> tuple[Any, ...]:
    h = np.zeros((len(k), k.shape[3], u.shape[3])) if state is None else state
    changes, snapshots = [], []
    for i in range(k.shape[1]):
        last = g[:, i, -1:]
        changes.append(u[:, i] - w[:, i] @ h)
        snapshots.append(h)
        h = np.exp(last)[..., None] * h + k[:, i].swapaxes(1, 2) @ (np.exp(last - g[:, i])[..., None] * changes[-1])
    return np.stack(changes, 1), np.stack(snapshots, 1), h


def _np_output(q: Any, k: Any, v: Any, h: Any, g: Any, scale: float = 1.0) -> tuple[Any, ...]:
    inside = (q @ k.swapaxes(-1, -2) * _np_pairs(g, 0)) @ v
    return (scale * (np.exp(g)[..., None] * (q @ h) + inside),)


def _np_gates(alpha: Any, b: Any, a_log: Any, dt_bias: Any) -> tuple[Any, ...]:
    return -np.exp(a_log) * np.logaddexp(0, alpha + dt_bias), 1 / (1 + np.exp(-b))


def softplus(f: Any, x: Any) -> Any:
    """log(1 + exp(x)), exact where exp(x) is far below 1: log(1 + p) is log(w) p / (w - 1), w = 1 + p as rounded (Kahan)."""
    power = f.exp(-f.abs(x))
    wide = power + 1.0
    tiny = f.equal(wide, 1.0)
    exact = f.log(wide) * power / f.where(tiny, 1.0, wide - 1.0)
    return f.maximum(x, 0.0) + f.where(tiny, power, exact)


def _gates(f: Any, alpha: Any, b: Any, a_log: Any, dt_bias: Any) -> Any:
    return -(f.exp(a_log) * softplus(f, alpha + dt_bias)), f.sigmoid(b)


def _sums(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return np.cumsum(decays(rng, shape), -1)


def _triangles(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return np.tril(rng.normal(size=shape) / shape[-1], -1) + np.eye(shape[-1])


_SIZES = [{"M": 2, "N": 2, "C": 16, "K": 5, "V": 7}, {"M": 1, "N": 1, "C": 16, "K": 16, "V": 17}]
_DRAWS = {"k": small, "g": _sums, "beta": rates, "t": _triangles}


def _row(name: str, inputs: dict[str, str], gives: tuple[str, ...], numpy: Any, **more: Any) -> SequenceOp:
    return SequenceOp(name, inputs, gives, numpy, _SIZES, draws=_DRAWS, **more)


_KKT = _row(
    "delta_chunk_kkt",
    {"k": "MNCK", "g": "MNC", "beta": "MNC"},
    ("MNCC",),
    lambda k, g, beta: (beta[..., None] * (k @ k.swapaxes(-1, -2)) * _np_pairs(g, -1),),
)
_WU = _row(
    "delta_chunk_wu",
    {"t": "MNCC", "k": "MNCK", "v": "MNCV", "g": "MNC", "beta": "MNC"},
    ("MNCV", "MNCK"),
    lambda t, k, v, g, beta: (t @ (beta[..., None] * v), t @ ((beta * np.exp(g))[..., None] * k)),
)
_STATE = _row(
    "delta_chunk_state",
    {"k": "MNCK", "u": "MNCV", "w": "MNCK", "g": "MNC", "state": "MKV"},
    ("MNCV", "MNKV", "MKV"),
    _np_state,
)
_OUTPUT = _row(
    "delta_chunk_output",
    {"q": "MNCK", "k": "MNCK", "v": "MNCV", "h": "MNKV", "g": "MNC"},
    ("MNCV",),
    _np_output,
    attributes=(Attribute("scale", "float", 1.0),),
    given=({"scale": 0.25}, {}),
)
_GATES = SequenceOp(
    "delta_gates",
    {"alpha": "BTH", "b": "BTH", "a_log": "H", "dt_bias": "H"},
    ("BTH", "BTH"),
    _np_gates,
    [{"B": 2, "T": 3, "H": 17}, {"B": 1, "T": 1, "H": 1}],
    draws={"alpha": lambda rng, shape: 8 * rng.normal(size=shape)},
)
OPS = {
    "delta_gates": sequence_op(
        _GATES, "g = -exp(a_log) softplus(alpha + dt_bias), a log decay; beta = sigmoid(b)", _gates
    ),
    "delta_chunk_kkt": sequence_op(_KKT, "A[i, j] = beta_i (k_i . k_j) exp(g_i - g_j) for i > j, else 0", _kkt_of_sums),
    "delta_chunk_wu": sequence_op(_WU, "u = T (beta v); w = T (beta exp(g) k)", _wu_of_sums),
    "delta_chunk_state": sequence_op(
        _STATE,
        "v' = u - w h; h = exp(g_last) h + k.T (exp(g_last - g) v'); v', h at chunk starts, the last h",
        _state_of_sums,
    ),
    "delta_chunk_output": sequence_op(
        _OUTPUT, "o = scale (exp(g) (q h) + tril(q k.T exp(g_i - g_j)) v'), diagonal included", _output_of_sums
    ),
}
