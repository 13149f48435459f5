"""Explicit vectors, storage dtypes and dot4, compiled against interpreted."""

import numpy as np
import pytest

from camshaft.dtypes import DTYPES, f32, i32, u32
from camshaft.emit.target import LEVELS
from camshaft.lang import kernel
from tests.support.compilers.emit_harness import FEATURES, agree
from tests.support.quick import each_value, quick_of

STORED = ["f16", "bf16", "f32", "f64", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "bool"]


def stored_values(name, shape, seed=0):
    dtype = DTYPES[name]
    rng = np.random.default_rng(seed)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.is_float:
        return (rng.normal(size=shape) * 100).astype(dtype.numpy)
    info = np.iinfo(dtype.numpy)
    return rng.integers(info.min // 2, info.max // 2, shape, dtype=dtype.numpy)


@kernel
def copy(k, x, out, *, n):
    row = k.program(0)
    for c in k.lanes(n):
        out[row, c] = x[row, c]


@kernel
def add_one(k, x, out, *, n):
    row = k.program(0)
    for c in k.lanes(n):
        out[row, c] = x[row, c] + 1


@pytest.mark.parametrize("name", STORED)
@pytest.mark.parametrize("n", quick_of([1, 3, 16, 77], [77]))
def test_every_storage_dtype_is_read_and_written(name, n):
    x = stored_values(name, (2, n))
    (out,) = agree(copy, [x, np.zeros((2, n), x.dtype)], grid=(2,), n=n)
    np.testing.assert_array_equal(out, x)
    if name != "bool":
        agree(add_one, [x, np.zeros((2, n), x.dtype)], grid=(2,), n=n)


@kernel
def cut(k, x, out, *, n):
    for c in k.lanes(n):
        value = x[c] >> 5
        out[c] = value.to(i32) if out.dtype == i32 else value


@pytest.mark.parametrize(
    ("n", "dtypes"),
    each_value([1, 33, 2, 17, 5, 9], [("i32", "i8"), ("i32", "i16"), ("u32", "u8"), ("u32", "u16"), ("i64", "i32")]),
)
def test_a_last_element_cut_to_fewer_bits_is_all_that_is_written(n, dtypes):
    source, name = dtypes
    x = np.full(n, 0x55555555, DTYPES[source].numpy)
    (out,) = agree(cut, [x, np.zeros(n + 8, DTYPES[name].numpy)], n=n)
    assert not out[n:].any()


@kernel
def gather_scatter(k, x, place, out, *, n):
    for c in k.lanes(n):
        at = place[c].to(DTYPES["i64"])
        k.scatter(out, k.gather(x, at), at)


@pytest.mark.parametrize("name", ["f16", "bf16", "i8", "u16", "bool", "f64"])
def test_storage_dtypes_are_gathered_and_scattered(name):
    x = stored_values(name, 45)
    place = np.random.default_rng(1).permutation(45).astype(np.int32)
    (out,) = agree(gather_scatter, [x, place, np.zeros(45, x.dtype)], n=45)
    np.testing.assert_array_equal(out, x)


@kernel
def repeated(k, x, out, *, n):
    for c in k.lanes(n):
        out[c] = x[c // 4]


@pytest.mark.parametrize("name", ["f16", "i8", "bool"])
def test_storage_dtypes_are_repeated(name):
    x = stored_values(name, 20)
    agree(repeated, [x, np.zeros(77, x.dtype)], n=77)


@kernel
def vectors(k, x, out, sums, n, *, width):
    row = k.program(0)
    total, top = k.var(k.splat(0.0, width)), k.var(-1e30)
    for i in k.range(0, n, width):
        part = k.load_vector(x, row, i, width=width, count=n - i)
        total.set(k.fma(part, part, total.value))
        top.set(k.maximum(top.value, k.vector_max(part)))
        k.store_vector(out, part * 2 + k.iota(width, f32), row, i, count=n - i)
    sums[row, 0] = k.vector_sum(total.value)
    sums[row, 1] = top.value
    sums[row, 2] = k.element(total.value, width - 1)


@pytest.mark.parametrize(("width", "n"), each_value([1, 2, 4, 16, 32], [0, 1, 15, 16, 33]))
def test_explicit_vectors_stop_at_their_count(width, n):
    arrays = [stored_values("f32", (2, 33)), np.full((2, 33), 7, np.float32), np.zeros((2, 3), np.float32)]
    keywords = {"outputs": 2, "scalars": {"n": n}, "grid": (2,), "widths": (1, 16), "rtol": 1e-6}
    agree(vectors, arrays, width=width, **keywords)


@kernel
def counted(k, x, out, count, *, width):
    k.store_vector(out, k.load_vector(x, 0, width=width, count=count) + 1, 0, count=count)


@pytest.mark.parametrize(("count", "name"), each_value([-5, 0, 1, 7, 8, 9], ["f32", "bf16", "u8"]))
def test_a_count_may_be_negative_or_too_large(count, name):
    x = stored_values(name, 8)
    agree(counted, [x, np.zeros(8, x.dtype)], scalars={"count": count}, width=8, widths=(1, 8))


@kernel
def whole_vectors(k, x, out, *, width):
    row = k.program(0)
    k.store_vector(out, k.load_vector(x, row, 0, width=width), row, 0)


@pytest.mark.parametrize("name", STORED)
def test_whole_vectors_of_every_dtype(name):
    x = stored_values(name, (3, 16))
    (out,) = agree(whole_vectors, [x, np.zeros_like(x)], grid=(3,), width=16, widths=(1, 16))
    np.testing.assert_array_equal(out, x)


# --- dot4 ------------------------------------------------------------------------------------------------------------
@kernel
def dot_vector(k, acc, a, b, out, *, width):
    row = k.program(0)
    words = [k.load_vector(x, row, 0, width=width) for x in (acc, a, b)]
    k.store_vector(out, k.dot4(*words), row, 0)


@kernel
def dot_lanes(k, acc, a, b, out, *, n):
    row = k.program(0)
    for c in k.lanes(n):
        out[row, c] = k.dot4(acc[row, c], a[row, c], b[row, c])


@kernel
def dot_uniform(k, acc, a, b, out, *, n):
    row = k.program(0)
    for c in k.range(n):
        out[row, c] = k.dot4(acc[row, c], a[row, c], b[row, c])


@kernel
def dot_mixed(k, a, b, out, *, n):
    total = k.accumulator("sum", i32)
    for c in k.lanes(n):
        total.set(k.dot4(total.value, a[c], b[0]))
    out[0] = k.lanes_sum(total)


@kernel
def dot_small(k, acc, a, b, out, *, width):
    # bytes that are seen to be below 128
    row = k.program(0)
    start, u, s = (k.load_vector(x, row, 0, width=width) for x in (acc, a, b))
    k.store_vector(out, k.dot4(start, u & 0x7F7F7F7F, s), row, 0)


# AVX-VNNI's intrinsic is AVX-512's: only their encodings differ
# The instructions of AVX-VNNI are among those of AVX512-VNNI.
VNNI = {"avxvnni"} if "avx512vnni" in FEATURES else set()
X86 = [name for name in ("sse4", "avx-vnni", "avx512") if LEVELS[name].features <= FEATURES | VNNI]
FEATURE_SETS = {"host": FEATURES, "avx2": LEVELS["avx2"].features, "shifts": set()}
FEATURE_SETS |= {name: LEVELS[name].features for name in X86}
DOTS = [(width, name) for name in FEATURE_SETS for width in ((2, 16) if name in X86 else (1, 2, 4, 8, 16, 32, 64))]


def octets(rows, width, seed=0):
    """Random bytes; the first rows hold the extremes 255 * -128, 255 * 127, 0 * -128."""
    rng = np.random.default_rng(seed)
    u, s = rng.integers(0, 256, (rows, 4 * width)), rng.integers(-128, 128, (rows, 4 * width))
    u[0], s[0], u[1], s[1], u[2], s[2] = 255, -128, 255, 127, 0, -128
    return u.astype(np.uint8), s.astype(np.int8)


@pytest.mark.parametrize(("width", "features"), quick_of(DOTS, [case for case in DOTS if case[0] in (1, 4, 16)]))
def test_dot4_sums_bytes_exactly(width, features):
    u, s = octets(5, width)
    acc = np.random.default_rng(1).integers(-(2**30), 2**30, (5, width)).astype(np.int32)
    arrays = [acc, u.view(np.uint32), s.view(np.uint32), np.zeros((5, width), np.int32)]
    want = acc + (u.astype(np.int32) * s).reshape(5, width, 4).sum(-1)
    keywords = {"grid": (5,), "features": FEATURE_SETS[features]}
    np.testing.assert_array_equal(agree(dot_vector, arrays, width=width, widths=(1, 16), **keywords)[0], want)
    np.testing.assert_array_equal(agree(dot_lanes, arrays, n=width, **keywords)[0], want)
    np.testing.assert_array_equal(agree(dot_uniform, arrays, n=width, widths=(1, 8), **keywords)[0], want)
    small = acc + ((u & 127).astype(np.int32) * s).reshape(5, width, 4).sum(-1)
    np.testing.assert_array_equal(agree(dot_small, arrays, width=width, widths=(1,), **keywords)[0], small)


def test_dot4_of_lanes_and_a_uniform_word():
    u, s = octets(3, 70)
    arrays = [u[0].view(np.uint32), s[0].view(np.uint32), np.zeros(1, np.int32)]
    (out,) = agree(dot_mixed, arrays, n=70)
    assert out[0] == 70 * 4 * 255 * -128


@kernel
def nibbles(k, words, out, *, n):
    for c in k.lanes(n):
        word = words[c]
        low, high = word & 0x0F0F0F0F, (word >> 4) & 0x0F0F0F0F
        out[c] = k.dot4(k.dot4(k.bitcast(word * 0, i32), low, high), high, low)


def test_block_words_are_unpacked_by_shifts():
    words = np.random.default_rng(0).integers(0, 2**32, 50, dtype=np.uint32)
    agree(nibbles, [words, np.zeros(50, np.int32)], n=50)
    assert u32.numpy == words.dtype
