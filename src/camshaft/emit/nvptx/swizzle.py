"""Arrays in workgroup memory whose rows are swizzled, so that the loads of whole matrices have no bank conflicts.

Workgroup memory has 32 banks of 4 bytes. A matrix of 8 x 8 of 16 bits has 8 rows of 16 bytes; at a distance of a power of two
they fall on the same banks. So chunk c (16 bytes) of row r is kept at chunk c ^ f(r), f(r) = (r % 8) / R % min(C, 8), where a row
has C chunks and R rows are 128 bytes, at least one row. Copies and loads of matrices, the only accesses of such an array, do so.
"""

from __future__ import annotations

from camshaft.emit.llvm.values import Rep
from camshaft.emit.nvptx.simt import SimtContext
from camshaft.lang import ir, tile_ir, traversal

# Elements of 16 bits in a chunk, and chunks in 128 bytes.
CHUNK, CHUNKS = 8, 8


def swizzled_arrays(body: ir.Block, shared: tuple[ir.Array, ...]) -> frozenset[ir.Array]:
    """The arrays that can be swizzled: two dimensions of 16-bit floats, rows of 2, 4, 8 ... chunks, and no other accesses."""
    found = {a for a in shared if a.dtype.name in ("f16", "bf16") and len(a.shape) == 2 and _in_chunks(a.shape[1])}
    for item in traversal.walk(body):
        found.difference_update(_others(item))
    return frozenset(found)


def _in_chunks(columns: int) -> bool:
    chunks = columns // CHUNK
    return columns % CHUNK == 0 and chunks > 1 and chunks & (chunks - 1) == 0


def _others(item: ir.Value | ir.Statement) -> list[ir.Array | None]:
    """The arrays that an item accesses by element, or as matrices that do not start at multiples of 8."""
    if isinstance(item, ir.Value):
        return [item.attr[0]] if item.op in ("load", "atomic") else []
    if isinstance(item, tile_ir.TileMma):
        return [array for array, at in ((item.a, item.a_at), (item.b, item.b_at)) if not _starts_in_eights(at)]
    if isinstance(item, tile_ir.AsyncCopy):
        return [item.source]
    return [item.array] if isinstance(item, (ir.Store, ir.Prefetch, tile_ir.TileNew, tile_ir.TileStore)) else []


def _starts_in_eights(at: tuple[ir.Value, ...]) -> bool:
    return all(value.op == "const" and value.attr % CHUNK == 0 for value in at)


def swizzled_column(ctx: SimtContext, array: ir.Array, row: Rep, column: Rep) -> Rep:
    """Where an element of a row is kept. `row`: its number, or that of a row a multiple of 8 above it."""
    if array not in ctx.swizzled:
        return column
    chunks = array.shape[1] // CHUNK
    apart = max(1, CHUNKS // chunks)  # rows in 128 bytes
    turn = ctx.line(f"and i64 {row.name}, {CHUNKS - 1}")
    turn = ctx.line(f"lshr i64 {turn}, {apart.bit_length() - 1}") if apart > 1 else turn
    turn = ctx.line(f"and i64 {turn}, {min(chunks, CHUNKS) - 1}")
    name = ctx.line(f"xor i64 {column.name}, {ctx.line(f'shl i64 {turn}, {CHUNK.bit_length() - 1}')}")
    return Rep(name, multiple=column.multiple if column.multiple % CHUNK else CHUNK)
