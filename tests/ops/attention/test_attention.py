"""attention beyond the table test: chunks, paging, sequences side by side, program order, and which variant is chosen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from camshaft import ops
from camshaft.backends.cpu.device import cpu_device
from camshaft.backends.registry import device
from camshaft.dtypes import f16, f32, i32
from camshaft.extent import Extent
from camshaft.ops.attention.split import keys_per_split
from camshaft.ops.attention.tiled import shape_of
from camshaft.ops.masked.samples import sample
from camshaft.ops.op import NodeSpec
from camshaft.ops.spec import TensorSpec
from camshaft.selection.select import select
from camshaft.validation.run import refusal_of, run_variant
from camshaft.validation.validate import check_sample, node_of
from tests.support.devices.simulated_gpu import SimulatedDevice
from tests.support.quick import each_value, full, quick_of

OP = ops.get("attention")
VARIANTS = {variant.name: variant for variant in OP.variants}
SMOL = {"heads": (9, 3), "head_dim": 64}


def run(variant: str, given, inputs=None) -> np.ndarray:
    """The variant's output for a sample, or for other inputs of the same kind."""
    arrays = given.inputs if inputs is None else inputs
    specs = tuple(TensorSpec(a.shape, s.dtype) for a, s in zip(arrays, given.specs, strict=True))
    node = node_of(OP, replace(given, inputs=tuple(arrays), specs=specs))
    # `tiled` leaves few tokens to `split_keys`, and has the same bits for any number of them all the same.
    assert variant == "tiled" or VARIANTS[variant].supports(node, cpu_device()) is None
    return run_variant(VARIANTS[variant], node, cpu_device(), arrays, given.extents)[0]


def rows(inputs, chosen):
    """The inputs for some of the tokens."""
    q, k_cache, v_cache, positions, slots, table = inputs
    return q[chosen], k_cache, v_cache, positions[chosen], slots[chosen], table


@pytest.mark.parametrize("n", quick_of([1, 7, 16, 33], [7]))
def test_a_prompt_in_chunks_equals_the_whole_bit_by_bit(n) -> None:
    whole = sample("prompt", [(0, p) for p in range(90)], **SMOL)
    expected = run("tiled", whole)
    chunks = [run("tiled", whole, rows(whole.inputs, slice(i, i + n))) for i in range(0, 90, n)]
    np.testing.assert_array_equal(np.concatenate(chunks), expected)


def test_token_by_token_equals_the_whole() -> None:
    whole = sample("prompt", [(0, p) for p in range(230, 270)], **SMOL)
    expected = run("tiled", whole)
    for variant in ("split_keys", "one_query_per_program"):
        steps = [run(variant, whole, rows(whole.inputs, slice(i, i + 1))) for i in range(40)]
        np.testing.assert_allclose(np.concatenate(steps), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("variant", ["tiled", "one_query_per_program"])
def test_two_sequences_in_one_batch_equal_each_alone(variant) -> None:
    places = [(i % 2, i // 2 + (50 if i % 2 else 0)) for i in range(38)]
    both = sample("both", places, **SMOL)
    together = run(variant, both)
    for slot in (0, 1):
        chosen = np.flatnonzero(both.inputs[4] == slot)
        np.testing.assert_array_equal(run(variant, both, rows(both.inputs, chosen)), together[chosen])


@pytest.mark.parametrize("variant", ["tiled", "split_keys", "one_query_per_program"])
def test_the_place_of_blocks_does_not_matter(variant) -> None:
    given = sample("paged", [(0, p) for p in range(70, 78)], **SMOL)
    q, k_cache, v_cache, positions, slots, table = given.inputs
    order = np.random.default_rng(2).permutation(len(k_cache))
    moved = np.empty_like(k_cache), np.empty_like(v_cache)
    moved[0][order], moved[1][order] = k_cache, v_cache
    again = run(variant, given, (q, *moved, positions, slots, order[table].astype(np.int32)))
    np.testing.assert_array_equal(again, run(variant, given))


@pytest.mark.parametrize("variant", ["tiled", "split_keys", "one_query_per_program"])
def test_large_scores_stay_finite_and_a_nan_stays_with_its_token(variant) -> None:
    given = sample("loud", [(0, p) for p in range(60, 68)], **SMOL, loudness=1e4)
    assert np.isfinite(run(variant, given)).all()
    q = given.inputs[0].copy()
    q[3] = np.nan
    out = run(variant, given, (q, *given.inputs[1:]))
    assert np.isnan(out[3]).all()
    assert np.isfinite(np.delete(out, 3, axis=0)).all()


@pytest.mark.parametrize("low", [-200.0, -1e5, -np.inf])
@pytest.mark.parametrize("high", [0.0, 300.0])
def test_first_keys_far_below_later_ones_cost_no_bits(low: float, high: float) -> None:
    given = sample("late", [(0, p) for p in range(100, 106)], heads=(1, 1), head_dim=32, dtype=f32)
    q, k_cache, *rest = given.inputs
    q, table = np.abs(q) + 0.1, rest[3]
    for position in range(64):
        k_cache[table[0, position // 16], 0, :, position % 16] = low
    k_cache[table[0, 5], 0, :, 7] += high
    out = run("tiled", given, (q, k_cache, *rest))
    np.testing.assert_allclose(out, OP.reference((q, k_cache, *rest), given.attrs)[0], rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("bad", [0, 2, 5])
def test_scores_may_rise_at_any_key_beside_a_row_of_nan(bad) -> None:
    given = sample("rising", [(0, p) for p in range(100, 106)], heads=(1, 1), head_dim=32, dtype=f32, loudness=1e-3)
    q, k_cache, *rest = given.inputs
    table = rest[3]
    q = np.abs(q)
    for height, position in enumerate((3, 20, 70, 71, 99, 104)):
        k_cache[table[0, position // 16], 0, :, position % 16] = 1e5 * (1 + height)
    expected = OP.reference((q, k_cache, *rest), given.attrs)[0]
    q[bad] = np.nan
    out = run("tiled", given, (q, k_cache, *rest))
    assert np.isnan(out[bad]).all()
    others = np.arange(6) != bad
    np.testing.assert_allclose(out[others], expected[others], rtol=2e-5, atol=1e-6)


def test_programs_in_any_order_give_the_same_bits() -> None:
    given = sample("prompt", [(0, p) for p in range(100)], **SMOL)
    node, device = node_of(OP, given), cpu_device()
    compiled = device.__class__.compile

    class Backwards(type(device)):  # type: ignore[misc]
        def compile(self, request):
            code = compiled(self, request)

            def backwards(at, first, last):
                for p in reversed(range(first, last)):
                    code(at, p, p + 1)

            backwards.address, backwards.name = code.address, code.name  # type: ignore[attr-defined]
            return backwards

    backwards = Backwards(**{name: getattr(device, name) for name in device.__dataclass_fields__})
    plain = run_variant(VARIANTS["tiled"], node, device, given.inputs, given.extents)
    np.testing.assert_array_equal(run_variant(VARIANTS["tiled"], node, backwards, given.inputs, given.extents), plain)


def node(tokens, length, heads=9, kv_heads=3, head_dim=64) -> NodeSpec:
    blocks = length // 16
    specs = (
        TensorSpec((tokens, heads * head_dim), f32),
        TensorSpec((blocks, kv_heads, head_dim, 16), f16),
        TensorSpec((blocks, kv_heads, 16, head_dim), f16),
        TensorSpec((tokens,), i32),
        TensorSpec((tokens,), i32),
        TensorSpec((1, blocks), i32),
    )
    attrs = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "scale": 0.1, "length": Extent("n", length)}
    return NodeSpec(specs, OP.infer(specs, attrs), attrs)


@pytest.mark.parametrize(
    ("tokens", "size", "wanted"),
    [
        (1, {}, "split_keys"),
        (Extent("tokens", 8), {}, "split_keys"),
        (8, {"heads": 32, "kv_heads": 32, "head_dim": 128}, "split_keys"),
        (16, {}, "split_keys"),
        (17, {}, "tiled"),
        (Extent("tokens", 512), {"heads": 14, "kv_heads": 2}, "tiled"),
        (512, {"heads": 8, "kv_heads": 1, "head_dim": 256}, "tiled"),
        (512, {"head_dim": 20}, "tiled"),
        (1, {"head_dim": 20}, "split_keys"),
        (1, {"heads": 128, "kv_heads": 1, "head_dim": 576}, "split_keys"),
        (512, {"heads": 128, "kv_heads": 1, "head_dim": 576}, "tiled"),
    ],
)
def test_the_cheapest_variant(tokens, size, wanted) -> None:
    asked, device = node(tokens, 2048, **size), cpu_device()
    able = [variant for variant in OP.variants if variant.supports(asked, device) is None]
    assert min(able, key=lambda variant: variant.cost(asked, device)).name == wanted


def test_refusals_say_why() -> None:
    device = cpu_device()
    assert "at most 16 tokens" in VARIANTS["split_keys"].supports(node(17, 64), device)
    for name, tokens in (("tiled", 9), ("split_keys", 1)):
        large = node(tokens, 64, heads=4, kv_heads=1, head_dim=20_000)
        assert "workgroup memory" in VARIANTS[name].supports(large, device)


def test_splits_are_few_even_in_long_caches() -> None:
    assert keys_per_split(2048, 256) == 256
    assert keys_per_split(131072, 256) == 2048
    assert keys_per_split(64, 1) == 128
    assert all(-(-n // keys_per_split(n, 128)) <= 64 for n in (1, 8192, 8200, 10**6))


HEADS = [((9, 3), 64), ((8, 8), 80), ((6, 2), 96), ((8, 2), 128), ((16, 1), 64)]


@pytest.mark.parametrize(("heads", "head_dim"), quick_of(HEADS, [((8, 2), 128)]))
@pytest.mark.parametrize("name", ["null:wgsl", full("null:msl"), "null:ptx"])
def test_a_tile_fits_the_workgroup_memory(heads, head_dim, name) -> None:
    target, given = device(name), sample("prompt", [(0, p) for p in range(60)], heads=heads, head_dim=head_dim)
    node, variant = node_of(OP, given), VARIANTS["tiled"]
    assert variant.supports(node, target) is None
    assert refusal_of(variant, node, target) is None
    assert select(OP, node, name).variant.name == "tiled"


def test_a_smaller_workgroup_memory_gives_a_smaller_tile() -> None:
    node = node_of(OP, sample("prompt", [(0, p) for p in range(60)], heads=(8, 2), head_dim=128))
    found = [shape_of(node, SimulatedDevice(limits={"workgroup_memory": n << 10})) for n in (48, 32, 16)]
    assert [(shape.rows, shape.tile_keys) for shape in found] == [(36, 64), (24, 64), (12, 32)]
    assert shape_of(node, cpu_device()).tile_keys == 64
    tiny = SimulatedDevice(limits={"workgroup_memory": 4096})
    assert "exceed the workgroup memory" in (VARIANTS["tiled"].supports(node, tiny) or "")


@pytest.mark.parametrize(("shape", "limit"), each_value(HEADS[:2], [32 << 10, 16 << 10]))
def test_small_tiles_are_right_on_threads(shape, limit) -> None:
    heads, head_dim = shape
    places = [(i % 2, i // 2 + (20 if i % 2 else 0)) for i in range(17)]
    given = sample("two", places, heads=heads, head_dim=head_dim)
    target = SimulatedDevice(limits={"workgroup_memory": limit})
    assert VARIANTS["tiled"].supports(node_of(OP, given), target) is None
    found = check_sample(OP, VARIANTS["tiled"], target, given)
    assert found.max_error <= found.tolerance


@pytest.mark.parametrize(("heads", "head_dim"), quick_of([((7, 1), 80), ((2, 2), 128)], []))
def test_matrix_units_of_gpus_take_heads_of_other_sizes(heads, head_dim) -> None:
    given = sample("some", [(0, p) for p in range(30, 48)], heads=heads, head_dim=head_dim)
    given = replace(given, attrs={**given.attrs, "precision": "bf16"})
    found = check_sample(OP, VARIANTS["unit_threads"], SimulatedDevice(), given)
    assert found.max_error <= found.tolerance


def test_matrix_units_of_gpus_read_nothing_past_the_last_key() -> None:
    given = sample("some", [(0, p) for p in range(20)], heads=(1, 1), head_dim=16)
    given = replace(given, attrs={**given.attrs, "precision": "bf16"})
    q, keys, values, positions, slots, table = (array.copy() for array in given.inputs)
    keys[table[0, 1], :, :, 4:] = values[table[0, 1], :, 4:] = np.nan
    inputs, node = (q, keys, values, positions, slots, table), node_of(OP, given)
    got = run_variant(VARIANTS["unit_threads"], node, SimulatedDevice(), inputs, given.extents)[0]
    np.testing.assert_array_equal(
        got, run_variant(VARIANTS["unit_threads"], node, SimulatedDevice(), given.inputs, {})[0]
    )


@pytest.mark.parametrize("sign", [1, -1])
def test_matrix_units_of_gpus_make_a_token_nan_whose_q_passes_f16(sign) -> None:
    given = sample("some", [(0, p) for p in range(20, 38)], heads=(2, 1), head_dim=16)
    given = replace(given, attrs={**given.attrs, "precision": "bf16"})
    q = given.inputs[0].copy()
    q[3, 5], q[4, 5] = sign * 2e5, sign * 1e5  # times scale log2(e), 0.36
    got = run_variant(
        VARIANTS["unit_threads"], node_of(OP, given), SimulatedDevice(), (q, *given.inputs[1:]), given.extents
    )[0]
    assert np.isnan(got[3, :16]).all()
    got[3, :16] = 0
    assert np.isfinite(got).all()
