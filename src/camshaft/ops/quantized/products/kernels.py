"""Kernels of quantized_matmul over interleaved weights: y[t, n] = sum_k x[t, k] w[n, k].

With 8-bit activations q d and weights code s + m, block by block (32 k) and group by group:
    y += s d (sum code q - zero_point sum q)   or   y += s d sum code q + m d sum q
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from camshaft.dtypes import bf16, f32, i8, i32, u32
from camshaft.extent import Extent
from camshaft.lang import Array, Constant, Kernel, Tracer, Value, Variable, kernel
from camshaft.ops import op as ops
from camshaft.ops.quantize import quantize_activations as q8
from camshaft.ops.quantize.q8_blocks import TILE_ROWS
from camshaft.ops.quantized.operands import Consecutive, Rows, Tokens, abreast, dot_words, in_tiles
from camshaft.ops.quantized.packed.formats import BLOCK
from camshaft.ops.quantized.packed.packing import INTERLEAVED, ROWS
from camshaft.ops.quantized.packed.weights import Packed, packed, weight_operands
from camshaft.ops.quantized.products import k_quant
from camshaft.ops.spec import TensorSpec

# Products of more tokens than these may round otherwise than those of one: by tiles of bf16, or by factors in another order. Next
# tokens of sequences, and the rows of a prompt that have logits, are 64 at most: a row has the bits that it has alone.
FEW_ROWS = 64


def is_q8(x: TensorSpec) -> bool:
    """Returns whether activations are quantized."""
    return x.layout in q8.LAYOUTS.values()


def packed_only(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Returns why no variant takes bf16 in tiles, or weights as a file has them; None for packed weights."""
    if q8.is_tiled(node.inputs[0]):
        return "takes activations of f32 or 8 bits"
    return packed_weights(node)


def packed_weights(node: ops.NodeSpec) -> str | None:
    """Returns why no variant takes weights as a file has them, or None for packed weights."""
    packed = node.inputs[1].layout is INTERLEAVED
    return None if packed else "weights are not packed (graph/passes/rewrite.py packs them)"


def product_build(
    kernel: Kernel,
    node: ops.NodeSpec,
    grid: tuple[ops.Cells, ...],
    constants: Mapping[str, Constant],
    *,
    x: tuple[ops.Operand, ...] | None = None,
    outputs: Sequence[ops.Operand] = (ops.write(0),),
    lanes: int | None = None,
) -> ops.Build:
    """Builds one launch of input 0, x, times the other inputs, weights of one format. `x`: its operands, by default each part as
    a flat array. The kernel also gets the constants `blocks` and `block`: blocks of 32 k, and the name of the format."""
    spec, w, *_ = node.inputs
    flat = tuple(ops.read(0, part.name, (prod(part.shape),)) for part in spec.parts)
    weights = (operand for i in range(1, len(node.inputs)) for operand in weight_operands(node, i))
    arrays = (*(flat if x is None else x), *weights, *outputs)
    active = (spec.shape[0],) if isinstance(spec.shape[0], Extent) else ()
    sizes: dict[str, Constant] = {"blocks": w.bounds[1] // BLOCK, "block": w.dtype.name}
    return ops.Build((ops.Launch(kernel, arrays, grid, {**sizes, **constants}, active, lanes),))


@dataclass(frozen=True)
class Operands:
    """The arguments of a kernel of `product_build`. `x`: an array of f32, or codes, scales and sums of q8. `active`: the active
    number of tokens, if it is an Extent."""

    x: tuple[Array, ...]
    weights: Packed
    out: Array
    active: tuple[Value, ...]


def operands(k: Tracer, arguments: tuple[Any, ...], block: str) -> Operands:
    """Returns a kernel's arguments by name."""
    n = 1 if arguments[0].dtype in (f32, bf16) else 3
    codes, scales, extra, out = arguments[n : n + 4]
    return Operands(arguments[:n], packed(k, codes, scales, extra, block), out, arguments[n + 4 :])


@kernel
def product_tile(
    k: Tracer, *arguments: Any, n: int, blocks: int, rows: int, columns: int, bound: int, block: str, ahead: int
) -> None:
    # `rows` rows of weights x `columns` tokens per program; prefetches `ahead` 32-bit words
    given = operands(k, arguments, block)
    mine = Rows(k, rows, n)

    def compute(tokens: Tokens) -> None:
        tokens.store(mine, given.out, totals_of(given.x, given.weights, mine, tokens, blocks, ahead))

    if rows > ROWS:  # threads
        compute(Tokens(k, columns, bound, given.active))
    else:
        in_tiles(k, columns, bound, given.active, compute)


def tile_cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """Measured on one Zen 4 core: 0.028 ns per weight for one token (memory), 0.0072 ns per weight and token for many
    (vpdpbusd). For f32, whose activations are added up beside the products, 2.8 multiply-adds per lane and ns (Zen 3)."""
    (x, w), tokens = node.inputs[:2], node.inputs[0].bounds[0]
    each = 0.0072 if is_q8(x) else 1 / (2.8 * min(target.lanes, 16))
    return max(0.028, each * tokens) * float(prod(w.bounds))


def totals_of(
    x: tuple[Array, ...], weights: Packed, mine: Rows, tokens: Consecutive, blocks: int, ahead: int
) -> list[Variable]:
    """Computes a tile of y. Returns the totals of all rows for each token."""
    if len(x) == 1:
        return _f32_totals(x[0], weights, mine, tokens, blocks)
    by_format = k_quant.nested_totals if k_quant.by_whole_numbers(weights.form) else _q8_totals
    return by_format(x, weights, mine, tokens, blocks, ahead)


def _q8_totals(
    x: tuple[Array, ...], weights: Packed, mine: Rows, tokens: Consecutive, blocks: int, ahead: int
) -> list[Variable]:
    totals = [mine.k.var(mine.spread(0.0)) for _ in tokens.places]
    keeps_steps = len(totals) == 1 and mine.count <= ROWS  # a GPU's thread has no registers for them
    for b, (own,) in k_quant.in_steps(weights, [mine], blocks, 1, keeps_steps):
        if ahead:
            weights.prefetch(mine.tile, b, ahead, len(totals))
        add_block(x, own, mine, tokens, blocks, b, totals)
    return totals


def add_block(
    x: tuple[Array, ...],
    weights: Packed,
    mine: Rows,
    tokens: Consecutive,
    blocks: int,
    b: Value,
    totals: list[Variable],
) -> None:
    """Adds block b of `blocks` to each token's total."""
    (x_codes, x_scales, x_sums), k, form = x, mine.k, weights.form
    per_group = 8 // form.groups
    words = weights.code_words(mine.load, b)
    code_at, scale_at = tokens.along(blocks * 8, b * 8), tokens.along(blocks, b)
    sum_at = tokens.along(blocks * form.groups, b * form.groups)
    for g in range(form.groups):
        scale, minimum = weights.scale(mine.load, b, g)
        group = range(g * per_group, (g + 1) * per_group)
        for some in abreast(len(totals)):
            sums = [mine.at(x_sums, sum_at[i] + g) for i in some]
            starts = [mine.spread(q_sum if minimum is None else 0, i32) for q_sum in sums]

            def acted(i: int, w: int, some: range = some, group: range = group) -> Value:
                return mine.spread(mine.at(x_codes, code_at[some[i]] + group[w]), u32)

            dots = dot_words(k, starts, [words[w] for w in group], acted)
            for i, q_sum, dot in zip(some, sums, dots, strict=True):
                total, step = totals[i], mine.at(x_scales, scale_at[i])
                total.set(k.fma(dot.to(f32), scale * step, total.value))
                if minimum is not None:
                    total.set(k.fma(minimum, mine.spread(q_sum), total.value))


def _f32_totals(x: Array, weights: Packed, mine: Rows, tokens: Consecutive, blocks: int) -> list[Variable]:
    """As `totals_of` for f32."""
    totals = [mine.k.var(mine.spread(0.0)) for _ in tokens.places]
    for b in mine.k.range(blocks):
        add_f32_block(x, weights, mine, tokens, blocks, b, totals)
    return totals


def add_f32_block(
    x: Array, weights: Packed, mine: Rows, tokens: Consecutive, blocks: int, b: Value, totals: list[Variable]
) -> None:
    """As `add_block` for f32: each code is converted to f32 and multiplied by a broadcast x."""
    k, form = mine.k, weights.form
    per_group = 8 // form.groups
    words = weights.code_words(mine.load, b)
    for g in range(form.groups):
        scale, low = weights.scale(mine.load, b, g)
        minimum = minimum_of(weights, scale, low)
        dots = [mine.spread(0.0) for _ in totals]
        sums = [mine.spread(0.0) for _ in totals]
        for w in range(g * per_group, (g + 1) * per_group):
            for byte in range(4):
                code = ((words[w] >> (8 * byte)) & 255).to(i32).to(f32)
                for c, place in enumerate(tokens.along(blocks * BLOCK, b * BLOCK)):
                    value = mine.spread(mine.at(x, place + (4 * w + byte)))
                    dots[c] = k.fma(code, value, dots[c])
                    sums[c] = sums[c] + value
        for total, dot, x_sum in zip(totals, dots, sums, strict=True):
            total.set(k.fma(dot, scale, k.fma(minimum, x_sum, total.value)))


@kernel
def product_row(k: Tracer, *arguments: Any, blocks: int, block: str) -> None:
    # y[t, n] of one row and token per program, a block of 32 k per lane; for any lane width
    given = operands(k, arguments, block)
    row, t, total = k.program(0), k.program(1), k.accumulator("sum")
    for b in k.lanes(blocks):
        for g in range(given.weights.form.groups):
            for term in terms_of(k, given.x, given.weights, (row, t, b, g)):
                total += term
    given.out[t, row] = k.lanes_sum(total)


At = tuple[Value, Value, Value, int]
"""A row, a token, a block of 32 k and a group of that."""


def terms_of(k: Tracer, x: tuple[Array, ...], weights: Packed, at: At) -> Iterator[Value]:
    """Yields the terms of one group's product; x is an array of f32 or of bf16 in tiles, or codes (i8), scales and
    sums of q8."""
    return (_f32_terms if len(x) == 1 else _q8_terms)(k, x, weights, at)


def _q8_terms(k: Tracer, x: tuple[Array, ...], weights: Packed, at: At) -> Iterator[Value]:
    (codes, scales, sums), (row, t, b, g), groups = x, at, weights.form.groups
    scale, minimum = weights.scale_at(row, b, g)
    q_sum = k.gather(sums, t, b * groups + g)
    dot = q_sum if minimum is None else k.const(0, i32)
    for j in _elements(weights, g):
        dot = dot + weights.code_at(row, b, j) * k.gather(codes, t, b * BLOCK + j)
    yield dot.to(f32) * (scale * scales[t, b])
    if minimum is not None:
        yield minimum * q_sum


def _f32_terms(k: Tracer, x: tuple[Array, ...], weights: Packed, at: At) -> Iterator[Value]:
    row, t, b, g = at
    scale, low = weights.scale_at(row, b, g)
    minimum = minimum_of(weights, scale, low)
    for j in _elements(weights, g):
        weight = k.fma(weights.code_at(row, b, j).to(f32), scale, minimum)
        place = (t, b * BLOCK + j) if x[0].dtype == f32 else (t // TILE_ROWS, b, t % TILE_ROWS, j)
        yield weight * k.gather(x[0], *place)


def _elements(weights: Packed, g: int) -> range:
    """Returns the k of group g in its block."""
    size = BLOCK // weights.form.groups
    return range(g * size, (g + 1) * size)


def minimum_of(weights: Packed, scale: Value, low: Value | None) -> Value:
    """Returns the stored minimum, or the one that the zero point gives."""
    return scale * float(-(weights.form.zero_point or 0)) if low is None else low


def _build_row(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    x, w = node.inputs
    grid = (ops.Cells(w.bounds[0]), ops.Cells(x.shape[0]))
    codes = ops.Operand("input", 0, "codes", x.bounds, "read", i8)
    inputs = (codes, ops.read(0, "scales"), ops.read(0, "sums")) if is_q8(x) else (ops.read(0, x.parts[0].name),)
    return product_build(product_row, node, grid, {}, x=inputs)


def _row_cost(node: ops.NodeSpec, target: ops.Target) -> float:
    return 0.5 * node.inputs[0].bounds[0] * float(prod(node.inputs[1].bounds))


ROW = ops.KernelVariant("row", ops.EVERYWHERE, _build_row, lambda node, target: packed_weights(node), _row_cost)
