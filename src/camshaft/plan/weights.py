"""Weights: the memory of constants, packed or mapped once and shared by every plan that reads them. Used by compile.py."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np

from camshaft.graph.graph import Source, Tensor
from camshaft.ops.quantized_matmul.packing import INTERLEAVED, pack

Array = np.ndarray[Any, Any]
_ALIGNMENT = 64
_HUGE_PAGE = 1 << 21


class Weights:
    """Bytes by source and layout. One value serves all plans of a model, so each weight is packed once."""

    def __init__(self) -> None:
        self._held: dict[tuple[Source, str], Array] = {}

    def prepare(self, constants: Iterable[Tensor], threads: int) -> None:
        """Loads what is not held yet, several at once: packing runs without the GIL."""
        missing = {_key(t): t for t in constants if _key(t) not in self._held}
        tensors = list(missing.values())
        spans = [-(-t.spec.nbytes // _ALIGNMENT) * _ALIGNMENT if _is_made(t) else 0 for t in tensors]
        pool, places = _allocate(sum(spans)), np.cumsum([0, *spans])
        pieces = [pool[start : start + t.spec.nbytes] for t, start in zip(tensors, places[:-1], strict=True)]
        with ThreadPoolExecutor(threads) as executor:
            for key, memory in zip(missing, executor.map(_load, tensors, pieces), strict=True):
                self._held[key] = memory

    def memory(self, tensor: Tensor) -> Array:
        """The bytes of a constant that was prepared."""
        return self._held[_key(tensor)]

    def clear(self) -> None:
        """Lets go of all of them. Plans that were bound to them keep theirs until they are closed."""
        self._held.clear()

    @property
    def nbytes(self) -> int:
        """Bytes of all constants held."""
        return sum(m.nbytes for m in self._held.values())


def _key(tensor: Tensor) -> tuple[Source, str]:
    assert tensor.source is not None
    return tensor.source, tensor.spec.layout.name


def _is_made(tensor: Tensor) -> bool:
    """Whether the constant needs memory of its own: packed, or where the source's does not lie on 64 bytes."""
    assert tensor.source is not None
    return tensor.spec.layout is INTERLEAVED or bool(tensor.source.data().ctypes.data % _ALIGNMENT)


def _load(tensor: Tensor, memory: Array) -> Array:
    assert tensor.source is not None
    data = tensor.source.data()
    if tensor.spec.layout is INTERLEAVED:
        pack(data, tensor.spec, memory)
    elif data.ctypes.data % _ALIGNMENT:
        memory[:] = data
    else:
        return data
    return memory


def _allocate(nbytes: int) -> Array:
    """Memory for packed weights, in huge pages where the system has them: fewer faults at load, fewer misses later."""
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    pages = mmap.mmap(-1, nbytes + _HUGE_PAGE, **private)  # shared ones, its default, get huge pages on few systems
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages refuses the advice
            pages.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(pages, np.uint8)
    start = -whole.ctypes.data % _HUGE_PAGE
    return whole[start : start + nbytes]
