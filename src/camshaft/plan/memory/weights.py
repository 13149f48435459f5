"""Weights: constants in each memory space, packed or mapped once and shared by plans."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from camshaft.formats.tensor import FileTensor
from camshaft.plan.memory.allocate import aligned_bytes, huge_pages, keep_in_memory
from camshaft.plan.memory.loading import Loading, LoadRequest, Piece, load_all, load_request, pieces
from camshaft.process import ForkLock

if TYPE_CHECKING:
    from concurrent.futures import Future

    from camshaft.backends.device import Device, Memory
    from camshaft.graph.graph import Source, Tensor
    from camshaft.plan.memory.mapped_weights import MappedWeights
    from camshaft.plan.memory.weight_cache import WeightCache

Array = np.ndarray[Any, Any]
_ALIGNMENT = 64
# Larger tensors of a mapped file, which has 4 KiB pages, are copied to huge pages: one and two Zen 4 cores under a hypervisor
# read F16 rows of 576 at 18 and 28 GB/s from the file, and at 24 and 33 from huge pages.
COPIED_NBYTES = 1 << 16


class Weights:
    """Loaded constants by source, layout and space. Plans of a model share one, so each weight is packed and uploaded once. Some
    may be `mapped`: in files, of which only the pages that kernels read take memory. Those in host memory may be `locked`: once
    they are loaded the system swaps none of them. A `cache` has what an earlier process packed."""

    def __init__(
        self, mapped: MappedWeights | None = None, *, locked: bool = False, cache: WeightCache | None = None
    ) -> None:
        self.mapped, self._locked, self._cache = mapped, locked, cache
        self._loaded: dict[tuple[Source, str], Array] = {}
        self._requests: dict[tuple[Source, str], LoadRequest] = {}  # how each one was loaded
        self._uploaded: dict[tuple[str, tuple[Source, str]], Memory] = {}
        self._begun: tuple[dict[tuple[Source, str], Array], Loading, list[Future[None]]] | None = None
        self._lock = ForkLock()  # a plan may be made while another runs

    def begin(self, constants: Iterable[Tensor], threads: int) -> None:
        """Starts loading missing constants in the background; with one thread it does nothing.

        `prepare` finishes the work on the calling thread and raises any error from it.
        """
        if threads > 1:
            self.begin_requests([load_request(tensor) for tensor in constants], threads)

    def begin_requests(self, constants: Iterable[LoadRequest], threads: int) -> None:
        """Like `begin`, for the constants of a cached plan; with one thread `finish` loads them."""
        with self._lock:
            self.finish()
            found, todo = self._places(constants)
            loading = Loading(todo)
            self._begun = found, loading, []
            if threads > 1:
                from concurrent.futures import (
                    ThreadPoolExecutor,  # with logging 6 ms; not needed without large constants
                )

                executor = ThreadPoolExecutor(threads - 1)
                self._begun = found, loading, [executor.submit(loading.run_in_background) for _ in range(threads - 1)]
                executor.shutdown(wait=False)

    def place(self, constant: LoadRequest) -> Array:
        """Returns a constant's memory once its loading has started; the bytes may still be loading."""
        with self._lock:
            found = self._begun[0] if self._begun is not None else {}
            return found[constant.key] if constant.key in found else self._loaded[constant.key]

    def finish(self) -> None:
        """Finishes the loading on the calling thread and raises any error from it: PlanError too, where memory cannot be locked.

        After an error or Ctrl-C, loading restarts from the beginning: it is unknown which pieces were lost, and a plan may
        already be bound to their memory.
        """
        if self._begun is None:  # each run asks
            return
        with self._lock:
            if self._begun is None:
                return
            found, loading, threads = self._begun
            try:
                loading.run()
                for ended in threads:
                    ended.result()
            except BaseException:
                self._begun = found, loading.again(), []
                raise
            self._keep(found)
            self._begun = None

    def _keep(self, found: dict[tuple[Source, str], Array]) -> None:
        if self.mapped is not None:
            self.mapped.finish()
        for array in found.values() if self._locked else ():
            keep_in_memory(array)
        if self._cache is not None:
            self._cache.finish()
        self._loaded |= found

    def prepare(self, constants: Iterable[Tensor], threads: int) -> None:
        """Loads missing constants, several pieces in parallel."""
        with self._lock:
            self.finish()
            found, todo = self._places([load_request(tensor) for tensor in constants])
            if todo:
                load_all(todo, threads)
            self._keep(found)

    def _places(self, constants: Iterable[LoadRequest]) -> tuple[dict[tuple[Source, str], Array], list[Piece]]:
        """Allocates memory for missing constants and returns the pieces to load into it."""
        missing = {constant.key: constant for constant in constants if constant.key not in self._loaded}
        self._requests |= missing
        found, todo = self._mapped_places(missing)
        rest = [(constant, _is_pooled(constant)) for key, constant in missing.items() if key not in found]
        found |= {constant.key: constant.source.data() for constant, is_pooled in rest if not is_pooled}
        pooled = [constant for constant, is_pooled in rest if is_pooled]
        if self._cache is not None:
            self._cache.begin()
            cached, pooled = self._cache.divided(pooled)
            todo += _pool(cached, found, self._cache.memory)
        todo += _pool(pooled, found, lambda constants, nbytes: (huge_pages(nbytes), False))
        return found, todo

    def _mapped_places(
        self, missing: dict[tuple[Source, str], LoadRequest]
    ) -> tuple[dict[tuple[Source, str], Array], list[Piece]]:
        """The memory of the constants that are mapped, and the pieces of those that were not packed before."""
        found: dict[tuple[Source, str], Array] = {}
        todo: list[Piece] = []
        mine = missing.items() if self.mapped is not None else ()
        for key, constant in mine:
            assert self.mapped is not None
            if self.mapped.has(constant):
                found[key], is_whole = self.mapped.place(constant)
                todo += () if is_whole else pieces(constant, found[key])
        return found, todo

    def loaded(self) -> list[tuple[LoadRequest, Array]]:
        """Returns the constants in host memory, with their bytes."""
        return [(self._requests[key], array) for key, array in self._loaded.items()]

    def upload(self, constants: Iterable[Tensor], device: Device, threads: int) -> None:
        """Uploads missing constants to a device. Packs a few at a time on the host and keeps no host copy."""
        missing = {_key(t): t for t in constants if (device.space, _key(t)) not in self._uploaded}
        rest = list(missing.items())
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(threads) as executor:
            while rest:
                batch, rest = rest[: 2 * threads], rest[2 * threads :]
                for (key, _), packed in zip(batch, executor.map(_load_alone, (t for _, t in batch)), strict=True):
                    memory = self._uploaded[device.space, key] = device.allocate(packed.nbytes)
                    memory.write(packed)

    def memory(self, tensor: Tensor) -> Array:
        """Returns the bytes of a prepared constant."""
        return self._loaded[_key(tensor)]

    def uploaded(self, tensor: Tensor, space: str) -> Memory:
        """Returns the device memory of an uploaded constant."""
        return self._uploaded[space, _key(tensor)]

    def keep_only(self, sources: Iterable[Source]) -> None:
        """Releases the constants of all other sources. Plans bound to them keep their memory until closed."""
        self.finish()
        kept = set(map(id, sources))
        for key in [key for key in self._loaded if id(key[0]) not in kept]:
            del self._loaded[key], self._requests[key]
        for where in [where for where in self._uploaded if id(where[1][0]) not in kept]:
            del self._uploaded[where]

    def clear(self) -> None:
        """Releases all constants. Plans bound to them keep their memory until closed."""
        self._begun = None
        if self.mapped is not None:
            self.mapped.close()
        if self._cache is not None:
            self._cache.close()
        self._loaded.clear()
        self._requests.clear()
        self._uploaded.clear()

    @property
    def nbytes(self) -> int:
        """Returns the size of all loaded constants, on the host and on devices."""
        return sum(m.nbytes for m in self._loaded.values()) + sum(m.nbytes for m in self._uploaded.values())


def _key(tensor: Tensor) -> tuple[Source, str]:
    assert tensor.source is not None
    return tensor.source, tensor.spec.layout.name


def _pool(
    constants: list[LoadRequest],
    found: dict[tuple[Source, str], Array],
    allocate: Callable[[list[LoadRequest], int], tuple[Array, bool]],
) -> list[Piece]:
    """Gives constants one piece of memory, in their order. `allocate` says too whether it has their bytes already; the pieces to
    load are returned."""
    spans = [-(-c.nbytes // _ALIGNMENT) * _ALIGNMENT for c in constants]
    pool, is_whole = allocate(constants, sum(spans))
    for constant, span, end in zip(constants, spans, np.cumsum(spans).tolist(), strict=True):
        found[constant.key] = pool[end - span : end - span + constant.nbytes]
    return [] if is_whole else [piece for c in constants for piece in pieces(c, found[c.key])]


def _is_made(constant: LoadRequest) -> bool:
    """Whether the constant needs new memory: it is packed, or its source is not 64-byte aligned."""
    return constant.packing is not None or bool(constant.source.data().ctypes.data % _ALIGNMENT)


def _is_pooled(constant: LoadRequest) -> bool:
    """Whether the constant goes into huge pages: if it needs new memory, or is large and in a mapped file."""
    is_mapped = isinstance(constant.source, FileTensor) and constant.source.is_mapped
    return (is_mapped and constant.nbytes >= COPIED_NBYTES) or _is_made(constant)


def _load_alone(tensor: Tensor) -> Array:
    constant = load_request(tensor)
    if not _is_made(constant):
        return constant.source.data()
    memory = aligned_bytes(constant.nbytes, _ALIGNMENT)
    load_all(list(pieces(constant, memory)), 1)
    return memory
