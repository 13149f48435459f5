"""moe_softmax_topk and moe_route: the experts of each token and their weights, from router logits [T, n_experts].

moe_softmax_topk is the routing of Mixtral and Qwen3-MoE; with `normalize` it is also GPT-OSS's softmax over the chosen logits.
moe_route has the scores, groups and scales of DeepSeek V2 and V3 and Gemma 4 besides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any

import numpy as np

from camshaft.dtypes import f32, i32
from camshaft.extent import Extent
from camshaft.lang import Constant
from camshaft.ops import op as ops
from camshaft.ops.checks import partly_active
from camshaft.ops.experts.route_kernel import HIGHEST, LOWEST, TINY, route_row
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.spec import TensorSpec

TOP_K, NORMALIZE = Attribute("top_k", "int"), Attribute("normalize", "bool", True)
_ROUTE = (
    TOP_K,
    Attribute("score", "str", "softmax"),
    Attribute("groups", "int", 1),
    Attribute("top_groups", "int", 1),
    Attribute("group_top", "int", 2),
    NORMALIZE,
    Attribute("expert_scale", "bool", False),
    Attribute("renormalize", "bool", False),
    Attribute("scale", "float", 1.0),
)
SCORES = ("softmax", "sigmoid")


def _values(attrs: ops.Attrs) -> dict[str, Any]:
    """All attributes of moe_route, with defaults for those that are not given."""
    return {a.name: attrs.get(a.name, a.default) for a in _ROUTE}


def _infer(name: str, specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    values = _values(attrs)
    most = 3 if name == "moe_route" else 1
    ops.expect(
        1 <= len(specs) <= most, name, specs, "logits [T, n_experts]" + (", then a bias, a scale" if most > 1 else "")
    )
    x, *others = specs
    fits = x.is_plain and x.dtype == f32 and len(x.shape) == 2 and isinstance(x.shape[1], int) and 0 not in x.bounds
    ops.expect(fits, name, x, "logits of f32 [T, n_experts], no axis empty")
    wanted = TensorSpec(x.shape[1:], f32)
    for other in others:
        ops.expect(other == wanted, name, other, f"bias and scale of {wanted}")
    scaled = values["expert_scale"]
    ops.expect(not scaled or bool(others), name, "expert_scale without a scale", f"a last tensor {wanted}")
    ops.expect(len(others) < 2 or scaled, name, specs, "expert_scale=True with a bias and a scale")
    ops.expect(values["score"] in SCORES, name, f"score {values['score']!r}", "softmax or sigmoid")
    scale = values["scale"]
    is_number = isinstance(scale, int | float) and isfinite(scale)
    ops.expect(is_number, name, f"scale {scale!r}", "a scale that is a finite number")
    _check_groups(name, x.bounds[1], values)
    shape = x.shape[0], values["top_k"]
    return TensorSpec(shape, f32), TensorSpec(shape, i32)


def _check_groups(name: str, n: int, values: dict[str, Any]) -> None:
    groups, top_groups, top_k = values["groups"], values["top_groups"], values["top_k"]
    for key in ("groups", "top_groups", "top_k", "group_top"):
        is_count = isinstance(values[key], int) and not isinstance(values[key], bool) and values[key] > 0
        ops.expect(is_count, name, f"{key} {values[key]!r}", f"{key}, an integer above 0")
    ops.expect(n % groups == 0, name, f"{n} experts in {groups} groups", "groups of equal size")
    ops.expect(top_groups <= groups, name, f"top_groups {top_groups}", f"at most the {groups} groups")
    most = top_groups * (n // groups)
    ops.expect(top_k <= most, name, f"top_k {top_k}", f"at most the {most} experts to choose from")
    fits = groups == 1 or values["group_top"] <= min(2, n // groups)
    ops.expect(
        fits, name, f"group_top {values['group_top']} of {n // groups} experts in a group", "1 or 2, at most a group"
    )


def _numbers(x: ops.Array) -> ops.Array:
    return np.where(x > LOWEST, np.minimum(x, HIGHEST), LOWEST)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    values = _values(attrs)
    logits, *others = (a.astype(np.float64) for a in inputs)
    scale = others.pop() if values["expert_scale"] else 1.0
    x = _numbers(logits)
    with np.errstate(over="ignore"):
        terms = np.exp(x - x.max(-1, keepdims=True))
        scores = 1 / (1 + np.exp(-x)) if values["score"] == "sigmoid" else terms / terms.sum(-1, keepdims=True)
    choice = _numbers(scores + others[0]) if others else scores if values["groups"] > 1 else x
    if values["groups"] > 1:
        grouped = choice.reshape(len(x), values["groups"], -1)
        sums = np.sort(grouped, -1)[..., -values["group_top"] :].sum(-1)
        best = np.argsort(-sums, -1, kind="stable")[:, : values["top_groups"]]
        allowed = np.zeros(sums.shape, bool)
        np.put_along_axis(allowed, best, True, -1)
        choice = np.where(allowed[..., None], grouped, -np.inf).reshape(x.shape)
    experts = np.argsort(-choice, -1, kind="stable")[:, : values["top_k"]]
    weights = np.take_along_axis(scores, experts, -1)
    total = weights.sum(-1, keepdims=True)
    weights = weights * np.broadcast_to(scale, x.shape[1:])[experts]
    total = weights.sum(-1, keepdims=True) if values["renormalize"] else total
    if values["normalize"] or values["renormalize"]:
        weights = weights / (total + TINY)
    nans = sum(np.isnan(given) for given in (logits, *others)).any(-1, keepdims=True)
    return np.where(nans, np.nan, weights * values["scale"]), experts.astype(np.int32)


def _without(f: Any, values: Any, index: Any) -> Any:
    """The values with -inf at an index [T, .., 1] of the last axis."""
    return f.where(f.equal(np.arange(values.shape[-1], dtype=np.int32), index), -np.inf, values)


def _decompose(f: Any, logits: Any, *others: Any, **attrs: Any) -> Any:
    """One argmax per chosen group and expert."""
    values = _values(attrs)
    given = list(others)
    scale = given.pop() if values["expert_scale"] else None
    x = f.where(f.greater(logits, LOWEST), f.minimum(logits, HIGHEST), LOWEST)
    scores = f.sigmoid(x) if values["score"] == "sigmoid" else f.softmax(x)
    choice = scores if values["groups"] > 1 else x
    if given:
        choice = f.maximum(scores + f.where(f.isnan(given[0]), LOWEST, given[0]), LOWEST)
    if values["groups"] > 1:
        choice = _in_best_groups(f, choice, values)
    weights, experts, plain = [], [], []
    for _ in range(values["top_k"]):
        index = f.argmax(choice, keepdims=True)
        here = f.equal(np.arange(x.shape[1], dtype=np.int32), index)
        plain.append(f.sum(f.where(here, scores, 0.0), axes=-1, keepdims=True))
        weights.append(
            f.sum(f.where(here, scores * scale, 0.0), axes=-1, keepdims=True) if scale is not None else plain[-1]
        )
        experts.append(index)
        choice = f.where(here, -np.inf, choice)
    chosen, summed = (_joined(f, parts) for parts in (weights, weights if values["renormalize"] else plain))
    if values["normalize"] or values["renormalize"]:
        chosen = chosen / (f.sum(summed, axes=-1, keepdims=True) + TINY)
    for damaged in (logits, *given):
        chosen = chosen + f.sum(f.where(f.isnan(damaged), damaged, 0.0), axes=-1, keepdims=True)
    return chosen * values["scale"], _joined(f, experts)


def _joined(f: Any, parts: Sequence[Any]) -> Any:
    return f.concat(*parts, axis=1) if len(parts) > 1 else parts[0]


def _in_best_groups(f: Any, choice: Any, values: dict[str, Any]) -> Any:
    """The choice with -inf outside of the best groups."""
    (tokens, n), groups = choice.shape, values["groups"]
    grouped = choice.reshape((tokens, groups, n // groups))
    sums = f.max(grouped, axes=-1)
    if values["group_top"] == 2:
        sums = sums + f.max(_without(f, grouped, f.argmax(grouped, keepdims=True)), axes=-1)
    left = sums
    for _ in range(values["top_groups"]):
        left = _without(f, left, f.argmax(left, keepdims=True))
    is_out = f.greater(left, -np.inf).reshape((tokens, groups, 1))
    return f.where(is_out, -np.inf, grouped).reshape((tokens, n))


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    x, values, extra = node.inputs[0], _values(node.attrs), len(node.inputs) - 1
    scaled = bool(values.pop("expert_scale"))
    constants: dict[str, Constant] = {**values, "n": x.bounds[1], "scaled": scaled, "biased": extra > scaled}
    constants["scale"] = float(values["scale"])
    arrays = (*(ops.read(i) for i in range(1 + extra)), ops.write(0), ops.write(1))
    return ops.Build((ops.Launch(route_row, arrays, (ops.Cells(x.shape[0]),), constants),))


def _logits(rows: int, n: int, seed: int) -> ops.Array:
    """Logits whose order does not depend on rounding: steps of 1/16."""
    return (np.random.default_rng(seed).permuted(np.tile(np.arange(n), (rows, 1)), axis=1) / 16 - n / 32).astype(
        np.float32
    )


def _softmax_samples() -> Iterable[ops.Sample]:
    yield ops.Sample("7 of 33", (_logits(5, 33, 1),), {"top_k": 7})
    yield partly_active(ops.Sample("3 of 5 rows", (_logits(5, 33, 2),), {"top_k": 7}), 3)
    yield ops.Sample("1 of 1", (np.ones((1, 1), np.float32),), {"top_k": 1, "normalize": False})
    ties = np.random.default_rng(3).integers(0, 3, (6, 16)).astype(np.float32)
    ties[0], ties[1, ::2], ties[2, 3:] = -np.inf, np.nan, np.nan
    yield ops.Sample("ties and NaN", (ties,), {"top_k": 16, "normalize": False})


def _route_samples() -> Iterable[ops.Sample]:
    logits, rng = _logits(4, 24, 4), np.random.default_rng(4)
    bias = (rng.permutation(24) / 8).astype(np.float32)
    scale = rng.uniform(0.5, 2, 24).astype(np.float32)
    v3 = {"top_k": 5, "score": "sigmoid", "groups": 4, "top_groups": 2, "scale": 2.5}
    yield ops.Sample("V3", (logits, bias), v3)
    yield ops.Sample("a bias of NaN", (logits, np.where(bias == 1, np.float32(np.nan), bias)), v3)
    yield partly_active(ops.Sample("V3, 3 of 4", (logits, bias), v3), 3, fixed=(1,))
    v2 = {"top_k": 6, "groups": 4, "top_groups": 2, "group_top": 1, "normalize": False, "scale": 16.0}
    yield ops.Sample("V2", (logits,), v2)
    yield ops.Sample("scale after", (logits, scale), {"top_k": 8, "expert_scale": True})
    both = {"top_k": 8, "expert_scale": True, "renormalize": True}
    yield ops.Sample("bias and scale", (logits, bias, scale), both)


def _errors(name: str) -> Iterable[ops.ErrorSample]:
    x, b = TensorSpec((2, 8), f32), TensorSpec((8,), f32)
    yield ops.ErrorSample((x, b, b, b), {"top_k": 2}, "wanted logits")
    yield ops.ErrorSample((TensorSpec((2, 8), i32),), {"top_k": 2}, "wanted logits of f32")
    yield ops.ErrorSample((TensorSpec((2, Extent("n", 8)), f32),), {"top_k": 2}, "wanted logits of f32")
    yield ops.ErrorSample((x,), {"top_k": 9}, "got top_k 9; wanted at most the 8")
    yield ops.ErrorSample((x,), {"top_k": 0}, "wanted top_k, an integer above 0")
    if name != "moe_route":
        return
    yield ops.ErrorSample((x, TensorSpec((7,), f32)), {"top_k": 2}, r"wanted bias and scale of f32\[8\]")
    yield ops.ErrorSample((x,), {"top_k": 2, "expert_scale": True}, "wanted a last tensor")
    yield ops.ErrorSample((x, b, b), {"top_k": 2}, "wanted expert_scale=True")
    yield ops.ErrorSample((x,), {"top_k": 2, "score": "tanh"}, "wanted softmax or sigmoid")
    yield ops.ErrorSample((x,), {"top_k": 2, "scale": "2"}, "got scale '2'; wanted a scale")
    yield ops.ErrorSample((x,), {"top_k": 2, "groups": 3}, "wanted groups of equal size")
    yield ops.ErrorSample((x,), {"top_k": 2, "groups": 2, "top_groups": 3}, "wanted at most the 2 groups")
    yield ops.ErrorSample((x,), {"top_k": 3, "groups": 4}, "got top_k 3; wanted at most the 2")
    yield ops.ErrorSample((x,), {"top_k": 1, "groups": 8}, "wanted 1 or 2, at most a group")


def _op(name: str, formula: str, parameters: Parameters, samples: Any) -> ops.Op:
    return ops.Op(
        name=name,
        formula=formula,
        parameters=parameters,
        infer=lambda specs, attrs: _infer(name, specs, attrs),
        reference=_reference,
        variants=(ops.KernelVariant("one_row_per_program", ops.EVERYWHERE, _build),),
        samples=samples,
        error_samples=lambda: _errors(name),
        tolerance={"f32": 1e-12},
        flops=lambda node: (10.0 + 5.0 * node.attrs["top_k"]) * float(np.prod(node.inputs[0].bounds)),
        decompose=_decompose,
    )


OPS = {
    "moe_softmax_topk": _op(
        "moe_softmax_topk",
        "p = softmax(logits[t]); experts[t] = the top_k greatest p; weights[t] = p[experts[t]], divided by their sum",
        Parameters("logits", (TOP_K, NORMALIZE), results=2),
        _softmax_samples,
    ),
    "moe_route": _op(
        "moe_route",
        "s = score(logits[t]); e = the top_k greatest s + bias in the best groups; weights[t] = scale s[e] / sum s[e]",
        Parameters("logits *others", _ROUTE, results=2),
        _route_samples,
    ),
}
