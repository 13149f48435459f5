"""Copies that follow an extent, tried on any device: the active bytes arrive, and nothing of an array behind them changes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from camshaft.backends.device import CopyCommand, Device, Place

ROWS = 40


def copies_follow_an_extent(device: Device, row_nbytes: int, offset: int = 0) -> Iterator[int]:
    """In, across and out again along an extent of 40 rows, the arrays at `offset` of their memory; gives the active bytes after
    each run."""
    rng, nbytes = np.random.default_rng(row_nbytes), ROWS * row_nbytes
    a, b = device.allocate(offset + nbytes + 16), device.allocate(offset + nbytes + 16)
    given, got, extent = rng.integers(0, 256, nbytes, np.uint8), np.empty(nbytes, np.uint8), (1, ROWS)
    commands = [
        CopyCommand("in", given, Place(a, offset, nbytes), True, extent),
        CopyCommand("across", Place(a, offset, nbytes), Place(b, offset, nbytes), True, extent),
        CopyCommand("out", Place(b, offset, nbytes), got, True, extent),
    ]
    run = device.bind(commands, 2)
    for active in (ROWS, 7, 1, 0, 13, ROWS):
        given[:] = rng.integers(0, 256, nbytes, np.uint8)
        got[:] = 0xAA
        run.submit([3, active])
        run.wait()
        n = active * row_nbytes
        assert np.array_equal(got[:n], given[:n]), active
        assert (got[n:] == 0xAA).all(), active
        yield n
        assert not b.read(offset + nbytes).any(), "what lies behind is left alone"
    run.close()
