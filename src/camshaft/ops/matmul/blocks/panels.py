"""Packs operands of matmul to panels of some vectors of columns, or to tiles of some rows.

b as [k, n] is copied along its rows, as f32 or as words of two 16-bit elements. b as [n, k] is transposed element by element, or
2 x 2 elements at a time as u64, which halves the stores (docs/performance/matrix_products.md).
"""

from __future__ import annotations

from dataclasses import replace

from camshaft.dtypes import i64, u32, u64
from camshaft.lang import Array, Number, Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.matmul.shapes import PAIR, WIDTH, Sizes, column_vectors

PACK_DEPTH = 256  # k of a program, by default
# The k per program of `transpose_short`, pairs of k of `transpose_panels`: the output of a program stays in the L1 cache.
TURNED = 32
# The low half of a u64; u64 of a cache line.
_LOW, _LINE = 0xFFFFFFFF, 8


def paired_rows(k: Tracer, b: Array, row: Number, start: Value, count: Value | None) -> Value:
    """Combines rows `row` and `row` + 1 of 16-bit elements to words, with the first row in the low halves."""
    low, high = (k.load_vector(b, row + i, start, width=WIDTH, count=count).to(u32) for i in range(2))
    return (high << 16) | low


@kernel
def pack_rows(k: Tracer, a: Array, packed: Array, *extent: Value, rows: int, tile: int, depth: int) -> None:
    # packed[matrix, tile, k, r] = a[matrix, tile * TILE + r, k]; rows past the last repeat it
    matrix, at, tiles = k.program(0), k.program(1), -(-rows // tile)
    active = extent[0] if extent else rows
    for r in range(tile):
        row = k.minimum(at * tile + r, active - 1) + matrix * rows
        for c in k.lanes(depth):
            k.scatter(packed, a[row, c], matrix * tiles + at, c, r)


@kernel
def pack_columns(k: Tracer, b: Array, packed: Array, *, columns: int, vectors: int, depth: int, part: int) -> None:
    # packed[matrix, panel, d, c] = b[matrix, d, panel * NR + c], or a word of rows 2d and 2d + 1 of 16 bits; columns past
    # the last are 0
    matrix, panel, first = k.program(0), k.program(1), k.program(2) * part
    panels = -(-columns // (vectors * WIDTH))
    at, counts = column_vectors(k, panel * (vectors * WIDTH), columns, vectors)
    for d in k.range(first, k.minimum(first + part, depth)):
        for j in range(vectors):
            if packed.dtype == u32:
                values = paired_rows(k, b, matrix * (PAIR * depth) + d * PAIR, at[j], counts[j])
            else:
                values = k.load_vector(b, matrix * depth + d, at[j], width=WIDTH, count=counts[j])
            k.store_vector(packed, values, matrix * panels + panel, d, j * WIDTH)


@kernel
def pack_transposed(k: Tracer, b: Array, packed: Array, *, columns: int, vectors: int, depth: int, part: int) -> None:
    # packed[matrix, panel, k, c] = b[matrix, panel * NR + c, k]; columns past the last repeat it
    matrix, panel, first = k.program(0), k.program(1), k.program(2) * part
    panels = -(-columns // (vectors * WIDTH))
    for c in range(vectors * WIDTH):
        row = k.minimum(panel * (vectors * WIDTH) + c, columns - 1) + matrix * columns
        for d in k.lanes(first, k.minimum(first + part, depth)):
            k.scatter(packed, b[row, d], matrix * panels + panel, d, c)


@kernel
def pack_panels(k: Tracer, b: Array, packed: Array, *, columns: int, vectors: int, depth: int, deep: int) -> None:
    # packed[matrix, panel, d, c] = b[matrix, d, panel * NR + c]: `deep` rows per program; as 32-bit
    # words, the rows 2d and 2d + 1 of 16 bits each
    matrix, first, width = k.program(0), k.program(1) * deep, vectors * WIDTH
    panels = -(-columns // width)
    for panel in k.range(panels):
        starts = [panel * width + j * WIDTH for j in range(vectors)]
        counts: list[Value | None] = [None] * vectors
        if columns % width:
            counts = [k.maximum(columns - s, 0) for s in starts]
            starts = [k.minimum(s, columns - 1) for s in starts]
        for d in k.range(first, k.minimum(first + deep, depth)):
            for j, (s, n) in enumerate(zip(starts, counts, strict=True)):
                row = matrix * depth + d
                if packed.dtype == u32:
                    values = paired_rows(k, b, row * 2, s, n)
                else:
                    values = k.load_vector(b, row, s, width=WIDTH, count=n)
                k.store_vector(packed, values, matrix * panels + panel, d, j * WIDTH)


@kernel
def transpose_panels(k: Tracer, b: Array, packed: Array, *, columns: int, vectors: int, depth: int, part: int) -> None:
    # packed[matrix, panel, d, c] = b[matrix, panel * NR + c, d], of 32 bits each: b as two k of a column, packed as two columns
    # of a k. Columns past the last repeat it
    matrix, panel, first = k.program(0), k.program(1), k.program(2) * part
    width = vectors * WIDTH
    rows = columns_of(k, panel * width, width, columns)
    at = matrix * -(-columns // width) + panel
    after, ahead = next_of(k, first, part, depth, width)
    for d in k.range(first, k.minimum(first + part, depth)):
        # the next program's part of two rows
        for c in range(0, 2 * part, 8):
            row = k.minimum((d - first) * (width // part) + c // part + after + panel * width, columns - 1)
            k.prefetch(b, matrix * columns + row, k.minimum(ahead + c % part, depth - 1))
        for i in range(2):
            prefetch_row(k, packed, at, k.minimum((d + part) * 2 + i, depth * 2 - 1))
        for c in range(0, width, 2):
            one, two = (b[matrix * columns + row, d] for row in rows[c : c + 2])
            packed[at, d * 2, c // 2] = (one & _LOW) | (two << 32)
            packed[at, d * 2 + 1, c // 2] = (one >> 32) | (two >> 32 << 32)


def columns_of(k: Tracer, first: Value, width: int, columns: int) -> list[Value]:
    """Returns a panel's columns; columns past the last repeat it."""
    found = [first + c for c in range(width)]
    return [k.minimum(c, columns - 1) for c in found] if columns % width else found


def next_of(k: Tracer, first: Value, part: int, depth: int, width: int) -> tuple[Value, Value]:
    """Returns where the next program's part of b starts, for prefetching: columns ahead, and the first k. Hardware cannot
    prefetch 64 streams: without it f16 from memory took 1.7 ns per element."""
    past, zero = first + part >= depth, k.const(0, i64)
    return k.select(past, k.const(width, i64), zero), k.select(past, zero, first + part)


def prefetch_row(k: Tracer, packed: Array, panel: Value, d: Value) -> None:
    """Prefetches a panel's row that the next program writes. Otherwise stores of 8 bytes wait for 8 lines at a time, 1.2 ns
    per element."""
    for c in range(0, packed.shape[2], _LINE):
        k.prefetch(packed, panel, d, c)


@kernel
def transpose_short(k: Tracer, b: Array, packed: Array, *, columns: int, vectors: int, depth: int, part: int) -> None:
    # packed[matrix, panel, d, c] = f32 of b[matrix, panel * NR + c, d], of 16 bits, by way of scratch: packed as in
    # transpose_panels
    matrix, panel, first = k.program(0), k.program(1), k.program(2) * part
    width = vectors * WIDTH
    rows, transposed = columns_of(k, panel * width, width, columns), k.scratch(u64, width // 2, part)
    after, ahead = next_of(k, first, part, depth, width)
    for row in rows:
        k.prefetch(b, matrix * columns + k.minimum(row + after, columns - 1), ahead)
    for i in range(0, part, WIDTH):
        start, count = first + i, None
        if depth % part:
            count = k.maximum(depth - start, 0)
            start = k.minimum(start, depth - 1)
        for c in range(0, width, 2):
            values = [k.load_vector(b, matrix * columns + r, start, width=WIDTH, count=count) for r in rows[c : c + 2]]
            one, two = (k.bitcast(value, u32).to(u64) for value in values)
            k.store_vector(transposed, one | (two << 32), c // 2, i)
    at = matrix * -(-columns // width) + panel
    for d in k.range(k.minimum(part, depth - first)):
        prefetch_row(k, packed, at, k.minimum(first + d + part, depth - 1))
        for c in range(width // 2):
            packed[at, first + d, c] = transposed[c, d]


def turn_launch(s: Sizes, vectors: int, b: ops.Operand, short: bool) -> ops.Launch:
    """Returns the launch that packs b, [n, k], to panels of 32-bit elements in scratch 0. b has an even number of 32-bit
    elements per row, or any number of 16-bit ones (`short`)."""
    columns, depth = vectors * WIDTH, s.depth if short else s.depth // 2
    panels = -(-s.columns // columns)
    if not short:
        b = replace(b, shape=(s.b_matrices * s.columns, depth), dtype=u64)
    packed = ops.Operand("scratch", 0, shape=(s.b_matrices * panels, s.depth, columns // 2), access="write", dtype=u64)
    return ops.Launch(
        transpose_short if short else transpose_panels,
        (b, packed),
        (ops.Cells(s.b_matrices), ops.Cells(panels), ops.Cells(depth, TURNED)),
        {"columns": s.columns, "vectors": vectors, "depth": depth, "part": TURNED},
    )


def pack_launch(s: Sizes, vectors: int, part: int, b: ops.Operand, scratch: int) -> ops.Launch:
    """Returns the launch that packs b to panels of `vectors` vectors: a scratch tensor [matrices x panels, k, columns]. `part`:
    the k of a program."""
    panels = -(-s.columns // (vectors * WIDTH))
    return ops.Launch(
        pack_transposed if s.transposed else pack_columns,
        (b, ops.scratch(scratch, "write")),
        (ops.Cells(s.b_matrices), ops.Cells(panels), ops.Cells(s.depth, part)),
        {"columns": s.columns, "vectors": vectors, "depth": s.depth, "part": part},
    )
