"""quantized_matmul of one token from several streams: shares that are ragged, and the tile's very bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from camshaft import ops
from camshaft.backends.cpu.device import CpuDevice, cpu_device
from camshaft.emit.target import LEVELS, native_lanes
from camshaft.formats.blocks import BLOCK_FORMATS
from camshaft.ops.kernels.launch import for_workers, plan_workers
from camshaft.ops.op import NodeSpec
from camshaft.ops.quantized.packed.packing import interleaved
from camshaft.ops.quantized.products import gemv
from camshaft.ops.quantized.products.avx2.tile import has_int16_sums
from camshaft.ops.quantized.samples import Case, sample
from camshaft.ops.spec import TensorSpec
from camshaft.validation.validate import check_sample, node_of
from tests.support.quick import quick_of

OP = ops.get("quantized_matmul")
GEMV, TILE = (next(v for v in OP.variants if v.name == name) for name in ("gemv", "tile"))
# A zero point, minima, codes by magnitude and sign, nested scales by whole numbers and by floats.
FORMATS = ("Q4_0", "Q4_1", "Q8_0", "Q6_K", "Q4_K")
HAS_STREAMS = cpu_device().lanes == 16 or has_int16_sums(cpu_device())


@pytest.mark.skipif(not HAS_STREAMS, reason="streams are for vectors of 16 numbers and for AVX2 without VNNI")
@pytest.mark.parametrize("name", quick_of(FORMATS, FORMATS[1:2]))
def test_ragged_shares_give_the_tiles_bits(name) -> None:
    given = sample(Case(name, 1, 1, 16 * 7 - 5, 512, "q8"))
    wanted = check_sample(OP, TILE, cpu_device(), given)
    for streams, step in ((1, 1), (2, 8), (3, 2), (4, 4), (6, 1)):
        variant = GEMV.with_values({"streams": streams, "step": step})
        assert variant.supports(node_of(OP, given), cpu_device()) is None
        found = check_sample(OP, variant, cpu_device(), given)
        assert found.max_error <= found.tolerance
        np.testing.assert_array_equal(found.outputs[0], wanted.outputs[0])


def test_streams_without_a_tile_and_steps_past_a_block_are_refused() -> None:
    node = node_of(OP, sample(Case("Q4_0", 1, 1, 33, 96, "q8")))
    assert "4 streams of 3 tiles" in (gemv.refusal(node, cpu_device(), {"streams": 4, "step": 1}) or "")
    assert "steps of 2 blocks of 3" in (gemv.refusal(node, cpu_device(), {"streams": 3, "step": 2}) or "")
    two = node_of(OP, sample(Case("Q4_0", 2, 2, 33, 96, "q8")))
    assert "one quantized token" in (GEMV.supports(two, replace(cpu_device(), lanes=16)) or "")


@pytest.mark.parametrize(("tiles", "streams"), [(1, 1), (8, 1), (32, 4), (36, 3), (56, 4), (57, 1), (301, 4)])
def test_programs_share_out_evenly(tiles: int, streams: int) -> None:
    node = node_of(OP, sample(Case("Q4_0", 1, 1, 16 * tiles, 96, "q8")))
    assert gemv.values_of(node, cpu_device()) == {"streams": streams, "step": 1}


@pytest.mark.parametrize(("n", "workers", "faster"), [(4096, 1, True), (4096, 2, False), (64, 1, False)])
def test_one_worker_reads_large_weights_from_several_places(n: int, workers: int, faster: bool) -> None:
    x = node_of(OP, sample(Case("Q4_0", 1, 1, 16, 896, "q8"))).inputs[0]
    w = interleaved(TensorSpec((n, 896), BLOCK_FORMATS["Q4_0"]))
    node = NodeSpec((x, w), OP.infer((x, w), {}), {})
    device = replace(cpu_device(), lanes=16)
    with for_workers(workers):
        assert (GEMV.cost(node, device) < TILE.cost(node, device)) is faster
    assert plan_workers() is None


@pytest.mark.parametrize(
    ("n", "workers", "faster"),
    [(4096, 1, True), (4096, 2, False), (320, 1, True), (256, 1, False), (304, 1, False)],
)
def test_16_bit_sums_read_from_several_places_where_the_parts_are_even(n: int, workers: int, faster: bool) -> None:
    x = node_of(OP, sample(Case("Q4_0", 1, 1, 16, 896, "q8"))).inputs[0]
    w = interleaved(TensorSpec((n, 896), BLOCK_FORMATS["Q4_0"]))
    node, row = NodeSpec((x, w), OP.infer((x, w), {}), {}), LEVELS["avx2"]
    device = CpuDevice("cpu", "simd", native_lanes(row.features), row.features, row.architecture)
    with for_workers(workers):
        chosen = min((v for v in OP.variants if v.supports(node, device) is None), key=lambda v: v.cost(node, device))
    assert (chosen is GEMV) is faster
