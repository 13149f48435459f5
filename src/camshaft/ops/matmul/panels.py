"""Packing b as [k, n] to panels of some vectors of columns, along its rows: as f32, or as words of two bf16. For blocked.py."""

from __future__ import annotations

from camshaft.dtypes import u32
from camshaft.lang.ir import Value
from camshaft.lang.kernel import kernel
from camshaft.lang.tracer import Array, Tracer
from camshaft.ops.matmul.blocked_kernel import WIDTH, paired_rows


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
