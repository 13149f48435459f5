"""Words between lanes and atomics in WGSL, run on an adapter, against the interpreter."""

from dataclasses import replace

import numpy as np
import pytest

from camshaft.emit.wgsl.module import emit
from camshaft.lang.simt.form import to_simt
from tests.emit.llvm.structure_kernels import floats, reductions
from tests.emit.llvm.test_lanes import (
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
from tests.emit.llvm.test_memory import vectors
from tests.support.compilers.emit_harness import trace
from tests.support.compilers.wgsl_harness import TARGET, WIDTHS, agree, both, device
from tests.support.quick import each_value, quick_of


@pytest.mark.parametrize(
    ("dtype", "kind", "exclusive"), each_value(["f32", "i32"], ["sum", "max", "min"], [False, True])
)
def test_a_row_is_scanned_with_a_carry_at_any_width(dtype, kind, exclusive):
    x = drawn(dtype)
    agree(row_scan, [x, np.zeros_like(x)], n=N, kind=kind, exclusive=exclusive, dtype=dtype)


@pytest.mark.parametrize(("case", "dtype"), each_value(WORDS, ["f32", "u32"]))
def test_lanes_exchange_values(case, dtype):
    word, n = case
    x = drawn(dtype)
    agree(exchange, [x, np.zeros_like(x)], word=word, n=n)


@pytest.mark.parametrize("word", ["subgroup_sum", "subgroup_max", "subgroup_min"])
def test_subgroups_are_reduced(word):
    """The interpreter's subgroups are as wide as those asked for in the harness: the whole workgroup up to 32 lanes."""
    x = drawn("f32")
    agree(by_subgroup, [x, np.zeros_like(x)], word=word, widths=(1, 4, 32))


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("add", "f32"), *each_value(["add", "min", "max", "and", "or", "xor"], ["i32", "u32"])],
)
def test_atomics_of_all_lanes_and_programs_add_up(kind, dtype):
    x = drawn(dtype, 3 * 37).reshape(3, 37)
    agree(histogram, [x, np.full(8, 5, x.dtype)], grid=(3,), n=37, kind=kind, dtype=dtype)


@pytest.mark.parametrize("lanes", quick_of(WIDTHS, [4, 64]))
def test_an_atomic_gives_each_lane_its_own_old_value(lanes):
    out, counter = np.full(N, -1, np.int32), np.zeros(1, np.int32)
    for outputs in both(tickets, [out, counter], outputs=2, lanes=lanes, n=N):
        np.testing.assert_array_equal(np.sort(outputs[0][:50]), [c for c in range(N) if c % 3])
        assert outputs[1][0] == 50


@pytest.mark.parametrize("lanes", quick_of(WIDTHS, [4, 64]))
def test_a_uniform_atomic_is_done_once(lanes):
    out, taken = np.zeros(4, np.int32), np.zeros(1, np.int32)
    for outputs in both(once_a_program, [out, taken], outputs=2, lanes=lanes, grid=(4,)):
        np.testing.assert_array_equal(outputs[0], [15] * 4)
        assert outputs[1][0] in (1, 2, 3, 4)


SHUFFLES = replace(TARGET, features=frozenset({"subgroups"}), subgroup_size=4)


def test_a_workgroup_within_a_subgroup_is_reduced_by_shuffles():
    assert "subgroup" in device().features, "Mesa and every GPU have them"
    x, y = floats(33), np.random.default_rng(1).integers(-99, 99, 33).astype(np.int32)
    arrays = [x, y, np.zeros(3, np.float32), np.zeros(2, np.int32)]
    agree(reductions, arrays, outputs=2, widths=(1, 2, 4, 8), n=33, rtol=1e-5, atol=1e-5, target=SHUFFLES)
    arrays = [floats(2, 33), np.full((2, 33), 7, np.float32), np.zeros((2, 3), np.float32)]
    agree(vectors, arrays, outputs=2, scalars={"n": 33}, grid=(2,), widths=(1,), rtol=1e-5, width=4, target=SHUFFLES)


def test_subgroups_are_enabled_only_where_they_hold_the_workgroup():
    arrays = [floats(33), np.zeros(33, np.int32), np.zeros(3, np.float32), np.zeros(2, np.int32)]
    kernel_ir = trace(reductions, arrays, outputs=2, n=33)
    in_a_browser = replace(SHUFFLES, enables_subgroups=True)
    narrow, wide = (emit(to_simt(kernel_ir, lanes), in_a_browser) for lanes in (4, 8))
    assert "enable" not in emit(to_simt(kernel_ir, 4), SHUFFLES).text
    assert narrow.text.startswith("enable subgroups;")
    assert narrow.requires == {"subgroups"}
    assert narrow.workgroup_nbytes == 0
    assert "subgroup" not in wide.text
    assert wide.requires == frozenset()
