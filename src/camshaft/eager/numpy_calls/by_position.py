"""NumPy's calls of ops that move, order and scan elements, and of ops without kernels: attributes by position, integers as
floats or indexes, arrays without elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from camshaft.dtypes import as_dtype
from camshaft.eager.numpy_calls.call import Attrs, Call, Inputs
from camshaft.errors import ArrayTypeError, ArrayValueError
from camshaft.ops.arguments import operand


def _put(x: Any, indices: Any, values: Any, axis: int = -1) -> Any:
    y = np.array(x)
    if np.size(indices):
        np.put_along_axis(y, indices, values, axis)
    return y


def _one_hot(indices: Any, num_classes: int, to: str = "f32") -> Any:
    return np.zeros((*indices.shape, num_classes), as_dtype(to).numpy)


def _activation(x: Any, **attrs: Any) -> Any:
    return np.array(x)


def _sorted(x: Any, axis: int = -1, descending: bool = False) -> Any:
    return np.sort(x, axis)


def _order(x: Any, axis: int = -1, descending: bool = False, to: str = "i32") -> Any:
    return np.argsort(x, axis).astype(as_dtype(to).numpy)


def _scan(x: Any, axis: int = -1, reverse: bool = False, to: str | None = None) -> Any:
    return np.cumsum(x, axis, None if to is None else as_dtype(to).numpy)


def _extremes(x: Any, axis: int = -1, reverse: bool = False) -> Any:
    return np.maximum.accumulate(x, axis)


# Op -> arrays, attributes in NumPy's order, and NumPy's function for arrays without elements.
_CALLS: dict[str, tuple[int, tuple[str, ...], Callable[..., Any]]] = {
    "flip": (1, ("axis",), np.flip),
    "roll": (1, ("shift", "axis"), np.roll),
    "repeat": (1, ("repeats", "axis"), np.repeat),
    "tile": (1, ("reps",), np.tile),
    "tril": (1, ("k",), np.tril),
    "triu": (1, ("k",), np.triu),
    "pad": (1, ("pad_width", "mode"), np.pad),
    "broadcast_to": (1, ("shape",), np.broadcast_to),
    "take_along_axis": (2, ("axis",), np.take_along_axis),
    "put": (3, ("axis",), _put),
    "scatter_add": (3, ("axis",), _put),
    "one_hot": (1, ("num_classes",), _one_hot),
    "sort": (1, ("axis",), _sorted),
    "argsort": (1, ("axis",), _order),
    **dict.fromkeys(("cumsum", "cumprod"), (1, ("axis",), _scan)),
    **dict.fromkeys(("cummax", "cummin"), (1, ("axis",), _extremes)),
    "tan": (1, (), np.tan),
    **dict.fromkeys(("relu", "hard_swish", "mish"), (1, (), _activation)),
    "leaky_relu": (1, ("negative_slope",), _activation),
    "elu": (1, ("alpha",), _activation),
}
NAMES = tuple(_CALLS)
# The input that has indexes.
_INDEXES = {"take_along_axis": 1, "put": 1, "scatter_add": 1, "one_hot": 0}


def named(name: str, inputs: Inputs, attrs: Attrs) -> tuple[Inputs, Attrs]:
    """The arrays or tensors of a call, and its attributes by name. ArrayTypeError for more of them than the op has."""
    count, names, _ = _CALLS[name]
    more = inputs[count:]
    if len(more) > len(names) or set(names[: len(more)]) & set(attrs):
        wanted = f"{count}, then {', '.join(names)}" if names else f"{count}"
        raise ArrayTypeError(f"{name}: got {len(inputs)} arguments by position; wanted {wanted}")
    return inputs[:count], {**dict(zip(names, more, strict=False)), **attrs}


def moved(name: str, inputs: Inputs, attrs: Attrs) -> Call | None:
    """How the op is called; None where the arguments are its own. ArrayTypeError and ArrayValueError as NumPy raises them."""
    count, _, function = _CALLS[name]
    taken, by_name = named(name, inputs, attrs)
    more = inputs[count:]
    arrays = [np.asarray(operand(x, name)) for x in taken]
    given = {key: _plain(value) for key, value in by_name.items()}
    at = _INDEXES.get(name)
    odd = at is not None and len(arrays) > at and _becomes_indexes(arrays[at])
    if at is not None and odd:
        arrays[at] = arrays[at].astype(np.int64)
    if name == "tan" and arrays[0].dtype.kind in "biu":
        arrays[0], odd = arrays[0].astype(np.tan(np.empty(0, arrays[0].dtype)).dtype), True
    if all(a.size for a in arrays) and not _gives_nothing(given):
        return Call(tuple(arrays) if odd else taken, given) if odd or more or given != attrs else None
    try:
        return Call(ready=np.array(function(*arrays, **given)))
    except ValueError as error:
        raise ArrayValueError(f"{name}: {error}") from None
    except TypeError as error:
        raise ArrayTypeError(f"{name}: {error}") from None


def _becomes_indexes(x: np.ndarray[Any, Any]) -> bool:
    """Whether they are integers, or no elements, of another dtype than ops take as indexes; ops refuse others."""
    return x.dtype not in (np.int32, np.int64) and (x.dtype.kind in "iu" or not x.size)


def _gives_nothing(given: Attrs) -> bool:
    """Whether the result has no elements: something is repeated 0 times, or a size is 0."""
    counts = (given.get(key, 1) for key in ("repeats", "reps", "shape"))
    return any(0 in (n if isinstance(n, tuple) else (n,)) for n in counts)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    return tuple(map(_plain, value)) if isinstance(value, list | tuple) else value


def norm_by_channel(name: str, inputs: Inputs, attrs: Attrs) -> Call | None:
    """A norm of x [N, C, ..] without elements; its other arguments are checked as if each empty axis had one."""
    x = np.asarray(operand(inputs[0], name))
    if x.size or x.ndim < 2 or not x.shape[1]:
        return None
    from camshaft.ops import get  # most calls have elements
    from camshaft.ops.spec import TensorSpec

    shapes = [tuple(n or 1 for n in x.shape), *(np.shape(operand(y, name)) for y in inputs[1:])]
    dtypes = [np.asarray(operand(y, name)).dtype for y in inputs]
    get(name).outputs(tuple(TensorSpec(*pair) for pair in zip(shapes, map(as_dtype, dtypes), strict=True)), attrs)
    return Call(ready=np.empty(x.shape, x.dtype))
