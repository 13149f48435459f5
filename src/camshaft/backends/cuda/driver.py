"""The CUDA driver API through cuda-bindings (extra `cuda`), with errors raised as BackendError."""

from __future__ import annotations

import functools
from typing import Any

from camshaft.errors import BackendError, MissingExtraError

PACKAGE, EXTRA = "cuda-bindings", "cuda"
# PTX 8.0, which emit/ writes, came with CUDA 12.0; drivers count versions in thousands and tens.
OLDEST_DRIVER = 12000
OLDEST_CAPABILITY = (8, 0)


@functools.cache
def bindings() -> Any:
    """The module cuda.bindings.driver. MissingExtraError where the package is not installed."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise MissingExtraError(PACKAGE, EXTRA, "the backend 'cuda'") from error
    return driver


class DriverError(BackendError):
    """The driver refused a call; `code` is its name for why."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


def ask(call: str, *args: Any) -> Any:
    """Calls a function of the driver and gives its result, a tuple of several, or None. DriverError with the driver's words."""
    driver = bindings()
    status, *values = getattr(driver, call)(*args)
    if int(status) != 0:
        raise DriverError(f"{call}: {_words(driver, status)}", _name(driver, status))
    return (values[0] if len(values) == 1 else tuple(values)) if values else None


def _name(driver: Any, status: Any) -> str:
    return _text(driver.cuGetErrorName(status)) or str(int(status))


def _words(driver: Any, status: Any) -> str:
    return f"{_text(driver.cuGetErrorString(status)) or 'an unknown error'} ({_name(driver, status)})"


def _text(answer: Any) -> str:
    status, text = answer
    return text.decode() if int(status) == 0 and text else ""


def version_text(version: int) -> str:
    """12040 as '12.4'."""
    return f"{version // 1000}.{version % 1000 // 10}"


def absent_reason() -> str | None:
    """None where a driver that is new enough sees a GPU, else one line that says what is missing."""
    try:
        bindings()
    except MissingExtraError as error:
        return str(error)
    try:
        ask("cuInit", 0)
        version, count = ask("cuDriverGetVersion"), ask("cuDeviceGetCount")
    except DriverError as error:
        return "the NVIDIA driver sees no GPU" if error.code == "CUDA_ERROR_NO_DEVICE" else str(error)
    except RuntimeError:  # cuda-bindings cannot open libcuda.so.1 or nvcuda.dll
        return "no NVIDIA driver is installed (its library libcuda.so.1, on Windows nvcuda.dll, is not found)"
    if version < OLDEST_DRIVER:
        return f"the NVIDIA driver is of CUDA {version_text(version)}; wanted {version_text(OLDEST_DRIVER)} or newer"
    return None if count else "the NVIDIA driver sees no GPU"


def capability_reason(capability: tuple[int, int]) -> str | None:
    """None, or why kernels cannot run on a GPU of this compute capability."""
    if capability >= OLDEST_CAPABILITY:
        return None
    oldest = ".".join(map(str, OLDEST_CAPABILITY))
    return f"compute capability {capability[0]}.{capability[1]}; wanted {oldest} or newer"
