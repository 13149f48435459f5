"""Kernels of 200 floats, and memory of a Metal device, for tests on the fake of PyObjC's module."""

from __future__ import annotations

import numpy as np

from camshaft.backends.device import Place
from camshaft.dtypes import f32
from camshaft.lang import CompileRequest, ir, kernel

N = 200


@kernel
def doubled(k, x, out):
    for c in k.lanes(k.program(0) * 50, k.program(0) * 50 + 50):
        out[c] = x[c] + x[c]


def compiled(device, function=doubled, grid=4, scalars=()):
    params = (ir.ArrayParam("x", f32, (N,)), ir.ArrayParam("out", f32, (N,), True))
    return device.compile(CompileRequest(function, params, tuple(scalars), {}, (ir.GridDim(grid),)))


def memory_of(device, values):
    memory = device.allocate(4 * len(values))
    memory.write(values.view(np.uint8))
    return memory


def floats(memory):
    return memory.read().view(np.float32)


def whole(memory):
    return Place(memory, 0, memory.nbytes)


X = np.arange(N, dtype=np.float32)
