"""MSL against the interpreter: kernels run on the stand-in headers, a threadgroup's threads in shuffled order."""

from __future__ import annotations

import numpy as np
import pytest

from camshaft.dtypes import bf16, f16, f32, i8, i16, i32, i64, u8, u16, u32
from camshaft.emit.msl.context import MslTarget
from camshaft.emit.msl.module import emit
from camshaft.emit.msl.module import refusal as past_limits
from camshaft.emit.refusal import refusal
from camshaft.lang import kernel
from camshaft.lang.interpreter.interpret import grid_sizes, interpret
from camshaft.lang.simt.form import to_simt
from tests.support.compilers.emit_harness import guarded, guards_whole, trace
from tests.support.devices.metal_harness import compile_msl, have_compiler
from tests.support.needs import require
from tests.support.quick import each_value


@pytest.fixture(autouse=True)
def _compiler():
    require(have_compiler(), "needs g++")


def run_msl(traced, arrays, values=(), lanes=64, target=None):
    """The arrays after the kernel ran; guard bytes around them checked."""
    module = emit(to_simt(traced, lanes), target or MslTarget())
    code = compile_msl([module.text])[0][module.entry]
    pairs = [guarded(a) for a in arrays]
    run = np.array([*values] or [0], np.int32)
    addresses = [copy.ctypes.data for copy, _ in pairs] + [run.ctypes.data]
    code(addresses, int(np.prod(grid_sizes(traced, values))), module.lanes)
    assert all(guards_whole(*pair) for pair in pairs), "bytes around an array were written"
    return [copy for copy, _ in pairs]


def agree(function, arrays, outputs=1, scalars=None, grid=(1,), lanes=64, rtol=0.0, atol=0.0, target=None, **constants):
    """Asserts that MSL and the interpreter give the same; the last outputs."""
    scalars = scalars or {}
    traced = trace(function, arrays, outputs, tuple(scalars), grid, **constants)
    got = run_msl(traced, arrays, list(scalars.values()), lanes, target)[-outputs:]
    meant = [a.copy() for a in arrays]
    interpret(traced, meant, list(scalars.values()), lanes=lanes, shuffle_seed=lanes, subgroup_lanes=32)
    for a, b in zip(got, meant[-outputs:], strict=True):
        wide = [x.astype(np.float64) if x.dtype.kind not in "iub" else x for x in (a, b)]
        np.testing.assert_allclose(*wide, rtol=rtol, atol=atol)
    return got


# --- arithmetic ------------------------------------------------------------------------------------------------------
@kernel
def floats(k, x, y, out):
    # out[r] = row r's function of x and y
    for c in k.lanes(x.shape[0]):
        a, b = x[c], y[c]
        results = [a + b, a - b, a * b, a / b, k.minimum(a, b), k.maximum(a, b), -a, k.abs(a), k.floor(a), k.round(a)]
        results += [k.fma(a, b, a), k.select(a < b, a, b), k.sqrt(k.abs(a)), k.rsqrt(k.abs(a))]
        results += [k.select(a <= b, 1.0, 0.0), k.select(a == b, 1.0, 0.0), k.select(a != b, 1.0, 0.0)]
        for row, value in enumerate(results):
            out[row, c] = value


@kernel
def functions(k, x, out):
    for c in k.lanes(x.shape[0]):
        for row, value in enumerate((k.exp(x[c]), k.log(k.abs(x[c])), k.tanh(x[c]))):
            out[row, c] = value


@kernel
def integers(k, x, y, out):
    for c in k.lanes(x.shape[0]):
        a, b = x[c], y[c]
        results = [a + b, a - b, a * b, a // b, a % b, k.minimum(a, b), k.maximum(a, b), a & b, a | b, a ^ b]
        results += [a << (b & 7), a >> (b & 7), k.select(a < b, a, b), a // 7, a % 8]
        for row, value in enumerate(results):
            out[row, c] = value


@kernel
def bytes_dot(k, a, b, out):
    for c in k.lanes(a.shape[0]):
        out[c] = k.dot4(k.bitcast(a[c] ^ b[c], i32), a[c], b[c])


SPECIAL = np.array(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, 2.5, -2.5, 3e38, 1e-40, 5e9, -5e9, 255.7, -129.3], np.float32
)


def pairs_of(values):
    return np.repeat(values, len(values)), np.tile(values, len(values))


def test_float_instructions_keep_nan_infinities_and_ties():
    x, y = pairs_of(SPECIAL)
    agree(floats, [x, y, np.zeros((17, len(x)), np.float32)])


def test_functions_are_within_a_few_units_of_the_last_place():
    x = np.concatenate([SPECIAL, np.linspace(-100, 100, 999), [15.0, -15.0, 88.7, -103.0]]).astype(np.float32)
    agree(functions, [x, np.zeros((3, len(x)), np.float32)], rtol=5e-7, atol=2e-45)  # one subnormal


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64])
def test_integer_instructions_round_down_and_wrap(dtype):
    rng = np.random.default_rng(4)
    signs = [1] if dtype == np.uint32 else [-1, 1]
    x = (rng.choice(signs, 300) * rng.integers(0, 1000, 300)).astype(dtype)
    y = (rng.choice(signs, 300) * rng.integers(1, 50, 300)).astype(dtype)
    agree(integers, [x, y, np.zeros((15, 300), dtype)])


@pytest.mark.parametrize("to", [f16, bf16, i8, i16, i32, i64, u8, u16, u32], ids=str)
def test_floats_convert_and_come_back_saturated(to):
    rng = np.random.default_rng(5)
    x = np.concatenate([SPECIAL, rng.normal(size=500) * 10.0 ** rng.integers(-8, 9, 500)]).astype(np.float32)
    agree(partial_kernel(to), [x, np.zeros(len(x), np.float32)])


def partial_kernel(to):
    @kernel
    def converted(k, x, out):
        for c in k.lanes(x.shape[0]):
            out[c] = x[c].to(to).to(f32)

    return converted


@pytest.mark.parametrize("dtype", [f16, bf16, i8, u8, i16, u16], ids=str)
def test_small_elements_are_stored_and_loaded_natively(dtype):
    @kernel
    def doubled(k, x, out):
        for c in k.lanes(x.shape[0]):
            out[c] = x[c] + x[c]

    x = np.arange(-60, 60).astype(dtype.numpy)
    agree(doubled, [x, np.zeros(120, dtype.numpy)])


def test_dot4_wraps():
    rng = np.random.default_rng(6)
    a, b = (rng.integers(0, 2**32, 500, dtype=np.uint32) for _ in range(2))
    agree(bytes_dot, [a, b, np.zeros(500, np.int32)])


@kernel
def looked_up(k, words, out):
    for c in k.lanes(words.shape[0]):
        out[c] = k.byte_lookup(words[c], range(-128, 128, 16))


def test_byte_lookup():
    words = np.random.default_rng(7).integers(0, 2**32, 500, dtype=np.uint32)
    agree(looked_up, [words, np.zeros(500, np.uint32)])


# --- threads ---------------------------------------------------------------------------------------------------------
@kernel
def reductions(k, x, out, total, *, n):
    # lanes' sum, max and min; then a scratch array turned round
    row = k.program(0)
    sums, most, least = k.accumulator("sum"), k.accumulator("max"), k.accumulator("min")
    for c in k.lanes(n):
        sums += x[row, c]
        most.combine(x[row, c])
        least.combine(x[row, c])
    total[row, 0] = k.lanes_sum(sums)
    total[row, 1] = k.lanes_max(most)
    total[row, 2] = k.lanes_min(least)
    turned = k.scratch(f32, n)
    for c in k.lanes(n):
        turned[c] = x[row, c]
    k.barrier()
    for c in k.lanes(n):
        out[row, c] = k.gather(turned, (n - 1) - c)


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


@pytest.mark.parametrize("lanes", [8, 32, 128])
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


# --- text ------------------------------------------------------------------------------------------------------------
def text_of(function, arrays, outputs=1, lanes=64, **constants):
    return emit(to_simt(trace(function, arrays, outputs, **constants), lanes), MslTarget()).text


def test_text_has_the_sources_names_lines_and_formula():
    text = text_of(reductions, [np.zeros((3, 300), np.float32)] * 2 + [np.zeros((3, 3), np.float32)], 2, n=300)
    assert "// lanes' sum, max and min; then a scratch array turned round" in text
    assert "total[row, 0] = k.lanes_sum(sums)" in text
    assert "float sums = 0.0f;" in text
    assert "kernel void reductions(" in text


def test_indexes_are_32_bits_unless_64_are_meant():
    small = text_of(bytes_dot, [np.zeros(9, np.uint32)] * 2 + [np.zeros(9, np.int32)])
    assert "long" not in small
    assert "long" in text_of(places_of_64, [np.zeros(4, np.uint32), np.zeros(4, np.int64)])


@kernel
def places_of_64(k, x, out):
    for c in k.lanes(4):
        out[c] = x[c].to(i64) * 3


def test_64_bit_floats_and_too_much_memory_are_refused_with_the_reason():
    @kernel
    def copied(k, x, out):
        for c in k.lanes(x.shape[0]):
            out[c] = x[c]

    @kernel
    def large(k, out):
        room = k.scratch(f32, 9000)
        for c in k.lanes(out.shape[0]):
            room[c] = 1.0
        k.barrier()
        for c in k.lanes(out.shape[0]):
            out[c] = room[c]

    assert refusal(trace(copied, [np.zeros(4), np.zeros(4)]), "msl") == "a0: Metal has no 64-bit floats"
    shared = to_simt(trace(large, [np.zeros(4, np.float32)]), 64)
    assert past_limits(shared, MslTarget()) == "37024 bytes of threadgroup memory; the device has 32768"
    assert past_limits(shared, MslTarget(max_threadgroup_nbytes=65_536)) is None
    assert past_limits(to_simt(trace(copied, [np.zeros(4, np.float32)] * 2), 2048), MslTarget()) == (
        "2048 threads a threadgroup; the device has 1024"
    )
