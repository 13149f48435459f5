"""The interpreter: what it computes, and the faults it finds."""

import re
import time

import numpy as np
import pytest

from camshaft.dtypes import as_dtype, f32, i64
from camshaft.errors import VerifyError
from camshaft.lang import ir, kernel
from camshaft.lang.interpreter.interpret import interpret

N = 32


def run(function, arrays, outputs=1, scalars=None, grid=(1,), lanes=8, **keywords):
    first, scalars = len(arrays) - outputs, scalars or {}
    params = [ir.ArrayParam(f"a{i}", as_dtype(a.dtype), a.shape, i >= first) for i, a in enumerate(arrays)]
    dims = [ir.GridDim(d) if isinstance(d, int) else ir.GridDim(1, *d) for d in grid]
    made = kernel(function).trace(params, tuple(scalars), {}, dims)
    return interpret(made, arrays, list(scalars.values()), lanes=lanes, **keywords)


def floats(*shape):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def faulty(message, function, arrays, **keywords):
    with pytest.raises(VerifyError, match=message) as raised:
        run(function, arrays, **keywords)
    assert re.match(rf"kernel {function.__name__}, line \d+: ", str(raised.value))


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


def test_an_index_is_checked_along_its_own_axis():
    def reads_the_next_row(k, x, out):
        for c in k.lanes(N):
            out[0, c] = x[0, c + 1]

    faulty(r"index 32 of a0 along axis 1 is outside its 32 .*lane 7", reads_the_next_row, [floats(2, N), floats(1, N)])


def test_lanes_that_are_off_may_point_anywhere():
    def guarded(k, x, out):
        for c in k.lanes(N):
            with k.when(c + 1 < N):
                out[c] = x[c + 1]

    run(guarded, [floats(N), out := np.zeros(N, np.float32)])
    np.testing.assert_array_equal(out[:-1], np.arange(1, N))


def test_a_select_does_not_guard_a_load():
    def unguarded(k, x, out):
        for c in k.lanes(N):
            out[c] = k.select(c + 1 < N, k.gather(x, c + 1), 0.0)

    faulty("index 32 of a0", unguarded, [floats(N), floats(N)])


def test_negative_indices_do_not_wrap():
    def before(k, x, out):
        for c in k.lanes(N):
            out[c] = x[c - 1]

    faulty("index -1 of a0", before, [floats(N), floats(N)])


def test_an_explicit_vector_stays_in_its_row():
    def crosses(k, x, out, at):
        k.store_vector(out, k.load_vector(x, 0, at, width=8), 0, 0)

    faulty("index 33 of a0 along axis 1", crosses, [floats(2, N), floats(2, N)], scalars={"at": 26})


def test_two_programs_do_not_write_one_element():
    def meets(k, out):
        out[k.program(0) // 2] = 1.0

    faulty(r"program \(1,\) writes element \(0,\) of a0, which program \(0,\) wrote", meets, [floats(4)], grid=(4,))


@pytest.mark.parametrize("seed", range(4))
def test_a_program_does_not_read_what_another_writes(seed):
    def neighbour(k, x, out):
        row = k.program(0)
        out[row] = x[row] + out[(row + 1) % 4]

    arrays = [floats(4), floats(4)]
    faulty(r"a race: program .* of a1, which program", neighbour, arrays, grid=(4,), shuffle_seed=seed)


def test_a_program_may_read_and_write_its_own():
    def in_place(k, out):
        row = k.program(0)
        out[row] = out[row] + 1
        out[row] = out[row] * 2

    run(in_place, [out := floats(4)], grid=(4,))
    np.testing.assert_array_equal(out, (np.arange(4) + 1) * 2)


def test_two_lanes_do_not_scatter_to_one_element():
    def collides(k, x, out):
        for c in k.lanes(N):
            k.scatter(out, x[c], c % 7)

    faulty(r"lanes 0 and 7 both store element \(0,\) of a1", collides, [floats(N), floats(N)])


def test_scratch_is_written_before_it_is_read():
    def reads_first(k, out):
        part = k.scratch(f32, 16)
        for c in k.lanes(8):
            part[c] = 1.0
        k.barrier()
        out[0] = part[9]

    faulty(
        r"depends on scratch: element \(9,\) of scratch0 \(made at line \d+\), read at line \d+, was never",
        reads_first,
        [floats(N)],
    )


def test_a_hole_is_followed_through_variables_scratch_and_reductions():
    def hidden(k, out):
        part, kept = k.scratch(f32, 2, 8), k.var(0.0)
        k.store_vector(part, k.splat(1.0, 8), 0, 0, count=5)
        k.store_vector(part, k.load_vector(part, 0, 0, width=8) * 2, 1, 0)
        kept.set(k.vector_sum(k.load_vector(part, 1, 0, width=8)))
        out[0] = kept.value + 1

    faulty(r"depends on scratch: element \(1, 5\) of scratch0", hidden, [floats(N)])


def test_no_branch_or_index_depends_on_a_hole():
    def branches(k, out):
        part = k.scratch(f32, 8)
        with k.when(part[3] > 0):
            out[0] = 1

    def indexes(k, out):
        part = k.scratch(i64, 8)
        out[part[3]] = 1

    for function in (branches, indexes):
        faulty(r"an index, a bound or a condition depends on scratch: element \(3,\)", function, [floats(N)])


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


def test_scratch_is_forgotten_between_programs():
    def once(k, out):
        part, row = k.scratch(f32, 4), k.program(0)
        with k.when(row == 0):
            part[0] = 1.0
        out[row] = part[0]

    faulty(r"was never written \(program \(1,\)\)", once, [floats(N)], grid=(2,))


def test_lanes_meet_at_a_barrier_before_they_read_each_others_scratch():
    def exchange(k, out, meets):
        part, lane = k.scratch(f32, 64), k.lane()
        part[lane] = lane.to(f32)
        with k.when(meets > 0):
            k.barrier()
        out[lane] = k.gather(part, (lane + 1) % k.lane_count())

    run(exchange, [out := floats(64)], scalars={"meets": 1})
    np.testing.assert_array_equal(out[:8], np.roll(np.arange(8), -1))
    faulty("race without a barrier between: lane 0 reads", exchange, [floats(64)], scalars={"meets": 0})


def test_a_read_of_scratch_and_a_later_write_need_a_barrier():
    def shifts(k, out):
        part, lane = k.scratch(f32, 64), k.lane()
        part[lane] = 1.0
        k.barrier()
        moved = k.gather(part, (lane + 1) % k.lane_count())
        part[lane] = moved

    faulty("race without a barrier between: lane 0 writes .* lane 7 read", shifts, [floats(64)])


def test_a_uniform_read_of_a_lanes_scratch_needs_a_barrier():
    def early(k, out):
        part = k.scratch(f32, 64)
        part[k.lane()] = 1.0
        out[0] = part[0]

    faulty("race without a barrier between: every lane reads .* lane 0 wrote", early, [floats(N)], lanes=1)


@pytest.mark.parametrize(("operation", "by"), [("//", 0), ("%", 0), ("<<", 64), (">>", -1)])
def test_arithmetic_without_a_meaning_is_found(operation, by):
    def without_meaning(k, x, out, by):
        for c in k.lanes(N):
            shifted = {"//": x[c] // by, "%": x[c] % by} if operation in "//%" else {"<<": x[c] << by, ">>": x[c] >> by}
            out[c] = shifted[operation]

    arrays = [np.arange(N), np.arange(N)]
    faulty("a division by 0|a shift by", without_meaning, arrays, scalars={"by": by})


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
