"""MslTarget: what a Metal device has. MslModule: the text of a kernel and its bindings. MslContext: the text while it is written.

The contract with backends/metal: array i is buffer i, at an offset that is a multiple of its dtype's size. Buffer `run_index`,
after the arrays, has the launch's run-time scalars in the kernel's order, an int each; a kernel without scalars has it too, one
word long. A launch of P programs is P threadgroups along x, of `lanes` threads each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from math import prod

import numpy as np

from camshaft.dtypes import DType, bf16, f16, f32, i32, i64, u64
from camshaft.emit.c_family import values
from camshaft.emit.c_family.context import Context, type_name
from camshaft.emit.c_family.text import LOOSE, Text, call, integer
from camshaft.emit.msl.functions import integer_literal
from camshaft.lang import ir, tile_ir, traversal
from camshaft.lang.simt.form import SimtKernel

# Buffers of a kernel and threads of a threadgroup that every Metal device allows.
MAX_BUFFERS = 31
MAX_THREADS = 1024


@dataclass(frozen=True)
class MslTarget:
    """`simd_width`: threads of a SIMD-group; 0 emits no SIMD-group functions. `max_threadgroup_nbytes`: of threadgroup memory.
    `has_matrices`: SIMD-group matrices, which Apple's GPUs have from the M1 on."""

    simd_width: int = 32
    max_threads: int = MAX_THREADS
    max_threadgroup_nbytes: int = 32_768
    has_matrices: bool = False

    def key(self) -> str:
        """A text for cache keys."""
        return f"msl/{self.simd_width}/{self.max_threads}/{self.max_threadgroup_nbytes}/{self.has_matrices:d}"


@dataclass(frozen=True)
class MslModule:
    """The text of one kernel. `threadgroup_nbytes`: bytes of threadgroup memory that it declares."""

    text: str
    entry: str
    lanes: int
    n_arrays: int
    n_scalars: int
    threadgroup_nbytes: int

    @property
    def run_index(self) -> int:
        """The buffer of the run-time scalars."""
        return self.n_arrays


_LARGEST_INDEX = 2**31 - 1
_TEMPLATES = {"floor_divide": "floor_divide", "remainder": "remainder_of"}


@dataclass(kw_only=True)
class MslContext(Context):
    """`rooms`: threadgroup memory through which values are exchanged, by type. `collectives`: functions that the body calls."""

    simt: SimtKernel
    target: MslTarget
    index_type: str
    rooms: dict[str, str] = field(default_factory=dict)
    collectives: dict[str, str] = field(default_factory=dict)
    tiles: dict[tile_ir.Tile, str] = field(default_factory=dict)
    tile_room: str | None = None


def indexes_fit(kernel: SimtKernel) -> bool:
    """Whether every i64 value is an index or a size: none is loaded, converted from a u32 or a float, or taken as the bits of a
    u64."""
    arrays = (*kernel.arrays, *kernel.shared, *kernel.private)
    if any(a.dtype in (i64, u64) or prod(a.shape) > _LARGEST_INDEX for a in arrays):
        return False
    return all(
        _is_index(item)
        for item in traversal.walk(kernel.body)
        if isinstance(item, ir.Value) and item.dtype in (i64, u64)
    )


def _is_index(value: ir.Value) -> bool:
    if value.dtype == u64:
        return False
    if value.op == "const":
        return -_LARGEST_INDEX <= int(value.attr) <= _LARGEST_INDEX
    if value.op in ("cast", "bitcast"):
        source = value.args[0].dtype
        return bool(source.is_integer and (source.nbytes < 4 or source in (i32, i64)))
    return True


def _float_literal(value: float) -> Text:
    """An f32 constant."""
    if math.isnan(value):
        return Text("NAN")
    if math.isinf(value):
        return Text("INFINITY") if value > 0 else Text("-INFINITY", LOOSE)
    text = str(np.float32(value))
    text = text if "." in text or "e" in text else f"{text}.0"
    return Text(f"{text}f", LOOSE if text.startswith("-") else 3)


# --- types, literals, conversions ------------------------------------------------------------------------------------


def msl_type_name(ctx: MslContext, dtype: DType) -> str:
    return ctx.index_type if dtype == i64 else type_name(ctx, dtype)


def literal(ctx: MslContext, value: float | int | bool, dtype: DType) -> Text:
    if dtype.kind == "b":
        return Text("true" if value else "false")
    if dtype.is_float:
        number = _float_literal(float(value))
        return call("half", number) if dtype == f16 else number
    if dtype == i64 and ctx.index_type == "int":
        return integer(int(value))
    return Text(integer_literal(int(value), dtype), integer(int(value)).level)


def helper(ctx: MslContext, name: str, value: ir.Value) -> str:
    return ctx.use(_TEMPLATES.get(name) or values.helper_name(name, value))


def cast(ctx: MslContext, value: ir.Value, text: Text) -> Text:
    """A conversion by value. 16-bit floats are converted through f32."""
    source, to = value.args[0].dtype, value.dtype
    if source in (f16, bf16):
        text = call("float", text) if source == f16 else text
        return text if to == f32 else _from_f32(ctx, to, text)
    if to in (f16, bf16) and source != f32:
        return _from_f32(ctx, to, call("float", text))
    if to == i64 and source.is_integer and ctx.index_type == ctx.type_name(source):
        return text
    return values.cast(ctx, value, text)


def _from_f32(ctx: MslContext, to: DType, text: Text) -> Text:
    return call(ctx.use(f"cast_f32_{to.name}"), text)
