"""The body of a kernel in MSL, from SIMT form: memory, collectives, atomics."""

from __future__ import annotations

from collections.abc import Sequence

from camshaft.dtypes import bf16, i32
from camshaft.emit.c_family import statements, values
from camshaft.emit.c_family.context import Dialect
from camshaft.emit.c_family.text import Text, call, integer
from camshaft.emit.c_family.values import flush, operand
from camshaft.emit.msl import collectives, tiles
from camshaft.emit.msl.context import MslContext, MslTarget, cast, helper, indexes_fit, literal, msl_type_name
from camshaft.emit.msl.functions import FUNCTIONS, RESERVED, STORAGE
from camshaft.lang import ir, tile_ir
from camshaft.lang.instructions import identity
from camshaft.lang.simt.form import SimtKernel


def context(kernel: SimtKernel, target: MslTarget) -> MslContext:
    """Return the context of a kernel before its text is written."""
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


# --- collectives and atomics -------------------------------------------------------------------------------------


def reduce(ctx: MslContext, value: ir.Value) -> Text:
    kind, n = value.attr
    typed, is_float = _combining(ctx, kind, value)
    name = f"reduce_{kind}_{typed}_{n}"
    text = collectives.reduction(name, kind, typed, is_float, n, simd_width(ctx, value))
    return called_by_all(ctx, name, text, value)


def scan(ctx: MslContext, value: ir.Value) -> Text:
    kind, exclusive = value.attr
    typed, is_float = _combining(ctx, kind, value)
    start = ctx.literal(identity(kind, value.dtype.numpy), value.dtype).code if exclusive else None
    name = f"scan_{kind}_{typed}{'_exclusive' if exclusive else ''}"
    text = collectives.scanning(name, kind, typed, is_float, ctx.simt.lanes, start)
    return called_by_all(ctx, name, text, value)


def _combining(ctx: MslContext, kind: str, value: ir.Value) -> tuple[str, bool]:
    """The type's name, and whether it is a float. Float extremes need a helper."""
    if value.dtype.is_float and kind != "sum":
        ctx.use(f"{'maximum' if kind == 'max' else 'minimum'}_f32")
    return ctx.type_name(value.dtype), value.dtype.is_float


def broadcast(ctx: MslContext, value: ir.Value) -> Text:
    if ctx.simt.lanes <= simd_width(ctx, value):
        return call("simd_broadcast", operand(ctx, value.args[0]), Text(f"ushort({value.attr})"))
    name = f"broadcast_{ctx.type_name(value.dtype)}"
    text = collectives.broadcasting(name, ctx.type_name(value.dtype))
    return called_by_all(ctx, name, text, value, integer(value.attr))


def shuffle(ctx: MslContext, value: ir.Value) -> Text:
    lane = value.args[1]
    if lane.op == "xor" and lane.args[0].op == "lane" and lane.args[1].op == "const":
        step = lane.args[1].attr
        if 0 <= step < simd_width(ctx, value):
            return call("simd_shuffle_xor", operand(ctx, value.args[0]), Text(f"ushort({step})"))
    if ctx.simt.lanes <= simd_width(ctx, value):
        return call("simd_shuffle", operand(ctx, value.args[0]), call("ushort", operand(ctx, lane)))
    name = f"shuffle_{ctx.type_name(value.dtype)}"
    text = collectives.shuffling(name, ctx.type_name(value.dtype))
    return called_by_all(ctx, name, text, value, operand(ctx, lane))


def simd_width(ctx: MslContext, value: ir.Value) -> int:
    """Threads that can exchange such a value directly: Metal's SIMD-group functions take no booleans and no 64-bit integers."""
    return 0 if ctx.type_name(value.dtype) in ("bool", "long", "ulong") else ctx.target.simd_width


def called_by_all(ctx: MslContext, name: str, text: str, value: ir.Value, *more: Text) -> Text:
    """Call a function that contains barriers, after all pending reads of memory."""
    ctx.collectives[name] = text
    given, memory = operand(ctx, value.args[0]), Text(room(ctx, ctx.type_name(value.dtype)))
    flush(ctx)
    return call(name, given, *more, memory, Text("lane"))


def atomic(ctx: MslContext, value: ir.Value, at: Text, operands: Sequence[Text]) -> Text:
    array, _ = value.attr
    space = "device" if array in ctx.kernel.arrays else "threadgroup"
    typed = "atomic_int" if array.dtype == i32 else "atomic_uint"
    address = Text(f"({space} {typed}*)&{ctx.array_names[array]}[{at.code}]")
    cell = values.atomic_cell(ctx, value)
    if not cell.startswith("expand:"):
        return Text(cell.format(address.code, *(o.code for o in operands)))
    name = cell.removeprefix("expand:")
    return call(ctx.use(name if name in FUNCTIONS else f"{name}_{array.dtype.name}"), address, *operands)


def room(ctx: MslContext, type_name: str) -> str:
    """Threadgroup memory through which values of a type are exchanged; all collectives share it."""
    if type_name not in ctx.rooms:
        ctx.rooms[type_name] = ctx.names.new(f"room_{type_name}")
    return ctx.rooms[type_name]


MSL: Dialect[MslContext] = Dialect(
    column="msl",
    constant="const {type} {name} = {value};",
    variable="{type} {name} = {value};",
    loop="for ({type} {name} = {start}; {name} < {stop}; {name} += {step}) {{",
    barrier=("threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);",),
    reserved=RESERVED | tiles.WORDS,
    functions=FUNCTIONS,
    type_name=msl_type_name,
    literal=literal,
    read=read,
    write=write,
    atomic=atomic,
    lowered=values.lowered,
    cast=cast,
    helper=helper,
    bound=statements.bound,
    condition=statements.condition,
    values={**values.COMMON_VALUES, "reduce": reduce, "broadcast": broadcast, "shuffle": shuffle, "scan": scan},
    statements={
        **statements.COMMON_STATEMENTS,
        tile_ir.TileNew: tiles.new,
        tile_ir.TileMma: tiles.mma,
        tile_ir.TileStore: tiles.store,
    },
)
