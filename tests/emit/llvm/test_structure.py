"""Loops, masks, variables, index patterns, grids and scratch, compiled against interpreted at every lane width."""

import numpy as np
import pytest

from camshaft.dtypes import boolean, f32, i32, i64
from camshaft.lang import kernel
from tests.support.compilers.emit_harness import WIDTHS, agree
from tests.support.quick import each_value, full, quick_of

SIZES = sorted({size for w in WIDTHS for size in (w - 1, w, w + 1, 2 * w + 1) if size > 0})


def floats(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@kernel
def affine(k, x, out, *, n, start):
    for c in k.lanes(start, n):
        out[c] = x[c] * 2 + c.to(f32)


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


@kernel
def run_time_lanes(k, x, out, start, stop):
    for c in k.lanes(start, stop):
        out[c] = x[c] + 1


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (5, 3), (0, 64), (1, 65), (7, 100)])
def test_lanes_between_run_time_bounds(start, stop):
    agree(run_time_lanes, [floats(100), np.zeros(100, np.float32)], scalars={"start": start, "stop": stop})


@kernel
def flat(k, x, out, n, *, block):
    for c in k.elements(n, block):
        out[c] = x[c] + x[c // 32 * 32]


@pytest.mark.parametrize("n", [1, 63, 64, 65, 200])
def test_elements_share_flat_work_between_programs(n):
    agree(
        flat, [floats(200), np.zeros(200, np.float32)], scalars={"n": n}, grid=(("n", 64),), block=64, widths=(1, 8, 32)
    )


@kernel
def stepped(k, x, out, *, start, stop, step):
    total = k.var(0, i64)
    for i in k.range(start, stop, step):
        out[i] = x[i] + total.value.to(f32)
        total.set(total.value + i)
    out[0] = total.value.to(f32)


@pytest.mark.parametrize(("start", "stop", "step"), [(1, 20, 1), (1, 20, 3), (2, 2, 1), (5, 2, 1), (3, 20, 16)])
def test_ranges_step_as_pythons_do(start, stop, step):
    bounds = {"start": start, "stop": stop, "step": step}
    (out,) = agree(stepped, [floats(20), np.zeros(20, np.float32)], widths=(1, 8), **bounds)
    assert out[0] == sum(range(start, stop, step))


@kernel
def branches(k, x, out, *, n):
    row = k.program(0)
    with k.when(row % 2 == 0):
        for c in k.lanes(n):
            with k.when(x[row, c] > 0), k.when(c % 64 < 40):
                out[row, c] = x[row, c]
    with k.when(row == 1):
        out[row, 0] = 5


@pytest.mark.parametrize("n", quick_of([1, 7, 64, 65, 130], [7, 65]))
def test_when_branches_or_masks(n):
    agree(branches, [floats(3, n), np.zeros((3, n), np.float32)], grid=(3,), n=n)


@kernel
def set_under_mask(k, x, out, *, n):
    for c in k.lanes(n):
        kept = k.var(x[c])
        with k.when(x[c] < 0):
            kept.set(-x[c])
            with k.when(x[c] < -1):
                kept.set(1)
        out[c] = kept.value


@pytest.mark.parametrize("n", quick_of([1, 15, 64, 77], [1, 77]))
def test_a_variable_is_set_in_active_lanes_only(n):
    x = floats(n)
    (out,) = agree(set_under_mask, [x, np.zeros(n, np.float32)], n=n)
    np.testing.assert_array_equal(out, np.where(x < -1, 1, np.abs(x)))


@kernel
def reductions(k, x, y, sums, extremes, *, n):
    total, top, least = k.accumulator("sum"), k.accumulator("max"), k.accumulator("min")
    whole, high = k.accumulator("sum", i32), k.accumulator("max", i32)
    for c in k.lanes(n):
        total += x[c]
        top.combine(x[c])
        least.combine(x[c])
        whole += y[c]
        high.combine(y[c])
    sums[0] = k.lanes_sum(total)
    sums[1] = k.lanes_max(top)
    sums[2] = k.lanes_min(least)
    extremes[0] = k.lanes_sum(whole)
    extremes[1] = k.lanes_max(high)


@pytest.mark.parametrize("n", SIZES)
def test_accumulators_start_at_their_identity(n):
    x, y = floats(n), np.random.default_rng(1).integers(-99, 99, n).astype(np.int32)
    outputs = [np.zeros(3, np.float32), np.zeros(2, np.int32)]
    sums, whole = agree(reductions, [x, y, *outputs], outputs=2, n=n, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(sums, [x.sum(), x.max(), x.min()], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(whole, [y.sum(), y.max()])


@kernel
def blocked(k, x, scale, out, *, n, group):
    row = k.program(0)
    for c in k.lanes(n):
        out[row, c] = x[row, c % 64] * scale[row, c // group]


@pytest.mark.parametrize(("group", "n"), each_value([32, 64, 4, 2], [32, 100, 128, 192]))
def test_block_scales_are_repeated_over_their_lanes(n, group):
    scale = floats(2, -(-n // group), seed=1)
    (out,) = agree(blocked, [floats(2, 64), scale, np.zeros((2, n), np.float32)], grid=(2,), n=n, group=group)
    want = np.tile(floats(2, 64), 3)[:, :n] * np.repeat(scale, group, 1)[:, :n]
    np.testing.assert_array_equal(out, want)


@kernel
def masked_blocks(k, scale, out, *, n, group, lowest):
    for c in k.lanes(n):
        with k.when(c % 4 == lowest):
            out[c] = scale[c // group]


@pytest.mark.parametrize(("lowest", "group"), each_value([0, 1, 3], [4, 8, 32]))
def test_a_group_is_read_where_any_of_its_lanes_is_active(group, lowest):
    n = 136
    arrays = [floats(-(-n // group)) + 5, np.zeros(n, np.float32)]
    (out,) = agree(masked_blocks, arrays, n=n, group=group, lowest=lowest)
    assert (out[lowest::4] != 0).all()


@kernel
def permute(k, table, x, out, *, n):
    for c in k.lanes(n):
        k.scatter(out, k.gather(x, table[c].to(i64)), table[c].to(i64) + 0)


@kernel
def strided(k, x, out, *, n):
    for c in k.lanes(n):
        out[c] = k.gather(x, c * 3 + 1) + k.gather(x, c % 5, 1) if len(x.shape) == 2 else k.gather(x, c * 3 + 1)


@pytest.mark.parametrize("n", [1, 16, 77])
def test_gather_and_scatter_reach_any_element(n):
    table = np.random.default_rng(2).permutation(n).astype(np.int32)
    x = floats(n)
    (out,) = agree(permute, [table, x, np.zeros(n, np.float32)], n=n)
    np.testing.assert_array_equal(out, x)
    agree(strided, [floats(3 * n + 1), np.zeros(n, np.float32)], n=n)


@kernel
def floors(k, x, out, *, n, by):
    row = k.program(0)
    for c in k.lanes(n):
        out[row, c] = (row - 3) // by * 1000 + (row - 3) % by * 100 + k.gather(x, (c - 5) % 3) + (c - 5) // by


@pytest.mark.parametrize("by", [2, 3, 7, 8])
def test_index_arithmetic_rounds_down_below_zero(by):
    x = np.arange(3, dtype=np.int64)
    (out,) = agree(floors, [x, np.zeros((6, 20), np.int64)], grid=(6,), n=20, by=by)
    row, c = np.arange(6)[:, None] - 3, np.arange(20) - 5
    np.testing.assert_array_equal(out, row // by * 1000 + row % by * 100 + c % 3 + c // by)


@kernel
def divide_loaded(k, x, y, out, *, n):
    for c in k.lanes(n):
        with k.when(y[c] != 0):
            out[c] = x[c] // y[c] + x[c] % y[c]


@pytest.mark.parametrize("n", quick_of([1, 5, 64, 67], [5, 67]))
def test_lanes_that_are_off_divide_by_nothing(n):
    rng = np.random.default_rng(0)
    x, y = rng.integers(-50, 50, n).astype(np.int32), rng.integers(-2, 3, n).astype(np.int32)
    agree(divide_loaded, [x, y, np.zeros(n, np.int32)], n=n)


@kernel
def grids(k, x, out, rows, heads):
    token, head, part = k.program(0), k.program(1), k.program(2)
    for c in k.lanes(4):
        out[token, head, part * 4 + c] = x[token, head, part * 4 + c] + (token * 100 + head * 10 + part).to(f32)


def test_a_grid_has_axes_of_constants_and_of_run_time_scalars():
    shape = (7, 5, 8)
    grid = (("rows", 2), ("heads", 1), 2)
    (out,) = agree(grids, [floats(*shape), np.zeros(shape, np.float32)], scalars={"rows": 5, "heads": 3}, grid=grid)
    assert out[:3, :3].all()
    assert not out[3:].any()
    assert not out[:, 3:].any()


@kernel
def row_sum(k, x, out, *, n):
    part, row, lane = k.scratch(f32, 64), k.program(0), k.lane()
    total, step = k.accumulator("sum"), k.var(k.lane_count() // 2)
    for c in k.lanes(n):
        total += x[row, c]
    part[lane] = total.value
    k.barrier()
    for _ in k.range(6):
        with k.when(lane < step.value):
            part[lane] = part[lane] + part[lane + step.value]
        k.barrier()
        step.set(step.value // 2)
    out[row] = part[0]


@pytest.mark.parametrize("n", quick_of([1, 31, 64, 100], [1, 100]))
def test_a_row_is_summed_through_scratch_and_barriers(n):
    x = floats(4, n)
    (out,) = agree(row_sum, [x, np.zeros(4, np.float32)], grid=(4,), n=n, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(out, x.sum(1), rtol=1e-5, atol=1e-5)


@kernel
def boolean_scratch(k, x, out, *, n):
    flags, words = k.scratch(boolean, 3, 80), k.scratch(i32, 80)
    for c in k.lanes(n):
        flags[1, c] = x[c] > 0
        words[c] = c.to(i32)
    k.barrier()
    for c in k.lanes(n):
        out[c] = k.select(flags[1, c], words[c], -1)


@pytest.mark.parametrize("n", [1, 13, 80])
def test_scratch_holds_booleans_and_integers(n):
    agree(boolean_scratch, [floats(n), np.zeros(n, np.int32)], n=n)


@kernel
def prefetching(k, x, out, *, n):
    for c in k.lanes(n):
        k.prefetch(x, c + 4096)
        k.prefetch(x, (x[c] * 0).to(i64))
        out[c] = x[c]


def test_prefetch_is_a_hint_even_past_the_end():
    agree(prefetching, [floats(77), np.zeros(77, np.float32)], n=77)


@kernel
def awkward_names(k, first, last, *, n):
    for c in k.lanes(n):
        last[c] = first[c]


def test_only_the_programs_asked_for_run():
    from tests.support.compilers.emit_harness import native, trace

    x, out = floats(6, 8), np.zeros((6, 8), np.float32)
    native(trace(branches, [x, out], grid=(6,), n=8), 8)([x, out], programs=(2, 4))
    assert out[2].any()
    assert not out[[0, 1, 3, 4, 5]].any()
    native(trace(branches, [x, out], grid=(6,), n=8), 8)([x, out], programs=(4, 4))
    assert not out[4].any()
