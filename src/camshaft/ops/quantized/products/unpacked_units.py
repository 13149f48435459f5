"""quantized_matmul of many tokens on the matrix units of NVIDIA GPUs: weights and activations as bf16, sums in f32.

A workgroup computes 32 or 64 tokens by 64 rows of weights, 64 k at a time. Two threads share a row: each unpacks a block of 32 k
to bf16 in the workgroup's memory, scale and minimum included, while the units multiply the blocks before; activations are copied
there in the background, from tiles of 32 tokens and 32 k that norms and gates write (quantize_activations). Rounding to bf16:
unpacked_tiles.py.
"""

from __future__ import annotations

from math import prod

from camshaft.dtypes import bf16, i64
from camshaft.extent import Extent
from camshaft.lang import Array, Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.kernels.launch import has_threads
from camshaft.ops.quantize.q8_blocks import TILE_ROWS
from camshaft.ops.quantize.quantize_activations import is_tiled
from camshaft.ops.quantized.operands import SharedRows
from camshaft.ops.quantized.packed.formats import BLOCK
from camshaft.ops.quantized.packed.weights import Packed, packed, weight_operands
from camshaft.ops.quantized.products.kernels import packed_weights
from camshaft.ops.quantized.products.unpacked_kernels import unpacked_block
from camshaft.ops.quantized.products.unpacked_tiles import TOLERANCE

# Rows of weights of a workgroup, the threads of each, and the k of a step.
SIDE, SHARES = 64, 2
STEP = SHARES * BLOCK
# Elements past a row in the workgroup's memory: the units read eight rows at once, each from other banks.
PAD = 8
MOST_HALVES = 2


class Blocks:
    """Two steps of both operands in the workgroup's memory, by number: one is filled while one is multiplied. Blocks past the
    last of the depth are 0."""

    def __init__(self, k: Tracer, x: Array, weights: Packed, n: int, halves: int) -> None:
        self.k, self.x, self.weights, self.mine = k, x, weights, SharedRows(k, SIDE, SHARES, n)
        self.blocks = int(x.shape[1])
        places = [(h, share) for h in range(halves) for share in range(SHARES)]
        self.left = [{place: k.scratch(bf16, TILE_ROWS, BLOCK) for place in places} for _ in range(2)]
        self.right = [k.scratch(bf16, SIDE, STEP + PAD) for _ in range(2)]
        self.totals = [k.tile(TILE_ROWS, SIDE) for _ in range(halves)]
        self.tiles = [k.minimum(k.program(1) * halves + h, x.shape[0] - 1) for h in range(halves)]

    def begin(self, number: int, step: Value) -> list[Value]:
        """Begins to copy a step of the activations; returns the thread's 32 weights of it."""
        k, ragged = self.k, self.blocks % SHARES
        for (h, share), to in self.left[number].items():
            b = step * SHARES + share
            rows = k.select(b < self.blocks, k.const(TILE_ROWS, i64), 0) if ragged else None
            k.async_copy(to, self.x, self.tiles[h], k.minimum(b, self.blocks - 1), 0, 0, rows=rows)
        mine = step * SHARES + self.mine.share
        numbers = unpacked_block(self.weights, self.mine.load, k.minimum(mine, self.blocks - 1))
        return [k.select(mine < self.blocks, x, 0.0) for x in numbers] if ragged else list(numbers)

    def put(self, number: int, numbers: list[Value]) -> None:
        """Stores a thread's weights."""
        for i, value in enumerate(numbers):
            self.k.scatter(self.right[number], value, self.mine.own, self.mine.share * BLOCK + i)

    def multiply(self, number: int) -> None:
        for (h, share), left in self.left[number].items():
            self.totals[h].mma(left, (0, 0), self.right[number], (0, share * BLOCK), k=BLOCK, transpose_b=True)

    def step(self, number: int, following: Value | None) -> None:
        """Multiplies a step while the following one is fetched. The wait is also a barrier."""
        self.k.async_wait()
        numbers = None if following is None else self.begin(1 - number, following)
        self.multiply(number)
        if numbers is not None:
            self.put(1 - number, numbers)


@kernel
def multiply_unpacked(
    k: Tracer, x: Array, codes: Array, scales: Array, extra: Array, out: Array, *extent: Value,
    n: int, bound: int, halves: int, form: str,
) -> None:  # fmt: skip
    # out[t, j] = sum_k x[t, k] w[j, k] for 32 `halves` tokens and 64 rows j; x as tiles
    made = Blocks(k, x, packed(k, codes, scales, extra, form), n, halves)
    made.put(0, made.begin(0, k.const(0, i64)))
    steps = -(-made.blocks // SHARES)
    paired = (steps - 1) // 2 * 2
    for s in k.range(0, paired, 2):
        for number in range(2):
            made.step(number, s + number + 1)
    for last in range(paired, steps):
        made.step(last % 2, k.const(last + 1, i64) if last + 1 < steps else None)
    active = extent[0] if extent else k.const(bound, i64)
    for h, total in enumerate(made.totals):
        first = (k.program(1) * halves + h) * TILE_ROWS
        total.store(out, (first, made.mine.first), rows=active - first, columns=n - made.mine.first)


def supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Returns why matrix units do not take the node, or None."""
    if target.backend != "cuda" or not has_threads(target):
        return "takes GPUs with matrix units for bf16: NVIDIA's"
    return packed_weights(node) or (None if is_tiled(node.inputs[0]) else "takes activations of bf16 in tiles")


def build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    """Builds one launch with a program per 64 rows of weights and 32 or 64 tokens."""
    x, w = node.inputs
    n, bound = w.bounds[0], x.bounds[0]
    halves = min(-(-bound // TILE_ROWS), MOST_HALVES)
    (tiles,) = x.parts
    launch = ops.Launch(
        multiply_unpacked,
        (ops.read(0, tiles.name), *weight_operands(node), ops.write(0)),
        (ops.Cells(n, SIDE), ops.Cells(x.shape[0], TILE_ROWS * halves)),
        {"n": n, "bound": bound, "halves": halves, "form": w.dtype.name},
        (x.shape[0],) if isinstance(x.shape[0], Extent) else (),
        SIDE * SHARES,
    )
    return ops.Build((launch,))


def cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """An estimate: a tenth of a thread's products."""
    x, w = node.inputs[:2]
    return 0.0007 * x.bounds[0] * float(prod(w.bounds))


VARIANT = ops.KernelVariant("unpacked_units", frozenset({"cuda"}), build, supports, cost, tolerance=TOLERANCE)
