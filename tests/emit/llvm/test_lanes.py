"""Words between lanes and atomics: compiled against interpreted, at several widths; and what the verifier refuses of them."""

import numpy as np
import pytest

from camshaft.dtypes import DTYPES, f32, i32, i64
from camshaft.errors import KernelError, VerifyError
from camshaft.lang import kernel
from tests.support.compilers.emit_harness import agree, both
from tests.support.quick import each_value

WIDTHS = (1, 4, 16, 32)
N = 75
RNG = np.random.default_rng(5)


def drawn(dtype, n=N):
    wide = RNG.integers(0 if dtype == "u32" else -50, 50, n)
    return (wide / 4 if dtype in ("f32", "f64") else wide).astype(DTYPES[dtype].numpy)


@kernel
def row_scan(k, x, out, *, n, kind, exclusive, dtype):
    """out = the scan of a row of any length, at any lane count: a carry goes from block to block."""
    width = k.lane_count()
    start = {"sum": 0, "max": -1000, "min": 1000}[kind]
    carry = k.var(start, DTYPES[dtype])
    for block in k.range((width + (n - 1)) // width):
        c = block * width + k.lane()
        here = k.var(start, DTYPES[dtype])
        with k.when(c < n):
            here.set(x[c])
        inclusive = k.lanes_scan(here, kind)
        join = {"sum": lambda a, b: a + b, "max": k.maximum, "min": k.minimum}[kind]
        shown = k.lanes_scan(here, kind, exclusive=True) if exclusive else inclusive
        with k.when(c < n):
            out[c] = join(shown, carry.value)
        carry.set(join(k.broadcast(inclusive, width - 1), carry.value))


@pytest.mark.parametrize(
    ("dtype", "kind", "exclusive"), each_value(["f32", "f64", "i32", "i64"], ["sum", "max", "min"], [False, True])
)
def test_a_row_is_scanned_with_a_carry_at_any_width(dtype, kind, exclusive):
    x = drawn(dtype)
    (out,) = agree(row_scan, [x, np.zeros_like(x)], widths=WIDTHS, n=N, kind=kind, exclusive=exclusive, dtype=dtype)
    ufunc = {"sum": np.add, "max": np.maximum, "min": np.minimum}[kind]
    want = ufunc.accumulate(x)
    if exclusive:
        want = np.concatenate([[{"sum": 0, "max": -1000, "min": 1000}[kind]], want[:-1]])
    np.testing.assert_array_equal(out, want.astype(x.dtype))


@kernel
def exchange(k, x, out, *, word, n):
    """One block of lanes; row by row what the word gives."""
    lane, width = k.lane(), k.lane_count()
    value = x[lane]
    if word == "reversed":
        out[lane] = k.shuffle(value, width - 1 - lane)
    elif word == "loaded":
        out[lane] = k.shuffle(value, value.to(i32).to(i64) % width)  # WGSL takes no u32 for an index unseen
    elif word == "broadcast":
        out[lane] = value + k.broadcast(value, width // 2)
    else:
        out[lane] = getattr(k, word)(value, n)


WORDS = [("reversed", 0), ("loaded", 0), ("broadcast", 0)]
WORDS += [(word, n) for word in ("shuffle_xor", "shuffle_up", "shuffle_down") for n in (1, 2, 5, 40)]


@pytest.mark.parametrize(("case", "dtype"), each_value(WORDS, ["f32", "i32", "i64", "u32"]))
def test_lanes_exchange_values(case, dtype):
    word, n = case
    x = drawn(dtype)
    agree(exchange, [x, np.zeros_like(x)], widths=WIDTHS, word=word, n=n)


def test_shuffles_keep_a_lanes_own_value_at_the_edges():
    x = np.arange(8, dtype=np.float32)
    for word, want in (
        ("shuffle_up", [0, 1, 2, 0, 1, 2, 3, 4]),
        ("shuffle_down", [3, 4, 5, 6, 7, 5, 6, 7]),
        ("shuffle_xor", [3, 2, 1, 0, 7, 6, 5, 4]),
    ):
        (out,), _ = both(exchange, [x, np.zeros_like(x)], lanes=8, word=word, n=3)
        np.testing.assert_array_equal(out, want)


@kernel
def by_subgroup(k, x, out, *, word):
    out[k.lane()] = getattr(k, word)(x[k.lane()]) + k.subgroup_lanes().to(f32) * 0.0


@pytest.mark.parametrize("word", ["subgroup_sum", "subgroup_max", "subgroup_min"])
def test_subgroups_are_reduced(word):
    x = drawn("f32")
    agree(by_subgroup, [x, np.zeros_like(x)], widths=WIDTHS, word=word)


@kernel
def histogram(k, x, out, *, n, kind, dtype):
    row = k.program(0)
    for c in k.lanes(n):
        value = x[row, c]
        place = k.bitcast(value, i32) if dtype == "u32" else value.to(i32)
        getattr(k, f"atomic_{kind}")(out, value, place.to(i64) & 7)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("add", "f32"), *each_value(["add", "min", "max", "and", "or", "xor"], ["i32", "u32"])],
)
def test_atomics_of_all_lanes_and_programs_add_up(kind, dtype):
    x = drawn(dtype, 3 * 37).reshape(3, 37)
    start = np.full(8, 5, x.dtype)
    (out,) = agree(histogram, [x, start], widths=WIDTHS, grid=(3,), n=37, kind=kind, dtype=dtype)
    ufunc = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or}
    want = start.copy()
    ufunc.get(kind, np.bitwise_xor).at(want, x.astype(np.int64).ravel() & 7, x.ravel())
    np.testing.assert_array_equal(out, want)


@kernel
def tickets(k, out, counter, *, n):
    """Each lane that wants one draws a number of its own."""
    for c in k.lanes(n):
        with k.when(c % 3 != 0):
            mine = k.atomic_add(counter, 1, 0)
            k.scatter(out, c.to(i32), mine.to(i64))


@pytest.mark.parametrize("lanes", WIDTHS)
def test_an_atomic_gives_each_lane_its_own_old_value(lanes):
    out, counter = np.full(N, -1, np.int32), np.zeros(1, np.int32)
    for outputs in both(tickets, [out, counter], outputs=2, lanes=lanes, n=N):
        np.testing.assert_array_equal(np.sort(outputs[0][:50]), [c for c in range(N) if c % 3])
        assert outputs[1][0] == 50


@kernel
def once_a_program(k, out, taken):
    """A uniform atomic is the program's own, not each lane's; compare_exchange lets one in."""
    part = k.scratch(i32, 1)
    part[0] = 3
    k.atomic_exchange(part, 7, 0)
    k.atomic_or(part, 8, 0)
    k.barrier()
    out[k.program(0)] = k.atomic_add(part, 1, 0)
    k.compare_exchange(taken, 0, k.program(0).to(i32) + 1, 0)


@pytest.mark.parametrize("lanes", WIDTHS)
def test_a_uniform_atomic_is_done_once(lanes):
    out, taken = np.zeros(4, np.int32), np.zeros(1, np.int32)
    for outputs in both(once_a_program, [out, taken], outputs=2, lanes=lanes, grid=(4,)):
        np.testing.assert_array_equal(outputs[0], [15] * 4)
        assert outputs[1][0] in (1, 2, 3, 4)


def refused(message, function, arrays, **keywords):
    with pytest.raises((VerifyError, KernelError), match=message):
        both(kernel(function), arrays, **keywords)


def test_collectives_in_flow_that_varies_are_refused():
    def in_lanes(k, x, out):
        for c in k.lanes(8):
            out[c] = k.lanes_scan(x[c])

    def masked(k, x, out):
        with k.when(k.lane() < 2):
            out[k.lane()] = k.shuffle_up(x[k.lane()], 1)

    x = drawn("f32")
    refused(r"kernel in_lanes, line \d+: k.lanes_scan inside k.lanes", in_lanes, [x, x.copy()])
    refused(r"kernel masked, line \d+: k.shuffle where not all lanes arrive", masked, [x, x.copy()])


def test_a_shuffle_from_no_lane_is_found():
    def beyond(k, x, out):
        out[k.lane()] = k.shuffle(x[k.lane()], k.lane() + 1)

    def far(k, x, out):
        out[k.lane()] = k.broadcast(x[k.lane()], 9)

    x = drawn("f32")
    refused("line .*: a shuffle from lane 8 of 8", beyond, [x, x.copy()])
    refused("line .*: a shuffle from lane 9 of 8", far, [x, x.copy()])


def test_atomics_of_other_dtypes_or_on_inputs_are_refused():
    def on_halves(k, x, out):
        k.atomic_add(out, 1.0, 0)

    def on_input(k, x, out):
        k.atomic_add(x, 1, 0)

    def float_max(k, x, out):
        k.atomic_max(out, 1.0, 0)

    refused("atomic_add on a1 of f16: wanted i32, u32, f32", on_halves, [drawn("f32"), np.zeros(4, np.float16)])
    refused("a0 is not writable", on_input, [drawn("i32"), drawn("i32")])
    refused("atomic_max on a1 of f32: wanted i32, u32", float_max, [drawn("f32"), drawn("f32")])


def test_an_atomic_races_with_what_is_no_atomic():
    def reads_it(k, x, out):
        k.atomic_add(out, x[k.lane()], 0)
        out[1] = out[0]

    x = drawn("i32")
    refused(
        "a race without a barrier between: every lane reads element .0,. of a1, which several lanes",
        reads_it,
        [x, x.copy()],
    )
