"""Load constants into memory in pieces, several in parallel, and release the file's pages.

A piece's pages are prefetched a few pieces before it is packed, so that the system reads while other pieces are packed, and
released right after: only a few pieces of the file are in memory beside the packed weights.
"""

from __future__ import annotations

import itertools
import mmap
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from camshaft.backends.cpu.loaded import Packing
from camshaft.formats.mapped import MappedFile
from camshaft.formats.tensor import FileTensor
from camshaft.process import ForkLock

if TYPE_CHECKING:
    from camshaft.graph.graph import Source, Tensor

Array = np.ndarray[Any, Any]
# File bytes per turn of a thread, which is what each thread has in memory. A turn's pages are released by one or two system
# calls, which interrupt the other threads.
TURN_NBYTES = 1 << 22
_SWITCH_S = 0.0005
AHEAD = 4  # turns prefetched before they are loaded


class Span(NamedTuple):
    """Bytes [first, last) of a mapped file."""

    file: MappedFile
    first: int
    last: int


@dataclass(frozen=True)
class LoadRequest:
    """A constant to load: its source, the name of its layout, its size in that layout, and its packing, if any."""

    source: Source
    layout: str
    nbytes: int
    packing: Packing | None

    @property
    def key(self) -> tuple[Source, str]:
        """Returns the key that is equal for constants with the same bytes."""
        return self.source, self.layout


def load_request(tensor: Tensor) -> LoadRequest:
    """Returns how to load a graph's constant."""
    source, spec = tensor.source, tensor.spec
    assert source is not None
    packing = None
    if spec.layout.name == "interleaved":
        from camshaft.ops.quantized.packed.packing import packing_of  # a cached plan stores its packing

        packing = packing_of(spec)
    return LoadRequest(source, spec.layout.name, spec.nbytes, packing)


@dataclass(frozen=True)
class Piece:
    """Bytes [first, last) of a source, and their destination: `tiles` of a packed weight, or the same bytes of plain memory."""

    source: Source
    packing: Packing | None
    memory: Array
    first: int
    last: int
    tiles: tuple[int, int]

    def load(self) -> None:
        """Packs or copies the piece, without the GIL."""
        data = self.source.data()
        if self.packing is None:
            self.memory[self.first : self.last] = data[self.first : self.last]
        else:
            self.packing.pack(data, self.memory, *self.tiles)

    def span(self) -> Span | None:
        """Returns the piece's bytes in a mapped file, None if its source has none."""
        mapped = self.source.mapped if isinstance(self.source, FileTensor) else None
        return None if mapped is None else Span(mapped[0], mapped[1] + self.first, mapped[1] + self.last)


def pieces(constant: LoadRequest, memory: Array) -> Iterator[Piece]:
    """Divides a constant into pieces: a single one if its file is not mapped and returns copies."""
    source, packing = constant.source, constant.packing
    whole = isinstance(source, FileTensor) and not source.is_mapped
    if packing is None:
        step = constant.nbytes if whole else TURN_NBYTES
        for first in range(0, constant.nbytes, step):
            yield Piece(source, None, memory, first, min(first + step, constant.nbytes), (0, 0))
        return
    total = packing.n_rows * packing.row_nbytes
    step = packing.n_tiles if whole else max(1, TURN_NBYTES // packing.tile_nbytes)
    for first in range(0, packing.n_tiles, step):
        last = min(first + step, packing.n_tiles)
        span = first * packing.tile_nbytes, min(last * packing.tile_nbytes, total)
        yield Piece(source, packing, memory, *span, (first, last))


def turns(todo: Sequence[Piece]) -> list[list[Piece]]:
    """Groups pieces, in file order, into turns of TURN_NBYTES or little more."""
    made: list[list[Piece]] = []
    room = 0
    for piece in sorted(todo, key=_place):
        if room <= 0:
            made.append([])
            room = TURN_NBYTES
        made[-1].append(piece)
        room -= piece.last - piece.first
    return made


def _place(piece: Piece) -> tuple[str, int]:
    span = piece.span()
    return ("", -1) if span is None else (span.file.path, span.first)


def spans(turn: Sequence[Piece]) -> list[Span]:
    """Returns the file spans of a turn's pieces, merged where they are at most a page apart."""
    found: list[Span] = []
    for span in filter(None, (piece.span() for piece in turn)):
        if found and found[-1].file is span.file and 0 <= span.first - found[-1].last <= mmap.PAGESIZE:
            found[-1] = found[-1]._replace(last=span.last)
        else:
            found.append(span)
    return found


class Loading:
    """Pieces that any number of threads load by calling `run`, which returns when every turn has been started."""

    def __init__(self, todo: Sequence[Piece]) -> None:
        self._order = turns(todo)
        self._numbers = itertools.count()  # next() is atomic under the GIL: every thread gets another number
        for turn in self._order[:AHEAD]:
            _prefetch(turn)

    def again(self) -> Loading:
        """Returns a new Loading of the same pieces."""
        return Loading([piece for turn in self._order for piece in turn])

    def run(self) -> None:
        """Loads turns, roughly in order, until all are started."""
        while (index := next(self._numbers)) < len(self._order):
            if index + AHEAD < len(self._order):
                _prefetch(self._order[index + AHEAD])
            for piece in self._order[index]:
                piece.load()
            for span in spans(self._order[index]):
                span.file.release(span.first, span.last - span.first)

    def run_in_background(self) -> None:
        """`run`, concurrently with a thread that runs Python."""
        with short_switch_interval():
            self.run()


_intervals: list[float] = []  # the normal interval, once per thread that needs the short one
_lock = ForkLock()


@contextmanager
def short_switch_interval() -> Iterator[None]:
    """Sets the interpreter's switch interval to 0.5 ms: a piece takes less than the normal 5 ms."""
    with _lock:
        _intervals.append(_intervals[0] if _intervals else sys.getswitchinterval())
        sys.setswitchinterval(min(_intervals[0], _SWITCH_S))
    try:
        yield
    finally:
        with _lock:
            before = _intervals.pop()
            if not _intervals:
                sys.setswitchinterval(before)


def load_all(todo: Sequence[Piece], threads: int) -> None:
    """Loads pieces with several threads. Raises what a thread raised."""
    loading = Loading(todo)
    if threads == 1:
        loading.run()
        return
    from concurrent.futures import ThreadPoolExecutor  # with logging 6 ms; not needed where nothing is loaded

    with ThreadPoolExecutor(threads) as executor:
        for ended in [executor.submit(loading.run) for _ in range(threads)]:
            ended.result()


def _prefetch(turn: Sequence[Piece]) -> None:
    for span in spans(turn):
        span.file.prefetch(span.first, span.last - span.first)
