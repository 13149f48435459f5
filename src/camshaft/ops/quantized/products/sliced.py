"""The variant of quantized_matmul for few tokens on GPUs: the threads of a workgroup share the depth of 16 rows.

With a thread per row (`tile`), the product of one token by 576 rows is 5 workgroups on a GPU that runs hundreds, and each thread
waits for one block after the other. Here 16 threads share a row: thread (slice, row) sums every sixteenth block of 32 k, and
the slices are added in order through workgroup memory. 16 neighbouring threads still read one cache line of codes together, and
a token's result does not depend on the other tokens.
"""

from __future__ import annotations

from math import prod
from typing import Any

from camshaft.dtypes import f32
from camshaft.lang import Array, Tracer, Value, Variable, kernel
from camshaft.ops import op as ops
from camshaft.ops.kernels.launch import without_threads
from camshaft.ops.quantized.operands import SharedRows, Tokens
from camshaft.ops.quantized.packed.packing import ROWS
from camshaft.ops.quantized.products import kernels

SLICES = 16
PAIRS = SLICES // 2
# Tokens per program: the threads of one slice store each.
MOST_TOKENS = 8
# With more tokens `tile` has enough threads, and unpacks each code for more tokens.
FEW_TOKENS = 16


@kernel
def product_slices(k: Tracer, *arguments: Any, n: int, blocks: int, columns: int, bound: int, block: str) -> None:
    # thread (slice, row) sums blocks slice, slice + 16, ..; parts[t, pair, row] has two slices; y[t, row] = sum over pairs
    given = kernels.operands(k, arguments, block)
    mine, tokens = SharedRows(k, ROWS, SLICES, n), Tokens(k, columns, bound, given.active)
    totals = [k.var(mine.spread(0.0)) for _ in tokens.places]
    for first in k.range(0, blocks - blocks % SLICES, SLICES):
        _add(given, mine, tokens, blocks, first + mine.share, totals)
    if blocks % SLICES:
        with k.when(mine.share < blocks % SLICES):
            _add(given, mine, tokens, blocks, mine.share + (blocks - blocks % SLICES), totals)
    parts, pair = k.scratch(f32, columns, PAIRS * ROWS), mine.share // 2 * ROWS + mine.own
    for t, total in enumerate(totals):
        both = total.value + k.shuffle_xor(total, ROWS)  # in one warp, with neighbours in slice
        with k.when(mine.share % 2 == 0):
            k.scatter(parts, both, t, pair)
    k.barrier()
    _store_sums(k, given.out, parts, mine, tokens)


def _add(
    given: kernels.Operands, mine: SharedRows, tokens: Tokens, blocks: int, b: Value, totals: list[Variable]
) -> None:
    if len(given.x) == 1:
        kernels.add_f32_block(given.x[0], given.weights, mine, tokens, blocks, b, totals)
    else:
        kernels.add_block(given.x, given.weights, mine, tokens, blocks, b, totals)


def _store_sums(k: Tracer, out: Array, parts: Array, mine: SharedRows, tokens: Tokens) -> None:
    """Stores the sums over slices; the threads of slice t store those of token t."""
    token, row = tokens.first + mine.share, mine.first + mine.own
    stored, inside = tokens.is_stored(token), (mine.share < len(tokens.places)) & (row < mine.n)
    with k.when(inside if stored is None else inside & stored):
        total = k.gather(parts, mine.share, mine.own)
        for pair in range(1, PAIRS):
            total = total + k.gather(parts, mine.share, mine.own + pair * ROWS)
        k.scatter(out, total, token, row)


def supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Returns why the variant does not support the node, or None: it takes few tokens, on GPUs."""
    if (reason := without_threads(target)) is not None:
        return reason
    tokens = node.inputs[0].bounds[0]
    if tokens > FEW_TOKENS:
        return f"takes at most {FEW_TOKENS} tokens; got {tokens}"
    return kernels.packed_only(node, target)


def build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    """Builds one launch with a program per 16 rows and some tokens."""
    x, w = node.inputs
    tokens = min(x.bounds[0], MOST_TOKENS)
    grid = ops.Cells(w.bounds[0], ROWS), ops.Cells(x.shape[0], tokens)
    constants = {"n": w.bounds[0], "columns": tokens, "bound": x.bounds[0]}
    return kernels.product_build(product_slices, node, grid, constants, lanes=ROWS * SLICES)


def cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """A sixth of the tile's cost: on an H200 its products of 576 and 1536 columns took 32 us."""
    (x, w) = node.inputs
    return kernels.tile_cost(node, target) / 6 + 1e-3 * x.bounds[0] * prod(w.bounds[:1])


VARIANT = ops.KernelVariant("sliced", ops.GPUS, build, supports, cost)
