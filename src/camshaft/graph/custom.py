"""Nodes that run the caller's own function: Python over NumPy views, or native code by address."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, cast

import numpy as np

from camshaft.dtypes import as_dtype
from camshaft.errors import PlanError, ShapeError
from camshaft.extent import Extent
from camshaft.graph.checks import checked_tensor
from camshaft.graph.tensor import Array, Tensor, root
from camshaft.ops.op import Attrs, Build, HostCall, KernelVariant, NodeSpec, Op, Target, expect
from camshaft.ops.spec import Dim, TensorSpec, dims

Spec = TensorSpec | tuple[Sequence[Dim], object]
# The base class of ctypes functions.
_NATIVE: type = ctypes.CFUNCTYPE(None).__mro__[1]


@dataclass(frozen=True)
class PointerCall:
    """The caller's native code: `void entry(const int64_t* args, int64_t first, int64_t last)`.

    It is called for ranges of `programs`, concurrently if there are several. `args` are the addresses of the inputs, of the
    outputs, and of the active value (int64) of each Extent in their shapes, in order of first appearance. `keep` keeps the code
    alive.
    """

    name: str
    address: int
    programs: Dim
    keep: object


@dataclass(frozen=True)
class CustomOp(Op):
    """An op of one graph that runs the caller's function on the host. No pass changes its node."""

    call: HostCall | PointerCall = field(kw_only=True)


def custom_op(
    name: str,
    function: object,
    inputs: Sequence[Tensor],
    outputs: Sequence[Spec],
    updates: Sequence[int],
    programs: Dim,
) -> CustomOp:
    """Returns the op of a function over these inputs. Raises ShapeError for invalid arguments."""
    for what, given in (("inputs", inputs), ("outputs", outputs), ("updates", updates)):
        if not isinstance(given, (list, tuple)):
            raise ShapeError(f"{name}: got {what}={given!r:.80}; wanted a list")
    for tensor in inputs:
        checked_tensor(str(name), tensor)
    specs = tuple(t.spec for t in inputs)
    made = tuple(_spec(name, spec) for spec in outputs)
    for spec in (*specs, *made):
        if not spec.is_plain:
            raise ShapeError(f"{name}: got {spec}; wanted plain tensors")
    if any(not 0 <= i < len(specs) for i in updates):
        raise ShapeError(f"{name}: got updates {list(updates)}; wanted indexes of its {len(specs)} inputs")
    for index in updates:
        if root(inputs[index]).kind not in ("state", "buffer"):
            raise ShapeError(f"{name}: updates input {index}, {inputs[index].name}, in place; wanted a state there")

    def infer(given: tuple[TensorSpec, ...], attrs: Attrs) -> tuple[TensorSpec, ...]:
        if given != specs:
            raise ShapeError(f"{name}: got {', '.join(map(str, given))}; wanted {', '.join(map(str, specs))}")
        return made

    def no_reference(inputs: Sequence[Array], attrs: Attrs) -> NoReturn:
        raise ShapeError(f"{name}: a caller's function has no reference")

    variant = KernelVariant("function", frozenset(), _never_built)
    call, formula = _call(name, function, programs), f"{name}(inputs) by the caller"
    made_op = Op(name, formula, infer, no_reference, tuple, tuple, {}, (variant,), updates=tuple(updates))
    return CustomOp(**vars(made_op), call=call)


def _never_built(node: NodeSpec, target: Target) -> Build:
    raise ShapeError("a caller's function is not built for a device")


def _infer_copy(specs: tuple[TensorSpec, ...], attrs: Attrs) -> tuple[TensorSpec, ...]:
    expect(len(specs) == 1, "copy", specs, "one tensor")
    return specs


def _copied(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    return (inputs[0].copy(),)


# No device has a kernel for it: lowering makes a copy thunk.
MEMCPY = KernelVariant("memcpy", frozenset(), _never_built)
COPY = Op("copy", "y = x, byte by byte", _infer_copy, _copied, tuple, tuple, {})


def _spec(name: str, spec: Spec) -> TensorSpec:
    if isinstance(spec, TensorSpec):
        return spec
    try:
        shape, dtype = spec
        return TensorSpec(dims(f"{name}'s output", shape), as_dtype(dtype))
    except (TypeError, ValueError) as error:
        raise ShapeError(f"{name}: got the output {spec!r}; wanted a TensorSpec or (shape, dtype)") from error


def _call(name: str, function: object, programs: Dim) -> HostCall | PointerCall:
    address = _address(function)
    if not isinstance(programs, (int, Extent)):
        raise ShapeError(f"{name}: got {programs!r} programs; wanted a whole number or an Extent")
    if address is not None:
        if address <= 0 or (isinstance(programs, int) and programs < 1):
            raise ShapeError(f"{name}: got address {address:#x} with {programs} programs; wanted both above 0")
        return PointerCall(name, address, programs, function)
    if not callable(function):
        raise ShapeError(
            f"{name}: got {function!r}; wanted a function, or native code as an address or a ctypes function"
        )
    if programs != 1:
        raise ShapeError(f"{name}: got {programs} programs; a Python function runs once")
    return HostCall(_python(name, function), active=True)


def _address(function: object) -> int | None:
    """Returns the address of native code, including ctypes callbacks; None for a Python function."""
    if isinstance(function, bool):
        return None
    if isinstance(function, int):
        return function
    if isinstance(function, _NATIVE):
        return ctypes.cast(cast(Any, function), ctypes.c_void_p).value or 0
    return _cffi_address(function)


def _cffi_address(function: object) -> int | None:
    """Returns the address of a cffi function pointer, else None. Such a pointer exists only if cffi is imported."""
    cffi = sys.modules.get("_cffi_backend")
    if cffi is None or not isinstance(function, cffi._CDataBase) or cffi.typeof(function).kind != "function":
        return None
    return int(cffi.cast(cffi.new_primitive_type("uintptr_t"), function))


def _python(name: str, function: Callable[..., object]) -> Callable[[NodeSpec, Sequence[Array], Sequence[Array]], None]:
    def run(node: NodeSpec, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        _refuse_new_values(name, function(*inputs, *outputs), (*inputs, *outputs))

    return run


def _refuse_new_values(name: str, returned: object, given: Sequence[Array]) -> None:
    """Raises PlanError if a function returned new values, which would be lost. (NumPy functions with `out=` return `out`.)"""
    for value in returned if isinstance(returned, (tuple, list)) else (returned,):
        new = isinstance(value, np.ndarray) and not any(np.may_share_memory(value, array) for array in given)
        if new or isinstance(value, np.generic):
            raise PlanError(f"{name}: the function returned {type(value).__name__}; wanted it to write its outputs")
