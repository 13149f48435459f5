"""Loops, masks, variables, index patterns, grids and scratch, compiled against interpreted at every lane width."""

import numpy as np
import pytest

from tests.emit.llvm.structure_kernels import (
    affine,
    blocked,
    boolean_scratch,
    branches,
    divide_loaded,
    flat,
    floats,
    floors,
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
from tests.support.compilers.emit_harness import WIDTHS, agree
from tests.support.quick import each_value, full, quick_of

SIZES = quick_of(
    sorted({size for w in WIDTHS for size in (w - 1, w, w + 1, 2 * w + 1) if size > 0}), [1, 3, 16, 33, 63, 65]
)


@pytest.mark.parametrize("n", SIZES)
def test_lanes_cover_every_length(n):
    (out,) = agree(affine, [floats(n), np.full(n, 7, np.float32)], n=n, start=0)
    assert not (out == 7).any()


@pytest.mark.parametrize(
    ("start", "n"),
    [full(1, 70), (3, 4), full(5, 5), (6, 5), full(16, 16), (16, 33), (63, 200)],
)
def test_lanes_start_anywhere_and_touch_nothing_before(start, n):
    (out,) = agree(affine, [floats(n), np.full(n, 7, np.float32)], n=n, start=start, widths=WIDTHS)
    assert (out[:start] == 7).all()


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (5, 3), (0, 64), (1, 65), (7, 100)])
def test_lanes_between_run_time_bounds(start, stop):
    agree(run_time_lanes, [floats(100), np.zeros(100, np.float32)], scalars={"start": start, "stop": stop})


@pytest.mark.parametrize("n", [1, 63, 64, 65, 200])
def test_elements_share_flat_work_between_programs(n):
    agree(
        flat, [floats(200), np.zeros(200, np.float32)], scalars={"n": n}, grid=(("n", 64),), block=64, widths=(1, 8, 32)
    )


@pytest.mark.parametrize(("start", "stop", "step"), [(1, 20, 1), (1, 20, 3), (2, 2, 1), (5, 2, 1), (3, 20, 16)])
def test_ranges_step_as_pythons_do(start, stop, step):
    bounds = {"start": start, "stop": stop, "step": step}
    (out,) = agree(stepped, [floats(20), np.zeros(20, np.float32)], widths=(1, 8), **bounds)
    assert out[0] == sum(range(start, stop, step))


@pytest.mark.parametrize("n", quick_of([1, 7, 64, 65, 130], [7, 65]))
def test_when_branches_or_masks(n):
    agree(branches, [floats(3, n), np.zeros((3, n), np.float32)], grid=(3,), n=n)


@pytest.mark.parametrize("n", quick_of([1, 15, 64, 77], [1, 77]))
def test_a_variable_is_set_in_active_lanes_only(n):
    x = floats(n)
    (out,) = agree(set_under_mask, [x, np.zeros(n, np.float32)], n=n)
    np.testing.assert_array_equal(out, np.where(x < -1, 1, np.abs(x)))


@pytest.mark.parametrize("n", SIZES)
def test_accumulators_start_at_their_identity(n):
    x, y = floats(n), np.random.default_rng(1).integers(-99, 99, n).astype(np.int32)
    outputs = [np.zeros(3, np.float32), np.zeros(2, np.int32)]
    sums, whole = agree(reductions, [x, y, *outputs], outputs=2, n=n, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(sums, [x.sum(), x.max(), x.min()], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(whole, [y.sum(), y.max()])


@pytest.mark.parametrize(("group", "n"), each_value([32, 64, 4, 2], [32, 100, 128, 192]))
def test_block_scales_are_repeated_over_their_lanes(n, group):
    scale = floats(2, -(-n // group), seed=1)
    (out,) = agree(blocked, [floats(2, 64), scale, np.zeros((2, n), np.float32)], grid=(2,), n=n, group=group)
    want = np.tile(floats(2, 64), 3)[:, :n] * np.repeat(scale, group, 1)[:, :n]
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize(("lowest", "group"), each_value([0, 1, 3], [4, 8, 32]))
def test_a_group_is_read_where_any_of_its_lanes_is_active(group, lowest):
    n = 136
    arrays = [floats(-(-n // group)) + 5, np.zeros(n, np.float32)]
    (out,) = agree(masked_blocks, arrays, n=n, group=group, lowest=lowest)
    assert (out[lowest::4] != 0).all()


@pytest.mark.parametrize("n", [1, 16, 77])
def test_gather_and_scatter_reach_any_element(n):
    table = np.random.default_rng(2).permutation(n).astype(np.int32)
    x = floats(n)
    (out,) = agree(permute, [table, x, np.zeros(n, np.float32)], n=n)
    np.testing.assert_array_equal(out, x)
    agree(strided, [floats(3 * n + 1), np.zeros(n, np.float32)], n=n)


@pytest.mark.parametrize("by", [2, 3, 7, 8])
def test_index_arithmetic_rounds_down_below_zero(by):
    x = np.arange(3, dtype=np.int64)
    (out,) = agree(floors, [x, np.zeros((6, 20), np.int64)], grid=(6,), n=20, by=by)
    row, c = np.arange(6)[:, None] - 3, np.arange(20) - 5
    np.testing.assert_array_equal(out, row // by * 1000 + row % by * 100 + c % 3 + c // by)


@pytest.mark.parametrize("n", quick_of([1, 5, 64, 67], [5, 67]))
def test_lanes_that_are_off_divide_by_nothing(n):
    rng = np.random.default_rng(0)
    x, y = rng.integers(-50, 50, n).astype(np.int32), rng.integers(-2, 3, n).astype(np.int32)
    agree(divide_loaded, [x, y, np.zeros(n, np.int32)], n=n)


def test_a_grid_has_axes_of_constants_and_of_run_time_scalars():
    shape = (7, 5, 8)
    grid = (("rows", 2), ("heads", 1), 2)
    (out,) = agree(grids, [floats(*shape), np.zeros(shape, np.float32)], scalars={"rows": 5, "heads": 3}, grid=grid)
    assert out[:3, :3].all()
    assert not out[3:].any()
    assert not out[:, 3:].any()


@pytest.mark.parametrize("n", quick_of([1, 31, 64, 100], [1, 100]))
def test_a_row_is_summed_through_scratch_and_barriers(n):
    x = floats(4, n)
    (out,) = agree(row_sum, [x, np.zeros(4, np.float32)], grid=(4,), n=n, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(out, x.sum(1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n", [1, 13, 80])
def test_scratch_holds_booleans_and_integers(n):
    agree(boolean_scratch, [floats(n), np.zeros(n, np.int32)], n=n)


def test_prefetch_is_a_hint_even_past_the_end():
    agree(prefetching, [floats(77), np.zeros(77, np.float32)], n=77)


def test_only_the_programs_asked_for_run():
    from tests.support.compilers.emit_harness import native, trace

    x, out = floats(6, 8), np.zeros((6, 8), np.float32)
    native(trace(branches, [x, out], grid=(6,), n=8), 8)([x, out], programs=(2, 4))
    assert out[2].any()
    assert not out[[0, 1, 3, 4, 5]].any()
    native(trace(branches, [x, out], grid=(6,), n=8), 8)([x, out], programs=(4, 4))
    assert not out[4].any()
