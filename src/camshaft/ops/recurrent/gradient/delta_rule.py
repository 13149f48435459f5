"""gated_delta_rule_gradient and gated_linear_attention_gradient: the gradients of recurrences with one decay for each head.

S' = exp(g) S; d = beta (v - k.T S'); S = S' + outer(k, d); o = q.T S. With G the gradient of S, from the last token back: G +=
outer(q, do); dq = S do; dk = G d; r = G.T k; dbeta = r . (v - k.T S'); dv = beta r; dk -= S' dv; G -= outer(k, dv); dg = sum G
S'; G = exp(g) G. Linear attention has d = v and dv = r. q has its scale, and q and k their lengths. The gradients of q and k
are given for each head of values.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import as_dtype, f32
from camshaft.ops import op as ops
from camshaft.ops.checks import TO_TOLERANCE
from camshaft.ops.recurrent.columns import NORM_EPS
from camshaft.ops.recurrent.delta_chunks import CHUNK, by_token, chunked, column, decays_between, from_start
from camshaft.ops.recurrent.frame import SequenceOp, Sizes, decays, expect_heads, rates, sequence_op, small
from camshaft.ops.recurrent.gradient import chunks, token_kernel

DELTA, LINEAR = "gated_delta_rule_gradient", "gated_linear_attention_gradient"
# A program holds nine arrays of 64 rows of keys or values on its stack, of 64 kB each.
LARGEST = 256


def _numpy(q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any, dy: Any, dstate: Any) -> tuple[Any, ...]:
    heads = v.shape[2]
    q, k = (np.repeat(x, heads // x.shape[2], 2) for x in (q, k))
    held, changes, decay = [state], [], np.exp(g)[..., None, None]
    for t in range(v.shape[1]):
        before = decay[:, t] * held[-1]
        changes.append(v[:, t] - (0 if beta is None else np.einsum("bhk,bhkv->bhv", k[:, t], before)))
        added = changes[-1] if beta is None else beta[:, t, :, None] * changes[-1]
        held.append(before + k[:, t, :, :, None] * added[:, :, None])
    of_state, found = dstate, [np.zeros(x.shape) for x in (q, k, v, g, g)]
    dq, dk, dv, dg, dbeta = found
    for t in reversed(range(v.shape[1])):
        before, rate = decay[:, t] * held[t], 1.0 if beta is None else beta[:, t, :, None]
        of_state = of_state + q[:, t, :, :, None] * dy[:, t, :, None]
        dq[:, t] = np.einsum("bhkv,bhv->bhk", held[t + 1], dy[:, t])
        into = np.einsum("bhkv,bhk->bhv", of_state, k[:, t])
        dk[:, t], dv[:, t] = np.einsum("bhkv,bhv->bhk", of_state, rate * changes[t]), rate * into
        if beta is not None:
            dbeta[:, t] = (into * changes[t]).sum(-1)
            dk[:, t] -= np.einsum("bhkv,bhv->bhk", before, dv[:, t])
            of_state = of_state - k[:, t, :, :, None] * dv[:, t, :, None]
        dg[:, t] = (of_state * before).sum((2, 3))
        of_state = decay[:, t] * of_state
    return (*found[: 4 + (beta is not None)], of_state)


@dataclass(frozen=True)
class _Chunks:
    """All chunks of M sequences and heads as tensors [M, N, 64, ...]; `grown` is exp(G), `kept` exp(G_last - G), `whole`
    exp(G_last). In linear attention there is no rate, system B or inverse (I + beta B)^-1."""

    f: Any
    q: Any
    k: Any
    v: Any
    dy: Any
    decay: Any
    grown: Any
    kept: Any
    whole: Any
    rate: Any = None
    system: Any = None
    inverse: Any = None

    def turned(self, x: Any) -> Any:
        """The last two axes exchanged."""
        return self.f.transpose(x, axes=(0, 1, 3, 2))

    def joined(self, parts: list[Any]) -> Any:
        """Chunks [M, ...] along their axis."""
        parts = [x.reshape((x.shape[0], 1, *x.shape[1:])) for x in parts]
        return self.f.concat(*parts, axis=1) if len(parts) > 1 else self.f.copy(parts[0])

    def forward(self, h: Any) -> tuple[Any, Any]:
        """The states before chunks, and v'."""
        f, keys, starts, changes = self.f, self.turned(self.k), [], []
        for i in range(self.k.shape[1]):
            change = self.v[:, i]
            if self.rate is not None:
                seen = self.grown[:, i] * f.matmul(self.k[:, i], h)
                change = f.matmul(self.inverse[:, i], self.rate[:, i] * (change - seen))
            starts.append(h)
            changes.append(change)
            h = self.whole[:, i] * h + f.matmul(keys[:, i], self.kept[:, i] * change)
        return self.joined(starts), self.joined(changes)

    def backward(self, dh: Any) -> tuple[Any, Any, Any]:
        """The gradients of the states after chunks, dr (of v' in linear attention), and that of the first state."""
        f, ends, found = self.f, [], []
        inside = f.matmul(self.turned(f.matmul(self.q, self.k, transpose_b=True) * self.decay), self.dy)
        queries, keys = self.turned(self.q), self.turned(self.k)
        inverse = None if self.rate is None else self.turned(self.inverse)
        for i in reversed(range(self.k.shape[1])):
            ends.append(dh)
            change = inside[:, i] + self.kept[:, i] * f.matmul(self.k[:, i], dh)
            dh = self.whole[:, i] * dh + f.matmul(queries[:, i], self.grown[:, i] * self.dy[:, i])
            if inverse is not None:
                change = f.matmul(inverse[:, i], change)
                dh = dh - f.matmul(keys[:, i], self.grown[:, i] * (self.rate[:, i] * change))
            found.append(change)
        return self.joined(ends[::-1]), self.joined(found[::-1]), dh

    def gradients(self, h: Any, change: Any, end: Any, z: Any) -> tuple[Any, Any, Any, Any]:
        """Those of q, k and G, and of the decays after each token."""
        f, q, k = self.f, self.q, self.k
        pairs = f.matmul(self.dy, change, transpose_b=True) * self.decay * _below()
        diagonal = f.sum(self.dy * change, axes=3, keepdims=True)
        dq = self.grown * f.matmul(self.dy, h, transpose_b=True) + f.matmul(pairs, k)
        before, passed = f.matmul(self.turned(pairs), q), self.kept * f.matmul(change, end, transpose_b=True)
        dk, of_sums = passed + diagonal * q, f.sum(q * dq, axes=3)
        if self.rate is not None:
            pairs = f.matmul(z, change, transpose_b=True) * self.decay * _below()
            after = -(self.grown * f.matmul(z, h, transpose_b=True) + f.matmul(pairs, k))
            before = before - f.matmul(self.turned(pairs), k)
            dk, of_sums = dk + after, of_sums + f.sum(k * after, axes=3)
        return dq + diagonal * k, dk + before, of_sums - f.sum(k * before, axes=3), f.sum(k * passed, axes=3)


def _below() -> Any:
    return np.tril(np.ones((CHUNK, CHUNK), np.float32), -1)


def _decompose(f: Any, q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any, dy: Any, dstate: Any) -> tuple[Any, ...]:
    """By chunks (chunk_steps.py), of which only the states and their gradients go in order."""
    batch, tokens, heads, _ = v.shape
    shape, whole = (batch * heads, *state.shape[2:]), tuple(state.shape)
    q, k, v, g, dy = (chunked(f, x, heads) for x in (q, k, v, g, dy))
    decay, grown = decays_between(f, g), f.exp(from_start(f, g))
    of_decays = decay, *(column(x) for x in (grown, decay[:, :, CHUNK - 1], grown[:, :, CHUNK - 1 :]))
    own: tuple[Any, ...] = ()
    if beta is not None:
        rate, system = column(chunked(f, beta, heads)), f.matmul(k, k, transpose_b=True) * decay * _below()
        own = rate, system, f.triangular_inverse(rate * system)
    c = _Chunks(f, q, k, v, dy, *of_decays, *own)
    h, change = c.forward(state.reshape(shape))
    end, dr, dfirst = c.backward(dstate.reshape(shape))
    dv = dr if c.rate is None else c.rate * dr
    dq, dk, of_sums, passed = c.gradients(h, change, end, dv)
    # that of g sums those of G from the token on, and what the tokens before it and the state passed
    of_last = f.sum(c.whole * h * end, axes=(2, 3)).reshape((*grown.shape[:2], 1))
    dg = f.matmul(of_sums, _below() + np.eye(CHUNK, dtype=np.float32)) + f.matmul(passed, _below().T) + of_last
    found = [dq, dk, dv, dg]
    if beta is not None:
        found.append(f.sum(dr * (v - c.grown * f.matmul(k, h) - f.matmul(c.system, change)), axes=3))
    return (*(by_token(f, x, batch, tokens) for x in found), dfirst.reshape(whole))


def _check(name: str, sizes: Sizes) -> None:
    expect_heads(name, sizes)
    fits = max(sizes["K"], sizes["V"]) <= LARGEST
    ops.expect(fits, name, (sizes["K"], sizes["V"]), f"keys K and values V of at most {LARGEST}")


def _op(name: str, formula: str, delta: bool) -> ops.Op:
    gates = {"g": "BTH"} | ({"beta": "BTH"} if delta else {})
    given = {"q": "BTGK", "k": "BTGK", "v": "BTHV"} | gates | {"state": "BHKV", "dy": "BTHV", "dstate": "BHKV"}

    def of(function: Any) -> Any:
        """The function without beta in linear attention."""
        return function if delta else lambda *args: function(*args[:-3], None, *args[-3:])

    row = SequenceOp(
        name,
        given,
        ("BTHK", "BTHK", "BTHV", *gates.values(), "BHKV"),
        of(_numpy),
        # each compiles a kernel in about 0.7 s
        [{"B": 1, "T": 67, "G": 1, "H": 2, "K": 32, "V": 17}, {"B": 1, "T": 3, "G": 2, "H": 2, "K": 5, "V": 32}],
        draws={"g": decays, "beta": rates, "k": small},
        check=lambda sizes, attrs: _check(name, sizes),
    )
    return sequence_op(
        row,
        formula,
        of(_decompose),
        variants=(chunks.variant(delta), token_kernel.variant(delta)),
        flops=lambda node: (20.0 if delta else 12.0) * prod(node.inputs[2].bounds) * node.inputs[0].bounds[3],
        tolerance=TO_TOLERANCE | {"f32": 4e-12},
    )


OPS = {
    DELTA: _op(
        DELTA,
        "dq = S do; r = G.T k; dv = beta r; dk = G d - exp(g) S dv; G = exp(g) (G - outer(k, dv)), backward",
        True,
    ),
    LINEAR: _op(LINEAR, "G += outer(q, do); dq = S do; dk = G v; dv = G.T k; G = exp(g) G, backward", False),
}


def scale_of(attrs: ops.Attrs, key_size: int) -> float:
    """The scale of queries: K ** -0.5 where none is given."""
    scale = attrs.get("scale")
    return float(key_size**-0.5 if scale is None else scale)


def rule(f: Any, dys: Any, ys: Any, *given: Any, scale: float | None = None, l2_norm: bool = False) -> Any:
    """The vjp of gated_delta_rule."""
    return _rule(f, DELTA, 5, dys, given, scale, l2_norm)


def linear_rule(f: Any, dys: Any, ys: Any, *given: Any, scale: float | None = None) -> Any:
    """The vjp of gated_linear_attention."""
    return _rule(f, LINEAR, 4, dys, given, scale, False)


def _rule(f: Any, name: str, n_given: int, dys: Any, given: Any, scale: float | None, l2_norm: bool) -> Any:
    dtype = as_dtype(given[0].dtype)
    (q, k, v, *gates), states, (dy, dstate) = (_wide(f, x) for x in given[:n_given]), given[n_given:], dys
    (batch, tokens, groups, keys), (_, _, heads, values) = q.shape, v.shape
    if max(keys, values) > LARGEST:
        return NotImplemented
    first = states[0] if states else np.zeros((batch, heads, keys, values), np.float32)
    factor = scale_of({"scale": scale}, keys)
    lengths = [f.rsqrt(f.sum(x * x, axes=3, keepdims=True) + NORM_EPS) if l2_norm else None for x in (q, k)]
    units = [x if length is None else x * length for x, length in zip((q, k), lengths, strict=True)]
    found = getattr(f, name)(units[0] * factor, units[1], v, *gates, first, _wide(f, dy), dstate)

    def of_keys(made: Any, unit: Any, length: Any) -> Any:
        """The gradient of q or k by that of its unit vector for each head of values."""
        if heads != groups:
            made = f.sum(made.reshape((batch, tokens, groups, heads // groups, keys)), axes=3)
        return made if length is None else length * (made - unit * f.sum(made * unit, axes=3, keepdims=True))

    dq, dk, dv, *others = found
    dq, dk = (of_keys(*of) for of in zip((dq * factor, dk), units, lengths, strict=True))
    narrow = [x if dtype == f32 else f.cast(x, to=dtype.name) for x in (dq, dk, dv)]
    return (*narrow, *others[: len(gates) + len(states)])


def _wide(f: Any, x: Any) -> Any:
    return x if as_dtype(x.dtype) == f32 else f.cast(x, to="f32")
