"""Call an elementwise op on arrays of any shapes, strides and dtypes, with kernels that take any length."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import prod
from typing import Any, Protocol

import numpy as np

from camshaft.dtypes import DType
from camshaft.eager.any_length import FlatKernel
from camshaft.eager.operands import broadcast, cast, check_cast, empty, give
from camshaft.eager.shapes.launches import launch_words, run_launches
from camshaft.eager.shapes.new_shapes import strides_key
from camshaft.eager.shapes.runners import Chooser, NoFormula, Planned, Prepared, strided_build, strided_runner
from camshaft.ops.arguments import Array, Dtype, Dtypes, Kinds, Operand, attribute_key, resolve
from camshaft.ops.kernels.strides import iteration, strides_of
from camshaft.ops.op import Attrs
from camshaft.ops.spec import TensorSpec
from camshaft.process import eager_threads

# Work from which the workers do it together, as the cost of an op has it: two of them break even at half of that.
SHARE_NS = 60_000.0
NOBODY = 1 << 62


class AnyLength(Protocol):
    """A call that computes any length; `code` has the sets of inputs that may be one element."""

    @property
    def output(self) -> DType: ...
    @property
    def code(self) -> Mapping[int, object]: ...


@dataclass(frozen=True)
class Resolved:
    """For operand dtypes: the dtypes they are cast to, the kernel, and the result's dtype."""

    dtypes: Dtypes
    kernel: AnyLength
    returned: Dtype


def resolved(
    name: str, kinds: Kinds, accepts: Callable[[Dtypes], bool], kernel_of: Callable[[Dtypes], AnyLength]
) -> Resolved:
    """Once for operands of these kinds. Errors as `resolve` and the op have them."""
    dtypes, returned = resolve(name, kinds, accepts)
    kernel = kernel_of(dtypes)
    return Resolved(dtypes, kernel, returned or kernel.output.numpy)


def call(chooser: Chooser, how: Resolved, operands: Sequence[Operand], out: Array | None, attrs: Attrs) -> Any:
    """The result as NumPy gives it: `out`, a new array, or a scalar where no operand has an axis."""
    kernel, computed = how.kernel, how.kernel.output.numpy
    if out is not None:
        check_cast(chooser.op.name, how.returned, out.dtype)
    arrays = [cast(x, d) for x, d in zip(operands, how.dtypes, strict=True)]
    shape = broadcast(operands, out)
    order = _order(arrays, out, shape)
    result = _target(chooser.op.name, out, shape, computed, order)
    if any(np.may_share_memory(result, x) and not _same_place(result, x) for x in arrays):
        result = empty(chooser.op.name, shape, computed, order)
    if result.size:
        if isinstance(kernel, FlatKernel) and not all(_is_flat(x, shape, order) for x in arrays) and _is_real(kernel):
            arrays = [x if _in_elements(x) else np.array(x, order=order) for x in arrays]
            prepared, is_new = _run_strided(chooser, kernel, arrays, result, order, attrs)
            if order == "C" and how.returned == computed and all(map(operator.is_, arrays, operands)):
                if not all(x.flags.c_contiguous for x in arrays):
                    chooser.once(strides_key(arrays, attrs), lambda: prepared)
                elif is_new:
                    chooser.record(operands, attrs, prepared, lambda shapes: _plan(kernel, shapes))
                else:
                    chooser.remember(operands, attrs, prepared)
        else:
            inputs, singles = _spread(arrays, shape, order, kernel)
            _run(kernel, [_flat(x) for x in inputs], _flat(result), singles)
    return give(result, out, how.returned)


def _is_real(kernel: FlatKernel) -> bool:
    """Whether no operand is complex: kernels of complex numbers take no strides."""
    return "c" not in (kernel.output.kind, *(d.kind for d in kernel.inputs))


def _is_flat(array: Array, shape: tuple[int, ...], order: str) -> bool:
    return array.size == 1 or (array.shape == shape and _fits(array, order))


def _run_strided(
    chooser: Chooser, kernel: FlatKernel, arrays: Sequence[Array], result: Array, order: Any, attrs: Attrs
) -> tuple[Prepared, bool]:
    """Runs the kernel that takes sizes and strides; returns the call, and whether it is new."""
    sizes = result.shape[::-1] if order == "F" else result.shape
    steps = [_steps(x, result.ndim, order) for x in arrays]
    key = result.shape, tuple(x.dtype for x in arrays), tuple(steps), order, attribute_key(attrs)
    before = chooser.known(key)
    prepared = before or chooser.once(key, lambda: _prepared(kernel, sizes, steps, result))
    prepared.run(arrays, [result])
    return prepared, before is None


def _plan(kernel: FlatKernel, shapes: Sequence[tuple[int, ...]]) -> Planned:
    """The build for contiguous operands of these shapes, without code."""
    specs = [TensorSpec(shape, dtype) for shape, dtype in zip(shapes, kernel.inputs, strict=True)]
    whole = TensorSpec(_broadcast(shapes), kernel.output)
    over = iteration(whole.shape, [strides_of(spec, whole.shape) for spec in (*specs, whole)])
    return Planned(kernel.node, kernel.choice, strided_build(kernel.launch, over), (whole.bounds,))


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape of the result. NoFormula for shapes that do not fit."""
    made = []
    for sizes in zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1):
        several = [size for size in sizes if size != 1] or [1]
        if any(size != several[0] for size in several):
            raise NoFormula
        made.append(several[0])
    return tuple(reversed(made))


def _in_elements(array: Array) -> bool:
    """Whether the strides are whole elements, and the elements aligned."""
    return array.flags.aligned and not any(stride % array.itemsize for stride in array.strides)


def _steps(array: Array, n_axes: int, order: str) -> tuple[int, ...]:
    """Strides in elements along the result's axes, slowest first, 0 where the array repeats."""
    itemsize = array.itemsize
    own = [0 if size == 1 else stride // itemsize for size, stride in zip(array.shape, array.strides, strict=True)]
    whole = (0,) * (n_axes - array.ndim) + tuple(own)
    return whole[::-1] if order == "F" else whole


def _prepared(kernel: FlatKernel, sizes: tuple[int, ...], steps: Sequence[Any], result: Array) -> Prepared:
    own = tuple(prod(sizes[i + 1 :]) if size > 1 else 0 for i, size in enumerate(sizes))
    over = iteration(sizes, [*steps, own])
    run = strided_runner(kernel.launch, kernel.node, over, kernel.choice, kernel.element_ns * result.size)
    dtypes = tuple(d.numpy for d in kernel.inputs)
    return Prepared(run, dtypes, (result.shape,), (result.dtype,), (result.dtype,))


def _order(arrays: Sequence[Array], out: Array | None, shape: tuple[int, ...]) -> Any:
    """Fortran's where every operand of the whole shape has it and not C's as well; so NumPy's new arrays lie then."""
    flags = [x.flags for x in (*arrays, *([] if out is None else [out])) if x.shape == shape]
    fortran = all(f.f_contiguous for f in flags) and not all(f.c_contiguous for f in flags)
    return "F" if fortran else "C"


def _fits(array: Array, order: str) -> bool:
    flags = array.flags
    return flags.aligned and (flags.f_contiguous if order == "F" else flags.c_contiguous)


def _target(op: str, out: Array | None, shape: tuple[int, ...], dtype: Dtype, order: Any) -> Array:
    if out is not None and out.dtype == dtype and _fits(out, order):
        return out
    return empty(op, shape, dtype, order)


def _same_place(a: Array, b: Array) -> bool:
    """Element i of both is the same memory: an elementwise kernel may write there what it just read."""
    return (a.ctypes.data, a.strides, a.shape, a.dtype) == (b.ctypes.data, b.strides, b.shape, b.dtype)


def _spread(arrays: Sequence[Array], shape: tuple[int, ...], order: Any, kernel: AnyLength) -> tuple[list[Array], int]:
    """The inputs at the whole shape, but for those of one element where there is a kernel for that, and the set of these."""
    size = prod(shape)
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
    return int(SHARE_NS / kernel.element_ns) if eager_threads() > 1 else NOBODY
