"""multiples: the tile's results but for rounding, whatever tokens and tiles a program has and however many tokens are active."""

from __future__ import annotations

import numpy as np
import pytest

from camshaft import ops
from camshaft.backends.cpu.device import CpuDevice, cpu_device
from camshaft.emit.target import LEVELS, native_lanes
from camshaft.ops.quantized.matmul import TILE
from camshaft.ops.quantized.products.kernels import FEW_ROWS
from camshaft.ops.quantized.products.multiples import ODD, SIGNED, VARIANT
from camshaft.ops.quantized.samples import Case, sample
from camshaft.validation.run import run_variant
from camshaft.validation.validate import node_of
from tests.support.needs import require_level
from tests.support.quick import each_value, quick_of

OP = ops.get("quantized_matmul")
HERE = "avx512-vnni"


def machine(level: str) -> CpuDevice:
    row = LEVELS[level]
    return CpuDevice("cpu", "simd", native_lanes(row.features), row.features, row.architecture)


def products(variant: ops.KernelVariant, case: Case) -> np.ndarray:
    given = sample(case)
    (out,) = run_variant(variant, node_of(OP, given), cpu_device(), given.inputs, extents=given.extents)
    return out[: case.active]


def scales_of(case: Case) -> np.ndarray:
    """The packed scales."""
    part = case.specs[1].part("scales")
    return case.packed()[part.offset_nbytes : part.offset_nbytes + part.nbytes].reshape(part.shape)


@pytest.mark.parametrize("name", quick_of(ODD + SIGNED, (ODD[0], SIGNED[0], SIGNED[-1])))
def test_results_are_the_tiles_but_for_rounding(name: str) -> None:
    require_level(HERE)
    for case in (Case(name, 65, 65, 17, 256, "q8"), Case(name, 133, 70, 50, 768, "q8")):
        own, tile = products(VARIANT, case), products(TILE, case)
        np.testing.assert_allclose(own, tile, rtol=0, atol=4e-6 * np.abs(tile).max())


@pytest.mark.parametrize(("columns", "tiles"), each_value([32, 64, 128], [1, 2, 32]))
def test_a_programs_tokens_and_tiles_change_no_bit(columns: int, tiles: int) -> None:
    require_level(HERE)
    case = Case("IQ4_XS", 101, 98, 49, 512, "q8")
    own = products(VARIANT.with_values({"columns": columns, "tiles": tiles}), case)
    np.testing.assert_array_equal(own.view(np.uint32), products(VARIANT, case).view(np.uint32))


def test_few_active_tokens_have_the_bits_of_all() -> None:
    require_level(HERE)
    rows = [
        products(VARIANT, Case("IQ1_S", 101, active, 33, 512, "q8")).view(np.uint32) for active in (100, 1, 4, 5, 65)
    ]
    for few in rows[1:]:
        np.testing.assert_array_equal(few, rows[0][: len(few)])


@pytest.mark.parametrize("name", quick_of(ODD, {ODD[0], "IQ1_S"}))
def test_whole_scales_are_odd_and_have_five_bits(name: str) -> None:
    case = Case(name, 1, 1, 64, 1024, "q8")
    scales = scales_of(case)
    if name == "IQ1_S":  # minima follow the scales, of 8
        scales, minima = scales[:, :, 0].astype(int), scales[:, :, 1].astype(int)
        assert set((8 * minima / scales).flat) == {7, 9}
        assert not (scales % 8).any()
        scales = scales // 8
    assert set(scales.flat) == set(range(1, 16 if name.startswith("IQ1") else 32, 2))


@pytest.mark.parametrize("name", SIGNED)
def test_signed_scales_have_six_bits(name: str) -> None:
    assert set(scales_of(Case(name, 1, 1, 64, 1024, "q8")).view(np.int8).flat) == set(range(-32, 32))


@pytest.mark.parametrize("scale", [np.nan, np.inf, 0.0, 1e-38])
def test_scales_of_activations_are_not_hidden_by_additions_to_their_bits(scale: float) -> None:
    require_level(HERE)
    case = Case("IQ4_XS", 65, 65, 17, 512, "q8")
    given, part = sample(case), case.specs[0].part("scales")
    x, w = given.inputs
    scales = x[part.offset_nbytes : part.offset_nbytes + part.nbytes].view(np.float32).reshape(part.shape)
    scales[1] = scale
    scales[2, 3] = scale
    own, tile = (run_variant(v, node_of(OP, given), cpu_device(), (x, w))[0] for v in (VARIANT, TILE))
    assert np.array_equal(np.isfinite(own), np.isfinite(tile))
    some = np.isfinite(tile)
    assert some[1].all() == np.isfinite(scale)
    np.testing.assert_allclose(own[some], tile[some], rtol=0, atol=4e-6 * np.abs(tile[some]).max())


def test_other_levels_formats_and_few_tokens_are_refused() -> None:
    node = node_of(OP, sample(Case("IQ2_XS", 65, 65, 16, 256, "q8")))
    for level in LEVELS:
        wide = {"avx512vnni"} <= LEVELS[level].features
        assert VARIANT.supports(node, machine(level)) == (None if wide else "takes CPUs with AVX-512 VNNI"), level
    refused = (
        (Case("IQ4_NL", 65, 65, 16, 256, "q8"), f"takes weights of {', '.join(ODD + SIGNED)}"),
        (Case("IQ2_XS", FEW_ROWS, 1, 16, 256, "q8"), f"takes more than {FEW_ROWS} tokens; got {FEW_ROWS}"),
        (Case("IQ2_XS", 65, 65, 16, 256, "f32"), "takes quantized activations"),
    )
    for case, wanted in refused:
        assert VARIANT.supports(node_of(OP, sample(case)), machine(HERE)) == wanted
