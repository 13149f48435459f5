"""A kernel that adds one, compiled for the played driver."""

from __future__ import annotations

from camshaft.backends.device import Place
from camshaft.dtypes import f32
from camshaft.lang import Array, CompileRequest, Tracer, ir
from camshaft.lang import kernel as a_kernel


@a_kernel
def add_one(k: Tracer, x: Array, out: Array, *, block: int) -> None:
    # out[i] = x[i] + 1
    for i in k.lanes(k.program(0) * block, (k.program(0) + 1) * block):
        out[i] = x[i] + 1.0


def compiled(device, n=256, scalar=None, block=64):
    arrays = (ir.ArrayParam("x", f32, (n,)), ir.ArrayParam("out", f32, (n,), True))
    grid = (ir.GridDim(n // block),) if scalar is None else (ir.GridDim(1, scalar, block),)
    return device.compile(CompileRequest(add_one, arrays, () if scalar is None else (scalar,), {"block": block}, grid))


def places(*memories):
    return tuple(Place(m, 0, m.nbytes) for m in memories)
