"""MslEmitter: the body of a kernel in MSL, from SIMT form: literals, memory, conversions, collectives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import prod
from typing import ClassVar

import numpy as np

from camshaft.dtypes import DType, bf16, f16, f32, i32, i64, u64
from camshaft.emit.c_family.emitter import CFamilyEmitter, Dialect
from camshaft.emit.c_family.text import LOOSE, PRODUCT, SUM, Text, add, call, integer, multiply
from camshaft.emit.msl import tiles as msl_tiles
from camshaft.emit.msl.collectives import broadcasting, reduction, scanning, shuffling
from camshaft.emit.msl.functions import FUNCTIONS, RESERVED, STORAGE, integer_literal
from camshaft.emit.msl.layout import MslTarget
from camshaft.lang import ir
from camshaft.lang.atomics import ATOMICS
from camshaft.lang.dialects import Absent
from camshaft.lang.instructions import identity
from camshaft.lang.simt.form import SimtKernel

# What threads do together, or to memory that others change: never moved into the expression that uses it.
_IN_PLACE = frozenset({"reduce", "scan", "broadcast", "shuffle", "atomic"})
_LARGEST_INDEX = 2**31 - 1
_TEMPLATES = {"floor_divide": "floor_divide", "remainder": "remainder_of"}


class MslEmitter(CFamilyEmitter):
    """One kernel's text."""

    dialect: ClassVar[Dialect] = Dialect(
        column="msl",
        constant="const {type} {name} = {value};",
        variable="{type} {name} = {value};",
        loop="for ({type} {name} = {start}; {name} < {stop}; {name} += {step}) {{",
        barrier=("threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);",),
        reserved=RESERVED | msl_tiles.WORDS,
        functions=FUNCTIONS,
    )

    def __init__(self, kernel: SimtKernel, target: MslTarget) -> None:
        super().__init__(kernel, (*kernel.shared, *kernel.private))
        self.simt, self.target = kernel, target
        self.index_type = "int" if indexes_fit(kernel) else "long"
        self.rooms: dict[str, str] = {}
        self.collectives: dict[str, str] = {}
        self.tiles: dict[ir.Tile, str] = {}
        self.tile_room: str | None = None

    # --- what the base asks for --------------------------------------------------------------------------------------
    def type_name(self, dtype: DType) -> str:
        return self.index_type if dtype == i64 else super().type_name(dtype)

    def literal(self, value: float | int | bool, dtype: DType) -> Text:
        if dtype.kind == "b":
            return Text("true" if value else "false")
        if dtype.is_float:
            number = _float_literal(float(value))
            return call("half", number) if dtype == f16 else number
        if dtype == i64 and self.index_type == "int":
            return integer(int(value))
        return Text(integer_literal(int(value), dtype), integer(int(value)).level)

    def read(self, array: ir.Array, at: Text, value: ir.Value) -> Text:
        element = Text(f"{self.array_names[array]}[{at.code}]")
        if array.dtype == bf16:
            return call(self.use("bf16_to_f32"), element)
        return element if array.dtype == value.dtype else call(self.type_name(value.dtype), element)

    def write(self, array: ir.Array, at: Text, value: Text, item: ir.Store) -> None:
        if array.dtype == bf16:
            value = call(self.use("f32_to_bf16"), value)
        elif array.dtype != item.value.dtype:
            value = call(STORAGE[array.dtype.name], value)
        self.write_line(f"{self.array_names[array]}[{at.code}] = {value.code};", item.line)

    def helper_name(self, name: str, value: ir.Value) -> str:
        return _TEMPLATES.get(name) or super().helper_name(name, value)

    def cast(self, value: ir.Value, operand: Text) -> Text:
        """16-bit floats are reached and left by way of f32."""
        source, to = value.args[0].dtype, value.dtype
        if source in (f16, bf16):
            operand = call("float", operand) if source == f16 else operand
            return operand if to == f32 else self._from_f32(to, operand)
        if to in (f16, bf16) and source != f32:
            return self._from_f32(to, call("float", operand))
        if to == i64 and source.is_integer and self.index_type == self.type_name(source):
            return operand
        return super().cast(value, operand)

    def _from_f32(self, to: DType, operand: Text) -> Text:
        return call(self.use(f"cast_f32_{to.name}"), operand)

    # --- tiles -------------------------------------------------------------------------------------------------------
    def statement_tilenew(self, item: ir.TileNew) -> None:
        found, name = msl_tiles.spread(item.tile, self.simt.lanes), self.names.new("tile")
        self.tiles[item.tile] = name
        self.collectives["clear_tile"], self.collectives["multiply_tile"] = msl_tiles.CLEAR, msl_tiles.MULTIPLY
        self.write_line(f"simdgroup_float8x8 {name}[{found.rows}][{found.columns}];", item.line)
        self.write_line(f"clear_tile({name});", item.line)

    def statement_tilemma(self, item: ir.TileMma) -> None:
        row, column = (Text(text, PRODUCT) for text in msl_tiles.place(item.tile, self.simt.lanes))
        down, across = multiply(row, item.a.strides[-2]), column
        if item.transposed:
            across = multiply(column, item.b.strides[-2])
        places = [
            f"{add(add(Text(self.array_names[array]), self.linear(array, at)), first).code}, {array.strides[-2]}"
            for array, at, first in ((item.a, item.a_at, down), (item.b, item.b_at, across))
        ]
        self.flush(frozenset({item.a, item.b}))
        function = f"multiply_tile<{'true' if item.transposed else 'false'}>"
        self.write_line(f"{function}({self.tiles[item.tile]}, {', '.join(places)}, {item.depth});", item.line)

    def statement_tilestore(self, item: ir.TileStore) -> None:
        at = self.linear(item.array, item.indices).at_least(SUM)
        limits = [None if v is None else self.stable(v).at_least(SUM) for v in (item.rows, item.columns)]
        self.flush()
        if self.tile_room is None:
            self.tile_room = self.names.new("tile_room", everywhere=True)
        narrow = {"f16": "half({value})", "bf16": "f32_to_bf16({value})"}.get(item.array.dtype.name, "{value}")
        if item.array.dtype == bf16:
            self.use("f32_to_bf16")
        place = f"{at} + {{row}} * {item.array.strides[-2]} + {{column}}"
        write = f"{self.array_names[item.array]}[{place}] = {narrow};"
        name, lanes = self.tiles[item.tile], self.simt.lanes
        for line in msl_tiles.stored(item.tile, lanes, name, self.tile_room, (limits[0], limits[1]), write):
            self.write_line(line, item.line)

    # --- collectives and atomics -------------------------------------------------------------------------------------
    def _is_inline(self, value: ir.Value, text: Text) -> bool:
        """What threads do together stands where it is computed: a conditional expression would leave threads out of it."""
        return value.op not in _IN_PLACE and super()._is_inline(value, text)

    def value_reduce(self, value: ir.Value) -> Text:
        kind, n = value.attr
        typed, is_float = self._combining(kind, value)
        name = f"reduce_{kind}_{typed}_{n}"
        text = reduction(name, kind, typed, is_float, n, self.simd_width(value))
        return self.together(name, text, value)

    def value_scan(self, value: ir.Value) -> Text:
        kind, exclusive = value.attr
        typed, is_float = self._combining(kind, value)
        start = self.literal(identity(kind, value.dtype.numpy), value.dtype).code if exclusive else None
        name = f"scan_{kind}_{typed}{'_exclusive' if exclusive else ''}"
        return self.together(name, scanning(name, kind, typed, is_float, self.simt.lanes, start), value)

    def _combining(self, kind: str, value: ir.Value) -> tuple[str, bool]:
        """The type, and whether it is a float one, whose extremes need their helper."""
        if value.dtype.is_float and kind != "sum":
            self.use(f"{'maximum' if kind == 'max' else 'minimum'}_f32")
        return self.type_name(value.dtype), value.dtype.is_float

    def value_broadcast(self, value: ir.Value) -> Text:
        if self.simt.lanes <= self.simd_width(value):
            return call("simd_broadcast", self.operand(value.args[0]), Text(f"ushort({value.attr})"))
        name = f"broadcast_{self.type_name(value.dtype)}"
        text = broadcasting(name, self.type_name(value.dtype))
        return self.together(name, text, value, integer(value.attr))

    def value_shuffle(self, value: ir.Value) -> Text:
        lane = value.args[1]
        if lane.op == "xor" and lane.args[0].op == "lane" and lane.args[1].op == "const":
            step = lane.args[1].attr
            if 0 <= step < self.simd_width(value):
                return call("simd_shuffle_xor", self.operand(value.args[0]), Text(f"ushort({step})"))
        if self.simt.lanes <= self.simd_width(value):
            return call("simd_shuffle", self.operand(value.args[0]), call("ushort", self.operand(lane)))
        name = f"shuffle_{self.type_name(value.dtype)}"
        return self.together(name, shuffling(name, self.type_name(value.dtype)), value, self.operand(lane))

    def simd_width(self, value: ir.Value) -> int:
        """Threads that exchange such a value directly: Metal's SIMD-group functions take no booleans and no 64-bit integers."""
        return 0 if self.type_name(value.dtype) in ("bool", "long", "ulong") else self.target.simd_width

    def together(self, name: str, text: str, value: ir.Value, *more: Text) -> Text:
        """A call of a function with barriers in it: what reads memory is read before."""
        self.collectives[name] = text
        operand, room = self.operand(value.args[0]), Text(self.room(self.type_name(value.dtype)))
        self.flush()
        return call(name, operand, *more, room, Text("lane"))

    def atomic(self, value: ir.Value, at: Text, operands: Sequence[Text]) -> Text:
        array, kind = value.attr
        space = "device" if array in self.kernel.arrays else "threadgroup"
        held = "atomic_int" if array.dtype == i32 else "atomic_uint"
        address = Text(f"({space} {held}*)&{self.array_names[array]}[{at.code}]")
        cell = ATOMICS[kind].msl[array.dtype.kind]
        if isinstance(cell, Absent):
            raise self.fail(value.line, cell.reason)
        if not cell.startswith("expand:"):
            return Text(cell.format(address.code, *(o.code for o in operands)))
        name = cell.removeprefix("expand:")
        return call(self.use(name if name in FUNCTIONS else f"{name}_{array.dtype.name}"), address, *operands)

    def room(self, type_name: str) -> str:
        """Threadgroup memory to exchange values of that type through: one for the whole kernel."""
        if type_name not in self.rooms:
            self.rooms[type_name] = self.names.new(f"room_{type_name}")
        return self.rooms[type_name]


def indexes_fit(kernel: SimtKernel) -> bool:
    """Whether every i64 value can only be an index or a size: none is loaded, made of 32 unsigned bits or of a float."""
    arrays = (*kernel.arrays, *kernel.shared, *kernel.private)
    if any(a.dtype in (i64, u64) or prod(a.shape) > _LARGEST_INDEX for a in arrays):
        return False
    return all(_is_index(item) for item in ir.walk(kernel.body) if isinstance(item, ir.Value) and item.dtype == i64)


def _is_index(value: ir.Value) -> bool:
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
