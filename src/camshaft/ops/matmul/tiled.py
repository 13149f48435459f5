"""matmul for SIMD: few rows read b once (GEMV); more rows use packed panels and a register tile (GEMM).

GEMM: a is packed to [tile][k][rows of a tile] and b to [panel][k][columns], in f32, so that the inner loop reads both in order
for any strides; with a power-of-two stride, all rows of b would share a few cache sets.
"""

from __future__ import annotations

from math import prod

from camshaft.dtypes import f32
from camshaft.lang import Array, Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.matmul import gemv
from camshaft.ops.matmul.lanes import Axes, matrix_of
from camshaft.ops.matmul.shapes import Sizes, only_floats, rounds_on_cpus, sizes_of
from camshaft.ops.spec import TensorSpec, bound

WIDTH = 16
GEMV_ROWS = 8
# Up to so many rows, GEMV is used, GEMV_ROWS rows at a time: rereading b from a cache costs less than packing it (0.6 ns per
# element as [n, k]).
FEW_ROWS = {False: 8, True: 32}
# The same for an Extent, which usually has few active rows (one for a prompt's logits).
FEW_OF_EXTENT = 64
PACK_DEPTH = 256
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
    k: Tracer, a: Array, b: Array, out: Array, *extent: Value, rows: int, columns: int, depth: int, tile: int, block: int,
    batch: Axes, a_steps: Axes, b_steps: Axes,
) -> None:  # fmt: skip
    # out[i, j] = sum_k a[i, k] b[j, k]: `tile` rows i, `block` rows j of b, lanes along k; each b is read once per tile
    index, at, first = k.program(0), k.program(1) * tile, k.program(2) * block
    active = extent[0] if extent else rows
    a_row, b_row = matrix_of(index, batch, a_steps) * rows, matrix_of(index, batch, b_steps) * columns
    from_b = [k.minimum(first + j, columns - 1) + b_row for j in range(block)]

    def multiply(height: int) -> None:
        from_a = [k.minimum(at + i, active - 1) + a_row for i in range(height)]
        sums = [[k.accumulator("sum") for _ in range(block)] for _ in range(height)]
        # One row: b in memory order. Rows of 1152 bytes in parallel reached a third of peak bandwidth, in order 70 %.
        for together in [[j] for j in range(block)] if height == 1 else [list(range(block))]:
            for c in k.lanes(depth):
                weights = {j: b[from_b[j], c] for j in together}
                for i in range(height):
                    x = a[from_a[i], c]
                    for j, w in weights.items():
                        sums[i][j].set(k.fma(x, w, sums[i][j].value))
        for i in range(height):
            for j in range(block):
                total = k.lanes_sum(sums[i][j])
                with k.when((at + i < active) & (first + j < columns)):
                    out[index * rows + at + i, first + j] = total

    if extent and tile > 1:
        with k.when(extent[0] == 1):  # logits of a prompt
            multiply(1)
        with k.when(extent[0] > 1):
            multiply(tile)
    else:
        multiply(tile)


@kernel
def weights_by_column(
    k: Tracer, a: Array, b: Array, out: Array, *extent: Value, rows: int, columns: int, depth: int, tile: int, block: int,
    batch: Axes, a_steps: Axes, b_steps: Axes,
) -> None:  # fmt: skip
    # out[i, j] = sum_k a[i, k] b[k, j]: `tile` rows i, `block` vectors of columns j; each b is read once per tile
    index, at, first = k.program(0), k.program(1) * tile, k.program(2) * (block * WIDTH)
    active = extent[0] if extent else rows
    a_row, b_row = matrix_of(index, batch, a_steps) * rows, matrix_of(index, batch, b_steps) * depth
    from_a = [k.minimum(at + i, active - 1) + a_row for i in range(tile)]
    starts, counts = column_vectors(k, first, columns, block)
    sums = [[k.var(k.splat(0.0, WIDTH)) for _ in range(block)] for _ in range(tile)]
    for d in k.range(depth):
        for j in range(block):
            weights = k.load_vector(b, b_row + d, starts[j], width=WIDTH, count=counts[j])
            for i in range(tile):
                sums[i][j].set(k.fma(k.splat(a[from_a[i], d], WIDTH), weights, sums[i][j].value))
    for i in range(tile):
        with k.when(at + i < active):
            for j in range(block):
                k.store_vector(out, sums[i][j].value, index * rows + at + i, starts[j], count=counts[j])


def column_vectors(k: Tracer, first: Value, columns: int, n: int) -> tuple[list[Value], list[Value | None]]:
    """Returns the first columns of n vectors, and the number of columns in each (None if all are always full)."""
    starts = [first + j * WIDTH for j in range(n)]
    if columns % (n * WIDTH) == 0:
        return starts, [None] * n
    return [k.minimum(s, columns - 1) for s in starts], [k.maximum(columns - s, 0) for s in starts]


@kernel
def pack_rows(k: Tracer, a: Array, packed: Array, *extent: Value, rows: int, tile: int, depth: int) -> None:
    # packed[matrix, tile, k, r] = a[matrix, tile * TILE + r, k]; rows past the last repeat it
    matrix, at, tiles = k.program(0), k.program(1), -(-rows // tile)
    active = extent[0] if extent else rows
    for r in range(tile):
        row = k.minimum(at * tile + r, active - 1) + matrix * rows
        for c in k.lanes(depth):
            k.scatter(packed, a[row, c], matrix * tiles + at, c, r)


@kernel
def pack_columns(k: Tracer, b: Array, packed: Array, *, columns: int, vectors: int, depth: int, part: int) -> None:
    # packed[matrix, panel, k, c] = b[matrix, k, panel * NR + c]; columns past the last are 0
    matrix, panel, first = k.program(0), k.program(1), k.program(2) * part
    panels = -(-columns // (vectors * WIDTH))
    at, counts = column_vectors(k, panel * (vectors * WIDTH), columns, vectors)
    for d in k.range(first, k.minimum(first + part, depth)):
        for j in range(vectors):
            values = k.load_vector(b, matrix * depth + d, at[j], width=WIDTH, count=counts[j])
            k.store_vector(packed, values, matrix * panels + panel, d, j * WIDTH)


@kernel
def pack_transposed(k: Tracer, b: Array, packed: Array, *, columns: int, vectors: int, depth: int, part: int) -> None:
    # packed[matrix, panel, k, c] = b[matrix, panel * NR + c, k]; columns past the last repeat it
    matrix, panel, first = k.program(0), k.program(1), k.program(2) * part
    panels = -(-columns // (vectors * WIDTH))
    for c in range(vectors * WIDTH):
        row = k.minimum(panel * (vectors * WIDTH) + c, columns - 1) + matrix * columns
        for d in k.lanes(first, k.minimum(first + part, depth)):
            k.scatter(packed, b[row, d], matrix * panels + panel, d, c)


@kernel
def multiply_panels(
    k: Tracer, a: Array, b: Array, out: Array, *extent: Value, rows: int, columns: int, depth: int, tile: int,
    vectors: int, batch: Axes, a_steps: Axes, b_steps: Axes,
) -> None:  # fmt: skip
    # out[i, j] = sum_k a[tile(i), k, i] b[panel(j), k, j]: tile x vectors sums in registers
    index, panel, at = k.program(0), k.program(1), k.program(2)
    tiles, panels = -(-rows // tile), -(-columns // (vectors * WIDTH))
    active = extent[0] if extent else rows
    a_tile = matrix_of(index, batch, a_steps) * tiles + at
    b_panel = matrix_of(index, batch, b_steps) * panels + panel
    sums = [[k.var(k.splat(0.0, WIDTH)) for _ in range(vectors)] for _ in range(tile)]
    for d in k.range(depth):
        weights = [k.load_vector(b, b_panel, d, j * WIDTH, width=WIDTH) for j in range(vectors)]
        for i in range(tile):
            x = k.splat(a[a_tile, d, i], WIDTH)
            for j in range(vectors):
                sums[i][j].set(k.fma(x, weights[j], sums[i][j].value))
    starts, counts = column_vectors(k, panel * (vectors * WIDTH), columns, vectors)
    for i in range(tile):
        row = at * tile + i
        with k.when(row < active):
            for j in range(vectors):
                k.store_vector(out, sums[i][j].value, index * rows + row, starts[j], count=counts[j])


def few_rows(s: Sizes) -> int:
    """Returns the most rows for which GEMV is chosen."""
    return FEW_OF_EXTENT if s.transposed and s.extents else FEW_ROWS[s.transposed]


def defaults(node: ops.NodeSpec, target: ops.Target) -> ops.Values:
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


def refusal(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> str | None:
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


def supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Returns why the variant does not support the node, or None."""
    return only_floats(node) or rounds_on_cpus(node, target)


def build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    """Builds GEMV for few rows, else packing and GEMM."""
    return build_with(node, target, defaults(node, target))


def build_with(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> ops.Build:
    """Like `build`, with a value for each tunable."""
    s = sizes_of(node)
    return _gemm(s, values) if values["packed"] else _gemv(s, target, values)


TUNABLES = ops.Tunables(
    {
        "packed": (0, 1),
        "rows": (1, 2, 3, 4, 6, 8, 10, 12, 14),
        "columns": (1, 2, 3, 4, 8, 16),
        "pack_depth": (64, 128, 256, 512, 1024),
    },
    defaults,
    build_with,
    refusal,
)


def _gemv(s: Sizes, target: ops.Target, values: ops.Values) -> ops.Build:
    rows, tile, block = bound(s.rows), values["rows"], values["columns"]
    arrays = (
        ops.read(0, shape=(s.a_matrices * rows, s.depth)),
        ops.read(1, shape=s.b_shape),
        ops.write(0, shape=(s.matrices * rows, s.columns)),
    )
    if s.transposed and rows == 1:
        return ops.Build((gemv.launch(s, target, arrays, block),))
    sizes = {"rows": rows, "columns": s.columns, "depth": s.depth, "tile": tile, "block": block}
    per = block if s.transposed else block * WIDTH
    grid = (ops.Cells(s.matrices), ops.Cells(s.rows, tile), ops.Cells(s.columns, per))
    function = weights_by_row if s.transposed else weights_by_column
    return ops.Build((ops.Launch(function, arrays, grid, {**sizes, **s.constants()}, s.extents),))


def _gemm(s: Sizes, values: ops.Values) -> ops.Build:
    tile, vectors, pack_depth = values["rows"], values["columns"], values["pack_depth"]
    rows, panel = bound(s.rows), vectors * WIDTH
    tiles, panels = -(-rows // tile), -(-s.columns // panel)
    packed_a, packed_b = (s.a_matrices * tiles, s.depth, tile), (s.b_matrices * panels, s.depth, panel)
    pack_a = ops.Launch(
        pack_rows,
        (ops.read(0, shape=(s.a_matrices * rows, s.depth)), ops.scratch(0, "write")),
        (ops.Cells(s.a_matrices), ops.Cells(s.rows, tile)),
        {"rows": rows, "tile": tile, "depth": s.depth},
        s.extents,
    )
    pack_b = pack_b_launch(s, vectors, pack_depth, 1)
    multiply = ops.Launch(
        multiply_panels,
        (ops.scratch(0, "read"), ops.scratch(1, "read"), ops.write(0, shape=(s.matrices * rows, s.columns))),
        (ops.Cells(s.matrices), ops.Cells(panels), ops.Cells(s.rows, tile)),
        {"rows": rows, "columns": s.columns, "depth": s.depth, "tile": tile, "vectors": vectors, **s.constants()},
        s.extents,
    )
    return ops.Build((pack_a, pack_b, multiply), (TensorSpec(packed_a, f32), TensorSpec(packed_b, f32)))


def pack_b_launch(s: Sizes, vectors: int, pack_depth: int, scratch: int) -> ops.Launch:
    """Returns the launch that packs b to panels of `vectors` vectors: a scratch tensor [matrices x panels, k, columns]."""
    panels = -(-s.columns // (vectors * WIDTH))
    return ops.Launch(
        pack_transposed if s.transposed else pack_columns,
        (ops.read(1, shape=s.b_shape), ops.scratch(scratch, "write")),
        (ops.Cells(s.b_matrices), ops.Cells(panels), ops.Cells(s.depth, pack_depth)),
        {"columns": s.columns, "vectors": vectors, "depth": s.depth, "part": pack_depth},
    )


def cost(node: ops.NodeSpec, target: ops.Target) -> float:
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
