"""The interpreter: what it computes, and what it rightly lets pass."""

import time

import numpy as np
import pytest

from camshaft.dtypes import f32, i64
from camshaft.errors import VerifyError
from camshaft.lang import ir, kernel
from camshaft.lang.interpreter.interpret import interpret
from tests.lang.interpreted import N, floats, run


@pytest.mark.parametrize("lanes", [1, 4, 64])
def test_rows_are_normalized(lanes):
    def rms_norm(k, x, w, out):
        row, squares = k.program(0), k.accumulator("sum")
        for c in k.lanes(37):
            squares += x[row, c] ** 2
        scale = k.rsqrt(k.lanes_sum(squares) / 37 + 1e-5)
        for c in k.lanes(37):
            out[row, c] = x[row, c] * scale * w[c]

    x, w, out = floats(3, 37), floats(37), np.zeros((3, 37), np.float32)
    counts = run(rms_norm, [x, w, out], grid=(3,), lanes=lanes)
    want = x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-5) * w
    np.testing.assert_allclose(out, want, rtol=1e-5)
    assert (counts.programs, counts.loads, counts.stores) == (3, 3 * 3 * 37, 3 * 37)


def test_lanes_that_are_off_may_point_anywhere():
    def guarded(k, x, out):
        for c in k.lanes(N):
            with k.when(c + 1 < N):
                out[c] = x[c + 1]

    run(guarded, [floats(N), out := np.zeros(N, np.float32)])
    np.testing.assert_array_equal(out[:-1], np.arange(1, N))


def test_a_program_may_read_and_write_its_own():
    def in_place(k, out):
        row = k.program(0)
        out[row] = out[row] + 1
        out[row] = out[row] * 2

    run(in_place, [out := floats(4)], grid=(4,))
    np.testing.assert_array_equal(out, (np.arange(4) + 1) * 2)


@pytest.mark.parametrize("lanes", [1, 8])
def test_what_was_never_written_may_be_selected_away(lanes):
    def selects(k, x, out):
        part = k.scratch(f32, 16)
        for c in k.lanes(5):
            part[c] = x[c]
        k.barrier()
        for c in k.lanes(16):
            out[c] = k.select(c < 5, part[c] * 2, -1.0)
        v = k.select(k.iota(16) < 5, k.load_vector(part, 0, width=16), 0.0)
        out[16] = k.vector_sum(v) + k.element(v, 3)

    run(selects, [floats(N), out := floats(N)], lanes=lanes)
    np.testing.assert_array_equal(out[:16], np.where(np.arange(16) < 5, np.arange(16) * 2, -1))
    assert out[16] == 10 + 3


def test_a_division_in_a_lane_that_is_off_is_none():
    def guarded(k, x, out):
        for c in k.lanes(N):
            with k.when(x[c] != 0):
                out[c] = 100 // x[c]

    run(guarded, [np.arange(N) % 3, np.zeros(N, np.int64)])


def test_arrays_must_fit_their_parameters():
    def copies(k, x, out):
        out[0] = x[0]

    made = kernel(copies).trace([ir.ArrayParam("x", f32, (4,)), ir.ArrayParam("out", f32, (4,), True)])
    for arrays in ([floats(5), floats(4)], [np.arange(4), floats(4)], [floats(8)[::2], floats(4)], [floats(4)]):
        with pytest.raises(VerifyError, match="wanted"):
            interpret(made, arrays, (), lanes=4)
    one = floats(4)
    with pytest.raises(VerifyError, match="overlaps"):
        interpret(made, [one, one], (), lanes=4)
    with pytest.raises(VerifyError, match="3 lanes"):
        interpret(made, [floats(4), floats(4)], (), lanes=3)
    with pytest.raises(VerifyError, match="grid of 1"):
        interpret(made, [floats(4), floats(4)], (), lanes=4, programs=[1])


def test_the_order_of_programs_changes_nothing_where_none_race():
    def doubles(k, x, out, n):
        for c in k.elements(n, 4):
            out[c] = x[c] * 2

    results = []
    for seed in (None, 1, 2):
        out = np.zeros(30, np.float32)
        run(doubles, [floats(30), out], scalars={"n": 30}, grid=(("n", 4),), shuffle_seed=seed)
        results.append(out)
    assert all((out == results[0]).all() for out in results)
    run(
        doubles,
        [floats(30), out := np.zeros(30, np.float32)],
        scalars={"n": 30},
        grid=(("n", 4),),
        programs=range(1, 2),
    )
    np.testing.assert_array_equal(np.flatnonzero(out), range(4, 8))


def test_a_few_thousand_elements_take_no_second():
    def softmax(k, x, out):
        row, top, total = k.program(0), k.accumulator("max"), k.accumulator("sum")
        for c in k.lanes(512):
            top.combine(x[row, c])
        highest = k.lanes_max(top)
        for c in k.lanes(512):
            total += k.exp(x[row, c] - highest)
        scale = 1.0 / k.lanes_sum(total)
        for c in k.lanes(512):
            out[row, c] = k.exp(x[row, c] - highest) * scale

    x, out = np.random.default_rng(0).normal(size=(8, 512)).astype(np.float32), np.zeros((8, 512), np.float32)
    started = time.perf_counter()
    run(softmax, [x, out], grid=(8,), lanes=16)
    assert time.perf_counter() - started < 3  # 0.05 s on a quiet machine
    np.testing.assert_allclose(out.sum(1), 1, rtol=1e-5)


def test_a_variable_of_a_vector_holds_its_width():
    def sums(k, x, out):
        total = k.var(k.splat(0.0, 8))
        for i in k.range(0, N, 8):
            total.set(total.value + k.load_vector(x, i, width=8))
        total.set(total.value * 2)
        out[0] = k.vector_sum(total.value)
        out[1] = k.element(total.value, 3)
        out[2] = k.vector_max(k.iota(8, i64).to(f32))

    run(sums, [x := floats(N), out := np.zeros(N, np.float32)])
    np.testing.assert_array_equal(out[:3], [2 * x.sum(), 2 * x[3::8].sum(), 7])
