"""Encoders against `gguf`, against llama.cpp's frozen results, and against their own decoders."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from camshaft.errors import FormatError
from camshaft.formats.blocks import BLOCK_FORMATS
from tests.support.fixtures import DATA
from tests.support.models.sketches import block_values

WRITTEN = [name for name, row in BLOCK_FORMATS.items() if row.encode]
BLOCKS = [name for name in WRITTEN if not BLOCK_FORMATS[name].is_plain]
BY_GGUF = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4", "TQ1_0", "TQ2_0"]
# Of the blocks that ggml makes. Its compiler fuses multiplications into sums, which tips a search now and then.
EQUAL_SHARE = {"Q6_K": 0.9, "IQ4_NL": 0.98, "IQ4_XS": 0.9}


def values_for(name: str) -> np.ndarray:
    return block_values(max(32, BLOCK_FORMATS[name].block_size)).reshape(-1, BLOCK_FORMATS[name].block_size)


def test_every_type_that_issues_ask_for_is_written() -> None:
    wanted = {"F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL"}
    assert wanted <= {*WRITTEN}


@pytest.mark.parametrize("name", BY_GGUF)
def test_blocks_are_byte_equal_to_ggufs(name: str) -> None:
    values, row = values_for(name), BLOCK_FORMATS[name]
    wanted = gguf.quants.quantize(values, gguf.GGMLQuantizationType[name]).view(np.uint8)
    np.testing.assert_array_equal(row.quantize(values), wanted.reshape(-1, row.block_nbytes))


@pytest.mark.parametrize("name", [name for name in BLOCKS if not name.startswith("TQ")])
def test_blocks_are_llama_cpps(name: str) -> None:
    values, row = values_for(name), BLOCK_FORMATS[name]
    with np.load(DATA / "quantized" / "blocks.npz") as frozen:
        theirs = frozen[name]
    ours = row.quantize(values)
    assert (ours == theirs).all(axis=1).mean() >= EQUAL_SHARE.get(name, 1)
    lost, theirs_lost = (np.square(row.dequantize(b) - values).sum(axis=1) for b in (ours, theirs))
    assert lost.sum() <= theirs_lost.sum() * 1.0001
    np.testing.assert_array_less(lost, theirs_lost * 1.1 + 1e-12)


@pytest.mark.parametrize("name", [n for n in BLOCKS if "Q" in n[:2] and not n.endswith("K") and n[:2] != "IQ"])
def test_what_was_decoded_is_encoded_to_the_same_values(name: str) -> None:
    row = BLOCK_FORMATS[name]
    once = row.dequantize(row.quantize(values_for(name)))
    np.testing.assert_allclose(row.dequantize(row.quantize(once)), once, rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_does_not_depend_on_its_neighbours(name: str) -> None:
    values, row = values_for(name), BLOCK_FORMATS[name]
    np.testing.assert_array_equal(row.quantize(values[9:10]), row.quantize(values)[9:10])


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e6])
def test_values_that_no_block_holds_are_refused(name: str, bad: float) -> None:
    values = values_for(name)
    values[2, 3] = bad
    with pytest.raises(FormatError, match=f"{name} of a value that is infinite, NaN or over 65504"):
        BLOCK_FORMATS[name].quantize(values)


def test_wrong_shapes_dtypes_and_types_are_refused() -> None:
    with pytest.raises(FormatError, match=r"Q4_0 of float32 \[2, 31\]; wanted float32 \[n, 32\]"):
        BLOCK_FORMATS["Q4_0"].quantize(np.zeros((2, 31), np.float32))
    with pytest.raises(FormatError, match=r"Q4_0 of float64 \[2, 32\]"):
        BLOCK_FORMATS["Q4_0"].quantize(np.zeros((2, 32)))
    with pytest.raises(FormatError, match="IQ2_S is a type that camshaft does not write; it writes F32, F16, Q4_0"):
        BLOCK_FORMATS["IQ2_S"].quantize(np.zeros((2, 256), np.float32))
