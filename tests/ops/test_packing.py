"""Packed weights: how many bytes they take, and that rows past the end are zero."""

from __future__ import annotations

import numpy as np
import pytest

from camshaft.formats.blocks import BLOCK_FORMATS
from camshaft.ops.quantized_matmul import random_blocks
from camshaft.ops.quantized_matmul.packing import PACKED_FORMATS, interleaved, pack
from camshaft.ops.spec import TensorSpec

# Values in place of codes, which are looked up in a table.
LOOKED_UP = {"IQ4_NL": 1.9, "IQ4_XS": 1.96, "MXFP4": 1.42}


@pytest.mark.parametrize("name", PACKED_FORMATS)
def test_packed_bytes_are_about_the_files(name: str) -> None:
    spec = TensorSpec((512, 1024), BLOCK_FORMATS[name])
    assert interleaved(spec).nbytes <= LOOKED_UP.get(name, 1.04) * spec.nbytes


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
