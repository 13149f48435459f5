"""Copies to workgroup memory for matrix units: several groups under way, and rows in an order without bank conflicts."""

from __future__ import annotations

import numpy as np
import pytest

from camshaft.dtypes import f32
from camshaft.emit.nvptx.module import simt_form
from camshaft.emit.nvptx.swizzle import swizzled_arrays
from camshaft.lang import kernel
from camshaft.observe.kernel_texts import listing
from tests.emit.nvptx.test_tiles_ptx import drawn, played, staged_case, text_of
from tests.support.compilers.emit_harness import trace
from tests.support.devices.simulated_gpu import simulated


def conflicts(form, arrays) -> int:
    """Runs the first program; the bank conflicts of its loads of matrices."""
    run = simulated(form)
    run(np.array([a.ctypes.data for a in arrays], np.int64).ctypes.data, 0, 1)
    return run.bank_conflicts


@kernel
def ahead(k, a, b, out, *, buffers, left_ahead):
    """Blocks of 32 k through as many buffers, of which the last `left_ahead` groups stay under way."""
    blocks = a.ir.shape[1] // 32
    left = [k.scratch(a.ir.dtype, 32, 32) for _ in range(buffers)]
    right = [k.scratch(b.ir.dtype, 32, 32) for _ in range(buffers)]
    total = k.tile(32, 32)
    for i in range(blocks + buffers - 1):
        if i < blocks:
            k.async_copy(left[i % buffers], a, 0, i * 32)
            k.async_copy(right[i % buffers], b, 0, i * 32)
        k.async_wait(ahead=left_ahead)
        done = i - (buffers - 1)
        if done >= 0:
            total.mma(left[done % buffers], (0, 0), right[done % buffers], (0, 0), k=32, transpose_b=True)
        k.barrier()
    total.store(out, (0, 0))


@pytest.mark.parametrize("left_ahead", [1, 2, 3])
def test_groups_of_copies_that_stay_under_way(left_ahead: int) -> None:
    """With three buffers a block is multiplied two waits after its copy; one more group under way is one too many."""
    arrays = [drawn("f16", 32, 160), drawn("f16", 32, 160), np.zeros((32, 32), np.float32)]
    made = trace(ahead, arrays, buffers=3, left_ahead=left_ahead)
    played(made, arrays, 64)
    want = arrays[0].astype(np.float32) @ arrays[1].T.astype(np.float32)
    assert np.array_equal(arrays[2], want) is (left_ahead <= 2)
    text = text_of(made, 64)
    assert f"cp.async.wait_group \t{left_ahead};" in text
    assert "cp.async.commit_group" in text
    assert "ahead" in listing(made)


@kernel
def looked_at(k, a, b, out):
    """The left block is read by element too."""
    left, right = k.scratch(a.ir.dtype, 64, 32), k.scratch(b.ir.dtype, 64, 32)
    k.async_copy(left, a, 0, 0)
    k.async_copy(right, b, 0, 0)
    k.async_wait()
    total = k.tile(64, 64)
    total.mma(left, (0, 0), right, (0, 0), k=32, transpose_b=True)
    total.store(out, (0, 0))
    k.barrier()
    for i in k.lanes(64):
        out[0, i] = k.gather(left, i, 0).to(f32)


@pytest.mark.parametrize(("step", "transposed"), [(16, True), (32, True), (32, False), (64, True), (64, False)])
def test_matrices_are_read_without_bank_conflicts(step: int, transposed: bool) -> None:
    made, arrays = staged_case(("bf16", "bf16"), 64, 64, 64, transposed, m=64, n=64, step=step)
    assert conflicts(simt_form(made, 128), arrays) == 0


def test_arrays_that_are_read_by_element_keep_their_order() -> None:
    arrays = [drawn("f16", 64, 32), drawn("f16", 64, 32), np.zeros((64, 64), np.float32)]
    made = trace(looked_at, arrays)
    form = simt_form(made, 128)
    assert {a.name for a in swizzled_arrays(form.body, form.shared)} == {form.shared[1].name}
    assert conflicts(form, arrays) > 0
    want = arrays[0].astype(np.float32) @ arrays[1].T.astype(np.float32)
    want[0] = arrays[0][:, 0]
    np.testing.assert_array_equal(arrays[2], want)
