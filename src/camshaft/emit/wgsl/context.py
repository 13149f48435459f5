"""WgslContext: a kernel's WGSL while it is written. Literals and conversions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from camshaft.dtypes import DType, f32, i64, u32
from camshaft.emit.c_family import values
from camshaft.emit.c_family.context import Context
from camshaft.emit.c_family.text import ATOM, LOOSE, Text, call, fill
from camshaft.emit.wgsl.layout import WgslTarget
from camshaft.emit.wgsl.storage import WgslArray, WgslScratch
from camshaft.emit.wgsl.uniform import NonUniform, below_half
from camshaft.lang import ir
from camshaft.lang.simt.form import SimtKernel

# Dtypes that have another dtype's type in WGSL, for names of helpers.
_TYPED_AS = {"i64": "i32", "f16": "f32", "bf16": "f32"}
# Integers narrower than a word: their values are words, cut to their bits.
_CUT = {"i8": "extractBits({0}, 0u, 8u)", "i16": "extractBits({0}, 0u, 16u)", "u8": "{0} & 255u", "u16": "{0} & 65535u"}

# The extremes of i64, at which accumulators of indexes start, become those of i32.
_EXTREMES = {-(1 << 63): -(1 << 31), (1 << 63) - 1: (1 << 31) - 1}


@dataclass(kw_only=True)
class WgslContext(Context):
    """`starts`: the variables with the first words of directly indexed arrays. `storage` and `scratch`: the arrays in the text.
    `exchange`: the workgroup arrays of collectives and their sizes, by type. `collectives`, `accessors`: functions that the body
    calls."""

    simt: SimtKernel
    target: WgslTarget
    starts: dict[ir.Array, str] = field(default_factory=dict)
    storage: dict[ir.Array, WgslArray] = field(default_factory=dict)
    scratch: dict[ir.Array, WgslScratch] = field(default_factory=dict)
    non_uniform: NonUniform = field(init=False)
    exchange: dict[str, tuple[str, int]] = field(default_factory=dict)
    collectives: dict[str, str] = field(default_factory=dict)
    accessors: dict[str, str] = field(default_factory=dict)

    @property
    def one_subgroup(self) -> bool:
        """Whether reductions are shuffles within one subgroup."""
        return "subgroups" in self.target.features and 1 < self.simt.lanes <= self.target.subgroup_size

    def all_functions(self) -> list[str]:
        """The text of every function that the body calls."""
        return [*self.helper_texts(), *self.accessors.values(), *self.collectives.values()]


def literal(ctx: WgslContext, value: float | int | bool, dtype: DType) -> Text:
    if dtype.kind == "b":
        return Text("true" if value else "false")
    if dtype.is_integer:
        limit = i64 if dtype.kind == "i" else dtype
        number = _EXTREMES.get(int(value), int(value))
        if limit is i64 and not -(1 << 31) <= number < 1 << 31:
            raise ctx.fail(0, f"the number {number} passes the 32 bits of WGSL's integers")
        if dtype.kind == "u":
            return Text(f"{number}u" if number < 1 << 16 else f"0x{number:x}u")
        return Text(str(number), ATOM if number >= 0 else LOOSE)
    exact = np.float32(value)
    if np.isnan(exact):
        return call(ctx.use("not_a_number"))
    if np.isinf(exact):
        plus = call(ctx.use("infinity"))
        return plus if exact > 0 else fill("-{0}", (plus,))
    # the shortest spelling of the largest f32 is above it, which a compiler may refuse
    text = str(exact) if abs(exact) < 3.4e38 else repr(float(exact))
    return Text(text, LOOSE if text.startswith("-") else ATOM)


def helper(ctx: WgslContext, name: str, value: ir.Value) -> str:
    """Return the function of an expansion and record its use."""
    return ctx.use(_helper_name(ctx, name, value))


def _helper_name(ctx: WgslContext, name: str, value: ir.Value) -> str:
    if name == "dot4":
        return "dot4_packed_i32" if "packed-dot" in ctx.target.features else "dot4_i32"
    source = value.args[1 if name == "select" else 0].dtype.name
    typed = _TYPED_AS.get(source, source)
    return f"cast_{typed}_{_TYPED_AS.get(value.dtype.name, value.dtype.name)}" if name == "cast" else f"{name}_{typed}"


def lowered(ctx: WgslContext, op: str, value: ir.Value, operands: Sequence[Text]) -> Text:
    text = values.lowered(ctx, op, value, operands)
    return Text(re.sub(r"\bu32\((\d+)\)", r"\1u", text.code), text.level)


def cast(ctx: WgslContext, value: ir.Value, operand: Text) -> Text:
    source, to = value.args[0].dtype, value.dtype
    if to.kind == "b":
        zero = ctx.literal(0, f32 if source.is_float else source)
        unequal = "!({0} == {1})" if source.is_float else "{0} != {1}"
        return operand if source.kind == "b" else fill(unequal, (operand, zero))
    if (source, to) == (u32, i64) and not below_half(value.args[0]):
        raise ctx.fail(
            value.line, "a u32 that may be 2^31 or more becomes an index, which WGSL holds in an i32; mask it"
        )
    if source.is_float and to.is_integer:
        return call(helper(ctx, "cast", value), operand)
    typed = ctx.type_name(to)
    converted = operand if ctx.type_name(source) == typed else fill(f"{typed}({{0}})", (operand,))
    return cut(ctx, converted, source, to)


def cut(ctx: WgslContext, value: Text, source: DType, to: DType) -> Text:
    """Round a value to f16 or bf16, or cut it to the bits of a narrow integer; other dtypes stay as they are."""
    if source == to or source.kind == "b":
        return value
    if to.name in ("f16", "bf16"):
        return call(ctx.use(f"cast_f32_{to.name}"), value)
    return fill(_CUT[to.name], (value,)) if to.name in _CUT else value
