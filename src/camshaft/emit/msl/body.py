"""The body of a kernel in MSL, from SIMT form: memory, tiles, collectives."""

from __future__ import annotations

from collections.abc import Sequence

from camshaft.dtypes import bf16, i32
from camshaft.emit.c_family import values
from camshaft.emit.c_family.context import Dialect
from camshaft.emit.c_family.statements import COMMON_STATEMENTS, bound, condition, stable
from camshaft.emit.c_family.text import PRODUCT, SUM, Text, add, call, integer, multiply
from camshaft.emit.c_family.values import flush, linear, operand
from camshaft.emit.msl import tiles as msl_tiles
from camshaft.emit.msl.collectives import broadcasting, reduction, scanning, shuffling
from camshaft.emit.msl.context import MslContext, cast, helper, indexes_fit, literal, msl_type_name
from camshaft.emit.msl.functions import FUNCTIONS, RESERVED, STORAGE
from camshaft.emit.msl.layout import MslTarget
from camshaft.lang import ir
from camshaft.lang.atomics import ATOMICS
from camshaft.lang.dialects import Absent
from camshaft.lang.instructions import identity
from camshaft.lang.simt.form import SimtKernel


def context(kernel: SimtKernel, target: MslTarget) -> MslContext:
    """Before anything is written."""
    index_type = "int" if indexes_fit(kernel) else "long"
    scratch = (*kernel.shared, *kernel.private)
    return MslContext(kernel, MSL, scratch, simt=kernel, target=target, index_type=index_type)


# --- memory ----------------------------------------------------------------------------------------------------------


def read(ctx: MslContext, array: ir.Array, at: Text, value: ir.Value) -> Text:
    element = Text(f"{ctx.array_names[array]}[{at.code}]")
    if array.dtype == bf16:
        return call(ctx.use("bf16_to_f32"), element)
    return element if array.dtype == value.dtype else call(ctx.type_name(value.dtype), element)


def write(ctx: MslContext, array: ir.Array, at: Text, value: Text, item: ir.Store) -> None:
    if array.dtype == bf16:
        value = call(ctx.use("f32_to_bf16"), value)
    elif array.dtype != item.value.dtype:
        value = call(STORAGE[array.dtype.name], value)
    ctx.write_line(f"{ctx.array_names[array]}[{at.code}] = {value.code};", item.line)


# --- tiles -------------------------------------------------------------------------------------------------------


def _tile_new(ctx: MslContext, item: ir.TileNew) -> None:
    found, name = msl_tiles.spread(item.tile, ctx.simt.lanes), ctx.names.new("tile")
    ctx.tiles[item.tile] = name
    ctx.collectives["clear_tile"], ctx.collectives["multiply_tile"] = msl_tiles.CLEAR, msl_tiles.MULTIPLY
    ctx.write_line(f"simdgroup_float8x8 {name}[{found.rows}][{found.columns}];", item.line)
    ctx.write_line(f"clear_tile({name});", item.line)


def _tile_mma(ctx: MslContext, item: ir.TileMma) -> None:
    row, column = (Text(text, PRODUCT) for text in msl_tiles.place(item.tile, ctx.simt.lanes))
    down, across = multiply(row, item.a.strides[-2]), column
    if item.transposed:
        across = multiply(column, item.b.strides[-2])
    places = [
        f"{add(add(Text(ctx.array_names[array]), linear(ctx, array, at)), first).code}, {array.strides[-2]}"
        for array, at, first in ((item.a, item.a_at, down), (item.b, item.b_at, across))
    ]
    flush(ctx, frozenset({item.a, item.b}))
    function = f"multiply_tile<{'true' if item.transposed else 'false'}>"
    ctx.write_line(f"{function}({ctx.tiles[item.tile]}, {', '.join(places)}, {item.depth});", item.line)


def _tile_store(ctx: MslContext, item: ir.TileStore) -> None:
    at = linear(ctx, item.array, item.indices).at_least(SUM)
    limits = [None if v is None else stable(ctx, v).at_least(SUM) for v in (item.rows, item.columns)]
    flush(ctx)
    if ctx.tile_room is None:
        ctx.tile_room = ctx.names.new("tile_room", everywhere=True)
    narrow = {"f16": "half({value})", "bf16": "f32_to_bf16({value})"}.get(item.array.dtype.name, "{value}")
    if item.array.dtype == bf16:
        ctx.use("f32_to_bf16")
    place = f"{at} + {{row}} * {item.array.strides[-2]} + {{column}}"
    write = f"{ctx.array_names[item.array]}[{place}] = {narrow};"
    name, lanes = ctx.tiles[item.tile], ctx.simt.lanes
    for line in msl_tiles.stored(item.tile, lanes, name, ctx.tile_room, (limits[0], limits[1]), write):
        ctx.write_line(line, item.line)


# --- collectives and atomics -------------------------------------------------------------------------------------


def reduce(ctx: MslContext, value: ir.Value) -> Text:
    kind, n = value.attr
    typed, is_float = _combining(ctx, kind, value)
    name = f"reduce_{kind}_{typed}_{n}"
    text = reduction(name, kind, typed, is_float, n, simd_width(ctx, value))
    return together(ctx, name, text, value)


def scan(ctx: MslContext, value: ir.Value) -> Text:
    kind, exclusive = value.attr
    typed, is_float = _combining(ctx, kind, value)
    start = ctx.literal(identity(kind, value.dtype.numpy), value.dtype).code if exclusive else None
    name = f"scan_{kind}_{typed}{'_exclusive' if exclusive else ''}"
    return together(ctx, name, scanning(name, kind, typed, is_float, ctx.simt.lanes, start), value)


def _combining(ctx: MslContext, kind: str, value: ir.Value) -> tuple[str, bool]:
    """The type, and whether it is a float one, whose extremes need their helper."""
    if value.dtype.is_float and kind != "sum":
        ctx.use(f"{'maximum' if kind == 'max' else 'minimum'}_f32")
    return ctx.type_name(value.dtype), value.dtype.is_float


def broadcast(ctx: MslContext, value: ir.Value) -> Text:
    if ctx.simt.lanes <= simd_width(ctx, value):
        return call("simd_broadcast", operand(ctx, value.args[0]), Text(f"ushort({value.attr})"))
    name = f"broadcast_{ctx.type_name(value.dtype)}"
    text = broadcasting(name, ctx.type_name(value.dtype))
    return together(ctx, name, text, value, integer(value.attr))


def shuffle(ctx: MslContext, value: ir.Value) -> Text:
    lane = value.args[1]
    if lane.op == "xor" and lane.args[0].op == "lane" and lane.args[1].op == "const":
        step = lane.args[1].attr
        if 0 <= step < simd_width(ctx, value):
            return call("simd_shuffle_xor", operand(ctx, value.args[0]), Text(f"ushort({step})"))
    if ctx.simt.lanes <= simd_width(ctx, value):
        return call("simd_shuffle", operand(ctx, value.args[0]), call("ushort", operand(ctx, lane)))
    name = f"shuffle_{ctx.type_name(value.dtype)}"
    return together(ctx, name, shuffling(name, ctx.type_name(value.dtype)), value, operand(ctx, lane))


def simd_width(ctx: MslContext, value: ir.Value) -> int:
    """Threads that exchange such a value directly: Metal's SIMD-group functions take no booleans and no 64-bit integers."""
    return 0 if ctx.type_name(value.dtype) in ("bool", "long", "ulong") else ctx.target.simd_width


def together(ctx: MslContext, name: str, text: str, value: ir.Value, *more: Text) -> Text:
    """A call of a function with barriers in it: what reads memory is read before."""
    ctx.collectives[name] = text
    given, place = operand(ctx, value.args[0]), Text(room(ctx, ctx.type_name(value.dtype)))
    flush(ctx)
    return call(name, given, *more, place, Text("lane"))


def atomic(ctx: MslContext, value: ir.Value, at: Text, operands: Sequence[Text]) -> Text:
    array, kind = value.attr
    space = "device" if array in ctx.kernel.arrays else "threadgroup"
    atomic_type = "atomic_int" if array.dtype == i32 else "atomic_uint"
    address = Text(f"({space} {atomic_type}*)&{ctx.array_names[array]}[{at.code}]")
    cell = ATOMICS[kind].msl[array.dtype.kind]
    if isinstance(cell, Absent):
        raise ctx.fail(value.line, cell.reason)
    if not cell.startswith("expand:"):
        return Text(cell.format(address.code, *(o.code for o in operands)))
    name = cell.removeprefix("expand:")
    return call(ctx.use(name if name in FUNCTIONS else f"{name}_{array.dtype.name}"), address, *operands)


def room(ctx: MslContext, type_name: str) -> str:
    """Threadgroup memory to exchange values of that type through: one for the whole kernel."""
    if type_name not in ctx.rooms:
        ctx.rooms[type_name] = ctx.names.new(f"room_{type_name}")
    return ctx.rooms[type_name]


MSL: Dialect[MslContext] = Dialect(
    column="msl",
    constant="const {type} {name} = {value};",
    variable="{type} {name} = {value};",
    loop="for ({type} {name} = {start}; {name} < {stop}; {name} += {step}) {{",
    barrier=("threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);",),
    reserved=RESERVED | msl_tiles.WORDS,
    functions=FUNCTIONS,
    type_name=msl_type_name,
    value_type=lambda ctx, value: ctx.type_name(value.dtype),
    literal=literal,
    read=read,
    write=write,
    atomic=atomic,
    lowered=values.lowered,
    cast=cast,
    helper=helper,
    bound=bound,
    condition=condition,
    values={**values.COMMON_VALUES, "reduce": reduce, "broadcast": broadcast, "shuffle": shuffle, "scan": scan},
    statements={**COMMON_STATEMENTS, ir.TileNew: _tile_new, ir.TileMma: _tile_mma, ir.TileStore: _tile_store},
)
