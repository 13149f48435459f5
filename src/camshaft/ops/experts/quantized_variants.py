"""Variants of quantized_matmul_grouped with packed stacks of experts: what they launch, what they take, and their costs."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd, prod

from camshaft.dtypes import i8
from camshaft.lang import Constant, Kernel
from camshaft.ops import op as ops
from camshaft.ops.experts import order
from camshaft.ops.experts.quantized_kernels import product_of_expert, product_of_pairs, product_row
from camshaft.ops.kernels.launch import has_threads, plan_workers
from camshaft.ops.quantized import matmul
from camshaft.ops.quantized.packed.formats import BLOCK
from camshaft.ops.quantized.packed.packing import ROWS
from camshaft.ops.quantized.packed.weights import weight_operands
from camshaft.ops.quantized.products import gemv, kernels
from camshaft.ops.quantized.products.avx2.tile import has_int16_sums

# Programs of one expert follow each other, as they read the same rows of x; but workers get contiguous programs, and experts
# have different numbers of pairs. So the parts are divided into shares of at least LEAST_PARTS, each over all experts.
MOST_SHARES, LEAST_PARTS = 16, 8
# (streams, blocks of each at a time) where slots share a row of x, and where each has its own: the fastest of 2, 4 and 1, 2, 4, 8
# on one Zen 4 core. Elsewhere one expert after the other, with prefetches, is as fast.
SHARED_X = {
    "Q4_0": (4, 1),
    "Q5_0": (4, 2),
    "Q8_0": (2, 1),
    "Q4_K": (2, 8),
    "Q5_K": (2, 8),
    "Q6_K": (2, 8),
    "IQ4_NL": (4, 2),
    "IQ4_XS": (2, 8),
}
OWN_X = {"Q8_0": (2, 2), "Q4_K": (2, 8), "Q5_K": (2, 8), "IQ4_NL": (2, 8), "IQ4_XS": (2, 1)}


def _flat(node: ops.NodeSpec) -> tuple[ops.Operand, ...]:
    return tuple(ops.read(0, part.name, (prod(part.shape),)) for part in node.inputs[0].parts)


def _sizes(node: ops.NodeSpec) -> dict[str, Constant]:
    n_experts, n, depth = node.inputs[1].bounds
    return {"n": n, "n_experts": n_experts, "blocks": depth // BLOCK, "block": node.inputs[1].dtype.name}


def whole_tiles(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Returns why the weights are not packed in whole tiles of 16 rows, or None."""
    n = node.inputs[1].bounds[1]
    return kernels.packed_only(node, target) or (
        f"experts of {n} rows; wanted a multiple of {ROWS}" if n % ROWS else None
    )


def _rows(target: ops.Target, n: int) -> int:
    return matmul.THREADS if has_threads(target) and n % ROWS == 0 else ROWS


def _build_pairs(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> ops.Build:
    (tokens, n_slots), n = node.inputs[-1].shape, node.inputs[1].bounds[1]
    rows = _rows(target, n)
    constants = {**_sizes(node), **order.by_slot(node), "rows": rows, "streams": 1, "step": 1, "int16": False, **values}
    arrays = (*_flat(node), *weight_operands(node), order.experts_of(node), order.out_of(node))
    grid = ops.Cells(tokens), ops.Cells(n_slots, values.get("streams", 1)), ops.Cells(n, rows)
    launch = ops.Launch(product_of_pairs, arrays, grid, constants, lanes=rows if rows > ROWS else None)
    return ops.Build((launch,))


def _pairs_values(node: ops.NodeSpec, target: ops.Target) -> ops.Values:
    return {"ahead": matmul.ahead_of(node, target, 1)}


def _fastest(node: ops.NodeSpec, target: ops.Target) -> tuple[int, int] | None:
    """Returns the streams that are fastest for a format, and the blocks of each at a time; None where several are no faster."""
    ours = SHARED_X if order.per_token(node) else OWN_X
    return (gemv.FASTEST_INT16 if has_int16_sums(target) else ours).get(node.inputs[1].dtype.name)


def _streams_values(node: ops.NodeSpec, target: ops.Target) -> ops.Values:
    """Returns as many of the fastest streams as divide the slots, and the blocks of each at a time."""
    most, step = _fastest(node, target) or (1, 1)
    streams = next(n for n in range(most, 0, -1) if node.inputs[-1].bounds[1] % n == 0)
    return {"ahead": 0, "streams": streams, "step": gcd(step, node.inputs[1].bounds[2] // BLOCK)}


def _streams_only(node: ops.NodeSpec, target: ops.Target) -> str | None:
    if not gemv.has_streams(target) or not kernels.is_q8(node.inputs[0]):
        return f"takes quantized activations on CPUs with vectors of {ROWS} numbers, or AVX2 without VNNI"
    if _fastest(node, target) is None:
        return f"one expert of {node.inputs[1].dtype.name} after the other is as fast"
    if _streams_values(node, target)["streams"] == 1:
        return f"{node.inputs[-1].bounds[1]} slots have no common divisor with its streams"
    return whole_tiles(node, target)


def _build_streams(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    return _build_pairs(node, target, {**_streams_values(node, target), "int16": has_int16_sums(target)})


def _build_sorted(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> ops.Build:
    rows, columns = values["rows"], values["tokens"]
    constants = {"rows": rows, "columns": columns, "ahead": values["ahead"]}
    return sorted_build(product_of_expert, node, rows, columns, constants)


def sorted_build(
    kernel: Kernel, node: ops.NodeSpec, rows: int, columns: int, given: Mapping[str, Constant]
) -> ops.Build:
    """Builds the launches that sort pairs, and one of a kernel of `rows` rows of an expert and up to `columns` pairs at once."""
    n_experts, n, _ = node.inputs[1].bounds
    parts = -(-n // rows)
    shares = max(1, min(MOST_SHARES, parts // LEAST_PARTS))
    share = -(-parts // shares)
    constants = {**_sizes(node), "share": share, **given}
    x = node.inputs[0]
    scratch = order.scratch_of(node, order.rows_of(node), columns)
    sorted_x = [ops.scratch(2 + i, "read", (prod(scratch[2 + i].bounds),)) for i in range(len(x.parts))]
    places = ops.scratch(0, "read"), ops.scratch(1, "read")
    arrays = (*sorted_x, *weight_operands(node), *places, order.out_of(node))
    grid = ops.Cells(parts, share), ops.Cells(n_experts + 1), ops.Cells(share)
    launch = ops.Launch(kernel, arrays, grid, constants, lanes=rows if rows > ROWS else None)
    return ops.Build((*order.sorting(node, order.parts_of(node)), launch), scratch)


def _sorted_values(node: ops.NodeSpec, target: ops.Target) -> ops.Values:
    """Returns the rows and pairs of the tile: as many pairs as experts have on average, and a quarter more."""
    rows, tokens_of = matmul.tile_of(target)
    most = tokens_of["q8" if kernels.is_q8(node.inputs[0]) else "f32"]
    expected = 1.25 * order.n_pairs(node) / node.inputs[1].bounds[0]
    tokens = next((n for n in _TOKENS if expected <= n <= most), most)
    rows = _rows(target, node.inputs[1].bounds[1]) if has_threads(target) else rows
    return {"rows": rows, "tokens": tokens, "ahead": matmul.ahead_of(node, target, tokens)}


def _sorted_refusal(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> str | None:
    if values["rows"] > ROWS and not has_threads(target):
        return f"{values['rows']} rows need threads; {target.backend} has none"
    return _prefetch_refusal(node, target, values)


def _prefetch_refusal(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> str | None:
    if values["ahead"] and (has_threads(target) or not kernels.is_q8(node.inputs[0])):
        return "only kernels of quantized activations prefetch, and no threads"
    return None


def _build_row(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    x, (tokens, n_slots), n = node.inputs[0], node.inputs[-1].shape, node.inputs[1].bounds[1]
    rows = prod(x.bounds[:-1])
    codes = ops.Operand("input", 0, "codes", (rows, x.bounds[-1]), "read", i8)
    shapes = dict(zip((part.name for part in x.parts), order.part_shapes(node), strict=True))
    others = tuple(ops.read(0, name, shape) for name, shape in shapes.items() if name != "codes")
    given = (codes, *others) if kernels.is_q8(x) else others
    arrays = (*given, *weight_operands(node), order.experts_of(node), order.out_of(node))
    grid = ops.Cells(n), ops.Cells(tokens), ops.Cells(n_slots)
    return ops.Build((ops.Launch(product_row, arrays, grid, {**_sizes(node), **order.by_slot(node)}),))


def _weights_of_expert(node: ops.NodeSpec) -> float:
    return float(prod(node.inputs[1].bounds[1:]))


def _pairs_cost(node: ops.NodeSpec, target: ops.Target) -> float:
    return 0.028 * order.n_pairs(node) * _weights_of_expert(node)


def _streams_cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """Of one Zen 4 core: Q4_K 30 GB/s instead of 26, Q4_0 30 and 28, Q6_K 24 and 23. Cores that share bandwidth gain nothing. By
    16-bit sums half the time and less on a Zen 3 core."""
    gain = 0.5 if has_int16_sums(target) else 0.9 if plan_workers() == 1 else 1.3
    return gain * _pairs_cost(node, target)


def sorted_cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """As tile_cost for the experts that are chosen (each token's are different), plus sorting and gathering."""
    pairs, n_experts, (tokens, n_slots) = order.n_pairs(node), node.inputs[1].bounds[0], node.inputs[-1].bounds
    chosen = n_experts * (1.0 - (1.0 - min(1.0, n_slots / n_experts)) ** tokens)
    columns, gather = _sorted_values(node, target)["tokens"], 0.1 * pairs * (node.inputs[0].bounds[-1] + n_experts)
    computed = max(chosen * columns, pairs + 0.4 * chosen * columns)
    return max(0.028 * chosen, 0.0072 * computed) * _weights_of_expert(node) + gather + 2000.0


def _row_cost(node: ops.NodeSpec, target: ops.Target) -> float:
    return 0.5 * order.n_pairs(node) * _weights_of_expert(node)


_TOKENS = (2, 4, 5, 6, 8, 12, 16)
_TUNABLES = ops.Tunables(
    {"rows": (8, 16, 64), "tokens": _TOKENS, "ahead": (0, 64, 128, 256)}, _sorted_values, _build_sorted, _sorted_refusal
)
_PAIRS = ops.Tunables({"ahead": (0, 64, 128, 256)}, _pairs_values, _build_pairs, _prefetch_refusal)
VARIANTS = (
    ops.KernelVariant("pairs", ops.VECTORS, _PAIRS.build_default, whole_tiles, _pairs_cost, _PAIRS),
    ops.KernelVariant("streams", frozenset({"simd"}), _build_streams, _streams_only, _streams_cost),
    ops.KernelVariant("sorted", ops.VECTORS, _TUNABLES.build_default, whole_tiles, sorted_cost, _TUNABLES),
    ops.KernelVariant("row", ops.EVERYWHERE, _build_row, kernels.packed_only, _row_cost),
)
