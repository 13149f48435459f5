"""Loads and stores in LLVM IR: contiguous, repeated, gathered, masked."""

from __future__ import annotations

from camshaft.dtypes import DType
from camshaft.emit.llvm import index
from camshaft.emit.llvm.context import Context
from camshaft.emit.llvm.math.table import cast
from camshaft.emit.llvm.typed import Typed
from camshaft.emit.llvm.values import Rep, array_name, memory_dtype, scalar_type, vector_type
from camshaft.emit.llvm.vectors import (
    active,
    as_mask,
    by_lane,
    count_mask,
    first_lane,
    group_mask,
    index_type,
    mask_type,
    shuffled,
    unknown_mask,
    widened,
    width_of,
)
from camshaft.lang import ir


def pointer(ctx: Context, array: ir.Array, at: str, inbounds: bool = True) -> str:
    """The address of an element."""
    element, how = scalar_type(memory_dtype(array.dtype)), "inbounds " if inbounds else ""
    return ctx.line(f"getelementptr {how}{element}, ptr {array_name(array.name)}, i64 {at}")


def pointers(ctx: Context, array: ir.Array, at: Rep) -> str:
    """Each lane's address."""
    places, element = f"{index_type(ctx)} {by_lane(ctx, at)}", scalar_type(memory_dtype(array.dtype))
    return ctx.line(f"getelementptr inbounds {element}, ptr {array_name(array.name)}, {places}")


def suffix(dtype: DType) -> str:
    """A dtype in an intrinsic's name."""
    return dtype.name.replace("u", "i")


# --- loads -----------------------------------------------------------------------------------------------------------


def load(ctx: Context, value: ir.Value) -> Rep:
    array, gathered, counted = value.attr
    at = index.linear(ctx, array, value.args[:-1] if counted else value.args)
    count = ctx.reps[value.args[-1]] if counted else None
    stored = _load_stored(ctx, value, array, at, gathered, count)
    memory, name = ctx.typed(memory_dtype(array.dtype), stored.n), stored.name
    if array.dtype.is_float and array.dtype != memory.dtype:
        name, memory = memory.bitcast(name, array.dtype), memory.as_dtype(array.dtype)
    return Rep(cast(memory, name, value.dtype), stored.n)


def _load_stored(ctx: Context, value: ir.Value, array: ir.Array, at: Rep, gathered: bool, count: Rep | None) -> Rep:
    if value.width:
        return load_vector(ctx, array, at, value.width, count_mask(ctx, count, value.width))
    if at.is_scalar:
        return load_vector(ctx, array, at, 0, None)
    pattern = at.affine
    if pattern is not None and pattern.is_contiguous:
        return load_vector(ctx, array, pattern.base, ctx.lanes, ctx.mask)
    if pattern is not None and pattern.coefficient == 1:
        return _load_repeated(ctx, array, pattern.base, pattern.divisor)
    if not gathered:
        raise ctx.fail(value.line, f"lanes of {array.name} are not contiguous; ask for k.gather")
    return Rep(gather(ctx, memory_dtype(array.dtype), pointers(ctx, array, at), active(ctx)), ctx.lanes)


def load_vector(ctx: Context, array: ir.Array, at: Rep, n: int, mask: str | None) -> Rep:
    """n elements from `at` on (0: a scalar); those off the mask are 0."""
    dtype = memory_dtype(array.dtype)
    place, typ = pointer(ctx, array, at.name), vector_type(dtype, n)
    if mask is None:
        return Rep(ctx.line(f"load {typ}, ptr {place}, align {dtype.nbytes}"), n)
    wide = f"<{n} x {scalar_type(dtype)}>"
    name = f"llvm.masked.load.v{n}{suffix(dtype)}.p0"
    ctx.declare(name, f"declare {wide} @{name}(ptr, i32, <{n} x i1>, {wide})")
    arguments = f"ptr {place}, i32 {dtype.nbytes}, {as_mask(ctx, mask, n)}, {wide} zeroinitializer"
    loaded = ctx.line(f"call {wide} @{name}({arguments})")
    return Rep(loaded if n > 1 else ctx.line(f"extractelement {wide} {loaded}, i64 0"), n)


def _load_repeated(ctx: Context, array: ir.Array, base: Rep, each: int) -> Rep:
    """lanes // each: fewer elements, each repeated."""
    n = ctx.lanes // each
    # one element is wanted by every lane, and code under a mask runs only where some lane is active
    mask = group_mask(ctx, ctx.mask, n, each) if ctx.mask is not None and n > 1 else None
    few = load_vector(ctx, array, base, n, mask)
    if n == 1:
        return Rep(few.name)
    order = [i // each for i in range(ctx.lanes)]
    return Rep(shuffled(ctx, vector_type(memory_dtype(array.dtype), n), few.name, order), ctx.lanes)


def gather(ctx: Context, dtype: DType, places: str, mask: str, rest: str = "zeroinitializer") -> str:
    """The element at each lane's address; `rest` where the mask is off."""
    n, typ = ctx.lanes, vector_type(dtype, ctx.lanes)
    name = f"llvm.masked.gather.v{n}{suffix(dtype)}.v{n}p0"
    ctx.declare(name, f"declare {typ} @{name}(<{n} x ptr>, i32, <{n} x i1>, {typ})")
    arguments = f"<{n} x ptr> {places}, i32 {dtype.nbytes}, {mask_type(ctx)} {mask}"
    return ctx.line(f"call {typ} @{name}({arguments}, {typ} {rest})")


def prefetch(ctx: Context, item: ir.Prefetch) -> None:
    """Emit a prefetch; its address may be past the end, so the pointer is not `inbounds`."""
    place = first_lane(ctx, index.linear(ctx, item.array, item.indices))
    address = pointer(ctx, item.array, place, inbounds=False)
    ctx.declare("llvm.prefetch.p0", "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
    ctx.write(f"call void @llvm.prefetch.p0(ptr {address}, i32 0, i32 3, i32 1)")


# --- stores ----------------------------------------------------------------------------------------------------------


def store(ctx: Context, item: ir.Store) -> None:
    array, rep, width = item.array, ctx.reps[item.value], item.value.width
    at = index.linear(ctx, array, item.indices)
    if at.is_scalar and not width and width_of(ctx, (rep,)):
        raise ctx.fail(item.line, f"every lane stores another value to one element of {array.name}")
    n = width or (ctx.lanes if ctx.lanes > 1 and not at.is_scalar else 0)
    name = widened(ctx, rep, item.value.dtype, n)
    name = stored_form(ctx.typed(item.value.dtype, n), name, array.dtype)
    if width:
        mask = count_mask(ctx, ctx.reps[item.count] if item.count is not None else None, n)
        store_vector(ctx, array, at, name, n, mask)
    elif at.is_scalar:
        store_vector(ctx, array, at, name, 0, None)
    elif at.affine is not None and at.affine.is_contiguous:
        streams = item.streamed and _may_stream(ctx, array, at.affine.base, n)
        if streams:
            _store_streamed(ctx, array, at.affine.base, name, n)
        else:
            store_vector(ctx, array, at.affine.base, name, n, ctx.mask)
    elif item.scattered:
        _scatter(ctx, array, at, name)
    else:
        raise ctx.fail(item.line, f"lanes of {array.name} are not contiguous; ask for k.scatter")


def stored_form(t: Typed, name: str, dtype: DType) -> str:
    """Convert a value to the memory form of an array of the dtype."""
    memory = memory_dtype(dtype)
    if dtype.is_float and dtype != memory:
        return t.as_dtype(dtype).bitcast(cast(t, name, dtype), memory)
    return cast(t, name, memory)


def store_vector(ctx: Context, array: ir.Array, at: Rep, value: str, n: int, mask: str | None) -> None:
    """n elements from `at` on (0: a scalar), those on the mask."""
    dtype = memory_dtype(array.dtype)
    place, typ = pointer(ctx, array, at.name), vector_type(dtype, n)
    if mask is None:
        ctx.write(f"store {typ} {value}, ptr {place}, align {dtype.nbytes}")
        return
    wide = f"<{n} x {scalar_type(dtype)}>"
    if n == 1:
        value = ctx.line(f"insertelement {wide} poison, {typ} {value}, i64 0")
    if n > 1 and not dtype.is_float and dtype.nbytes < 8 and "avx512f" in ctx.target.features:
        mask = unknown_mask(ctx, mask, n)
    name = f"llvm.masked.store.v{n}{suffix(dtype)}.p0"
    ctx.declare(name, f"declare void @{name}({wide}, ptr, i32, <{n} x i1>)")
    ctx.write(f"call void @{name}({wide} {value}, ptr {place}, i32 {dtype.nbytes}, {as_mask(ctx, mask, n)})")


def _may_stream(ctx: Context, array: ir.Array, at: Rep, n: int) -> bool:
    """Whether whole cache lines are written, where the array starts at one."""
    nbytes, line = memory_dtype(array.dtype).nbytes, ctx.target.stream_nbytes
    return line > 0 and ctx.mask is None and n * nbytes % line == 0 and at.multiple * nbytes % line == 0


def _store_streamed(ctx: Context, array: ir.Array, at: Rep, value: str, n: int) -> None:
    """Emit nontemporal stores if the array starts at a cache line, else ordinary ones.

    A caller's array may be unaligned, and nontemporal stores of partial lines take twice as long as ordinary stores. A kernel
    with nontemporal stores ends with a fence (`fences`).
    """
    dtype, line = memory_dtype(array.dtype), ctx.target.stream_nbytes
    place, typ = pointer(ctx, array, at.name), vector_type(dtype, n)
    start = ctx.line(f"ptrtoint ptr {array_name(array.name)} to i64")
    aligned = ctx.line(f"icmp eq i64 {ctx.line(f'and i64 {start}, {line - 1}')}, 0")
    around, through, done = ctx.label("around"), ctx.label("through"), ctx.label("done")
    ctx.write(f"br i1 {aligned}, label %{around}, label %{through}")
    for label, how in ((around, f"align {line}, !nontemporal !0"), (through, f"align {dtype.nbytes}")):
        ctx.open(label)
        ctx.write(f"store {typ} {value}, ptr {place}, {how}")
        ctx.write(f"br label %{done}")
    ctx.open(done)
    ctx.fences = True


def _scatter(ctx: Context, array: ir.Array, at: Rep, value: str) -> None:
    n, dtype = ctx.lanes, memory_dtype(array.dtype)
    typ, name = vector_type(dtype, n), f"llvm.masked.scatter.v{n}{suffix(dtype)}.v{n}p0"
    ctx.declare(name, f"declare void @{name}({typ}, <{n} x ptr>, i32, <{n} x i1>)")
    arguments = f"{typ} {value}, <{n} x ptr> {pointers(ctx, array, at)}, i32 {dtype.nbytes}"
    ctx.write(f"call void @{name}({arguments}, {mask_type(ctx)} {active(ctx)})")
