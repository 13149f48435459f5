"""A package from outside, as its author would write it: a device, a kernel for an op of camshaft, and a whole dispatcher."""

from __future__ import annotations

import dataclasses

import numpy as np

import camshaft
from camshaft.backends.cpu.device import cpu_device
from camshaft.backends.device import Backend, DeviceInfo
from camshaft.lang import kernel
from camshaft.ops import op as ops


def make(suffix: str):
    if suffix:
        raise camshaft.CamshaftError(f"acme has one device; there is no acme:{suffix}")
    return dataclasses.replace(cpu_device("simd"), name="acme", backend="acme")


BACKEND = Backend(
    name="acme",
    order=("acme", "simd"),
    absent=lambda: None,
    make=make,
    devices=lambda: (DeviceInfo("acme", "acme", "the outside device"),),
    version="1.0",
)


@kernel
def add_all(k, a, b, out, *, n):
    # y[i] = b[i] + a[i]
    for i in k.lanes(n):
        out[0, i] = b[0, i] + a[0, i]


def _build(node, target):
    n = int(np.prod(node.inputs[0].bounds))
    arrays = (ops.read(0, shape=(1, n)), ops.read(1, shape=(1, n)), ops.write(0, shape=(1, n)))
    return ops.Build((ops.Launch(add_all, arrays, (ops.Cells(1),), {"n": n}),))


def _supports(node, target):
    a, b = node.inputs
    whole = all(isinstance(d, int) for d in a.shape)
    return None if a.shape == b.shape and whole else "wants two tensors of one shape without an Extent"


def _cost(node, target):
    return 1e-3


def register(backend: str, module: str) -> None:
    """The kernel, for the acme device or for one of camshaft's own."""
    variant = ops.KernelVariant(f"acme_{backend}", frozenset({backend}), _build, _supports, _cost)
    camshaft.register_variant("add", variant, module)


register("acme", __name__)


class Dispatcher:
    """KernelDispatch in NumPy; `calls` tells what it was asked for."""

    name = "numpy"

    def __init__(self) -> None:
        self.calls: list[str] = []

    def mul_mat(self, a, b, out, *, transpose_b=False):
        self.calls.append("mul_mat")
        out.array[:] = a.array @ (b.array.T if transpose_b else b.array)

    def rms_norm(self, x, weight, out, *, eps):
        self.calls.append("rms_norm")
        out.array[:] = x.array / np.sqrt((x.array**2).mean(-1, keepdims=True) + eps) * weight.array

    def add(self, a, b, out):
        self.calls.append("add")
        out.array[:] = a.array + b.array

    def mul(self, a, b, out):
        self.calls.append("mul")
        out.array[:] = a.array * b.array

    def silu(self, x, out):
        self.calls.append("silu")
        out.array[:] = x.array / (1 + np.exp(-x.array))

    def copy(self, x, out):
        return NotImplementedError("no copies today")

    def rope(self, x, positions, table, out, **attrs):
        return "no rotations either"

    def attention(self, q, k_cache, v_cache, positions, slots, block_table, out, **attrs):
        return "nor attention"
