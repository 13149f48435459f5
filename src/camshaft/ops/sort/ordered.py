"""argsort, sort and top_k along an axis: one table."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from camshaft.ops import op as ops
from camshaft.ops.gradient import OF_INTEGERS, zeros
from camshaft.ops.sort.definition import Ordered, infer, reference
from camshaft.ops.sort.samples import error_samples, samples
from camshaft.ops.sort.variants import variants


def _sort_vjp(f: Any, dy: Any, y: Any, x: Any, axis: int = -1, descending: bool = False) -> Any:
    return f.scatter_add(zeros(f, x), f.argsort(x, axis=axis, descending=descending), dy, axis=axis)


def _top_k_vjp(f: Any, dys: Any, ys: Any, x: Any, axis: int = -1, **others: Any) -> Any:
    return f.scatter_add(zeros(f, x), ys[1], dys[0], axis=axis)


_VJPS: dict[str, Callable[..., Any] | ops.NoGradient] = {"argsort": OF_INTEGERS, "sort": _sort_vjp, "top_k": _top_k_vjp}


def _op(row: Ordered) -> ops.Op:
    return ops.Op(
        name=row.name,
        formula=row.text,
        parameters=row.parameters,
        infer=lambda specs, attrs: infer(row, specs, attrs),
        reference=lambda inputs, attrs: reference(row, inputs, attrs),
        variants=variants(row),
        samples=lambda: samples(row),
        error_samples=lambda: error_samples(row),
        tolerance={"f32": 0.0, "f64": 0.0, "f16": 0.0, "bf16": 0.0},
        flops=lambda node: float(prod(node.inputs[0].bounds)),
        vjp=_VJPS[row.name],
    )


ROWS = (
    Ordered("argsort", "y[i] = the index of the element that i others precede; stable, NaN greatest", ("places",)),
    Ordered("sort", "y[i] = the element that i others precede; NaN greatest", ("values",)),
    Ordered(
        "top_k",
        "y, i = the k greatest (least) elements and their indexes; ties to the smaller index, NaN greatest",
        ("values", "places"),
        True,
    ),
)
OPS = {row.name: _op(row) for row in ROWS}
