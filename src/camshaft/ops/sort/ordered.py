"""argsort, sort and top_k along an axis: one table."""

from __future__ import annotations

from math import prod

from camshaft.ops import op as ops
from camshaft.ops.sort.definition import Ordered, infer, reference
from camshaft.ops.sort.samples import error_samples, samples
from camshaft.ops.sort.variants import variants


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
