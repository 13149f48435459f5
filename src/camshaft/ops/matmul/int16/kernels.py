"""Kernels of int16 products, with a scale for each 64 k of a row of a and of a column of b.

A block of 64 k is q = round(x / d) in int16, as 32 words of two: word 16 h + i has k 32 h + i and 32 h + i + 16. d is such that
the root of the sum of q^2 is at most 32,765 in b and 65,505 in a (NORM and MOST, and what rounding adds). By Cauchy and Schwarz a
sum of products of two blocks, and of any part of them, then has a magnitude of at most 32,765 * 65,505 < 2^31: it fits an i32. In
a, d is also such that |q| is at most MOST and fits an i16. The deviation of normal numbers is 4,100 steps in b, 8,200 in a; f16
has 1,024 to 2,048 steps from 0 to a number.

The i32 becomes f32 (24 of its 31 bits), is multiplied by both scales and added to the sum of the blocks before it.

A block with an infinity or a NaN has the scale NaN, which makes all its sums NaN. A block whose greatest magnitude is below LEAST
counts as 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from camshaft.dtypes import f32, i32, u32, u64
from camshaft.lang import Array, Tracer, Value, Variable, kernel, tile_of
from camshaft.ops.matmul.blocks.blocked_kernel import multiply
from camshaft.ops.matmul.blocks.panels import columns_of, next_of, prefetch_row
from camshaft.ops.matmul.blocks.product import Columns, Part, Product
from camshaft.ops.matmul.shapes import WIDTH, Blocks
from camshaft.ops.quantize.q8_blocks import ROUNDER, ROUNDER_BITS

BLOCK, WORDS = 64, 32
# The most that the root of a block's squares may be in a, before rounding adds 4 at most; and in b, where it bounds numbers too.
NORM, MOST = 65_500.0, 32_760.0
# A block is scaled to this greatest number before it is squared: no square passes f32's range, whatever the numbers are.
UNIT = 4096.0
LEAST = 2.0**-100
# Words per iteration of the inner loop: with 4, LLVM spills factors to the stack.
TOGETHER = 2
# Columns of b that are rounded together: more spill to the stack.
AT_ONCE = 4


def block_of_a(k: Tracer, parts: Sequence[Value]) -> tuple[list[Value], Value]:
    """Returns the words of a block of a, given as four vectors of 16, and its scale."""
    # magnitudes compare as integers, as in q8_blocks.py: those of NaN are greatest
    sizes = [k.bitcast(part, i32) & 0x7FFFFFFF for part in parts]
    greatest = k.bitcast(k.vector_max(k.maximum(k.maximum(*sizes[:2]), k.maximum(*sizes[2:]))), f32)
    unit = k.select(greatest >= LEAST, UNIT / greatest, 0.0)
    scaled = [part * k.splat(unit, WIDTH) for part in parts]
    factor = k.minimum(NORM / _norm(k, scaled), MOST / UNIT)
    # infinity less infinity is NaN
    return _words(k, scaled, factor), greatest * (1 / UNIT) / factor + (greatest - greatest)


def block_of_b(k: Tracer, parts: Sequence[Value]) -> tuple[list[Value], Value]:
    """Like `block_of_a`, for b. Squares of f16 are in f32's range."""
    norm = _norm(k, parts)
    return _words(k, parts, k.select(norm > 0.0, MOST / norm, 0.0)), norm * (1 / MOST) + (norm - norm)


def _norm(k: Tracer, parts: Sequence[Value]) -> Value:
    """Returns the root of the sum of squares."""
    squares = [k.fma(y, y, x * x) for x, y in (parts[:2], parts[2:])]
    return k.sqrt(k.vector_sum(squares[0] + squares[1]))


def _words(k: Tracer, parts: Sequence[Value], factor: Value) -> list[Value]:
    """Returns round(x factor) as words of two int16."""
    numbers = [k.bitcast(k.bitcast(k.fma(x, k.splat(factor, WIDTH), ROUNDER), i32) - ROUNDER_BITS, u32) for x in parts]
    return [(second << 16) | (first & 0xFFFF) for first, second in (numbers[:2], numbers[2:])]


@kernel
def round_rows(k: Tracer, a: Array, words: Array, scales: Array, *, rows: int, blocks: int, span: int) -> None:
    # words[row, 32 b + i], scales[row, b] of block b of a's rows, `span` blocks per program
    row, first = k.program(0) * rows + k.program(1), k.program(2) * span
    for b in k.range(first, k.minimum(first + span, blocks)):
        parts = [k.load_vector(a, row, b * BLOCK + i, width=WIDTH) for i in range(0, BLOCK, WIDTH)]
        found, scales[row, b] = block_of_a(k, parts)
        for i, values in enumerate(found):
            k.store_vector(words, values, row, b * WORDS + i * WIDTH)


@kernel
def turn_rounded(k: Tracer, b: Array, packed: Array, scales: Array, *, columns: int, vectors: int, blocks: int) -> None:
    # packed[matrix, panel, 32 q + i, c] = word i of block q of column panel * NR + c, through scratch: two columns per element
    matrix, panel, block = k.program(0), k.program(1), k.program(2)
    width = vectors * WIDTH
    rows, transposed = columns_of(k, panel * width, width, columns), k.scratch(u64, width // 2, WORDS)
    after, ahead = next_of(k, block * BLOCK, BLOCK, blocks * BLOCK, width)
    for row in rows:
        k.prefetch(b, matrix * columns + k.minimum(row + after, columns - 1), ahead)
    at = matrix * -(-columns // width) + panel
    for first in k.range(0, width, AT_ONCE):
        for c in range(0, AT_ONCE, 2):
            pair = []
            for i in (c, c + 1):
                column = first + i
                row = matrix * columns + k.minimum(panel * width + column, columns - 1)
                starts = range(0, BLOCK, WIDTH)
                words, scale = block_of_b(k, [k.load_vector(b, row, block * BLOCK + p, width=WIDTH) for p in starts])
                scales[at, block, column] = scale
                pair.append([values.to(u64) for values in words])
            for i, (one, two) in enumerate(zip(*pair, strict=True)):
                k.store_vector(transposed, one | (two << 32), (first + c) // 2, i * WIDTH)
    for d in k.range(WORDS):
        prefetch_row(k, packed, at, k.minimum(block * WORDS + d + WORDS, blocks * WORDS - 1))
        for c in range(width // 2):
            packed[at, block * WORDS + d, c] = transposed[c, d]


@dataclass(frozen=True, kw_only=True)
class WholeProduct(Product):
    """A program's operands, with the depth in words and b in panels."""

    a_scales: Array
    b_scales: Array

    def tile_sums(self, t: Value, rows: list[Value], at: Columns, p: Value, part: Part) -> list[list[Variable]]:
        """Returns a tile's sums over a part of the depth, which has full blocks."""
        start, length = part.start, part.length
        k, panel = self.k, self.b_row + p // (self.vectors * WIDTH)
        sums = tile_of(k, len(rows), self.vectors, WIDTH)
        for q in k.range(length // WORDS):
            whole = [[k.var(k.splat(0, WIDTH, i32), i32) for _ in range(self.vectors)] for _ in rows]
            for first in k.range(0, WORDS, TOGETHER):
                for i in range(TOGETHER):
                    d = q * WORDS + i + first
                    weights = self.weights(at, p, start, d)
                    for row, line in zip(rows, whole, strict=True):
                        x = k.splat(self.a[row, start + d], WIDTH, u32)
                        for total, w in zip(line, weights, strict=True):
                            total.set(k.dot2(total.value, x, w))
            block = q + start // WORDS
            scales = [k.load_vector(self.b_scales, panel, block, j * WIDTH, width=WIDTH) for j in range(self.vectors)]
            for row, line, totals in zip(rows, whole, sums, strict=True):
                scale = k.splat(self.a_scales[row, block], WIDTH)
                for found, total, w in zip(line, totals, scales, strict=True):
                    total.set(k.fma(found.value.to(f32) * w, scale, total.value))
        return sums


@kernel
def multiply_rounded(
    k: Tracer, a: Array, a_scales: Array, b: Array, b_scales: Array, out: Array, *extent: Value, **constants: Any
) -> None:
    # as multiply_blocks, of words
    s = Blocks(**constants)
    b_rows = -(-s.columns // s.width)
    multiply(k, WholeProduct, s, extent, b_rows, a=a, b=b, out=out, a_scales=a_scales, b_scales=b_scales)
