"""affine_matmul and minifloat_matmul: y[t, r] = sum_c x[t, c] w[r, c] of weights [n, k] in codes with scales (weights.py).

x is f32, f16 or bf16 [T, k]; products are added in f32. The variant for up to some rows of x gives each lane units of codes of a
weight's row: x is first put in the units' order, so that lanes read it side by side. For more rows, the weights become f32 once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from camshaft.dtypes import bf16, f16, f32
from camshaft.extent import Extent
from camshaft.lang import Constant
from camshaft.ops import op as ops
from camshaft.ops.codes import samples
from camshaft.ops.codes.dequantize import FormOf, specs_of
from camshaft.ops.codes.unit_kernels import in_units, rows_by_unit
from camshaft.ops.codes.weights import AFFINE, MINIFLOAT, Form, affine_form, minifloat_form, numbers_launch, weights_of
from camshaft.ops.matmul import made_weights
from camshaft.ops.parameters import Parameters
from camshaft.ops.spec import TensorSpec

# Rows of x that a program multiplies by the same codes, and its sums: 8 rows of x at once, or 16 sums, took longer (Zen 5).
MOST_TOKENS, MOST_SUMS = 4, 8
FormOfNode = Callable[[ops.NodeSpec], Form]


# --- the variants ------------------------------------------------------------------------------------------------------
def _form(name: str, form_of: FormOf, node: ops.NodeSpec) -> Form:
    found: Form | None = node.derived.get("form")
    if found is None:
        found = node.derived["form"] = form_of(name, node.inputs[1:], node.attrs)
    return found


def _in_units_only(form_of: FormOfNode, node: ops.NodeSpec, target: ops.Target) -> str | None:
    form = form_of(node)
    if form.columns % form.kind.unit:
        return f"{form.columns} columns are not units of {form.kind.unit} codes"
    many = form.group < form.columns and form.group % form.kind.unit
    return f"groups of {form.group} are not units of {form.kind.unit} codes" if many else None


def _build_units(form_of: FormOfNode, node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    form, x = form_of(node), node.inputs[0]
    unit, most = form.kind.unit, x.bounds[0]
    units, columns = form.columns // unit, min(most, MOST_TOKENS)
    rows = min(max(1, MOST_SUMS // columns), 4)
    scratch = TensorSpec((x.shape[0], unit, units), f32), TensorSpec((x.shape[0], units), f32)
    order: dict[str, Constant] = {"units": units, "unit": unit}
    first = ops.Launch(
        in_units, (ops.read(0), ops.scratch(0, "write"), ops.scratch(1, "write")), (ops.Cells(x.shape[0]),), order
    )
    constants: dict[str, Constant] = {"n": form.n, "rows": rows, "columns": columns, "bound": most, "units": units}
    arrays = ops.scratch(0, "read"), ops.scratch(1, "read"), *form.operands(1, node.inputs[1]), ops.write(0)
    grid = ops.Cells(form.n, rows), ops.Cells(x.shape[0], columns)
    active = (x.shape[0],) if isinstance(x.shape[0], Extent) else ()
    return ops.Build((first, ops.Launch(rows_by_unit, arrays, grid, constants | form.constants, active)), scratch)


def _units_cost(form_of: FormOfNode, node: ops.NodeSpec, target: ops.Target) -> float:
    form, tokens = form_of(node), node.inputs[0].bounds[0]
    # Measured on one Zen 5 core: u4 0.04, 0.09 and 0.20 ns per weight for 1, 4 and 8 rows, e4m3 0.11, 0.15 and 0.30
    unpacking = 0.1 if form.kind.is_float else 0.035
    return form.n * form.columns * (unpacking * -(-tokens // MOST_TOKENS) + 0.017 * tokens)


def _product(form_of: FormOfNode, node: ops.NodeSpec) -> ops.NodeSpec:
    """The product of x and f32 weights."""
    form = form_of(node)
    specs = node.inputs[0], TensorSpec((form.n, form.columns), f32)
    return ops.NodeSpec(specs, node.outputs, {"transpose_b": True})


def _many_rows_only(form_of: FormOfNode, node: ops.NodeSpec, target: ops.Target) -> str | None:
    few = node.inputs[0].bounds[0] <= MOST_TOKENS and _in_units_only(form_of, node, target) is None
    return f"at most {MOST_TOKENS} rows of x" if few else None


def _unpack(form_of: FormOfNode, node: ops.NodeSpec, target: ops.Target) -> ops.Launch:
    form = form_of(node)
    return numbers_launch(form, form.operands(1, node.inputs[1]), ops.scratch(0, "write", (form.n, form.columns)))


# --- the ops -----------------------------------------------------------------------------------------------------------
def _matmul(name: str, formula: str, form_of: FormOf, parameters: Parameters, **fields: Any) -> ops.Op:
    def infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
        ops.expect(len(specs) > 0, name, specs, "x [T, k], codes and scales")
        form, x = form_of(name, specs[1:], attrs), specs[0]
        fits = x.is_plain and x.dtype in (f32, f16, bf16) and len(x.shape) == 2 and x.shape[1] == form.columns
        fits = fits and 0 not in x.bounds
        ops.expect(fits, name, x, f"x [T, {form.columns}] of f32, f16 or bf16, T of 1 or more")
        return (TensorSpec((x.shape[0], form.n), f32),)

    def reference(arrays: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
        form = form_of(name, specs_of(arrays[1:]), attrs)
        return (arrays[0].astype(np.float64) @ weights_of(arrays[1:], form).T,)

    def decompose(f: Any, x: Any, *weights: Any, **attrs: Any) -> Any:
        dequantize = getattr(f, name.replace("matmul", "dequantize"))
        return f.matmul(x, dequantize(*weights, **attrs), transpose_b=True)

    of = partial(_form, name, form_of)
    return ops.Op(
        name=name,
        formula=formula,
        parameters=parameters,
        infer=infer,
        reference=reference,
        variants=(
            ops.KernelVariant(
                "units",
                ops.EVERYWHERE,
                partial(_build_units, of),
                partial(_in_units_only, of),
                partial(_units_cost, of),
            ),
            *made_weights.variants(
                "numbers", partial(_product, of), partial(_unpack, of), partial(_many_rows_only, of), 0.2
            ),
        ),
        decompose=decompose,
        tolerance={"f32": 1e-11},
        flops=lambda node: 2.0 * node.inputs[0].bounds[0] * of(node).n * of(node).columns,
        **fields,
    )


_X = (TensorSpec((2, 64), f32),)


def _errors(kind: Callable[..., Iterable[ops.ErrorSample]]) -> Iterable[ops.ErrorSample]:
    yield from kind(_X)
    _, codes, *scales = next(e.specs for e in kind(_X) if len(e.specs) > 2 and "group_size" in e.attrs)
    yield ops.ErrorSample((TensorSpec((2, 65), f32), codes, *scales), {}, r"wanted x \[T, 64\]")


OPS = {
    row.name: row
    for row in (
        _matmul(
            "affine_matmul",
            "y[t, r] = sum_c x[t, c] (code[r, c] scale[r, g] + bias[r, g]), g = c // group_size",
            affine_form,
            Parameters("x codes scales biases", AFFINE),
            samples=lambda: samples.of_products("affine"),
            error_samples=lambda: _errors(samples.affine_errors),
        ),
        _matmul(
            "minifloat_matmul",
            "y[t, r] = sum_c x[t, c] minifloat_dequantize(codes, scales, global_scale)[r, c]",
            minifloat_form,
            Parameters("x codes scales *global_scale", MINIFLOAT),
            samples=lambda: samples.of_products("minifloat"),
            error_samples=lambda: _errors(samples.minifloat_errors),
        ),
    )
}
