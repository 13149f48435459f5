"""The call of a kernel that packs a weight, with all its sizes resolved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from camshaft.backends.cpu.loaded import CpuKernel

ROWS = 16  # rows interleaved: the 32-bit lanes of a 512-bit vector
Memory = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Packing:
    """A weight of `n_rows` rows, each of `row_nbytes` and `n_records` blocks in the file; codes, scales and what stands beside
    them begin so many bytes into the packed weight."""

    kernel: CpuKernel
    n_rows: int
    n_records: int
    row_nbytes: int
    n_tiles: int
    codes: int
    scales: int
    extra: int

    @property
    def tile_nbytes(self) -> int:
        """Bytes of the file in a tile of 16 rows."""
        return self.row_nbytes * ROWS

    def pack(self, data: Memory, out: Memory, first: int, last: int) -> None:
        """Tiles [first, last) of 16 rows: the file's bytes into the packed weight's, both uint8. Runs on this thread, without
        the GIL."""
        if data.ctypes.data % 4:  # a caller's array: what is mapped from a file lies on 32 bytes
            data = data.copy()
        numbers = np.array([self.n_rows, self.n_records, (data.nbytes - 1) // 4], np.int64)
        sizes = [numbers.ctypes.data + 8 * i for i in range(numbers.size)]
        places = [out.ctypes.data + place for place in (self.codes, self.scales, self.extra)]
        block = np.array([data.ctypes.data, *places, *sizes], np.int64)
        self.kernel(block.ctypes.data, first, last)
