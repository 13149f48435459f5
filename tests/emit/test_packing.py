"""pack, partition, reverse, permute and count: compiled against interpreted, on each way that a CPU has."""

import numpy as np
import pytest

from camshaft.dtypes import i32, i64
from camshaft.errors import VerifyError
from camshaft.lang import kernel
from tests.support.compilers.emit_harness import FEATURES, both, trace
from tests.support.quick import pairwise

_512 = {f for f in FEATURES if f.startswith("avx512")}
SETS = {"all": FEATURES, "no AVX-512": FEATURES - _512, "none": frozenset()}


@kernel
def packed(k, x, out, parts, numbers, *, width, n, bound):
    for i in k.range(n):
        v = k.load_vector(x, i * width, width=width)
        mask = v < k.splat(bound, width, v.dtype)
        k.store_vector(out, k.pack(v, mask), i * width)
        k.store_vector(parts, k.partition(v, mask), i * width)
        numbers[i] = k.count(mask)


@pytest.mark.parametrize(
    ("width", "features", "dtype"), pairwise([1, 2, 4, 8, 16, 32], list(SETS), ["f32", "u32", "i64"])
)
def test_elements_under_a_mask_come_first_and_others_last_or_not(dtype, width, features):
    n = 40
    x = np.random.default_rng(width).integers(0, 9, n * width).astype({"f32": "f4", "u32": "u4", "i64": "i8"}[dtype])
    x[:width], x[width : 2 * width] = 0, 9
    bound = 4.0 if dtype == "f32" else 4
    arrays = [x, np.ones_like(x), np.ones_like(x), np.zeros(n, np.int64)]
    made, meant = both(packed, arrays, outputs=3, lanes=4, features=SETS[features], width=width, n=n, bound=bound)
    rows = [row[row < 4] for row in x.reshape(n, width)]
    want = np.stack([np.pad(row, (0, width - len(row))) for row in rows])
    both_parts = [np.concatenate([row[row < 4], row[row >= 4][::-1]]) for row in x.reshape(n, width)]
    for out, parts, numbers in (made, meant):
        np.testing.assert_array_equal(out, want.ravel())
        np.testing.assert_array_equal(parts, np.ravel(both_parts))
        np.testing.assert_array_equal(numbers, [len(row) for row in rows])


def test_pack_and_count_want_vectors_and_their_booleans():
    @kernel
    def unlike(k, x, out):
        k.store_vector(out, k.pack(k.load_vector(x, 0, width=4), k.iota(8, i32) < k.splat(2, 8, i32)), 0)

    @kernel
    def numbers(k, x, out):
        out[0] = k.count(k.iota(8, i64)).to(i32)

    x = np.zeros(8, np.int32)
    for wrong, message in (
        (unlike, "pack of .*: wanted a vector and as many booleans"),
        (numbers, "count of .*: wanted"),
    ):
        with pytest.raises(VerifyError, match=message):
            trace(wrong, [x, x.copy()])


@kernel
def turned(k, x, out, *, width):
    k.store_vector(out, k.reverse(k.load_vector(x, 0, width=width)), 0)


@pytest.mark.parametrize(
    ("width", "dtype", "features"), pairwise([1, 2, 8, 32], [np.float32, np.uint8, np.int64], ["all", "none"])
)
def test_a_vector_is_reversed(dtype, width, features):
    x = np.arange(width).astype(dtype)
    for (out,) in both(turned, [x, np.zeros_like(x)], outputs=1, lanes=4, features=SETS[features], width=width):
        np.testing.assert_array_equal(out, x[::-1])


def test_reverse_wants_a_vector():
    @kernel
    def lanes(k, x, out):
        out[k.lane()] = k.reverse(x[k.lane()])

    x = np.zeros(8, np.int32)
    with pytest.raises(VerifyError, match=r"reverse of .*: wanted an explicit vector"):
        trace(lanes, [x, x.copy()])


@kernel
def permuted(k, x, indexes, out, *, width):
    found = k.permute(k.load_vector(x, 0, width=width), k.load_vector(indexes, 0, width=width))
    k.store_vector(out, found, 0)


@pytest.mark.parametrize(
    ("width", "features", "dtype"), pairwise([1, 4, 8, 16, 32], list(SETS), [np.float32, np.uint32])
)
def test_a_vector_is_permuted(dtype, width, features):
    x, indexes = np.arange(width).astype(dtype), np.random.default_rng(width).integers(-99, 99, width).astype(np.int32)
    given = [x, indexes, np.zeros_like(x)]
    for (out,) in both(permuted, given, outputs=1, lanes=4, features=SETS[features], width=width):
        np.testing.assert_array_equal(out, x[indexes % width])


def test_permute_wants_as_many_indexes_and_words():
    @kernel
    def few(k, x, out):
        k.store_vector(out, k.permute(k.load_vector(x, 0, width=8), k.iota(4, i32)), 0)

    @kernel
    def long(k, x, out):
        k.store_vector(out, k.permute(k.iota(8, i64), k.iota(8, i32)).to(i32), 0)

    x = np.zeros(8, np.int32)
    for wrong, message in ((few, "wanted a vector and as many i32"), (long, "wanted elements of 32 bits")):
        with pytest.raises(VerifyError, match=f"permute of .*: {message}"):
            trace(wrong, [x, x.copy()])
