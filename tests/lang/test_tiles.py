"""Tiles and asynchronous copies: against NumPy, compiled and interpreted at several widths, as lanes and as threads."""

import numpy as np
import pytest

from camshaft.dtypes import DTYPES, f32
from camshaft.errors import KernelError, VerifyError
from camshaft.lang import kernel, tile_ir, traversal
from camshaft.lang.expand.tiles import expand_tiles
from camshaft.lang.interpreter.interpret import interpret
from camshaft.lang.interpreter.simt import interpret_simt
from camshaft.lang.simt.form import to_simt
from camshaft.lang.verifier.verify import verify
from tests.support.compilers.emit_harness import agree, native, trace
from tests.support.quick import each_value, quick_of

WIDTHS = (1, 4, 16, 32)
RNG = np.random.default_rng(8)


def drawn(dtype, *shape):
    """Small whole numbers: their products and sums are exact in every dtype."""
    return RNG.integers(-4, 5, shape).astype(DTYPES[dtype].numpy)


@kernel
def matmul(k, a, b, out, *, m, n, depth, transposed):
    row, column = k.program(0) * m, k.program(1) * n
    total = k.tile(m, n)
    for p in k.range(0, depth, 16):
        total.mma(a, (row, p), b, (column, p) if transposed else (p, column), transpose_b=transposed)
    total.scale(0.5)
    total.store(out, (row, column))


@pytest.mark.parametrize(
    ("shape", "transposed", "dtypes"),
    each_value([(16, 16), (32, 16), (16, 48)], [False, True], [("f32", "f32"), ("f16", "f32"), ("bf16", "bf16")]),
)
def test_a_product_of_tiles(shape, transposed, dtypes):
    m, n = shape
    a, b = drawn(dtypes[0], m, 32), drawn(dtypes[0], *((2 * n, 32) if transposed else (32, 2 * n)))
    out = np.zeros((m, 2 * n), DTYPES[dtypes[1]].numpy)
    constants = {"m": m, "n": n, "depth": 32, "transposed": transposed}
    made = trace(matmul, [a, b, out], grid=(1, 2), **constants)
    wide = [x.astype(np.float32) for x in (a, b)]
    want = (wide[0] @ (wide[1].T if transposed else wide[1]) / 2).astype(out.dtype)
    for lanes in WIDTHS:
        got = np.zeros_like(out)
        native(made, lanes)([a, b, got])
        np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32), err_msg=f"at {lanes} lanes")


@kernel
def staged(k, a, b, out, *, rows, columns, depth):
    """Ragged ends on all sides: blocks come through scratch, filled up with zeros."""
    left, right = k.scratch(f32, 16, 16), k.scratch(f32, 16, 16)
    row, column = k.program(0) * 16, k.program(1) * 16
    total = k.tile(16, 16)
    for p in k.range(0, depth, 16):
        k.async_copy(left, a, row, p, rows=rows - row, columns=depth - p)
        k.async_copy(right, b, p, column, rows=depth - p, columns=columns - column)
        k.async_wait()
        total.mma(left, (0, 0), right, (0, 0))
        k.barrier()
    total.store(out, (row, column), rows=rows - row, columns=columns - column)


ROWS, COLUMNS, DEPTH = 17, 30, 21


def ragged():
    return [drawn("f32", ROWS, DEPTH), drawn("f32", DEPTH, COLUMNS), np.zeros((ROWS, COLUMNS), np.float32)]


CONSTANTS = {"rows": ROWS, "columns": COLUMNS, "depth": DEPTH}


def test_ragged_ends_are_filled_with_zeros():
    a, b, out = ragged()
    (got,) = agree(staged, [a, b, out], widths=(16,), grid=(2, 2), **CONSTANTS)
    np.testing.assert_array_equal(got, a @ b)


@pytest.mark.parametrize("lanes", quick_of([2, 8, 32, 128, 512], [128]))
def test_threads_share_a_tile(lanes):
    a, b, out = ragged()
    made = trace(staged, [a, b, out], grid=(2, 2), **CONSTANTS)
    interpret_simt(to_simt(made, lanes), [a, b, out], programs=[1, 2], seed=lanes)
    want = a @ b
    want[:16, :16] = want[16:, 16:] = 0
    np.testing.assert_array_equal(out, want)


def test_the_expansion_has_no_tiles_left_and_is_well_formed():
    made = trace(staged, ragged(), grid=(2, 2), **CONSTANTS)
    before = list(traversal.walk(made.body))
    for lanes in (1, 16, 512):
        expanded = expand_tiles(made, lanes)
        verify(expanded)
        assert not any(isinstance(item, tile_ir.TILE_STATEMENTS) for item in traversal.walk(expanded.body))
    assert list(traversal.walk(made.body)) == before
    plain = trace(kernel(lambda k, x: None), [np.zeros(1, np.float32)])
    assert expand_tiles(plain, 8) is plain


def every_tile(made, lanes):
    return frozenset(item.tile for item in traversal.walk(made.body) if isinstance(item, tile_ir.TileNew))


def test_simt_form_keeps_tiles_for_an_emitter_that_has_them():
    made = trace(staged, ragged(), grid=(2, 2), **CONSTANTS)
    kept = to_simt(made, 32, keep_tiles=every_tile, keep_copies=True)
    found = [type(item) for item in traversal.walk(kept.body) if isinstance(item, tile_ir.TILE_STATEMENTS)]
    assert found == [
        tile_ir.TileNew,
        tile_ir.AsyncCopy,
        tile_ir.AsyncCopy,
        tile_ir.AsyncWait,
        tile_ir.TileMma,
        tile_ir.TileStore,
    ]
    assert {a.name for a in kept.shared} == {"scratch0", "scratch1"}
    with pytest.raises(VerifyError, match="keeps its tiles"):
        interpret_simt(kept, ragged())


@kernel
def row_copy(k, x, out, *, n):
    part = k.scratch(f32, 40)
    k.async_copy(part, x, k.program(0), 3, columns=n)
    k.async_wait()
    for c in k.lanes(40):
        out[k.program(0), c] = part[c]


def test_a_row_is_copied_up_to_its_limit():
    x = drawn("f32", 3, 40)
    (got,) = agree(row_copy, [x, np.zeros((3, 40), np.float32)], widths=WIDTHS, grid=(3,), n=37)
    np.testing.assert_array_equal(got, np.pad(x[:, 3:], ((0, 0), (0, 3))))


def traced_and_run(function, arrays, interpreted):
    made = trace(kernel(function), arrays, outputs=1)
    assert interpreted, "the verifier let it pass"
    interpret(made, arrays, lanes=8)


def refused(message, function, *, interpreted=False):
    arrays = ragged()
    with pytest.raises((KernelError, VerifyError), match=rf"kernel {function.__name__}, line \d+: .*{message}"):
        traced_and_run(function, arrays, interpreted)


def test_what_breaks_the_rules_of_tiles_is_refused_by_line():
    def odd(k, a, b, out):
        k.tile(16, 20)

    def shallow(k, a, b, out):
        k.tile(16, 16).mma(a, (0, 0), b, (0, 0), k=8)

    def beyond(k, a, b, out):
        k.tile(16, 16).mma(a, (0, 0), b, (8, 0))

    def masked(k, a, b, out):
        total = k.tile(16, 16)
        with k.when(k.lane() < 2):
            total.store(out, (0, 0))

    def varies(k, a, b, out):
        k.tile(16, 16).store(out, (0, k.lane()))

    def to_input(k, a, b, out):
        k.tile(16, 16).store(a, (0, 0))

    def to_array(k, a, b, out):
        k.async_copy(out, a, 0, 0)

    def escaped(k, a, b, out):
        for _ in k.range(2):
            total = k.tile(16, 16)
        total.store(out, (0, 0))

    refused("a tile of 16 x 20: wanted multiples of 16", odd)
    refused("mma with k = 8", shallow)
    refused("16 x 16 of a1, which is", beyond)
    refused("TileStore where not all lanes arrive", masked)
    refused("TileStore with an operand that varies by lane", varies)
    refused("a tile stored to a0", to_input)
    refused("wanted scratch of its dtype", to_array)
    refused("a tile is used outside the block that made it", escaped)


def test_a_tile_does_not_wait_for_scratch():
    def early(k, a, b, out):
        left = k.scratch(f32, 16, 16)
        for c in k.lanes(256):
            k.scatter(left, 1.0, c // 16, c % 16)
        total = k.tile(16, 16)
        total.mma(left, (0, 0), b, (0, 0))
        total.store(out, (0, 0))

    refused("a race without a barrier between", early, interpreted=True)


def test_a_row_beyond_its_array_is_found():
    def outside(k, a, b, out):
        total = k.tile(16, 16)
        total.mma(a, (k.program(0) + 8, 0), b, (0, 0))
        total.store(out, (0, 0))

    refused("index 17 of a0", outside, interpreted=True)
