"""Detect the host: CPU, features, caches, memory, LLVM, BLAS libraries."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from camshaft.backends.blas import library as blas
from camshaft.backends.cpu.compile import host_target
from camshaft.backends.cpu.device import cpu_device
from camshaft.errors import CamshaftError, count, shortened
from camshaft.process import thread_count
from camshaft.settings import settings

_SYS_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_MAC_CACHES = {"l1d": "hw.l1dcachesize", "l2": "hw.l2cachesize", "l3": "hw.l3cachesize"}


@dataclass(frozen=True)
class BlasLibraryInfo:
    """A BLAS library. `used_by` is the user, `core` the processor type that its kernels target; None means unknown."""

    name: str
    used_by: str
    version: str | None
    core: str | None
    threads: int | None
    path: str | None
    absent: str | None = None


@dataclass(frozen=True)
class RuntimeCapabilities:
    """The resources available to this process. Sizes in bytes; None if the operating system does not report one."""

    cpu_name: str | None
    llvm_cpu: str
    architecture: str
    features: frozenset[str]
    lanes: int
    cores: int
    threads: int
    cache_nbytes: dict[str, int | None]
    memory_nbytes: int | None
    llvm_version: str
    llvmlite_version: str
    blas: tuple[BlasLibraryInfo, ...]
    cache_dir: str

    def __repr__(self) -> str:
        cpu = f"{self.cpu_name or 'unknown CPU'}, {self.llvm_cpu}, {self.architecture}"
        return f"RuntimeCapabilities({shortened(cpu)}; {count(self.cores, 'core')}, {count(self.lanes, 'lane')} of f32)"


def hardware() -> tuple[str | None, int, tuple[int | None, ...]]:
    """Returns what differs between machines that run the same code: the CPU's name, core count, cache sizes."""
    return _cpu_name(), os.cpu_count() or 1, tuple(_caches().values())


def capabilities() -> RuntimeCapabilities:
    """Detect the host's capabilities now."""
    host, device = host_target(), cpu_device("simd")
    return RuntimeCapabilities(
        cpu_name=_cpu_name(),
        llvm_cpu=host.cpu,
        architecture=device.architecture,
        features=device.features,
        lanes=device.lanes,
        cores=os.cpu_count() or 1,
        threads=thread_count(),
        cache_nbytes=_caches(),
        memory_nbytes=memory_nbytes(),
        llvm_version=host.llvm_version,
        llvmlite_version=host.llvmlite_version,
        blas=(_own_blas(), _numpy_blas()),
        cache_dir=str(settings().cache_dir),
    )


def _own_blas() -> BlasLibraryInfo:
    try:
        found = blas.blas_library()
    except CamshaftError as error:
        return BlasLibraryInfo(blas.PACKAGE, "backend blas", None, None, None, None, str(error))
    return BlasLibraryInfo(found.name, "backend blas", found.version, found.core, found.threads, found.path)


def _numpy_blas() -> BlasLibraryInfo:
    config = np.show_config(mode="dicts") or {}
    row = config.get("Build Dependencies", {}).get("blas", {})
    return BlasLibraryInfo(str(row.get("name", "unknown")), "NumPy", row.get("version"), None, None, None)


def _cpu_name() -> str | None:
    if sys.platform == "darwin":
        raw = _sysctl("machdep.cpu.brand_string")
        return raw.rstrip(b"\0").decode() if raw else None
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Model", "cpu model"):
                return value.strip()
        return None
    return platform.processor() or None


def _caches() -> dict[str, int | None]:
    found: dict[str, int | None] = dict.fromkeys(("l1d", "l2", "l3"))
    if sys.platform == "darwin":
        for level, name in _MAC_CACHES.items():
            raw = _sysctl(name)
            found[level] = int.from_bytes(raw, "little") if raw else None
    for index in sorted(_SYS_CACHES.glob("index*")) if sys.platform == "linux" else ():
        level, kind = (index / "level").read_text().strip(), (index / "type").read_text().strip()
        if kind != "Instruction":
            found["l1d" if level == "1" else f"l{level}"] = _size((index / "size").read_text().strip())
    return found


def _size(text: str) -> int | None:
    digits, unit = text.rstrip("KMG"), text[-1:]
    return int(digits) * _UNITS.get(unit, 1) if digits.isdigit() else None


def memory_nbytes() -> int | None:
    """Bytes of the machine's memory; None if unknown."""
    if sys.platform == "darwin":
        raw = _sysctl("hw.memsize")
        return int.from_bytes(raw, "little") if raw else None
    if sys.platform == "linux":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def _sysctl(name: str) -> bytes | None:
    """A value of macOS's sysctl, or None if the name is unknown."""
    libc = ctypes.CDLL(None)
    size = ctypes.c_size_t(0)
    if libc.sysctlbyname(name.encode(), None, ctypes.byref(size), None, 0) != 0:
        return None
    buffer = ctypes.create_string_buffer(size.value)
    if libc.sysctlbyname(name.encode(), buffer, ctypes.byref(size), None, 0) != 0:
        return None
    return buffer.raw[: size.value]
