"""Elementwise kernels that take the number of elements at run time.

An op is elementwise where what it builds for tensors of one axis, an Extent, says so: one launch with a program for a fixed
number of elements. One kernel then serves every length, and every shape whose operands are contiguous alike; inputs of one
element are a second kernel, as broadcasting has it.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from camshaft.backends.cpu.device import CpuKernel, cpu_device
from camshaft.backends.device import HOST
from camshaft.dtypes import DType, as_dtype
from camshaft.errors import ShapeError
from camshaft.extent import Extent
from camshaft.ops.arguments import Operand
from camshaft.ops.kernels.launch import program_factors, signature
from camshaft.ops.op import Attrs, Build, Launch, NodeSpec, Op
from camshaft.ops.spec import TensorSpec
from camshaft.selection.choice import Choice
from camshaft.validation.run import compile_launch, native_code

# A length larger than any memory.
N = Extent("n", 1 << 48)
# With fewer elements to a program, the kernel is one of rows, not of elements.
LEAST_BLOCK = 64
Array = np.ndarray[Any, Any]
_FLAT = re.compile(rf"\w+\[n<={N.bound}\](?:, \w+\[(?:n<={N.bound}|1)\])*")


@dataclass(frozen=True)
class FlatKernel:
    """`code[singles]` for each set of inputs that are one element (bit i: input i) has the entry ABI; its argument block: inputs,
    output, the address of the number of elements. A program takes `block` elements, each about `element_ns` nanoseconds.
    `launch` is that of `choice` for `node`, where no input is one element."""

    inputs: tuple[DType, ...]
    output: DType
    block: int
    code: dict[int, CpuKernel]
    element_ns: float
    launch: Launch
    node: NodeSpec
    choice: Choice

    def arguments(self, inputs: Sequence[Array], output: Array) -> tuple[Array, ctypes.c_int64]:
        """The argument block, and the number of elements that it points to."""
        n = ctypes.c_int64(output.size)
        words = [a.ctypes.data for a in (*inputs, output)] + [ctypes.addressof(n)]
        return np.array(words, np.uint64), n

    def programs(self, n: int) -> int:
        """Returns the number of programs for n elements."""
        return -(-n // self.block)


def in_callers_shapes(message: str, operands: Sequence[Operand]) -> str:
    """Returns the message with the callers' operands in place of the specs of N elements."""
    given = ", ".join(f"{x.dtype}{list(x.shape)}" if isinstance(x, np.ndarray) else f"{x!r:.40}" for x in operands)
    return _FLAT.sub(lambda found: given, message)


def flat_node(op: Op, dtypes: Sequence[DType], attrs: Attrs, singles: int = 0) -> NodeSpec:
    """The op on tensors of N elements, or of one where `singles` says so. ShapeError where the op does not take them."""
    specs = tuple(TensorSpec((1,) if singles >> i & 1 else (N,), dtype) for i, dtype in enumerate(dtypes))
    return NodeSpec(specs, op.outputs(specs, attrs), attrs)


def flat_launch(node: NodeSpec, build: object) -> tuple[Launch, int] | None:
    """The one launch of a build over N elements, and the elements of a program; None where the op is not elementwise."""
    if not isinstance(build, Build) or len(build.launches) != 1 or build.scratch:
        return None
    (launch,) = build.launches
    order = [("input", i) for i in range(len(node.inputs))] + [("output", 0)]
    whole = [spec.shape for spec in node.outputs] == [(N,)]
    if not whole or not isinstance(launch, Launch) or [(o.kind, o.index) for o in launch.arrays] != order:
        return None
    fixed, factors = program_factors(launch)
    if fixed != 1 or len(factors) != 1 or factors[0][1] < LEAST_BLOCK or launch.extents != (N,):
        return None
    return launch, factors[0][1]


def n_sample_inputs(op: Op) -> int:
    """Returns the number of inputs of the op's first sample; 0 without samples."""
    if op.plain is not None:
        return len(op.plain[0])
    sample = next(iter(op.samples()), None)
    return 0 if sample is None else len(sample.inputs)


def n_inputs(op: Op) -> int:
    """Returns an elementwise op's number of inputs; 0 for other ops. Compiles and proves nothing."""
    plain = op.plain or _plain_sample(op)
    if plain is None or op.updates:
        return 0
    dtypes, attrs = plain
    try:
        node = flat_node(op, dtypes, attrs)
    except ShapeError:  # it takes matrices, or no Extent
        return 0
    target = cpu_device()
    found = next((v for v in op.variants if "simd" in v.backends and v.supports(node, target) is None), None)
    if found is None or flat_launch(node, found.build(node, target)) is None:
        return 0
    return len(dtypes)


def _plain_sample(op: Op) -> tuple[tuple[DType, ...], Attrs] | None:
    sample = next(iter(op.samples()), None)
    if sample is None or sample.specs is not None:
        return None
    return tuple(as_dtype(x.dtype) for x in sample.inputs), sample.attrs


def flat_kernel(
    op: Op, dtypes: Sequence[DType], attrs: Attrs, select: Callable[[NodeSpec], Choice]
) -> FlatKernel | None:
    """Returns the kernels for any number of elements; None if this process cannot call the chosen device's kernels.

    Raises ShapeError for unsupported dtypes, BackendError if no variant supports the call.
    """
    sets = range(2 ** len(dtypes) - 1) if len(dtypes) > 1 else (0,)
    code: dict[int, CpuKernel] = {}
    for singles in reversed(sets):  # the last one, without single elements, is `launch`
        node = flat_node(op, dtypes, attrs, singles)
        choice = select(node)
        if choice.device.space != HOST:
            return None
        build = choice.variant.build(node, choice.device)
        found = flat_launch(node, build)
        if found is None or not isinstance(build, Build):
            return None
        launch, block = found
        code[singles] = native_code(compile_launch(launch, signature(launch, node, build), choice.device))
    output = node.outputs[0].parts[0].dtype
    element_ns = max(op.nbytes(node) / 40, op.flops(node) / 20) / N.bound
    return FlatKernel(tuple(dtypes), output, block, code, element_ns, launch, node, choice)
