"""int16_sums (AVX2 alone) and vnni_sums (AVX-VNNI): every bit of the tile's results, and that 16-bit sums cannot overflow."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pytest

from camshaft import ops
from camshaft.backends.cpu.device import CpuDevice
from camshaft.emit.target import LEVELS, native_lanes
from camshaft.formats.blocks import BLOCK_FORMATS
from camshaft.ops.experts import avx2_kernels
from camshaft.ops.op import Sample
from camshaft.ops.quantize import quantize_activations as q8
from camshaft.ops.quantized import gated_product
from camshaft.ops.quantized.matmul import TILE
from camshaft.ops.quantized.packed.formats import PACKED_FORMATS
from camshaft.ops.quantized.products.avx2 import sums as avx2_sums
from camshaft.ops.quantized.products.avx2 import tile as avx2_tile
from camshaft.ops.quantized.products.avx2.stage import way_of
from camshaft.ops.quantized.products.avx2.staged import pays
from camshaft.ops.quantized.samples import Case, sample
from camshaft.validation.run import run_variant
from camshaft.validation.validate import node_of
from tests.support.needs import require_level

OP = ops.get("quantized_matmul")


def machine(level: str) -> CpuDevice:
    row = LEVELS[level]
    return CpuDevice("cpu", "simd", native_lanes(row.features), row.features, row.architecture)


# A plain format and a nested one with groups; codes over 127, which 16-bit sums multiply by magnitude and sign.
QUICK = (("avx2", "Q5_0"), ("avx-vnni", "Q2_K"))
VARIANTS = {"avx2": avx2_tile.INT16, "avx-vnni": avx2_tile.VNNI}


def bits(variant: ops.KernelVariant, given: Sample, level: str) -> np.ndarray:
    node, device = node_of(OP, given), machine(level)
    assert variant.supports(node, device) is None
    (out, *_) = run_variant(variant, node, device, given.inputs, extents=given.extents)
    return out.view(np.uint32)


def cases(name: str) -> list[Case]:
    """One token, several in registers, and more than a program has, with a last step and a last row tile that are ragged."""
    k = 512 if PACKED_FORMATS[name].is_nested else 96
    return [Case(name, 1, 1, 33, k, "q8"), Case(name, 5, 3, 17, k, "q8"), Case(name, 75, 70, 33, k, "q8")]


@pytest.mark.parametrize(
    ("level", "name"),
    [
        pytest.param(level, name, marks=() if (level, name) in QUICK else pytest.mark.full)
        for level in VARIANTS
        for name in PACKED_FORMATS
    ],
)
def test_results_are_the_tiles_bit_for_bit(level: str, name: str) -> None:
    require_level(level)
    for case in cases(name):
        given = sample(case)
        own, tile = bits(VARIANTS[level], given, level), bits(TILE, given, level)
        np.testing.assert_array_equal(own[: case.active], tile[: case.active])


@pytest.mark.parametrize("name", ["Q4_K", pytest.param("Q5_0", marks=pytest.mark.full)])
def test_long_rows_of_many_tokens_are_staged_and_as_the_tiles(name: str) -> None:
    require_level("avx2")
    case = Case(name, 131, 67, 50, 1280, "q8")
    assert pays(PACKED_FORMATS[name], case.rows, case.k)
    given = sample(case)
    own, tile = bits(avx2_tile.INT16, given, "avx2"), bits(TILE, given, "avx2")
    np.testing.assert_array_equal(own[: case.active], tile[: case.active])


class Greatest(Case):
    """Activations of 127 in magnitude, and weights whose codes have all bits set or none, row by row."""

    @cached_property
    def x(self) -> np.ndarray:
        x = np.where(np.arange(self.rows)[:, None] % 2, -1, np.ones(self.k, np.float32))
        return q8.to_bytes(*q8.quantize(x), self.specs[0], *PACKED_FORMATS[self.name].sums)

    @cached_property
    def raw(self) -> np.ndarray:
        raw = super().raw
        records = raw.view(BLOCK_FORMATS[self.name].layout).reshape(self.n, -1)
        for field in {"qs", "ql", "qh", "hmask"} & set(records.dtype.names):
            records[field][::2], records[field][1::2] = 0, np.iinfo(records[field].dtype).max
        return raw


@pytest.mark.parametrize(
    "name",
    [name if name == "Q6_K" else pytest.param(name, marks=pytest.mark.full) for name in PACKED_FORMATS],
)
def test_the_greatest_sums_are_the_tiles_bit_for_bit(name: str) -> None:
    require_level("avx2")
    long = not pays(PACKED_FORMATS[name], avx2_tile.STEP * 4, 512)
    given = sample(Greatest(name, 68 if long else 16, 68 if long else 16, 16, 1280 if long else 512, "q8"))
    np.testing.assert_array_equal(bits(avx2_tile.INT16, given, "avx2"), bits(TILE, given, "avx2"))


@pytest.mark.parametrize("name", PACKED_FORMATS)
def test_staged_codes_fit_16_bits(name: str) -> None:
    form = PACKED_FORMATS[name]
    way, codes = way_of(form), form.table or range(1 << form.bits)
    assert way.is_signed == (form.zero_point is not None and not way.is_short)
    if way.is_signed:
        greatest = max(abs(code - form.zero_point) for code in codes[: 1 << form.bits])
        assert 2 * 255 * greatest < 1 << 15
        assert 2 * 127 * greatest * way.chain < 1 << 15
        assert avx2_sums.chain_of(form) <= way.chain <= 8 // form.groups


@pytest.mark.parametrize("name", PACKED_FORMATS)
def test_the_largest_codes_fit_16_bits(name: str) -> None:
    form = PACKED_FORMATS[name]
    chain, greatest = avx2_sums.chain_of(form), max(form.table or [(1 << form.bits) - 1])
    if chain:
        assert 2 * 127 * greatest * chain < 1 << 15
        assert 8 // form.groups % chain == 0
    else:  # by magnitude and sign: at most 128, the other factor at most 127
        assert form.zero_point == 128
        assert 2 * 127 * 128 < 1 << 15


# The ops that have the variant, and a sample of each with more tokens than a program takes.
MANY = {
    "quantized_matmul": "Q4_K 101(99)x512x17 q8",
    "gated_product": "Q5_0 67(65)x64x64 q8 ((32, 0),) silu",
    "quantized_matmul_grouped": "Q6_K 101(99)x2 of 3x32x256 q8",
}


@pytest.mark.parametrize(
    ("variant", "own", "wanted"),
    [
        ("int16_sums", "avx2", "takes CPUs with AVX2 and without VNNI"),
        ("vnni_sums", "avx-vnni", "takes CPUs with AVX-VNNI and without AVX-512"),
    ],
)
@pytest.mark.parametrize("name", MANY)
def test_only_one_level_has_the_variant(name: str, variant: str, own: str, wanted: str) -> None:
    op = ops.get(name)
    node = node_of(op, next(s for s in op.samples() if s.name == MANY[name]))
    found = next(v for v in op.variants if v.name == variant)
    for level in LEVELS:
        assert found.supports(node, machine(level)) == (None if level == own else wanted), level


def test_programs_and_passes_are_several_in_a_sample_of_each_op() -> None:
    rows = {name: next(s for s in ops.get(name).samples() if s.name == sample) for name, sample in MANY.items()}
    assert rows["quantized_matmul"].specs[0].bounds[0] > avx2_tile.COLUMNS
    assert rows["gated_product"].specs[0].bounds[0] > 2 * gated_product.GATED_COLUMNS
    experts = rows["quantized_matmul_grouped"].inputs[2]
    assert np.bincount(experts[experts >= 0]).max() > 2 * avx2_kernels.COLUMNS


def test_floats_and_steps_that_do_not_fit_are_refused() -> None:
    floats = node_of(OP, sample(Case("Q4_0", 16, 16, 16, 64, "f32")))
    assert avx2_tile.INT16.supports(floats, machine("avx2")) == "takes quantized activations"
    node, refusal = node_of(OP, sample(Case("Q4_0", 16, 16, 16, 64, "q8"))), avx2_tile.TUNABLES.refusal
    assert refusal is not None
    for columns, step, wanted in (
        (64, 6, "64 tokens, 6 at a time"),
        (24, 24, "24 tokens at a time of 16"),
        (8, 4, None),
    ):
        assert refusal(node, machine("avx2"), {"columns": columns, "step": step, "tiles": 1, "ahead": 0}) == wanted
