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
    """The sizes of one weight. In the file it has `n_rows` rows of `row_nbytes` bytes and `n_records` blocks each; `codes`,
    `scales` and `extra` are byte offsets of the parts of the packed weight."""

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
        """The bytes of a tile of 16 rows in the file."""
        return self.row_nbytes * ROWS

    def pack(self, data: Memory, out: Memory, first: int, last: int) -> None:
        """Packs tiles [first, last) of 16 rows from the file's bytes into `out`, both uint8. Runs on this thread, without
        the GIL."""
        if data.ctypes.data % 4:  # only a caller's array: tensors mapped from a file are 32-byte aligned
            data = data.copy()
        numbers = np.array([self.n_rows, self.n_records, (data.nbytes - 1) // 4], np.int64)
        sizes = [numbers.ctypes.data + 8 * i for i in range(numbers.size)]
        places = [out.ctypes.data + place for place in (self.codes, self.scales, self.extra)]
        block = np.array([data.ctypes.data, *places, *sizes], np.int64)
        self.kernel(block.ctypes.data, first, last)
