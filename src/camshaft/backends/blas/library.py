"""Find and open the BLAS library whose functions matmul calls: scipy-openblas32 (extra `blas`), or Accelerate on macOS."""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import importlib.util
import sys
from dataclasses import dataclass, field
from pathlib import Path

from camshaft.errors import BackendError, MissingExtraError

PACKAGE, EXTRA = "scipy-openblas32", "blas"
_SUFFIXES = (".so", ".dylib", ".dll")


@dataclass(frozen=True)
class BlasLibrary:
    """A loaded BLAS library.

    `core` is the processor that it selected kernels for. `sgemm` is the address of cblas_sgemm, valid for the lifetime of
    this value. `threads` is the library's thread count (None if it cannot be set).
    """

    name: str
    version: str | None
    core: str | None
    path: str
    threads: int | None
    sgemm: int = field(repr=False)
    library: ctypes.CDLL = field(repr=False, compare=False)

    def key(self) -> str:
        """Returns the key of validation results. Another version or core must be validated separately."""
        return f"{self.name}/{self.version}/{self.core}"


@functools.cache
def blas_library() -> BlasLibrary:
    """Opens the library and sets its thread count to 1, because camshaft's workers split the product.

    NumPy's BLAS is a separate library and is not changed. MissingExtraError if none is installed, BackendError if it cannot
    be opened or lacks cblas_sgemm.
    """
    path = openblas_path()
    if path is not None:
        return _open_openblas(path)
    if sys.platform == "darwin" and (found := ctypes.util.find_library("Accelerate")):
        return _open_accelerate(found)
    raise MissingExtraError(PACKAGE, EXTRA, "the backend 'blas'")


def openblas_path() -> Path | None:
    """Returns the path of scipy-openblas32's shared library; None if the package is not installed. Imports nothing."""
    spec = importlib.util.find_spec("scipy_openblas32")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "lib"
    found = sorted(p for p in folder.glob("*scipy_openblas*") if p.suffix in _SUFFIXES)
    if not found:
        raise BackendError(f"{folder}: {PACKAGE} is installed, but its library is not there")
    return found[0]


def absent() -> str | None:
    """Returns None if a BLAS can be used, else the reason and what to install."""
    try:
        blas_library()
    except (MissingExtraError, BackendError) as error:
        return str(error)
    return None


def _open(path: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(path)
    except OSError as error:
        raise BackendError(f"{path}: the BLAS library does not load: {error}") from error


def _address(library: ctypes.CDLL, name: str, path: str) -> int:
    if not hasattr(library, name):
        raise BackendError(f"{path}: the BLAS library has no {name}")
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


def _open_openblas(path: Path) -> BlasLibrary:
    library = _open(str(path))
    sgemm = _address(library, "scipy_cblas_sgemm", str(path))
    library.scipy_openblas_set_num_threads(1)
    library.scipy_openblas_get_corename.restype = ctypes.c_char_p
    core = library.scipy_openblas_get_corename().decode()
    from importlib.metadata import version as version_of  # takes 20 to 30 ms

    version = version_of(PACKAGE)
    threads = int(library.scipy_openblas_get_num_threads())
    return BlasLibrary(PACKAGE, version, core, str(path), threads, sgemm, library)


def _open_accelerate(path: str) -> BlasLibrary:
    # Accelerate's thread setting is per process and shared with NumPy, and the cores share its matrix unit: not changed.
    library = _open(path)
    return BlasLibrary("Accelerate", None, None, path, None, _address(library, "cblas_sgemm", path), library)
