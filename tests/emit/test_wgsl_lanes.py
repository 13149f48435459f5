"""Words between lanes and atomics in WGSL, run on an adapter, against the interpreter."""

import numpy as np
import pytest

from tests.emit.test_llvm_lanes import (
    WORDS,
    N,
    by_subgroup,
    drawn,
    exchange,
    histogram,
    once_a_program,
    row_scan,
    tickets,
)
from tests.support.wgsl_harness import WIDTHS, agree, both


@pytest.mark.parametrize("dtype", ["f32", "i32"])
@pytest.mark.parametrize("kind", ["sum", "max", "min"])
@pytest.mark.parametrize("exclusive", [False, True])
def test_a_row_is_scanned_with_a_carry_at_any_width(dtype, kind, exclusive):
    x = drawn(dtype)
    agree(row_scan, [x, np.zeros_like(x)], n=N, kind=kind, exclusive=exclusive, dtype=dtype)


@pytest.mark.parametrize(("word", "n"), WORDS)
@pytest.mark.parametrize("dtype", ["f32", "u32"])
def test_lanes_exchange_values(word, n, dtype):
    x = drawn(dtype)
    agree(exchange, [x, np.zeros_like(x)], word=word, n=n)


@pytest.mark.parametrize("word", ["subgroup_sum", "subgroup_max", "subgroup_min"])
def test_subgroups_are_reduced(word):
    """The interpreter's subgroups are as wide as those asked for in the harness: the whole workgroup up to 32 lanes."""
    x = drawn("f32")
    agree(by_subgroup, [x, np.zeros_like(x)], word=word, widths=(1, 4, 32))


@pytest.mark.parametrize("kind", ["add", "min", "max", "and", "or", "xor"])
@pytest.mark.parametrize("dtype", ["i32", "u32", "f32"])
def test_atomics_of_all_lanes_and_programs_add_up(kind, dtype):
    if dtype == "f32" and kind != "add":
        return
    x = drawn(dtype, 3 * 37).reshape(3, 37)
    agree(histogram, [x, np.full(8, 5, x.dtype)], grid=(3,), n=37, kind=kind, dtype=dtype)


@pytest.mark.parametrize("lanes", WIDTHS)
def test_an_atomic_gives_each_lane_its_own_old_value(lanes):
    out, counter = np.full(N, -1, np.int32), np.zeros(1, np.int32)
    for outputs in both(tickets, [out, counter], outputs=2, lanes=lanes, n=N):
        np.testing.assert_array_equal(np.sort(outputs[0][:50]), [c for c in range(N) if c % 3])
        assert outputs[1][0] == 50


@pytest.mark.parametrize("lanes", WIDTHS)
def test_a_uniform_atomic_is_done_once(lanes):
    out, taken = np.zeros(4, np.int32), np.zeros(1, np.int32)
    for outputs in both(once_a_program, [out, taken], outputs=2, lanes=lanes, grid=(4,)):
        np.testing.assert_array_equal(outputs[0], [15] * 4)
        assert outputs[1][0] in (1, 2, 3, 4)
