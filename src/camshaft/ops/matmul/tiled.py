"""matmul for SIMD: few rows read b once (GEMV); more rows use packed panels and a register tile (GEMM).

GEMM: a is packed to [tile][k][rows of a tile] and b to [panel][k][columns], in f32, so that the inner loop reads both in order
for any strides; with a power-of-two stride, all rows of b would share a few cache sets.
"""

from __future__ import annotations

from math import prod
from typing import Any

from camshaft.dtypes import f32
from camshaft.lang import Array, Tracer, Value, kernel
from camshaft.lang import tile_of as zeros
from camshaft.ops import op as ops
from camshaft.ops.matmul.blocks.panels import PACK_DEPTH, pack_launch, pack_rows
from camshaft.ops.matmul.lanes import weights_by_column
from camshaft.ops.matmul.shapes import WIDTH, Matrices, Sizes, column_vectors, only_floats, rounds_on_cpus, sizes_of
from camshaft.ops.matmul.skinny import streams_launch
from camshaft.ops.spec import TensorSpec, bound

GEMV_ROWS = 8
# Up to so many rows, GEMV is used, GEMV_ROWS rows at a time: rereading b from a cache costs less than packing it (0.6 ns per
# element as [n, k]).
FEW_ROWS = {False: 8, True: 32}
# The same for an Extent, which usually has few active rows (one for a prompt's logits).
FEW_OF_EXTENT = 64
OWN_CACHE_NBYTES = 1 << 21
# The sums of a register tile: 32 registers minus a row of b and a factor; more would spill to the stack.
MOST_SUMS = 28
MOST_GEMV_ROWS = 128


def tile_of(target: ops.Target) -> tuple[int, int]:
    """Returns the rows and vectors of the register tile: 12 x 2 sums fit AVX-512's 32 registers, 6 x 1 (two halves each)
    AVX2's 16."""
    return (12, 2) if target.lanes >= 16 else (6, 1)


@kernel
def weights_by_row(
    k: Tracer, a: Array, b: Array, out: Array, *extent: Value, tile: int, block: int, **sizes: Any
) -> None:
    # out[i, j] = sum_k a[i, k] b[j, k]: `tile` rows i, `block` rows j of b, lanes along k; each b is read once per tile
    m = Matrices(**sizes)
    index, at, first = k.program(0), k.program(1) * tile, k.program(2) * block
    active = extent[0] if extent else m.rows
    a_row, b_row = m.a(index) * m.rows, m.b(index) * m.columns
    from_b = [k.minimum(first + j, m.columns - 1) + b_row for j in range(block)]

    def multiply(height: int) -> None:
        from_a = [k.minimum(at + i, active - 1) + a_row for i in range(height)]
        sums = [[k.accumulator("sum") for _ in range(block)] for _ in range(height)]
        # One row: b in memory order. Rows of 1152 bytes in parallel reached a third of peak bandwidth, in order 70 %.
        for together in [[j] for j in range(block)] if height == 1 else [list(range(block))]:
            for c in k.lanes(m.depth):
                weights = {j: b[from_b[j], c] for j in together}
                for i in range(height):
                    x = a[from_a[i], c]
                    for j, w in weights.items():
                        sums[i][j].set(k.fma(x, w, sums[i][j].value))
        for i in range(height):
            for j in range(block):
                total = k.lanes_sum(sums[i][j])
                with k.when((at + i < active) & (first + j < m.columns)):
                    out[index * m.rows + at + i, first + j] = total

    if extent and tile > 1:
        with k.when(extent[0] == 1):  # logits of a prompt
            multiply(1)
        with k.when(extent[0] > 1):
            multiply(tile)
    else:
        multiply(tile)


@kernel
def multiply_panels(
    k: Tracer, a: Array, b: Array, out: Array, *extent: Value, tile: int, vectors: int, **sizes: Any
) -> None:
    # out[i, j] = sum_k a[tile(i), k, i] b[panel(j), k, j]: tile x vectors sums in registers
    m = Matrices(**sizes)
    index, panel, at = k.program(0), k.program(1), k.program(2)
    tiles, panels = -(-m.rows // tile), -(-m.columns // (vectors * WIDTH))
    active = extent[0] if extent else m.rows
    a_tile = m.a(index) * tiles + at
    b_panel = m.b(index) * panels + panel
    sums = zeros(k, tile, vectors, WIDTH)
    for d in k.range(m.depth):
        weights = [k.load_vector(b, b_panel, d, j * WIDTH, width=WIDTH) for j in range(vectors)]
        for i in range(tile):
            x = k.splat(a[a_tile, d, i], WIDTH)
            for j in range(vectors):
                sums[i][j].set(k.fma(x, weights[j], sums[i][j].value))
    starts, counts = column_vectors(k, panel * (vectors * WIDTH), m.columns, vectors)
    for i in range(tile):
        row = at * tile + i
        with k.when(row < active):
            for j in range(vectors):
                k.store_vector(out, sums[i][j].value, index * m.rows + row, starts[j], count=counts[j])


def few_rows(s: Sizes) -> int:
    """Returns the most rows for which GEMV is chosen."""
    return FEW_OF_EXTENT if s.transposed and s.extents else FEW_ROWS[s.transposed]


def _defaults(node: ops.NodeSpec, target: ops.Target) -> ops.Values:
    """Returns the register tile: GEMV's for few rows, else GEMM's. `columns` counts vectors for GEMM and for b as [k, n],
    else rows of b."""
    s = sizes_of(node)
    if bound(s.rows) > few_rows(s):
        rows, columns = tile_of(target)
        return {"packed": 1, "rows": rows, "columns": columns, "pack_depth": PACK_DEPTH}
    rows = min(bound(s.rows), GEMV_ROWS)
    # Eight sums hide a multiply-add's latency and fit 16 registers; with 32 registers, 16 sums reread fewer rows of a.
    columns = max(min(8, (16 if target.lanes >= 16 else 8) // rows), 1)
    return {"packed": 0, "rows": rows, "columns": columns, "pack_depth": PACK_DEPTH}


def _refusal(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> str | None:
    """Returns why the values do not fit the node, or None: too many sums or rows of a tile, or a GEMV that rereads b."""
    s, sums = sizes_of(node), values["rows"] * values["columns"]
    halves = 1 if target.lanes >= WIDTH or (s.transposed and not values["packed"]) else WIDTH // target.lanes
    if sums * halves > MOST_SUMS:
        return f"{sums} sums pass the registers"
    if values["rows"] > max(bound(s.rows), 1) and not values["packed"]:
        return f"a tile of {values['rows']} rows for {bound(s.rows)}"
    if not values["packed"] and bound(s.rows) > MOST_GEMV_ROWS:
        return f"GEMV takes at most {MOST_GEMV_ROWS} rows, got {bound(s.rows)}"
    return None


def _supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Returns why the variant does not support the node, or None."""
    return only_floats(node) or rounds_on_cpus(node, target)


def _build(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> ops.Build:
    """Builds GEMV for few rows, else packing and GEMM."""
    s = sizes_of(node)
    return _gemm(s, values) if values["packed"] else _gemv(s, target, values)


_TUNABLES = ops.Tunables(
    {
        "packed": (0, 1),
        "rows": (1, 2, 3, 4, 6, 8, 10, 12, 14),
        "columns": (1, 2, 3, 4, 8, 16),
        "pack_depth": (64, 128, 256, 512, 1024),
    },
    _defaults,
    _build,
    _refusal,
)


def _gemv(s: Sizes, target: ops.Target, values: ops.Values) -> ops.Build:
    tile, block = values["rows"], values["columns"]
    if s.transposed and bound(s.rows) == 1:
        return ops.Build((streams_launch(s, target, s.operands, block),))
    per = block if s.transposed else block * WIDTH
    grid = (ops.Cells(s.matrices), ops.Cells(s.rows, tile), ops.Cells(s.columns, per))
    function = weights_by_row if s.transposed else weights_by_column
    constants = {"tile": tile, "block": block, **s.constants()}
    return ops.Build((ops.Launch(function, s.operands, grid, constants, s.extents),))


def _gemm(s: Sizes, values: ops.Values) -> ops.Build:
    (a, b, out), tile, vectors = s.operands, values["rows"], values["columns"]
    rows, panel = bound(s.rows), vectors * WIDTH
    tiles, panels = -(-rows // tile), -(-s.columns // panel)
    packed_a, packed_b = (s.a_matrices * tiles, s.depth, tile), (s.b_matrices * panels, s.depth, panel)
    pack_a = ops.Launch(
        pack_rows,
        (a, ops.scratch(0, "write")),
        (ops.Cells(s.a_matrices), ops.Cells(s.rows, tile)),
        {"rows": rows, "tile": tile, "depth": s.depth},
        s.extents,
    )
    multiply = ops.Launch(
        multiply_panels,
        (ops.scratch(0, "read"), ops.scratch(1, "read"), out),
        (ops.Cells(s.matrices), ops.Cells(panels), ops.Cells(s.rows, tile)),
        {"tile": tile, "vectors": vectors, **s.constants()},
        s.extents,
    )
    launches = pack_a, pack_launch(s, vectors, values["pack_depth"], b, 1), multiply
    return ops.Build(launches, (TensorSpec(packed_a, f32), TensorSpec(packed_b, f32)))


def _cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """Measured on Zen 4: GEMV 40 bytes per nanosecond with b in a cache (15 from memory; 12 as [k, n]), GEMM 3.3
    multiply-adds per lane and nanosecond (2.4 where b is larger than a core's own caches), packing 0.6 ns per element."""
    s = sizes_of(node)
    if bound(s.rows) <= few_rows(s):
        reading = sum(spec.nbytes for spec in node.inputs) / (40 if s.transposed else 12)
        active = 0.25 if bound(s.rows) > FEW_ROWS[s.transposed] else 1.0
        return max(reading, active * s.multiply_adds / (2 * target.lanes))
    packed = s.a_matrices * bound(s.rows) * s.depth + prod(s.b_shape)
    rate = 3.3 if 4 * prod(s.b_shape) <= OWN_CACHE_NBYTES else 2.4
    return s.multiply_adds / (rate * target.lanes) + 0.6 * packed


TILED = ops.KernelVariant("tiled", ops.VECTORS, _TUNABLES.build_default, _supports, _cost, _TUNABLES)
