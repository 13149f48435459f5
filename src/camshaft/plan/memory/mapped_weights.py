"""MappedWeights: packed weights in files that are mapped, so that only pages that kernels read take memory.

A weight is packed into a file of its own, once: a later start maps what an earlier one packed. A file that is not whole has
another name, and is never read.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from camshaft.errors import PlanError, StoreError, reason_of
from camshaft.formats.tensor import FileTensor
from camshaft.plan.memory.loading import LoadRequest
from camshaft.store.file_lock import SAFE_FLAGS, owned_file
from camshaft.store.files import TEMPORARY_PREFIX, digest_of, is_ours, naming, private_folder, remove_unfinished
from camshaft.version import __version__

Array = np.ndarray[Any, Any]
_CHUNK = bytes(1 << 20)


@dataclass(frozen=True)
class MappedWeight:
    """A weight's bytes, their mapping and its open file, and where its parts begin and end."""

    array: Array
    mapping: mmap.mmap
    descriptor: int
    bounds: tuple[int, ...]

    def ranges(self, index: int, count: int) -> Iterator[tuple[int, int]]:
        """Yields the bytes [first, last) of item `index` of `count` in each part of a stack."""
        for first, last in zip(self.bounds, self.bounds[1:], strict=False):
            yield first + (last - first) * index // count, first + (last - first) * (index + 1) // count

    def prefetch(self, first: int, last: int) -> None:
        """Advises the system to read the pages of a range soon."""
        start = first // mmap.PAGESIZE * mmap.PAGESIZE
        self.mapping.madvise(mmap.MADV_WILLNEED, start, last - start)

    def drop(self, first: int, last: int) -> None:
        """Gives back the memory of the pages that lie in a range as a whole; a later read takes them from the file."""
        start = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE
        end = self.array.nbytes if last == self.array.nbytes else last // mmap.PAGESIZE * mmap.PAGESIZE
        if start < end:
            self.mapping.madvise(mmap.MADV_DONTNEED, start, end - start)
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(self.descriptor, start, end - start, os.POSIX_FADV_DONTNEED)


class MappedWeights:
    """The weights whose tensors' names `takes` accepts, in files of `folder`. `identity` says which model they are of.

    Raises PlanError on a system without advice on pages, StoreError for a folder that cannot be used."""

    def __init__(self, folder: Path, identity: str, takes: Callable[[str], bool]) -> None:
        if not hasattr(mmap, "MADV_DONTNEED"):
            raise PlanError("weights cannot be mapped: this system has no madvise")
        private_folder(folder)
        remove_unfinished(folder)
        self._folder, self._identity, self._takes = folder, identity, takes
        self._unfinished: list[tuple[MappedWeight, Path, Path]] = []
        self.weights: dict[str, MappedWeight] = {}  # by the tensor's name

    def has(self, constant: LoadRequest) -> bool:
        """Whether a constant belongs here."""
        return isinstance(constant.source, FileTensor) and self._takes(constant.source.name)

    def place(self, constant: LoadRequest) -> tuple[Array, bool]:
        """Returns a constant's mapped memory, and whether it has its bytes already. Raises StoreError if the disk is full."""
        assert isinstance(constant.source, FileTensor)
        name, packing = constant.source.name, constant.packing
        sizes = () if packing is None else (packing.kernel.key, packing.codes, packing.scales, packing.extra)
        facts = __version__, self._identity, name, constant.layout, constant.nbytes, constant.source.format.name, sizes
        path = self._folder / f"{digest_of(*map(str, facts))}.packed"
        bounds = tuple(sorted({*sizes[1:], 0, constant.nbytes}))
        weight = _opened(path, constant.nbytes, bounds)
        is_whole = weight is not None
        if weight is None:
            weight, temporary = _new_file(self._folder, constant.nbytes, bounds, path)
            self._unfinished.append((weight, temporary, path))
        self.weights[name] = weight
        return weight.array, is_whole

    def finish(self) -> None:
        """Gives the files that were packed their names, and their pages back. Raises StoreError if they cannot be written."""
        while self._unfinished:
            weight, temporary, path = self._unfinished[-1]
            with naming(path, "cannot be written"):
                weight.mapping.flush()
                os.replace(temporary, path)
            weight.drop(0, weight.array.nbytes)
            self._unfinished.pop()

    @property
    def nbytes(self) -> int:
        """The size of all mapped weights."""
        return sum(weight.array.nbytes for weight in self.weights.values())

    def close(self) -> None:
        """Closes the files. Arrays stay valid; the last one ends its mapping."""
        for _, temporary, _ in self._unfinished:
            with suppress(OSError):
                temporary.unlink()
        for weight in self.weights.values():
            os.close(weight.descriptor)
        self._unfinished.clear()
        self.weights.clear()


def _opened(path: Path, nbytes: int, bounds: tuple[int, ...]) -> MappedWeight | None:
    """A file that was packed before; None if there is none, or one of another size or that others may write."""
    try:
        descriptor = os.open(path, os.O_RDONLY | SAFE_FLAGS)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {reason_of(error)}") from error
    status = os.fstat(descriptor)
    if status.st_size != nbytes or not is_ours(status):
        os.close(descriptor)
        return None
    mapping = mmap.mmap(descriptor, nbytes, access=mmap.ACCESS_READ)
    return MappedWeight(np.frombuffer(mapping, np.uint8), mapping, descriptor, bounds)


def _new_file(folder: Path, nbytes: int, bounds: tuple[int, ...], path: Path) -> tuple[MappedWeight, Path]:
    """A new file of that size, mapped to be written."""
    with naming(path, f"{nbytes / 1e9:.2f} GB for packed weights cannot be written"):
        descriptor, temporary = owned_file(folder, TEMPORARY_PREFIX)
        try:
            _reserve(descriptor, nbytes)
            mapping = mmap.mmap(descriptor, nbytes)
        except BaseException:
            os.close(descriptor)
            temporary.unlink()
            raise
    return MappedWeight(np.frombuffer(mapping, np.uint8), mapping, descriptor, bounds), temporary


def _reserve(descriptor: int, nbytes: int) -> None:
    """Takes the disk's space now: writing to a mapping of a full disk kills the process. Raises OSError."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, 0, nbytes)
            return
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
    for done in range(0, nbytes, len(_CHUNK)):
        os.write(descriptor, _CHUNK[: nbytes - done])
