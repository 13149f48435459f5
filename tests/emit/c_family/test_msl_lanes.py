"""MSL of several lanes and programs against the interpreter: reductions, scans, atomics, vectors, grids, 64-bit sums."""

from __future__ import annotations

import numpy as np
import pytest

from camshaft.dtypes import f32, i64, u32
from camshaft.emit.msl.context import MslTarget
from camshaft.lang import kernel
from tests.emit.c_family.msl_runs import agree, reductions, run_msl, text_of
from tests.support.compilers.emit_harness import trace
from tests.support.devices.metal_harness import have_compiler
from tests.support.needs import require
from tests.support.quick import each_value, full


@pytest.fixture(autouse=True)
def _compiler():
    require(have_compiler(), "needs g++")


@pytest.mark.parametrize(("lanes", "simd_width"), each_value([1, 8, 32, 64, 256, 1024], [0, 32]))
def test_reductions_have_the_interpreters_bits_at_every_width(lanes, simd_width):
    x = np.random.default_rng(7).normal(size=(3, 300)).astype(np.float32)
    x[1, 17] = np.nan
    outs = [np.zeros((3, 300), np.float32), np.zeros((3, 3), np.float32)]
    agree(reductions, [x, *outs], 2, grid=(3,), lanes=lanes, target=MslTarget(simd_width=simd_width), n=300)


@kernel
def exchanges(k, x, out):
    # scans of each kind, and values of other lanes
    mine = k.gather(x, k.lane())
    rows = [k.lanes_scan(mine, kind, exclusive) for kind in ("sum", "max", "min") for exclusive in (False, True)]
    rows += [k.shuffle(mine, k.lane() ^ 1), k.shuffle(mine, (k.lane() * 3 + 1) % k.lane_count()), k.shuffle(mine, 2)]
    rows += [k.subgroup_sum(mine), k.subgroup_max(mine)]
    for row, value in enumerate(rows):
        k.scatter(out, value, row, k.lane())


@pytest.mark.parametrize("lanes", [full(8), full(32), 128])
def test_scans_and_shuffles_have_the_interpreters_bits(lanes):
    x = np.random.default_rng(8).normal(size=128).astype(np.float32)
    x[3] = np.nan
    for values in (x, (100 * np.nan_to_num(x)).astype(np.int32)):
        out = np.zeros((11, lanes), values.dtype)
        for simd_width in (0, 32):
            target = MslTarget(simd_width=simd_width)
            agree(exchanges, [values[:lanes].copy(), out], lanes=lanes, target=target)


@kernel
def counted(k, x, counts, sums, swapped):
    # a histogram in scratch and in an array, f32 sums, and one lane that wins
    local = k.scratch(u32, 8)
    for c in k.lanes(8):
        local[c] = 0
    k.barrier()
    for c in k.lanes(x.shape[0]):
        k.atomic_add(local, 1, x[c].to(i64))
        k.atomic_add(sums, x[c].to(f32), 0)
        k.atomic_max(swapped, x[c], 1)
        k.compare_exchange(swapped, 0, x[c] * 0 + 77, 0)
    k.barrier()
    for c in k.lanes(8):
        k.atomic_add(counts, k.gather(local, c), c)


def test_atomics_count_in_both_kinds_of_memory():
    x = np.random.default_rng(9).integers(0, 8, 500).astype(np.uint32)
    outs = [np.zeros(8, np.uint32), np.zeros(1, np.float32), np.zeros(2, np.uint32)]
    agree(counted, [x, *outs], 3)
    traced = trace(counted, [x, *outs], 3)
    counts, sums, swapped = run_msl(traced, [x, *outs])[1:]
    np.testing.assert_array_equal(counts, np.bincount(x, minlength=8))
    assert sums[0] == x.sum()
    assert list(swapped) == [77, x.max()]


@kernel
def vectors(k, x, out, count):
    # an explicit vector of 8 lies on the lanes; its elements come back one by one
    v = k.load_vector(x, 0, width=8, count=count)
    whole = k.vector_sum(v) + k.vector_max(v) + k.element(v, 3)
    k.store_vector(out, v * whole, 0, count=count)


def test_explicit_vectors_lie_on_the_threads():
    x = np.arange(1, 9, dtype=np.float32)
    agree(vectors, [x, np.zeros(8, np.float32)], scalars={"count": 6})


@kernel
def places(k, out, rows):
    out[k.program(0), k.program(1), k.program(2)] = k.program(0) * 100 + k.program(1) * 10 + k.program(2) + rows


def test_the_last_axis_of_a_grid_runs_fastest():
    grid = (2, ("rows", 3), 4)
    agree(places, [np.zeros((2, 3, 4), np.int64)], scalars={"rows": 7}, grid=grid)


@kernel
def wide_sums(k, x, out):
    mine = k.gather(x, k.lane())
    out[0] = k.lanes_sum(mine)
    out[1] = k.shuffle(mine, k.lane_count() - 1)
    k.scatter(out, k.subgroup_sum(mine), k.lane() + 2)


def test_64_bits_meet_in_threadgroup_memory():
    x = np.random.default_rng(10).integers(-(2**60), 2**60, 32)
    agree(wide_sums, [x, np.zeros(34, np.int64)], lanes=32)
    assert "simd_" not in text_of(wide_sums, [x, np.zeros(34, np.int64)], lanes=32)
