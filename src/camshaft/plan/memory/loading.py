"""Load constants into memory in pieces, several at once, and give the file's pages back behind.

A piece's pages are asked for a few pieces before it is packed, so that the system reads while others are packed, and let go
right after: beside the packed weights only some pieces of the file are in memory at a time.
"""

from __future__ import annotations

import itertools
import mmap
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from camshaft.backends.cpu.loaded import Packing
from camshaft.formats.mapped import MappedFile
from camshaft.formats.tensor import FileTensor

if TYPE_CHECKING:
    from camshaft.graph.graph import Source, Tensor

Array = np.ndarray[Any, Any]
# Of the file, a thread's turn: beside the packed weights so much per thread is in memory, and each turn's pages are given back
# by a call or two, which interrupts the other threads.
TURN_NBYTES = 1 << 22
_TURN_S = 0.0005
AHEAD = 4  # turns asked for before they come


class Span(NamedTuple):
    """Bytes [first, last) of a mapped file."""

    file: MappedFile
    first: int
    last: int


@dataclass(frozen=True)
class Wanted:
    """A constant to bring into memory: its source, the name of its layout, its bytes there, and how they are packed, if so."""

    source: Source
    layout: str
    nbytes: int
    packing: Packing | None

    @property
    def key(self) -> tuple[Source, str]:
        """What two constants have in common that can share their bytes."""
        return self.source, self.layout


def wanted(tensor: Tensor) -> Wanted:
    """A graph's constant, as it is to be loaded."""
    source, spec = tensor.source, tensor.spec
    assert source is not None
    packing = None
    if spec.layout.name == "interleaved":
        from camshaft.ops.quantized.pack_kernels import packing_of  # here: a kept plan brings its packing along

        packing = packing_of(spec)
    return Wanted(source, spec.layout.name, spec.nbytes, packing)


@dataclass(frozen=True)
class Piece:
    """Bytes [first, last) of a source, and their place: `tiles` of a packed weight, or the same bytes of plain memory."""

    source: Source
    packing: Packing | None
    memory: Array
    first: int
    last: int
    tiles: tuple[int, int]

    def load(self) -> None:
        """Packs or copies it, without the GIL."""
        data = self.source.data()
        if self.packing is None:
            self.memory[self.first : self.last] = data[self.first : self.last]
        else:
            self.packing.pack(data, self.memory, *self.tiles)

    def span(self) -> Span | None:
        """Its place in a mapped file."""
        mapped = self.source.mapped if isinstance(self.source, FileTensor) else None
        return None if mapped is None else Span(mapped[0], mapped[1] + self.first, mapped[1] + self.last)


def pieces(constant: Wanted, memory: Array) -> Iterator[Piece]:
    """A constant cut into pieces; whole where its file hands out copies."""
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
    """Pieces in the order of the file, so many together that a turn has TURN_NBYTES of it or little more."""
    made: list[list[Piece]] = []
    room = 0
    for piece in sorted(todo, key=_place):
        if room <= 0:
            made.append([])
            room = TURN_NBYTES
        made[-1].append(piece)
        room -= piece.last - piece.first
    return made


def _place(piece: Piece) -> int:
    span = piece.span()
    return -1 if span is None else span.first


def spans(turn: Sequence[Piece]) -> list[Span]:
    """The places of a turn's pieces; neighbours, a page apart at most, are one."""
    found: list[Span] = []
    for span in filter(None, (piece.span() for piece in turn)):
        if found and found[-1].file is span.file and 0 <= span.first - found[-1].last <= mmap.PAGESIZE:
            found[-1] = found[-1]._replace(last=span.last)
        else:
            found.append(span)
    return found


class Loading:
    """Pieces that any number of threads load, a turn each time, by calling `run`: it ends when no turn is left to begin."""

    def __init__(self, todo: Sequence[Piece]) -> None:
        self._order = turns(todo)
        self._numbers = itertools.count()  # one step of the interpreter: no two threads get the same
        for turn in self._order[:AHEAD]:
            _expect(turn)

    def again(self) -> Loading:
        """The same pieces, none of them begun."""
        return Loading([piece for turn in self._order for piece in turn])

    def run(self) -> None:
        """Loads turns in about their order until all are begun."""
        while (index := next(self._numbers)) < len(self._order):
            if index + AHEAD < len(self._order):
                _expect(self._order[index + AHEAD])
            for piece in self._order[index]:
                piece.load()
            for span in spans(self._order[index]):
                span.file.release(span.first, span.last - span.first)

    def beside(self) -> None:
        """`run` beside a thread that runs Python."""
        with _short_turns():
            self.run()


_short: list[float] = []  # the interval before, once for each thread that wants it short
_lock = threading.Lock()


@contextmanager
def _short_turns() -> Iterator[None]:
    """A piece takes less than the 5 ms for which a thread that wants the interpreter waits: they are 0.5 meanwhile."""
    with _lock:
        _short.append(_short[0] if _short else sys.getswitchinterval())
        sys.setswitchinterval(min(_short[0], _TURN_S))
    try:
        yield
    finally:
        with _lock:
            before = _short.pop()
            if not _short:
                sys.setswitchinterval(before)


def load_all(todo: Sequence[Piece], threads: int) -> None:
    """Loads pieces, several turns at once. What a thread raises is raised here."""
    loading = Loading(todo)
    if threads == 1:
        loading.run()
        return
    with ThreadPoolExecutor(threads) as executor:
        for ended in [executor.submit(loading.run) for _ in range(threads)]:
            ended.result()


def _expect(turn: Sequence[Piece]) -> None:
    for span in spans(turn):
        span.file.prefetch(span.first, span.last - span.first)
