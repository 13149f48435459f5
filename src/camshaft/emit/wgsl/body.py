"""The body of a kernel in WGSL, from SIMT form: memory, control flow around barriers, collectives, atomics."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from camshaft.dtypes import DType, boolean
from camshaft.emit.c_family import statements
from camshaft.emit.c_family.context import Dialect
from camshaft.emit.c_family.text import Text, add, call
from camshaft.emit.c_family.values import COMMON_VALUES, atomic_cell, flush, operand, operands
from camshaft.emit.wgsl import lanes as wgsl_lanes
from camshaft.emit.wgsl.context import WgslContext, cast, cut, helper, literal, lowered
from camshaft.emit.wgsl.functions import FUNCTIONS, RESERVED
from camshaft.emit.wgsl.layout import SPECIAL_WORDS, WgslTarget
from camshaft.emit.wgsl.storage import WgslArray, WgslScratch
from camshaft.emit.wgsl.uniform import NonUniform
from camshaft.lang import ir, traversal
from camshaft.lang.dialects import Absent
from camshaft.lang.instructions import COMBINERS, identity
from camshaft.lang.simt.form import SimtKernel
from camshaft.lang.targets import ELEMENTS


def context(kernel: SimtKernel, target: WgslTarget) -> WgslContext:
    """Return the context of a kernel before its text is written."""
    ctx = WgslContext(kernel, WGSL, (*kernel.shared, *kernel.private), simt=kernel, target=target)
    stored = {item.array for item in traversal.walk(kernel.body) if isinstance(item, ir.Store)}
    atomic = {
        item.attr[0] for item in traversal.walk(kernel.body) if isinstance(item, ir.Value) and item.op == "atomic"
    }
    ctx.starts = {a: ctx.names.new(f"{ctx.array_names[a]}_start") for a in kernel.arrays}
    ctx.storage = {a: _storage(ctx, a, i, a in stored, a in atomic) for i, a in enumerate(kernel.arrays)}
    ctx.scratch = {a: _scratch(ctx, a, a in atomic) for a in (*kernel.shared, *kernel.private)}
    read_only = frozenset(a for a, s in ctx.storage.items() if s.read_only)
    ctx.non_uniform = NonUniform(kernel.body, read_only, ctx.one_subgroup)
    return ctx


def _storage(ctx: WgslContext, array: ir.Array, index: int, stored: bool, atomic: bool) -> WgslArray:
    cell = ELEMENTS["wgsl"][array.dtype.name]
    if isinstance(cell, Absent):
        raise ctx.fail(0, f"{array.name}: {cell.reason}")
    start = fixed_word(len(SPECIAL_WORDS) + len(ctx.simt.scalars) + index)
    name, value = ctx.array_names[array], ctx.type_name(ir.arithmetic_dtype(array.dtype))
    return WgslArray(array, name, value, start, stored, atomic, ctx.target)


def _scratch(ctx: WgslContext, array: ir.Array, atomic: bool) -> WgslScratch:
    return WgslScratch(array, ctx.array_names[array], ctx.type_name(ir.arithmetic_dtype(array.dtype)), atomic)


def fixed_word(index: int) -> str:
    """A word of binding 1."""
    return f"fixed[{index // 4}].{'xyzw'[index % 4]}"


# --- memory ------------------------------------------------------------------------------------------------------


def read(ctx: WgslContext, array: ir.Array, at: Text, value: ir.Value) -> Text:
    if array in ctx.scratch:
        return Text(ctx.scratch[array].element(at.code))
    storage = ctx.storage[array]
    if storage.is_direct:
        index = add(Text(ctx.starts[array]), at)
        return Text(storage.element(f"{storage.name}[{index.code}]"))
    return call(accessor(ctx, f"read_{storage.name}", storage.read_function, storage), at)


def write(ctx: WgslContext, array: ir.Array, at: Text, value: Text, item: ir.Store) -> None:
    if array in ctx.scratch:
        rounded = cut(ctx, value, ir.arithmetic_dtype(array.dtype), array.dtype)
        ctx.write_line(ctx.scratch[array].stored_element(at.code, rounded.code), item.line)
        return
    storage = ctx.storage[array]
    if storage.is_direct:
        index = add(Text(ctx.starts[array]), at)
        ctx.write_line(storage.stored_element(f"{storage.name}[{index.code}]", value.code), item.line)
    else:
        name = accessor(ctx, f"write_{storage.name}", storage.write_function, storage)
        ctx.write_line(f"{call(name, at, value).code};", item.line)


def accessor(ctx: WgslContext, name: str, function: Callable[[], str], storage: WgslArray) -> str:
    """Record the use of a function that reads or writes an array's elements; return its name."""
    if name not in ctx.accessors:
        ctx.accessors[name] = function()
        if name.startswith("write_") and storage.helper is not None:
            ctx.use(storage.helper)
    return name


def atomic(ctx: WgslContext, value: ir.Value, at: Text, operands: Sequence[Text]) -> Text:
    array, kind = value.attr
    name, typed = f"atomic_{kind}_{ctx.array_names[array]}", ctx.type_name(value.dtype)
    memory: WgslArray | WgslScratch = ctx.storage[array] if array in ctx.storage else ctx.scratch[array]
    index = f"i + {memory.start}" if isinstance(memory, WgslArray) else "i"
    ctx.accessors[name] = wgsl_lanes.atomic(name, atomic_cell(ctx, value), len(operands), typed, index, memory.choose)
    return call(name, at, *operands)


# --- control flow around barriers -----------------------------------------------------------------------------------


def bound(ctx: WgslContext, item: ir.Range | ir.Lanes, value: ir.Value) -> Text:
    text = statements.bound(ctx, item, value)
    if not isinstance(item, ir.Range) or not ctx.non_uniform.must_be_proved(item, value):
        return text
    name = ctx.names.new("start" if value is item.start else "stop")
    same = from_lane(ctx, text, value.dtype, 0)
    ctx.write_line(ctx.dialect.constant.format(name=name, type="", value=same.code), item.line)
    return Text(name)


def condition(ctx: WgslContext, item: ir.When) -> Text:
    text = statements.condition(ctx, item)
    return from_lane(ctx, text, boolean, 0) if ctx.non_uniform.must_be_proved(item, item.condition) else text


# --- collectives -------------------------------------------------------------------------------------------------


def called_by_all(ctx: WgslContext, value: ir.Value, name: str, text: Callable[[str, str], str]) -> Text:
    """Call a function of emit/wgsl/lanes.py with the value's operands. `text` makes the function from its name and type."""
    given, typed = operands(ctx, value.args), ctx.type_name(value.dtype)
    flush(ctx)
    full = f"{name}_{typed}"
    ctx.collectives[full] = text(full, typed)
    return call(full, *given, Text("lane"))


def exchange(ctx: WgslContext, dtype: DType, n: int) -> str:
    """The workgroup array, of at least n elements, through which lanes exchange values of a dtype."""
    typed = ctx.type_name(dtype)
    if typed not in ctx.exchange:
        ctx.exchange[typed] = (ctx.names.new(f"exchange_{typed}", everywhere=True), n)
    name, size = ctx.exchange[typed]
    ctx.exchange[typed] = (name, max(size, n))
    return name


def combined(ctx: WgslContext, kind: str, value: ir.Value, a: str, b: str) -> str:
    """The expression that combines two accumulators."""
    pair = ir.Value(COMBINERS[kind], value.dtype, (value, value), line=value.line)
    return lowered(ctx, pair.op, pair, (Text(a), Text(b))).code


def reduce(ctx: WgslContext, value: ir.Value) -> Text:
    """Reduce lanes 0..n-1 by halving, the first half with the second; all threads get the result."""
    kind, n = value.attr
    lanes = ctx.simt.lanes
    if ctx.one_subgroup:
        both = combined(ctx, kind, value, "total", "theirs")
        return called_by_all(
            ctx, value, f"reduce_{kind}_{n}", lambda f, t: wgsl_lanes.subgroup_reduce(f, t, n, lanes, both)
        )
    array = exchange(ctx, value.dtype, lanes)
    both = combined(ctx, kind, value, f"{array}[lane]", f"{array}[lane + half]")
    return called_by_all(ctx, value, f"reduce_{kind}_{n}", lambda f, t: wgsl_lanes.reduce(f, t, array, n, both))


def broadcast(ctx: WgslContext, value: ir.Value) -> Text:
    """Lane `attr`'s value, for all threads."""
    return from_lane(ctx, operand(ctx, value.args[0]), value.dtype, value.attr)


def from_lane(ctx: WgslContext, value: Text, dtype: DType, lane: int) -> Text:
    """One lane's value of an expression, for all threads."""
    flush(ctx)
    name = f"broadcast_{ctx.type_name(dtype)}"
    ctx.collectives[name] = wgsl_lanes.broadcast(name, ctx.type_name(dtype), exchange(ctx, dtype, 1))
    return call(name, value, Text(str(lane)), Text("lane"))


def shuffle(ctx: WgslContext, value: ir.Value) -> Text:
    """The value of the lane that the second operand gives."""
    array = exchange(ctx, value.dtype, ctx.simt.lanes)
    return called_by_all(ctx, value, "shuffle", lambda f, t: wgsl_lanes.shuffle(f, t, array))


def scan(ctx: WgslContext, value: ir.Value) -> Text:
    """Combine each lane's value with those of the lanes below."""
    kind, exclusive = value.attr
    start = ctx.literal(identity(kind, value.dtype.numpy), value.dtype).code if exclusive else None
    both = combined(ctx, kind, value, "below", "total")
    name = f"scan_{kind}_exclusive" if exclusive else f"scan_{kind}"
    array, lanes = exchange(ctx, value.dtype, ctx.simt.lanes), ctx.simt.lanes
    return called_by_all(ctx, value, name, lambda f, t: wgsl_lanes.scan(f, t, array, lanes, both, start))


WGSL: Dialect[WgslContext] = Dialect(
    column="wgsl",
    constant="let {name} = {value};",
    variable="var {name}: {type} = {value};",
    loop="for (var {name} = {start}; {name} < {stop}; {name} += {step}) {{",
    barrier=("workgroupBarrier();", "storageBarrier();"),
    reserved=RESERVED,
    functions=FUNCTIONS,
    literal=literal,
    read=read,
    write=write,
    atomic=atomic,
    lowered=lowered,
    cast=cast,
    helper=helper,
    bound=bound,
    condition=condition,
    values={**COMMON_VALUES, "reduce": reduce, "broadcast": broadcast, "shuffle": shuffle, "scan": scan},
    statements=statements.COMMON_STATEMENTS,
)
