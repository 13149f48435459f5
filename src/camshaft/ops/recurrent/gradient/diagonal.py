"""rwkv6_gradient and rwkv7_gradient: the gradients of recurrences with a decay for each element of a key.

rwkv7: S' = diag(exp(w)) S + outer(b, a.T S) + outer(k, v); o = r.T S'. With G the gradient of S', from the last token back:
G += outer(r, do); dr = S' do; dk = G v; dv = G.T k; db = G (a.T S); e = G.T b; da = S e; dw = exp(w) rows(G S);
G = diag(exp(w)) G + outer(a, e). rwkv6 reads S before the token, has no a and b, and its bonus u is not part of it.
Columns of values need nothing of each other but in the sums over them, which the gradients by r, w, k, a and b are.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import f32
from camshaft.ops import op as ops
from camshaft.ops.checks import TO_TOLERANCE
from camshaft.ops.recurrent.columns import vectors_of
from camshaft.ops.recurrent.frame import SequenceOp, decays, sequence_op, small
from camshaft.ops.recurrent.gradient.diagonal_kernel import head_backward
from camshaft.ops.recurrent.gradient.head_kernel import n_blocks, n_rows
from camshaft.ops.recurrent.gradient.parts import CPUS, HEAD_STEPS, summed
from camshaft.ops.recurrent.state_layout import WIDTH
from camshaft.ops.spec import TensorSpec

SIX, SEVEN = "rwkv6_gradient", "rwkv7_gradient"
_KEYS = "BTHK"
_GIVEN = {
    SIX: {"r": _KEYS, "w": _KEYS, "k": _KEYS, "v": "BTHV"},
    SEVEN: {"r": _KEYS, "w": _KEYS, "k": _KEYS, "v": "BTHV", "a": _KEYS, "b": _KEYS},
}


def _build(node: ops.NodeSpec, own: bool) -> ops.Build:
    (sequences, tokens, heads, keys), values = node.inputs[0].bounds, node.inputs[3].bounds[3]
    corrected = len(node.inputs) > 7
    rows, states = sequences * tokens * heads, sequences * heads * keys
    wide = vectors_of(values) if own else 1
    columns, blocks = WIDTH * wide, n_blocks(values, wide)
    starts = sequences * heads * blocks * -(-tokens // HEAD_STEPS) * keys, columns
    scratch = [TensorSpec(starts, f32)]
    shapes = [(rows, keys), (rows, keys), (rows, keys), (rows, values), *([(rows, keys)] * 2 * corrected)]
    outs = [ops.write(i, shape=shape) for i, shape in enumerate((*shapes, (states, values)))]
    sums = [i for i, shape in enumerate(shapes) if shape[1] == keys and i != 3]
    if blocks > 1:
        for i in sums:
            outs[i] = ops.scratch(len(scratch), "write", shape=(blocks * rows, keys))
            scratch.append(TensorSpec((blocks * rows, keys), f32))
    given = (*shapes, (states, values), (rows, values), (states, values))
    arrays = [*(ops.read(i, shape=s) for i, s in enumerate(given)), *outs, ops.scratch(0, "update")]
    if not own:
        arrays.append(ops.scratch(len(scratch), "update"))
        scratch.append(TensorSpec((sequences * heads * blocks * n_rows(keys), columns), f32))
    sizes = {"tokens": tokens, "heads": heads, "key_size": keys, "value_size": values, "rows": rows}
    grid = ops.Cells(sequences * heads), ops.Cells(values, columns)
    launches = [ops.Launch(head_backward, tuple(arrays), grid, {**sizes, "corrected": corrected, "wide": wide})]
    launches += [summed(1 + n, i, node, 1, blocks) for n, i in enumerate(sums) if blocks > 1]
    return ops.Build(tuple(launches), tuple(scratch))


# GPUs have too little memory of a workgroup for the states that a program holds.
_VARIANTS = (
    ops.KernelVariant("head_backward", CPUS, lambda node, target: _build(node, own=True)),
    ops.KernelVariant("head_backward_in_memory", ops.EVERYWHERE - CPUS, lambda node, target: _build(node, own=False)),
)


def _numpy(r: Any, w: Any, k: Any, v: Any, *others: Any) -> tuple[Any, ...]:
    *pair, state, dy, dstate = others
    a, b = pair or (np.zeros(r.shape), np.zeros(r.shape))
    tokens, held, decay = r.shape[1], [state], np.exp(w)
    for t in range(tokens):
        seen = np.einsum("bhk,bhkv->bhv", a[:, t], held[-1])
        new = decay[:, t, :, :, None] * held[-1] + b[:, t, :, :, None] * seen[:, :, None]
        held.append(new + k[:, t, :, :, None] * v[:, t, :, None])
    g, (dr, dw, dk, dv, da, db) = dstate, (np.zeros(i.shape) for i in (r, w, k, v, a, b))
    for t in reversed(range(tokens)):
        read = dy[:, t, :, None] * r[:, t, :, :, None]
        g = g + read if pair else g
        dr[:, t] = np.einsum("bhkv,bhv->bhk", held[t + 1 if pair else t], dy[:, t])
        dk[:, t], dv[:, t] = np.einsum("bhkv,bhv->bhk", g, v[:, t]), np.einsum("bhkv,bhk->bhv", g, k[:, t])
        seen, into = np.einsum("bhk,bhkv->bhv", a[:, t], held[t]), np.einsum("bhkv,bhk->bhv", g, b[:, t])
        db[:, t], da[:, t] = np.einsum("bhkv,bhv->bhk", g, seen), np.einsum("bhkv,bhv->bhk", held[t], into)
        moved = decay[:, t, :, :, None] * g
        dw[:, t] = (moved * held[t]).sum(-1)
        g = moved + a[:, t, :, :, None] * into[:, :, None] if pair else moved + read
    return (dr, dw, dk, dv, *((da, db) if pair else ()), g)


def _decompose(f: Any, r: Any, w: Any, k: Any, v: Any, *others: Any) -> tuple[Any, ...]:
    *pair, state, dy, dstate = others
    batch, tokens, heads, keys = r.shape
    values, outs = v.shape[3], []

    def column(x: Any, t: int) -> Any:
        return x[:, t].reshape((batch, heads, keys, 1))

    def row(x: Any, t: int) -> Any:
        return x[:, t].reshape((batch, heads, 1, values))

    def of_keys(x: Any) -> Any:
        return f.sum(x, axes=3).reshape((batch, 1, heads, keys))

    held, seen, kept = [state], [], []
    for t in range(tokens):
        kept.append(f.exp(column(w, t)))
        new = kept[-1] * held[-1] + column(k, t) * row(v, t)
        if pair:
            seen.append(f.sum(column(pair[0], t) * held[-1], axes=2, keepdims=True))
            new = new + column(pair[1], t) * seen[-1]
        held.append(new)
    g = dstate
    for t in reversed(range(tokens)):
        read = column(r, t) * row(dy, t)
        g = g + read if pair else g
        moved = kept[t] * g
        made = [
            of_keys(held[t + 1 if pair else t] * row(dy, t)),
            of_keys(moved * held[t]),
            of_keys(g * row(v, t)),
            f.sum(g * column(k, t), axes=2).reshape((batch, 1, heads, values)),
        ]
        if pair:
            into = f.sum(g * column(pair[1], t), axes=2, keepdims=True)
            made += [of_keys(held[t] * into), of_keys(g * seen[t])]
            read = column(pair[0], t) * into
        outs.append(made)
        g = moved + read
    found = (f.concat(*parts[::-1], axis=1) if tokens > 1 else parts[0] for parts in zip(*outs, strict=True))
    return (*found, g)


def _op(name: str, formula: str) -> ops.Op:
    given = _GIVEN[name]
    row = SequenceOp(
        name,
        given | {"state": "BHKV", "dy": "BTHV", "dstate": "BHKV"},
        (*given.values(), "BHKV"),
        _numpy,
        [{"B": 2, "T": 3, "H": 2, "K": 5, "V": 17}, {"B": 1, "T": 19, "H": 2, "K": 16, "V": 64}],
        draws={"w": decays, "k": small, "a": small, "b": small},
    )
    flops = 30.0 if name == SEVEN else 20.0
    return sequence_op(
        row,
        formula,
        _decompose,
        variants=_VARIANTS,
        flops=lambda node: flops * prod(node.inputs[0].bounds) * node.inputs[3].bounds[3],
        tolerance=TO_TOLERANCE | {"f32": 4e-12},
    )


OPS = {
    SIX: _op(SIX, "dr = S do; dk = G v; dv = G.T k; dw = exp(w) sum_v G S; G = diag(exp(w)) G + outer(r, do)"),
    SEVEN: _op(SEVEN, "G += outer(r, do); dr = S' do; dk = G v; db = G (a.T S); G = diag(exp(w)) G + outer(a, G.T b)"),
}


def _first(r: Any, v: Any, state: Any) -> Any:
    batch, _, heads, keys = r.shape
    return np.zeros((batch, heads, keys, v.shape[3]), np.float32) if state is None else state


def six_rule(f: Any, dys: Any, ys: Any, r: Any, k: Any, v: Any, w: Any, u: Any, state: Any = None) -> Any:
    """The vjp of rwkv6_time_mix. The bonus is (sum_k r u k) v of each token alone."""
    dy, dstate = dys
    dr, dw, dk, dv, dfirst = f.rwkv6_gradient(r, w, k, v, _first(r, v, state), dy, dstate)
    own, of_own = f.sum(r * u * k, axes=3, keepdims=True), f.sum(dy * v, axes=3, keepdims=True)
    made = (
        lambda: dr + u * k * of_own,
        lambda: dk + r * u * of_own,
        lambda: dv + own * dy,
        dw,
        lambda: f.sum(r * k * of_own, axes=(0, 1)),
    )
    return made if state is None else (*made, dfirst)


def seven_rule(f: Any, dys: Any, ys: Any, *given: Any) -> Any:
    """The vjp of rwkv7_time_mix."""
    r, w, k, v, a, b, *state = given
    dy, dstate = dys
    first = _first(r, v, state[0] if state else None)
    *made, dfirst = f.rwkv7_gradient(r, w, k, v, a, b, first, dy, dstate)
    return (*made, *([dfirst] if state else []))
