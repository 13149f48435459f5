"""Quantizing to GGUF blocks and back on a device has the codec's bits, and so has the package's function of arrays."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

import camshaft
from camshaft import dequantize_gguf, quantize_gguf
from camshaft.errors import FormatError
from tests.support.models.sketches import block_values

BY_GGUF = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0", "MXFP4", "F16", "BF16")


def rows(k: int) -> np.ndarray:
    """Values of many sizes, ties and zeros among them, [n, k]."""
    values = block_values(32)
    x = np.concatenate([values.reshape(-1), np.tile([1, -1], 16), np.tile([-3, 3], 16), np.zeros(32)])
    return np.resize(x, (2 * x.size // k, k)).astype(np.float32)


@pytest.mark.parametrize("name", ["Q4_0", "Q8_0"])
def test_a_round_trip_has_ggufs_bits(name: str) -> None:
    x, kind = rows(96), gguf.GGMLQuantizationType[name]
    y = camshaft.quantize_dequantize_gguf(x, format=name)
    wanted = gguf.dequantize(gguf.quantize(x, kind), kind).reshape(x.shape)
    np.testing.assert_array_equal(y.view(np.uint32), wanted.view(np.uint32))


@pytest.mark.parametrize("name", BY_GGUF)
def test_rows_of_arrays_are_ggufs(name: str) -> None:
    x, kind = rows(512)[:6].reshape(2, 3, 512), gguf.GGMLQuantizationType[name]
    data = quantize_gguf(x, name)
    wanted = gguf.quantize(x, kind).view(np.uint8)
    assert data.dtype == np.uint8
    np.testing.assert_array_equal(data, wanted.reshape(data.shape))
    back = dequantize_gguf(data, name)
    np.testing.assert_array_equal(back, gguf.dequantize(wanted, kind).reshape(x.shape))
    assert dequantize_gguf(data, name, to="f16").dtype == np.float16
    assert dequantize_gguf(data[:0], name).shape == (0, 3, 512)


def test_rows_that_are_no_blocks_are_refused() -> None:
    with pytest.raises(FormatError, match="a row of 33 elements: Q4_0 wants a multiple of 32"):
        quantize_gguf(np.zeros((2, 33), np.float32), "Q4_0")
    with pytest.raises(FormatError, match="a row of 35 bytes: Q4_0 wants a multiple of 18"):
        dequantize_gguf(np.zeros((2, 35), np.uint8), "Q4_0")
    with pytest.raises(FormatError, match="no block format 'Q4_9'; wanted one of F32"):
        quantize_gguf(np.zeros((2, 32), np.float32), "Q4_9")
    with pytest.raises(FormatError, match="to 'i8'; wanted f32, f16 or bf16"):
        dequantize_gguf(np.zeros((2, 18), np.uint8), "Q4_0", to="i8")
    with pytest.raises(FormatError, match="blocks of float32; wanted an array of uint8"):
        dequantize_gguf(np.zeros((2, 18), np.float32), "Q4_0")


def test_values_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(FormatError, match="values of complex64; wanted real numbers"):
        quantize_gguf(np.zeros((2, 32), np.complex64), "Q4_0")
    with pytest.raises(FormatError, match="values of <U3; wanted real numbers"):
        quantize_gguf("abc", "Q4_0")
    with pytest.raises(FormatError, match="blocks of bytes; wanted an array of uint8"):
        dequantize_gguf(bytes(18), "Q4_0")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["Q4_0", "Q8_0"])
def test_a_block_whose_scale_f16_has_as_0_is_0(name: str) -> None:
    x = np.array([[0.0, 1e-39, -1e-38, 1e-41] * 8], np.float32)
    np.testing.assert_array_equal(camshaft.quantize_dequantize_gguf(x, format=name), np.zeros_like(x))
