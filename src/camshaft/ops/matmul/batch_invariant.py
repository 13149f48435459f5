"""batch_invariant_matmul: y[i, j] = sum_k x[i, k] w[j, k], whose rows have the same bits whatever the number of rows is.

For sequences that generate side by side: an answer must not depend on its neighbours. Every element is the sum of the lanes'
sums, a lane's in the order of k; the tiles of rows and columns change none of it. matmul is faster for many rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from camshaft.dtypes import bf16, f16, f32, i32
from camshaft.extent import Extent
from camshaft.lang import Array, Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.checks import expect_tensor, partly_active
from camshaft.ops.matmul.shapes import WIDTH
from camshaft.ops.parameters import Parameters
from camshaft.ops.spec import TensorSpec, bound

NAME = "batch_invariant_matmul"
FLOATS = (f32, f16, bf16)
# Rows of x, for AVX-512 and AVX2, and of w whose sums are in registers. Those of w are streams of memory: four for few rows of x.
TILE, SMALL_TILE, STREAMS, STREAMS_OF_FEW = 8, 4, 3, 4
# Rows of w that a program takes of each stream.
BLOCK = 8
# Bytes of w to prefetch into the second cache from 2 rows of 16-bit weights or 4 of f32 on, as the core reads too little ahead
# while it multiplies: 4 rows by 24,576 x 576 in f16 take 1.17 ms on a Zen 4 core, 2.1 without, and more with prefetches into the
# first cache. One row takes 0.98 without and 1.25 with.
AHEAD = 8192


@kernel
def rows_by_depth(
    k: Tracer,
    x: Array,
    w: Array,
    out: Array,
    *extent: Value,
    tile: int,
    streams: int,
    share: int,
    block: int,
    ahead: int,
) -> None:
    # y[i, j]: `block` rows j of w from each of `streams` parts, `tile` rows i at a time, the lanes along k; w is prefetched
    # `ahead` rows before it is used (0: never)
    (rows, depth), columns = x.shape, w.shape[0]
    first = k.program(0) * block
    active = extent[0] if extent else rows
    whole = streams * share == columns and share % block == 0
    for j in k.range(block):
        places = [first + j + stream * share for stream in range(streams)]
        of_w = places if whole else [k.minimum(place, columns - 1) for place in places]
        for at in k.range(0, active, tile):
            of_x = [at if tile == 1 else k.minimum(at + i, active - 1) for i in range(tile)]
            sums = [[k.accumulator("sum") for _ in of_w] for _ in of_x]
            for c in k.lanes(depth):
                weights = [w[row, c] for row in of_w]
                for row in of_w if ahead else ():
                    k.prefetch(w, k.minimum(row + ahead, columns - 1), c, near=False)
                for row, totals in zip(of_x, sums, strict=True):
                    value = x[row, c]
                    for weight, total in zip(weights, totals, strict=True):
                        total.set(k.fma(value, weight, total.value))
            for i, totals in enumerate(sums):
                for place, total in zip(places, totals, strict=True):
                    found = k.lanes_sum(total)
                    with k.when((at + i < active) & (first + j < share) & (place < columns)):
                        out[at + i, place] = found


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 2, NAME, specs, "x [m, k] and w [n, k]")
    x, w = specs
    expect_tensor(NAME, x)
    expect_tensor(NAME, w, FLOATS)
    ops.expect(len(x.shape) == 2, NAME, x, "x [m, k]")
    fits = len(w.shape) == 2 and not isinstance(w.shape[0], Extent) and x.shape[1] == w.shape[1]
    ops.expect(fits, NAME, w, f"w [n, k] with k = {x.shape[1]}")
    return (TensorSpec((x.shape[0], w.shape[0]), f32),)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    (rows, _), w = node.inputs[0].shape, node.inputs[1]
    columns, row_nbytes = w.bounds[0], w.nbytes // w.bounds[0]
    has_32_registers = target.backend == "simd" and target.lanes >= WIDTH
    tiles = -(-bound(rows) // (TILE if has_32_registers else SMALL_TILE))
    tile = -(-bound(rows) // tiles)
    streams = min(STREAMS_OF_FEW if tile <= 2 else STREAMS, -(-columns // BLOCK))
    share = -(-columns // streams)
    few = tile < row_nbytes // w.bounds[1]  # rows than bytes of a weight
    ahead = 0 if few else -(-AHEAD // row_nbytes)
    constants = {"tile": tile, "streams": streams, "share": share, "block": BLOCK, "ahead": ahead}
    extents = (rows,) if isinstance(rows, Extent) else ()
    arrays = ops.read(0), ops.read(1), ops.write(0)
    return ops.Build((ops.Launch(rows_by_depth, arrays, (ops.Cells(share, BLOCK),), constants, extents),))


def _cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """As GEMV in tiled.py: w from memory, or half of the multiply-adds that registers allow."""
    return max(node.inputs[1].nbytes / 15, _multiply_adds(node) / (2 * target.lanes))


def _multiply_adds(node: ops.NodeSpec) -> float:
    x, w = node.inputs
    return float(bound(x.shape[0]) * w.bounds[0] * w.bounds[1])


def _samples() -> Iterable[ops.Sample]:
    """Sizes around a tile of 4 rows, parts of 8 columns and the widths of vectors; each dtype of w; special values."""
    rng = np.random.default_rng(3)
    for m, depth, n, dtype in (
        *((1, 17, 33, f32), (1, 64, 32, f16), (2, 15, 1, f32), (3, 35, 7, bf16), (4, 64, 24, f32)),
        *((5, 33, 31, f16), (9, 16, 25, bf16), (17, 130, 49, f32)),
    ):
        x, w = (rng.normal(size=shape) for shape in ((m, depth), (n, depth)))
        yield ops.Sample(f"{m}x{depth}x{n} of {dtype.name}", (x.astype(np.float32), w.astype(dtype.numpy)))
    x = rng.normal(size=(6, 18)).astype(np.float32)
    w = (abs(rng.normal(size=(19, 18))) + 1).astype(np.float32)
    for active in (5, 1):
        yield partly_active(ops.Sample(f"{active} of 6 rows", (x, w)), active, fixed=(1,), extent="rows")
    x = x.copy()
    x[1, 3], x[2, 17], x[5, 0] = np.nan, np.inf, -np.inf
    yield ops.Sample("NaN and infinities", (x, w))


def _error_samples() -> Iterable[ops.ErrorSample]:
    x, w = TensorSpec((2, 8), f32), TensorSpec((9, 8), f16)
    yield ops.ErrorSample((x,), {}, "wanted x")
    yield ops.ErrorSample((TensorSpec((2, 8), f16), w), {}, "a tensor of f32")
    yield ops.ErrorSample((x, TensorSpec((9, 8), i32)), {}, "a tensor of f32 or f16 or bf16")
    yield ops.ErrorSample((x, TensorSpec((9, 7), f16)), {}, "with k = 8")
    yield ops.ErrorSample((x, TensorSpec((Extent("n", 9), 8), f16)), {}, "with k = 8")


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    x, w = (each.astype(np.float64) for each in inputs)
    return (x @ w.T,)


# Where w has one row, as the gate of a shared expert, and x too, the result is one number, whose terms may cancel: of a result
# that is 1/c of its usual size the normalized error is (2^-24 c)^2, and a share of about 1/c is so small. 1e-8 is c = 1700.
# Terms rounded to 16 bits have 2e-7 and more, and one left out of k has 1/k.
TOLERANCE = {"f32": 1e-8}
OP = ops.Op(
    name=NAME,
    formula="y[i, j] = sum_k x[i, k] w[j, k], a row's bits the same for any number of rows",
    parameters=Parameters("x w"),
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("rows", ops.EVERYWHERE, _build, cost=_cost),),
    samples=_samples,
    error_samples=_error_samples,
    tolerance=TOLERANCE,
    flops=lambda node: 2.0 * _multiply_adds(node),
    decompose=lambda f, x, w: f.matmul(x, w, transpose_b=True),
)
