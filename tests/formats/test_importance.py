"""Quantizing with an importance of each column: llama.cpp's blocks, and smaller errors where they count."""

from __future__ import annotations

import numpy as np
import pytest

from camshaft.errors import FormatError
from camshaft.formats.blocks import BLOCK_FORMATS, BlockFormat
from camshaft.formats.importance import WEIGHTED, quantize_rows, uses_importance
from tests.support.fixtures import DATA
from tests.support.models.sketches import weighted_values

# Of the blocks that ggml makes. Its compiler fuses multiplications into sums, which tips a search now and then.
EQUAL_SHARE = 0.93


def lost(row: BlockFormat, blocks: np.ndarray) -> np.ndarray:
    """The weighted square errors of rows."""
    values, importance = weighted_values()
    made = row.dequantize(blocks.reshape(-1, row.block_nbytes)).reshape(values.shape)
    return (importance * np.square(made - values)).sum(axis=1, dtype=np.float64)


@pytest.mark.parametrize("name", WEIGHTED)
def test_rows_are_llama_cpps(name: str) -> None:
    row, (values, importance) = BLOCK_FORMATS[name], weighted_values()
    with np.load(DATA / "quantized" / "weighted.npz") as frozen:
        theirs = frozen[name]
    ours = quantize_rows(row, values, importance)
    equal = (ours.reshape(-1, row.block_nbytes) == theirs.reshape(-1, row.block_nbytes)).all(axis=1)
    assert equal.mean() >= EQUAL_SHARE
    assert lost(row, ours).sum() <= lost(row, theirs).sum() * 1.005
    np.testing.assert_array_less(lost(row, ours), lost(row, theirs) * 1.1 + 1e-9)


@pytest.mark.parametrize("name", WEIGHTED)
def test_errors_that_count_are_smaller_than_without(name: str) -> None:
    row, (values, importance) = BLOCK_FORMATS[name], weighted_values()
    assert (
        lost(row, quantize_rows(row, values, importance)).sum()
        < 0.8 * lost(row, quantize_rows(row, values, None)).sum()
    )


@pytest.mark.parametrize("name", ["Q8_0", "F16", "MXFP4", "TQ2_0"])
def test_other_formats_are_written_as_without(name: str) -> None:
    row, (values, importance) = BLOCK_FORMATS[name], weighted_values()
    assert not uses_importance(row)
    np.testing.assert_array_equal(quantize_rows(row, values, importance), quantize_rows(row, values, None))


def test_rows_do_not_depend_on_each_other() -> None:
    row, (values, importance) = BLOCK_FORMATS["Q4_0"], weighted_values()
    np.testing.assert_array_equal(
        quantize_rows(row, values[5:6], importance), quantize_rows(row, values, importance)[5:6]
    )


def test_no_importance_anywhere_gives_finite_blocks() -> None:
    values, importance = weighted_values()
    for name in WEIGHTED:
        row = BLOCK_FORMATS[name]
        made = quantize_rows(row, values, np.zeros_like(importance)).reshape(-1, row.block_nbytes)
        assert np.isfinite(row.dequantize(made)).all()


def test_an_importance_of_another_length_is_refused() -> None:
    values, importance = weighted_values()
    with pytest.raises(FormatError, match=r"an importance of shape \[511\]; wanted \[512\]"):
        quantize_rows(BLOCK_FORMATS["Q4_0"], values, importance[1:])
