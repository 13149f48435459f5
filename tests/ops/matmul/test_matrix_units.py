"""Products on CPUs' matrix units: on AMX as NumPy plays it; test_aarch64.py runs NEON's under qemu."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from ml_dtypes import bfloat16

from camshaft import ops
from camshaft.backends.cpu.device import cpu_device
from camshaft.dtypes import bf16
from camshaft.lang.verifier.verify import MAX_SCRATCH_NBYTES
from camshaft.ops.masked.options import Options
from camshaft.ops.op import NodeSpec, Sample
from camshaft.ops.quantize.quantize_activations import TILE_LAYOUT
from camshaft.ops.quantized.packed.formats import PACKED_FORMATS
from camshaft.ops.quantized.samples import Case, sample
from camshaft.ops.spec import TensorSpec
from camshaft.validation.run import run_variant
from camshaft.validation.validate import check_sample, node_of
from tests.support.devices.played_amx import device
from tests.support.needs import require_level
from tests.support.quick import full, quick_of
from tests.support.samples import samples

GROUNDS = 2  # a sample runs on two, with kernels made for each
PRODUCT, GATED, ATTENTION, MATMUL = map(ops.get, ("quantized_matmul", "gated_product", "attention", "matmul"))
TURNED = ops.get("quantized_matmul_transposed")


def variant_of(op, name):
    return next(v for v in op.variants if v.name == name)


def run(op, variant, sample) -> Counter[str]:
    """How often each instruction was played in one run; the sample agrees with the op's reference."""
    require_level("avx512-bf16")  # for the rest of such a kernel
    machine = device()
    checked = check_sample(op, variant, machine, sample)
    assert checked.max_error <= checked.tolerance
    assert not [line for amx in machine.players for line in amx.failed]
    played = sum((Counter(amx.counts) for amx in machine.players), Counter())
    assert not any(n % GROUNDS for n in played.values())
    return Counter({name: n // GROUNDS for name, n in played.items()})


@pytest.mark.parametrize("name", quick_of(PACKED_FORMATS, ["Q6_K"]))
def test_every_block_format_is_unpacked_for_amx(name) -> None:
    """33 rows of weights are two panels. 41 tokens are a tile of 32 and one of 16, of 13 there is the latter alone; a step for
    32 k has two tiles of sums for each 16 tokens."""
    for tokens, sums in ((41, 4 + 2), (13, 2)):
        found = (
            s for s in samples(PRODUCT.name) if s.name.startswith(f"{name} 45({tokens})") and s.name.endswith("tiles")
        )
        given = next(found)
        depth = node_of(PRODUCT, given).inputs[1].bounds[1]
        counts = run(PRODUCT, variant_of(PRODUCT, "unpacked_tiles"), given)
        assert counts["tdpbf16ps.internal"] == 2 * sums * depth // 32


@pytest.mark.full
def test_tokens_have_the_same_bits_in_runs_of_few_and_of_many() -> None:
    """Few go past panels step by step, many have two parts of the depth and tiles of 32 or 16 rows."""
    require_level("avx512-bf16")
    given = next(s for s in samples(PRODUCT.name) if s.name == "Q8_0 65(16)x2080x70 tiles")
    node, (extent,) = node_of(PRODUCT, given), given.extents
    variant = variant_of(PRODUCT, "unpacked_tiles").with_values({"part": 48, "panels": 2})
    (whole,) = run_variant(variant, node, device(), given.inputs, {extent: 65})
    for n in (1, 16, 17, 33, 49):
        (found,) = run_variant(variant, node, device(), given.inputs, {extent: n})
        np.testing.assert_array_equal(found[:n], whole[:n])


@pytest.mark.full
def test_gates_have_the_same_bits_in_runs_of_few_and_of_many() -> None:
    require_level("avx512-bf16")
    given = next(s for s in samples(GATED.name) if s.name.startswith("Q4_K 67(16)") and "tiles" in s.name)
    node, (extent,) = node_of(GATED, given), given.extents
    variant, layout = variant_of(GATED, "unpacked_tiles"), TILE_LAYOUT
    spec = node.outputs[0]

    def rows(n: int) -> np.ndarray:
        (found,) = run_variant(variant, node, device(), given.inputs, {extent: n})
        return layout.numbers(found.view(np.uint8).reshape(-1), spec)[:n]

    whole = rows(67)
    for n in (1, 16, 17, 33, 49):
        np.testing.assert_array_equal(rows(n), whole[:n])


@pytest.mark.parametrize("name", quick_of(PACKED_FORMATS, ["Q6_K"]))
def test_every_block_format_is_turned_for_amx(name) -> None:
    """45 tokens are three tiles of 16, 64 rows of weights two steps; two tiles of columns for each block of 32."""
    given = next(s for s in samples(TURNED.name) if s.name.startswith(f"{name} 45") and s.name.endswith("tiles"))
    n, k = node_of(TURNED, given).inputs[1].bounds
    assert run(TURNED, variant_of(TURNED, "unpacked_tiles"), given)["tdpbf16ps.internal"] == 3 * (n // 32) * 2 * (
        k // 32
    )


@pytest.mark.full
@pytest.mark.parametrize(
    "values", [{"part": 48, "panels": 2}, full({"part": 20, "panels": 1}), full({"part": 64, "panels": 4})]
)
def test_a_turned_depth_may_have_parts(values) -> None:
    given = next(s for s in samples(TURNED.name) if s.name == "Q8_0 67(65)x2080x96 tiles")
    run(TURNED, variant_of(TURNED, "unpacked_tiles").with_values(values), given)


@pytest.mark.full
def test_sums_of_two_parts_of_the_depth_are_added() -> None:
    given = next(s for s in samples(PRODUCT.name) if s.name == "Q8_0 65(65)x2080x70 tiles")
    counts = run(PRODUCT, variant_of(PRODUCT, "unpacked_tiles").with_values({"part": 48, "panels": 2}), given)
    parts, panels, sums = 2, 3, 4 + 4 + 2
    assert counts["tilestored64.internal"] == parts * panels * sums
    assert counts["tilezero.internal"] == 0


def test_panels_that_are_too_large_for_a_program_are_refused() -> None:
    tiled = node_of(PRODUCT, sample(Case("Q4_0", 512, 512, 256, 4096, "tiles")))
    floats = TensorSpec((512, 4096), bf16), TensorSpec((4096, 256), bf16)
    for op, name, panels, node, nbytes in (
        (PRODUCT, "unpacked_tiles", 8, tiled, 1572864),
        (MATMUL, "unit_panels", 16, NodeSpec(floats, MATMUL.infer(floats, {}), {}), 2101248),
    ):
        refused = variant_of(op, name).with_values({"part": 64, "panels": panels}).supports(node, device())
        assert refused == f"{nbytes} bytes of scratch; at most {MAX_SCRATCH_NBYTES}"
        assert variant_of(op, name).with_values({"part": 64, "panels": panels // 2}).supports(node, device()) is None


def test_both_products_of_a_gate_are_of_tiles() -> None:
    given = next(s for s in samples(GATED.name) if s.name.startswith("Q8_0 45(45)") and "tiles" in s.name)
    assert run(GATED, variant_of(GATED, "unpacked_tiles"), given)["tdpbf16ps.internal"] == 2 * 2 * (4 + 2) * 2


ROUNDED = [s for s in samples(ATTENTION.name) if s.attrs.get("precision") == "bf16" and "from 500" not in s.name]
COARSE, MASKED = (
    [s for s in ROUNDED if Options.of("attention", s.attrs).is_plain == is_plain] for is_plain in (True, False)
)


@pytest.mark.parametrize("sample", quick_of(COARSE, COARSE[:1]), ids=lambda s: s.name)
def test_attention_is_of_tiles_where_its_precision_allows(sample) -> None:
    assert run(ATTENTION, variant_of(ATTENTION, "unit_tiles"), sample)["tdpbf16ps.internal"] > 0


@pytest.mark.parametrize("sample", quick_of(MASKED, MASKED[:1]), ids=lambda s: s.name)
def test_attention_with_options_is_of_tiles_where_its_precision_allows(sample) -> None:
    assert run(ATTENTION, variant_of(ATTENTION, "unit_tiles_with_options"), sample)["tdpbf16ps.internal"] > 0


def test_later_keys_have_no_weight() -> None:
    """Not even the least power of two: values of 0 up to a token's own give 0, whatever follows in its tile."""
    require_level("avx512-bf16")
    given = next(s for s in COARSE if s.name.startswith("17 tokens"))
    q, keys, values, positions, slots, table = (array.copy() for array in given.inputs)
    values[table[0, 0], :, :5] = 0
    inputs = q, keys, values, positions, slots, table
    node, variant = node_of(ATTENTION, given), variant_of(ATTENTION, "unit_tiles")
    (got,) = run_variant(variant, node, device(), inputs, given.extents)
    assert not got[:5].any()
    assert got[5:].all()


def test_who_has_no_unit_is_told() -> None:
    tiled = node_of(PRODUCT, sample(Case("Q4_0", 29, 29, 32, 64, "tiles")))
    panels, plain = variant_of(PRODUCT, "unpacked_tiles"), node_of(PRODUCT, sample(Case("Q4_0", 29, 29, 32, 64, "q8")))
    assert panels.supports(tiled, device()) is None
    assert panels.supports(plain, device()) == "takes activations of bf16 in tiles"
    assert "AMX" in (panels.supports(tiled, cpu_device("scalar")) or "")
    assert variant_of(PRODUCT, "tile").supports(tiled, device()) == "takes activations of f32 or 8 bits"
    assert "NEON" in (variant_of(PRODUCT, "matrix_unit").supports(plain, device()) or "")
    exact = next(s for s in samples(ATTENTION.name) if s.name == "70 tokens, 41 active")
    assert variant_of(ATTENTION, "unit_tiles").supports(node_of(ATTENTION, exact), device()) == "takes precision 'bf16'"


BF16 = variant_of(MATMUL, "matrix_unit")


WHOLE = [
    s for s in samples(MATMUL.name) if s.name.split()[1:2] and s.name.split()[1] in ("32x64x32", "37x44x33", "deep")
]


@pytest.mark.parametrize("sample", WHOLE, ids=lambda s: s.name)
def test_bf16_is_multiplied_by_amx(sample) -> None:
    (rows, depth), columns = sample.inputs[0].shape, sample.inputs[1].shape[0 if sample.attrs else 1]
    counts = run(MATMUL, BF16, sample)
    height = 16 if depth % 32 else 32
    pieces = height // 16 * 2 * -(-rows // height) * -(-columns // 32)
    assert counts["tdpbf16ps.internal"] == pieces * -(-depth // 32)


PANELS = [s for s in WHOLE if not s.attrs and s.inputs[0].shape[-1] % 32 == 0 and s.inputs[0].shape[0] >= 32]


@pytest.mark.parametrize("sample", PANELS, ids=lambda s: s.name)
def test_bf16_is_multiplied_by_panels(sample) -> None:
    (rows, depth), columns = sample.inputs[0].shape, sample.inputs[1].shape[1]
    counts = run(MATMUL, variant_of(MATMUL, "unit_panels"), sample)
    assert counts["tdpbf16ps.internal"] == 4 * -(-rows // 32) * -(-columns // 32) * depth // 32


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape, np.float32).astype(bfloat16)


@pytest.mark.parametrize("layout", [{}, {"transpose_b": True}], ids=["k x n", "n x k"])
def test_parts_of_the_depth_are_added_to_the_result(layout) -> None:
    """37 rows are two tiles, the second of which starts earlier; 70 columns are two programs, the second of one panel."""
    b = floats(70, 544) if layout else floats(544, 70)
    given = Sample("parts", (floats(37, 544), b), layout)
    counts = run(MATMUL, variant_of(MATMUL, "unit_panels").with_values({"part": 16, "panels": 2}), given)
    assert counts["tdpbf16ps.internal"] == 4 * 2 * 3 * 17
    assert counts["tilezero.internal"] == 0


@pytest.mark.parametrize("attrs", [full({}), full({"transpose_b": True}), {"to": "bf16"}], ids=str)
def test_blocks_of_packed_rows_give_the_same_bits(attrs) -> None:
    """Two parts of the depth, of 9 and 8 steps, are two blocks each: the last has fewer steps than the others."""
    b = floats(70, 544) if "transpose_b" in attrs else floats(544, 70)
    given = Sample("blocks", (floats(37, 544), b), attrs)
    tiles = variant_of(MATMUL, "unit_panels").with_values({"part": 16, "panels": 2, "block": 8})
    assert run(MATMUL, tiles, given)["tdpbf16ps.internal"] == 4 * 2 * 3 * 17
    in_place = variant_of(MATMUL, "unit_panels").with_values({"part": 32, "panels": 2, "block": 0})
    node = node_of(MATMUL, given)
    (got,), (wanted,) = (run_variant(v, node, device(), given.inputs, {}) for v in (tiles, in_place))
    np.testing.assert_array_equal(got, wanted)


def test_parts_are_not_added_to_a_rounded_result() -> None:
    specs = TensorSpec((64, 4096), bf16), TensorSpec((4096, 64), bf16)
    node = NodeSpec(specs, MATMUL.infer(specs, {"to": "bf16"}), {"to": "bf16"})
    panels = variant_of(MATMUL, "unit_panels")
    assert panels.supports(node, device()) is None
    refused = panels.with_values({"part": 64}).supports(node, device())
    assert refused == "parts of 64 steps of 128: bf16 holds no sums"


def test_what_the_unit_does_not_take_is_told() -> None:
    named = {s.name: s for s in samples(MATMUL.name)}
    assert BF16.supports(node_of(MATMUL, named["bf16 32x64x32"]), device()) is None
    assert BF16.supports(node_of(MATMUL, named["()33x34x35()"]), device()) == "takes bf16 by bf16"
    assert "AMX" in (BF16.supports(node_of(MATMUL, named["bf16 32x64x32"]), cpu_device("scalar")) or "")
