"""The kernel of matmul in blocks: a register tile over blocks of rows, columns and depth that stay in a core's caches.

A program multiplies a block of rows with a group of panels of b (`vectors` vectors of columns each), `part` of the depth at a
time, so that a panel's part stays in the L2 cache for all row tiles. b is read in place or from packed panels. Products are
added in the order of k, starting at 0 in each part, so results depend only on `part`.

A 16-bit result is rounded once, when it is stored. If the depth has several parts, the f32 sums are in scratch until the last.

If a has 32-bit words, each is a pair of bf16 along the depth, and the depth counts words. b's rows are paired when they are
read or packed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from camshaft.dtypes import f32, u32
from camshaft.lang import Array, Tracer, Value, kernel
from camshaft.ops.matmul.blocks.product import LINE, Product
from camshaft.ops.matmul.shapes import WIDTH, Blocks, Tiles, even_panel


@kernel
def multiply_blocks(
    k: Tracer,
    a: Array,
    b: Array,
    out: Array,
    *extent: Value,
    copied: bool,
    paired_part: bool,
    ahead: int = 0,
    rows_ahead: int = 0,
    **constants: Any,
) -> None:
    # out[i, j] = sum_k a[i, k] b[k, j]: `block` tiles of rows and `panels` panels per program, `part` of the depth at a time
    s = Blocks(**constants)
    rows, columns = s.block * s.tile, s.panels * s.width
    # an odd number of lines apart
    pitch = -(-s.part // (2 * LINE)) * 2 * LINE + LINE
    left = k.scratch(f32, rows, pitch) if copied else None
    # an f32 out has the sums of earlier parts itself
    sums = k.scratch(f32, rows, columns) if s.depth > s.part and out.dtype != f32 else None
    panel = k.scratch(u32 if a.dtype == u32 else f32, s.part, s.width) if paired_part else None
    b_rows = -(-s.columns // s.width) if len(b.shape) == 3 else s.depth
    make = partial(Product, ahead=ahead, rows_ahead=rows_ahead, block=s.block)
    multiply(k, make, s, extent, b_rows, a=a, b=b, out=out, left=left, sums=sums, paired_part=panel)


def multiply(
    k: Tracer, make: Callable[..., Product], s: Blocks, extent: tuple[Value, ...], b_rows: int, **arrays: Array | None
) -> None:
    """Computes a program's blocks with a product that `make` makes of `arrays` and the places. `b_rows`: the rows, or panels, of
    a matrix of b."""
    index, active = k.program(0), extent[0] if extent else None
    tiles = Tiles(k, s.rows, s.tile, s.tall, active)
    first = k.program(2) * s.block
    last = k.minimum(first + s.block, tiles.count if active is None else (active + (s.tile - 1)) // s.tile)
    product_of = partial(
        make,
        k=k,
        tiles=tiles,
        first=first,
        last=last,
        a_row=s.a(index) * s.rows,
        b_row=s.b(index) * b_rows,
        out_row=index * s.rows,
        columns=s.columns,
        streamed=s.streamed,
        **arrays,
    )
    if not s.even:
        p0 = k.program(1) * (s.panels * s.width)
        product = product_of(p0=p0, vectors=s.vectors)
        product.by_parts(p0, k.minimum(p0 + s.panels * s.width, s.columns), s.depth, s.part)
        return
    start, stop = even_panel(k.program(1), s.even, s.all_vectors)
    for vectors in (s.vectors, s.vectors - 1):
        with k.when(stop - start == vectors):
            p0 = start * WIDTH
            product = product_of(p0=p0, vectors=vectors, is_even=True)
            product.by_parts(p0, p0 + 1, s.depth, s.part)
