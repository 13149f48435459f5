"""WeightCache: packed weights in a file, which the next start maps in place of packing them.

Fresh memory for packed weights, and packing them, took 0.45 s of a 0.5B model's first token (one core of an Emerald Rapids); a
mapped file takes 0.02 s. Kernels read a file's 4 KiB pages 5 to 15 % slower than huge pages, so once the first runs are over a
thread copies them to huge pages, at the same address.
"""

from __future__ import annotations

import atexit
import ctypes
import mmap
import os
import shutil
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakSet

from camshaft.errors import StoreError
from camshaft.formats.tensor import FileTensor
from camshaft.plan.memory.allocate import HUGE_PAGE, Memory, huge_pages
from camshaft.plan.memory.loading import LoadRequest
from camshaft.process import renewed
from camshaft.store.file_lock import SAFE_FLAGS
from camshaft.store.files import atomic_file, digest_of, is_ours, naming, remove_unfinished
from camshaft.store.store import store
from camshaft.version import __version__

LEAST_NBYTES = 32 << 20  # SmolLM2's 60 MB take 37 ms to pack
# Files take at most this part of the disk's free space.
MOST_OF_DISK = 0.1
MOST_FILES = 4  # of a model: another set of weights, or a CPU level that packs in another way, is another file
PATIENCE_S = 1.0  # the first runs come before huge pages
END_S = 2.0  # how long a model that is closed waits for a file to be written: 376 MB take 0.3 to 1 s
_CHUNK = 16 << 20
_MOVED = 64 << 20  # at once: what the move takes beside the weights, and whole huge pages
_SUFFIX = ".weights"
# Of Linux, for which Python has no names: MREMAP_MAYMOVE, MREMAP_FIXED and MREMAP_DONTUNMAP.
_MOVE_ONTO = 1 | 2 | 4
_MAP_FIXED = 0x10


@dataclass(frozen=True)
class _Pool:
    """Memory of packed weights, the file that has or gets its bytes, and whether it is that file's."""

    memory: Memory
    path: Path
    is_mapped: bool


class WeightCache:
    """The packed weights of one model, in files of `folder`, which `make_folder` makes. For Linux, where a range of memory can
    replace another one."""

    def __init__(self, folder: Path, make_folder: Callable[[], object]) -> None:
        self._folder, self._make_folder = folder, make_folder
        self._pools: list[_Pool] = []
        self._writers: list[threading.Thread] = []
        self._closed = threading.Event()
        renewed(self)
        _open.add(self)

    def renew(self) -> None:
        """Do without the parent's threads, in a forked child, and without a lock that one of them may have held."""
        self._writers, self._closed = [], threading.Event()

    def begin(self) -> None:
        """Forgets memory whose loading failed: its bytes are not whole."""
        self._pools = []

    def divided(self, constants: Sequence[LoadRequest]) -> tuple[list[LoadRequest], list[LoadRequest]]:
        """Returns the constants that are packed from a file, whose bytes follow from the file's, in the same order for each plan,
        and the others."""
        packed = [c for c in constants if c.packing is not None and getattr(c.source, "is_mapped", False)]
        known = {c.key for c in packed}
        return sorted(packed, key=_facts), [c for c in constants if c.key not in known]

    def memory(self, constants: Sequence[LoadRequest], nbytes: int) -> tuple[Memory, bool]:
        """Returns memory for constants that lie in it in this order, and whether it has their bytes already."""
        if nbytes < LEAST_NBYTES:
            return huge_pages(nbytes), False
        path = self._folder / f"{digest_of(__version__, *map(_facts, constants))}{_SUFFIX}"
        mapped = _mapped(path, nbytes)
        self._pools.append(_Pool(huge_pages(nbytes) if mapped is None else mapped, path, mapped is not None))
        return self._pools[-1].memory, mapped is not None

    def finish(self) -> None:
        """Begins to write what was packed, and to copy what was mapped to huge pages, in the background."""
        pools, self._pools = self._pools, []
        if any(not pool.is_mapped for pool in pools):
            self._writers += _begun(self._write_all, pools)
        if any(pool.is_mapped for pool in pools):
            _begun(self._enlarge_all, pools)

    def close(self) -> None:
        """Ends the work in the background: a file in progress within END_S, or else without it."""
        for writer in self._writers:
            writer.join(END_S)
        self._closed.set()
        self._pools, self._writers = [], []

    def _write_all(self, pools: list[_Pool]) -> None:
        try:
            for pool in pools:
                if not pool.is_mapped:
                    self._write(pool)
        except StoreError as error:
            store().go_on_without(error)

    def _enlarge_all(self, pools: list[_Pool]) -> None:
        self._closed.wait(PATIENCE_S)
        remove_unfinished(self._folder)  # of a start beside the one that wrote the file, killed meanwhile
        for pool in pools:
            if pool.is_mapped and not self._closed.is_set():
                self._enlarge(pool.memory)

    def _write(self, pool: _Pool) -> None:
        self._make_folder()
        remove_unfinished(self._folder)
        with naming(self._folder, "cannot be used"):
            is_small = pool.memory.nbytes <= MOST_OF_DISK * shutil.disk_usage(self._folder).free
        if not is_small:
            return
        with suppress(_Closed), atomic_file(pool.path, durable=True) as file:
            for first in range(0, pool.memory.nbytes, _CHUNK):
                self._go_on()
                file.write(pool.memory[first : first + _CHUNK].data)
        with naming(self._folder, "cannot be used"), suppress(FileNotFoundError):  # another process removed one
            files = sorted(self._folder.glob(f"*{_SUFFIX}"), key=lambda path: path.stat().st_mtime_ns)
            for old in files[:-MOST_FILES]:
                old.unlink(missing_ok=True)

    def _enlarge(self, memory: Memory) -> None:
        """Replaces the pages of a mapped file by huge pages with the same bytes. Reads in the meantime see either."""
        try:
            fresh = huge_pages(min(memory.nbytes, _MOVED))
        except MemoryError:  # the file's pages stay
            return
        for first in range(0, memory.nbytes, _MOVED):
            place = memory[first : first + _MOVED]
            if self._closed.is_set():
                return
            fresh[: place.nbytes] = place
            span, to = ctypes.c_size_t(_whole_pages(place.nbytes)), place.ctypes.data
            # The fresh range stays mapped, without pages. Linux before 5.7 refuses: the file's pages stay.
            if _call("mremap", fresh.ctypes.data, span, span, _MOVE_ONTO, ctypes.c_void_p(to)) != to:
                return

    def _go_on(self) -> None:
        if self._closed.is_set():
            raise _Closed


def _begun(work: Callable[[list[_Pool]], None], pools: list[_Pool]) -> list[threading.Thread]:
    thread = threading.Thread(target=work, args=(pools,), name="camshaft weights", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no thread, or memory for one, is left: the weights are there without the work
        return []
    return [thread]


_open: WeakSet[WeightCache] = WeakSet()


@atexit.register
def _close_all() -> None:
    """Waits for the files of models that a program never closed: a file in progress would be left, and written at every start."""
    for cache in list(_open):
        cache.close()


class _Closed(Exception):
    """The model was closed meanwhile."""


def _facts(constant: LoadRequest) -> str:
    """What a packed weight's bytes follow from, and its size."""
    source, packing = constant.source, constant.packing
    assert isinstance(source, FileTensor)
    assert source.mapped is not None
    assert packing is not None
    file, offset = source.mapped
    sizes = packing.kernel.key, packing.codes, packing.scales, packing.extra
    return repr((file.identity, offset, source.format.name, source.shape, constant.layout, constant.nbytes, sizes))


def _mapped(path: Path, nbytes: int) -> Memory | None:
    """A file's bytes as memory from a huge page boundary on; None where there is no whole file of this user's."""
    try:
        descriptor = os.open(path, os.O_RDONLY | SAFE_FLAGS)
    except OSError:  # none, or one that cannot be read: the weights are packed
        return None
    try:
        status = os.fstat(descriptor)
        if status.st_size != nbytes or not is_ours(status):
            return None
        memory = huge_pages(nbytes)
        flags = mmap.MAP_PRIVATE | _MAP_FIXED  # in place of the fresh pages, with which it is unmapped
        at, span, access = memory.ctypes.data, ctypes.c_size_t(nbytes), mmap.PROT_READ | mmap.PROT_WRITE
        if _call("mmap", at, span, access, flags, descriptor, ctypes.c_long(0)) != at:
            return None
        return memory
    finally:
        os.close(descriptor)


def _call(name: str, address: int, *rest: object) -> int:
    """Calls a function of libc that returns an address; -1 as an address where it fails."""
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    function.restype = ctypes.c_void_p
    return int(function(ctypes.c_void_p(address), *rest))


def _whole_pages(nbytes: int) -> int:
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE


def is_supported() -> bool:
    """Whether this system has the calls."""
    return sys.platform == "linux" and HUGE_PAGE % mmap.PAGESIZE == 0
