"""Tiles on matrix units: the instructions that PTX has for them, their results on a GPU that this CPU plays, and ptxas."""

from __future__ import annotations

import re
from itertools import product

import numpy as np
import pytest

from camshaft.dtypes import DTYPES, i64
from camshaft.emit.nvptx.module import emit, simt_form
from camshaft.emit.nvptx.simt import WARP
from camshaft.emit.nvptx.tiles import UNIT
from camshaft.emit.target import GPU_TARGETS
from camshaft.emit.tiles import Spread
from camshaft.lang import ir, kernel, tile_ir
from camshaft.lang.interpreter.interpret import interpret
from tests.support.compilers.emit_harness import trace
from tests.support.devices.ptxas import assemble, find_tool, joined, ptx_of
from tests.support.devices.simulated_gpu import simulated
from tests.support.needs import require
from tests.support.quick import each_value, full, quick_of

RNG = np.random.default_rng(11)
LANES = (32, 128)  # a warp, and several


def drawn(dtype, *shape):
    """Small whole numbers: their products and sums are exact in any order."""
    return RNG.integers(-4, 5, shape).astype(DTYPES[dtype].numpy)


def played(made, arrays, lanes, programs=1, seed=1):
    """Runs a kernel as the PTX emitter writes it."""
    run = simulated(simt_form(made, lanes), seed)
    args = np.array([a.ctypes.data for a in arrays], np.int64)
    run(args.ctypes.data, 0, programs)


def agrees(made, arrays, want, programs=1, lanes=LANES):
    """On every number of threads the last array becomes `want`."""
    for n in lanes:
        got = [a.copy() for a in arrays]
        played(made, got, n, programs, seed=n)
        np.testing.assert_array_equal(got[-1].astype(np.float64), want, err_msg=f"{n} threads")


def meant(made, arrays):
    """What the interpreter makes of the last array. Its tiles are held to NumPy in tests/lang/test_tiles.py."""
    copies = [a.copy() for a in arrays]
    interpret(made, copies, lanes=16)
    return copies[-1].astype(np.float64)


def text_of(made, lanes=128, processor="sm_80"):
    target = GPU_TARGETS[processor]
    return ptx_of(emit(simt_form(made, lanes), target, "kernel"), target)


@kernel
def direct(k, a, b, out, *, m, n, depth, transposed, first):
    """Operands from the device's memory, `first` rows and columns from their corner."""
    total = k.tile(m, n)
    total.mma(a, (first, first), b, (first, first), k=depth, transpose_b=transposed)
    total.scale(-0.5)
    total.mma(a, (first, first), b, (first, first), k=16, transpose_b=transposed)
    total.store(out, (first, first), rows=m - first, columns=n - 2 * first)


def direct_case(dtype, m, n, depth, transposed, first, to="f32"):
    b_shape = (n, depth) if transposed else (depth, n)
    arrays = [drawn(dtype, m + first, depth + first), drawn(dtype, *(s + first for s in b_shape)), drawn(to, m, n)]
    constants = {"m": m, "n": n, "depth": depth, "transposed": transposed, "first": first}
    return trace(direct, arrays, **constants), arrays


@pytest.mark.parametrize(
    ("dtypes", "sizes", "transposed"),
    each_value(
        [("f16", "f32"), ("bf16", "bf16"), ("f16", "f16")],
        [(16, 16, 16, 0), (48, 32, 80, 0), (32, 64, 32, 1), (16, 48, 16, 2)],
        [False, True],
    ),
)
def test_products_from_the_device_s_memory(dtypes, sizes, transposed) -> None:
    (dtype, to), (m, n, depth, first) = dtypes, sizes
    made, arrays = direct_case(dtype, m, n, depth, transposed, first, to)
    assert UNIT.native_tiles(made, 32)
    a, b = (x[first:, first:].astype(np.float64) for x in arrays[:2])
    b = b.T if transposed else b
    want = arrays[2].astype(np.float64)
    want[first:, first : n - first] = (a @ b * -0.5 + a[:, :16] @ b[:16])[: m - first, : n - 2 * first]
    agrees(made, arrays, want)


@pytest.mark.parametrize("dtype", [full("f16"), "bf16"])
def test_the_interpreter_says_the_same(dtype) -> None:
    made, arrays = direct_case(dtype, 32, 16, 16, True, 1)
    agrees(made, arrays, meant(made, arrays))
    made, arrays = staged_case((dtype, dtype), 17, 33, 40, False)
    agrees(made, arrays, meant(made, arrays), 2)


@kernel
def staged(k, a, b, out, *, m, n, step, rows, columns, depth, transposed):
    """Ragged blocks through workgroup memory, the next on its way while one is multiplied."""
    row, column = k.program(0) * m, k.program(1) * n
    dtype_a, dtype_b = a.ir.dtype, b.ir.dtype
    left = [k.scratch(dtype_a, m, step) for _ in range(2)]
    right = [k.scratch(dtype_b, *((n, step) if transposed else (step, n))) for _ in range(2)]
    total = k.tile(m, n)

    def begin(side, p):
        k.async_copy(left[side], a, row, p, rows=rows - row, columns=depth - p)
        if transposed:
            k.async_copy(right[side], b, column, p, rows=columns - column, columns=depth - p)
        else:
            k.async_copy(right[side], b, p, column, rows=depth - p, columns=columns - column)

    begin(0, k.const(0, i64))
    for p in k.range(0, depth, 2 * step):
        for side in (0, 1):
            k.async_wait()
            begin(1 - side, p + (side + 1) * step)
            total.mma(left[side], (0, 0), right[side], (0, 0), k=step, transpose_b=transposed)
    k.async_wait()
    total.store(out, (row, column), rows=rows - row, columns=columns - column)


def staged_case(dtypes, rows, columns, depth, transposed, m=32, n=32, step=32):
    arrays = [
        drawn(dtypes[0], rows, depth),
        drawn(dtypes[1], *((columns, depth) if transposed else (depth, columns))),
        np.zeros((rows, columns), np.float32),
    ]
    constants = {
        "m": m,
        "n": n,
        "step": step,
        "rows": rows,
        "columns": columns,
        "depth": depth,
        "transposed": transposed,
    }
    return trace(staged, arrays, grid=(-(-rows // m), -(-columns // n)), **constants), arrays


@pytest.mark.parametrize(
    ("dtypes", "sizes", "transposed"),
    quick_of(
        product(
            [("f16", "f16"), ("bf16", "bf16"), ("f32", "f32"), ("f16", "f32")],
            [(32, 32, 64), (33, 50, 70), (17, 72, 40), (64, 31, 33)],
            [False, True],
        ),
        [(("bf16", "bf16"), (33, 50, 70), True), (("f16", "f32"), (17, 72, 40), False)],
    ),
)
def test_blocks_that_come_in_the_background(dtypes, sizes, transposed) -> None:
    rows, columns, depth = sizes
    made, arrays = staged_case(dtypes, rows, columns, depth, transposed)
    programs = -(-rows // 32) * -(-columns // 32)
    want = arrays[0].astype(np.float64) @ (arrays[1].T if transposed else arrays[1]).astype(np.float64)
    agrees(made, arrays, want, programs, lanes=(16, 32, 128))


def test_sums_are_kept_in_f32() -> None:
    made, arrays = direct_case("f16", 32, 32, 64, True, 0)
    arrays[:2] = [RNG.normal(size=a.shape).astype(a.dtype) for a in arrays[:2]]
    got = [a.copy() for a in arrays]
    played(made, got, 128)
    np.testing.assert_allclose(got[-1], meant(made, arrays), rtol=0, atol=2e-5)


def test_a_wait_that_is_missing_shows() -> None:
    @kernel
    def hasty(k, a, b, out):
        left = k.scratch(a.ir.dtype, 16, 16)
        k.async_copy(left, a, 0, 0)
        k.barrier()
        total = k.tile(16, 16)
        total.mma(left, (0, 0), b, (0, 0))
        total.store(out, (0, 0))
        k.async_wait()

    arrays = [drawn("f16", 16, 16), drawn("f16", 16, 16), np.zeros((16, 16), np.float32)]
    played(trace(hasty, arrays), arrays, 32)
    assert not np.array_equal(arrays[2], arrays[0].astype(np.float32) @ arrays[1].astype(np.float32))


def test_which_tiles_are_native() -> None:
    made, _ = staged_case(("f16", "f16"), 64, 64, 64, True)
    assert len(UNIT.native_tiles(made, 128)) == 1
    assert not UNIT.native_tiles(made, 16)  # no whole warp
    for dtypes in (("f32", "f32"), ("f16", "bf16"), ("bf16", "f32")):
        assert not UNIT.native_tiles(staged_case(dtypes, 64, 64, 64, True)[0], 128)
    large, _ = staged_case(("f16", "f16"), 128, 128, 64, True, m=128, n=128)
    assert not UNIT.native_tiles(large, 64)  # 256 accumulators a thread
    assert UNIT.native_tiles(large, 128)


def test_warps_share_a_tile_so_that_they_read_little() -> None:
    def of(m, n, lanes):
        return UNIT.spread(tile_ir.Tile(m, n, ir.Block(), 0), lanes)

    assert of(64, 64, 128) == Spread(2, 2, 2, 4)
    assert of(16, 16, 128) == Spread(1, 2, 1, 1)
    assert of(128, 64, 256) == Spread(4, 2, 2, 4)
    assert of(48, 16, WARP) == Spread(1, 1, 3, 2)


INSTRUCTIONS = {
    ("f16", True): ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "ldmatrix.sync.aligned.m8n8.x4.shared"),
    ("bf16", False): (
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
        "ldmatrix.sync.aligned.m8n8.x4.trans.shared",
    ),
}


@pytest.mark.parametrize(("dtype", "transposed"), list(INSTRUCTIONS))
def test_the_instructions_are_there(dtype, transposed) -> None:
    text = text_of(staged_case((dtype, dtype), 64, 64, 64, transposed)[0])
    for instruction in (*INSTRUCTIONS[dtype, transposed], "ldmatrix.sync.aligned.m8n8.x4.shared"):
        assert instruction in text, instruction
    assert re.search(r"cp\.async\.cg\.shared\.global \[%rd\w+\], \[%rd\w+\], 16, ", text)
    assert "cp.async.wait_all" in text
    assert not re.search(r"\b(ld|st)(\.v\d)?\.[bfsu]\d", text), "a generic access"
    odd = text_of(staged_case((dtype, dtype), 33, 33, 33, transposed)[0])
    assert "cp.async.cg" not in odd  # rows of 33 elements begin anywhere
    assert "mma.sync" in odd
    assert "cp.async.ca.shared.global" in text_of(staged_case(("f32", "f32"), 33, 33, 33, transposed)[0])


@pytest.mark.parametrize(("columns", "first", "paired"), [(32, 0, True), (34, 0, True), (33, 0, False), (32, 1, False)])
def test_pairs_of_sums_are_stored_together_only_where_they_are_aligned(columns, first, paired) -> None:
    """The GPU that this CPU plays would store them anywhere: rows of 33 and a first element that is odd show in the text."""
    if first:
        made = direct_case("f16", 32, columns, 16, True, first)[0]
    else:
        made = staged_case(("f16", "f16"), 32, columns, 32, True)[0]
    assert ("st.global.v2" in text_of(made)) is paired


@pytest.mark.parametrize("processor", quick_of(sorted(GPU_TARGETS), ["sm_90a"]))
def test_ptxas_takes_tiles_without_spills(processor) -> None:
    require(find_tool("ptxas"), "ptxas is not here: install the wheel nvidia-cuda-nvcc")
    target, texts = GPU_TARGETS[processor], []
    for i, (dtype, transposed) in enumerate((d, t) for d in ("f16", "bf16") for t in (False, True)):
        cases = [(staged_case((dtype, dtype), 256, 256, 256, transposed, m=128, n=128)[0], 256)]
        cases += [(staged_case((dtype, dtype), 64, 96, 65, transposed, m=64, n=64)[0], 128)]
        cases += [(direct_case(dtype, 48, 32, 80, transposed, 1)[0], 32)]
        texts += [
            ptx_of(emit(simt_form(made, lanes), target, f"k{i}_{n}"), target) for n, (made, lanes) in enumerate(cases)
        ]
    report = assemble(joined(texts), processor)
    assert len(report) == len(texts)
    assert not {name: found for name, found in report.items() if found.spill_nbytes}
