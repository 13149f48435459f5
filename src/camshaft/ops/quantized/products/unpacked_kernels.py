"""Kernels of products of f32 by packed weights where a program unpacks the weights itself: y = x W^T, and y = x W.

Blocks and tiles are those of matmul's `blocked`. A program unpacks a part of a panel of weights into scratch, once for all of its
rows of x, so the f32 weights never lie in memory. In the packed layout a vector is 16 rows of W at one column of it: a row of a
panel of W^T as it is. Panels of W are turned on the way, 16 rows and 32 columns at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from camshaft.dtypes import f32, i32
from camshaft.lang import Array, Tracer, Value, kernel
from camshaft.ops.matmul.blocks.blocked_kernel import multiply
from camshaft.ops.matmul.blocks.product import LINE, Columns, Part, Product
from camshaft.ops.matmul.shapes import WIDTH, Blocks
from camshaft.ops.quantized.packed.formats import BLOCK
from camshaft.ops.quantized.packed.packing import ROWS
from camshaft.ops.quantized.packed.weights import Load, Packed, packed


def unpacked_block(weights: Packed, load: Load, b: Value) -> Iterator[Value]:
    """Yields the numbers of the 32 columns of block b, a vector of rows each, as `dequantize` has them; `load(array, *at)` reads
    array[tile, *at, row]."""
    k, groups = weights.k, weights.form.groups
    words = weights.code_words(load, b)
    for g in range(groups):
        scale, minimum = weights.scale(load, b, g)
        for w in range(g * 8 // groups, (g + 1) * 8 // groups):
            for byte in range(4):
                code = ((words[w] >> (8 * byte)) & 255).to(i32).to(f32)
                if minimum is None:
                    yield (code - float(weights.form.zero_point or 0)) * scale
                else:
                    yield k.fma(code, scale, minimum)


@dataclass(frozen=True, kw_only=True)
class UnpackedProduct(Product):
    """A program's operands. `part_of_b` has the unpacked part of a panel, [1, part, columns]."""

    packed: Packed
    part_of_b: Array

    def tile_of_rows(self, tile: Value) -> Load:
        """Returns what loads a vector of 16 rows of the packed weights; tiles past the last repeat it."""
        last = self.packed.codes.shape[0] - 1

        def load(array: Array, *at: Any) -> Value:
            return self.k.load_vector(array, self.k.minimum(tile, last), *at, 0, width=ROWS)

        return load

    def pair_part(self, p: Value, part: Part) -> None:
        """Unpacks the panel's part."""
        k = self.k
        k.barrier()
        for j in range(self.vectors):
            load = self.tile_of_rows(p // WIDTH + j)
            for b in k.range(part.length // BLOCK):
                for i, values in enumerate(unpacked_block(self.packed, load, b + part.start // BLOCK)):
                    k.store_vector(self.part_of_b, values, 0, b * BLOCK + i, j * WIDTH)
        k.barrier()

    def weights(self, at: Columns, p: Value, start: Any, n: Value) -> list[Value]:
        """Returns row n of the unpacked part."""
        return [self.k.load_vector(self.part_of_b, 0, n, j * WIDTH, width=WIDTH) for j in range(self.vectors)]


@dataclass(frozen=True, kw_only=True)
class TurnedProduct(UnpackedProduct):
    """As UnpackedProduct, where the depth is the rows of W. A block of 32 columns is unpacked at once: two panels of one vector,
    [2, part, 16], or a part of a wider panel. `turned` has the block as it is packed, [32, 16]."""

    turned: Array

    def pair_part(self, p: Value, part: Part) -> None:
        """Unpacks the part of the panel, and of the next one if a block has two."""
        k, panels = self.k, self.part_of_b.shape[0]
        k.barrier()
        with k.when(p % BLOCK == 0) if panels == 2 else nullcontext():
            for t in k.range(-(-part.length // ROWS)):
                load = self.tile_of_rows(t + part.start // ROWS)
                for j in range(panels * self.vectors * WIDTH // BLOCK):
                    last = self.packed.codes.shape[1] - 1
                    self.turn(load, k.minimum(p // BLOCK + j, last), t * ROWS, j * BLOCK)
        k.barrier()

    def turn(self, load: Load, b: Value, row: Value, column: int) -> None:
        """Unpacks 16 rows of block b to the part's rows from `row` on, at `column`."""
        k, width = self.k, self.vectors * WIDTH
        for i, values in enumerate(unpacked_block(self.packed, load, b)):
            k.store_vector(self.turned, values, i, 0)
        for r in k.range(ROWS):
            for i in range(BLOCK):
                panel, c = divmod(column + i, width)
                self.part_of_b[panel, row + r, c] = self.turned[i, r]

    def weights(self, at: Columns, p: Value, start: Any, n: Value) -> list[Value]:
        """Returns row n of the panel's unpacked part."""
        k, panels = self.k, self.part_of_b.shape[0]
        panel: Any = p // WIDTH % 2 if panels == 2 else 0
        return [k.load_vector(self.part_of_b, panel, n, j * WIDTH, width=WIDTH) for j in range(self.vectors)]


@kernel
def multiply_unpacked(
    k: Tracer,
    a: Array,
    codes: Array,
    scales: Array,
    extra: Array,
    out: Array,
    *extent: Value,
    form: str,
    copied: bool,
    turns: bool,
    **constants: Any,
) -> None:
    # out[i, j] = sum_k a[i, k] w[j, k], or w[k, j] if it `turns`
    s = Blocks(**constants)
    weights, deep = packed(k, codes, scales, extra, form), -(-s.part // ROWS) * ROWS
    pitch = -(-s.part // (2 * LINE)) * 2 * LINE + LINE
    make = partial(TurnedProduct if turns else UnpackedProduct, packed=weights)
    arrays: dict[str, Array | None] = {"a": a, "b": codes, "out": out}
    arrays["left"] = k.scratch(f32, s.block * s.tile, pitch) if copied else None
    arrays["part_of_b"] = k.scratch(f32, 2 if turns and s.vectors == 1 else 1, deep, s.width)
    if turns:
        arrays["turned"] = k.scratch(f32, BLOCK, ROWS)
    multiply(k, make, s, extent, 0, **arrays)
