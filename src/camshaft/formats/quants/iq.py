"""Layouts and decoders of IQ1, IQ2 and IQ3: blocks of 256 that store grid rows by number, signs and small scales.

A decoder takes one record per block, [n], and returns float32 [n, 256]. y = (d / unit (2 s + 1)) level sign for every 32 or 16
elements with a scale s of 3 or 4 bits. All products are exact in float32, so results are bit-equal in any order.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from camshaft.formats.bits import Bytes, Floats, Records, as_float, bit_fields, packed
from camshaft.formats.quants.iq_grids import GRIDS, sign_bytes, signs

IQ1_S = packed(("d", "<f2"), ("qs", "u1", 32), ("qh", "<u2", 8))
IQ1_M = packed(("qs", "u1", 32), ("qh", "u1", 16), ("scales", "<u2", 4))
IQ2_XXS = packed(("d", "<f2"), ("qs", "<u4", (8, 2)))
IQ2_XS = packed(("d", "<f2"), ("qs", "<u2", 32), ("scales", "u1", 8))
IQ2_S = packed(("d", "<f2"), ("qs", "u1", 32), ("signs", "u1", 32), ("qh", "u1", 8), ("scales", "u1", 8))
IQ3_XXS = packed(("d", "<f2"), ("qs", "u1", 64), ("scales", "<u4", 8))
IQ3_S = packed(("d", "<f2"), ("qs", "u1", 64), ("qh", "u1", 8), ("signs", "u1", 32), ("scales", "u1", 4))
DELTA = np.float32(0.125)
_SEVENS = np.arange(0, 28, 7, dtype=np.uint32)

Numbers = npt.NDArray[np.integer]


def _steps(d: Floats, scales: Numbers, unit: int) -> Floats:
    """d / unit (2 s + 1), [n, groups]."""
    odd = np.float32(2) * scales.astype(np.float32) + np.float32(1)
    return d * np.float32(1 / unit) * odd


def _signed(name: str, rows: Numbers, octets: Bytes, steps: Floats) -> Floats:
    """step level sign: rows by number [n, 256 / width], a sign byte per 8 elements [n, 32], steps [n, groups]."""
    n, groups = steps.shape
    values = GRIDS[name].values(rows).reshape(n, 256) * signs(octets).reshape(n, 256)
    return (values.reshape(n, groups, -1) * steps[:, :, None]).reshape(n, 256)


def _sevens(words: npt.NDArray[np.uint32]) -> Bytes:
    """The four sign bytes in the low 28 bits of words: [n, 8] to [n, 32]."""
    return sign_bytes(words[:, :, None] >> _SEVENS & np.uint32(127)).reshape(len(words), 32)


def _nibbles(scales: Bytes) -> Bytes:
    return bit_fields(scales[:, :, None], 4).reshape(len(scales), -1)


def _with_high(low: Bytes, high: Numbers, shifts: tuple[int, ...], mask: int) -> Numbers:
    """Row numbers: 8 low bits, and the bits of `high` under the mask at each of the shifts above them."""
    tops = high[:, :, None].astype(np.uint16) >> np.array(shifts, np.uint16) & np.uint16(mask)
    return low | (tops.reshape(low.shape) << np.uint16(8))


def decode_iq2_xxs(blocks: Records) -> Floats:
    """Per 32: four row numbers of 8 bits, then a word of four 7-bit signs and a scale in its top 4 bits."""
    low, high = blocks["qs"][:, :, 0], blocks["qs"][:, :, 1]
    rows = (low[:, :, None] >> np.arange(0, 32, 8, dtype=np.uint32) & np.uint32(255)).reshape(-1, 32)
    return _signed("IQ2_XXS", rows, _sevens(high), _steps(as_float(blocks["d"]), high >> np.uint32(28), 8))


def decode_iq2_xs(blocks: Records) -> Floats:
    """Per 8 a word of 16 bits: the row number in 9, signs in 7; a scale per 16."""
    words, steps = blocks["qs"], _steps(as_float(blocks["d"]), _nibbles(blocks["scales"]), 8)
    return _signed("IQ2_XS", words & np.uint16(511), sign_bytes(words >> np.uint16(9)), steps)


def decode_iq2_s(blocks: Records) -> Floats:
    """Row numbers of 10 bits, the top two of four rows in a byte; eight signs per row; a scale per 16."""
    rows = _with_high(blocks["qs"], blocks["qh"], (0, 2, 4, 6), 3)
    return _signed("IQ2_S", rows, blocks["signs"], _steps(as_float(blocks["d"]), _nibbles(blocks["scales"]), 8))


def decode_iq3_xxs(blocks: Records) -> Floats:
    """Per 32: eight row numbers of 8 bits, and a word of four 7-bit signs and a scale in its top 4 bits."""
    words = blocks["scales"]
    return _signed("IQ3_XXS", blocks["qs"], _sevens(words), _steps(as_float(blocks["d"]), words >> np.uint32(28), 4))


def decode_iq3_s(blocks: Records) -> Floats:
    """Row numbers of 9 bits, the top one of eight rows in a byte; eight signs per two rows; a scale per 32."""
    rows = _with_high(blocks["qs"], blocks["qh"], tuple(range(8)), 1)
    return _signed("IQ3_S", rows, blocks["signs"], _steps(as_float(blocks["d"]), _nibbles(blocks["scales"]), 1))


def _shifted(rows: Numbers, negative: npt.NDArray[np.bool_], steps: Floats) -> Floats:
    """step (level +- 1/8): rows [n, 32], whether 1/8 is subtracted [n, deltas] and steps [n, groups]."""
    n, groups = steps.shape
    delta = np.where(negative, -DELTA, DELTA)[:, :, None]
    values = GRIDS["IQ1_S"].values(rows).reshape(n, delta.shape[1], -1) + delta
    return (values.reshape(n, groups, -1) * steps[:, :, None]).reshape(n, 256)


def decode_iq1_s(blocks: Records) -> Floats:
    """Per 32 a word of 16 bits: the top three bits of four row numbers, a scale of 3 bits, and the sign of 1/8."""
    words = blocks["qh"]
    rows = _with_high(blocks["qs"], words, (0, 3, 6, 9), 7)
    steps = _steps(as_float(blocks["d"]), words >> np.uint16(12) & np.uint16(7), 1)
    return _shifted(rows, words >= 0x8000, steps)


def iq1_m_d(scales: npt.NDArray[np.uint16]) -> npt.NDArray[np.float16]:
    """d, [n], whose nibbles are the top ones of four words, lowest first."""
    nibbles = (scales >> np.uint16(12)) << np.arange(0, 16, 4, dtype=np.uint16)
    found: npt.NDArray[np.float16] = np.bitwise_or.reduce(nibbles, axis=1).astype(np.uint16).view(np.float16)
    return found


def decode_iq1_m(blocks: Records) -> Floats:
    """Per 8 a nibble of qh: the top three bits of the row number, and the sign of 1/8; per 16 a scale of 3 bits."""
    rows, words = _with_high(blocks["qs"], blocks["qh"], (0, 4), 7), blocks["scales"]
    scales = (words[:, :, None] >> np.arange(0, 12, 3, dtype=np.uint16) & np.uint16(7)).reshape(-1, 16)
    negative = _nibbles(blocks["qh"]) >= 8
    return _shifted(rows, negative, _steps(as_float(iq1_m_d(words)), scales, 1))
