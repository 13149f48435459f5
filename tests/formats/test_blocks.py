"""Block formats against `gguf`: type numbers, sizes, and every element of random blocks."""

import hashlib

import gguf
import ml_dtypes
import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from camshaft.errors import FormatError
from camshaft.formats.blocks import BLOCK_FORMATS, BlockFormat, by_ggml_id
from camshaft.formats.quants.iq_grids import GRIDS as GRID_TABLE
from camshaft.formats.quants.iq_grids import sign_bytes

READABLE = [row for row in BLOCK_FORMATS.values() if row.is_readable]
UNREAD = [row for row in BLOCK_FORMATS.values() if not row.is_readable]
PLAIN = ["F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64"]
SMALL = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4"]
GRIDS = ["IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"]
DIGESTS = {
    "IQ1_S": "bf92c60e2ed15644",
    "IQ1_M": "bf92c60e2ed15644",
    "IQ2_XXS": "886814bc08b03100",
    "IQ2_XS": "e9567eb15257b717",
    "IQ2_S": "1d4ca1e2fbd2be07",
    "IQ3_XXS": "e86540e4e7b2d337",
    "IQ3_S": "acb8a458f699e571",
}
OTHERS = ["TQ1_0", "TQ2_0", "NVFP4"]
WANTED = [*PLAIN, *SMALL, *GRIDS, *OTHERS, "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_K", "IQ4_XS"]


def random_blocks(row: BlockFormat, n_blocks: int, seed: int = 0) -> np.ndarray:
    """Random bytes with finite float fields: their exponent bits are never all ones."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (n_blocks, row.block_nbytes), dtype=np.uint8)
    fields = {"": (row.layout, 0)} if row.is_plain else row.layout.fields
    for dtype, offset, *_ in fields.values():
        if dtype.kind == "f" or dtype == ml_dtypes.bfloat16:
            blocks[:, offset + dtype.itemsize - 1] &= 0xBF
    if row.name == "IQ1_M":
        blocks[:, -1] &= 0xBF  # the top nibble of its scale
    return blocks


def test_every_type_that_gguf_knows_is_a_row_with_its_number_and_sizes() -> None:
    ours = {name: (row.ggml_id, row.block_size, row.block_nbytes) for name, row in BLOCK_FORMATS.items()}
    assert ours == {t.name: (t.value, *GGML_QUANT_SIZES[t]) for t in GGMLQuantizationType}


def test_the_types_that_must_be_read_are() -> None:
    assert {row.name for row in READABLE} == set(WANTED)


@pytest.mark.parametrize("row", READABLE, ids=lambda row: row.name)
def test_layout_covers_the_block(row: BlockFormat) -> None:
    assert row.layout.itemsize == row.block_nbytes
    assert by_ggml_id(row.ggml_id) is row


@pytest.mark.parametrize("name", [n for n in WANTED if n not in ("Q8_K", "F64", "I8", "I16", "I32", "I64")])
@pytest.mark.parametrize("n_blocks", [1, 3, 700])
def test_dequantize_is_bit_equal_to_gguf(name: str, n_blocks: int) -> None:
    row = BLOCK_FORMATS[name]
    blocks = random_blocks(row, n_blocks, seed=n_blocks)
    with np.errstate(over="ignore"):
        wanted = gguf.quants.dequantize(blocks, GGMLQuantizationType[name])
    got = row.dequantize(blocks)
    assert got.dtype == np.float32
    assert got.shape == (n_blocks, row.block_size)
    assert np.array_equal(got.view(np.uint32), wanted.reshape(got.shape).view(np.uint32))


@pytest.mark.parametrize("name", ["F64", "I8", "I16", "I32", "I64"])
def test_plain_numbers_are_rounded_to_float32(name: str) -> None:
    row = BLOCK_FORMATS[name]
    blocks = random_blocks(row, 500)
    numpy_type = {"F64": "<f8", "I8": "<i1", "I16": "<i2", "I32": "<i4", "I64": "<i8"}[name]
    with np.errstate(over="ignore"):
        assert np.array_equal(row.dequantize(blocks), blocks.view(numpy_type).astype(np.float32))


def test_q8_k_is_a_float_scale_times_256_bytes() -> None:
    blocks = random_blocks(BLOCK_FORMATS["Q8_K"], 9)
    scale = blocks[:, :4].copy().view("<f4")
    quants = blocks[:, 4:260].copy().view(np.int8)
    assert np.array_equal(BLOCK_FORMATS["Q8_K"].dequantize(blocks), scale * quants.astype(np.float32))


@pytest.mark.parametrize("name", ["Q4_1", "F32", "Q6_K"])
def test_more_blocks_than_a_chunk_and_none_at_all(name: str) -> None:
    row = BLOCK_FORMATS[name]
    blocks = random_blocks(row, (1 << 17) // row.block_size + 1)
    whole = row.dequantize(blocks)
    assert np.array_equal(whole[-1:], row.dequantize(blocks[-1:]))
    assert row.dequantize(blocks[:0]).shape == (0, row.block_size)


def test_blocks_need_not_be_contiguous() -> None:
    row = BLOCK_FORMATS["Q5_K"]
    blocks = random_blocks(row, 8)
    assert np.array_equal(row.dequantize(blocks[::2]), row.dequantize(blocks)[::2])


@pytest.mark.parametrize("row", UNREAD, ids=lambda row: row.name)
def test_a_type_not_read_yet_is_named(row: BlockFormat) -> None:
    with pytest.raises(FormatError, match=f"^{row.name} is a block type camshaft does not read yet; it reads F32, "):
        row.dequantize(np.zeros((1, row.block_nbytes), np.uint8))


@pytest.mark.parametrize("name", GRIDS)
def test_a_grid_is_ggufs(name: str) -> None:
    kind = getattr(gguf.quants, name)
    kind.init_grid()
    grid = GRID_TABLE[name]
    wanted = kind.grid.reshape(kind.grid_shape)
    assert np.array_equal(grid.values(np.arange(grid.n_rows)), wanted)
    assert hashlib.sha256(grid.rows.tobytes()).hexdigest()[:16] == DIGESTS[name]


def test_eight_signs_of_seven_bits_are_ggufs() -> None:
    assert sign_bytes(np.arange(128)).tobytes() == gguf.quants.IQ2_XXS.ksigns


def test_rows_are_whole_blocks() -> None:
    assert BLOCK_FORMATS["Q4_K"].row_nbytes(512) == 288
    with pytest.raises(FormatError, match="a row of 100 elements: Q4_0 wants a multiple of 32"):
        BLOCK_FORMATS["Q4_0"].row_nbytes(100)


@pytest.mark.parametrize("blocks", [np.zeros((2, 17), np.uint8), np.zeros(18, np.uint8), np.zeros((2, 18), np.int8)])
def test_wrong_bytes_are_refused(blocks: np.ndarray) -> None:
    with pytest.raises(FormatError, match=r"wanted uint8 \[n, 18\]"):
        BLOCK_FORMATS["Q4_0"].dequantize(blocks)


@pytest.mark.parametrize(("ggml_id", "words"), [(4, "Q4_2"), (31, "Q4_0_4_4"), (42, "unknown"), (2**32 - 1, "unknown")])
def test_numbers_without_a_row_are_refused(ggml_id: int, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        by_ggml_id(ggml_id)


def test_infinite_and_nan_scales_pass_through_without_a_warning() -> None:
    blocks = np.zeros((2, 18), np.uint8)
    blocks[:, :2] = np.array([np.inf, np.nan], "<f2").view(np.uint8).reshape(2, 2)
    values = BLOCK_FORMATS["Q4_0"].dequantize(blocks)
    assert np.isinf(values[0]).all()
    assert np.isnan(values[1]).all()
