"""NumPy's shapes and dtypes that ops do not have: vectors and empty matrices in a product, and its words for errors.

For shaped_call.py; reductions are in numpy_reductions.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from camshaft.eager.numpy_reductions import REDUCTIONS, Form, axes_of, reduction
from camshaft.errors import ArrayTypeError, ArrayValueError
from camshaft.ops.arguments import Array, product_dtypes

_SIGNATURE = "(n?,k),(k,m?)->(n?,m?)"


def _matmul(arrays: Sequence[Array], attrs: Mapping[str, Any]) -> Form | None:
    """out[.., i, j] = sum_k a[.., i, k] b[.., k, j]; a vector is a matrix of one row or column that the result lacks."""
    if len(arrays) != 2 or attrs.get("transpose_b", False):
        return None
    for i, x in enumerate(arrays):
        if not x.ndim:
            has = f"(has 0, gufunc core with signature {_SIGNATURE} requires 1)"
            raise ArrayValueError(f"matmul: Input operand {i} does not have enough dimensions {has}")
    a, b = arrays
    rows, columns = (() if a.ndim == 1 else a.shape[-2:-1]), (() if b.ndim == 1 else b.shape[-1:])
    left, right = (a[None] if a.ndim == 1 else a), (b[:, None] if b.ndim == 1 else b)
    if left.shape[-1] != right.shape[-2]:
        sizes = f"(size {right.shape[-2]} is different from {left.shape[-1]})"
        where = f"Input operand 1 has a mismatch in its core dimension 0, with gufunc signature {_SIGNATURE} {sizes}"
        raise ArrayValueError(f"matmul: {where}")
    try:
        batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    except ValueError:
        text = " ".join(f"{_text(x.shape)}->{_text((*x.shape[:-2], None, None))}" for x in (left, right))
        what = "operands could not be broadcast together with remapped shapes [original->remapped]"
        raise ArrayValueError(f"{what}: {text}  and requested shape {_text((*rows, *columns))}") from None
    shape = (*batch, *rows, *columns)
    computed, returned = product_dtypes(left.dtype, right.dtype)
    ready = np.zeros(shape, np.result_type(a, b)) if 0 in left.shape or 0 in right.shape else None
    return Form(tuple(x.astype(computed or x.dtype, copy=False) for x in (left, right)), shape, ready, returned)


def _text(shape: Sequence[int | None]) -> str:
    inner = ",".join("newaxis" if n is None else str(n) for n in shape)
    return f"({inner}{',' if len(shape) == 1 else ''})"


_FORMS: dict[str, Callable[[Sequence[Array], Mapping[str, Any]], Form | None]] = {
    "matmul": _matmul,
    **{name: partial(reduction, name) for name in REDUCTIONS},
}


def form_of(op: str, arrays: Sequence[Array], attrs: Mapping[str, Any]) -> Form | None:
    """How NumPy's arguments of a function become the op's; None where they are the op's own. ArrayValueError in NumPy's words."""
    return _FORMS[op](arrays, attrs) if op in _FORMS else None


def check_core(op: str, out: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    """ArrayValueError unless an output has the shape of the result."""
    if out == wanted:
        return
    core = [i for i in (0, 1) if len(out) == len(wanted) > i and out[i - 2] != wanted[i - 2]] if op == "matmul" else []
    if core and len(wanted) >= 2:
        sizes = f"(size {out[core[0] - 2]} is different from {wanted[core[0] - 2]})"
        where = f"Output operand 0 has a mismatch in its core dimension {core[0]}, with gufunc signature {_SIGNATURE} {sizes}"
        raise ArrayValueError(f"{op}: {where}")
    raise ArrayValueError(f"{op}: out has the shape {out}; wanted {wanted}")


def attributes_of(op: str, attrs: Mapping[str, Any], n_axes: int) -> dict[str, Any]:
    """Attributes as the op names them, where NumPy's function of that name says `axis`; NumPy's numbers as Python's, lists as
    tuples. ArrayTypeError for what cannot be one, ArrayAxisError for an axis that an array of so many lacks."""
    plain = {name: _plain(op, name, value) for name, value in attrs.items()}
    return axes_of(op, plain, n_axes) if op in REDUCTIONS else plain


def _plain(op: str, name: str, value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple):
        return tuple(_plain(op, name, x) for x in value)
    try:
        hash(value)
    except TypeError:
        raise ArrayTypeError(f"{op}: {name} is a {type(value).__name__}; wanted numbers, text or a tuple") from None
    return value


def count_of(op: str, given: int) -> int:
    """How many operands NumPy's function of that name takes before `out`; as many as were given where there is no form."""
    return 2 if op == "matmul" else given
