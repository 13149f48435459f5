"""Graphs of primitive ops computed by torch in f64, so that torch differentiates them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from camshaft.dtypes import PARTS, as_dtype
from camshaft.graph.graph import Graph, Tensor
from camshaft.graph.node import Node

torch: Any = pytest.importorskip("torch")


def run(graph: Graph, given: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs of a graph of primitives by name, from torch tensors of its inputs and states."""
    values: dict[Tensor, Any] = {t: given[name] for name, t in (graph.inputs | graph.states).items()}

    def value(tensor: Tensor) -> Any:
        if tensor in values:
            return values[tensor]
        if tensor.source is not None:
            found = of_array(tensor.source.data().view(tensor.spec.parts[0].dtype.numpy).reshape(tensor.spec.bounds))
        else:
            assert tensor.base is not None
            found = value(tensor.base)
            if tensor.dtype in PARTS and tensor.base.dtype not in PARTS:
                found = torch.view_as_complex(found.contiguous())
            elif tensor.base.dtype in PARTS and tensor.dtype not in PARTS:
                found = torch.view_as_real(found)
            found = found.reshape(tensor.spec.bounds)
        values[tensor] = found
        return found

    for node in graph.nodes:
        inputs = [value(t) for t in node.inputs]
        made = _made(node, inputs)
        values.update(zip(node.outputs, made if isinstance(made, tuple) else (made,), strict=True))
    return {name: value(t) for name, t in graph.outputs.items()}


def of_array(array: Any) -> Any:
    """An array as a torch tensor; floats in f64, complex numbers in complex128, unsigned integers as i64."""
    x = np.asarray(array)
    dtype = as_dtype(x.dtype)
    if dtype in PARTS:
        x = x.astype(np.complex128)
    elif dtype.is_float:
        x = x.astype(np.float64)
    elif dtype.kind == "u":
        x = x.astype(np.int64)
    return torch.from_numpy(np.array(x, order="C"))


def _made(node: Node, inputs: Sequence[Any]) -> Any:
    if not any(x.requires_grad for x in inputs) or not any(map(_is_float, node.outputs)):  # constants to a derivative
        arrays = [_typed(x.detach().resolve_conj().numpy(), t) for x, t in zip(inputs, node.inputs, strict=True)]
        made = node.op.reference(arrays, node.attrs)
        return tuple(of_array(_typed(y, t)) for y, t in zip(made, node.outputs, strict=True))
    return FUNCTIONS[node.op.name](*inputs, **_attrs(node))


def _typed(array: Any, tensor: Tensor) -> Any:
    """An array in the dtype of a graph's tensor, where that is none of floats."""
    dtype = tensor.spec.parts[0].dtype.numpy
    wide = (
        np.complex128
        if tensor.dtype in PARTS
        else np.float64
        if _is_float(tensor) or not tensor.spec.is_plain
        else dtype
    )
    return np.asarray(array).astype(wide)


def _is_float(tensor: Tensor) -> bool:
    return tensor.spec.is_plain and (tensor.dtype in PARTS or getattr(tensor.dtype, "is_float", False))


def _attrs(node: Node) -> dict[str, Any]:
    attrs = dict(node.attrs)
    if node.op.name == "broadcast_to":
        return {"shape": node.outputs[0].spec.bounds}
    if node.op.name == "cast":
        return {"kind": as_dtype(attrs["to"])}
    return {key: value for key, value in attrs.items() if key != "to"}


def _axes(x: Any, axes: Any) -> tuple[int, ...]:
    return tuple(range(x.ndim)) if axes is None else (axes,) if isinstance(axes, int) else tuple(axes)


def _prod(x: Any, axes: Any = None, keepdims: bool = False) -> Any:
    for axis in sorted((a % x.ndim for a in _axes(x, axes)), reverse=True):
        x = x.prod(axis, keepdim=keepdims)
    return x


def _scan(function: Callable[..., Any]) -> Callable[..., Any]:
    def scanned(x: Any, axis: int = -1, reverse: bool = False) -> Any:
        return function(x.flip(axis), axis).flip(axis) if reverse else function(x, axis)

    return scanned


def _order(x: Any, axis: int = -1, descending: bool = False) -> Any:
    return torch.sort(x, dim=axis, descending=descending, stable=True)


def _slice(x: Any, starts: Any, sizes: Any, steps: Any = None) -> Any:
    for axis, (start, size, step) in enumerate(zip(starts, sizes, steps or (1,) * x.ndim, strict=True)):
        if size is not None:
            x = x.index_select(axis, start + step * torch.arange(size))
    return x


def _gather(x: Any, rows: Any) -> Any:
    n = x.shape[0]
    inside = (rows >= -n) & (rows < n)
    found = x[torch.where(inside, rows, 0).long() % n]
    return torch.where(inside.reshape(*rows.shape, *(1,) * (x.ndim - 1)), found, torch.nan)


def _scattered(x: Any, indices: Any, values: Any, axis: int, adds: bool) -> Any:
    """One row after the other, so that the last of duplicates stays."""
    n, indices = x.shape[axis], indices.expand(values.shape)
    for i in range(values.shape[axis]):
        index, value = indices.narrow(axis, i, 1).long(), values.narrow(axis, i, 1)
        inside = (index >= -n) & (index < n)
        at = torch.where(inside, index, 0) % n
        old = x.gather(axis, at)
        x = x.scatter(axis, at, torch.where(inside, old + value if adds else value, old))
    return x


def _matmul(a: Any, b: Any, transpose_b: bool = False, precision: str = "f32") -> Any:
    return a @ (b.mT if transpose_b and b.ndim > 1 else b)


def _fft_rows(
    x: Any, factors: Any, n: int | None = None, form: str = "complex", inverse: bool = False, scale: float = 1.0,
    keep: int | None = None, turn_in: bool = False, turn_out: bool = False, real: int | None = None,
) -> Any:  # fmt: skip
    pairs = form in ("complex", "to_real", "irfft")
    z = torch.view_as_complex(x.contiguous()) if pairs else x
    n = n or (2 * (x.shape[1] - 1) if form == "irfft" else x.shape[1])
    turned = factors[0] + 1j * factors[1]
    if turn_in:
        first = turned[-2 * n : -n] if turn_out else turned[-n:]
        z = z[:, :n] * first[: min(z.shape[1], n)]
    if form == "rfft":
        y = torch.fft.rfft(z, n)
    elif form == "irfft":
        y = torch.fft.irfft(z, n) * n
    else:
        y = torch.fft.ifft(z, n) * n if inverse else torch.fft.fft(z, n)
    y = (y * turned[-n:] if turn_out else y)[:, :keep] * scale
    if form in ("irfft", "to_real"):
        return y if form == "irfft" else y.real
    parts = torch.view_as_real(y.contiguous())
    if real:
        kept = torch.ones(parts.shape[1:])
        kept[[int(f) for f in (0, real / 2) if f in range(len(kept))], 1] = 0
        parts = parts * kept
    return parts


def _cast(x: Any, kind: Any) -> Any:
    if kind in PARTS:
        return x.to(torch.complex128)
    x = x.real if x.is_complex() and kind.name != "bool" else x
    return x.double() if kind.is_float else x.to(getattr(torch, str(np.dtype(kind.numpy))))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": torch.add,
    "subtract": torch.subtract,
    "multiply": torch.multiply,
    "divide": torch.divide,
    "floor_divide": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "remainder": torch.remainder,
    "power": torch.pow,
    "minimum": torch.minimum,
    "maximum": torch.maximum,
    **{name: getattr(torch, name) for name in ("exp", "log", "sqrt", "tanh", "erf", "sin", "cos", "floor", "round")},
    "equal": torch.eq,
    "less": torch.less,
    "isnan": torch.isnan,
    "where": torch.where,
    "sum": lambda x, axes=None, keepdims=False: x.sum(_axes(x, axes), keepdim=keepdims) if x.ndim else x,
    "prod": _prod,
    "max": lambda x, axes=None, keepdims=False: torch.amax(x, _axes(x, axes), keepdim=keepdims),
    "min": lambda x, axes=None, keepdims=False: torch.amin(x, _axes(x, axes), keepdim=keepdims),
    "argmax": lambda x, axis=-1, keepdims=False, nan_first=True: torch.argmax(x, axis, keepdim=keepdims),
    "cumsum": _scan(torch.cumsum),
    "cumprod": _scan(torch.cumprod),
    "cummax": _scan(lambda x, axis: torch.cummax(x, axis)[0]),
    "argsort": lambda x, **attrs: _order(x, **attrs)[1],
    "sort": lambda x, **attrs: _order(x, **attrs)[0],
    "top_k": lambda x, k, axis=-1, largest=True: tuple(
        t.narrow(axis, 0, k) for t in _order(x, axis=axis, descending=largest)
    ),
    "searchsorted": lambda a, v, side="left": torch.searchsorted(a.contiguous(), v.contiguous(), side=side),
    "matmul": _matmul,
    "fft_rows": _fft_rows,
    "copy": torch.clone,
    "cast": _cast,
    "transpose": lambda x, axes=None: x.permute(tuple(reversed(range(x.ndim))) if axes is None else axes),
    "slice": _slice,
    "concat": lambda *tensors, axis=0: torch.cat(tensors, axis),
    "gather": _gather,
    "broadcast_to": lambda x, shape: x.expand(shape),
    "scatter_add": lambda x, indices, values, axis=-1: _scattered(x, indices, values, axis, adds=True),
    "put": lambda x, indices, values, axis=-1: _scattered(x, indices, values, axis, adds=False),
    "cholesky": torch.linalg.cholesky,
}  # fmt: skip
