"""Loops, masks, variables, collectives, grids and scratch in WGSL, run on an adapter, against the interpreter.

The kernels are those that LLVM is tested with: one source for every target.
"""

from dataclasses import replace

import numpy as np
import pytest

from camshaft.dtypes import f32, i32
from camshaft.lang import kernel
from tests.emit.llvm.structure_kernels import (
    affine,
    blocked,
    boolean_scratch,
    branches,
    divide_loaded,
    flat,
    floats,
    grids,
    masked_blocks,
    permute,
    prefetching,
    reductions,
    row_sum,
    run_time_lanes,
    set_under_mask,
    stepped,
    strided,
)
from tests.emit.llvm.test_memory import counted, dot_mixed, dot_vector, nibbles, octets, vectors, whole_vectors
from tests.support.compilers.wgsl_harness import TARGET, agree
from tests.support.quick import each_value, quick_of

RAGGED = quick_of([1, 31, 32, 33, 65, 200], [1, 33, 65])


@pytest.mark.parametrize("n", RAGGED)
def test_lanes_cover_every_length(n):
    (out,) = agree(affine, [floats(n), np.full(n, 7, np.float32)], n=n, start=0)
    assert not (out == 7).any()


@pytest.mark.parametrize(("start", "n"), quick_of([(3, 4), (6, 5), (16, 33), (63, 200)], [(6, 5), (16, 33)]))
def test_lanes_start_anywhere_and_touch_nothing_before(start, n):
    (out,) = agree(affine, [floats(n), np.full(n, 7, np.float32)], n=n, start=start)
    assert (out[:start] == 7).all()


@pytest.mark.parametrize(("start", "stop"), [(5, 3), (0, 64), (7, 100)])
def test_lanes_between_run_time_bounds(start, stop):
    agree(run_time_lanes, [floats(100), np.zeros(100, np.float32)], scalars={"start": start, "stop": stop})


@pytest.mark.parametrize("n", quick_of([1, 64, 65, 200], [64, 65]))
def test_elements_share_flat_work_between_programs(n):
    agree(flat, [floats(200), np.zeros(200, np.float32)], scalars={"n": n}, grid=(("n", 64),), block=64)


def test_ranges_step_as_pythons_do():
    agree(stepped, [floats(20), np.zeros(20, np.float32)], start=1, stop=20, step=3)


@pytest.mark.parametrize("n", [7, 65])
def test_when_branches_or_masks(n):
    agree(branches, [floats(3, n), np.zeros((3, n), np.float32)], grid=(3,), n=n)
    agree(set_under_mask, [floats(n), np.zeros(n, np.float32)], n=n)


@pytest.mark.parametrize("n", RAGGED)
def test_reductions_of_floats_and_integers(n):
    x, y = floats(n), np.random.default_rng(1).integers(-99, 99, n).astype(np.int32)
    outputs = [np.zeros(3, np.float32), np.zeros(2, np.int32)]
    agree(reductions, [x, y, *outputs], outputs=2, n=n, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("group", [32, 2])
def test_block_scales_are_repeated_over_their_lanes(group):
    scale = floats(2, 192 // group, seed=1)
    agree(blocked, [floats(2, 64), scale, np.zeros((2, 192), np.float32)], grid=(2,), n=192, group=group)
    agree(masked_blocks, [floats(34), np.zeros(136, np.float32)], n=136, group=4, lowest=3)


@pytest.mark.parametrize("n", [1, 77])
def test_gather_and_scatter_reach_any_element(n):
    table = np.random.default_rng(2).permutation(n).astype(np.int32)
    agree(permute, [table, floats(n), np.zeros(n, np.float32)], n=n)
    agree(strided, [floats(3 * n + 1), np.zeros(n, np.float32)], n=n)


def test_lanes_that_are_off_divide_by_nothing():
    rng = np.random.default_rng(0)
    x, y = rng.integers(-50, 50, 67).astype(np.int32), rng.integers(-2, 3, 67).astype(np.int32)
    agree(divide_loaded, [x, y, np.zeros(67, np.int32)], n=67)


@pytest.mark.parametrize("max_workgroups", [65_535, 7])
def test_a_grid_is_folded_over_two_dimensions(max_workgroups):
    shape = (7, 5, 8)
    grid = (("rows", 2), ("heads", 1), 2)
    (out,) = agree(
        grids,
        [floats(*shape), np.zeros(shape, np.float32)],
        scalars={"rows": 5, "heads": 3},
        grid=grid,
        target=replace(TARGET, max_workgroups=max_workgroups),
    )
    assert out[:3, :3].all()
    assert not out[3:].any()
    assert not out[:, 3:].any()


@pytest.mark.parametrize("n", quick_of([1, 64, 100], [1, 100]))
def test_scratch_is_workgroup_memory(n):
    agree(row_sum, [floats(4, n), np.zeros(4, np.float32)], grid=(4,), n=n, rtol=1e-5, atol=1e-5)
    agree(boolean_scratch, [floats(min(n, 80)), np.zeros(min(n, 80), np.int32)], n=min(n, 80))


def test_prefetch_is_a_hint():
    agree(prefetching, [floats(77), np.zeros(77, np.float32)], n=77)


@pytest.mark.parametrize(("width", "n"), each_value([1, 4, 16, 32], [0, 15, 33]))
def test_explicit_vectors_lie_in_lanes(width, n):
    arrays = [floats(2, 33), np.full((2, 33), 7, np.float32), np.zeros((2, 3), np.float32)]
    agree(vectors, arrays, outputs=2, scalars={"n": n}, grid=(2,), widths=(1, 16), rtol=1e-5, width=width)


@pytest.mark.parametrize("count", [-5, 0, 7, 9])
def test_a_count_may_be_negative_or_too_large(count):
    agree(counted, [floats(8), np.zeros(8, np.float32)], scalars={"count": count}, width=8, widths=(1,))


def test_whole_vectors():
    agree(whole_vectors, [floats(3, 16), np.zeros((3, 16), np.float32)], grid=(3,), width=16, widths=(1, 16))


@kernel
def two_widths(k, x, out, *, wide, narrow):
    for i in k.range(2):
        high = k.load_vector(x, i, 0, width=wide)
        low = k.load_vector(x, i, wide, width=narrow)
        total = k.vector_sum(high) + k.element(low, narrow - 1)
        k.store_vector(out, low * total, i, 0)
        k.store_vector(out, high * k.vector_max(low), i, narrow)


def test_vectors_of_two_widths_share_a_workgroup():
    agree(two_widths, [floats(2, 20), np.zeros((2, 20), np.float32)], wide=16, narrow=4, widths=(1,), rtol=1e-5)


@pytest.mark.parametrize("features", [frozenset(), frozenset({"packed-dot"})], ids=["shifts", "packed"])
def test_dot4_sums_bytes_exactly(features):
    target = replace(TARGET, features=features)
    u, s = octets(5, 16)
    acc = np.random.default_rng(1).integers(-(2**30), 2**30, (5, 16)).astype(np.int32)
    arrays = [acc, u.view(np.uint32), s.view(np.uint32), np.zeros((5, 16), np.int32)]
    agree(dot_vector, arrays, grid=(5,), width=16, widths=(1,), target=target)
    long = [o[0].view(np.uint32) for o in octets(3, 70)]
    agree(dot_mixed, [*long, np.zeros(1, np.int32)], n=70, widths=(32,), target=target)
    words = np.random.default_rng(0).integers(0, 2**32, 50, dtype=np.uint32)
    agree(nibbles, [words, np.zeros(50, np.int32)], n=50, widths=(32,), target=target)


@kernel
def many(k, out):
    out[k.program(0)] = k.program(0).to(f32)


@pytest.mark.full
def test_more_programs_than_a_grid_dimension_has():
    agree(many, [np.zeros(70_000, np.float32)], grid=(70_000,), widths=(1,))


@kernel
def scratch_alike(k, x, out, *, n):
    held, total = k.scratch(i32, 4), k.var(0, i32)
    for i in k.range(4):
        held[i] = x[i] * 2
    for i in k.range(n):
        total.set(total.value + held[i % 4])
    out[0] = total.value


def test_scratch_that_all_threads_use_alike_is_their_own():
    agree(scratch_alike, [np.arange(4, dtype=np.int32), np.zeros(1, np.int32)], n=9)
