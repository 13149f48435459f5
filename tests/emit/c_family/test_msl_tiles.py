"""Tiles on Metal's SIMD-group matrices, on the stand-in, whose threads hold a matrix's elements in an order that no GPU has."""

from __future__ import annotations

import numpy as np
import pytest

from camshaft.backends.metal import device as metal
from camshaft.emit.msl.context import MslTarget
from camshaft.emit.msl.module import emit, refusal, simt_form
from camshaft.emit.msl.tiles import UNIT, native_tiles
from camshaft.emit.tiles import Spread
from camshaft.lang import ir, kernel, tile_ir
from tests.emit.nvptx.test_tiles_ptx import drawn, staged_case
from tests.support.compilers.emit_harness import trace
from tests.support.devices.fake_metal import FakeDevice, FakeMetal, forget, install
from tests.support.devices.metal_harness import compile_msl, have_compiler
from tests.support.needs import require
from tests.support.quick import quick_of

M1 = MslTarget(has_matrices=True)


@kernel
def direct(k, a, b, out, *, m, n, depth, transposed):
    """Operands from the device's memory, from an odd place on."""
    total = k.tile(m, n)
    total.mma(a, (1, 3), b, (1, 3), k=depth, transpose_b=transposed)
    total.store(out, (1, 0), rows=m - 1)


def direct_case(m, n, depth, transposed, to):
    b_shape = (n, depth) if transposed else (depth, n)
    arrays = [drawn("f32", m + 1, depth + 3), drawn("f32", b_shape[0] + 1, b_shape[1] + 3), drawn(to, m, n)]
    return trace(direct, arrays, m=m, n=n, depth=depth, transposed=transposed), arrays


def product(a, b, transposed):
    return a.astype(np.float64) @ (b.T if transposed else b).astype(np.float64)


def cases():
    """(kernel, arrays, programs, what the last array becomes)."""
    for transposed in (False, True):
        for m, n, depth, to in ((16, 16, 16, "f32"), (32, 48, 32, "f16"), (48, 16, 16, "bf16")):
            made, arrays = direct_case(m, n, depth, transposed, to)
            want = arrays[2].astype(np.float64)
            want[1:] = product(arrays[0][1:, 3:], arrays[1][1:, 3:], transposed)[: m - 1]
            yield made, arrays, 1, want
        for rows, columns, depth in ((32, 32, 64), (33, 50, 70), (17, 72, 40)):
            made, arrays = staged_case(("f32", "f32"), rows, columns, depth, transposed)
            programs = -(-rows // 32) * -(-columns // 32)
            yield made, arrays, programs, product(arrays[0], arrays[1], transposed)


@pytest.mark.parametrize("lanes", quick_of([32, 64, 256], [64]))
def test_products_are_right(lanes) -> None:
    require(have_compiler(), "needs g++")
    found = list(cases())
    modules = [emit(simt_form(made, lanes, M1), M1) for made, *_ in found]
    assert all("multiply_tile<" in module.text for module in modules)
    kernels = compile_msl([module.text for module in modules])
    run = np.zeros(1, np.int32)
    for (made, arrays, programs, want), module, kernels_of in zip(found, modules, kernels, strict=True):
        got = [a.copy() for a in arrays]
        addresses = [a.ctypes.data for a in got] + [run.ctypes.data]
        kernels_of[module.entry](addresses, programs, lanes, seed=lanes)
        np.testing.assert_array_equal(
            got[-1].astype(np.float64), want, err_msg=f"{made.name} {[a.shape for a in arrays]}"
        )


def test_which_tiles_are_native() -> None:
    floats, _ = staged_case(("f32", "f32"), 64, 64, 64, True)
    assert len(native_tiles(floats, 64)) == 1
    assert not native_tiles(floats, 16)  # no whole SIMD-group
    for dtypes in (("f16", "f16"), ("bf16", "f32")):  # matrices of one type are multiplied, into that type
        assert not native_tiles(staged_case(dtypes, 64, 64, 64, True)[0], 64)
    large, _ = staged_case(("f32", "f32"), 128, 128, 64, True, m=128, n=128)
    assert not native_tiles(large, 64)
    assert native_tiles(large, 256)

    def scaled(k, a, b, out):
        total = k.tile(16, 16)
        total.mma(a, (0, 0), b, (0, 0))
        total.scale(2.0)
        total.store(out, (0, 0))

    assert not native_tiles(trace(kernel(scaled), [drawn("f32", 16, 16) for _ in range(3)]), 32)
    assert UNIT.spread(tile_ir.Tile(64, 64, ir.Block(), 0), 128) == Spread(2, 2, 4, 4)


def test_a_device_without_matrices_has_words() -> None:
    made, _ = staged_case(("f32", "f32"), 64, 64, 64, True)
    assert "simdgroup" not in emit(simt_form(made, 64, MslTarget()), MslTarget()).text
    with pytest.MonkeyPatch.context() as patch:
        for family, there in ((1007, True), (1006, False)):
            install(patch, FakeMetal(FakeDevice(family=family)))
            assert metal.make(0).target.has_matrices is there
            forget()


def test_the_memory_that_tiles_leave_through_is_counted() -> None:
    made, _ = staged_case(("f32", "f32"), 64, 64, 64, True)
    simt = simt_form(made, 64, M1)
    scratch = 4 * 32 * 32 * 4
    assert emit(simt, M1).threadgroup_nbytes == scratch + 64 * 8
    tight = MslTarget(has_matrices=True, max_threadgroup_nbytes=scratch + 16 * 64 + 64 * 8)
    assert refusal(simt, tight) is None
    assert "bytes of threadgroup memory" in (
        refusal(simt, MslTarget(has_matrices=True, max_threadgroup_nbytes=tight.max_threadgroup_nbytes - 1)) or ""
    )
