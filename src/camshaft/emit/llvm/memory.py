"""Loads and stores in LLVM IR: contiguous, repeated, gathered, masked."""

from __future__ import annotations

from camshaft.dtypes import DType, i64
from camshaft.emit.llvm import index
from camshaft.emit.llvm.context import Context, Typed
from camshaft.emit.llvm.expanded.expansions import cast
from camshaft.emit.llvm.values import Rep, array_name, iota, memory_dtype, scalar_type, suffix, vector_type
from camshaft.lang import ir


def pointer(ctx: Context, array: ir.Array, at: str, inbounds: bool = True) -> str:
    """The address of an element."""
    element, how = scalar_type(memory_dtype(array.dtype)), "inbounds " if inbounds else ""
    return ctx.line(f"getelementptr {how}{element}, ptr {array_name(array.name)}, i64 {at}")


def pointers(ctx: Context, array: ir.Array, at: Rep) -> str:
    """The address of each lane's element."""
    indexes, element = f"{ctx.index_type} {ctx.index_vector(at)}", scalar_type(memory_dtype(array.dtype))
    return ctx.line(f"getelementptr inbounds {element}, ptr {array_name(array.name)}, {indexes}")


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
        return load_vector(ctx, array, at, value.width, _count_mask(ctx, count, value.width))
    if at.is_scalar:
        return load_vector(ctx, array, at, 0, None)
    affine = at.affine
    if affine is not None and affine.is_contiguous:
        return load_vector(ctx, array, affine.base, ctx.lanes, ctx.mask)
    if affine is not None and affine.coefficient == 1:
        return _load_repeated(ctx, array, affine.base, affine.divisor)
    if not gathered:
        raise ctx.fail(value.line, f"lanes of {array.name} are not contiguous; ask for k.gather")
    return Rep(gather(ctx, memory_dtype(array.dtype), pointers(ctx, array, at), _active(ctx)), ctx.lanes)


def load_vector(ctx: Context, array: ir.Array, at: Rep, n: int, mask: str | None) -> Rep:
    """n elements from `at` on (n = 0: a scalar); 0 where the mask is off."""
    dtype = memory_dtype(array.dtype)
    address, typ = pointer(ctx, array, at.name), vector_type(dtype, n)
    if mask is None:
        return Rep(ctx.line(f"load {typ}, ptr {address}, align {ctx.alignment(array, at)}"), n)
    wide = f"<{n} x {scalar_type(dtype)}>"
    start = ("ptr", address), ("i32", str(dtype.nbytes))
    name, others = f"llvm.masked.load.{suffix(dtype, n)}.p0", (wide, "zeroinitializer")
    loaded = ctx.call(name, wide, *start, _mask_operand(ctx, mask, n), others)
    return Rep(loaded if n > 1 else ctx.line(f"extractelement {wide} {loaded}, i64 0"), n)


def _load_repeated(ctx: Context, array: ir.Array, base: Rep, each: int) -> Rep:
    """Load lanes // each elements and repeat each of them."""
    n = ctx.lanes // each
    # a single element needs no mask: code under a mask runs only if some lane is active
    mask = _group_mask(ctx, ctx.mask, n, each) if ctx.mask is not None and n > 1 else None
    few = load_vector(ctx, array, base, n, mask)
    if n == 1:
        return Rep(few.name)
    order = [i // each for i in range(ctx.lanes)]
    return Rep(ctx.shuffled(vector_type(memory_dtype(array.dtype), n), few.name, order), ctx.lanes)


def gather(ctx: Context, dtype: DType, addresses: str, mask: str, others: str = "zeroinitializer") -> str:
    """The element at each lane's address; `others` where the mask is off."""
    n, typ = ctx.lanes, vector_type(dtype, ctx.lanes)
    start = (f"<{n} x ptr>", addresses), ("i32", str(dtype.nbytes))
    return ctx.call(f"llvm.masked.gather.{suffix(dtype, n)}.v{n}p0", typ, *start, (ctx.mask_type, mask), (typ, others))


def prefetch(ctx: Context, item: ir.Prefetch) -> None:
    """Prefetch the first lane's element. It may be past the end, so the pointer is not `inbounds`."""
    at = index.linear(ctx, item.array, item.indices)
    if at.affine is not None:
        first = at.affine.base.name
    else:
        first = at.name if at.n <= 1 else ctx.line(f"extractelement {ctx.index_type} {at.name}, i64 0")
    address = pointer(ctx, item.array, first, inbounds=False)
    for_reading, keep_cached, data = (("i32", number) for number in f"0{3 if item.near else 2}1")
    ctx.call("llvm.prefetch.p0", "void", ("ptr", address), for_reading, keep_cached, data)


# --- stores ----------------------------------------------------------------------------------------------------------


def store(ctx: Context, item: ir.Store) -> None:
    array, rep, width = item.array, ctx.reps[item.value], item.value.width
    at = index.linear(ctx, array, item.indices)
    if at.is_scalar and not width and ctx.width_of((rep,)):
        raise ctx.fail(item.line, f"lanes store different values to one element of {array.name}")
    n = width or (ctx.lanes if ctx.lanes > 1 and not at.is_scalar else 0)
    name = ctx.as_vector(rep, item.value.dtype, n)
    name = stored_form(ctx.typed(item.value.dtype, n), name, array.dtype)
    if width:
        mask = _count_mask(ctx, ctx.reps[item.count] if item.count is not None else None, n)
        if item.streamed and mask is None and at.is_scalar and _may_stream(ctx, array, at, n, pieces=2):
            _store_streamed(ctx, array, at, name, n)
        else:
            store_vector(ctx, array, at, name, n, mask)
    elif at.is_scalar:
        store_vector(ctx, array, at, name, 0, None)
    elif at.affine is not None and at.affine.is_contiguous:
        if item.streamed and ctx.mask is None and _may_stream(ctx, array, at.affine.base, n):
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
    """Store the elements of n from `at` on (n = 0: a scalar) whose mask is on."""
    dtype = memory_dtype(array.dtype)
    address, typ = pointer(ctx, array, at.name), vector_type(dtype, n)
    if mask is None:
        ctx.write(f"store {typ} {value}, ptr {address}, align {dtype.nbytes}")
        return
    wide = f"<{n} x {scalar_type(dtype)}>"
    if n == 1:
        value = ctx.line(f"insertelement {wide} poison, {typ} {value}, i64 0")
    if n > 1 and not dtype.is_float and dtype.nbytes < 8 and "avx512f" in ctx.target.features:
        mask = _opaque_mask(ctx, mask, n)
    start, name = (("ptr", address), ("i32", str(dtype.nbytes))), f"llvm.masked.store.{suffix(dtype, n)}.p0"
    ctx.call(name, "void", (wide, value), *start, _mask_operand(ctx, mask, n))


def _may_stream(ctx: Context, array: ir.Array, at: Rep, n: int, pieces: int = 1) -> bool:
    """Whether the store writes whole cache lines, or one of so many pieces of a line, if the array starts at a line."""
    nbytes, line = memory_dtype(array.dtype).nbytes, ctx.target.stream_nbytes
    piece = min(line, max(line // pieces, n * nbytes))
    return line > 0 and n * nbytes % piece == 0 and at.multiple * nbytes % piece == 0


def _store_streamed(ctx: Context, array: ir.Array, at: Rep, value: str, n: int) -> None:
    """Emit nontemporal stores if the array starts at a cache line, else ordinary ones.

    A caller's array may be unaligned, and nontemporal stores of partial lines take twice as long as ordinary stores. A kernel
    with nontemporal stores ends with a fence (`fences`).
    """
    dtype, line = memory_dtype(array.dtype), ctx.target.stream_nbytes
    address, typ = pointer(ctx, array, at.name), vector_type(dtype, n)
    start = ctx.line(f"ptrtoint ptr {array_name(array.name)} to i64")
    aligned = ctx.line(f"icmp eq i64 {ctx.line(f'and i64 {start}, {line - 1}')}, 0")
    around, through, done = ctx.label("around"), ctx.label("through"), ctx.label("done")
    ctx.write(f"br i1 {aligned}, label %{around}, label %{through}")
    aligned_to = min(line, n * dtype.nbytes)
    for label, how in ((around, f"align {aligned_to}, !nontemporal !0"), (through, f"align {dtype.nbytes}")):
        ctx.open(label)
        ctx.write(f"store {typ} {value}, ptr {address}, {how}")
        ctx.write(f"br label %{done}")
    ctx.open(done)
    ctx.fences = True


def _scatter(ctx: Context, array: ir.Array, at: Rep, value: str) -> None:
    n, dtype = ctx.lanes, memory_dtype(array.dtype)
    start = (f"<{n} x ptr>", pointers(ctx, array, at)), ("i32", str(dtype.nbytes))
    name = f"llvm.masked.scatter.{suffix(dtype, n)}.v{n}p0"
    ctx.call(name, "void", (vector_type(dtype, n), value), *start, (ctx.mask_type, _active(ctx)))


# --- masks -----------------------------------------------------------------------------------------------------------


def _active(ctx: Context) -> str:
    """The mask of active lanes as an operand."""
    return ctx.mask or "splat (i1 true)"


def _count_mask(ctx: Context, count: Rep | None, n: int) -> str | None:
    """The mask of elements below `count` (none if it is negative)."""
    if count is None:
        return None
    return ctx.line(f"icmp slt {vector_type(i64, n)} {iota(n)}, {ctx.splat(count.name, i64, n)}")


def _mask_operand(ctx: Context, mask: str, n: int) -> tuple[str, str]:
    """A mask as an argument: a scalar becomes a vector of one element."""
    return f"<{n} x i1>", mask if n > 1 else ctx.line(f"insertelement <1 x i1> poison, i1 {mask}, i64 0")


def _group_mask(ctx: Context, mask: str, n: int, each: int) -> str:
    """Whether any lane of each group is active. If the mask is a prefix, the first lane of a group decides."""
    starts = range(1 if ctx.mask_is_prefix else each)
    first, *rest = [ctx.shuffled(ctx.mask_type, mask, [i * each + start for i in range(n)]) for start in starts]
    for part in rest:
        first = ctx.line(f"or <{n} x i1> {first}, {part}")
    return first


def _opaque_mask(ctx: Context, mask: str, n: int) -> str:
    """The mask passed through inline assembly, which hides its origin from LLVM.

    LLVM 22 with AVX-512 stores the first lane of a truncated vector at its width before truncation: 4 bytes for an i8.
    """
    if n > 64:
        halves = [ctx.shuffled(f"<{n} x i1>", mask, list(range(start, start + n // 2))) for start in (0, n // 2)]
        low, high = (_opaque_mask(ctx, half, n // 2) for half in halves)
        return ctx.shuffled(f"<{n // 2} x i1>", low, list(range(n)), high)
    bits = ctx.line(f"bitcast <{n} x i1> {mask} to i{n}")
    wide = bits if n == 64 else ctx.line(f"zext i{n} {bits} to i64")
    opaque = ctx.line(f'call i64 asm "", "=r,0"(i64 {wide})')
    back = opaque if n == 64 else ctx.line(f"trunc i64 {opaque} to i{n}")
    return ctx.line(f"bitcast i{n} {back} to <{n} x i1>")
