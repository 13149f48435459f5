"""Packing b to panels of some vectors of columns. For blocked.py.

As [k, n] along its rows, as f32 or as words of two bf16. As [n, k] 32-bit elements are turned two columns by two k at a time.
"""

from __future__ import annotations

from camshaft.dtypes import u32, u64
from camshaft.lang.ir import Value
from camshaft.lang.kernel import kernel
from camshaft.lang.tracer import Array, Tracer
from camshaft.ops import op as ops
from camshaft.ops.matmul.blocked_kernel import WIDTH, paired_rows
from camshaft.ops.matmul.shapes import Sizes

# Pairs of k that a program of `turn_panels` takes: what it writes stays in the first cache.
TURNED = 32
# The low half of a u64.
_LOW = 0xFFFFFFFF


@kernel
def pack_panels(k: Tracer, b: Array, packed: Array, *, columns: int, vectors: int, depth: int, deep: int) -> None:
    # packed[matrix, panel, d, c] = b[matrix, d, panel * NR + c]: `deep` rows a program, from their start to their end; in words,
    # the rows 2d and 2d + 1 of 16 bits each
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
def turn_panels(k: Tracer, b: Array, packed: Array, *, columns: int, vectors: int, depth: int, part: int) -> None:
    # packed[matrix, panel, d, c] = b[matrix, panel * NR + c, d], of 32 bits each, as u64 of two: b's are two k of a column,
    # those of packed two columns of a k. Columns past the last repeat it. A word takes 0.20 ns so, by a gather or a scatter of
    # 16 0.44 to 0.65 (Zen 4)
    matrix, panel, first = k.program(0), k.program(1), k.program(2) * part
    width = vectors * WIDTH
    rows = [panel * width + c for c in range(width)]
    if columns % width:
        rows = [k.minimum(row, columns - 1) for row in rows]
    at = matrix * -(-columns // width) + panel
    for d in k.range(first, k.minimum(first + part, depth)):
        for c in range(0, width, 2):
            one, two = (b[matrix * columns + row, d] for row in rows[c : c + 2])
            packed[at, d * 2, c // 2] = (one & _LOW) | (two << 32)
            packed[at, d * 2 + 1, c // 2] = (one >> 32) | (two >> 32 << 32)


def turn_launch(s: Sizes, vectors: int) -> ops.Launch:
    """b as [n, k] of 32-bit elements, an even number of k, to panels in scratch 0."""
    columns, half = vectors * WIDTH, s.depth // 2
    panels = -(-s.columns // columns)
    b = ops.Operand("input", 1, shape=(s.b_matrices * s.columns, half), dtype=u64)
    packed = ops.Operand("scratch", 0, shape=(s.b_matrices * panels, s.depth, columns // 2), access="write", dtype=u64)
    grid = (ops.Cells(s.b_matrices), ops.Cells(panels), ops.Cells(half, TURNED))
    return ops.Launch(
        turn_panels, (b, packed), grid, {"columns": s.columns, "vectors": vectors, "depth": half, "part": TURNED}
    )
