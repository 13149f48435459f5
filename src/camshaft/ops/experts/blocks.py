"""moe_gate and moe_experts: the router and the feed-forward layer of a mixture of experts, composed of the other ops."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from camshaft.dtypes import f32, i32
from camshaft.errors import ShapeError
from camshaft.formats.blocks import BlockFormat
from camshaft.ops import op as ops
from camshaft.ops.checks import partly_active
from camshaft.ops.experts import grouped, plain, routing
from camshaft.ops.experts import weighted_reduce as reduce
from camshaft.ops.parameters import ACT, EPS, Attribute, Parameters
from camshaft.ops.spec import TensorSpec

RENORMALIZE = Attribute("renormalize", "bool", True)
ACTS = ("silu", "gelu", "gelu_erf")
_ROUTE = routing.OPS["moe_route"]


# --- moe_gate -----------------------------------------------------------------------------------------------------------
def _gate_route(attrs: ops.Attrs) -> dict[str, Any]:
    """The attributes of moe_route: softmax over the chosen, times the scale of each expert, and divided by their sum."""
    again = attrs.get("renormalize", True)
    return {"top_k": attrs.get("top_k"), "expert_scale": True, "renormalize": again}


def _infer_gate(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    wanted = "x [T, d], norm [d], router [n_experts, d] and scale [n_experts]"
    ops.expect(len(specs) == 4, "moe_gate", specs, wanted)
    x, norm, router, scale = specs
    fits = all(s.is_plain and s.dtype == f32 and 0 not in s.bounds for s in specs) and len(x.shape) == 2
    ops.expect(fits, "moe_gate", specs, f"f32 {wanted}, no axis empty")
    ops.expect(norm.shape == x.shape[1:], "moe_gate", norm, f"norm [{x.shape[1]}]")
    fits = len(router.shape) == 2 and router.shape[1] == x.shape[1] and scale.shape == router.shape[:1]
    ops.expect(fits, "moe_gate", (router, scale), f"router [n_experts, {x.shape[1]}] and scale [n_experts]")
    eps = attrs.get("eps", 0)
    ops.expect(eps > 0, "moe_gate", f"eps {eps}", "eps above 0")
    top_k = attrs.get("top_k")
    ops.expect(
        isinstance(top_k, int) and 0 < top_k <= router.bounds[0],
        "moe_gate",
        f"top_k {top_k}",
        f"1 to {router.bounds[0]}",
    )
    return _ROUTE.infer((TensorSpec((x.shape[0], router.shape[0]), f32), scale), _gate_route(attrs))


def _gate_reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    x, norm, router, scale = (a.astype(np.float64) for a in inputs)
    normed = x / np.sqrt((x * x).mean(-1, keepdims=True) + attrs["eps"]) * norm
    return _ROUTE.reference((normed @ router.T, scale), _gate_route(attrs))


def _decompose_gate(f: Any, x: Any, norm: Any, router: Any, scale: Any, **attrs: Any) -> Any:
    logits = f.matmul(f.rms_norm(x, norm, eps=attrs["eps"]), router, transpose_b=True)
    return f.moe_route(logits, scale, **_gate_route(attrs))


def _gate_samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(9)
    shapes = (5, 24), (24,), (16, 24), (16,)
    given = tuple((rng.uniform(0.5, 2, s) if len(s) == 1 else rng.normal(size=s)).astype(np.float32) for s in shapes)
    attrs = {"top_k": 3, "eps": 1e-6}
    yield ops.Sample("3 of 16", given, attrs)
    yield partly_active(ops.Sample("3 of 5 tokens", given, attrs | {"renormalize": False}), 3, fixed=(1, 2, 3))


def _gate_errors() -> Iterable[ops.ErrorSample]:
    x, norm, router, scale = (TensorSpec(shape, f32) for shape in ((2, 8), (8,), (4, 8), (4,)))
    attrs = {"top_k": 2, "eps": 1e-6}
    yield ops.ErrorSample((x, norm, router), attrs, "wanted x")
    yield ops.ErrorSample((x, scale, router, scale), attrs, r"wanted norm \[8\]")
    yield ops.ErrorSample((x, norm, router, norm), attrs, r"wanted router \[n_experts, 8\]")
    yield ops.ErrorSample((x, norm, router, scale), attrs | {"top_k": 5}, "got top_k 5; wanted 1 to 4")
    yield ops.ErrorSample((x, norm, router, scale), {"top_k": 2}, "wanted eps above 0")


# --- moe_experts --------------------------------------------------------------------------------------------------------
def _product(w: TensorSpec) -> ops.Op:
    return grouped.OP if isinstance(w.dtype, BlockFormat) else plain.OP


def _infer_experts(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    name = "moe_experts"
    wanted = "x [T, d], gate and up [n_experts, f, d], down [n_experts, d, f], experts and weights [T, S]"
    ops.expect(len(specs) == 6, name, specs, wanted)
    x, gate, up, down, experts, weights = specs
    act = attrs.get("act", ACT.default)
    ops.expect(act in ACTS, name, f"act {act!r}", f"one of {', '.join(ACTS)}")
    ops.expect(len(x.shape) == 2 and x.is_plain and x.dtype == f32, name, x, "x of f32 [T, d]")
    fits = len(gate.shape) == len(down.shape) == 3 and gate.shape == up.shape and down.bounds == (
        gate.bounds[0], x.bounds[1], gate.bounds[1]
    )  # fmt: skip
    ops.expect(fits, name, (gate, up, down), wanted)
    try:
        for w in (gate, up):
            (hidden,) = _product(w).infer((x, w, experts), {})
        (y,) = _product(down).infer((hidden, down, experts), {})
        return reduce.OP.infer((y, weights), {})
    except ShapeError as error:
        raise ShapeError(f"{name}: {error}") from None


def _experts_reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    x, gate, up, down, experts, weights = inputs
    g, u = (grouped.grouped(x, w, experts) for w in (gate, up))
    act = attrs.get("act", ACT.default)
    from camshaft import ops as table  # the table of ops imports this module

    (activated,) = table.get(act).reference((g,), {})
    return reduce.OP.reference((grouped.grouped(activated * u, down, experts), weights), {})


def _decompose_experts(
    f: Any, x: Any, gate: Any, up: Any, down: Any, experts: Any, weights: Any, act: str = "silu"
) -> Any:
    g, u = (getattr(f, _product(w.spec).name)(x, w, experts) for w in (gate, up))
    hidden = f.gelu_erf(g) * u if act == "gelu_erf" else getattr(f, f"{act}_multiply")(g, u)
    return f.moe_weighted_reduce(getattr(f, _product(down.spec).name)(hidden, down, experts), weights)


def _experts_samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(10)
    x, gate, up, down = (
        rng.normal(size=s).astype(np.float32) / 4 for s in ((5, 24), (4, 33, 24), (4, 33, 24), (4, 24, 33))
    )
    experts = np.array([rng.permutation(4)[:2] for _ in range(5)], np.int32)
    given = x, gate, up, down, experts, rng.uniform(size=(5, 2)).astype(np.float32)
    yield ops.Sample("silu", given)
    yield partly_active(ops.Sample("gelu, 3 of 5", given, {"act": "gelu"}), 3, fixed=(1, 2, 3))


def _experts_errors() -> Iterable[ops.ErrorSample]:
    x, gate, down = (TensorSpec(shape, f32) for shape in ((2, 64), (4, 32, 64), (4, 64, 32)))
    experts, weights = TensorSpec((2, 3), i32), TensorSpec((2, 3), f32)
    yield ops.ErrorSample((x, gate, gate, down, experts), {}, "wanted x")
    yield ops.ErrorSample((x, gate, gate, gate, experts, weights), {}, "wanted x .*down")
    yield ops.ErrorSample(
        (x, gate, gate, down, experts, weights), {"act": "relu"}, "got act 'relu'; wanted one of silu"
    )


OPS = {
    "moe_gate": ops.Op(
        name="moe_gate",
        formula="p = rms_norm(x) router^T; experts = the top_k greatest p; w = softmax(p[experts]) scale[experts], divided by "
        "their sum",
        parameters=Parameters("x norm router scale", (routing.TOP_K, EPS, RENORMALIZE), results=2),
        infer=_infer_gate,
        reference=_gate_reference,
        samples=_gate_samples,
        error_samples=_gate_errors,
        tolerance={"f32": 1e-11},
        decompose=_decompose_gate,
    ),
    "moe_experts": ops.Op(
        name="moe_experts",
        formula="y[t] = sum_s weights[t, s] down_e (act(gate_e x[t]) * (up_e x[t])), e = experts[t, s]",
        parameters=Parameters("x gate up down experts weights", (ACT,)),
        infer=_infer_experts,
        reference=_experts_reference,
        samples=_experts_samples,
        error_samples=_experts_errors,
        tolerance={"f32": 1e-11},
        decompose=_decompose_experts,
    ),
}
