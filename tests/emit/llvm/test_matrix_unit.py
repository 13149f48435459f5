"""Tiles of words: in ordinary words, on AMX as NumPy plays it and on NEON under qemu, and what they are compiled to."""

from __future__ import annotations

import numpy as np
import pytest
from ml_dtypes import bfloat16

from camshaft.dtypes import DTYPES, f32, u32
from camshaft.emit.llvm.matrix_units.statements import native_tiles
from camshaft.emit.llvm.module import emit
from camshaft.emit.target import LEVELS, CpuTarget
from camshaft.errors import KernelError
from camshaft.lang import kernel
from tests.support.compilers.assembly import instructions, longest_loop, vector_stack_accesses
from tests.support.compilers.cross import CrossTarget, assembly_for
from tests.support.compilers.emit_harness import ENTRY, agree, trace
from tests.support.devices.played_amx import loaded
from tests.support.quick import each_value, full

AMX = CrossTarget("x86_64-unknown-linux-gnu", "sapphirerapids", LEVELS["amx"].features)
NEON = CrossTarget("aarch64-unknown-linux-gnu", "neoverse-n2", LEVELS["neon-bf16"].features)
TIMES = 3
# rows, columns, words deep: one piece and four, deeper than a piece, deeper than what is unrolled with an end that is not whole
SIZES = [(16, 16, 8), (8, 8, 6), (32, 32, 16), (16, 32, 40), (8, 16, 70)]
RNG = np.random.default_rng(5)


@kernel
def product(k, a, b, out, *, m, n, depth, dtype, passing=""):
    total = k.word_tile(m, n, DTYPES[dtype])
    for p in k.range(0, TIMES * depth, depth):
        total.mma(a, (0, p), b, (p, 0), k=depth, passing=passing)
    total.store(out, (0, 0))


def drawn(dtype: str, *shape: int) -> np.ndarray:
    """Words of any bytes, or of two bf16 that are small whole numbers: their sums are exact in any order."""
    if dtype == "i32":
        return RNG.integers(0, 2**32, shape, dtype=np.uint32)
    return RNG.integers(-4, 5, (*shape, 2)).astype(bfloat16).view(np.uint32)[..., 0]


def case(size: tuple[int, int, int], dtype: str) -> tuple[list[np.ndarray], np.ndarray]:
    """The arrays, and the product by NumPy."""
    m, n, depth = size
    a, b = drawn(dtype, m, TIMES * depth), drawn(dtype, TIMES * depth, n)
    kinds = (np.int8, np.uint8) if dtype == "i32" else (bfloat16, bfloat16)
    left = a.view(kinds[0]).reshape(m, -1).astype(np.float64)
    right = b.view(kinds[1]).reshape(TIMES * depth, n, -1).transpose(0, 2, 1).reshape(-1, n).astype(np.float64)
    return [a, b, np.zeros((m, n), DTYPES[dtype].numpy)], left @ right


def traced(size: tuple[int, int, int], dtype: str, arrays: list[np.ndarray]):
    return trace(product, arrays, m=size[0], n=size[1], depth=size[2], dtype=dtype)


@pytest.mark.parametrize("dtype", ["i32", "f32"])
@pytest.mark.parametrize("size", [full(SIZES[0]), SIZES[1]])
def test_words_in_ordinary_words(size, dtype) -> None:
    arrays, want = case(size, dtype)
    (got,) = agree(product, arrays, widths=(1, 4, 16), m=size[0], n=size[1], depth=size[2], dtype=dtype)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", ["i32", "f32"])
@pytest.mark.parametrize("size", SIZES)
def test_amx_multiplies_words(size, dtype) -> None:
    arrays, want = case(size, dtype)
    library, amx = loaded(emit(traced(size, dtype, arrays), CpuTarget("x86_64", 16, AMX.features), "product"))
    block = np.array([array.ctypes.data for array in arrays], np.int64)
    ENTRY(library.address("product"))(block.ctypes.data, 0, 1)
    assert not amx.failed
    np.testing.assert_array_equal(arrays[-1], want)
    pieces = -(-size[0] // 16) * -(-size[1] // 16)
    assert amx.counts["tdpbsud.internal" if dtype == "i32" else "tdpbf16ps.internal"] == TIMES * pieces * -(
        -size[2] // 16
    )


@kernel
def sum_of_products(k, start, a, b, out, *, m, n, depth, dtype):
    # two tiles in turn: the second starts with what the first left
    first = k.word_tile(m, n, DTYPES[dtype], (start, (0, 0)))
    first.mma(a, (0, 0), b, (0, 0), k=depth)
    first.store(out, (0, 0))
    k.barrier()
    for p in k.range(depth, TIMES * depth, depth):
        second = k.word_tile(m, n, DTYPES[dtype], (out, (0, 0)))
        second.mma(a, (0, p), b, (p, 0), k=depth)
        second.store(out, (0, 0))
        k.barrier()


@pytest.mark.parametrize(("size", "dtype"), each_value([(8, 8, 8), (32, 32, 16)], ["i32", "f32"]))
def test_a_tile_starts_with_what_lies_in_an_array(size, dtype) -> None:
    m, n, depth = size
    (a, b, out), product_alone = case(size, dtype)
    start = RNG.integers(-4, 5, (m, n)).astype(DTYPES[dtype].numpy)
    sizes = {"m": m, "n": n, "depth": depth, "dtype": dtype}
    if m == 8:  # the interpreter takes 60 times as long for the other size, of which AMX makes four pieces
        (got,) = agree(sum_of_products, [start, a, b, out], widths=(1, 16), **sizes)
        np.testing.assert_array_equal(got, start + product_alone)
    library, amx = loaded(emit(trace(sum_of_products, [start, a, b, out], **sizes), AMX.at(16), "product"))
    block = np.array([array.ctypes.data for array in (start, a, b, out)], np.int64)
    ENTRY(library.address("product"))(block.ctypes.data, 0, 1)
    assert not amx.failed
    np.testing.assert_array_equal(out, start + product_alone)
    assert amx.counts["tdpbsud.internal" if dtype == "i32" else "tdpbf16ps.internal"] == TIMES * -(-m // 16) * -(
        -n // 16
    )
    if m == 8:
        word = "usmmla" if dtype == "i32" else "bfmmla"
        assert word in assembly_for(NEON, emit(trace(sum_of_products, [start, a, b, out], **sizes), NEON.at(4), "p"))


@pytest.mark.parametrize(("dtype", "word"), [("i32", "tdpbsud"), ("f32", "tdpbf16ps")])
def test_amx_keeps_sums_and_operands_in_tiles(dtype, word) -> None:
    arrays, _ = case((32, 32, 16), dtype)
    loop = longest_loop(assembly_for(AMX, emit(traced((32, 32, 16), dtype, arrays), AMX.at(16), "product")))
    counts = instructions(loop)
    assert (counts[word], counts["tileloadd"], counts["tilestored"]) == (4, 4, 0)
    assert not [line for line in loop if "%rsp" in line]


@pytest.mark.parametrize(("passing", "hinted"), [("a", 2), ("b", 2), ("ab", 4)])
def test_amx_is_told_which_operands_pass(passing, hinted) -> None:
    arrays, _ = case((32, 32, 16), "f32")
    made = trace(product, arrays, m=32, n=32, depth=16, dtype="f32", passing=passing)
    counts = instructions(longest_loop(assembly_for(AMX, emit(made, AMX.at(16), "product"))))
    assert (counts["tileloaddt1"], counts["tileloadd"]) == (hinted, 4 - hinted)


@kernel
def by_two(k, a, b, out, *, copied):
    # out = a [32, 16] by b's rows 0 to 15, and by rows 16 to 31; `copied`: by a copy of a
    left = a
    if copied:
        left = k.scratch(u32, 32, 16)
        for i in k.range(32):
            k.store_vector(left, k.load_vector(a, i, 0, width=16), i, 0)
        k.barrier()
    total = k.word_tile(32, 32, f32)
    for first in (0, 16):
        total.mma(left, (0, 0), b, (first, 0), k=16)
    total.store(out, (0, 0))


@pytest.mark.parametrize(("copied", "loads"), [(False, 6), (True, 8)])
def test_products_by_an_array_that_is_only_read_share_its_tiles(copied, loads) -> None:
    a, b, out = drawn("f32", 32, 16), drawn("f32", 32, 32), np.zeros((32, 32), np.float32)
    made = trace(by_two, [a, b, out], copied=copied)
    library, amx = loaded(emit(made, AMX.at(16), "product"))
    block = np.array([array.ctypes.data for array in (a, b, out)], np.int64)
    ENTRY(library.address("product"))(block.ctypes.data, 0, 1)
    assert not amx.failed
    left, right = (array.view(bfloat16).astype(np.float64) for array in (a, b))
    rows = right.reshape(32, 32, 2).transpose(0, 2, 1).reshape(64, 32)
    np.testing.assert_array_equal(out, left @ (rows[:32] + rows[32:]))
    assert (amx.counts["tileloadd64.internal"], amx.counts["tdpbf16ps.internal"]) == (loads, 8)


@pytest.mark.parametrize(("dtype", "word"), [("i32", "usmmla"), ("f32", "bfmmla")])
def test_neon_keeps_sums_and_operands_in_registers(dtype, word) -> None:
    arrays, _ = case((8, 8, 8), dtype)
    loop = longest_loop(assembly_for(NEON, emit(traced((8, 8, 8), dtype, arrays), NEON.at(4), "product")))
    assert instructions(loop)[word] == 4 * 16
    assert not vector_stack_accesses(loop)


@pytest.mark.parametrize("size", [(48, 32, 8), (32, 32, 40)])
def test_a_tile_that_passes_the_registers_is_ordinary_words(size) -> None:
    """By its pieces, or as operands of a last step that is not whole have another shape."""
    arrays, _ = case(size, "i32")
    text = emit(traced(size, "i32", arrays), AMX.at(16), "product")
    assert "x86_amx" not in text
    assert "vpdpbusd" in text


@kernel
def two_beside_another(k, a, b, out, *, rows):
    # a tile of `rows` rows, and in turn two that fill the registers
    beside = k.word_tile(rows, 16, DTYPES["i32"])
    first = k.word_tile(16, 48, DTYPES["i32"])
    beside.mma(a, (0, 0), b, (0, 0), k=16)
    first.mma(a, (0, 0), b, (0, 0), k=16)
    beside.store(out, (0, 0))
    first.store(out, (0, 0))
    k.barrier()
    second = k.word_tile(32, 32, DTYPES["i32"])
    second.mma(a, (0, 0), b, (0, 0), k=16)
    second.store(out, (0, 0))


def test_tiles_share_registers_where_all_are_native() -> None:
    """LLVM crashes in kernels of shared registers with another tile in ordinary words."""
    arrays, _ = case((64, 48, 16), "i32")
    found = native_tiles(trace(two_beside_another, arrays, rows=20), AMX.at(16))
    assert [(tile.rows, tile.columns) for tile in found] == [(16, 48)]


def test_what_is_no_tile_of_words_is_refused() -> None:
    def refused(message: str, function) -> None:
        with pytest.raises(KernelError, match=message):
            trace(kernel(function), case((16, 16, 8), "i32")[0], outputs=1)

    def odd(k, a, b, out):
        k.word_tile(10, 16, DTYPES["i32"])

    def floats(k, a, b, out):
        k.word_tile(16, 16, DTYPES["i32"]).mma(out, (0, 0), b, (0, 0), k=8)

    def shallow(k, a, b, out):
        k.word_tile(16, 16, DTYPES["i32"]).mma(a, (0, 0), b, (0, 0), k=3)

    def other(k, a, b, out):
        k.word_tile(16, 16, DTYPES["f32"]).store(out, (0, 0))

    def passing(k, a, b, out):
        k.word_tile(16, 16, DTYPES["i32"]).mma(a, (0, 0), b, (0, 0), k=8, passing="c")

    refused("passing = 'c': wanted 'a', 'b' or 'ab'", passing)
    refused("10 x 16 of i32: wanted multiples of 4", odd)
    refused("mma of words of a2, i32", floats)
    refused("mma of words with k = 3", shallow)
    refused("stored to a2, i32 .*wanted a matrix of f32", other)
