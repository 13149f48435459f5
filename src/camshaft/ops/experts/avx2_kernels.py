"""Variants of quantized_matmul_grouped for many tokens on CPUs with 16 vector registers: the tile of avx2/sums.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from camshaft.dtypes import i64
from camshaft.lang import Tracer, kernel
from camshaft.ops import op as ops
from camshaft.ops.experts import order
from camshaft.ops.experts.quantized_kernels import ExpertPart, taken
from camshaft.ops.experts.quantized_variants import sorted_build, sorted_cost, whole_tiles
from camshaft.ops.quantized.packed.packing import ROWS
from camshaft.ops.quantized.products.avx2 import tile as avx2_tile
from camshaft.ops.quantized.products.avx2.sums import Tile, totals_of
from camshaft.ops.quantized.products.avx2.tile import STEP
from camshaft.ops.quantized.products.kernels import is_q8

COLUMNS = 32


@kernel
def avx2_product_of_expert(
    k: Tracer, *arguments: Any, n: int, n_experts: int, blocks: int, columns: int, step: int, bound: int, block: str,
    share: int, vnni: bool,
) -> None:  # fmt: skip
    # as product_of_expert: y[p, 16 rows] of all pairs of one expert per program, `columns` pairs a pass, `step` at a time
    x, weights, (starts, pairs, out, *_) = taken(k, arguments, block)
    own = ExpertPart(k, starts, n, ROWS, share)
    first, last = own.first, own.last
    with k.when(own.is_there & (own.expert < n_experts)):
        mine = own.expert_rows()
        for number in k.range((last - first + (columns - 1)) // columns):
            start = first + number * columns
            count = (k.minimum(last - start, columns) + (step - 1)) // step
            tile = Tile(x, weights, mine, blocks, start, bound, step, count, vnni=vnni)
            totals = totals_of(tile, columns)
            for slot in k.range(k.minimum(last - start, columns)):
                mine.store(out, k.var(totals.get(slot)), pairs[start + slot].to(i64))
    own.store_zeros(out, pairs, n_experts)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    # `columns` rows follow the last sorted pair, so no step has to start earlier
    constants = {"columns": COLUMNS, "step": STEP, "bound": order.n_pairs(node) + COLUMNS}
    constants["vnni"] = avx2_tile.has_vnni_sums(target)
    return sorted_build(avx2_product_of_expert, node, ROWS, COLUMNS, constants)


def _variant(
    product: ops.KernelVariant, without: Callable[[ops.Target], str | None], share: float
) -> ops.KernelVariant:
    """Returns the variant of that name, with this share of the cost of `sorted`."""

    def supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
        if (reason := without(target)) is not None:
            return reason
        return whole_tiles(node, target) if is_q8(node.inputs[0]) else "takes quantized activations"

    def cost(node: ops.NodeSpec, target: ops.Target) -> float:
        return share * sorted_cost(node, target)

    return ops.KernelVariant(product.name, frozenset({"simd"}), _build, supports, cost)


VARIANTS = (
    _variant(avx2_tile.INT16, avx2_tile.without_int16_sums, 0.6),
    _variant(avx2_tile.VNNI, avx2_tile.without_vnni_sums, 0.8),
)
