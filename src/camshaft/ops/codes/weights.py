"""Weights of codes with scales: their shape rule, how kernels read them, and the kernel that gives their numbers.

Two kinds of weights [n, k] serve the formats of files (repack.py):
    affine:     w[r, c] = code[r, c] scale[r, c // group] + bias[r, c // group]
    minifloat:  w[r, c] = number(code[r, c]) scale[r // group_rows, c // group] global_scale
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from camshaft.dtypes import DType, bf16, f16, f32, u8, u32
from camshaft.extent import Extent
from camshaft.lang import Array, Constant, Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.codes.code import CODES, FLOATS, WORD, Code, code_at, number, numbers, unpacked
from camshaft.ops.kernels import blocks
from camshaft.ops.parameters import Attribute
from camshaft.ops.spec import TensorSpec

SCALES = (f32, f16, bf16)
# The codes that scales may have, besides numbers.
SCALE_CODES = ("e4m3", "e8m0")
BITS, GROUP_SIZE = Attribute("bits", "int", 4), Attribute("group_size", "int", 64)
AFFINE = (BITS, GROUP_SIZE)
MINIFLOAT = (
    Attribute("code", "str", "e4m3"),
    Attribute("group_size", "int | None", None),
    Attribute("group_rows", "int", 1),
    Attribute("scales_as", "str | None", None),
)


@dataclass(frozen=True)
class Form:
    """The layout of quantized weights [n, k]: `group` columns and `group_rows` rows have one scale. `scale_code` is empty where
    scales are numbers. The last operand is `biases` of the scales' shape, `factor` of one element, or there is none."""

    code: str
    n: int
    columns: int
    group: int
    group_rows: int = 1
    scale_code: str = ""
    last: str = ""

    @property
    def constants(self) -> dict[str, Constant]:
        """The kernel constants of `Weights`."""
        return {
            "code": self.code,
            "group": self.group,
            "group_rows": self.group_rows,
            "scale_code": self.scale_code,
            "last": self.last,
        }

    @property
    def kind(self) -> Code:
        return CODES[self.code]

    @property
    def scales_shape(self) -> tuple[int, int]:
        """The shape of scales and biases."""
        return -(-self.n // self.group_rows), -(-self.columns // self.group)

    def operands(self, first: int, codes: TensorSpec) -> tuple[ops.Operand, ...]:
        """The operands of codes, scales and the last, from input `first` on. Codes are u32 where rows are whole words."""
        words = ops.Operand("input", first, shape=(self.n, self.columns * self.kind.bits // WORD), dtype=u32)
        whole = self.columns * self.kind.bits % WORD == 0
        others = 1 + bool(self.last)
        return (words if whole else ops.read(first), *(ops.read(first + 1 + i) for i in range(others)))


# --- shape rules -------------------------------------------------------------------------------------------------------
def expect_codes(op: str, codes: TensorSpec, form: Code) -> int:
    """Returns the number of columns of codes [n, k]. ShapeError for other dtypes, ranks, and rows that are not whole."""
    fits = codes.is_plain and codes.dtype in (u8, u32) and len(codes.shape) == 2 and 0 not in codes.bounds
    fits = fits and not any(isinstance(d, Extent) for d in codes.shape)
    ops.expect(fits, op, codes, "codes [n, k bits / 32] of u32, or [n, k bits / 8] of u8")
    bits = codes.bounds[1] * codes.parts[0].dtype.bits
    ops.expect(bits % form.bits == 0, op, codes, f"rows of whole codes of {form.bits} bits")
    columns = bits // form.bits
    is_whole = 8 % form.bits == 0 or columns % form.unit == 0
    ops.expect(is_whole, op, codes, f"{form.name} in units of {form.unit} codes")
    return columns


def affine_form(op: str, specs: Sequence[TensorSpec], attrs: ops.Attrs) -> Form:
    """The form of codes, scales and biases. ShapeError for what they may not be."""
    ops.expect(len(specs) == 3, op, tuple(specs), "codes, scales and biases")
    bits, group = attrs.get("bits", 4), attrs.get("group_size", 64)
    ops.expect(f"u{bits}" in CODES, op, f"bits {bits!r}", "bits of 2, 3, 4, 5, 6 or 8")
    code = CODES[f"u{bits}"]
    columns = expect_codes(op, specs[0], code)
    expect_group(op, group, columns)
    form = Form(code.name, specs[0].bounds[0], columns, group, last="biases")
    for name, spec in zip(("scales", "biases"), specs[1:], strict=True):
        _expect_scales(op, name, spec, form, SCALES)
    return form


def expect_group(op: str, group: object, columns: int) -> None:
    """ShapeError unless groups of whole units divide rows of `columns` columns."""
    fits = isinstance(group, int) and group > 0 and columns % group == 0
    ops.expect(fits, op, f"group_size {group!r}", f"group_size that divides {columns} columns")


def minifloat_form(op: str, specs: Sequence[TensorSpec], attrs: ops.Attrs) -> Form:
    """The form of codes, scales and perhaps a global scale. ShapeError for what they may not be."""
    ops.expect(len(specs) in (2, 3), op, tuple(specs), "codes, scales and perhaps a global scale")
    name, coded = attrs.get("code", "e4m3"), attrs.get("scales_as")
    ops.expect(name in FLOATS, op, f"code {name!r}", f"a code of {', '.join(FLOATS)}")
    known = coded is None or coded in SCALE_CODES
    ops.expect(known, op, f"scales_as {coded!r}", f"scales_as {', '.join(SCALE_CODES)} or None")
    columns, (n, _) = expect_codes(op, specs[0], CODES[name]), specs[0].bounds
    group, rows = attrs.get("group_size"), attrs.get("group_rows", 1)
    group = columns if group is None else group
    if specs[1].shape == (1, 1):
        group, rows = columns, n
    for label, size in (("group_size", group), ("group_rows", rows)):
        ops.expect(isinstance(size, int) and size > 0, op, f"{label} {size!r}", f"{label} of 1 or more")
    last = "factor" if len(specs) == 3 else ""
    form = Form(name, n, columns, min(group, columns), min(rows, n), coded or "", last)
    _expect_scales(op, "scales", specs[1], form, (u8,) if coded else SCALES)
    if last:
        fits = specs[2].is_plain and specs[2].dtype == f32 and specs[2].bounds == (1,)
        ops.expect(fits, op, specs[2], "global_scale [1] of f32")
    return form


def _expect_scales(op: str, name: str, spec: TensorSpec, form: Form, dtypes: Sequence[DType]) -> None:
    shape, names = form.scales_shape, " or ".join(d.name for d in dtypes)
    fits = spec.is_plain and spec.dtype in dtypes and spec.shape == shape
    ops.expect(fits, op, spec, f"{name} {list(shape)} of {names}")


# --- in kernels --------------------------------------------------------------------------------------------------------
class Weights:
    """A kernel's weights: the arrays of `Form.operands` and the constants of `Form.constants`."""

    def __init__(
        self, k: Tracer, arrays: Sequence[Array], *, code: str, group: int, group_rows: int, scale_code: str, last: str
    ) -> None:
        self.k, self.kind, self.group, self.group_rows = k, CODES[code], group, group_rows
        self.codes, self.scales = arrays[0], arrays[1] if len(arrays) > 1 else None
        self.scale_kind = CODES[scale_code] if scale_code else None
        self.biases = arrays[2] if last == "biases" else None
        self.factor = arrays[2][0] if last == "factor" else None

    def scale(self, row: Value, c: Value, per: int = 1) -> tuple[Value, Value | None]:
        """The scale, and the bias if there is one, of column c `per`, in a row; c varies by lane."""
        assert self.scales is not None
        scale = self._of_group(self.scales, row, c, per)
        if self.scale_kind is not None:
            scale = number(self.k, scale.to(u32), self.scale_kind)
        return scale, None if self.biases is None else self._of_group(self.biases, row, c, per)

    def _of_group(self, array: Array, row: Value, c: Value, per: int) -> Value:
        group, line = self.group // per, row // self.group_rows if self.group_rows > 1 else row
        if array.shape[1] == 1:
            return array[line, 0]
        if group & (group - 1):
            return self.k.gather(array, line, c // group)
        return array[line, c // group]

    def at(self, row: Value, c: Value) -> Value:
        """The number at column c, which varies by lane, of a row."""
        found = number(self.k, code_at(self.k, self.codes, row, c, self.kind), self.kind)
        if self.scales is None:
            return found
        scale, bias = self.scale(row, c)
        found = found * scale if bias is None else self.k.fma(found, scale, bias)
        return found if self.factor is None else found * self.factor


@kernel
def numbers_of_codes(k: Tracer, *arrays: Array, columns: int, block: int, **form: Any) -> None:
    # y[r, c] = w[r, c]
    row, weights = k.program(0), Weights(k, arrays[:-1], **form)
    first = k.program(1) * block
    for c in k.lanes(first, k.minimum(first + block, columns)) if columns > block else k.lanes(columns):
        arrays[-1][row, c] = weights.at(row, c)


def numbers_launch(form: Form, arrays: tuple[ops.Operand, ...], out: ops.Operand) -> ops.Launch:
    """The launch that writes all numbers [n, k]."""
    block = blocks.even_block(form.columns)
    constants: dict[str, Constant] = {"columns": form.columns, "block": block, **form.constants}
    grid = ops.Cells(form.n), ops.Cells(form.columns, per=block)
    return ops.Launch(numbers_of_codes, (*arrays, out), grid, constants)


# --- in NumPy ----------------------------------------------------------------------------------------------------------
def weights_of(arrays: Sequence[ops.Array], form: Form) -> ops.Array:
    """float64 [n, k]: the numbers of codes, scales and the last operand."""
    codes, scales, *last = arrays
    found = numbers(unpacked(codes, form.kind), form.kind)
    scale = numbers(scales, CODES[form.scale_code]) if form.scale_code else scales.astype(np.float64)
    found = found * _spread(scale, form)
    if form.last == "biases":
        return np.asarray(found + _spread(last[0].astype(np.float64), form))
    return np.asarray(found * last[0].astype(np.float64)) if last else found


def _spread(scales: ops.Array, form: Form) -> ops.Array:
    wide = np.repeat(np.repeat(scales, form.group_rows, 0), form.group, 1)
    return wide[: form.n, : form.columns]
