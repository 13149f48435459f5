"""MSL against the interpreter: what instructions compute on elements of every dtype, and what the text says."""

from __future__ import annotations

import numpy as np
import pytest

from camshaft.dtypes import bf16, f16, f32, i8, i16, i32, i64, u8, u16, u32, u64
from camshaft.emit.msl.context import MslTarget
from camshaft.emit.msl.module import refusal as past_limits
from camshaft.emit.refusal import refusal
from camshaft.lang import kernel
from camshaft.lang.simt.form import to_simt
from tests.emit.c_family.msl_runs import agree, reductions, text_of
from tests.support.compilers.emit_harness import trace
from tests.support.devices.metal_harness import have_compiler
from tests.support.needs import require


@pytest.fixture(autouse=True)
def _compiler():
    require(have_compiler(), "needs g++")


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
def wrapped(k, x, y, out):
    # the high half of products that wrap at 64 bits
    for c in k.lanes(x.shape[0]):
        a, b = (k.bitcast(value[c].to(i64), u64) for value in (x, y))
        out[c] = ((a * b * 0x100000001) >> 32).to(u32)


def test_integers_whose_bits_are_taken_have_64():
    x, y = np.array([-7, 5, 2**31 - 1, -(2**31)], np.int32), np.array([3, -9, 2**31 - 1, 17], np.int32)
    agree(wrapped, [x, y, np.zeros(4, np.uint32)])


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
