"""An elementwise op on arrays of any shapes, strides and dtypes, by kernels that take any length. Below array_op.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from camshaft.dispatch.flat import FlatKernel
from camshaft.dispatch.operands import Array, Dtype, Operand, broadcast, cast, check_cast, resolve
from camshaft.dispatch.parallel import launch_words, run_launches, several_workers
from camshaft.dtypes import DType
from camshaft.ops.op import Op

# Work from which the workers do it together, as the cost of an op has it: two of them break even at half of that.
SHARE_NS = 40_000.0
NOBODY = 1 << 62
Dtypes = tuple[Dtype, ...]


class AnyLength(Protocol):
    """What computes one length or any; `code` has the sets of inputs that may be one element."""

    @property
    def output(self) -> DType: ...
    @property
    def code(self) -> Mapping[int, object]: ...


def call(
    op: Op,
    operands: Sequence[Operand],
    out: Array | None,
    accepts: Callable[[Dtypes], bool],
    kernel_of: Callable[[Dtypes], AnyLength],
) -> Any:
    """The result as NumPy gives it: `out`, a new array, or a scalar where no operand has an axis."""
    dtypes, returned = resolve(op.name, operands, accepts)
    shape = broadcast(operands, out)
    kernel = kernel_of(dtypes)
    computed = kernel.output.numpy
    returned = returned or computed
    if out is not None:
        check_cast(op.name, returned, out.dtype)
    order = _order(operands, out, shape)
    result = _target(out, shape, computed, order)
    inputs, singles = _spread([cast(x, d) for x, d in zip(operands, dtypes, strict=True)], shape, order, kernel)
    if any(np.may_share_memory(result, x) and not _same_place(result, x) for x in inputs):
        result = np.empty(shape, computed, order)
    if result.size:
        _run(kernel, [_flat(x) for x in inputs], _flat(result), singles)
    return _give(result, out, returned)


def _order(operands: Sequence[Operand], out: Array | None, shape: tuple[int, ...]) -> Any:
    """Fortran's where every operand of the whole shape has it and not C's as well; so NumPy's new arrays lie then."""
    whole = [
        x for x in (*operands, *([] if out is None else [out])) if np.shape(x) == shape and isinstance(x, np.ndarray)
    ]
    fortran = whole and all(x.flags.f_contiguous for x in whole) and not all(x.flags.c_contiguous for x in whole)
    return "F" if fortran else "C"


def _fits(array: Array, order: str) -> bool:
    flags = array.flags
    return flags.aligned and (flags.f_contiguous if order == "F" else flags.c_contiguous)


def _target(out: Array | None, shape: tuple[int, ...], dtype: Dtype, order: Any) -> Array:
    if out is not None and out.dtype == dtype and _fits(out, order):
        return out
    return np.empty(shape, dtype, order)


def _same_place(a: Array, b: Array) -> bool:
    """Element i of both is the same memory: an elementwise kernel may write there what it just read."""
    return (a.ctypes.data, a.strides, a.shape, a.dtype) == (b.ctypes.data, b.strides, b.shape, b.dtype)


def _spread(arrays: Sequence[Array], shape: tuple[int, ...], order: Any, kernel: AnyLength) -> tuple[list[Array], int]:
    """The inputs at the whole shape, but for those of one element where there is a kernel for that, and the set of these."""
    size = int(np.prod(shape))
    singles = sum(1 << i for i, x in enumerate(arrays) if x.size == 1 and size > 1)
    if singles not in kernel.code:
        singles = 0
    made = []
    for i, x in enumerate(arrays):
        single = bool(singles >> i & 1)
        whole = x if single or x.shape == shape else np.broadcast_to(x, shape)
        made.append(whole if _fits(whole, order) else np.array(whole, order=order))
    return made, singles


def _flat(array: Array) -> Array:
    return array.reshape(-1, order="F" if not array.flags.c_contiguous else "C")


def _run(kernel: AnyLength, inputs: Sequence[Array], output: Array, singles: int) -> None:
    if not isinstance(kernel, FlatKernel):
        kernel(inputs, output, singles)  # type: ignore[operator]
        return
    block, n = kernel.arguments(inputs, output)
    code, programs = kernel.code[singles], kernel.programs(n.value)
    if n.value < share_from(kernel):
        code(block.ctypes.data, 0, programs)
        return
    words = launch_words([(code.address, block.ctypes.data, programs)])
    run_launches(words.ctypes.data)


def share_from(kernel: FlatKernel) -> int:
    """From how many elements on a call is shared among workers."""
    return int(SHARE_NS / kernel.element_ns) if several_workers() else NOBODY


def _give(result: Array, out: Array | None, returned: Dtype) -> Any:
    if out is None:
        kept = result if result.dtype == returned else result.astype(returned)
        return kept if kept.ndim else kept[()]
    if result is not out:
        np.copyto(out, result, casting="same_kind")
    return out
