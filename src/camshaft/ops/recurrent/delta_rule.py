"""gated_delta_rule, delta_rule and gated_linear_attention: attention whose cost grows with the number of tokens, not its square.

A head has a state S [K, V]. The delta rule replaces what S has for a key by the token's value: S = exp(g) S; d = beta (v -
k.T S); S += outer(k, d); o = scale q.T S. g is a log decay, at most 0; delta_rule has g = 0. Linear attention adds only: d
= v. Layouts are those of transformers and fla: q and k [B, T, G, K], v [B, T, H, V], g and beta [B, T, H], states [B, H, K,
V]; H / G heads of values share a head of keys. Over many tokens both are computed in chunks of 64 tokens, by matrix
products (chunks.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from camshaft.lang import Kernel
from camshaft.ops import op as ops
from camshaft.ops.checks import TO_TOLERANCE
from camshaft.ops.parameters import Attribute
from camshaft.ops.recurrent import chunks
from camshaft.ops.recurrent.columns import NORM_EPS
from camshaft.ops.recurrent.delta_chunks import by_chunks
from camshaft.ops.recurrent.frame import SequenceOp, decays, expect_heads, rates, sequence_op, small
from camshaft.ops.recurrent.gradient.delta_rule import linear_rule, rule, scale_of
from camshaft.ops.recurrent.tokens import decayed_tokens, delta_tokens, launch

SCALE = Attribute("scale", "float | None", None)
NORM = Attribute("l2_norm", "bool", False)
# With fewer tokens a chunk is mostly padding.
FEW_TOKENS = 16


def check(name: str) -> Callable[[Any, ops.Attrs], None]:
    """Refuses heads that are not multiples of the groups, and a scale that is not a number."""

    def refuse(sizes: Any, attrs: ops.Attrs) -> None:
        expect_heads(name, sizes)
        scale = attrs.get("scale")
        good = scale is None or (isinstance(scale, float) and bool(np.isfinite(scale)))
        ops.expect(good, name, f"scale {scale!r}", "a finite float, or None for K ** -0.5")
        norm = attrs.get("l2_norm", False)
        ops.expect(isinstance(norm, bool), name, f"l2_norm {norm!r}", "True or False")

    return refuse


def _in_order(q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any, scale: float | None, l2_norm: bool) -> Any:
    """The recurrence in float64; without beta, linear attention."""
    heads, key_size = v.shape[2], q.shape[3]
    q, k = (np.repeat(x, heads // q.shape[2], 2) for x in (q, k))
    if l2_norm:
        q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + NORM_EPS) for x in (q, k))
    s = np.zeros((len(q), heads, key_size, v.shape[3])) if state is None else state.copy()
    out = np.zeros(v.shape)
    for t in range(v.shape[1]):
        s = s * np.exp(g[:, t])[..., None, None]
        change = v[:, t]
        if beta is not None:
            change = beta[:, t, :, None] * (change - np.einsum("bhk,bhkv->bhv", k[:, t], s))
        s = s + k[:, t, :, :, None] * change[:, :, None]
        out[:, t] = np.einsum("bhk,bhkv->bhv", q[:, t], s) * scale_of({"scale": scale}, key_size)
    return out, s


def gated_delta(q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any, scale: Any = None, l2_norm: bool = False) -> Any:
    """gated_delta_rule in float64."""
    return _in_order(q, k, v, g, beta, state, scale, l2_norm)


def _decompose(
    f: Any, q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any = None, *, scale: Any = None, l2_norm: bool = False
) -> Any:
    factor = scale_of({"scale": scale}, q.shape[3])
    if l2_norm:
        q, k = (x * f.rsqrt(f.sum(x * x, axes=-1, keepdims=True) + NORM_EPS) for x in (q, k))
    return by_chunks(f, q * factor, k, v, g, beta, state)


def _plain(f: Any, q: Any, k: Any, v: Any, beta: Any, state: Any = None, **attrs: Any) -> Any:
    zeros = np.zeros(beta.shape, np.float32)
    return f.gated_delta_rule(q, k, v, zeros, beta, *(() if state is None else (state,)), **attrs)


def _linear(f: Any, q: Any, k: Any, v: Any, g: Any, state: Any = None, *, scale: Any = None) -> Any:
    return by_chunks(f, q * scale_of({"scale": scale}, q.shape[3]), k, v, g, None, state)


def _build(kernel: Kernel, rows: str, node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    scale = scale_of(node.attrs, node.inputs[0].bounds[3])
    own: dict[str, Any] = {"l2_norm": node.attrs.get("l2_norm", False)} if kernel is delta_tokens else {"bonus": False}
    return launch(kernel, node, rows, {"scale": scale, **own})


def _flops(node: ops.NodeSpec) -> float:
    (sequences, tokens, _, _), (_, heads, keys, values) = node.inputs[0].bounds, node.outputs[1].bounds
    return 8.0 * sequences * tokens * heads * keys * values


def _cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """Two passes over the state per token, 4 ns per 1000 elements and lane of 16."""
    return _flops(node) / (2.0 * target.lanes)


def _variants(kernel: Kernel, rows: str) -> tuple[ops.KernelVariant, ...]:
    """Token by token on every target, by chunks where it pays."""
    in_order = ops.KernelVariant("token_by_token", ops.EVERYWHERE, partial(_build, kernel, rows), cost=_cost)
    return (chunks.variant(kernel is delta_tokens, scale_of), in_order)


_KEYS, _STATE = {"q": "BTGK", "k": "BTGK", "v": "BTHV"}, {"*state": "BHKV"}
_SIZES = [
    {"B": 2, "T": 3, "G": 1, "H": 2, "K": 5, "V": 17},
    {"B": 1, "T": 1, "G": 2, "H": 2, "K": 16, "V": 64},
    {"B": 1, "T": 25, "G": 1, "H": 1, "K": 32, "V": 32},
    {"B": 1, "T": 65, "G": 1, "H": 2, "K": 32, "V": 32},
]
_DRAWS = {"g": decays, "beta": rates, "k": small}
_NARROW = ("q", "k", "v")
_GIVES = ("BTHV", "BHKV")
_TOLERANCE = TO_TOLERANCE | {"f32": 4e-12}

OPS = {
    "gated_delta_rule": sequence_op(
        SequenceOp(
            "gated_delta_rule", {**_KEYS, "g": "BTH", "beta": "BTH", **_STATE}, _GIVES, gated_delta, _SIZES, _NARROW,
            (SCALE, NORM), ({}, {"l2_norm": True}, {"scale": 0.5}, {}), check("gated_delta_rule"), _DRAWS,
        ),
        "S = exp(g) S; d = beta (v - k.T S); S += outer(k, d); o = scale q.T S; the last S",
        _decompose,
        variants=_variants(delta_tokens, "rrrnnr"),
        flops=_flops,
        vjp=rule,
        tolerance=_TOLERANCE,
    ),
    "delta_rule": sequence_op(
        SequenceOp(
            "delta_rule", {**_KEYS, "beta": "BTH", **_STATE}, _GIVES,
            lambda q, k, v, beta, state, scale=None, l2_norm=False: _in_order(
                q, k, v, 0 * beta, beta, state, scale, l2_norm
            ),
            _SIZES[:2], _NARROW, (SCALE, NORM), ({}, {"l2_norm": True}), check("delta_rule"), _DRAWS,
        ),
        "d = beta (v - k.T S); S += outer(k, d); o = scale q.T S; the last S",
        _plain,
        flops=_flops,
        tolerance=_TOLERANCE,
    ),
    "gated_linear_attention": sequence_op(
        SequenceOp(
            "gated_linear_attention", {**_KEYS, "g": "BTH", **_STATE}, _GIVES,
            lambda q, k, v, g, state, scale=None: _in_order(q, k, v, g, None, state, scale, False),
            _SIZES, _NARROW, (SCALE,), ({}, {"scale": 0.5}), check("gated_linear_attention"), _DRAWS,
        ),
        "S = exp(g) S + outer(k, v); o = scale q.T S; the last S",
        _linear,
        variants=_variants(decayed_tokens, "rrrnr"),
        flops=_flops,
        vjp=linear_rule,
        tolerance=_TOLERANCE,
    ),
}  # fmt: skip
