"""Variants of argsort, sort and top_k: by digits, by ranks, by a search for a few, and a row per lane."""

from __future__ import annotations

from math import prod
from typing import Any

from camshaft.dtypes import as_dtype, i32
from camshaft.extent import Extent
from camshaft.lang import Constant
from camshaft.ops import op as ops
from camshaft.ops.kernels.launch import plan_workers
from camshaft.ops.scan.definition import axis_of, layout_of
from camshaft.ops.sort import lanes, network, radix, ranks
from camshaft.ops.sort.definition import Ordered
from camshaft.ops.sort.keys import as_bits, keys_of
from camshaft.ops.sort.merges import merges
from camshaft.ops.sort.partition.variant import partitions
from camshaft.ops.spec import TensorSpec, bound

# Digits of 8 bits for one worker a row; on GPUs digits of 4 bits for 64 workers, whose counts fit workgroup memory.
CPU, GPU = (8, 1), (4, 64)
ON_CPU = frozenset({"scalar", "simd", "c"})
# Columns of a block that a search for a few elements lists or not, and the most blocks of a row.
FEW_BLOCKS, MOST_BLOCKS = (64, 32, 16), 4096
# Elements of a row whose passes leave the L1 cache.
IN_CACHE = 16384


def _operands(
    row: Ordered, x: TensorSpec, rows: int, dim: int, count: int, columns: int = 1
) -> tuple[ops.Operand, ...]:
    """The input [rows, dim] and the results [rows, count], with a last axis if there are several columns; values as bits."""
    trailing = (columns,) if columns > 1 else ()
    writes = (ops.write(i, shape=(rows, count, *trailing)) for i in range(len(row.gives)))
    results = (as_bits(w, x) if name == "values" else w for w, name in zip(writes, row.gives, strict=True))
    return as_bits(ops.read(0, shape=(rows, dim, *trailing)), x), *results


def _radix(row: Ordered) -> ops.KernelVariant:
    """Sorts digit by digit."""

    def build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
        x = node.inputs[0]
        dtype, axis = as_dtype(x.dtype), axis_of(row.name, x, node.attrs)
        outer, inner, dim, columns = layout_of(x, axis)
        rows, count = bound(outer) * inner, row.count(node.attrs, dim)
        bits, workers = CPU if target.backend in ON_CPU else GPU
        bits = min(bits, dtype.bits)
        constants: dict[str, Constant] = {
            "dtype": dtype.name,
            "descending": row.descending(node.attrs),
            "inner": inner,
            "dim": dim,
            "columns": columns,
            "bits": bits,
            "passes": dtype.bits // bits,
            "workers": workers,
        }
        halves = (rows * columns, 2, dim)
        keys = TensorSpec(halves, keys_of(dtype.name, False, False).word)
        given, *writes = _operands(row, x, rows, dim, count, columns)
        reads = given, ops.scratch(0, "update", halves)
        grid = ops.Cells(outer), ops.Cells(inner), ops.Cells(columns)
        lanes, sizes = (1 if target.backend in ON_CPU else workers), ("inner", "dim", "count")
        if row.gives == ("values",):
            launch = ops.Launch(radix.sort_values, (*reads, *writes), grid, constants, lanes=lanes, sizes=sizes)
            return ops.Build((launch,), (keys,))
        arrays = (*reads, ops.scratch(1, "update", halves), *writes)
        launch = ops.Launch(
            radix.sort_places,
            arrays,
            grid,
            {**constants, "count": count, "outputs": len(writes)},
            lanes=lanes,
            sizes=sizes,
        )
        return ops.Build((launch,), (keys, TensorSpec(halves, i32)))

    def cost(node: ops.NodeSpec, target: ops.Target) -> float:
        # 2 ns for each element and pass in the L1 cache, 4 outside, and 500 for a row's counts
        x = node.inputs[0]
        dim = x.bounds[axis_of(row.name, x, node.attrs)]
        return prod(x.bounds) * (500.0 / dim + (2.0 if dim < IN_CACHE else 4.0) * as_dtype(x.dtype).bits / CPU[0])

    return ops.KernelVariant("radix", ops.EVERYWHERE, build, cost=cost)


def _counting(
    row: Ordered, node: ops.NodeSpec, target: ops.Target
) -> tuple[dict[str, Constant], tuple[ops.Operand, ...], Any]:
    """Constants, arrays and grid of the kernels that count, for the last axis."""
    x = node.inputs[0]
    outer, inner, dim, _ = layout_of(x, axis_of(row.name, x, node.attrs))
    rows, count = bound(outer) * inner, row.count(node.attrs, dim)
    arrays = _operands(row, x, rows, dim, count)
    constants: dict[str, Constant] = {
        "dtype": as_dtype(x.dtype).name, "descending": row.descending(node.attrs), "gives": " ".join(row.gives),
        "inner": inner, "dim": dim, "count": count, "outputs": len(row.gives),
    }  # fmt: skip
    return constants, arrays, (ops.Cells(outer), ops.Cells(inner))


def _refusal(row: Ordered, node: ops.NodeSpec, most: int, size: str) -> str | None:
    *_, dim, columns = layout_of(node.inputs[0], axis_of(row.name, node.inputs[0], node.attrs))
    counted = dim if size == "elements" else row.count(node.attrs, dim)
    if columns > 1:
        return "wanted the last axis"
    return None if counted <= most else f"{counted} {size}; wanted at most {most}"


def _ranks(row: Ordered) -> ops.KernelVariant:
    """Counts the elements before each: n^2 comparisons, on targets of several lanes."""

    def build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
        constants, arrays, grid = _counting(row, node, target)
        return ops.Build((ops.Launch(ranks.rank_row, arrays, grid, constants, sizes=("inner",)),))

    def cost(node: ops.NodeSpec, target: ops.Target) -> float:
        x = node.inputs[0]
        return prod(x.bounds) * (1.0 + x.bounds[-1] * as_dtype(x.dtype).bits / 32 * 2.0 / target.lanes)

    def supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
        return _refusal(row, node, ranks.MOST, "elements")

    return ops.KernelVariant("ranks", ops.VECTORS - {"c"}, build, supports, cost)


def _few_block(node: ops.NodeSpec) -> int:
    """Elements of a block: few where many are wanted, so that most blocks need no search; at most MOST_BLOCKS of them."""
    n, count = node.inputs[0].bounds[-1], node.outputs[0].bounds[-1]
    block = next((b for b in FEW_BLOCKS if b * count * 4 <= n), FEW_BLOCKS[-1])
    while -(-n // block) > MOST_BLOCKS:
        block *= 2
    return block


def _few(row: Ordered) -> ops.KernelVariant:
    """Searches only the blocks that may have one of the first."""

    def build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
        constants, arrays, grid = _counting(row, node, target)
        block = _few_block(node)
        return ops.Build((ops.Launch(ranks.few_of_row, arrays, grid, {**constants, "block": block}, sizes=("inner",)),))

    def cost(node: ops.NodeSpec, target: ops.Target) -> float:
        n, count = node.inputs[0].bounds[-1], node.outputs[0].bounds[-1]
        listed = min(n, count * _few_block(node))
        each_row = 700.0 + n * 4.0 / target.lanes + 5.0 * listed + 2.0 * count * count / target.lanes
        return prod(node.inputs[0].bounds) / n * each_row

    def supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
        return _refusal(row, node, ranks.MOST, "of k")

    return ops.KernelVariant("few", ON_CPU, build, supports, cost)


def _lanes(row: Ordered) -> ops.KernelVariant:
    """Sorts as many rows at once as there are lanes, by a network."""

    def build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
        x = node.inputs[0]
        outer, inner, dim, columns = layout_of(x, axis_of(row.name, x, node.attrs))
        rows, count, width = bound(outer) * inner, row.count(node.attrs, dim), _width(row, node, target)
        arrays = _operands(row, x, rows, dim, count, columns)
        levels, times = _merges(dim, count)
        constants: dict[str, Constant] = {
            "dtype": as_dtype(x.dtype).name, "descending": row.descending(node.attrs), "gives": " ".join(row.gives),
            "inner": inner, "dim": dim, "count": count, "levels": levels, "times": times, "width": width,
            "room": network.BLOCK << _doublings(dim, network.BLOCK), "outputs": len(row.gives),
        }  # fmt: skip
        sizes = "inner", "dim", "count", "levels", "times"
        if columns > 1:
            grid = ops.Cells(outer), ops.Cells(inner), ops.Cells(columns, per=width)
            constants["columns"] = columns
            launch = ops.Launch(lanes.columns_by_lane, arrays, grid, constants, lanes=width, sizes=(*sizes, "columns"))
            return ops.Build((launch,))
        constants["rows"] = bound(outer)
        extents = (outer,) if isinstance(outer, Extent) else ()
        by_lane = ops.Cells(outer, per=width), ops.Cells(inner)
        launch = ops.Launch(
            lanes.rows_by_lane, arrays, by_lane, constants, extents, lanes=width, sizes=(*sizes, "rows")
        )
        return ops.Build((launch,))

    def cost(node: ops.NodeSpec, target: ops.Target) -> float:
        # ns for each place of a vector, measured with AVX-512: merges double in number as blocks do
        x = node.inputs[0]
        outer, inner, dim, columns = layout_of(x, axis_of(row.name, x, node.attrs))
        levels, times = _merges(dim, row.count(node.attrs, dim))
        rows, others = (bound(outer), inner) if columns == 1 else (columns, bound(outer) * inner)
        programs = -(-rows // _width(row, node, target)) * others
        each = max(dim, network.BLOCK) * (7.0 + 0.6 * levels**2 + (levels + 2.0) * bool(times))
        return 500.0 + programs * each / min(plan_workers() or 1, programs)

    def supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
        dim = node.inputs[0].bounds[axis_of(row.name, node.inputs[0], node.attrs)]
        if "places" in row.gives and as_dtype(node.inputs[0].dtype).bits == 64:
            return "wanted elements of at most 32 bits, beside which an index fits"
        return None if dim <= network.MOST else f"{dim} elements; wanted at most {network.MOST}"

    return ops.KernelVariant("lanes", frozenset({"simd"}), build, supports, cost)


def _width(row: Ordered, node: ops.NodeSpec, target: ops.Target) -> int:
    """Lanes: as many as a vector has of the words that are sorted."""
    bits = as_dtype(node.inputs[0].dtype).bits << ("places" in row.gives)
    return max(1, target.lanes // 2) if bits > 32 else target.lanes


def _doublings(size: int, of: int) -> int:
    """How often `of` has to be doubled to be at least `size`."""
    return max(0, (-(-size // of) - 1).bit_length())


def _merges(dim: int, count: int) -> tuple[int, int]:
    """How often sorted blocks are merged as a whole, until they have `count` elements, and how often then in part."""
    whole = _doublings(count, network.BLOCK)
    return whole, _doublings(dim, network.BLOCK << whole)


def variants(row: Ordered) -> tuple[ops.KernelVariant, ...]:
    """The variants of a row."""
    long = (_few(row),) if row.selects else (merges(row), *partitions(row))
    return (_radix(row), _ranks(row), *long, _lanes(row))
