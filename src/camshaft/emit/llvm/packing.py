"""pack, partition, reverse, permute and count of explicit vectors in LLVM IR.

AVX-512 packs by an instruction. AVX2 permutes a register of 8 words by a row of a table, one for each mask. Elsewhere elements
are stored one after the other: LLVM 22 crashes on its intrinsic for some vectors of CPUs without the instruction.
"""

from __future__ import annotations

from camshaft.dtypes import DType
from camshaft.emit.llvm.context import Context
from camshaft.emit.llvm.values import Rep, literal, scalar_type, suffix, vector_type
from camshaft.lang import ir

# Words of the register that AVX2 permutes; the sign of a table's byte clears a word.
_WORDS, _CLEARED = 8, 0x80


def pack(ctx: Context, value: ir.Value) -> Rep:
    """Return the elements where the mask is true, then zeros."""
    vector, mask = (ctx.reps[arg].name for arg in value.args)
    return Rep(_packed(ctx, vector, mask, value.dtype, value.width), value.width)


def partition(ctx: Context, value: ir.Value) -> Rep:
    """Return the elements where the mask is true, in order from the first on, the others from the last."""
    vector, mask = (ctx.reps[arg].name for arg in value.args)
    n, dtype = value.width, value.dtype
    if n == 1:
        return Rep(vector, n)
    if _has_table(ctx, dtype, n):
        return Rep(_by_table(ctx, vector, mask, dtype, n, others=True), n)
    opposite = ctx.line(f"xor <{n} x i1> {mask}, splat (i1 true)")
    words = f"<{n} x i{dtype.bits}>"
    first, last = (
        ctx.line(f"bitcast {vector_type(dtype, n)} {packed} to {words}")
        for packed in (
            _packed(ctx, vector, mask, dtype, n),
            ctx.shuffled(vector_type(dtype, n), _packed(ctx, vector, opposite, dtype, n), range(n)[::-1]),
        )
    )
    both = ctx.line(f"or {words} {first}, {last}")
    return Rep(ctx.line(f"bitcast {words} {both} to {vector_type(dtype, n)}"), n)


def _packed(ctx: Context, vector: str, mask: str, dtype: DType, n: int) -> str:
    """The elements where the mask is true, then zeros."""
    if n == 1:
        return ctx.typed(dtype, n).select(mask, vector, literal(0, dtype))
    whole = min(n, ctx.target.vector_bits // dtype.bits)
    if not (_has_instruction(ctx, dtype) or _has_table(ctx, dtype, whole)):
        return _one_by_one(ctx, vector, mask, dtype, n)
    return _in_register(ctx, vector, mask, dtype, n) if n == whole else _pieces(ctx, vector, mask, dtype, n, whole)


def _has_instruction(ctx: Context, dtype: DType) -> bool:
    return dtype.bits >= 32 and {"avx512f", "avx512vl"} <= ctx.target.features


def _has_table(ctx: Context, dtype: DType, n: int) -> bool:
    return n * dtype.bits == 32 * _WORDS and "avx2" in ctx.target.features and ctx.target.vector_bits < 512


def _in_register(ctx: Context, vector: str, mask: str, dtype: DType, n: int) -> str:
    if _has_table(ctx, dtype, n):
        return _by_table(ctx, vector, mask, dtype, n)
    typ = vector_type(dtype, n)
    operands = (typ, vector), (f"<{n} x i1>", mask), (typ, "zeroinitializer")
    return ctx.call(f"llvm.experimental.vector.compress.{suffix(dtype, n)}", typ, *operands)


def _one_by_one(ctx: Context, vector: str, mask: str, dtype: DType, n: int) -> str:
    """Store each element, or 0 where the mask is false, at the number of true ones before it."""
    element, typ = scalar_type(dtype), vector_type(dtype, n)
    room, zero = f"[{n} x {element}]", literal(0, dtype)
    slot, at = ctx.slot("packed", room, ", align 64"), "0"
    ctx.write(f"store {room} zeroinitializer, ptr {slot}, align 64")
    for i in range(n):
        value, there = (ctx.line(f"extractelement {t} {v}, i32 {i}") for t, v in ((typ, vector), (f"<{n} x i1>", mask)))
        address = ctx.line(f"getelementptr inbounds {element}, ptr {slot}, i64 {at}")
        kept = ctx.line(f"select i1 {there}, {element} {value}, {element} {zero}")
        ctx.write(f"store {element} {kept}, ptr {address}, align {dtype.nbytes}")
        at = ctx.line(f"add i64 {at}, {ctx.line(f'zext i1 {there} to i64')}")
    return ctx.line(f"load {typ}, ptr {slot}, align 64")


def _pieces(ctx: Context, vector: str, mask: str, dtype: DType, n: int, whole: int) -> str:
    """Pack registers of `whole` elements and store them one after the other: LLVM 22 crashes on such a vector."""
    element, piece, typ = scalar_type(dtype), vector_type(dtype, whole), vector_type(dtype, n)
    room = f"[{n + whole} x {element}]"
    slot, at = ctx.slot("packed", room, ", align 64"), "0"
    ctx.write(f"store {room} zeroinitializer, ptr {slot}, align 64")
    for start in range(0, n, whole):
        order = range(start, start + whole)
        part, bits = ctx.shuffled(typ, vector, order), ctx.shuffled(f"<{n} x i1>", mask, order)
        address = ctx.line(f"getelementptr inbounds {element}, ptr {slot}, i64 {at}")
        ctx.write(f"store {piece} {_in_register(ctx, part, bits, dtype, whole)}, ptr {address}, align {dtype.nbytes}")
        at = ctx.line(f"add i64 {at}, {_number(ctx, bits, whole)}")
    return ctx.line(f"load {typ}, ptr {slot}, align 64")


def reverse(ctx: Context, value: ir.Value) -> Rep:
    """Return the elements from the last to the first."""
    n, name = value.width, ctx.reps[value.args[0]].name
    return Rep(name if n == 1 else ctx.shuffled(vector_type(value.dtype, n), name, range(n)[::-1]), n)


# A register's words -> the feature and the intrinsic that permutes it.
_PERMUTES = {16: ("avx512f", "llvm.x86.avx512.permvar.sf.512"), 8: ("avx2", "llvm.x86.avx2.permps")}


def permute(ctx: Context, value: ir.Value) -> Rep:
    """Return the elements that the indexes name, by an instruction where the vector is a register."""
    (vector, indexes), n = (ctx.reps[arg].name for arg in value.args), value.width
    if n == 1:
        return Rep(vector, n)
    feature, name = _PERMUTES.get(n, ("", ""))
    if feature not in ctx.target.features:
        return Rep(_named(ctx, vector, indexes, value), n)
    typ, floats, words = vector_type(value.dtype, n), f"<{n} x float>", f"<{n} x i32>"
    given = vector if typ == floats else ctx.line(f"bitcast {typ} {vector} to {floats}")
    found = ctx.call(name, floats, (floats, given), (words, indexes))
    return Rep(found if typ == floats else ctx.line(f"bitcast {floats} {found} to {typ}"), n)


def _named(ctx: Context, vector: str, indexes: str, value: ir.Value) -> str:
    """The elements one by one."""
    n, typ, result = value.width, vector_type(value.dtype, value.width), "poison"
    for i in range(n):
        index = ctx.line(f"extractelement <{n} x i32> {indexes}, i32 {i}")
        near = ctx.line(f"and i32 {index}, {n - 1}")
        element = ctx.line(f"extractelement {typ} {vector}, i32 {near}")
        result = ctx.line(f"insertelement {typ} {result}, {scalar_type(value.dtype)} {element}, i32 {i}")
    return result


def count(ctx: Context, value: ir.Value) -> Rep:
    """Return the number of true elements."""
    return Rep(_number(ctx, ctx.reps[value.args[0]].name, value.args[0].width))


def _number(ctx: Context, mask: str, n: int) -> str:
    if n == 1:
        return ctx.line(f"zext i1 {mask} to i64")
    number = ctx.call(f"llvm.ctpop.i{n}", f"i{n}", (f"i{n}", _bits(ctx, mask, n)))
    return number if n == 64 else ctx.line(f"zext i{n} {number} to i64")


def _bits(ctx: Context, mask: str, n: int) -> str:
    return ctx.line(f"bitcast <{n} x i1> {mask} to i{n}")


def _by_table(ctx: Context, vector: str, mask: str, dtype: DType, n: int, others: bool = False) -> str:
    """Permute the words of a register by the row of its mask; clear those of no element, or have the `others` there."""
    table, typ, words = f"{'partition' if others else 'pack'}_order{n}", vector_type(dtype, n), f"<{_WORDS} x i32>"
    ctx.declarations[table] = f"@{table} = private unnamed_addr constant {_orders(n, others)}, align 64"
    row = ctx.line(f"zext i{n} {_bits(ctx, mask, n)} to i64")
    address = ctx.line(f"getelementptr inbounds i64, ptr @{table}, i64 {row}")
    octets = ctx.line(f"load <{_WORDS} x i8>, ptr {address}, align 8")
    order = ctx.line(f"sext <{_WORDS} x i8> {octets} to {words}")
    given = ctx.line(f"bitcast {typ} {vector} to {words}")
    moved = ctx.call("llvm.x86.avx2.permd", words, (words, given), (words, order))
    if others:
        return ctx.line(f"bitcast {words} {moved} to {typ}")
    kept = ctx.line(f"icmp sge {words} {order}, zeroinitializer")
    result = ctx.line(f"select <{_WORDS} x i1> {kept}, {words} {moved}, {words} zeroinitializer")
    return ctx.line(f"bitcast {words} {result} to {typ}")


def _orders(n: int, others: bool) -> str:
    """For each mask of n elements: which word comes to each place, a byte each; `others`: those of no element, from the last."""
    each, rows = _WORDS // n, []
    for mask in range(1 << n):
        kept, rest = ([i for i in range(n) if mask >> i & 1 == bit] for bit in (1, 0))
        places = [each * i + part for i in (*kept, *(rest[::-1] if others else ())) for part in range(each)]
        octets = bytes(places + [_CLEARED] * (_WORDS - len(places)))
        rows.append(f"i64 {int.from_bytes(octets, 'little')}")
    return f"[{1 << n} x i64] [{', '.join(rows)}]"
