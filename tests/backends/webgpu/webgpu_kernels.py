"""Kernels and commands that the tests of WebGPU share."""

from __future__ import annotations

import numpy as np

from camshaft.backends.device import LaunchCommand, Place
from camshaft.backends.webgpu.adapters import adapters
from camshaft.backends.webgpu.device import WebGpuDevice, absent, make
from camshaft.dtypes import f32
from camshaft.lang import CompileRequest, ir, kernel
from tests.support.needs import require

N = 37


@kernel
def add_rows(k, x, y, out, *, n):
    row = k.program(0)
    for c in k.lanes(n):
        out[row, c] = x[row, c] + y[row, c]


@kernel
def scale(k, x, out, length, *, n):
    # out[r, :] = length * x[r, :] for the rows below length
    row = k.program(0)
    for c in k.lanes(n):
        out[row, c] = x[row, c] * length.to(f32)


def the_device() -> WebGpuDevice:
    """The best adapter's device; the test is skipped, or fails in CI, without one."""
    require(absent() is None, f"webgpu: {absent()}")
    return make(0)


def own_device(**limits: int) -> WebGpuDevice:
    """A device of the test's own, with some limits lowered."""
    require(absent() is None, f"webgpu: {absent()}")
    return WebGpuDevice("webgpu", adapters()[0], limits)


def add_kernel(device, rows=1, n=N):
    """x + y over [rows, n]."""
    arrays = tuple(ir.ArrayParam(name, f32, (rows, n), name == "out") for name in ("x", "y", "out"))
    return device.compile(CompileRequest(add_rows, arrays, (), {"n": n}, (ir.GridDim(rows),)))


def scale_kernel(device, rows, n=N):
    """length * x over the first `length` of [rows, n]; a run-time scalar gives both."""
    arrays = tuple(ir.ArrayParam(name, f32, (rows, n), name == "out") for name in ("x", "out"))
    return device.compile(CompileRequest(scale, arrays, ("length",), {"n": n}, (ir.GridDim(scalar="length"),)))


def memory_with(device, values) -> object:
    """Memory that holds the array's bytes."""
    raw = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
    memory = device.allocate(raw.nbytes)
    memory.write(raw)
    return memory


def whole(memory) -> Place:
    return Place(memory, 0, memory.nbytes)


def floats(memory) -> np.ndarray:
    return memory.read().view(np.float32)


def launch(kernel_, *places, **more) -> LaunchCommand:
    return LaunchCommand(kernel_.name, kernel_, tuple(places), **more)
