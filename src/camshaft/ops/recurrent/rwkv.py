"""The time mixing of RWKV-6 and RWKV-7: recurrences with a decay for each element of a key.

RWKV-6 (Peng et al., Eagle and Finch, 2024): o = r.T (S + diag(u) outer(k, v)); S = diag(exp(w)) S + outer(k, v). RWKV-7
(Goose, 2025): S = diag(exp(w)) S + outer(b, a.T S) + outer(k, v); o = r.T S. w is a log decay, at most 0. Token shift,
projections and norms of the layer are other ops. r, w, k, a and b [B, T, H, K], v [B, T, H, V], u [H, K], states [B, H, K,
V], as in fla.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from camshaft.ops import op as ops
from camshaft.ops.checks import TO_TOLERANCE
from camshaft.ops.recurrent.frame import SequenceOp, decays, sequence_op, small
from camshaft.ops.recurrent.gradient.diagonal import seven_rule, six_rule
from camshaft.ops.recurrent.tokens import corrected_tokens, decayed_tokens, launch


def _start(v: Any, keys: int, state: Any) -> Any:
    return np.zeros((len(v), v.shape[2], keys, v.shape[3])) if state is None else state.copy()


def _six(r: Any, k: Any, v: Any, w: Any, u: Any, state: Any) -> Any:
    s, out = _start(v, r.shape[3], state), np.zeros(v.shape)
    for t in range(v.shape[1]):
        added = k[:, t, :, :, None] * v[:, t, :, None]
        out[:, t] = np.einsum("bhk,bhkv->bhv", r[:, t], s + u[..., None] * added)
        s = np.exp(w[:, t])[..., None] * s + added
    return out, s


def _seven(r: Any, w: Any, k: Any, v: Any, a: Any, b: Any, state: Any) -> Any:
    s, out = _start(v, r.shape[3], state), np.zeros(v.shape)
    for t in range(v.shape[1]):
        seen = np.einsum("bhk,bhkv->bhv", a[:, t], s)
        s = np.exp(w[:, t])[..., None] * s + b[:, t, :, :, None] * seen[:, :, None]
        s = s + k[:, t, :, :, None] * v[:, t, :, None]
        out[:, t] = np.einsum("bhk,bhkv->bhv", r[:, t], s)
    return out, s


def _columns(x: Any, t: int) -> Any:
    """Token t of x [B, T, H, K] as [B, H, K, 1]."""
    b, _, h, n = x.shape
    return x[:, t].reshape((b, h, n, 1))


def _rows(x: Any, t: int) -> Any:
    """Token t of x [B, T, H, V] as [B, H, 1, V]."""
    b, _, h, n = x.shape
    return x[:, t].reshape((b, h, 1, n))


def _read(f: Any, r: Any, s: Any) -> Any:
    """r.T s as [B, 1, H, V]."""
    b, h, _, n = s.shape
    return f.sum(r * s, axes=2).reshape((b, 1, h, n))


def _joined(f: Any, outs: list[Any]) -> Any:
    return f.concat(*outs, axis=1) if len(outs) > 1 else outs[0]


def _zeros(v: Any, keys: int) -> Any:
    return np.zeros((v.shape[0], v.shape[2], keys, v.shape[3]), np.float32)


def _six_decompose(f: Any, r: Any, k: Any, v: Any, w: Any, u: Any, state: Any = None) -> Any:
    s, outs = _zeros(v, r.shape[3]) if state is None else state, []
    for t in range(v.shape[1]):
        added = _columns(k, t) * _rows(v, t)
        outs.append(_read(f, _columns(r, t), u.reshape((*u.shape, 1)) * added + s))
        s = f.exp(_columns(w, t)) * s + added
    return _joined(f, outs), s


def _seven_decompose(f: Any, r: Any, w: Any, k: Any, v: Any, a: Any, b: Any, state: Any = None) -> Any:
    s, outs = _zeros(v, r.shape[3]) if state is None else state, []
    for t in range(v.shape[1]):
        seen = f.sum(_columns(a, t) * s, axes=2, keepdims=True)
        s = f.exp(_columns(w, t)) * s + _columns(b, t) * seen + _columns(k, t) * _rows(v, t)
        outs.append(_read(f, _columns(r, t), s))
    return _joined(f, outs), s


def _build_six(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    return launch(decayed_tokens, node, "rrrrrr", {"scale": 1.0, "bonus": True})


def _build_seven(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    return launch(corrected_tokens, node, "rrrrrrr", {})


def _flops(node: ops.NodeSpec) -> float:
    return 8.0 * node.inputs[0].bounds[1] * float(np.prod(node.outputs[1].bounds))


_SIZES = [{"B": 2, "T": 3, "H": 2, "K": 5, "V": 17}, {"B": 1, "T": 4, "H": 2, "K": 16, "V": 64}]
_KEYS, _GIVES = "BTHK", ("BTHV", "BHKV")
_TOLERANCE = TO_TOLERANCE | {"f32": 4e-12}

OPS = {
    "rwkv6_time_mix": sequence_op(
        SequenceOp(
            "rwkv6_time_mix",
            {"r": _KEYS, "k": _KEYS, "v": "BTHV", "w": _KEYS, "u": "HK", "*state": "BHKV"},
            _GIVES, _six, _SIZES, draws={"w": decays, "k": small},
        ),
        "o = r.T (S + diag(u) outer(k, v)); S = diag(exp(w)) S + outer(k, v); the last S",
        _six_decompose,
        variants=(ops.KernelVariant("token_by_token", ops.EVERYWHERE, _build_six),),
        flops=_flops,
        tolerance=_TOLERANCE,
        vjp=six_rule,
    ),
    "rwkv7_time_mix": sequence_op(
        SequenceOp(
            "rwkv7_time_mix",
            {"r": _KEYS, "w": _KEYS, "k": _KEYS, "v": "BTHV", "a": _KEYS, "b": _KEYS, "*state": "BHKV"},
            _GIVES, _seven, _SIZES, draws={"w": decays, "k": small, "a": small, "b": small},
        ),
        "S = diag(exp(w)) S + outer(b, a.T S) + outer(k, v); o = r.T S; the last S",
        _seven_decompose,
        variants=(ops.KernelVariant("token_by_token", ops.EVERYWHERE, _build_seven),),
        flops=_flops,
        tolerance=_TOLERANCE,
        vjp=seven_rule,
    ),
}  # fmt: skip
