"""unpack_codes, affine_dequantize and minifloat_dequantize: the numbers of codes, alone or with their scales."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from camshaft.dtypes import f32, u32
from camshaft.ops import op as ops
from camshaft.ops.checks import TO_TOLERANCE, to_dtype
from camshaft.ops.codes import samples
from camshaft.ops.codes.code import CODES, numbers, unpacked
from camshaft.ops.codes.weights import (
    AFFINE,
    MINIFLOAT,
    Form,
    affine_form,
    expect_codes,
    minifloat_form,
    numbers_launch,
    weights_of,
)
from camshaft.ops.parameters import TO, Attribute, Parameters
from camshaft.ops.spec import TensorSpec

FormOf = Callable[[str, Sequence[TensorSpec], ops.Attrs], Form]
TOLERANCE = TO_TOLERANCE | {"f32": 1e-13}


def specs_of(arrays: Sequence[ops.Array]) -> tuple[TensorSpec, ...]:
    """The specs of plain arrays."""
    return tuple(TensorSpec(a.shape, samples.dtype_of(a)) for a in arrays)


def _dequantize(
    name: str, formula: str, form_of: FormOf, parameters: Parameters, decompose: Callable[..., Any], **fields: Any
) -> ops.Op:
    def infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
        form = form_of(name, specs, attrs)
        return (to_dtype(name, TensorSpec((form.n, form.columns), f32), attrs),)

    def reference(arrays: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
        return (weights_of(arrays, form_of(name, specs_of(arrays), attrs)),)

    def build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
        form = form_of(name, node.inputs, node.attrs)
        arrays = form.operands(0, node.inputs[0])[: len(node.inputs)]
        return ops.Build((numbers_launch(form, arrays, ops.write(0)),))

    return ops.Op(
        name=name,
        formula=formula,
        parameters=parameters,
        infer=infer,
        reference=fields.pop("reference", reference),
        variants=(ops.KernelVariant("numbers", ops.EVERYWHERE, build),),
        decompose=decompose,
        tolerance=TOLERANCE,
        flops=lambda node: 2.0 * float(np.prod(node.outputs[0].bounds)),
        **fields,
    )


# --- unpack_codes ------------------------------------------------------------------------------------------------------
def _codes_form(op: str, specs: Sequence[TensorSpec], attrs: ops.Attrs) -> Form:
    ops.expect(len(specs) == 1, op, tuple(specs), "one tensor of codes")
    name = attrs.get("code", "u4")
    ops.expect(name in CODES, op, f"code {name!r}", f"a code of {', '.join(CODES)}")
    columns = expect_codes(op, specs[0], CODES[name])
    return Form(name, specs[0].bounds[0], columns, columns)


def _unpacked(arrays: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    kind = CODES[attrs.get("code", "u4")]
    return (numbers(unpacked(arrays[0], kind), kind),)


def _unpack_errors() -> Iterable[ops.ErrorSample]:
    codes = TensorSpec((2, 3), u32)
    yield ops.ErrorSample((codes, codes), {}, "one tensor of codes")
    yield ops.ErrorSample((codes,), {"code": "u7"}, "wanted a code of u2, u3")
    yield ops.ErrorSample((TensorSpec((2, 3), f32),), {}, "wanted codes")
    yield ops.ErrorSample((codes,), {"code": "u5"}, "whole codes of 5 bits")


# --- affine ------------------------------------------------------------------------------------------------------------
def by_groups(values: Any, group: int) -> Any:
    """[n, k] as [n, groups, group]."""
    n, k = values.shape
    return values.reshape((n, k // group, group))


def of_groups(f: Any, values: Any) -> Any:
    """Scales or biases [n, groups] as f32 [n, groups, 1]."""
    wide = values if values.dtype == f32 else f.cast(values, to="f32")
    return wide.reshape((*values.shape, 1))


def rounded_to(f: Any, values: Any, to: str) -> Any:
    """f32 values in the dtype that `to` names."""
    return values if to == "f32" else f.cast(values, to=to)


def _affine_parts(
    f: Any, codes: Any, scales: Any, biases: Any, bits: int = 4, group_size: int = 64, to: str = "f32"
) -> Any:
    numbers = f.unpack_codes(codes, code=f"u{bits}")
    found = by_groups(numbers, group_size) * of_groups(f, scales) + of_groups(f, biases)
    return rounded_to(f, found.reshape(numbers.shape), to)


# --- minifloat ---------------------------------------------------------------------------------------------------------
def _minifloat_parts(f: Any, codes: Any, scales: Any, *factor: Any, to: str = "f32", **attrs: Any) -> Any:
    form = minifloat_form("minifloat_dequantize", [t.spec for t in (codes, scales, *factor)], attrs)
    numbers = f.unpack_codes(codes, code=form.code)
    wide = f.unpack_codes(scales, code=form.scale_code) if form.scale_code else of_groups(f, scales)
    rows, columns = np.arange(form.n) // form.group_rows, np.arange(form.columns) // form.group
    by_row = f.gather(wide.reshape(form.scales_shape), rows.astype(np.int32))
    spread = f.transpose(f.gather(f.transpose(by_row), columns.astype(np.int32)))
    found = numbers * spread
    return rounded_to(f, found * factor[0] if factor else found, to)


OPS = {
    row.name: row
    for row in (
        _dequantize(
            "unpack_codes",
            "y[r, c] = the number that code c of row r stands for",
            _codes_form,
            Parameters("codes", (Attribute("code", "str", "u4"), TO)),
            None,  # type: ignore[arg-type]
            reference=_unpacked,
            samples=samples.of_codes,
            error_samples=_unpack_errors,
            vjp=ops.NoGradient("its input has codes, not numbers"),
        ),
        _dequantize(
            "affine_dequantize",
            "y[r, c] = code[r, c] scale[r, g] + bias[r, g], g = c // group_size",
            affine_form,
            Parameters("codes scales biases", (*AFFINE, TO)),
            _affine_parts,
            samples=lambda: samples.of_weights("affine"),
            error_samples=lambda: samples.affine_errors(()),
        ),
        _dequantize(
            "minifloat_dequantize",
            "y[r, c] = number(code[r, c]) scale[r // group_rows, c // group_size] global_scale",
            minifloat_form,
            Parameters("codes scales *global_scale", (*MINIFLOAT, TO)),
            _minifloat_parts,
            samples=lambda: samples.of_weights("minifloat"),
            error_samples=lambda: samples.minifloat_errors(()),
        ),
    )
}
