"""The kernels that ops launch: every variant's, for its first and its last sample, and the arguments of a launch."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from camshaft import ops
from camshaft.lang import ir
from camshaft.ops.kernels.launch import Signature, signature
from camshaft.ops.op import HostCall, Launch, Op
from camshaft.validation.validate import node_of
from tests.support.samples import is_row, samples


@dataclass(frozen=True)
class OpKernel:
    """A traced, verified kernel of an op's variant. `lanes`: what its launch asks for, or None."""

    op: str
    variant: str
    kernel: ir.KernelIR
    lanes: int | None

    @property
    def symbol(self) -> str:
        return f"{self.op}_{self.variant}_{self.kernel.name}"


def op_kernels(
    target,
    ends: tuple[int, ...] = (0, -1),
    rows: tuple[int, ...] | None = None,
    takes: Callable[[Op], bool] = lambda op: True,
) -> Iterator[OpKernel]:
    """Kernels of all variants that speak of the target's backend, of the samples at `ends` among those that each supports;
    of a family's row at `rows`, if given. `takes`: of which ops."""
    for op in filter(takes, ops.all_ops()):
        every = [node_of(op, sample) for sample in samples(op.name)]
        for variant in op.variants:
            if target.backend not in variant.backends:
                continue
            nodes = [node for node in every if variant.supports(node, target) is None]
            taken = rows if rows is not None and is_row(op) else ends
            for node in {end % len(nodes): nodes[end] for end in taken if nodes}.values():
                build = variant.build(node, target)
                for launch in () if isinstance(build, HostCall) else build.launches:
                    if isinstance(launch, Launch):
                        made = signature(launch, node, build)
                        yield OpKernel(op.name, variant.name, made.request(launch).trace(), launch.lanes)


def arguments_at(args: int, made: Signature) -> tuple[list[np.ndarray], list[int]]:
    """The arrays and scalars of a launch's argument block, read as native code would."""
    block = (ctypes.c_int64 * (len(made.arrays) + len(made.scalars))).from_address(args)
    views = [
        np.ctypeslib.as_array((ctypes.c_uint8 * (math.prod(a.shape) * a.dtype.nbytes)).from_address(at))
        .view(a.dtype.numpy)
        .reshape(a.shape)
        for a, at in zip(made.arrays, block, strict=False)
    ]
    return views, [ctypes.c_int64.from_address(at).value for at in block[len(made.arrays) :]]
