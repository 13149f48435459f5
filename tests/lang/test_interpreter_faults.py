"""Faults that the interpreter finds: indexes outside, races, missing barriers, undefined values that decide, wrong arithmetic."""

import re

import numpy as np
import pytest

from camshaft.dtypes import f32, i64
from camshaft.errors import VerifyError
from tests.lang.interpreted import N, floats, run


def faulty(message, function, arrays, **keywords):
    with pytest.raises(VerifyError, match=message) as raised:
        run(function, arrays, **keywords)
    assert re.match(rf"kernel {function.__name__}, line \d+: ", str(raised.value))


def test_an_index_is_checked_along_its_own_axis():
    def reads_the_next_row(k, x, out):
        for c in k.lanes(N):
            out[0, c] = x[0, c + 1]

    faulty(r"index 32 of a0 along axis 1 is outside its 32 .*lane 7", reads_the_next_row, [floats(2, N), floats(1, N)])


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
