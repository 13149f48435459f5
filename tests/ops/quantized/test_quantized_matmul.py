"""quantized_matmul's tile beyond the table test: few active tokens; lanes that are threads, a row each, in workgroups of 64."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from camshaft import ops
from camshaft.backends.cpu.device import cpu_device
from camshaft.backends.registry import device
from camshaft.ops.quantized.matmul import THREADS
from camshaft.ops.quantized.packed.formats import PACKED_FORMATS
from camshaft.ops.quantized.samples import Case, sample
from camshaft.validation.run import run_variant
from camshaft.validation.validate import check_sample, node_of
from tests.support.devices.simulated_gpu import SimulatedDevice
from tests.support.quick import quick_of

OP = ops.get("quantized_matmul")
TILE = next(variant for variant in OP.variants if variant.name == "tile")
# A zero point, stored minima, and groups of 16 with 8 bits.
FORMATS = ("Q4_0", "Q4_1", "Q6_K")


@pytest.mark.parametrize(
    ("name", "quantized"), quick_of(product(FORMATS, [True, False]), [("Q4_1", False), ("Q6_K", True)])
)
def test_rows_astride_a_workgroup(name, quantized) -> None:
    assert name in PACKED_FORMATS
    for tokens, active, n in ((1, 1, 64), (1, 1, 65), (13, 13, 130), (14, 5, 63)):
        given = sample(Case(name, tokens, active, n, 256, quantized))
        for rows in (THREADS, 2 * THREADS) if n == 130 else (THREADS,):
            found = check_sample(OP, TILE.with_values({"rows": rows}), SimulatedDevice(), given)
            assert found.max_error <= found.tolerance, f"{found.sample}, {rows} threads: {found.max_error}"


@pytest.mark.parametrize("name", ["null:wgsl", "null:ptx", "null:msl"])
def test_a_workgroup_has_64_threads(name) -> None:
    for quantized in (True, False):
        node = node_of(OP, sample(Case("Q4_1", 13, 13, 130, 64, quantized)))
        (launch,) = TILE.build(node, device(name)).launches
        assert (launch.lanes, launch.constants["rows"], launch.grid[0].per) == (64, 64, 64)
        (on_cpu,) = TILE.build(node, cpu_device()).launches
        assert on_cpu.lanes is None
        assert on_cpu.constants["rows"] <= 16
    wide = TILE.with_values({"rows": 64})
    assert "need threads; simd has none" in (wide.supports(node, cpu_device()) or "")


def test_few_tokens_of_many_have_the_bits_of_all() -> None:
    """A tile computes a few active tokens in another way than all of its own."""
    device, rows = cpu_device(), []
    for active in (28, 1, 4, 8, 9, 20):
        given = sample(Case("Q4_1", 29, active, 33, 64, "q8"))
        (out,) = run_variant(TILE, node_of(OP, given), device, given.inputs, extents=given.extents)
        rows.append(out[:active].view(np.uint32))
    for few in rows[1:]:
        np.testing.assert_array_equal(few, rows[0][: len(few)])
