"""matmul: out[.., i, j] = sum_k a[.., i, k] b[.., k, j] of f32, f16, bf16 in f32; of f64; of i32, i64, u64.

With `transpose_b`, b is [.., n, k]. The attribute `to` rounds f32 sums once when they are stored. `precision` "bf16x3" lets a
product of f32 by f32 be computed as three products of bf16, with errors of about 2^-16 of each product (blocks/bf16_products.py).

In activation mode 'q8' rules round what products of many rows multiply. With bf16 weights, activations become bf16 once per
tensor, as in llama.cpp: a product of two bf16 numbers is exact in f32, and instructions that multiply pairs of them do twice the
work of f32's. With f16 weights the product becomes rounded_matmul.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from camshaft.dtypes import DType, bf16, f32
from camshaft.extent import Extent
from camshaft.ops import op as ops
from camshaft.ops.checks import TO_TOLERANCE, to_dtype
from camshaft.ops.gradient import expect_fixed
from camshaft.ops.matmul.blas import BLAS, NUMPY
from camshaft.ops.matmul.blocks.bf16 import BF16_DOT, MATRIX_UNIT
from camshaft.ops.matmul.blocks.bf16_panels import UNIT_PANELS
from camshaft.ops.matmul.blocks.bf16_products import BF16_PRODUCTS
from camshaft.ops.matmul.blocks.block_sizes import least_part
from camshaft.ops.matmul.blocks.blocked import BLOCKED
from camshaft.ops.matmul.lanes import LANES
from camshaft.ops.matmul.samples import error_samples, samples
from camshaft.ops.matmul.shapes import DTYPES, OWN_DTYPES, as_matrices, sizes_of
from camshaft.ops.matmul.skinny import SKINNY
from camshaft.ops.matmul.tile import TILE
from camshaft.ops.matmul.tiled import TILED
from camshaft.ops.parameters import TO, Attribute, Parameters
from camshaft.ops.rule import Builder, Match, Rule, Stage, Use, Uses
from camshaft.ops.spec import TensorSpec, bound

# Up to so many rows the weights' bandwidth limits a product, and f32 activations cost nothing (single tokens, logits).
FEW_ROWS = 64
# bf16x3: three products of bf16 may stand for one of f32. The gradients of such a product have it too.
PRECISION = Attribute("precision", "str", "f32")
# Ops that can store their first result rounded (attribute `to`).
MAKERS = ("rms_norm", "residual_norm", "silu_multiply")


def infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs, op: str = "matmul") -> tuple[TensorSpec, ...]:
    """out [.., m, n] in f32 or, rounded, in the dtype of the attribute `to`; in f64, i32, i64 or u64 if both operands are. As in
    NumPy, the result has no axis for a vector.

    ShapeError, as from `op`, for other ranks, dtypes, depths that differ, batches that do not broadcast.
    """
    ops.expect(len(specs) == 2, op, specs, "a [.., m, k] and b [.., k, n]")
    own = specs[0].dtype if specs[0].dtype == specs[1].dtype and specs[0].dtype in OWN_DTYPES else None
    for spec in specs:
        fits = len(spec.shape) >= 1 and spec.is_plain and spec.dtype in (own, *DTYPES)
        ops.expect(fits, op, spec, "f32, f16 or bf16 [.., r, c], or both f64, i32, i64 or u64")
    precision = attrs.get("precision", PRECISION.default)
    ops.expect(precision in ("f32", "bf16x3"), op, f"precision {precision!r}", "a precision of f32 or bf16x3")
    only = precision == "f32" or all(spec.dtype == f32 for spec in specs)
    ops.expect(only, op, specs, f"f32 by f32 for precision {precision}")
    transposed = attrs.get("transpose_b", False)
    ops.expect(isinstance(transposed, bool), op, transposed, "transpose_b True or False")
    a, b = as_matrices(specs, transposed)
    fixed = (*a.shape[:-2], a.shape[-1], *b.shape)
    ops.expect(not any(isinstance(d, Extent) for d in fixed), op, specs, "an Extent only as the rows of a")
    depth, columns = (b.shape[-1], b.shape[-2]) if transposed else (b.shape[-2], b.shape[-1])
    order = "[.., n, k]" if transposed else "[.., k, n]"
    ops.expect(depth == a.shape[-1], op, specs, f"b {order} with k = {a.shape[-1]}")
    ops.expect(min(a.bounds + b.bounds) > 0, op, specs, "no empty axis")
    try:
        batch = np.broadcast_shapes(a.bounds[:-2], b.bounds[:-2])
    except ValueError:
        batch = None
    ops.expect(batch is not None, op, specs, "batch axes that broadcast")
    shape = (*(batch or ()), *a.shape[-2:-1][: len(specs[0].shape) - 1], *(columns,)[: len(specs[1].shape) - 1])
    if own is not None:
        ops.expect("to" not in attrs, op, f"to {attrs.get('to')!r}", f"no `to` beside {own.name}")
        return (TensorSpec(shape, own),)
    return (to_dtype(op, TensorSpec(shape, f32), attrs),)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    wide = np.longdouble if inputs[0].dtype == np.float64 else np.float64
    a, b = (x if x.dtype.kind in "iu" else x.astype(wide) for x in inputs)
    right = np.swapaxes(b, -1, -2) if attrs.get("transpose_b", False) and b.ndim > 1 else b
    with np.errstate(over="ignore"):
        return (np.asarray(np.matmul(a, right)),)


def is_linear(use: Use, dtype: DType) -> bool:
    """Returns whether a use multiplies many rows of f32 by weights [n, k] of a dtype."""
    if use.op.name != "matmul" or not use.attrs.get("transpose_b", False):
        return False
    x, w = use.inputs[0].spec, use.inputs[1].spec
    return bool(x.dtype == f32 and w.dtype == dtype and len(x.shape) == 2 and bound(x.shape[0]) > FEW_ROWS)


def _rounded_result(use: Use, uses: Uses) -> Match | None:
    """Makes an op store its first result as bf16 if only bf16 products on the same device read it."""
    y = use.outputs[0]
    readers = uses.readers(y)
    alone = all(is_linear(n, bf16) and n.inputs[0] is y and n.device == use.device for n in readers)
    if not readers or not alone or uses.is_output(y):
        return None

    def build(new: Builder) -> Mapping[Any, Any]:
        made = new.apply(use.op, use.inputs, {**use.attrs, "to": "bf16"}, use.name)
        return dict(zip(use.outputs, made, strict=True))

    return Match(build)


def _rounded_activations(use: Use, uses: Uses) -> Match | None:
    """Makes matmul(x, w bf16) of many rows read x cast to bf16, with one cast per x and device."""
    if not is_linear(use, bf16):
        return None
    x, w = use.inputs

    def build(new: Builder) -> Mapping[Any, Any]:
        (rounded,) = new.once("cast", (x,), {"to": "bf16"}, f"{x.name}.bf16")
        return dict(zip(use.outputs, new.apply(use.op, (rounded, w), use.attrs, use.name), strict=True))

    return Match(build)


def _first_use(node: ops.NodeSpec, variant: ops.KernelVariant | None) -> ops.KernelVariant | None:
    """`lanes` adds an element's products in the order of k, from 0 on. So do these where b is [k, n], `blocked` where the depth
    is one part, and of f32 there are no others on SIMD."""
    s = sizes_of(node)
    if variant is None:
        floats = all(spec.dtype == f32 for spec in (*node.inputs, *node.outputs))
        return LANES if floats and not s.transposed and s.columns > 1 and s.depth <= least_part(s) else None
    in_order = {
        TILED.name: True,
        SKINNY.name: s.columns > 1,
        BLOCKED.name: s.depth <= variant.values.get("part", least_part(s)),
    }
    return LANES if in_order.get(variant.name, False) and not s.transposed else None


def _turned(f: Any, x: Any) -> Any:
    """x with its last two axes exchanged."""
    return f.transpose(x, axes=(*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def _gradient_of(
    f: Any, x: Any, dtype: DType, a: Any, b: Any, transpose_b: bool = False, precision: str = "f32"
) -> Any:
    """a b in the shape of x and this dtype."""
    attrs = {} if dtype in OWN_DTYPES else {"to": dtype.name}
    if a.dtype == b.dtype == f32 and precision != "f32":
        attrs["precision"] = precision
    made = f.matmul(a, b, transpose_b=transpose_b, **attrs)
    if x.ndim == 1 and made.ndim > 2:
        made = f.sum(made, axes=tuple(range(made.ndim - 2)))
    return made.reshape(x.shape) if x.ndim == 1 else made


def gradients(
    f: Any,
    dy: Any,
    y: Any,
    a: Any,
    b: Any,
    dtypes: tuple[DType, DType],
    transpose_b: bool = False,
    precision: str = "f32",
) -> tuple[Any, Any]:
    """Functions of dy b^T and a^T dy in these dtypes, summed in f32 or wider. A vector is a matrix of one row or column."""
    x = a if a.ndim > 1 else a.reshape((1, *a.shape))
    w = b if b.ndim > 1 else b.reshape((1, *b.shape) if transpose_b else (*b.shape, 1))
    rows, columns = x.shape[-2], w.shape[-2 if transpose_b else -1]
    dy = dy.reshape((*y.shape[: y.ndim - (a.ndim > 1) - (b.ndim > 1)], rows, columns))

    def of_b() -> Any:
        expect_fixed((rows,))
        left, right = x, dy
        if w.ndim == 2 and dy.ndim > 2 and x.ndim == dy.ndim:  # one product for the whole batch
            left, right = x.reshape((-1, x.shape[-1])), dy.reshape((-1, columns))
        if transpose_b:
            left, right = right, left
        # out = left^T right; of low-rank factors it is less to turn right, which has few columns, and the result
        (depth, m), n = left.spec.bounds[-2:], right.spec.bounds[-1]
        if b.ndim > 1 and left.ndim == 2 and depth * m > depth * n + m * n:
            return _turned(f, _gradient_of(f, b, dtypes[1], _turned(f, right), left, precision=precision))
        return _gradient_of(f, b, dtypes[1], _turned(f, left), right, precision=precision)

    return (lambda: _gradient_of(f, a, dtypes[0], dy, w, not transpose_b, precision)), of_b


def _vjp(
    f: Any, dy: Any, y: Any, a: Any, b: Any, transpose_b: bool = False, to: str = "f32", precision: str = "f32"
) -> tuple[Any, Any]:
    return gradients(f, dy, y, a, b, (a.dtype, b.dtype), transpose_b, precision)


OP = ops.Op(
    name="matmul",
    formula="out[.., i, j] = sum_k a[.., i, k] b[.., k, j]",
    parameters=Parameters("a b", (Attribute("transpose_b", "bool", False), TO, PRECISION), out_by_position=True),
    infer=infer,
    reference=_reference,
    variants=(LANES, TILED, BLOCKED, BF16_DOT, UNIT_PANELS, BF16_PRODUCTS, MATRIX_UNIT, SKINNY, TILE, BLAS, NUMPY),
    samples=samples,
    error_samples=error_samples,
    tolerance=TO_TOLERANCE | {"f64": 1e-29},
    flops=lambda node: 2.0 * sizes_of(node).multiply_adds,
    packs=(0, 1),
    first_use=_first_use,
    vjp=_vjp,
    rules=(
        Rule(Stage.ROUNDED_RESULT, MAKERS, _rounded_result),
        Rule(Stage.ROUND, ("matmul",), _rounded_activations),
    ),
)
