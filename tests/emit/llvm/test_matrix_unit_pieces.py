"""Tiles of words whose operand lies in narrow pieces, and tiles that are stored and start again."""

from __future__ import annotations

import numpy as np
import pytest

from camshaft.dtypes import DTYPES
from camshaft.emit.llvm.module import emit
from camshaft.errors import VerifyError
from camshaft.lang import kernel
from tests.emit.llvm.test_matrix_unit import AMX, NEON, TIMES, case
from tests.support.compilers.assembly import instructions, longest_loop
from tests.support.compilers.cross import assembly_for
from tests.support.compilers.emit_harness import ENTRY, agree, trace
from tests.support.devices.played_amx import loaded
from tests.support.quick import each_value

# rows, columns, words deep, columns of a piece
SIZES = [(8, 32, 6, 16), (16, 32, 16, 16), (32, 32, 40, 16)]


@kernel
def narrow_product(k, a, b, out, *, m, n, depth, dtype):
    # b [times, pieces x depth, width]: each piece of columns below the one before
    total = k.word_tile(m, n, DTYPES[dtype])
    for t in k.range(TIMES):
        total.mma(a, (0, t * depth), b, (t, 0, 0), k=depth)
    total.store(out, (0, 0))


def in_pieces(b: np.ndarray, depth: int, width: int) -> np.ndarray:
    """b [times x depth, n] as `narrow_product` takes it."""
    split = b.reshape(TIMES, depth, -1, width).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(split).reshape(TIMES, -1, width)


def run_on_amx(function, arrays, **constants):
    """Runs a kernel with tiles played by NumPy, and returns how often each instruction was."""
    library, amx = loaded(emit(trace(function, arrays, **constants), AMX.at(16), "product"))
    block = np.array([array.ctypes.data for array in arrays], np.int64)
    ENTRY(library.address("product"))(block.ctypes.data, 0, 1)
    assert not amx.failed
    return amx.counts


@pytest.mark.parametrize(("size", "dtype"), each_value(SIZES, ["i32", "f32"]), ids=str)
def test_columns_of_an_operand_may_lie_in_pieces(size, dtype) -> None:
    m, n, depth, width = size
    (a, b, out), want = case((m, n, depth), dtype)
    arrays, sizes = [a, in_pieces(b, depth, width), out], {"m": m, "n": n, "depth": depth, "dtype": dtype}
    if m == 8:  # the interpreter takes long for the others
        (got,) = agree(narrow_product, arrays, widths=(1, 4, 16), **sizes)
        np.testing.assert_array_equal(got, want)
        out[:] = 0
    run_on_amx(narrow_product, arrays, **sizes)
    np.testing.assert_array_equal(out, want)


def test_pieces_that_do_not_divide_a_tile_are_refused() -> None:
    (a, b, out), _ = case((8, 48, 6), "i32")
    for width in (8, 32):
        with pytest.raises(VerifyError, match="mma of 48 columns by a1"):
            trace(
                narrow_product, [a, in_pieces(b, 6, 48).reshape(TIMES, -1, width), out], m=8, n=48, depth=6, dtype="i32"
            )


@kernel
def swapped_products(k, a, b, start, out, *, m, n, depth, dtype):
    # out[0]: a product alone; out[1]: start[0] + a product; and so on
    total = k.word_tile(m, n, DTYPES[dtype])
    for t in k.range(TIMES):
        total.mma(a, (0, t * depth), b, (t * depth, 0), k=depth)
        total.swap(out, (t, 0, 0), (start, (t, 0, 0)))
    total.swap(out, (TIMES, 0, 0))
    total.store(out, (TIMES + 1, 0, 0))


@pytest.mark.parametrize(("size", "dtype"), each_value([(8, 8, 6), (32, 32, 16)], ["i32", "f32"]), ids=str)
def test_a_tile_that_is_stored_starts_again(size, dtype) -> None:
    m, n, depth = size
    (a, b, _), _ = case(size, dtype)
    element = DTYPES[dtype].numpy
    start = np.random.default_rng(6).integers(-4, 5, (TIMES, m, n)).astype(element)
    out, want = np.full((TIMES + 2, m, n), 7, element), np.zeros((TIMES + 2, m, n))
    kinds = (np.int8, np.uint8) if dtype == "i32" else (np.dtype("bfloat16"),) * 2
    left, right = a.view(kinds[0]).reshape(m, TIMES, -1).astype(np.float64), b.view(kinds[1])
    right = right.reshape(TIMES, depth, n, -1).transpose(0, 1, 3, 2).reshape(TIMES, -1, n).astype(np.float64)
    want[:TIMES] = np.einsum("itp,tpj->tij", left, right)
    want[1 : TIMES + 1] += start
    sizes = {"m": m, "n": n, "depth": depth, "dtype": dtype}
    if m == 8:
        (got,) = agree(swapped_products, [a, b, start, out], widths=(1, 16), **sizes)
        np.testing.assert_array_equal(got, want)
        word = "usmmla" if dtype == "i32" else "bfmmla"
        assert word in assembly_for(NEON, emit(trace(swapped_products, [a, b, start, out], **sizes), NEON.at(4), "p"))
    counts = run_on_amx(swapped_products, [a, b, start, out], **sizes)
    np.testing.assert_array_equal(out, want)
    pieces = -(-m // 16) * -(-n // 16)
    assert counts["tilestored64.internal"] == pieces * (TIMES + 2)
    assert counts["tilezero.internal"] == pieces * 2


def test_amx_keeps_swapped_sums_in_tiles() -> None:
    (a, b, _), _ = case((32, 32, 16), "f32")
    start, out = np.zeros((TIMES, 32, 32), np.float32), np.zeros((TIMES + 2, 32, 32), np.float32)
    made = trace(swapped_products, [a, b, start, out], m=32, n=32, depth=16, dtype="f32")
    counts = instructions(longest_loop(assembly_for(AMX, emit(made, AMX.at(16), "product"))))
    assert (counts["tdpbf16ps"], counts["tileloadd"], counts["tilestored"]) == (4, 4 + 4, 4)
