"""The grids of IQ1, IQ2 and IQ3: rows of 8 or 4 small indexes into the format's levels, and the sign bits of a row.

A grid holds its rows in ascending order, the first index being the least significant digit. The rows came from a search
(llama.cpp), so they are data (grid_data.py); signs follow a rule.
"""

from __future__ import annotations

import base64
import functools
import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from camshaft.formats.bits import Bytes, Floats
from camshaft.formats.quants.grid_data import PACKED


@dataclass(frozen=True)
class Grid:
    """`n_rows` rows of `width` indexes into `levels`, the values that an index selects."""

    name: str
    n_rows: int
    width: int
    levels: tuple[int, ...]

    @functools.cached_property
    def rows(self) -> Bytes:
        """uint8 [n_rows, width]: the indexes."""
        base, packed = len(self.levels), zlib.decompress(base64.b85decode(PACKED[self.name]))
        numbers = np.flatnonzero(np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little"))
        digits: npt.NDArray[np.int64] = numbers[:, None] // base ** np.arange(self.width) % base
        return digits.astype(np.uint8)

    @functools.cached_property
    def words(self) -> npt.NDArray[np.uint32]:
        """The rows as 32-bit words, [n_rows * width / 4]: a byte per index."""
        return np.ascontiguousarray(self.rows).view(np.uint32).reshape(-1)

    def values(self, numbers: npt.NDArray[np.integer]) -> Floats:
        """The levels of rows by number: [...] to float32 [..., width]."""
        found: Floats = np.array(self.levels, np.float32)[self.rows][numbers]
        return found


_TWO, _THREE = (8, 25, 43), (4, 12, 20, 28, 36, 44, 52, 62)
_IQ1 = Grid("IQ1_S", 2048, 8, (-1, 0, 1))
GRIDS: dict[str, Grid] = {
    "IQ1_S": _IQ1,
    "IQ1_M": _IQ1,
    "IQ2_XXS": Grid("IQ2_XXS", 256, 8, _TWO),
    "IQ2_XS": Grid("IQ2_XS", 512, 8, _TWO),
    "IQ2_S": Grid("IQ2_S", 1024, 8, _TWO),
    "IQ3_XXS": Grid("IQ3_XXS", 256, 4, _THREE),
    "IQ3_S": Grid("IQ3_S", 512, 4, (1, 3, 5, 7, 9, 11, 13, 15)),
}


def sign_bytes(sevens: npt.NDArray[np.integer]) -> Bytes:
    """Eight sign bits from seven: the eighth makes their number even."""
    odd = sevens ^ (sevens >> 4)
    odd = odd ^ (odd >> 2)
    odd = (odd ^ (odd >> 1)) & 1
    return (sevens | (odd << 7)).astype(np.uint8)


def signs(octets: Bytes) -> Floats:
    """1 or -1 for the bits of every byte, lowest first: [...] to float32 [..., 8]."""
    return np.float32(1) - np.float32(2) * ((octets[..., None] >> np.arange(8, dtype=np.uint8)) & np.uint8(1))
