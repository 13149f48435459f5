"""Packed weights: how many bytes they take, and that rows past the end are zero."""

from __future__ import annotations

import numpy as np
import pytest

from camshaft import ops
from camshaft.backends.cpu.device import cpu_device
from camshaft.dispatch.validate import check_sample
from camshaft.dtypes import i32
from camshaft.formats.blocks import BLOCK_FORMATS
from camshaft.ops.quantized_matmul import random_blocks
from camshaft.ops.quantized_matmul.packing import PACKED_FORMATS, interleaved, pack
from camshaft.ops.spec import TensorSpec


@pytest.mark.parametrize("name", PACKED_FORMATS)
def test_packed_bytes_are_the_files(name: str) -> None:
    spec = TensorSpec((512, 1024), BLOCK_FORMATS[name])
    assert interleaved(spec).nbytes <= 1.04 * spec.nbytes


@pytest.mark.parametrize("name", PACKED_FORMATS)
def test_rows_past_the_end_are_zero_whatever_lay_there(name: str) -> None:
    spec = TensorSpec((17, 256), BLOCK_FORMATS[name])
    whole, raw = interleaved(spec), random_blocks(name, 17, 256, seed=1)
    out = np.full(whole.nbytes, 255, np.uint8)
    pack(raw, whole, out)
    for part in whole.parts:
        values = out[part.offset_nbytes : part.offset_nbytes + part.nbytes].view(part.dtype.numpy).reshape(part.shape)
        assert not values[1, ..., 1:].view(np.uint8).any(), part.name
    again = np.zeros(whole.nbytes, np.uint8)
    pack(raw, whole, again)
    np.testing.assert_array_equal(out, again)


def test_every_exponent_of_mxfp4() -> None:
    block, op = BLOCK_FORMATS["MXFP4"], ops.get("embedding")
    spec = TensorSpec((256, 32), block)
    raw = random_blocks("MXFP4", 256, 32, seed=2)
    raw.reshape(256, 17)[:, 0] = np.arange(256)
    packed = np.zeros(interleaved(spec).nbytes, np.uint8)
    pack(raw, interleaved(spec), packed)
    values = block.dequantize(raw.reshape(256, 17))
    ids = np.arange(256, dtype=np.int32)
    sample = ops.op.Sample("e", (ids, packed), {"values": values}, (TensorSpec((256,), i32), interleaved(spec)))
    variant = next(v for v in op.variants if v.name == "interleaved_row")
    found = check_sample(op, variant, cpu_device(), sample)
    assert found.max_error <= found.tolerance
