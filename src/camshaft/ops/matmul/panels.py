"""Packs b to panels of some vectors of columns.

b as [k, n] is copied along its rows, as f32 or as pairs of bf16. b as [n, k] is transposed 2 x 2 elements at a time, as u64,
which halves the stores: 0.20 ns per 32-bit element and 0.29 per 16-bit element to f32; with gathers or scatters of 16 elements,
0.44 to 0.65 (Zen 4).
"""

from __future__ import annotations

from dataclasses import replace

from camshaft.dtypes import i64, u32, u64
from camshaft.lang import Array, Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.matmul.blocked_kernel import WIDTH, paired_rows
from camshaft.ops.matmul.shapes import Sizes

# The k per program of `transpose_short`, pairs of k of `transpose_panels`: the output of a program stays in the L1 cache.
TURNED = 32
# The low half of a u64; u64 of a cache line.
_LOW, _LINE = 0xFFFFFFFF, 8


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
            ask(k, packed, at, k.minimum((d + part) * 2 + i, depth * 2 - 1))
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


def ask(k: Tracer, packed: Array, panel: Value, d: Value) -> None:
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
        ask(k, packed, at, k.minimum(first + d + part, depth - 1))
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
