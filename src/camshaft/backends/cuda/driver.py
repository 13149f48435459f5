"""The CUDA driver API through cuda-bindings (extra `cuda`), with errors raised as BackendError."""

from __future__ import annotations

import functools
from typing import Any

from camshaft.errors import BackendError, MissingExtraError

PACKAGE, EXTRA = "cuda-bindings", "cuda"
# emit/ writes PTX 8.0, which requires CUDA 12.0. A driver version is 1000 * major + 10 * minor.
OLDEST_DRIVER = 12000
OLDEST_CAPABILITY = (8, 0)


@functools.cache
def bindings() -> Any:
    """Returns the module cuda.bindings.driver. MissingExtraError if the package is not installed."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise MissingExtraError(PACKAGE, EXTRA, "the backend 'cuda'") from error
    return driver


class DriverError(BackendError):
    """A driver call failed. `code` is the driver's name of the error."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


def driver_call(call: str, *args: Any) -> Any:
    """Calls a driver function. Returns its result, a tuple of several results, or None. DriverError with the driver's message."""
    driver = bindings()
    status, *values = getattr(driver, call)(*args)
    if int(status) != 0:
        raise DriverError(f"{call}: {_message(driver, status)}", _name(driver, status))
    return (values[0] if len(values) == 1 else tuple(values)) if values else None


def _name(driver: Any, status: Any) -> str:
    return _text(driver.cuGetErrorName(status)) or str(int(status))


def _message(driver: Any, status: Any) -> str:
    return f"{_text(driver.cuGetErrorString(status)) or 'an unknown error'} ({_name(driver, status)})"


def _text(answer: Any) -> str:
    status, text = answer
    return text.decode() if int(status) == 0 and text else ""


def version_text(version: int) -> str:
    """Formats 12040 as '12.4'."""
    return f"{version // 1000}.{version % 1000 // 10}"


def absent_reason() -> str | None:
    """Returns None if a recent enough driver finds a GPU, else one line that says what is missing."""
    try:
        bindings()
    except MissingExtraError as error:
        return str(error)
    try:
        driver_call("cuInit", 0)
        version, count = driver_call("cuDriverGetVersion"), driver_call("cuDeviceGetCount")
    except DriverError as error:
        return "the NVIDIA driver sees no GPU" if error.code == "CUDA_ERROR_NO_DEVICE" else str(error)
    except RuntimeError:  # cuda-bindings cannot open libcuda.so.1 or nvcuda.dll
        return "no NVIDIA driver is installed (its library libcuda.so.1, on Windows nvcuda.dll, is not found)"
    if version < OLDEST_DRIVER:
        return f"the NVIDIA driver is of CUDA {version_text(version)}; wanted {version_text(OLDEST_DRIVER)} or newer"
    return None if count else "the NVIDIA driver sees no GPU"


def capability_reason(capability: tuple[int, int]) -> str | None:
    """Returns why kernels cannot run on a GPU with this compute capability, or None."""
    if capability >= OLDEST_CAPABILITY:
        return None
    oldest = ".".join(map(str, OLDEST_CAPABILITY))
    return f"compute capability {capability[0]}.{capability[1]}; wanted {oldest} or newer"
