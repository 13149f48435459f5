"""Packed weights: how many bytes they take, that the kernel packs as NumPy does, and that rows past the end are zero."""

from __future__ import annotations

import numpy as np
import pytest

from camshaft import ops
from camshaft.backends.cpu.device import cpu_device
from camshaft.dtypes import i32
from camshaft.formats.blocks import BLOCK_FORMATS
from camshaft.formats.quants.iq_grids import GRIDS
from camshaft.ops.quantized.packed.formats import PACKED_FORMATS
from camshaft.ops.quantized.packed.packing import interleaved, pack, pack_rows, pack_tiles
from camshaft.ops.quantized.samples import random_blocks
from camshaft.ops.spec import TensorSpec
from camshaft.validation.validate import check_sample
from tests.support.compilers.emit_harness import agree
from tests.support.models.references import packing as packing_reference
from tests.support.quick import quick_of

# Grid rows become codes of 2 to 4 bits, digits of base 3 codes of 2 bits: packed bytes per byte of the file.
GROWTH = {"IQ1_S": 1.68, "IQ1_M": 2.04, "IQ2_XXS": 1.61, "IQ2_XS": 1.55, "IQ2_S": 1.4, "IQ3_XXS": 1.41, "IQ3_S": 1.26}
GROWTH |= {"TQ1_0": 1.38, "TQ2_0": 1.13}
# One of each way of packing: halves, bytes, k-quants of 4 and 6 bits, and codes of grids.
QUICK = ("Q5_0", "Q8_0", "Q4_K", "Q6_K", "IQ3_S")


@pytest.mark.parametrize("name", PACKED_FORMATS)
def test_packed_bytes_are_the_files(name: str) -> None:
    spec = TensorSpec((512, 1024), BLOCK_FORMATS[name])
    assert interleaved(spec).nbytes <= GROWTH.get(name, 1.04) * spec.nbytes


@pytest.mark.parametrize("name", quick_of(PACKED_FORMATS, QUICK))
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


@pytest.mark.parametrize("name", quick_of(PACKED_FORMATS, QUICK))
def test_the_kernel_packs_as_numpy_does(name: str) -> None:
    block = BLOCK_FORMATS[name]
    for n, k in ((1, 256), (16, 512), (37, 768)):
        spec = interleaved(TensorSpec((n, k), block))
        raw = np.random.default_rng(n).integers(0, 256, block.row_nbytes(k) * n).astype(np.uint8)
        out = np.full(spec.nbytes, 255, np.uint8)
        pack(raw, spec, out)
        np.testing.assert_array_equal(out, packing_reference.pack(raw, spec))
        askew = np.zeros(raw.size + 1, np.uint8)
        askew[1:] = raw
        pack(askew[1:], spec, out)
        np.testing.assert_array_equal(out, packing_reference.pack(raw, spec))


@pytest.mark.parametrize("name", quick_of(PACKED_FORMATS, ["Q5_0", "IQ3_S"]))
def test_nothing_past_the_weights_is_read(name: str) -> None:
    # the interpreter and guard bytes watch the bounds; 3 records a row leave the last one inside of a word
    block = BLOCK_FORMATS[name]
    n, k = 3, 3 * block.block_size
    spec = interleaved(TensorSpec((n, k), block))
    raw = np.random.default_rng(1).integers(0, 256, block.row_nbytes(k) * n).astype(np.uint8)
    words = np.zeros(-(-raw.size // 4), np.uint32)
    words.view(np.uint8)[: raw.size] = raw
    parts = {p.name: np.zeros(p.nbytes // p.dtype.nbytes, f"u{p.dtype.nbytes}") for p in spec.parts}
    extra = parts.get("steps", parts.get("minima", np.zeros(1, np.uint16)))
    scalars = {"n": n, "records": 3, "last": words.size - 1}
    grid = GRIDS[name].words if name in GRIDS else np.zeros(1, np.uint32)
    arrays, bits = [words, grid, parts["codes"], parts["scales"], extra], spec.part("codes").shape[2]
    found = agree(pack_rows, arrays, outputs=3, scalars=scalars, block=name, bits=bits, widths=(16,))
    wanted = packing_reference.pack(raw, spec)
    for part, values in zip(spec.parts, found, strict=False):
        np.testing.assert_array_equal(
            values.view(np.uint8), wanted[part.offset_nbytes : part.offset_nbytes + part.nbytes], part.name
        )


def test_tiles_are_packed_apart() -> None:
    spec = interleaved(TensorSpec((70, 64), BLOCK_FORMATS["Q5_0"]))
    raw = random_blocks("Q5_0", 70, 64, seed=3)
    whole, pieces = np.zeros(spec.nbytes, np.uint8), np.zeros(spec.nbytes, np.uint8)
    pack(raw, spec, whole)
    for first, last in ((3, 5), (0, 1), (1, 3)):
        pack_tiles(raw, spec, pieces, first, last)
    np.testing.assert_array_equal(whole, pieces)


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
