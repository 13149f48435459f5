"""Kernels of this process, loaded once by the second key of their objects, and the call of one that packs a weight.

A start with a cached schedule imports this module and not device.py.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from camshaft.backends.cpu.compile import load_kernel
from camshaft.process import awaited
from camshaft.store.kernels import symbol_of
from camshaft.store.store import store

ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


class Library(Protocol):
    """Loaded code, mapped for the lifetime of this value."""

    def address(self, name: str) -> int: ...


@dataclass(frozen=True)
class CpuKernel:
    """Machine code with the entry ABI (args, first, last). `address` is valid for the lifetime of this value; `key` is the
    second key of its object in the store, or empty if `stored` cannot load it."""

    name: str
    address: int
    library: Library = field(repr=False)
    key: str = ""

    def __call__(self, args: int, first: int, last: int) -> None:
        """Runs programs [first, last) on this thread; `args` is the argument block's address."""
        self._entry(args, first, last)

    @cached_property
    def _entry(self) -> Callable[[int, int, int], None]:
        return ENTRY(self.address)


@dataclass
class CompileCounts:
    """Objects that this process compiled and loaded from the store, and the seconds spent on both."""

    compiled: int = 0
    loaded: int = 0
    seconds: float = 0.0


counts = CompileCounts()
_shared: dict[str, CpuKernel] = {}  # by second key
lock = awaited(threading.RLock())  # guards the loaded kernels here and in device.py


def loaded(name: str, second: str, data: bytes, load: Callable[[bytes], Library] = load_kernel) -> CpuKernel:
    """Returns the kernel of an object. Links the object if its second key is new in this process."""
    with lock:
        if second not in _shared:
            library = load(data)
            key = second if load is load_kernel else ""
            _shared[second] = CpuKernel(name, library.address(symbol_of(second)), library, key)
        shared = _shared[second]
    return shared if shared.name == name else replace(shared, name=name)


def stored(name: str, second: str) -> CpuKernel | None:
    """Returns the kernel whose object has this second key in the store; None if the store no longer has it."""
    with lock:
        if second in _shared:
            return loaded(name, second, b"")
        data = store().kernels.object(second)
        if data is None:
            return None
        counts.loaded += 1
        return loaded(name, second, data)


ROWS = 16  # rows interleaved: the 32-bit lanes of a 512-bit vector
Memory = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Packing:
    """The sizes of one weight. In the file it has `n_rows` rows of `row_nbytes` bytes and `n_records` blocks each; `codes`,
    `scales` and `extra` are byte offsets of the parts of the packed weight. `grid`: the GGUF number of a format that has a grid
    (formats/quants/iq_grids.py), or 0."""

    kernel: CpuKernel
    n_rows: int
    n_records: int
    row_nbytes: int
    n_tiles: int
    codes: int
    scales: int
    extra: int
    grid: int = 0

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
        grid = grid_words(self.grid) if self.grid else numbers
        places = [out.ctypes.data + place for place in (self.codes, self.scales, self.extra)]
        block = np.array([data.ctypes.data, grid.ctypes.data, *places, *sizes], np.int64)
        self.kernel(block.ctypes.data, first, last)


def grid_words(ggml_id: int) -> Memory:
    """The words of the grid of a format by its GGUF number."""
    from camshaft.formats.blocks import by_ggml_id  # few files have such a format
    from camshaft.formats.quants.iq_grids import GRIDS

    return GRIDS[by_ggml_id(ggml_id).name].words
